"""Sessions with Kafka's answers, kept for runs without Java.

A recording is a gzip file of JSON lines. The first line tells the version of Apache Kafka, the versions of
the APIs and the number of brokers; each further line has a session, the prefix of its names, and the answers
by label with every field as Kafka sent it. The rules are applied when a recording is read: a changed rule
needs no new one. Sessions that Kafka did not answer alike twice, by the rules of that day, are not recorded:
they depend on time. `selection` says which sessions a recording is made of.
"""

import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.oracle.generator import Versions
from tests.oracle.judge import Difference, differences, normalised
from tests.oracle.runner import Runner, Transcript
from tests.oracle.session import Json, Session
from tests.oracle.systems import System

FOLDER = Path(__file__).parent / "recordings"
ONE_BROKER = FOLDER / "one-broker.jsonl.gz"
#: sessions in which answers get lost
LOST_ANSWERS = FOLDER / "lost-answers.jsonl.gz"
FORMAT = 2


class Recorded(NamedTuple):
    """One session and what Kafka answered."""

    session: Session
    prefix: str
    transcript: Transcript


def write(path: Path, kafka_version: str, versions: Versions, rows: Iterable[Recorded]) -> None:
    """Write a recording."""
    path.parent.mkdir(exist_ok=True)
    # without a name and a time in it, so that the same sessions make the same file
    with path.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) as file:
        head = {"format": FORMAT, "kafka": kafka_version, "brokers": 1, "versions": versions}
        file.write(json.dumps(head).encode() + b"\n")
        for session, prefix, transcript in rows:
            line = {"session": session.to_json(), "prefix": prefix, "answers": dict(transcript)}
            file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")


def head(path: Path) -> dict[str, Json]:
    with gzip.open(path, "rt") as file:
        found: dict[str, Json] = json.loads(next(file))
        assert found["format"] == FORMAT, f"{path} has another format: record anew"
        return found


def read(path: Path) -> Iterator[Recorded]:
    with gzip.open(path, "rt") as file:
        next(file)
        for line in file:
            row = json.loads(line)
            yield Recorded(Session.from_json(row["session"]), row["prefix"], list(row["answers"].items()))


def record(kafka: System, sessions: Iterable[Session], prefix: str) -> Iterator[Recorded]:
    """Every session that Kafka answers alike when it is asked twice."""
    for session in sessions:
        names = [f"{prefix}{session.seed}{turn}-" for turn in "ab"]
        first, second = (Recorded(session, name, Runner(kafka, name).run(session)) for name in names)
        # what is not answered takes as long in every replay
        late = any("timeout" in answer for _, answer in first.transcript)
        if not late and kafka_answers(first) == kafka_answers(second):
            yield first


def kafka_answers(recorded: Recorded) -> dict[str, Json]:
    """What Kafka answered, by the rules of today."""
    return normalised(*recorded)


def replay(system: System, recorded: Recorded, prefix: str) -> list[Difference]:
    """What a system answers differently."""
    session = recorded.session
    here = normalised(session, prefix, Runner(system, prefix).run(session))
    return differences(session, kafka_answers(recorded), here)
