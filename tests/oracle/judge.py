"""Holds two transcripts of a session against each other."""

import dataclasses
import json
from collections.abc import Iterator

from tests.oracle.differences import accepted
from tests.oracle.rules import Normaliser
from tests.oracle.runner import KILL, Transcript
from tests.oracle.session import Json, Session, Step


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """One field of one answer that is not the same."""

    step: Step
    path: str
    kafka: Json
    here: Json

    @property
    def kind(self) -> str:
        """What differences of the same cause have in common."""
        return f"{self.step.api} {without_numbers(self.path)}: {short(self.kafka)} | {short(self.here)}"

    def __str__(self) -> str:
        where = f"{self.step.label} {self.step.api} v{self.step.version} {self.path}"
        return f"{where}: Kafka {short(self.kafka)}, here {short(self.here)}"


def normalised(session: Session, prefix: str, transcript: Transcript) -> dict[str, Json]:
    """The answers by label, with everything that may differ taken out."""
    steps = {step.label: step for step in session.steps}
    killed = any(step.api == KILL for step in session.steps)
    where = {"several": session.brokers > 1, "faults": session.faults, "kills": killed}
    normaliser = Normaliser(prefix, frozenset(one for one, holds in where.items() if holds))
    transcript = _together(steps, transcript)
    for label, answer in transcript:
        normaliser.note_ids(steps[label].api, answer)
    answers = {label: normaliser.normalise(steps[label].api, answer) for label, answer in transcript}
    # The names of two runs of a session differ in their prefix.
    loaded: dict[str, Json] = json.loads(json.dumps(answers).replace(prefix, "~"))
    return loaded


def _together(steps: dict[str, Step], transcript: Transcript) -> Transcript:
    """What is to be compared together is in the last one of these answers."""
    answers = dict(transcript)
    parts: dict[str, dict[str, dict[str, Json]]] = {}
    for label, answer in transcript:
        if not (word := steps[label].together) or "responses" not in answer:
            continue
        found = parts.setdefault(word, {})
        for topic in answer["responses"]:
            for part in topic["partitions"]:
                place = json.dumps([topic["topic_id"], part["partition_index"]])
                before = found.get(place)
                found[place] = (
                    {"topic_id": topic["topic_id"], **part} if before is None else _both(before, part)
                )
        answers[label] = {**answer, "responses": []}
    last = {steps[label].together: label for label, answer in transcript if "responses" in answer}
    for word, found in parts.items():
        rows = [{"topic_id": row.pop("topic_id"), "partitions": [row]} for row in map(dict, found.values())]
        answers[last[word]] = {**answers[last[word]], "responses": rows}
    return list(answers.items())


def _both(before: dict[str, Json], after: dict[str, Json]) -> dict[str, Json]:
    """What two fetches gave of a partition."""
    batches = {batch["base_offset"]: batch for row in (before, after) for batch in row["records"] or ()}
    acquired = [*before["acquired_records"], *after["acquired_records"]]
    return {
        **before,
        "error_code": before["error_code"] or after["error_code"],
        "acknowledge_error_code": before["acknowledge_error_code"] or after["acknowledge_error_code"],
        "records": [batches[offset] for offset in sorted(batches)],
        "acquired_records": sorted(acquired, key=lambda row: (row["first_offset"], row["delivery_count"])),
    }


def differences(session: Session, kafka: dict[str, Json], here: dict[str, Json]) -> list[Difference]:
    """What is not the same and not meant to be."""
    found = []
    for number, step in enumerate(session.steps):
        if step.label in kafka and step.label in here:
            for path, ours, theirs in unlike("", kafka[step.label], here[step.label]):
                earlier, row = session.steps[:number], row_name(kafka[step.label], path)
                if not accepted(step, without_numbers(path), ours, theirs, earlier, row):
                    found.append(Difference(step, path, ours, theirs))
    return found


def unlike(path: str, kafka: Json, here: Json) -> Iterator[tuple[str, Json, Json]]:
    """The paths at which two values are not the same, and what stands there."""
    if kafka == here:
        return
    if isinstance(kafka, dict) and isinstance(here, dict):
        for key in {**kafka, **here}:
            inner = f"{path}.{key}" if path else key
            yield from unlike(inner, kafka.get(key, "(none)"), here.get(key, "(none)"))
    elif isinstance(kafka, list) and isinstance(here, list) and len(kafka) == len(here):
        for number, (first, second) in enumerate(zip(kafka, here, strict=True)):
            yield from unlike(f"{path}.{number}", first, second)
    else:
        yield path, kafka, here


def row_name(answer: Json, path: str) -> str:
    """What the innermost row around a path is called."""
    found = ""
    for part in path.split("."):
        if isinstance(answer, dict):
            found = str(answer.get("name", answer.get("api_key", found)))
            answer = answer.get(part)
        elif isinstance(answer, list) and part.isdigit():
            answer = answer[int(part)]
    return found


def without_numbers(path: str) -> str:
    """A path without the numbers of arrays."""
    return ".".join(part for part in path.split(".") if not part.isdigit())


def short(value: Json) -> str:
    """A value in one line that is not too long."""
    text = json.dumps(value)
    return text if len(text) <= 300 else text[:300] + "…"
