"""A whole cluster in one thread: brokers on simulated disks, one simulated store, a simulated network.

Everything happens as an event at a moment of simulated time: the arrival of a message, the end of work in the
background, a timer. The caller drives it (`step`, `run_for`, `run_until`); delays are drawn from the seed, so
the same seed and the same calls give the same story. Messages of one connection arrive in order.

Faults: `kill` (what was written stays), `cut_power` (what was not synced may go), `restart`, `freeze` and
`thaw` (a stopped process), `cut` and `heal` (a link that swallows what is sent, until the timeout of the
sender), `expire_session` (the coordination store gives a broker up).
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from itertools import count
from random import Random
from typing import Any
from uuid import UUID

from tests.support.frames import serve_frames
from tests.support.simulated_disk import SimulatedDisk
from tests.support.simulated_store import SimulatedCluster, SimulatedStore
from tidelog.broker.broker import Broker
from tidelog.broker.replicas.partition import Partition
from tidelog.broker.requests.connection_context import ConnectionContext
from tidelog.broker.requests.dispatch import Dispatcher
from tidelog.broker.requests.request import CloseConnection, PendingAnswer
from tidelog.broker.runtime.peers import PeerFault
from tidelog.client.requests import flexible_answer, frame_prefix, response_body
from tidelog.controller.commands import CreateTopics, TopicSpec
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.image import PartitionImage
from tidelog.model.metadata import Endpoint
from tidelog.model.settings import BrokerSettings
from tidelog.protocol.primitives import compact_string, unsigned_varint
from tidelog.records.builder import build_batch
from tidelog.records.record import Record

START_MS = 1_700_000_000_000
EVENTS_MAX = 2_000_000

PRODUCE = 0


class SimulatedTime:
    """The clock of every broker."""

    def __init__(self) -> None:
        self.time_ms = START_MS
        #: how far somebody has set the clocks of all machines
        self.set_ahead_ms = 0

    def now_ms(self) -> int:
        return self.time_ms + self.set_ahead_ms

    def monotonic_ms(self) -> int:
        return self.time_ms


class _Wire:
    """One connection: answers leave in the order of the requests, and arrive in the order they left."""

    def __init__(self, cluster: "InMemoryCluster", source: int, target: "Node", channel: str) -> None:
        self.cluster = cluster
        self.source = source
        self.target = target
        self.source_node = cluster.nodes.get(source)
        self.context = ConnectionContext(f"host{source}", 1, "PLAINTEXT")
        self.context.finish = self.close
        self.requests_at_ms = 0
        self.answers_at_ms = 0
        self.pending: deque[tuple[PendingAnswer | bytes, Callable[[bytes], None]]] = deque()
        self.broken = False
        self.channel = channel

    def send(self, frame: bytes, deliver: Callable[[bytes], None]) -> None:
        cluster = self.cluster
        if cluster.is_cut(self.source, self.target.node_id):
            return  # swallowed
        self.requests_at_ms = max(self.requests_at_ms, cluster.clock.time_ms + cluster.latency_ms())
        cluster.at(self.requests_at_ms, self.target, lambda: self._arrive(frame, deliver))

    def _arrive(self, frame: bytes, deliver: Callable[[bytes], None]) -> None:
        if self.broken:
            return
        broker = self.target.broker
        try:
            with broker.turn:
                [answer] = serve_frames(self.target.dispatcher, self.context, frame)
        except CloseConnection:
            self.close()
            return
        if answer is None:
            return
        if isinstance(answer, PendingAnswer) and answer.chunks is None:
            answer.on_filled = self._flush
            self.pending.append((answer, deliver))
        else:
            chunks = answer.chunks if isinstance(answer, PendingAnswer) else answer
            self.pending.append((joined(chunks), deliver))
        self._flush()

    def _flush(self) -> None:
        cluster = self.cluster
        while self.pending:
            answer, deliver = self.pending[0]
            if isinstance(answer, PendingAnswer):
                if answer.chunks is None:
                    return
                answer = joined(answer.chunks)
            self.pending.popleft()
            if self.broken or cluster.is_cut(self.source, self.target.node_id):
                continue
            self.answers_at_ms = max(self.answers_at_ms, cluster.clock.time_ms + cluster.latency_ms())
            cluster.at(self.answers_at_ms, self.source_node, lambda a=answer, d=deliver: d(a))  # type: ignore[misc]

    def close(self) -> None:
        self.broken = True
        self.context.finish = None
        if not self.target.dead:
            with self.target.broker.turn:
                self.context.lost()
        for answer, _ in self.pending:
            if isinstance(answer, PendingAnswer):
                answer.delayed.abandon()
        self.pending.clear()


class Node:
    """One broker; also its background and its port to the others."""

    def __init__(self, cluster: "InMemoryCluster", node_id: int, disk: SimulatedDisk) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.disk = disk
        self.dead = False
        self.frozen = False
        self.held: list[Callable[[], None]] = []
        self.registered: list[Refused | None] = []
        self.wires: dict[tuple[int, str], _Wire] = {}
        self.settings: dict[str, str] = {}
        #: why it cannot go on, if it said so
        self.fatal: list[str] = []
        self.store: SimulatedStore
        self.broker: Broker
        self.dispatcher: Dispatcher

    def start(self) -> None:
        cluster = self.cluster
        cluster.nodes[self.node_id] = self
        settings = {"log.dirs": "/data", "broker.id": str(self.node_id), **cluster.settings, **self.settings}
        rack = cluster.racks.get(self.node_id)
        if rack is not None:
            settings["broker.rack"] = rack
        self.broker = Broker(
            BrokerSettings.resolve(settings),
            clock=cluster.clock,
            random=Random(cluster.random.getrandbits(64)),
            background=self,
            disk=self.disk,
            endpoints={"PLAINTEXT": Endpoint(f"host{self.node_id}", 9092)},
            open_store=self._open_store,
            peers=self,
            on_fatal=self.fatal.append,
            raise_unexpected=True,
        )
        self.dispatcher = self.broker.make_dispatcher()
        #: what this life of the broker knows of the clients that produce
        self.client_context = ConnectionContext("client", 1, "PLAINTEXT")
        self.broker.register(self.registered.append)

    def _open_store(self) -> SimulatedStore:
        self.store = self.cluster.store.open(f"broker {self.node_id}", schedule=self.call_soon)
        return self.store

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.cluster.at(self.cluster.clock.time_ms + self.cluster.latency_ms(), self, callback)

    # -- the background port

    def run(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        def carry_out() -> None:
            try:
                outcome = work()
            except (OSError, ValueError) as error:
                outcome = error
            then(outcome)

        self.call_soon(carry_out)

    # -- the peers port

    def request(
        self,
        broker_id: int,
        api_key: int,
        version: int,
        body: bytes | list[bytes],
        then: Callable[[memoryview | PeerFault], None],
        *,
        timeout_ms: int,
        channel: str = "control",
    ) -> None:
        cluster = self.cluster
        answered = [False]

        def settle(outcome: memoryview | PeerFault) -> None:
            if not answered[0]:
                answered[0] = True
                then(outcome)

        target = cluster.nodes.get(broker_id)
        if target is None or target.dead:
            self.call_soon(lambda: settle(PeerFault("not reachable")))
            return
        wire = self.wires.get((broker_id, channel))
        if wire is None or wire.broken or wire.target is not target:
            wire = self.wires[broker_id, channel] = _Wire(cluster, self.node_id, target, channel)
        data = body if isinstance(body, bytes) else b"".join(body)
        client_id = f"broker-{self.node_id}".encode()
        frame = frame_prefix(api_key, version, 1, client_id, len(data))[4:] + data
        flexible = flexible_answer(api_key, version)

        def deliver(answer: bytes) -> None:
            settle(response_body(memoryview(answer)[4:], flexible))

        cluster.outstanding.setdefault((self.node_id, broker_id), []).append(settle)
        wire.send(frame, deliver)
        sent_over = wire

        def time_out() -> None:
            if not answered[0]:
                sent_over.close()
                settle(PeerFault("timed out"))

        cluster.at(cluster.clock.time_ms + timeout_ms, self, time_out)

    def forget(self, broker_id: int) -> None:
        for (target_id, channel), wire in list(self.wires.items()):
            if target_id == broker_id:
                wire.close()
                del self.wires[target_id, channel]
        for settle in self.cluster.outstanding.pop((self.node_id, broker_id), []):
            self.call_soon(lambda s=settle: s(PeerFault("connection lost")))  # type: ignore[misc]

    def __repr__(self) -> str:
        state = "dead" if self.dead else "frozen" if self.frozen else "alive"
        return f"<Node {self.node_id} {state}>"


class InMemoryCluster:
    """Brokers, store, network and time."""

    def __init__(
        self,
        node_ids: Iterable[int] = (1, 2, 3),
        *,
        seed: int = 1,
        latency_ms_max: int = 1,
        racks: dict[int, str] | None = None,
        **settings: str,
    ) -> None:
        self.random = Random(seed)
        self.clock = SimulatedTime()
        self.settings = {name.replace("_", "."): value for name, value in settings.items()}
        self.racks = racks or {}
        self.latency_ms_max = latency_ms_max
        self.store = SimulatedCluster(random=self.random)
        self.nodes: dict[int, Node] = {}
        self.outstanding: dict[tuple[int, int], list[Callable[[Any], None]]] = {}
        self._cuts: set[frozenset[int]] = set()
        self._events: list[tuple[int, int, Node | None, Callable[[], None]]] = []
        self._serial = count()
        self._clients: dict[int, _Wire] = {}
        self.events_count = 0
        for node_id in node_ids:
            Node(self, node_id, SimulatedDisk(seed * 100 + node_id)).start()
        self.run_until(lambda: all(node.registered for node in self.nodes.values()))

    # -- events

    def latency_ms(self) -> int:
        return self.random.randint(0, self.latency_ms_max)

    def at(self, time_ms: int, node: Node | None, callback: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time_ms, next(self._serial), node, callback))

    def step(self, until_ms: int) -> bool:
        """Run the next event or timer that is due by `until_ms`; False if there is none."""
        event_ms = self._events[0][0] if self._events else None
        timer_ms, timer_node = None, None
        for node in self.nodes.values():
            if node.dead or node.frozen:
                continue
            delay_ms = node.broker.timers.delay_ms()
            if delay_ms is not None and (timer_ms is None or self.clock.time_ms + delay_ms < timer_ms):
                timer_ms, timer_node = self.clock.time_ms + delay_ms, node
        times = [each for each in (event_ms, timer_ms) if each is not None]
        if not times or min(times) > until_ms:
            return False
        self.events_count += 1
        assert self.events_count < EVENTS_MAX, "the cluster does not come to rest"
        self.clock.time_ms = max(self.clock.time_ms, min(times))
        if timer_node is not None and timer_ms == min(times):
            with timer_node.broker.turn:
                timer_node.broker.timers.run_due()
            return True
        _, _, owner, callback = heapq.heappop(self._events)
        if owner is None or not (owner.dead or owner.frozen):
            callback()
        elif owner.frozen and not owner.dead:
            owner.held.append(callback)
        return True

    def run_for(self, milliseconds: int) -> None:
        until_ms = self.clock.time_ms + milliseconds
        while self.step(until_ms):
            pass
        self.clock.time_ms = until_ms

    def run_until(self, condition: Callable[[], Any], timeout_ms: int = 60_000) -> None:
        """Run until something is true; fails if it does not become true in time."""
        until_ms = self.clock.time_ms + timeout_ms
        while not condition():
            assert self.step(until_ms), f"still not so after {timeout_ms} ms"

    # -- faults

    def is_cut(self, one: int, other: int) -> bool:
        return frozenset((one, other)) in self._cuts

    def cut(self, one: int, other: int) -> None:
        self._cuts.add(frozenset((one, other)))

    def heal(self) -> None:
        self._cuts.clear()

    def kill(self, node_id: int) -> None:
        """End a process; the store and the peers notice at once."""
        node = self.nodes[node_id]
        node.dead = True
        node.store.expire()
        for other in self.nodes.values():
            if not other.dead:
                other.forget(node_id)

    def restart(
        self,
        node_id: int,
        *,
        power_cut: bool = False,
        wiped: bool = False,
        before: Callable[[SimulatedDisk], None] = lambda disk: None,
        **settings: str,
    ) -> Node:
        """Start a broker again; `before` happens to its disk meanwhile, and it may have other settings."""
        old = self.nodes[node_id]
        if not old.dead:
            self.kill(node_id)
        disk = old.disk.crash() if power_cut else old.disk.kill()
        if wiped:
            disk = SimulatedDisk(self.random.getrandbits(32))
        before(disk)
        node = Node(self, node_id, disk)
        node.settings = {name.replace("_", "."): value for name, value in settings.items()}
        node.start()
        return node

    def freeze(self, node_id: int) -> None:
        self.nodes[node_id].frozen = True

    def thaw(self, node_id: int) -> None:
        node = self.nodes[node_id]
        node.frozen = False
        held, node.held = node.held, []
        for callback in held:
            self.at(self.clock.time_ms, node, callback)

    def expire_session(self, node_id: int) -> None:
        self.nodes[node_id].store.expire()

    # -- looking

    def broker(self, node_id: int) -> Broker:
        return self.nodes[node_id].broker

    @property
    def living(self) -> list[Node]:
        return [node for node in self.nodes.values() if not node.dead]

    @property
    def controller(self) -> Node | None:
        return next((node for node in self.living if node.broker.metadata.is_controller), None)

    def state(self, topic: str, index: int = 0) -> PartitionImage:
        """The partition's record as the controller has it."""
        assert self.controller is not None
        found = self.controller.broker.image.partition(topic, index)
        assert found is not None
        return found

    def leader(self, topic: str, index: int = 0) -> Node | None:
        return next((n for n in self.living if (topic, index) in n.broker.replicas.led), None)

    def replica(self, node_id: int, topic: str, index: int = 0) -> Partition:
        found = self.broker(node_id).replicas.replica(topic, index)
        assert found is not None
        return found

    def content(self, node_id: int, topic: str, index: int = 0) -> bytes:
        """All bytes of a replica's log."""
        log = self.replica(node_id, topic, index).log
        data = b""
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            piece = log.read(offset, 1 << 20, log.log_end_offset)
            assert piece is not None
            if not piece.size_bytes:
                break
            data += piece.file.read(piece.position, piece.size_bytes)
            offset = piece.next_offset
        return data

    # -- using

    def create_topic(
        self, name: str, partitions: int = 1, replication_factor: int = 3, **configs: str
    ) -> UUID:
        """Create a topic and wait until every broker has placed its replicas."""
        spec = TopicSpec(
            name, partitions, replication_factor, configs={k.replace("_", "."): v for k, v in configs.items()}
        )
        results: list[Any] = []
        self.run_until(lambda: self.controller is not None)
        assert self.controller is not None
        self.controller.broker.metadata.submit(CreateTopics((spec,)), results.extend)
        self.run_until(lambda: results)
        assert type(results[0]).__name__ == "TopicCreated", results
        self.run_until(lambda: all(name in node.broker.image.topics for node in self.living))
        return self.living[0].broker.image.topics[name].topic_id

    def send(self, node_id: int, frame: bytes) -> "Answer":
        """Send a request frame (without its size) as a client of its own; the answer fills later."""
        return self.connect(node_id).send(frame)

    def connect(self, node_id: int) -> "Connection":
        """A client's connection, over which several requests may be in flight."""
        return Connection(_Wire(self, -1 - len(self._clients), self.nodes[node_id], "client"))

    def produce(
        self,
        node_id: int,
        topic: str,
        *values: bytes,
        index: int = 0,
        acks: int = -1,
        timeout_ms: int = 30_000,
        **fields: Any,
    ) -> "Produced":
        records = [Record(i, self.clock.time_ms, None, value, ()) for i, value in enumerate(values)]
        data = bytes(build_batch(records, **fields))
        produced = Produced()
        wire = _Wire(self, -1, self.nodes[node_id], "client")
        wire.context = self.nodes[node_id].client_context
        wire.send(produce_frame(topic, index, data, acks, timeout_ms), produced.fill)
        return produced


class Answer:
    """The bytes of an answer, once it came."""

    def __init__(self) -> None:
        self.data: bytes | None = None

    def fill(self, data: bytes) -> None:
        self.data = data

    def __bool__(self) -> bool:
        return self.data is not None


class Connection:
    """A client's end of a connection: requests arrive, and are answered, in the order they were sent in."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire

    def send(self, frame: bytes) -> Answer:
        """Send a request frame (without its size); the answer fills later."""
        answer = Answer()
        self._wire.send(frame, answer.fill)
        return answer

    def close(self) -> None:
        self._wire.close()

    @property
    def closed(self) -> bool:
        """Whether it is closed, by either end."""
        return self._wire.broken


class Produced(Answer):
    """The answer to a Produce request for one partition."""

    @property
    def error(self) -> ErrorCode:
        return ErrorCode(self._fields[0])

    @property
    def offset(self) -> int:
        return self._fields[1]

    @property
    def _fields(self) -> tuple[int, int]:
        assert self.data is not None, "no answer yet"
        # size, correlation id, tags, topics (1), name, partitions (1), index, error, offset
        position = 4 + 4 + 1 + 1
        position += self.data[position]  # a compact name: its length and one more
        position += 1 + 4
        error = int.from_bytes(self.data[position : position + 2], "big", signed=True)
        return error, int.from_bytes(self.data[position + 2 : position + 10], "big", signed=True)


def produce_frame(topic: str, index: int, records: bytes, acks: int, timeout_ms: int) -> bytes:
    """A Produce v9 request."""
    return (
        PRODUCE.to_bytes(2, "big")
        + (9).to_bytes(2, "big")
        + (1).to_bytes(4, "big")
        + b"\x00\x04test\x00"
        + b"\x00"
        + acks.to_bytes(2, "big", signed=True)
        + timeout_ms.to_bytes(4, "big")
        + b"\x02"
        + compact_string(topic)
        + b"\x02"
        + index.to_bytes(4, "big")
        + unsigned_varint(len(records) + 1)
        + records
        + b"\x00\x00\x00"
    )


def joined(answer: Any) -> bytes:
    """The bytes of an answer, ranges read from their files."""
    if isinstance(answer, bytes | bytearray):
        return bytes(answer)
    return b"".join(
        bytes(c) if isinstance(c, bytes | bytearray) else c.file.read(c.position, c.size_bytes)
        for c in answer
    )
