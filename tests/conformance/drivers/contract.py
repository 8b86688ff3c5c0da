"""The face every client driver has: produce these messages, read that topic.

A driver says with `codecs` and `can` what its client is able to do; tests ask only for that. All calls are
bounded: a call that does not finish within `DEADLINE_SECONDS` raises `DriverTimeout`.
"""

import os
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NoReturn, Protocol

import pytest

DEADLINE_SECONDS = 20.0
ALL_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ALL_ACKS = ("0", "1", "all")
ANY_PARTITION = -1  # the client's partitioner chooses

DRIVER_NAMES = ("confluent-kafka", "kafka-python", "aiokafka", "kafkajs", "kcat")

Headers = tuple[tuple[str, bytes | None], ...]
TopicMaker = Callable[..., str]


class DriverTimeout(AssertionError):
    """The client did not finish in time; the message says what it had until then."""


class Ability(Enum):
    """What some clients can do and others cannot."""

    TIMESTAMP = auto()  # give a record its timestamp
    NULL_VALUE = auto()
    EMPTY_VALUE = auto()  # a value of zero bytes, different from null
    EMPTY_KEY = auto()
    BINARY_HEADERS = auto()
    INTERLEAVED_HEADERS = auto()  # the same header name twice with another between, order kept
    NULL_HEADER = auto()


@dataclass(frozen=True, slots=True)
class Message:
    """A record as the application sees it. `timestamp_ms` and `offset` are None where the client chooses."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int = 0
    timestamp_ms: int | None = None
    offset: int | None = None

    @property
    def content(self) -> tuple[bytes | None, bytes | None, Headers]:
        return self.key, self.value, self.headers


class Driver(Protocol):
    name: str
    codecs: Sequence[str]
    can: frozenset[Ability]

    def produce(
        self,
        bootstrap: str,
        topic: str,
        messages: Sequence[Message],
        *,
        codec: str = "none",
        acks: str = "all",
    ) -> None:
        """Send the messages to their partitions, in order, and wait for what `acks` promises."""

    def presents(self, headers: Headers) -> Headers:
        """How this client shows these headers to its user; most show exactly what was sent."""

    def consume(
        self, bootstrap: str, counts: dict[str, int], partition_count: int
    ) -> dict[str, list[Message]]:
        """Read `counts[topic]` messages of each topic from its beginning, by partition and offset."""


def new_name(prefix: str) -> str:
    """A name for a topic or group that no other test uses, in this run or an earlier one."""
    return f"{prefix}-{uuid.uuid4().hex[:10]}"


def in_order(messages: Sequence[Message]) -> list[Message]:
    return sorted(messages, key=lambda message: (message.partition, message.offset or 0))


def unavailable(reason: str) -> NoReturn:
    """A client that is not installed: in CI a failure, on a developer's machine a skip with the reason."""
    if os.environ.get("CI", "").lower() in ("1", "true", "yes"):
        pytest.fail(f"{reason} (CI must have it: run tests/conformance/setup)", pytrace=False)
    pytest.skip(f"{reason} (run tests/conformance/setup)")


def require_program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        unavailable(f"the program {name} is not installed")
    return path
