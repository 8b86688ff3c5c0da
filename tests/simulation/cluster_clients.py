"""Clients of the simulated cluster: producers and readers, who speak the real protocol over simulated wires.

A `Producer` with acks=all is idempotent, in the manner of the Java client: up to three batches are under way,
in order, on one connection. On any error it asks for the leader again and sends what is unacknowledged once
more, one batch at a time, with the same sequence numbers. (The first of all goes alone, too: a broker that
does not know a producer takes any sequence from it.) Its record of what was acknowledged is what must never
be lost. Without an id (acks=1) it sends and forgets. A `Reader` reads one partition from its leader, or from
any replica, and what it reads must be what was committed.

Asking for the leader is one event: a broker that can be reached tells what its image says.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

from tests.simulation.cluster_checks import Acknowledgement, Broken, must
from tests.simulation.cluster_machines import Machine, Observe, Wire
from tidelog.broker.runtime.peers import PeerFault
from tidelog.client.requests import frame_prefix, response_body
from tidelog.model.errors import ErrorCode
from tidelog.protocol.apis import FETCH, PRODUCE
from tidelog.protocol.fetch import FetchPartition, FetchRequest
from tidelog.protocol.fetch_client import FOLLOWER_VERSION, decode_response, encode_request
from tidelog.protocol.primitives import unsigned_varint
from tidelog.records.batch import read_header
from tidelog.records.builder import build_batch
from tidelog.records.record import Record

if TYPE_CHECKING:
    from tests.simulation.cluster_world import ClusterWorld

PRODUCE_VERSION = 13
ANSWER_MS = 900
UNDER_WAY_MAX = 3
#: how many batches are made at once
TOGETHER = (1, 1, 1, 2, 3, 6)
#: what is before it in a batch the leader writes: base offset, leader epoch
CRC_POSITION = 17
CLIENT_ID = b"client"
#: errors that pass; a producer tries again
TRY_AGAIN = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


def produce_body(topic_id: UUID, index: int, batch: bytes, acks: int, timeout_ms: int) -> bytes:
    """A Produce request of version 13 for one partition."""
    return (
        b"\x00"
        + acks.to_bytes(2, "big", signed=True)
        + timeout_ms.to_bytes(4, "big")
        + b"\x02"
        + topic_id.bytes
        + b"\x02"
        + index.to_bytes(4, "big")
        + unsigned_varint(len(batch) + 1)
        + batch
        + b"\x00\x00\x00"
    )


def produced(answer: bytes) -> tuple[ErrorCode, int]:
    """Error and base offset of an answer for one partition."""
    # size, correlation id, tags, topics (1), id, partitions (1), index, error, offset
    position = 4 + 4 + 1 + 1 + 16 + 1 + 4
    error = int.from_bytes(answer[position : position + 2], "big", signed=True)
    return ErrorCode(error), int.from_bytes(answer[position + 2 : position + 10], "big", signed=True)


class Batch:
    """Records under way."""

    __slots__ = ("count", "data", "sequence")

    def __init__(self, sequence: int, count: int, data: bytes) -> None:
        self.sequence = sequence
        self.count = count
        self.data = data


class Client:
    """One side of a connection to the broker that leads, or should lead, a partition."""

    def __init__(self, world: "ClusterWorld", number: int, topic: str, topic_id: UUID, index: int) -> None:
        self.world = world
        self.client_id = -number
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.wire: Wire | None = None
        self.stopped = False

    @property
    def gone(self) -> bool:
        """Whether the topic was deleted."""
        return self.world.audit.topics.get(self.topic) != self.topic_id

    def find(self, *, follower: bool = False) -> Machine | None:
        """Ask somebody who leads; None if nobody can be asked, or nobody leads."""
        world = self.world
        asked = world.random.choice(list(world.machines.values()))
        if not asked.running or not asked.open:
            return None
        topic = asked.broker.image.topics.get(self.topic)
        if topic is None or topic.topic_id != self.topic_id:
            return None
        state = topic.partitions[self.index]
        chosen = world.random.choice(state.replicas) if follower else state.leader
        found = world.machines.get(chosen)
        return None if found is None or not found.open else found

    def connect(self, target: Machine) -> Wire:
        if self.wire is None or self.wire.closed or self.wire.target is not target:
            if self.wire is not None:
                self.wire.close()
            self.wire = Wire(self.world.network, self.client_id, None, target)
        return self.wire

    def after(self, delay_ms: int, call: object) -> None:
        self.world.events.at(self.world.now_ms + delay_ms, None, call)  # type: ignore[arg-type]


class Producer(Client):
    """Sends batches to one partition."""

    def __init__(
        self, world: "ClusterWorld", number: int, topic: str, topic_id: UUID, index: int, acks: int
    ) -> None:
        super().__init__(world, number, topic, topic_id, index)
        self.acks = acks
        self.producer_id = 1000 + number if acks == -1 else -1
        self.under_way: deque[Batch] = deque()
        self.acknowledged: list[tuple[int, Batch]] = []
        self._next_sequence = 0
        self._generation = 0
        self._resting = False
        #: whether only the first batch is under way, and those behind it wait
        self._one_by_one = True
        self.after(world.random.randint(1, 50), self._again)
        self.after(world.random.randint(1, 100), self._tick)

    @property
    def idle(self) -> bool:
        return self.gone or not self.under_way

    def _tick(self) -> None:
        if self.stopped or self.gone:
            return
        random = self.world.random
        made: list[Batch] = []
        if len(self.under_way) < UNDER_WAY_MAX:
            # Without an id several may be sent at once: the broker appends them together.
            for _ in range(random.choice(TOGETHER) if self.producer_id < 0 else 1):
                made.append(self._make())
            alone = self.under_way[0] is made[0] and not self._resting
            if not self._one_by_one:
                self._send(made)
            elif alone:
                self._send(made[:1])
        self.after(random.choice((5, 50, 100, 200)), self._tick)

    def _make(self) -> Batch:
        """Another batch, which is under way from now on."""
        count = self.world.random.choice((1, 1, 2, 3))
        records = [
            Record(i, self.world.now_ms, None, b"%d:%d" % (self.client_id, self._next_sequence + i), ())
            for i in range(count)
        ]
        idempotent = self.producer_id >= 0
        data = build_batch(
            records,
            producer_id=self.producer_id,
            producer_epoch=0 if idempotent else -1,
            base_sequence=self._next_sequence if idempotent else -1,
        )
        batch = Batch(self._next_sequence, count, bytes(data))
        self._next_sequence += count
        self.under_way.append(batch)
        return batch

    def _send(self, batches: list[Batch]) -> None:
        wire = self.wire
        if wire is None or wire.closed:
            self._again()
            return
        wire.request_together([self._request(wire, batch) for batch in batches], ANSWER_MS)

    def _request(
        self, wire: Wire, batch: Batch
    ) -> tuple[bytes, Callable[[bytes | PeerFault], None], Observe]:
        generation = self._generation
        body = produce_body(self.topic_id, self.index, batch.data, self.acks, ANSWER_MS - 200)
        frame = frame_prefix(PRODUCE, PRODUCE_VERSION, 1, CLIENT_ID, len(body))[4:] + body

        def observe(answer: bytes) -> None:
            error, offset = produced(answer)
            if error is ErrorCode.NONE and self.acks == 1:
                self.world.checker.acknowledged_alone(wire.target)
                self._check_written(wire.target, batch, offset)
            if error is ErrorCode.NONE and self.acks == -1 and not self.gone:
                place = (self.topic_id, self.index)
                self.world.checker.acknowledged.append(
                    Acknowledgement(place, self.producer_id, batch.sequence, offset)
                )

        return frame, lambda answer: self._answered(generation, batch, answer), observe

    def _check_written(self, target: Machine, batch: Batch, offset: int) -> None:
        """What a leader says it has written is in its log, where it says."""
        partition = target.broker.replicas.leader(self.topic, self.index)
        if partition is None or self.gone:
            return
        try:
            found = partition.log.read(offset, 1, partition.log.log_end_offset, at_least_one=True)
            data = b"" if found is None else found.file.read(found.position, found.size_bytes)
        except OSError:
            return
        must(
            data[:8] == offset.to_bytes(8, "big") and data[CRC_POSITION:] == batch.data[CRC_POSITION:],
            f"{target} acknowledges a batch of {self.topic}-{self.index} at {offset}, where it is not",
        )

    def _answered(self, generation: int, batch: Batch, answer: bytes | PeerFault) -> None:
        if generation != self._generation:
            return
        if isinstance(answer, PeerFault):
            self._again()
            return
        error, offset = produced(answer)
        if error is ErrorCode.NONE:
            must(self.under_way[0] is batch, "answers in the order of requests")
            self.under_way.popleft()
            if self.acks == -1:
                self.acknowledged.append((offset, batch))
            if self._one_by_one:
                if self.under_way:
                    self._send([self.under_way[0]])
                else:
                    self._one_by_one = False
        elif error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and batch is self.under_way[0]:
            self._out_of_order(batch)
        elif error in TRY_AGAIN or error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER or self.gone:
            self._again()
        else:
            raise Broken(f"producer {self.producer_id} of {self.topic}-{self.index}: {error.name}")

    def _out_of_order(self, batch: Batch) -> None:
        """The broker expects another sequence than the next one.

        As in Kafka a snapshot of the producers has only the last batch of each, so a broker that began with
        one does not recognise an older batch that it has. A leader that was replaced, and cannot know it yet
        because the store is out of its reach, lacks what came since. Anything else means that records were
        lost.
        """
        assert self.wire is not None
        target = self.wire.target
        partition = None if target.ended else target.broker.replicas.leader(self.topic, self.index)
        record = self.world.audit.partitions.get((self.topic, self.index))
        if record is not None and partition is not None and record.leader_epoch > partition.leader_epoch:
            partition = None
        if partition is not None and not self.gone:
            known = partition.log.producers._producers.get(self.producer_id)
            last = known.batches[-1][1] if known is not None and known.batches else -1
            must(
                last >= batch.sequence,
                f"producer {self.producer_id} of {self.topic}-{self.index} goes on with {batch.sequence}, "
                f"its leader {target.node_id} has nothing after {last}",
            )
        history = self.world.checker.histories[self.topic_id, self.index]
        if history.last_sequences.get(self.producer_id, -1) >= batch.sequence:
            self.under_way.popleft()
        self._again()

    def _again(self) -> None:
        """Something went wrong: find the leader after a while and send everything once more."""
        self._generation += 1
        self._one_by_one = True
        if self.wire is not None:
            self.wire.close()
            self.wire = None
        if self.acks != -1:
            # Their loss is allowed, and a second attempt might be a second copy.
            self.under_way.clear()
        if not self._resting:
            self._resting = True
            self.after(self.world.random.randint(5, 60), self._send_first)

    def _send_first(self) -> None:
        self._resting = False
        if self.gone:
            return
        target = self.find()
        if target is None:
            self._again()
            return
        self.connect(target)
        if self.under_way:
            self._send([self.under_way[0]])
        else:
            # A leader that does not know an idempotent producer takes whichever of its batches comes first.
            self._one_by_one = self.producer_id >= 0 and not self.acknowledged


class Reader(Client):
    """Reads one partition over and over."""

    def __init__(self, world: "ClusterWorld", number: int, topic: str, topic_id: UUID, index: int) -> None:
        super().__init__(world, number, topic, topic_id, index)
        self.offset = 0
        self.after(world.random.randint(1, 200), self._poll)

    def _poll(self) -> None:
        if self.stopped or self.gone:
            return
        random = self.world.random
        target = self.find(follower=random.random() < 0.3)
        if target is None:
            self.after(random.randint(20, 150), self._poll)
            return
        wanted = FetchPartition(self.index, -1, self.offset, -1, -1, 1 << 16)
        wait_ms = random.choice((0, 50))
        asked = FetchRequest(-1, wait_ms, 1, 1 << 20, 0, 0, -1, [(self.topic_id, [wanted])], [], "")
        body = encode_request(FOLLOWER_VERSION, asked)
        frame = frame_prefix(FETCH, FOLLOWER_VERSION, 1, CLIENT_ID, len(body))[4:] + body
        self.connect(target).request(frame, self._answered, ANSWER_MS)

    def _answered(self, answer: bytes | PeerFault) -> None:
        random = self.world.random
        self.after(random.randint(50, 300), self._poll)
        if isinstance(answer, PeerFault) or self.gone:
            return
        for found in decode_response(
            FOLLOWER_VERSION, response_body(memoryview(answer)[4:], True)
        ).partitions:
            if found.error or not len(found.records):
                continue
            history = self.world.checker.histories[self.topic_id, self.index]
            records = bytes(found.records)
            position = 0
            start = end = read_header(records).base_offset
            while position < len(records):
                header = read_header(records, position)
                position += header.size_bytes
                end = header.next_offset
            where = f"a reader of {self.topic}-{self.index}"
            must(end <= history.end, f"{where} saw up to {end}, only {history.end} was committed")
            must(records == history.between(start, end), f"{where} saw something else at {start}")
            must(start <= self.offset, f"{where} wanted {self.offset} and got {start}")
            self.offset = max(self.offset, end)
