"""Load for the crash test, and the memory of what was acknowledged.

Every partition has one writer. A writer numbers its records; number n decides the record's key, value and
timestamp, so that a reader can tell from any record found which one it is and whether it is whole. A writer
remembers what it attempted and, for every batch that was acknowledged, at which offset.
"""

import random
import threading
import time
import zlib
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from confluent_kafka import KafkaError, Message, Producer

from tests.chaos.kafka_wire import ConnectionClosed, WireClient, produce_frame, read_produced
from tidelog.model.errors import ErrorCode
from tidelog.records.builder import build_batch
from tidelog.records.compression import Codec
from tidelog.records.record import Record

BASE_TIMESTAMP_MS = time.time_ns() // 1_000_000 - 86_400_000
IN_FLIGHT_MAX = 5
KEYS = 40
TOMBSTONE_EVERY = 7
RECONNECT_SECONDS = 0.01
#: what a group's coordinator answers while it starts
RETRIED_COMMITS = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
CODECS = (Codec.NONE, Codec.NONE, Codec.NONE, Codec.LZ4, Codec.ZSTD, Codec.GZIP, Codec.SNAPPY)


def key_of(number: int) -> bytes:
    return b"key-%d" % (zlib.crc32(b"%d" % number) % KEYS)


def value_of(name: str, number: int, tombstones: bool) -> bytes | None:
    """The value of a record: its name and number, then a filling whose length they decide."""
    mix = zlib.crc32(f"{name}/{number}".encode())
    if tombstones and mix % TOMBSTONE_EVERY == 0:
        return None
    return f"{name}/{number}/".encode() + bytes((mix >> 8 & 0xFF,)) * (mix % 200)


def record_of(name: str, number: int, tombstones: bool) -> Record:
    return Record(0, BASE_TIMESTAMP_MS + number, key_of(number), value_of(name, number, tombstones))


class Batch(NamedTuple):
    """Records `first` … `first + count - 1` of a writer."""

    first: int
    count: int  # type: ignore[assignment]
    data: bytes


class Acknowledged(NamedTuple):
    """A batch and the offset the broker gave it."""

    base_offset: int
    first: int
    count: int  # type: ignore[assignment]


@dataclass(frozen=True)
class Plan:
    """What one writer does."""

    name: str
    topic: str
    partition: int
    acks: int
    idempotent: bool = False
    compacted: bool = False
    pause_seconds: float = 0.001


@dataclass
class Memory:
    """What a writer attempted and what was acknowledged to it."""

    attempted: int = 0
    acknowledged: list[Acknowledged] = field(default_factory=list)
    retried_batches: int = 0
    refusals: dict[str, int] = field(default_factory=dict)
    fault: str | None = None
    worst_answer_seconds: float = 0.0

    @property
    def acknowledged_records(self) -> int:
        return sum(batch.count for batch in self.acknowledged)


class Gate:
    """Lets the writers work or holds them."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.stopped = False


class Writer(threading.Thread):
    """A producer on the bare protocol, with up to five requests in flight.

    An idempotent writer keeps its producer id for ever and sends what has no answer again, with the same
    sequence numbers; a plain one leaves batches without an answer behind and goes on.
    """

    def __init__(self, plan: Plan, bootstrap: str, gate: Gate, seed: int) -> None:
        super().__init__(name=plan.name, daemon=True)
        self.plan = plan
        self.memory = Memory()
        self.idle = threading.Event()
        self._address = bootstrap
        self._gate = gate
        self._random = random.Random(seed)
        self._producer_id = -1
        self._in_flight: deque[tuple[Batch, float]] = deque()
        self._again: deque[Batch] = deque()

    def run(self) -> None:
        while not self._gate.stopped and self.memory.fault is None:
            if not self._gate.open.is_set():
                self.idle.set()
                self._gate.open.wait(0.5)
                continue
            self.idle.clear()
            try:
                with WireClient(self._address, timeout_seconds=15) as client:
                    self._work(client)
            except (ConnectionClosed, ConnectionRefusedError, ConnectionResetError, BrokenPipeError):
                time.sleep(RECONNECT_SECONDS)
            except TimeoutError:
                self.memory.fault = f"{self.plan.name}: no answer for 15 s"
            self._disconnected()
        self.idle.set()

    def _disconnected(self) -> None:
        unanswered = [batch for batch, _ in self._in_flight]
        self._in_flight.clear()
        if self.plan.idempotent:
            self._again.extendleft(reversed(unanswered))

    def _work(self, client: WireClient) -> None:
        if self.plan.idempotent and self._producer_id < 0:
            self._producer_id, _ = client.init_producer_id()
        while self._gate.open.is_set() and not self._gate.stopped and self.memory.fault is None:
            depth = self._random.randint(1, IN_FLIGHT_MAX)
            while len(self._in_flight) < depth:
                batch = self._next_batch()
                self._in_flight.append((batch, time.monotonic()))
                client.send(
                    produce_frame(self.plan.topic, self.plan.partition, batch.data, acks=self.plan.acks)
                )
            self._take_answer(client)
            time.sleep(self.plan.pause_seconds)
        while self._in_flight and self.memory.fault is None:
            self._take_answer(client)

    def _next_batch(self) -> Batch:
        if self._again:
            self.memory.retried_batches += 1
            return self._again.popleft()
        first = self.memory.attempted
        count = self._random.choice((1, 1, 2, 3, 5, 12))
        plan = self.plan
        data = build_batch(
            [record_of(plan.name, number, plan.compacted) for number in range(first, first + count)],
            codec=self._random.choice(CODECS),
            producer_id=self._producer_id,
            producer_epoch=0 if plan.idempotent else -1,
            base_sequence=first if plan.idempotent else -1,
        )
        self.memory.attempted += count
        return Batch(first, count, data)

    def _take_answer(self, client: WireClient) -> None:
        produced = read_produced(client.receive())
        batch, sent = self._in_flight.popleft()
        memory = self.memory
        memory.worst_answer_seconds = max(memory.worst_answer_seconds, time.monotonic() - sent)
        if produced.error == 0:
            memory.acknowledged.append(Acknowledged(produced.base_offset, batch.first, batch.count))
            return
        code = ErrorCode(produced.error).name
        memory.refusals[code] = memory.refusals.get(code, 0) + 1
        memory.fault = f"{self.plan.name}: records {batch.first}… were refused with {code}"


class ClientWriter(threading.Thread):
    """confluent-kafka's idempotent producer, one instance that lives through every crash."""

    def __init__(self, plan: Plan, bootstrap: str, gate: Gate) -> None:
        super().__init__(name=plan.name, daemon=True)
        self.plan = plan
        self.memory = Memory()
        self.idle = threading.Event()
        self._gate = gate
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "batch.size": 20_000,
                "message.timeout.ms": 0,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "socket.timeout.ms": 15_000,
                "log_level": 0,
                "error_cb": self._failed,
            }
        )

    def _failed(self, error: KafkaError) -> None:
        if error.fatal():
            self.memory.fault = f"{self.plan.name}: fatal error {error.name()} {error.str()}"

    def _delivered(self, number: int, error: KafkaError | None, message: Message) -> None:
        # Not known by its timestamp: the answer to a batch that is there already has one for all records.
        if error is not None:
            self.memory.fault = f"{self.plan.name}: delivery failed with {error.name()}"
            return
        offset = message.offset()
        assert offset is not None
        self.memory.acknowledged.append(Acknowledged(offset, number, 1))

    def run(self) -> None:
        memory = self.memory
        while not self._gate.stopped and memory.fault is None:
            self._producer.poll(0.005)
            if not self._gate.open.is_set():
                self.idle.set()
                continue
            self.idle.clear()
            for _ in range(5):
                if len(self._producer) > 2_000:
                    break
                record = record_of(self.plan.name, memory.attempted, False)
                self._producer.produce(
                    self.plan.topic,
                    record.value,
                    record.key,
                    partition=self.plan.partition,
                    on_delivery=partial(self._delivered, memory.attempted),
                    timestamp=record.timestamp_ms,
                )
                memory.attempted += 1
        self.idle.set()

    def finish(self, seconds: float) -> None:
        """Wait until everything attempted is acknowledged; the broker must be up."""
        left = self._producer.flush(seconds)
        if left and self.memory.fault is None:
            self.memory.fault = f"{self.plan.name}: {left} records unacknowledged after {seconds:.0f} s"


class Committer(threading.Thread):
    """Commits the offsets 0, 1, 2 … of a group; the broker must remember the last acknowledged one."""

    GROUP = "crash-group"

    def __init__(self, topic: str, bootstrap: str, gate: Gate) -> None:
        super().__init__(name="committer", daemon=True)
        self.attempted = -1
        self.acknowledged = -1
        self.fault: str | None = None
        self.idle = threading.Event()
        self._topic = topic
        self._address = bootstrap
        self._gate = gate

    def run(self) -> None:
        while not self._gate.stopped and self.fault is None:
            if not self._gate.open.is_set():
                self.idle.set()
                self._gate.open.wait(0.5)
                continue
            self.idle.clear()
            try:
                with WireClient(self._address, timeout_seconds=15) as client:
                    client.ask("find_coordinator", 3, key=self.GROUP, key_type=0)
                    while self._gate.open.is_set() and not self._gate.stopped and self.fault is None:
                        self._commit(client)
                        time.sleep(0.01)
            except (ConnectionClosed, ConnectionRefusedError, ConnectionResetError, BrokenPipeError):
                time.sleep(RECONNECT_SECONDS)
            except TimeoutError:
                self.fault = "committer: no answer for 15 s"
        self.idle.set()

    def _commit(self, client: WireClient) -> None:
        self.attempted += 1
        offset = self.attempted
        answer = client.ask(
            "offset_commit",
            8,
            group_id=self.GROUP,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[
                {
                    "name": self._topic,
                    "partitions": [
                        {"partition_index": 0, "committed_offset": offset, "committed_metadata": "m"}
                    ],
                }
            ],
        )
        error = ErrorCode(int(answer.topics[0].partitions[0].error_code))
        if error == ErrorCode.NONE:
            self.acknowledged = offset
        elif error not in RETRIED_COMMITS:
            self.fault = f"committer: {error.name}"
