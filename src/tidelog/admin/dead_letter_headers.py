"""What a dead letter says about itself, in headers beside those that the record had.

A dead letter keeps the key and the value of the record that failed. The names are ours; those that Kafka
Connect and share groups (KIP-1191) write are read too, so the tools work on their dead-letter topics.
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

SHARE_PREFIX = "__dlq.errors."
GROUP = SHARE_PREFIX + "group"
DELIVERY_COUNT = SHARE_PREFIX + "delivery.count"
_SHARE = {
    SHARE_PREFIX + "message": REASON,
    SHARE_PREFIX + "topic": TOPIC,
    SHARE_PREFIX + "partition": PARTITION,
    SHARE_PREFIX + "offset": OFFSET,
}
_KNOWN = {**_CONNECT, **_SHARE}
#: headers that say something of the failure, known or not, and are none of the record's
_FOREIGN_PREFIXES = (CONNECT_PREFIX, SHARE_PREFIX)

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
    #: the share group that gave the record up, and after how many deliveries
    group: str | None = None
    deliveries: int | None = None

    @property
    def source(self) -> str | None:
        """Who left the letter: a pipeline, a connector or a share group."""
        return self.pipeline or self.group

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
        known = _KNOWN.get(name, name)
        if known.startswith(PREFIX) or known in (GROUP, DELIVERY_COUNT):
            own[known] = (value or b"").decode("utf-8", "replace")
        elif not name.startswith(_FOREIGN_PREFIXES):
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
        own.get(GROUP),
        _number(own.get(DELIVERY_COUNT)),
    )


def _number(text: str | None) -> int | None:
    """A number of at most 19 digits, for anybody may have written the header."""
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None
