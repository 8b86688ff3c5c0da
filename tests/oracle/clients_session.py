"""A session of operations of a client, as plain data that can be generated, shrunk and printed.

An operation has a name and fields, which both drivers take as JSON (see `clients_librdkafka` and
`tests/conformance/java/sessions`). `~` in a text stands for the prefix that makes names those of one run.
`kill` and `whole` are not for the drivers: brokers are killed, and are waited for (see `clients_crashes`).
"""

import dataclasses
import json
from typing import Any

Json = Any
TEXT_SHOWN_MAX = 40
#: how long an operation may take before its session is given up
SECONDS_MAX = 30.0
#: and in a session in which brokers are killed: more than the time that clients of default settings wait
KILLS_SECONDS_MAX = 90.0
#: operations that are not for the drivers
KILL, WHOLE = "kill", "whole"


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
    """One call of a client."""

    label: str
    name: str
    fields: dict[str, Json]
    #: changes what all brokers have to hear of: pause behind it
    settle: bool = False
    #: what goes on with it after brokers were killed: how long that took is told
    goes_on: str = ""

    def __str__(self) -> str:
        return f"{self.label} {self.name} {shown(self.fields)}"


@dataclasses.dataclass(frozen=True, slots=True)
class ClientSession:
    """Operations in order, the client that they are for, and the seed they were made from."""

    seed: int
    client: str
    operations: tuple[Operation, ...]
    brokers: int = 1

    @property
    def kills(self) -> bool:
        return any(one.name == KILL for one in self.operations)

    def without(self, labels: set[str]) -> "ClientSession":
        left = tuple(one for one in self.operations if one.label not in labels)
        return dataclasses.replace(self, operations=left)


def named(value: Json, prefix: str) -> Json:
    """The fields with the names of one run."""
    if isinstance(value, str):
        return value.replace("~", prefix)
    if isinstance(value, list | tuple):
        return [named(one, prefix) for one in value]
    if isinstance(value, dict):
        return {named(key, prefix): named(one, prefix) for key, one in value.items()}
    return value


def shown(value: Json) -> str:
    """Fields as a person reads them."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {shown(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(shown, value)) + "]"
    if isinstance(value, str):
        return value if len(value) <= TEXT_SHOWN_MAX else f"{value[:TEXT_SHOWN_MAX]}… ({len(value)})"
    return json.dumps(value)
