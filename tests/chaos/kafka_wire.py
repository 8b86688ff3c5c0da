"""Kafka requests as bytes, for tests that look at the wire.

Control-plane messages are built and read with kio. Produce and Fetch are also written out with `struct`
from the public protocol (version 9 and version 12), because the load of the crash test passes through them
and because the tests of the broker's hand-written codecs should not trust them.
"""

import dataclasses
import io
import socket
import struct
import time
from collections.abc import Callable
from functools import cache
from types import TracebackType
from typing import Any, NamedTuple

from tests.support.kio_entities import build
from tidelog.protocol.apis import APIS, Api
from tidelog.protocol.messages import _message_class
from tidelog.records.builder import build_batch
from tidelog.records.record import Record

API_BY_MODULE: dict[str, Api] = {api.module: api for api in APIS.values()}
CLIENT_ID = b"chaos"
PRODUCE_VERSION = 9
FETCH_VERSION = 12


class ConnectionClosed(Exception):
    """The broker closed the connection."""


def frame(api_key: int, version: int, correlation_id: int, body: bytes, *, flexible: bool) -> bytes:
    """A whole request frame with its size."""
    head = struct.pack(">hhih", api_key, version, correlation_id, len(CLIENT_ID)) + CLIENT_ID
    head += b"\x00" if flexible else b""
    return struct.pack(">i", len(head) + len(body)) + head + body


@cache
def _request_writer(
    module: str, version: int
) -> tuple[Callable[[dict[str, Any]], Any], Callable[[Any, Any], None]]:
    from kio.serial import entity_writer

    message = _message_class(module, version, "request")
    return build(message), entity_writer(message)


@cache
def _response_reader(module: str, version: int) -> Callable[[bytes, int], tuple[Any, int]]:
    from kio.serial import entity_reader

    reader: Callable[[bytes, int], tuple[Any, int]] = entity_reader(
        _message_class(module, version, "response")
    )
    return reader


def request_frame(module: str, version: int, correlation_id: int, fields: dict[str, Any]) -> bytes:
    """A request built by kio from field names, defaults filled in."""
    api = API_BY_MODULE[module]
    build, write = _request_writer(module, version)
    out = io.BytesIO()
    write(out, build(fields))
    return frame(api.key, version, correlation_id, out.getvalue(), flexible=api.flexible(version))


def read_response(module: str, version: int, answer: bytes) -> Any:
    """Decode an answer (without its size) with kio; all of it must be used up."""
    api = API_BY_MODULE[module]
    position = 5 if api.flexible(version) and module != "api_versions" else 4
    response, size = _response_reader(module, version)(memoryview(answer).toreadonly(), position)  # type: ignore[arg-type]
    assert position + size == len(answer), f"{len(answer) - position - size} bytes after a {module} answer"
    return response


def unsigned_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def produce_frame(
    topic: str,
    partition: int,
    batch: bytes,
    *,
    acks: int = -1,
    correlation_id: int = 0,
    timeout_ms: int = 30_000,
) -> bytes:
    """Produce version 9 for one partition."""
    name = topic.encode()
    body = b"".join(
        (
            b"\x00"
            + struct.pack(">hi", acks, timeout_ms)
            + b"\x02"
            + unsigned_varint(len(name) + 1)
            + name
            + b"\x02",
            struct.pack(">i", partition) + unsigned_varint(len(batch) + 1),
            batch,
            b"\x00\x00\x00",
        )
    )
    return frame(0, PRODUCE_VERSION, correlation_id, body, flexible=True)


class Produced(NamedTuple):
    """What a Produce answer says of its only partition."""

    correlation_id: int
    error: int
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int


def read_produced(answer: bytes) -> Produced:
    """Read the answer to `produce_frame`."""
    name_size = answer[6] - 1
    assert answer[6] < 0x80 and answer[5] == 2, "one topic with a short name"
    position = 7 + name_size + 1
    _, error, base_offset, append_time, log_start = struct.unpack_from(">ihqqq", answer, position)
    return Produced(struct.unpack_from(">i", answer)[0], error, base_offset, append_time, log_start)


def fetch_frame(
    topic: str,
    partition: int,
    offset: int,
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 64 << 20,
    partition_max_bytes: int = 16 << 20,
    correlation_id: int = 0,
    session: tuple[int, int] = (0, -1),
) -> bytes:
    """Fetch version 12 for one partition."""
    name = topic.encode()
    body = struct.pack(">iiiibii", -1, max_wait_ms, min_bytes, max_bytes, 0, *session)
    body += b"\x02" + unsigned_varint(len(name) + 1) + name + b"\x02"
    body += (
        struct.pack(">iiqiqi", partition, -1, offset, -1, -1, partition_max_bytes) + b"\x00\x00\x01\x01\x00"
    )
    return frame(1, FETCH_VERSION, correlation_id, body, flexible=True)


class Fetched(NamedTuple):
    """What a Fetch answer says of its only partition."""

    correlation_id: int
    session_error: int
    session_id: int
    error: int
    high_watermark: int
    log_start_offset: int
    records: bytes


def _read_unsigned_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value, position
        shift += 7


def read_fetched(answer: bytes) -> Fetched:
    """Read the answer to `fetch_frame`."""
    correlation_id, _, _, session_error, session_id = struct.unpack_from(">ibihi", answer)
    if answer[15] < 2:
        return Fetched(correlation_id, session_error, session_id, 0, -1, -1, b"")
    name_size = answer[16] - 1
    position = 17 + name_size + 1
    _, error, high_watermark, _, log_start = struct.unpack_from(">ihqqq", answer, position)
    position += 30
    aborted, position = _read_unsigned_varint(answer, position)
    position += 17 * max(aborted - 1, 0) + 4
    size, position = _read_unsigned_varint(answer, position)
    records = answer[position : position + size - 1]
    assert len(records) == max(size - 1, 0)
    return Fetched(correlation_id, session_error, session_id, error, high_watermark, log_start, records)


def batch_of(
    *values: bytes, timestamp_ms: int | None = None, key: bytes | None = b"k", **fields: Any
) -> bytes:
    """One batch with these values, from now or the given time on, a millisecond apart."""
    if timestamp_ms is None:
        timestamp_ms = time.time_ns() // 1_000_000
    records = [Record(i, timestamp_ms + i, key, value) for i, value in enumerate(values)]
    return build_batch(records, **fields)


class WireClient:
    """One blocking connection."""

    def __init__(self, bootstrap: str, timeout_seconds: float = 10.0) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_seconds)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as fault:
            raise ConnectionClosed(str(fault)) from fault

    def receive_exactly(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            try:
                part = self.socket.recv(min(size - len(received), 1 << 20))
            except ConnectionResetError as fault:
                raise ConnectionClosed(str(fault)) from fault
            if not part:
                raise ConnectionClosed(f"closed after {len(received)} of {size} bytes")
            received += part
        return bytes(received)

    def receive(self) -> bytes:
        """The next answer, without its size."""
        return self.receive_exactly(struct.unpack(">i", self.receive_exactly(4))[0])

    def exchange(self, data: bytes) -> bytes:
        self.send(data)
        return self.receive()

    def ask(self, module: str, version: int, **fields: Any) -> Any:
        """One request through kio and its answer as kio's object."""
        self._correlation_id += 1
        answer = self.exchange(request_frame(module, version, self._correlation_id, fields))
        assert struct.unpack_from(">i", answer)[0] == self._correlation_id
        return read_response(module, version, answer)

    def produce(self, topic: str, partition: int, batch: bytes, *, acks: int = -1) -> Produced:
        return read_produced(self.exchange(produce_frame(topic, partition, batch, acks=acks)))

    def fetch(self, topic: str, partition: int, offset: int, **options: Any) -> Fetched:
        return read_fetched(self.exchange(fetch_frame(topic, partition, offset, **options)))

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        """Create a topic; setting names are written with underscores."""
        answer = self.ask(
            "create_topics",
            7,
            topics=[
                {
                    "name": name,
                    "num_partitions": partitions,
                    "replication_factor": 1,
                    "configs": [
                        {"name": key.replace("_", "."), "value": value} for key, value in configs.items()
                    ],
                }
            ],
            timeout=30_000,
        )
        topic = answer.topics[0]
        assert int(topic.error_code) == 0, f"creating {name}: {topic.error_code} {topic.error_message}"

    def init_producer_id(self) -> tuple[int, int]:
        answer = self.ask("init_producer_id", 4, transactional_id=None, transaction_timeout=60_000)
        assert int(answer.error_code) == 0
        return int(answer.producer_id), int(answer.producer_epoch)

    def list_offset(self, topic: str, partition: int, timestamp: int) -> Any:
        answer = self.ask(
            "list_offsets",
            7,
            replica_id=-1,
            topics=[{"name": topic, "partitions": [{"partition_index": partition, "timestamp": timestamp}]}],
        )
        return answer.topics[0].partitions[0]

    def closed_by_peer(self, within_seconds: float = 5.0) -> bool:
        """Whether the broker closes the connection without another byte."""
        self.socket.settimeout(within_seconds)
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> "WireClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def field_names(module: str, version: int) -> list[str]:
    """The fields of a request, for tests that fill them."""
    return [field.name for field in dataclasses.fields(_message_class(module, version, "request"))]
