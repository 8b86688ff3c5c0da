"""What no client library does: bytes sent as they are, batch headers as the broker keeps them, leaders asked.

Requests of Produce, Fetch and ListOffsets over a plain socket, written out by hand; the record batch header
is decoded here from its public layout. Independent of the broker's own code on purpose.
"""

import socket
import struct
from typing import NamedTuple

CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")
PRODUCE, PRODUCE_VERSION = 0, 7
FETCH, FETCH_VERSION = 1, 4
LIST_OFFSETS, LIST_OFFSETS_VERSION = 2, 1
LATEST = -1


class StoredBatch(NamedTuple):
    base_offset: int
    codec: str
    log_append_time: bool
    record_count: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    size_bytes: int


def stored_batches(bootstrap: str, topic: str, partition: int = 0) -> list[StoredBatch]:
    """All batches of a partition that fit in 16 MiB, from its first offset 0 on."""
    name = topic.encode()
    request = struct.pack(">hhih", FETCH, FETCH_VERSION, 1, -1)
    request += struct.pack(">iiiib", -1, 100, 1, 16 << 20, 0)
    request += struct.pack(">ih", 1, len(name)) + name + struct.pack(">iiqi", 1, partition, 0, 16 << 20)
    answer = _ask(bootstrap, request)
    # correlation id, throttle, topic count, name, partition count
    position = 4 + 4 + 4 + 2 + len(name) + 4
    _, error, _, _, aborted_count = struct.unpack_from(">ihqqi", answer, position)
    assert error == 0, f"Fetch answered error {error}"
    position += 26 + 16 * max(aborted_count, 0)
    (records_bytes,) = struct.unpack_from(">i", answer, position)
    position += 4
    assert position + records_bytes == len(answer)
    return _batches(answer[position:])


def produce_records(bootstrap: str, topic: str, records: bytes, *, partition: int = 0, acks: int = -1) -> int:
    """Send these bytes as the records of one partition and return the error code of the answer."""
    name = topic.encode()
    request = struct.pack(">hhih", PRODUCE, PRODUCE_VERSION, 1, -1) + struct.pack(">hhi", -1, acks, 5000)
    request += struct.pack(">ih", 1, len(name)) + name
    request += struct.pack(">iii", 1, partition, len(records)) + records
    # correlation id, topic count, name, partition count, partition
    (error,) = struct.unpack_from(">h", _ask(bootstrap, request), 4 + 4 + 2 + len(name) + 4 + 4)
    return int(error)


def unserved_partitions(
    bootstrap: str, topics: list[str], partition_count: int
) -> list[tuple[str, int, int]]:
    """Those of the topics' partitions whose end offset cannot be had: topic, partition, error code."""
    request = struct.pack(">hhihii", LIST_OFFSETS, LIST_OFFSETS_VERSION, 1, -1, -1, len(topics))
    for topic in topics:
        name = topic.encode()
        request += struct.pack(">h", len(name)) + name + struct.pack(">i", partition_count)
        request += b"".join(struct.pack(">iq", partition, LATEST) for partition in range(partition_count))
    answer = _ask(bootstrap, request)
    (topic_count,) = struct.unpack_from(">i", answer, 4)
    position = 8
    failing = []
    for _ in range(topic_count):
        (name_size,) = struct.unpack_from(">h", answer, position)
        name = answer[position + 2 : position + 2 + name_size]
        position += 2 + name_size
        (count,) = struct.unpack_from(">i", answer, position)
        position += 4
        for _ in range(count):
            partition, error, _, _ = struct.unpack_from(">ihqq", answer, position)
            position += 22
            if error:
                failing.append((name.decode(), partition, error))
    return failing


def _ask(bootstrap: str, request: bytes) -> bytes:
    """One request, one answer, on a connection of its own; without the size prefix."""
    host, port = bootstrap.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as stream:
            (size_bytes,) = struct.unpack(">i", stream.read(4))
            return stream.read(size_bytes)


def _batches(data: bytes) -> list[StoredBatch]:
    batches = []
    position = 0
    while position < len(data):
        (
            base_offset,
            size,
            _,
            magic,
            _,
            attributes,
            _,
            first_ms,
            max_ms,
            producer_id,
            epoch,
            sequence,
            count,
        ) = BATCH_HEADER.unpack_from(data, position)
        assert magic == 2
        batches.append(
            StoredBatch(
                base_offset=base_offset,
                codec=CODEC_NAMES[attributes & 7],
                log_append_time=bool(attributes & 8),
                record_count=count,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
                first_timestamp_ms=first_ms,
                max_timestamp_ms=max_ms,
                size_bytes=12 + size,
            )
        )
        position += 12 + size
    return batches
