"""Sessions with Kafka's answers, kept for runs without Java.

A recording is a gzip file of JSON lines. The first line tells the version of Apache Kafka, the versions of
the APIs and the number of brokers; each further line has a session and the normalised answers by label, with
`~` for the prefix of the session's names. Sessions that Kafka did not answer alike twice are not recorded:
they depend on time.
"""

import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from oracle.judge import Difference, differences, normalised
from oracle.runner import Runner
from oracle.session import Json, Session
from oracle.systems import System

FOLDER = Path(__file__).parent / "recordings"
ONE_BROKER = FOLDER / "one-broker.jsonl.gz"
FORMAT = 1


class Recorded(NamedTuple):
    """One session and what Kafka answered."""

    session: Session
    answers: dict[str, Json]


def write(
    path: Path, kafka_version: str, versions: dict[str, tuple[int, int]], rows: Iterable[Recorded]
) -> int:
    """Write a recording; how many sessions it has."""
    path.parent.mkdir(exist_ok=True)
    count = 0
    # without a name and a time in it, so that the same sessions make the same file
    with path.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) as file:
        head = {"format": FORMAT, "kafka": kafka_version, "brokers": 1, "versions": versions}
        file.write(json.dumps(head).encode() + b"\n")
        for session, answers in rows:
            line = {"session": session.to_json(), "answers": answers}
            file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
            count += 1
    return count


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
            yield Recorded(Session.from_json(row["session"]), row["answers"])


def record(kafka: System, sessions: Iterable[Session], prefix: str) -> Iterator[Recorded]:
    """Every session that Kafka answers alike when it is asked twice."""
    for session in sessions:
        first, second = (_answers(kafka, session, f"{prefix}{session.seed}{turn}-") for turn in "ab")
        # what is not answered takes as long in every replay
        if first == second and not any("timeout" in answer for answer in first.values()):
            yield Recorded(session, first)


def replay(system: System, recorded: Recorded, prefix: str) -> list[Difference]:
    """What a system answers differently."""
    here = _answers(system, recorded.session, prefix)
    return differences(recorded.session, recorded.answers, here)


def _answers(system: System, session: Session, prefix: str) -> dict[str, Json]:
    return normalised(session, prefix, Runner(system, prefix).run(session))
