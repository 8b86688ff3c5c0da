"""What must hold in a cluster at every moment, checked from outside against a history of what was committed.

`History` is the truth about one partition: the bytes below the highest watermark that any leader ever had.
They were committed, so they stay as they are, for ever and everywhere. After every event on a machine `check`
compares its replicas with the histories, as far as something changed since the last look. A leader may
advance its watermark and stand down within one event (a broker that stood still learns of a change of the
ISR, and then that its session is over); what it committed is committed, so `watching` looks at it before it
stands down, too.

- one process leads in a leader epoch, for all time, and it leads with everything committed in its log;
- a leader's watermark and log never go back; no watermark is beyond the log, or beyond what was committed;
- a follower's watermark goes back only if, since its log was last written, somebody was elected uncleanly;
- whatever lies below a replica's watermark is, byte for byte, what was committed;
- every registered member of the ISR (as the store has it) has everything committed;
- an idempotent producer's batches are committed in order, once each;
- what acks=all acknowledged was committed when it was acknowledged, at the offset that was told;
- what an ISR or ELR counts on is in the directory that the store names, there or away;
- a broker that stood still for longer than its session acknowledges nothing, not with acks=1 either, before
  it has registered again.

`AuditedStore` looks at every commit: fenced by the controller's epoch and made by the controller's session,
epochs that grow, one leader for an epoch, leaders out of the ISR, an ISR among the replicas, leaders with a
log directory that is online.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import NamedTuple
from uuid import UUID

from tests.simulation.cluster_machines import Machine
from tests.support.simulated_store import SimulatedCluster
from tidelog.broker.replicas.partition import Partition
from tidelog.coordination.store import Check, Committed, Conflict, Write
from tidelog.model.metadata import (
    CHANGES_KEY,
    CONTROLLER_EPOCH_KEY,
    CONTROLLER_KEY,
    BrokerRecord,
    PartitionRecord,
    TopicRecord,
    record_from_entry,
)
from tidelog.records.batch import read_header
from tidelog.storage.partition_log import PartitionLog

READ_BYTES = 1 << 20

Place = tuple[UUID, int]


class Broken(AssertionError):
    """Something that must hold did not."""


def must(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)


class History:
    """What was committed in one partition, and who led it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.data = bytearray()
        self.end = 0
        #: where in `data` the batch begins that has this base offset; and the end
        self.positions: dict[int, int] = {0: 0}
        self.leaders: dict[int, Machine] = {}
        self.last_sequences: dict[int, int] = {}

    def extend(self, data: bytes, end: int) -> None:
        """More is committed: the batches up to offset `end`."""
        position = 0
        while position < len(data):
            header = read_header(data, position)
            must(header.base_offset == self.end, f"{self.name}: a gap is committed at {self.end}")
            if header.producer_id >= 0:
                due = self.last_sequences.get(header.producer_id, -1) + 1
                must(
                    header.base_sequence == due,
                    f"{self.name}: producer {header.producer_id} has sequence {header.base_sequence} "
                    f"committed at {header.base_offset}, after {due - 1}",
                )
                self.last_sequences[header.producer_id] = header.base_sequence + header.last_offset_delta
            position += header.size_bytes
            self.end = header.next_offset
            self.positions[self.end] = len(self.data) + position
        self.data += data
        must(self.end == end, f"{self.name}: the watermark {end} is not where a batch ends")

    def between(self, start: int, end: int) -> bytes:
        return bytes(self.data[self.positions[start] : self.positions[end]])

    def has_batch(self, base_offset: int, producer_id: int, sequence: int) -> bool:
        """Whether this batch of a producer was committed at this offset."""
        if base_offset >= self.end or base_offset not in self.positions:
            return False
        header = read_header(self.data, self.positions[base_offset])
        return header.producer_id == producer_id and header.base_sequence == sequence


class Seen:
    """A replica as it was at the last look."""

    __slots__ = (
        "end",
        "epoch",
        "last_epoch",
        "leads",
        "log",
        "partition",
        "truncations",
        "verified",
        "watermark",
    )

    def __init__(self) -> None:
        self.partition: Partition | None = None
        self.log: PartitionLog | None = None
        self.leads = False
        self.epoch = -1
        #: of the last batches in the log
        self.last_epoch = -1
        self.watermark = 0
        self.end = 0
        self.truncations = 0
        #: up to here the log is known to be the history's
        self.verified = 0


def log_bytes(log: PartitionLog, start: int, end: int) -> bytes:
    """The batches of a log from `start` to `end`."""
    data = b""
    while start < end:
        piece = log.read(start, READ_BYTES, end)
        if piece is None or not piece.size_bytes:
            break
        data += piece.file.read(piece.position, piece.size_bytes)
        start = piece.next_offset
    return data


class Acknowledgement(NamedTuple):
    """An answer to a producer that was written a moment ago."""

    place: Place
    producer_id: int
    sequence: int
    base_offset: int


class AuditedStore(SimulatedCluster):
    """A store that looks at what is committed to it."""

    def __init__(self, random: Random) -> None:
        super().__init__(random=random)
        self.topics: dict[str, UUID] = {}
        self.partitions: dict[tuple[str, int], PartitionRecord] = {}
        self.brokers: dict[int, BrokerRecord] = {}
        self._leaders: dict[tuple[UUID, int, int], int] = {}
        #: partitions whose record changed since somebody looked
        self.changed: set[tuple[str, int]] = set()

    def _commit(self, session: int, writes: Sequence[Write | Check]) -> Committed | Conflict:
        before = dict(self._entries) if any(write.key == CHANGES_KEY for write in writes) else None
        outcome = super()._commit(session, writes)
        if isinstance(outcome, Committed):
            if before is not None:
                fenced = Check(CONTROLLER_EPOCH_KEY, before[CONTROLLER_EPOCH_KEY][1])
                must(fenced in writes, "a commit of metadata is not fenced by the controller's epoch")
                holder = before.get(CONTROLLER_KEY)
                must(holder is not None and holder[2] == session, "metadata from one who is not controller")
            for write in writes:
                if isinstance(write, Write):
                    self._audit(write)
            if before is not None:
                self._audit_leaders()
        return outcome

    def _audit_leaders(self) -> None:
        """Nobody leads from a directory that its broker has not registered as online."""
        for record in self.partitions.values():
            broker = self.brokers.get(record.leader)
            if broker is not None and broker.alive:
                directory = record.directories[record.replicas.index(record.leader)]
                online = directory in broker.directories
                must(online, f"a partition is led from a directory that is away: {record}")

    def _audit(self, write: Write) -> None:
        kind, _, rest = write.key.partition("/")
        if kind not in ("topics", "partitions", "brokers"):
            return
        if write.value is None:
            if kind == "topics":
                self.topics.pop(rest, None)
            elif kind == "partitions":
                topic, _, index = rest.rpartition("/")
                self.partitions.pop((topic, int(index)), None)
            return
        record = record_from_entry(write.key, write.value)
        if isinstance(record, TopicRecord):
            self.topics[record.name] = record.topic_id
        elif isinstance(record, BrokerRecord):
            self.brokers[record.broker_id] = record
            self.changed.update(self.partitions)
        elif isinstance(record, PartitionRecord):
            self._audit_partition(record)

    def _audit_partition(self, record: PartitionRecord) -> None:
        name = f"{record.topic}-{record.index} of the store"
        key = (record.topic, record.index)
        old = self.partitions.get(key)
        holders = (*record.isr, *record.elr, *record.last_known_elr)
        must(bool(holders) and set(holders) <= set(record.replicas), f"{name}: {record}")
        must(record.leader == -1 or record.leader in record.isr, f"{name}: a leader out of the ISR: {record}")
        if record.leader >= 0:
            epoch = (self.topics[record.topic], record.index, record.leader_epoch)
            known = self._leaders.setdefault(epoch, record.leader)
            must(known == record.leader, f"{name}: {known} and {record.leader} lead epoch {epoch[2]}")
        if old is not None:
            must(record.partition_epoch == old.partition_epoch + 1, f"{name}: {old} became {record}")
            must(
                record.leader_epoch >= old.leader_epoch + (record.leader != old.leader),
                f"{name}: the leader epoch of {old} in {record}",
            )
            clean = record.leader in (-1, old.leader, *old.isr, *old.elr)
            # One that is shutting down may take others into the ISR; they lead at once.
            leaving = old.leader in self.brokers and self.brokers[old.leader].shutting_down
            # After a blackout nobody certainly has everything; whether the new leader has is seen at its log.
            clean = clean or not (old.isr or old.elr)
            must(
                clean or leaving or bool(old.removing), f"{name}: an unclean election: {old} became {record}"
            )
        self.partitions[key] = record
        self.changed.add(key)


class Checker:
    """Compares machines with histories."""

    def __init__(self, store: AuditedStore, machines: dict[int, Machine]) -> None:
        self._store = store
        self._machines = machines
        self.histories: dict[Place, History] = {}
        self._seen: dict[tuple[int, UUID, int], Seen] = {}
        self.acknowledged: list[Acknowledgement] = []
        self.acknowledged_count = 0
        #: brokers that stood still for longer than their session, and the lives that must be over
        self._over: dict[Machine, str] = {}

    def stood_still(self, machine: Machine) -> None:
        """A machine goes on that was given up meanwhile."""
        me = machine.broker.metadata._me if machine.open else None
        if me is not None and not machine.broker.metadata.fenced:
            self._over[machine] = me.incarnation

    def acknowledged_alone(self, machine: Machine) -> None:
        """A broker acknowledged a record that only it needs to have."""
        over = self._over.get(machine)
        if over is not None:
            me = machine.broker.metadata._me
            must(
                me is not None and me.incarnation != over,
                f"{machine} acknowledges as the leader it was before it stood still",
            )
            del self._over[machine]

    def history(self, topic: str, topic_id: UUID, index: int) -> History:
        history = self.histories.get((topic_id, index))
        if history is None:
            history = self.histories[topic_id, index] = History(f"{topic}-{index}")
        return history

    def forget(self, node_id: int) -> None:
        """A machine has a new life: look at everything again."""
        for key in [key for key in self._seen if key[0] == node_id]:
            del self._seen[key]
        self._store.changed.update(self._store.partitions)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """For this time, look at leaders in the moment before they stand down."""
        follow = Partition.follow

        def look_and_follow(partition: Partition, leader_id: int, leader_epoch: int) -> None:
            if partition.leads:
                self._look_at_last(partition)
            follow(partition, leader_id, leader_epoch)

        Partition.follow = look_and_follow  # type: ignore[assignment, method-assign]
        try:
            yield
        finally:
            Partition.follow = follow  # type: ignore[method-assign]

    def _look_at_last(self, partition: Partition) -> None:
        for node_id, machine in self._machines.items():
            seen = self._seen.get((node_id, partition.topic_id, partition.index))
            if (
                seen is not None
                and seen.partition is partition
                and seen.watermark != partition.high_watermark
                and self._look(machine, partition)
            ):
                self._store.changed.add((partition.topic, partition.index))

    def check(self, machine: Machine | None) -> None:
        """Look at a machine that did something, and at what was committed to the store meanwhile."""
        touched = self._store.changed
        if machine is not None and machine.open:
            for partition in machine.broker.replicas:
                if self._look(machine, partition):
                    touched.add((partition.topic, partition.index))
        if touched:
            for key in touched:
                self._check_isr(key)
            touched.clear()
        if self.acknowledged:
            for told in self.acknowledged:
                self._check_acknowledged(told)
            self.acknowledged.clear()

    def _look(self, machine: Machine, partition: Partition) -> bool:
        key = (machine.node_id, partition.topic_id, partition.index)
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = Seen()
        log = partition.log
        watermark, end = partition.high_watermark, log.log_end_offset
        if (
            seen.partition is partition
            and seen.log is log
            and seen.watermark == watermark
            and seen.end == end
            and seen.epoch == partition.leader_epoch
            and seen.leads == partition.leads
            and seen.truncations == log.truncation_count
        ):
            return False
        history = self.history(partition.topic, partition.topic_id, partition.index)
        where = f"{history.name} on {machine.node_id}"
        must(watermark <= end, f"{where}: the watermark {watermark} is beyond the end {end}")
        if seen.partition is not partition or seen.log is not log:
            seen.verified = 0
        elif seen.truncations != log.truncation_count:
            seen.verified = min(seen.verified, self._boundary(history, end))
        if partition.leads:
            self._look_at_leader(machine, partition, seen, history, where)
        else:
            must(
                watermark <= history.end,
                f"{where}: a follower's watermark {watermark}, but only {history.end} was committed",
            )
            if seen.partition is partition and watermark < seen.watermark:
                self._look_at_cut(partition, seen, where)
        self._verify(seen, log, history, watermark, where)
        seen.partition, seen.log, seen.truncations = partition, log, log.truncation_count
        seen.leads, seen.epoch = partition.leads, partition.leader_epoch
        seen.watermark, seen.end = watermark, end
        seen.last_epoch = log.leader_epochs.latest
        return True

    def _look_at_cut(self, partition: Partition, seen: Seen, where: str) -> None:
        record = self._store.partitions.get((partition.topic, partition.index))
        must(
            record is None or record.unclean_leader_epoch > seen.last_epoch,
            f"{where}: cut below its watermark {seen.watermark}, to {partition.high_watermark}: {record}",
        )

    @staticmethod
    def _boundary(history: History, end: int) -> int:
        """The last place up to `end` where a committed batch ends."""
        while end > 0 and end not in history.positions:
            end -= 1
        return end

    def _look_at_leader(
        self, machine: Machine, partition: Partition, seen: Seen, history: History, where: str
    ) -> None:
        epoch = partition.leader_epoch
        owner = history.leaders.setdefault(epoch, machine)
        must(owner is machine, f"{where}: leads epoch {epoch}, as {owner} did")
        log = partition.log
        if seen.partition is partition and seen.log is not log:
            must(seen.end <= log.log_end_offset, f"{where}: the log is shorter after a move")
        elif seen.partition is partition and seen.leads and seen.epoch == epoch:
            must(
                seen.watermark <= partition.high_watermark,
                f"{where}: the leader's watermark goes back from {seen.watermark}",
            )
            must(
                seen.end <= log.log_end_offset and seen.truncations == log.truncation_count,
                f"{where}: the leader's log is cut",
            )
        if partition.high_watermark > history.end:
            if seen.verified < history.end:
                self._verify(seen, log, history, history.end, where)
            added = log_bytes(log, history.end, partition.high_watermark)
            history.extend(added, partition.high_watermark)

    def _verify(self, seen: Seen, log: PartitionLog, history: History, end: int, where: str) -> None:
        """The log must be what was committed, up to `end`."""
        if seen.verified >= end:
            return
        must(log.log_end_offset >= end, f"{where}: {end} was committed, the log ends at {log.log_end_offset}")
        must(
            log_bytes(log, seen.verified, end) == history.between(seen.verified, end),
            f"{where}: other bytes than were committed, between {seen.verified} and {end}",
        )
        seen.verified = end

    def _check_isr(self, key: tuple[str, int]) -> None:
        record = self._store.partitions.get(key)
        topic_id = self._store.topics.get(key[0])
        if record is None or topic_id is None:
            return
        history = self.histories.get((topic_id, key[1]))
        if history is None or not history.end:
            return
        for node_id in (*record.isr, *record.elr):
            machine = self._machines[node_id]
            registered = self._store.brokers.get(node_id)
            if registered is None or not machine.open:
                continue
            me = machine.broker.metadata._me
            if me is None or me.incarnation != registered.incarnation:
                continue  # another life than the one that is in sync
            directory = record.directories[record.replicas.index(node_id)]
            if directory not in registered.directories or key in machine.broker.replicas.offline:
                continue  # what is counted on is in a directory that is away, or has failed
            partition = machine.broker.replicas.replica(*key)
            if partition is None or partition.topic_id != topic_id:
                where = f"{history.name} on {node_id}"
                must(not history.end, f"{where}: in sync without a log, {history.end} was committed")
                continue
            seen = self._seen.setdefault((node_id, topic_id, key[1]), Seen())
            if seen.partition is partition and seen.truncations == partition.log.truncation_count:
                self._verify(
                    seen, partition.log, history, history.end, f"{history.name} in sync on {node_id}"
                )

    def _check_acknowledged(self, told: Acknowledgement) -> None:
        history = self.histories.get(told.place)
        must(
            history is not None and history.has_batch(told.base_offset, told.producer_id, told.sequence),
            f"acknowledged but not committed: {told} (committed up to {history.end if history else 0})",
        )
        self.acknowledged_count += 1
