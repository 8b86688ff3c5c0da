"""What a dead letter says about itself, in headers beside those that the record had.

A dead letter keeps the key and the value of the record that failed. The names are ours; those that Kafka
Connect writes are read too, so the tools work on its dead-letter topics.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

PREFIX = "tidelog.dlq."
PIPELINE = PREFIX + "pipeline"
STEP = PREFIX + "step"
REASON = PREFIX + "reason"
STACK = PREFIX + "stack"
TOPIC = PREFIX + "topic"
PARTITION = PREFIX + "partition"
OFFSET = PREFIX + "offset"
#: milliseconds, of the record that failed
TIMESTAMP = PREFIX + "timestamp"
#: how often the record was sent back; stays on the record
ATTEMPTS = PREFIX + "attempts"
#: longer texts are cut
REASON_CHARACTERS_MAX = 1_000
STACK_CHARACTERS_MAX = 8_000

CONNECT_PREFIX = "__connect.errors."
_CONNECT = {
    CONNECT_PREFIX + "connector.name": PIPELINE,
    CONNECT_PREFIX + "stage": STEP,
    CONNECT_PREFIX + "exception.message": REASON,
    CONNECT_PREFIX + "exception.stacktrace": STACK,
    CONNECT_PREFIX + "topic": TOPIC,
    CONNECT_PREFIX + "partition": PARTITION,
    CONNECT_PREFIX + "offset": OFFSET,
}

Headers = tuple[tuple[str, bytes | None], ...]
_NUMBER = re.compile(r"-?[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why and where a record failed, and what it was. What the headers do not say is None."""

    pipeline: str | None
    step: str | None
    reason: str | None
    stack: str | None
    topic: str | None
    partition: int | None
    offset: int | None
    timestamp_ms: int | None
    attempts: int
    #: of the record, without ours
    headers: Headers

    @property
    def origin(self) -> str | None:
        if self.topic is None:
            return None
        return f"{self.topic}-{self.partition}@{self.offset}"


def read_headers(headers: Iterable[tuple[str, bytes | None]]) -> Failure:
    """Tell what the headers of a dead letter say from those of the record."""
    own: dict[str, str] = {}
    kept: list[tuple[str, bytes | None]] = []
    for name, value in headers:
        known = _CONNECT.get(name, name)
        if known.startswith(PREFIX):
            own[known] = (value or b"").decode("utf-8", "replace")
        elif not name.startswith(CONNECT_PREFIX):
            kept.append((name, value))
    return Failure(
        own.get(PIPELINE),
        own.get(STEP),
        own.get(REASON),
        own.get(STACK),
        own.get(TOPIC),
        _number(own.get(PARTITION)),
        _number(own.get(OFFSET)),
        _number(own.get(TIMESTAMP)),
        max(0, _number(own.get(ATTEMPTS)) or 0),
        tuple(kept),
    )


def _number(text: str | None) -> int | None:
    """A number of at most 19 digits, for anybody may have written the header."""
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None
