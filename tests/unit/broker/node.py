"""A broker in this thread for tests: simulated disk and store, a clock that is moved by hand."""

import struct
from random import Random
from typing import Any

from tests.support.frames import serve_frames
from tests.support.simulated_disk import SimulatedDisk
from tests.support.simulated_store import SimulatedStore
from tidelog.broker.broker import Broker
from tidelog.broker.requests.connection_context import ConnectionContext
from tidelog.broker.requests.request import PendingAnswer
from tidelog.broker.runtime.background import InlineBackground
from tidelog.controller.commands import CreateTopics, TopicSpec
from tidelog.model.metadata import Endpoint
from tidelog.model.settings import BrokerSettings
from tidelog.protocol.primitives import compact_string, string, unsigned_varint
from tidelog.records.builder import build_batch
from tidelog.records.record import Record

START_MS = 1_700_000_000_000


class ManualClock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.time_ms = START_MS

    def now_ms(self) -> int:
        return self.time_ms

    def monotonic_ms(self) -> int:
        return self.time_ms


class NodeUnderTest:
    """A broker, its dispatcher and one connection."""

    def __init__(
        self,
        disk: SimulatedDisk | None = None,
        store: SimulatedStore | None = None,
        seed: int = 7,
        **settings: str,
    ) -> None:
        self.clock = ManualClock()
        self.disk = disk or SimulatedDisk(1)
        self.store = store or SimulatedStore()
        overrides = {"log.dirs": "/data", "broker.id": "1"}
        overrides.update({name.replace("_", "."): value for name, value in settings.items()})
        self.broker = Broker(
            BrokerSettings.resolve(overrides),
            clock=self.clock,
            random=Random(seed),
            background=InlineBackground(),
            disk=self.disk,
            endpoints={"PLAINTEXT": Endpoint("localhost", 9092)},
            store=self.store,
            raise_unexpected=True,
        )
        self.broker.register(lambda refused: None)
        self.dispatcher = self.broker.make_dispatcher()
        self.context = ConnectionContext("127.0.0.1", 1, "PLAINTEXT")

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        spec = TopicSpec(name, partitions, 1, configs={k.replace("_", "."): v for k, v in configs.items()})
        results: list[Any] = []
        self.broker.metadata.submit(CreateTopics((spec,)), results.extend)
        assert type(results[0]).__name__ == "TopicCreated", results

    def handle(self, frame: bytes) -> Any:
        """Serve a frame as a connection would and return what came of it."""
        with self.broker.turn:
            [answer] = serve_frames(self.dispatcher, self.context, frame)
        return answer

    def advance(self, milliseconds: int) -> None:
        self.clock.time_ms += milliseconds
        with self.broker.turn:
            self.broker.timers.run_due()


def joined(answer: Any) -> bytes:
    """The bytes of an answer, ranges read from their files."""
    if isinstance(answer, PendingAnswer):
        answer = answer.chunks
    if isinstance(answer, bytes):
        return answer
    return b"".join(c if isinstance(c, bytes) else c.file.read(c.position, c.size_bytes) for c in answer)


def batch(*values: bytes, **fields: Any) -> bytes:
    records = [Record(i, START_MS, None, value, ()) for i, value in enumerate(values)]
    return bytes(build_batch(records, **fields))


def produce_frame(
    version: int,
    records: bytes,
    topic: Any = "t",
    partition: int = 0,
    acks: int = -1,
    correlation_id: int = 77,
    client_id: bytes = b"test",
) -> bytes:
    """A Produce request for one partition, built independently of the decoder."""
    header = struct.pack(">hhih", 0, version, correlation_id, len(client_id)) + client_id
    if version >= 9:
        name = topic.bytes if version >= 13 else compact_string(topic)
        return (
            header
            + b"\x00\x00"
            + struct.pack(">hi", acks, 1000)
            + b"\x02"
            + name
            + b"\x02"
            + struct.pack(">i", partition)
            + unsigned_varint(len(records) + 1)
            + records
            + b"\x00\x00\x00"
        )
    return (
        header
        + b"\xff\xff"
        + struct.pack(">hii", acks, 1000, 1)
        + string(topic)
        + struct.pack(">iii", 1, partition, len(records))
        + records
    )


def fetch_frame(
    topic: str,
    offset: int,
    *,
    partition: int = 0,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    correlation_id: int = 78,
) -> bytes:
    """A Fetch v4 request for one partition."""
    return (
        struct.pack(">hhih", 1, 4, correlation_id, 4)
        + b"test"
        + struct.pack(">iiiib", -1, max_wait_ms, min_bytes, max_bytes, 0)
        + struct.pack(">i", 1)
        + string(topic)
        + struct.pack(">iiqi", 1, partition, offset, max_bytes)
    )
