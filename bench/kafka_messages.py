"""The few Kafka messages the benchmark sends, encoded here and nowhere else.

The benchmark must not depend on the broker it measures, so batches and requests are built with `struct` from
the published protocol: Produce v9 and Fetch v12 (flexible, topics by name) for the load, and ApiVersions v0,
CreateTopics v4 and DeleteTopics v3 (not flexible) for set-up. Every frame starts with its 4-byte length.

`ProduceShape` and `FetchShape` say where the load generator finds the error code and the base offset in an
answer; the positions are fixed because one run uses one topic name.
"""

import random
import socket
import struct
import time
from dataclasses import dataclass

from crc32c import crc32c

API_PRODUCE, API_FETCH, API_VERSIONS, API_CREATE_TOPICS, API_DELETE_TOPICS = 0, 1, 18, 19, 20
PRODUCE_VERSION, FETCH_VERSION = 9, 12
CLIENT_ID = b"bench"
BATCH_HEADER_BYTES = 61
TOPIC_ALREADY_EXISTS = 36


class WireError(Exception):
    """The server's answer is not the one a benchmark can use."""


def unsigned_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint(value: int) -> bytes:
    return unsigned_varint(value << 1 if value >= 0 else (-value << 1) - 1)


def compact_string(text: str) -> bytes:
    return unsigned_varint(len(text) + 1) + text.encode()


def plain_string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def frame(api_key: int, version: int, body: bytes, *, flexible: bool) -> bytes:
    head = (
        struct.pack(">hhih", api_key, version, 0, len(CLIENT_ID)) + CLIENT_ID + (b"\0" if flexible else b"")
    )
    return struct.pack(">i", len(head) + len(body)) + head + body


# --- record batches ---------------------------------------------------------------------------------------


def encode_record(offset_delta: int, key: bytes, value: bytes) -> bytes:
    body = (
        b"\0"
        + varint(0)
        + varint(offset_delta)
        + varint(len(key))
        + key
        + varint(len(value))
        + value
        + varint(0)
    )
    return varint(len(body)) + body


def batch_of_size(size_bytes: int, value_bytes: int, timestamp_ms: int, seed: int = 7) -> tuple[bytes, int]:
    """A valid uncompressed batch of exactly `size_bytes` and its record count.

    Records have an 8-byte key and `value_bytes` of random bytes; the last value fills up to the exact size.
    """
    generator = random.Random(seed)
    records: list[bytes] = []
    left = size_bytes - BATCH_HEADER_BYTES
    while True:
        key = generator.randbytes(8)
        full = encode_record(len(records), key, generator.randbytes(value_bytes))
        if left >= 2 * len(full):
            records.append(full)
            left -= len(full)
            continue
        # The length of a record does not take every value (its varints grow), but a value one byte longer
        # grows the record by one byte almost everywhere, so a short search finds the fit.
        for value_size in range(left, 0, -1):
            last = encode_record(len(records), key, generator.randbytes(value_size))
            if len(last) == left:
                return seal_batch([*records, last], timestamp_ms), len(records) + 1
            if len(last) < left:
                break
        # No exact fit with this split: move one byte from the last record to a record before it.
        if not records:
            raise ValueError(f"no batch of {size_bytes} bytes with values of {value_bytes} bytes")
        longer = encode_record(len(records) - 1, key, generator.randbytes(value_bytes + 1))
        left -= len(longer) - len(records[-1])
        records[-1] = longer


def seal_batch(records: list[bytes], timestamp_ms: int) -> bytes:
    count = len(records)
    checked = struct.pack(
        ">hiqqqhii", 0, count - 1, timestamp_ms, timestamp_ms, -1, -1, -1, count
    ) + b"".join(records)
    head = struct.pack(">qiibI", 0, len(checked) + 9, -1, 2, crc32c(checked))
    return head + checked


# --- requests and where their answers keep what we check --------------------------------------------------


@dataclass(frozen=True, slots=True)
class AnswerShape:
    """Positions in an answer, counted from its length field; -1 where there is nothing to check."""

    error_at: int
    offset_at: int


def produce_request(topic: str, partition: int, batch: bytes, acks: int = -1) -> bytes:
    body = b"".join(
        (
            b"\0" + struct.pack(">hi", acks, 30_000) + b"\x02" + compact_string(topic) + b"\x02",
            struct.pack(">i", partition) + unsigned_varint(len(batch) + 1) + batch + b"\0\0\0",
        )
    )
    return frame(API_PRODUCE, PRODUCE_VERSION, body, flexible=True)


def produce_shape(topic: str) -> AnswerShape:
    error_at = 4 + 4 + 1 + 1 + len(compact_string(topic)) + 1 + 4
    return AnswerShape(error_at, error_at + 2)


def canned_produce_answer(topic: str) -> bytes:
    body = b"\0\0\0\0\0" + b"\x02" + compact_string(topic) + b"\x02"
    body += struct.pack(">ihqqq", 0, 0, 0, -1, 0) + b"\x01\0\0\0" + b"\0\0\0\0\0"
    return struct.pack(">i", len(body)) + body


def fetch_request(topic: str, partition: int, offset: int, max_bytes: int) -> bytes:
    body = b"".join(
        (
            struct.pack(">iiiibii", -1, 500, 1, 0x7FFFFFFF, 0, 0, -1)
            + b"\x02"
            + compact_string(topic)
            + b"\x02",
            struct.pack(">iiqiqi", partition, -1, offset, -1, -1, max_bytes) + b"\0\0\x01" + b"\x01\0",
        )
    )
    return frame(API_FETCH, FETCH_VERSION, body, flexible=True)


def fetch_shape(topic: str) -> AnswerShape:
    return AnswerShape(4 + 4 + 1 + 4 + 2 + 4 + 1 + len(compact_string(topic)) + 1 + 4, -1)


def canned_fetch_head(topic: str, body_bytes: int) -> bytes:
    """The bytes around the records of a Fetch answer, all in front: what the floor sends before the file."""
    body = b"\0\0\0\0\0" + struct.pack(">ihi", 0, 0, 0) + b"\x02" + compact_string(topic) + b"\x02"
    body += struct.pack(">ihqqq", 0, 0, 0, 0, 0) + b"\0" + struct.pack(">i", -1)
    body += unsigned_varint(body_bytes + 1) + b"\0\0\0"
    return struct.pack(">i", len(body) + body_bytes) + body


# --- a small blocking client for set-up -------------------------------------------------------------------


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        part = connection.recv(min(size - len(received), 1 << 20))
        if not part:
            raise WireError("the server closed the connection")
        received += part
    return bytes(received)


class ControlClient:
    """One blocking connection: ApiVersions, topics, and single probes of the load's requests."""

    def __init__(self, host: str, port: int, timeout_seconds: float = 60.0) -> None:
        self._socket = socket.create_connection((host, port), timeout=timeout_seconds)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> "ControlClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, request: bytes) -> bytes:
        """The answer with its length field, so that `AnswerShape` positions fit."""
        self._socket.sendall(request)
        length = receive_exactly(self._socket, 4)
        return length + receive_exactly(self._socket, struct.unpack(">i", length)[0])

    def api_versions(self) -> dict[int, tuple[int, int]]:
        answer = self.ask(frame(API_VERSIONS, 0, b"", flexible=False))
        error, count = struct.unpack_from(">hi", answer, 8)
        if error:
            raise WireError(f"ApiVersions answered with error {error}")
        rows = (struct.unpack_from(">hhh", answer, 14 + 6 * index) for index in range(count))
        return {key: (low, high) for key, low, high in rows}

    def create_topic(self, topic: str, partitions: int, configs: dict[str, str] | None = None) -> None:
        pairs = b"".join(plain_string(name) + plain_string(value) for name, value in (configs or {}).items())
        body = struct.pack(">i", 1) + plain_string(topic) + struct.pack(">ihi", partitions, 1, 0)
        body += struct.pack(">i", len(configs or {})) + pairs + struct.pack(">i?", 60_000, False)
        answer = self.ask(frame(API_CREATE_TOPICS, 4, body, flexible=False))
        error = struct.unpack_from(">h", answer, 16 + 2 + len(topic))[0]
        if error not in (0, TOPIC_ALREADY_EXISTS):
            raise WireError(
                f"CreateTopics of {topic} with {partitions} partitions answered with error {error}"
            )

    def delete_topic(self, topic: str) -> None:
        body = struct.pack(">i", 1) + plain_string(topic) + struct.pack(">i", 60_000)
        answer = self.ask(frame(API_DELETE_TOPICS, 3, body, flexible=False))
        error = struct.unpack_from(">h", answer, 16 + 2 + len(topic))[0]
        if error:
            raise WireError(f"DeleteTopics of {topic} answered with error {error}")

    def probe(self, request: bytes, shape: AnswerShape, timeout_seconds: float = 15.0) -> bytes:
        """The first answer without an error: a new topic's leader may need a moment."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            answer = self.ask(request)
            if len(answer) < shape.error_at + 2:
                raise WireError(f"an answer of {len(answer)} bytes is too short for the message asked for")
            error = struct.unpack_from(">h", answer, shape.error_at)[0]
            if error == 0:
                return answer
            if time.monotonic() > deadline:
                raise WireError(f"still error {error} after {timeout_seconds} s")
            time.sleep(0.05)
