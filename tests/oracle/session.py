"""A session: what is asked of a system, as plain data that can be generated, shrunk, printed and recorded.

A session is a list of steps. A step is a request (or a fault, see `faults`): on which connection, which API
and version, and its fields, written for all versions at once (a version takes those it has). Fields are plain
values, save these mappings with one key, which are worked out when the step is sent:

    {"$name": "t0"}                       a name of this session: its prefix and the text
    {"$ref": [label, path, else, plus]}   a value from the answer to an earlier step, or `else`
    {"$bytes": "hex"}                     bytes
    {"$uuid": "…"}                        a UUID
    {"$text": ["x", 300]}                 a text repeated
    {"$acquired": [labels, 0, "all", 1]}  acknowledgements of what ShareFetches gave of a partition, of a type
    {"$share": ["s0", id, 0]}             the key of a share partition: group, topic id, partition
    {"$batches": [batch, …]}              record batches, see `batches`

References go by the label of a step, so that steps can be left out: what refers to them takes its `else`.
"""

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

Json = Any
TEXT_SHOWN_MAX = 24


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One request."""

    label: str
    api: str
    version: int
    fields: dict[str, Json]
    connection: str = "c0"
    #: send it, and go on; its answer is taken when it is due
    later: bool = False
    #: ask again until the answer is so (see `runner.holds`); only the last answer counts
    until: dict[str, Json] | None = None
    #: changes what all brokers have to hear of: pause behind it
    settle: bool = False
    #: puts things back at the end; its answer is not compared
    cleanup: bool = False
    #: the broker that is asked; without one the coordinator, or the first
    broker: int | None = None
    #: not the one that should be asked, but the next
    elsewhere: bool = False
    #: the answer to its first sending gets lost, `early` or `late` (see `proxy`); it is asked again then
    lost: str = ""
    #: what fetches with the same word here give of a partition is compared together
    together: str = ""

    def to_json(self) -> dict[str, Json]:
        """The step without what is as usual."""
        usual = {field.name: field.default for field in dataclasses.fields(self)}
        return {name: value for name, value in dataclasses.asdict(self).items() if value != usual[name]}

    @classmethod
    def from_json(cls, row: dict[str, Json]) -> "Step":
        return cls(**row)

    def __str__(self) -> str:
        marks = f" of {self.broker}" if self.broker is not None else ""
        flags = ("later", "settle", "cleanup", "elsewhere")
        marks += f" lost {self.lost}" if self.lost else ""
        marks += "".join(f" {name}" for name in flags if getattr(self, name))
        until = f" until {json.dumps(self.until)}" if self.until else ""
        return f"{self.label} {self.connection} {self.api} v{self.version}{marks}{until} {shown(self.fields)}"


@dataclasses.dataclass(frozen=True, slots=True)
class Session:
    """Steps in order, and the seed they were made from."""

    seed: int
    steps: tuple[Step, ...]
    brokers: int = 1
    #: answers get lost and brokers are killed: every step is asked again until it is answered
    faults: bool = False

    def to_json(self) -> dict[str, Json]:
        steps = [step.to_json() for step in self.steps]
        return {"seed": self.seed, "brokers": self.brokers, "faults": self.faults, "steps": steps}

    @classmethod
    def from_json(cls, row: dict[str, Json]) -> "Session":
        steps = tuple(Step.from_json(step) for step in row["steps"])
        return cls(row["seed"], steps, row.get("brokers", 1), row.get("faults", False))

    def without(self, labels: set[str]) -> "Session":
        return self.with_steps(step for step in self.steps if step.label not in labels)

    def with_steps(self, steps: Iterable[Step]) -> "Session":
        return dataclasses.replace(self, steps=tuple(steps))


def name(text: str) -> Json:
    return {"$name": text}


def names_in(value: Json) -> list[str]:
    """The names of this session that a request uses, in order."""
    if isinstance(value, list | tuple):
        return [found for one in value for found in names_in(one)]
    if not isinstance(value, dict):
        return []
    if "$name" in value:
        return [value["$name"]]
    if "$ref" in value or "$acquired" in value:
        return []
    return [found for one in value.values() for found in names_in(one)]


def ref(label: str, *path: Json, otherwise: Json = None, plus: int = 0) -> Json:
    return {"$ref": [label, list(path), otherwise, plus]}


def raw(data: bytes) -> Json:
    return {"$bytes": data.hex()}


def shown(value: Json) -> str:
    """Fields as a person reads them."""
    if isinstance(value, dict):
        if len(value) == 1:
            ((key, inner),) = value.items()
            if key == "$name":
                return f"<{inner}>"
            if key == "$ref":
                label, path, _, plus = inner
                return f"{label}.{'.'.join(map(str, path))}{f'{plus:+}' if plus else ''}"
            if key == "$acquired":
                labels, partition, which, kind = inner
                return f"{which} of {'+'.join(labels)}.{partition} as {kind}"
        return "{" + ", ".join(f"{key}: {shown(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(shown, value)) + "]"
    if isinstance(value, str) and len(value) > TEXT_SHOWN_MAX:
        return json.dumps(value[:TEXT_SHOWN_MAX] + f"… ({len(value)})", ensure_ascii=False)
    return json.dumps(value)
