"""Produce as a producer speaks it: versions 3 to 8, topics by name; batches are sent without a copy.

The layouts are drawn in `protocol.produce`, which has the broker's side. Version 3 is what Kafka 0.11 brought
with idempotence, version 8 the last one before compact types; every broker from there to Kafka 4 speaks one
of them. A request carries one batch for a partition, as brokers want it.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from tidelog.protocol.primitives import (
    INT32,
    MalformedRequest,
    malformed_if_fails,
    nullable_string,
    read_array_length,
    read_nullable_string,
    read_string,
    string,
)

VERSION_MIN = 3
VERSION_MAX = 8
#: acks=all: answered when every replica in sync has it
ALL_REPLICAS = -1

_ACKS_TIMEOUT = struct.Struct(">hi")
_INDEX_LENGTH = struct.Struct(">ii")
_ANSWER_HEAD = struct.Struct(">ihqq")
_FIRST_START_OFFSET = 5
_FIRST_RECORD_ERRORS = 8
_START_OFFSET_BYTES = 8


class BatchToSend(NamedTuple):
    """One batch on its way to one partition."""

    topic: str
    partition: int
    data: bytes | bytearray


class BatchAnswer(NamedTuple):
    """What a broker says of one batch."""

    topic: str
    partition: int
    error: int
    base_offset: int
    message: str | None = None


def encode_request(
    batches: Sequence[BatchToSend], transactional_id: str | None, timeout_ms: int, acks: int = ALL_REPLICAS
) -> list[bytes | memoryview]:
    """The body in pieces; versions 3 to 8 look the same."""
    by_topic: dict[str, list[BatchToSend]] = {}
    for batch in batches:
        by_topic.setdefault(batch.topic, []).append(batch)
    pieces: list[bytes | memoryview] = [
        nullable_string(transactional_id) + _ACKS_TIMEOUT.pack(acks, timeout_ms) + INT32.pack(len(by_topic))
    ]
    for topic, rows in by_topic.items():
        pieces.append(string(topic) + INT32.pack(len(rows)))
        for batch in rows:
            pieces.append(_INDEX_LENGTH.pack(batch.partition, len(batch.data)))
            pieces.append(memoryview(batch.data))
    return pieces


def decode_response(version: int, body: memoryview) -> list[BatchAnswer]:
    """Raises MalformedRequest for bytes that do not follow the layout."""
    return malformed_if_fails(_decode, version, body)


def _decode(version: int, body: memoryview) -> list[BatchAnswer]:
    answers: list[BatchAnswer] = []
    topics, position = read_array_length(body, 0)
    for _ in range(topics):
        topic, position = read_string(body, position)
        rows, position = read_array_length(body, position)
        for _ in range(rows):
            partition, error, base_offset, _ = _ANSWER_HEAD.unpack_from(body, position)
            position += _ANSWER_HEAD.size
            if version >= _FIRST_START_OFFSET:
                position += _START_OFFSET_BYTES
            message = None
            if version >= _FIRST_RECORD_ERRORS:
                message, position = _read_errors(body, position)
            answers.append(BatchAnswer(topic, partition, error, base_offset, message))
    if position + INT32.size != len(body):
        raise MalformedRequest("a Produce answer has another length than its fields")
    return answers


def _read_errors(body: memoryview, position: int) -> tuple[str | None, int]:
    """What is wrong with single records, and with the batch, in words."""
    faults: list[str] = []
    count, position = read_array_length(body, position)
    for _ in range(count):
        index = INT32.unpack_from(body, position)[0]
        text, position = read_nullable_string(body, position + INT32.size)
        faults.append(f"record {index}: {text or 'refused'}")
    message, position = read_nullable_string(body, position)
    return "; ".join(filter(None, (message, *faults[:3]))) or None, position
