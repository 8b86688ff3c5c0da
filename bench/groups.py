"""Many groups that commit: throughput, memory, and how long a restarted broker takes to know them again.

    python -m bench.groups [--groups 1000] [--partitions 10] [--seconds 10] [--protocol classic|consumer]

Every group has a member and commits all of its partitions with each request, from a few connections that
always have some requests on their way. Then the broker is killed and started again, and each group is asked
for its offsets until all have answered. Numbers are printed as a table; nothing is asserted.
"""

import argparse
import asyncio
import struct
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from bench.kafka_messages import compact_string, plain_string, unsigned_varint
from tidelog.testing.broker import RunningBroker

TOPIC = "bench"
CONNECTIONS = 8
IN_FLIGHT = 16
API_COMMIT, API_FETCH_OFFSETS, API_FIND, API_JOIN, API_SYNC, API_BEAT = 8, 9, 10, 11, 14, 68
LOADING, NOT_COORDINATOR, NOT_AVAILABLE = 14, 16, 15
SESSION_MS = 1_800_000


@dataclass
class Group:
    name: str
    member_id: str = ""
    generation: int = -1


class Connection:
    """Requests and answers in order; several may be on their way."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def send(self, api_key: int, version: int, body: bytes, *, flexible: bool = False) -> None:
        header = (
            struct.pack(">hhi", api_key, version, 0) + plain_string("bench") + (b"\x00" if flexible else b"")
        )
        self._writer.write(struct.pack(">i", len(header) + len(body)) + header + body)

    async def receive(self, *, flexible: bool = False) -> bytes:
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        return (await self._reader.readexactly(size))[5 if flexible else 4 :]

    async def ask(self, api_key: int, version: int, body: bytes, *, flexible: bool = False) -> bytes:
        self.send(api_key, version, body, flexible=flexible)
        return await self.receive(flexible=flexible)


async def connect(bootstrap: str) -> Connection:
    host, port = bootstrap.split(":")
    return Connection(*await asyncio.open_connection(host, int(port)))


def plain_bytes(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


async def join_classic(connection: Connection, group: Group) -> None:
    """JoinGroup v3 and SyncGroup v2: a member of a group of its own."""
    subscription = struct.pack(">hi", 0, 1) + plain_string(TOPIC) + struct.pack(">i", 0)
    body = plain_string(group.name) + struct.pack(">ii", SESSION_MS, SESSION_MS) + plain_string("")
    body += (
        plain_string("consumer") + struct.pack(">i", 1) + plain_string("range") + plain_bytes(subscription)
    )
    answer = await connection.ask(API_JOIN, 3, body)
    _, error, group.generation, size = struct.unpack_from(">ihih", answer)
    assert error == 0, f"JoinGroup of {group.name}: error {error}"
    at = 12 + size
    (size,) = struct.unpack_from(">h", answer, at)
    at += 2 + size
    (size,) = struct.unpack_from(">h", answer, at)
    group.member_id = answer[at + 2 : at + 2 + size].decode()
    body = plain_string(group.name) + struct.pack(">i", group.generation) + plain_string(group.member_id)
    body += struct.pack(">i", 1) + plain_string(group.member_id) + plain_bytes(b"\x00" * 10)
    answer = await connection.ask(API_SYNC, 2, body)
    assert struct.unpack_from(">ih", answer)[1] == 0, f"SyncGroup of {group.name}"


async def join_consumer(connection: Connection, group: Group) -> None:
    """ConsumerGroupHeartbeat v1 with epoch 0."""
    group.member_id = str(uuid.uuid4())
    body = compact_string(group.name) + compact_string(group.member_id) + struct.pack(">i", 0)
    body += b"\x00\x00" + struct.pack(">i", 60_000) + b"\x02" + compact_string(TOPIC) + b"\x00\x00\x01\x00"
    answer = await connection.ask(API_BEAT, 1, body, flexible=True)
    (error,) = struct.unpack_from(">h", answer, 4)
    assert error == 0, f"ConsumerGroupHeartbeat of {group.name}: error {error}"
    size = answer[7] - 1
    (group.generation,) = struct.unpack_from(">i", answer, 8 + size)


def commit_body(group: Group, partitions: int, offset: int) -> bytes:
    """OffsetCommit v9, all partitions of the topic at once."""
    body = compact_string(group.name) + struct.pack(">i", group.generation) + compact_string(group.member_id)
    body += b"\x00\x02" + compact_string(TOPIC) + unsigned_varint(partitions + 1)
    for partition in range(partitions):
        body += struct.pack(">iqi", partition, offset, 0) + compact_string("") + b"\x00"
    return body + b"\x00\x00"


async def commit_for(connection: Connection, groups: list[Group], partitions: int, seconds: float) -> int:
    """Commit for each group in turn until the time is over; the number of requests answered."""
    deadline, sent, answered = time.monotonic() + seconds, 0, 0
    ok = struct.pack(">ih", partitions - 1, 0)
    while time.monotonic() < deadline or answered < sent:
        while sent - answered < IN_FLIGHT and time.monotonic() < deadline:
            body = commit_body(groups[sent % len(groups)], partitions, sent)
            connection.send(API_COMMIT, 9, body, flexible=True)
            sent += 1
        answer = await connection.receive(flexible=True)
        assert ok in answer, f"OffsetCommit failed: {answer!r}"
        answered += 1
    return answered


def fetch_body(group: Group) -> bytes:
    """OffsetFetch v8 of everything the group committed."""
    return b"\x02" + compact_string(group.name) + b"\x00\x00" + b"\x00\x00"


async def fetch_until_known(connection: Connection, groups: list[Group], partitions: int) -> None:
    for group in groups:
        while True:
            answer = await connection.ask(API_FETCH_OFFSETS, 8, fetch_body(group), flexible=True)
            (error,) = struct.unpack_from(">h", answer, len(answer) - 4)
            if error == 0:
                assert answer.count(TOPIC.encode()) == 1 and len(answer) > partitions * 20
                break
            assert error in (LOADING, NOT_COORDINATOR, NOT_AVAILABLE), f"OffsetFetch: error {error}"
            await asyncio.sleep(0.01)


def resident_mebibytes(process_id: int | None) -> float:
    for line in Path(f"/proc/{process_id}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmRSS")


async def in_parallel(bootstrap: str, groups: list[Group], work: object) -> list[object]:
    connections = [await connect(bootstrap) for _ in range(CONNECTIONS)]
    shares = [groups[index::CONNECTIONS] for index in range(CONNECTIONS)]
    return await asyncio.gather(
        *(work(connection, share) for connection, share in zip(connections, shares, strict=True))  # type: ignore[operator]
    )


def measure(options: argparse.Namespace) -> list[tuple[str, str]]:
    settings = {
        "group.initial.rebalance.delay.ms": "0",
        "group.consumer.max.session.timeout.ms": str(SESSION_MS),
        "group.consumer.session.timeout.ms": str(SESSION_MS),
    }
    join = join_classic if options.protocol == "classic" else join_consumer
    groups = [Group(f"group-{number}") for number in range(options.groups)]

    async def join_all(connection: Connection, share: list[Group]) -> None:
        for group in share:
            await join(connection, group)

    async def commit_all(connection: Connection, share: list[Group]) -> int:
        return await commit_for(connection, share, options.partitions, options.seconds)

    async def fetch_all(connection: Connection, share: list[Group]) -> None:
        await fetch_until_known(connection, share, options.partitions)

    with RunningBroker(settings, mode="process") as broker:
        broker.create_topic(TOPIC, partitions=options.partitions)
        asyncio.run(_create_offsets_topic(broker.bootstrap))
        empty = resident_mebibytes(broker.process_id)
        began = time.monotonic()
        asyncio.run(in_parallel(broker.bootstrap, groups, join_all))
        joined_seconds = time.monotonic() - began
        asyncio.run(
            in_parallel(broker.bootstrap, groups, lambda c, s: commit_for(c, s, options.partitions, 0.5))
        )
        began = time.monotonic()
        answered = asyncio.run(in_parallel(broker.bootstrap, groups, commit_all))
        seconds = time.monotonic() - began
        requests = sum(answered) / seconds  # type: ignore[arg-type]
        full = resident_mebibytes(broker.process_id)
        log_bytes = sum(
            file.stat().st_size for file in broker.data_directory.glob("**/__consumer_offsets-*/*.log")
        )
        broker.kill()
        began = time.monotonic()
        broker.start()
        started_seconds = time.monotonic() - began
        asyncio.run(in_parallel(broker.bootstrap, groups, fetch_all))
        known_seconds = time.monotonic() - began
        loaded = resident_mebibytes(broker.process_id)
    return [
        ("groups × partitions", f"{options.groups:,} × {options.partitions}, {options.protocol} protocol"),
        ("groups joined", f"{options.groups / joined_seconds:,.0f} /s"),
        ("commit requests", f"{requests:,.0f} /s"),
        ("offsets committed", f"{requests * options.partitions:,.0f} /s"),
        ("memory without groups", f"{empty:.0f} MiB"),
        ("memory with groups", f"{full:.0f} MiB"),
        ("log to load", f"{log_bytes / 2**20:.1f} MiB"),
        ("start after kill -9", f"{started_seconds:.2f} s"),
        ("… until every group answers", f"{known_seconds:.2f} s"),
        ("memory after loading", f"{loaded:.0f} MiB"),
    ]


async def _create_offsets_topic(bootstrap: str) -> None:
    connection = await connect(bootstrap)
    while True:
        answer = await connection.ask(API_FIND, 0, plain_string("anything"))
        if struct.unpack_from(">h", answer)[0] == 0:
            return
        await asyncio.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--partitions", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--protocol", choices=("classic", "consumer"), default="classic")
    rows = measure(parser.parse_args())
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value:>30}")


if __name__ == "__main__":
    main()
