"""A broker without sockets, threads or waiting: frames in, answers out, on any disk and a clock that stands
still.

For tests that restart a broker hundreds of times. Background work runs at once; answers that a real broker
would park until a flush are therefore there when the request returns.
"""

import random
from collections.abc import Mapping
from typing import Any

from tests.chaos.kafka_wire import (
    Fetched,
    Produced,
    batch_of,
    fetch_frame,
    produce_frame,
    read_fetched,
    read_produced,
    read_response,
    request_frame,
)
from tests.support.simulated_store import SimulatedStore
from tidelog.broker.broker import Broker
from tidelog.broker.requests.connection_context import ConnectionContext
from tidelog.broker.requests.request import PendingAnswer
from tidelog.broker.runtime.background import InlineBackground
from tidelog.model.metadata import Endpoint
from tidelog.model.settings import BrokerSettings
from tidelog.storage.disk import Disk

START_MS = 1_750_000_000_000


def batch_now(*values: bytes, timestamp_ms: int = START_MS, **fields: Any) -> bytes:
    """One batch of the time at which the clock stands."""
    return batch_of(*values, timestamp_ms=timestamp_ms, **fields)


class StandingClock:
    """Time that passes only when told."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.time_ms = now_ms

    def now_ms(self) -> int:
        return self.time_ms

    def monotonic_ms(self) -> int:
        return self.time_ms


class InProcessBroker:
    """A broker that serves frames by function calls; dropped without `close`, it was killed."""

    def __init__(
        self,
        folder: str,
        disk: Disk,
        store: SimulatedStore,
        settings: Mapping[str, str] | None = None,
        clock: StandingClock | None = None,
    ) -> None:
        self.clock = clock if clock is not None else StandingClock()
        values = {"log.dirs": folder, "offsets.topic.num.partitions": "1", **(settings or {})}
        self.broker = Broker(
            BrokerSettings.resolve(values),
            clock=self.clock,
            random=random.Random(0),
            background=InlineBackground(),
            disk=disk,
            endpoints={"PLAINTEXT": Endpoint("127.0.0.1", 9092)},
            store=store,
            raise_unexpected=True,
        )
        faults: list[Any] = []
        self.broker.register(faults.append)
        assert faults == [None], faults
        self._dispatcher = self.broker.make_dispatcher()
        self._context = ConnectionContext("127.0.0.1", 1, "PLAINTEXT")

    def exchange(self, data: bytes) -> bytes:
        """Serve one frame (with its size) and return the answer without its size."""
        with self.broker.turn:
            answer = self._dispatcher.handle(self._context, memoryview(bytearray(data))[4:])
        if isinstance(answer, PendingAnswer):
            answer = answer.chunks
        assert answer is not None, "the answer did not come at once"
        chunks = [answer] if isinstance(answer, bytes) else answer
        whole = b"".join(
            chunk if isinstance(chunk, bytes) else chunk.file.read(chunk.position, chunk.size_bytes)
            for chunk in chunks
        )
        return whole[4:]

    def ask(self, module: str, version: int, **fields: Any) -> Any:
        return read_response(module, version, self.exchange(request_frame(module, version, 1, fields)))

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": rows}
        answer = self.ask("create_topics", 7, topics=[topic], timeout=1_000)
        assert int(answer.topics[0].error_code) == 0, answer

    def produce(self, topic: str, partition: int, batch: bytes, *, acks: int = -1) -> Produced:
        return read_produced(self.exchange(produce_frame(topic, partition, batch, acks=acks)))

    def fetch(self, topic: str, partition: int, offset: int) -> Fetched:
        return read_fetched(self.exchange(fetch_frame(topic, partition, offset)))

    def advance(self, milliseconds: int) -> None:
        """Let time pass and do what became due."""
        self.clock.time_ms += milliseconds
        self.broker.timers.run_due()
