"""A world in one thread and from one seed: producers, partitions, a log, one transaction coordinator.

Requests and answers are lost, late and (for transactions v2, which must bear it) doubled; producers pause
past their timeout and come back as zombies, or are replaced; appends are refused or replicated late; the
coordinator crashes and loses the unreplicated tail of its log, or part of it; markers and their answers are
lost. After every step `check` looks at what must hold; a `Broken` says what did not. When the faults end
every transaction must be decided and a new producer of every id must get through.

Producers before transactions v2 rely on the order of their connection, as in Kafka: a request of theirs that
is overtaken by the next one is dropped here, and so is a marker of theirs after the transaction's end.

Producers have several batches in flight. They go through the queues that brokers really use
(`transactional_writes`); the coordinator is on the same broker or on another, which takes its time to answer
or does not. Two brokers take turns in leading the partitions, each with queues of its own. A producer that
nobody replaced and that was not too slow must never be told that it is fenced, unknown or, with its first
batch in flight, out of order.
"""

import functools
import hashlib
import heapq
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tests.simulation.transaction_producers import PLACES, TIMEOUT_MS, Broken, Producer, Write, must
from tidelog.broker.coordinators import transactional_writes
from tidelog.broker.coordinators.transaction_guards import TRANSACTIONS_V2, Guards
from tidelog.broker.coordinators.transaction_verification import Asked
from tidelog.broker.coordinators.transactional_writes import ProducerKey, TransactionalWrites
from tidelog.model.effects import Append, CancelTimer, Effect, Reply, Send, SetTimer
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.identifiers import TopicPartition
from tidelog.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader
from tidelog.storage.producer_state import Duplicate, ProducerState
from tidelog.transactions.commands import (
    AbortTimedOut,
    AddPartitions,
    Command,
    EndTransaction,
    ExpireTransactionalIds,
    InitProducerId,
    MarkersToWrite,
    MarkersWritten,
    TimerFired,
)
from tidelog.transactions.machine import TransactionMachine
from tidelog.transactions.schemas import read_key, read_value, transaction_key, transaction_value
from tidelog.transactions.settings import TransactionSettings
from tidelog.transactions.states import TransactionState
from tidelog.transactions.transaction import Transaction, new_transaction

FAULTS_MS = 10_000
SETTLE_MS = 12_000
TICK_MS = 700
ANSWER_MS = 900
QUESTION_MS = 2_000
SETTINGS = TransactionSettings(transactional_id_expiration_ms=4_000, marker_retry_ms=150)
REFUSALS = (
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
)


@dataclass(frozen=True)
class Entry:
    """A batch of one record, or a marker (`committed` is not None)."""

    producer_id: int
    producer_epoch: int
    label: int | None
    committed: bool | None = None


class Partition:
    """One partition's log, with the producer state that brokers really use."""

    def __init__(self, world: "TransactionWorld", place: TopicPartition) -> None:
        self.world = world
        self.place = place
        self.leader = world.brokers[0]
        self.leader_epoch = 0
        self.entries: list[Entry] = []
        self.producers = ProducerState()
        self.aborted: list[tuple[int, int, int]] = []
        self.last_stable_offset = 0
        self.visible: list[int] = []
        """The transactions of the records that read_committed consumers see, in order."""

    def append(self, write: Write) -> ErrorCode:
        header = _header(write.producer_id, write.producer_epoch, write.sequence, TRANSACTIONAL_BIT)
        verdict = self.producers.check(header)
        if isinstance(verdict, Duplicate):
            return ErrorCode.NONE
        if isinstance(verdict, Refused):
            return verdict.code
        self.world.check_accepted(write)
        self.producers.update(header, len(self.entries), self.world.now_ms)
        self.entries.append(Entry(write.producer_id, write.producer_epoch, write.label))
        self.move_on()
        return ErrorCode.NONE

    def append_marker(self, message: MarkersToWrite) -> ErrorCode:
        header = _header(message.producer_id, message.producer_epoch, -1, TRANSACTIONAL_BIT | CONTROL_BIT)
        refused = self.producers.check_marker(
            header, message.coordinator_epoch, transaction_version=message.transaction_version
        )
        if refused is not None:
            return refused.code
        offset = len(self.entries)
        completed = self.producers.complete_transaction(
            message.producer_id,
            message.producer_epoch,
            message.coordinator_epoch,
            offset,
            aborted=not message.committed,
            now_ms=self.world.now_ms,
        )
        if completed is not None and completed.aborted:
            self.aborted.append((completed.producer_id, completed.first_offset, completed.last_offset))
        self.entries.append(Entry(message.producer_id, message.producer_epoch, None, message.committed))
        self.leader.marked(self.place, message)
        self.move_on()
        return ErrorCode.NONE

    def move_on(self) -> None:
        self.producers.advance_high_watermark(len(self.entries))
        unstable = self.producers.first_unstable_offset
        stable = len(self.entries) if unstable is None else unstable
        must(stable >= self.last_stable_offset, f"{self.place}: the last stable offset went back")
        newly_stable = range(self.last_stable_offset, stable)
        self.last_stable_offset = stable
        for offset in newly_stable:
            label = self._visible_at(offset)
            if label is not None:
                self.visible.append(label)
                must(
                    self.world.decided(label) is True,
                    f"{self.place}: record of transaction {label} is visible, which is not committed",
                )

    def _visible_at(self, offset: int) -> int | None:
        """The transaction whose record a read_committed consumer sees here, worked out as clients do."""
        entry = self.entries[offset]
        for producer_id, first, last in reversed(self.aborted):
            if producer_id == entry.producer_id and first <= offset < last:
                return None
        return entry.label


def _header(producer_id: int, producer_epoch: int, sequence: int, attributes: int) -> BatchHeader:
    return BatchHeader(0, 0, 0, 2, 0, attributes, 0, 0, 0, producer_id, producer_epoch, sequence, 1)


class PartitionLeader:
    """A broker that leads some of the partitions: what it keeps of their producers, and what it asks."""

    def __init__(self, world: "TransactionWorld") -> None:
        self.world = world
        self.guards = Guards()
        self.writes = TransactionalWrites(self)

    def write(self, write: Write, answer: Callable[[ErrorCode], None]) -> None:
        def append(refused: Mapping[TopicPartition, ErrorCode]) -> None:
            partition = self.world.partitions[write.place]
            led = ErrorCode.NONE if partition.leader is self else ErrorCode.NOT_LEADER_OR_FOLLOWER
            answer(refused.get(write.place) or led or partition.append(write))

        key = ProducerKey(write.transactional_id, write.producer_id, write.producer_epoch)
        sequences = {write.place: write.sequence}
        self.writes.submit(transactional_writes.Write(key, sequences, write.client_version, append))

    def marked(self, place: TopicPartition, marker: MarkersToWrite) -> None:
        self.guards.transaction_ended(
            place, marker.producer_id, marker.producer_epoch, marker.transaction_version
        )
        self.writes.transaction_ended(place, marker.producer_id)

    # What the queues need of a broker.

    def monotonic_ms(self) -> int:
        return self.world.now_ms

    def set_after(self, key: object, delay_ms: int, callback: Callable[[], None]) -> None:
        self.world.at(delay_ms, callback)

    def retry_ms(self) -> tuple[int, int]:
        return 20, 100

    def producers(self, place: TopicPartition) -> ProducerState | None:
        partition = self.world.partitions[place]
        return partition.producers if partition.leader is self else None

    def leader_epoch(self, place: TopicPartition) -> int:
        partition = self.world.partitions[place]
        return partition.leader_epoch if partition.leader is self else -1

    def verify_or_add(
        self, asked: Asked, answer: Callable[[Mapping[TopicPartition, ErrorCode]], None]
    ) -> None:
        """Ask the coordinator here, or on another broker; a marker meanwhile makes its word worth nothing."""
        _, producer_id, producer_epoch, places, _ = asked
        guards = {
            place: self.guards.set(place, producer_id, producer_epoch, self.leader_epoch(place))
            for place in places
        }
        ended = False

        def end(results: Mapping[TopicPartition, ErrorCode]) -> None:
            nonlocal ended
            if ended:
                return
            ended = True
            answer(
                {
                    place: self.guards.end(
                        place, producer_id, guard, results[place], self.leader_epoch(place)
                    )
                    for place, guard in guards.items()
                }
            )

        self.world.ask_about(asked, end)


class TransactionWorld:
    """Everything there is, and the order in which it happens."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ms = 0
        self.faulty = True
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._serial = 0
        self._trace = hashlib.sha256()
        self.brokers = (PartitionLeader(self), PartitionLeader(self))
        self.partitions = {place: Partition(self, place) for place in PLACES}
        self.log: list[tuple[bytes, bytes | None]] = []
        self.decisions: dict[int, tuple[int, bool]] = {}
        """Where in the log each transaction was decided, and whether it commits."""
        self.replicated = 0
        self.coordinator_epoch = 0
        self.next_producer_id = 100
        self.next_token = 0
        self.next_label = 0
        self.next_request = 0
        self.labels: dict[tuple[int, int], int] = {}
        self.wrote_to: dict[int, dict[TopicPartition, int]] = {}
        self.outcomes: dict[int, bool] = {}
        self.processes: list[Producer] = []
        self.answers: dict[int, tuple[int, Callable[[dict[str, Any]], None]]] = {}
        self.timers: dict[Any, int] = {}
        self.disturbed: dict[str, int] = {}
        """How often something happened to an id that its producer may be fenced for."""
        self.versions = {"v1": 0, "v2": 2, "v2-worn": 2, "v1-worn": 0, "v1-left": 0, "v2-left": 2}
        self._store_worn_ids()
        self.machine = self._new_machine()
        self._replayed = TransactionMachine(0, 0, SETTINGS)
        self._replayed_epoch = -1
        self._replayed_to = 0

    def _store_worn_ids(self) -> None:
        """Ids whose epochs are nearly used up, from an earlier life."""
        for name in ("v2-worn", "v1-worn"):
            worn = replace(
                new_transaction(name, self.next_producer_id, TIMEOUT_MS, 0),
                producer_epoch=32_762 + self.random.randrange(4),
            )
            self.next_producer_id += 1
            self.log.append((transaction_key(name), transaction_value(worn, 1)))
        self.replicated = len(self.log)

    # ------------------------------------------------------------ time

    def at(self, delay_ms: int, what: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._events, (self.now_ms + delay_ms, self._serial, what))

    def simulate(self) -> str:
        """Run to the end; return a digest of everything that happened."""
        for name in self.versions:
            self.start_producer(name)
        self.at(TICK_MS, self.tick)
        self.at(self.random.randrange(3_000), self.misfortune)
        self.at(self.random.randrange(1_000), self.lead_elsewhere)
        self._run_until(FAULTS_MS)
        self.faulty = False
        for producer in self.processes:
            producer.stopped = True
        # Some ids get no producer any more: what is open there has to time out.
        last = [self.start_producer(name, "last") for name in self.versions if "left" not in name]
        self._run_until(FAULTS_MS + SETTLE_MS)
        for producer in last:
            must(producer.committed > 0, f"{producer.name} could not commit after the faults")
            producer.stopped = True
        self._run_until(FAULTS_MS + SETTLE_MS + TIMEOUT_MS + 4 * TICK_MS)
        self.check_end()
        return self._trace.hexdigest()

    def _run_until(self, end_ms: int) -> None:
        while self._events and self._events[0][0] <= end_ms:
            self.now_ms, _, what = heapq.heappop(self._events)
            what()
            self.check()
        self.now_ms = end_ms

    def tick(self) -> None:
        before = dict(self.machine.transactions)
        self.handle(AbortTimedOut())
        if self.random.random() < 0.3:
            self.handle(ExpireTransactionalIds())
        for name, transaction in before.items():
            if self.machine.transactions.get(name) != transaction:
                self._disturb(name)
        self.at(TICK_MS, self.tick)

    def misfortune(self) -> None:
        if not self.faulty:
            return
        if self.random.random() < 0.5:
            self.crash()
        else:
            self.start_producer(self.random.choice(list(self.versions)), "rival")
        self.at(self.random.randrange(200, 3_000), self.misfortune)

    # ------------------------------------------------------------ producers

    def start_producer(self, transactional_id: str, kind: str = "first") -> Producer:
        name = f"{kind}-{len(self.processes)}"
        producer = Producer(self, name, transactional_id, self.versions[transactional_id])
        self.processes.append(producer)
        self.resume(producer, None)
        return producer

    def resume(self, producer: Producer, value: Any) -> None:
        if producer.stopped:
            return
        try:
            wanted = producer.steps.send(value)
        except StopIteration:
            self._stopped(producer)
            return
        kind, what = wanted
        if kind == "sleep":
            self.at(what, lambda: self.resume(producer, None))
        else:
            self.request(producer, kind, what)

    def _stopped(self, producer: Producer) -> None:
        """Its process ended. While there are faults another follows; the last one tries until it commits."""
        if self.faulty:
            producer.stopped = True
            self.at(
                self.random.randrange(50, 800),
                lambda: self._succeed(producer),
            )
        elif not producer.committed:
            producer.steps = producer.script()
            self.at(100, lambda: self.resume(producer, None))

    def _succeed(self, producer: Producer) -> None:
        if self.faulty:
            self.start_producer(producer.transactional_id, "next")

    def request(self, producer: Producer, kind: str, what: Any) -> None:
        self.next_request += 1
        number = self.next_request
        producer.waiting = number

        def answer(response: Any) -> None:
            if kind == "coordinator":
                response["disturbed"] = self.disturbed.get(producer.transactional_id, 0)
            if not self.lost():
                self.at(self.delay(), lambda: resume(response))

        def resume(response: Any) -> None:
            if producer.waiting == number:
                producer.waiting = 0
                self.resume(producer, response)

        def arrive() -> None:
            if producer.version < TRANSACTIONS_V2:
                if number < producer.last_delivered or producer.waiting != number:
                    return
                producer.last_delivered = number
            if kind == "coordinator":
                self.ask(what, answer)
            else:
                self._write_all(what, answer)

        if not self.lost():
            self.at(self.delay(), arrive)
        if self.faulty and producer.version >= TRANSACTIONS_V2 and self.random.random() < 0.08:
            self.at(self.random.randrange(2_500), arrive)
        self.at(ANSWER_MS, lambda: resume(None))

    def lost(self) -> bool:
        return self.faulty and self.random.random() < 0.06

    def delay(self) -> int:
        return self.random.randrange(1, 80 if self.faulty else 10)

    # ------------------------------------------------------------ partitions

    def _write_all(self, writes: list[Write], answer: Callable[[list[ErrorCode]], None]) -> None:
        """Requests that come over one connection, which may break between two of them; answered in order."""
        if self.faulty and self.random.random() < 0.1:
            writes = writes[: self.random.randrange(len(writes) + 1)]
        answers: list[ErrorCode | None] = [None] * len(writes)

        def answered(index: int, error: ErrorCode) -> None:
            answers[index] = error
            if None not in answers:
                answer([error for error in answers if error is not None])

        for index, write in enumerate(writes):
            leader = self.partitions[write.place].leader
            leader.write(write, functools.partial(answered, index))

    def lead_elsewhere(self) -> None:
        """A partition gets another leader, or the same one again in a new epoch."""
        if not self.faulty:
            return
        partition = self.partitions[self.random.choice(PLACES)]
        partition.leader = self.random.choice(self.brokers)
        partition.leader_epoch += 1
        self._note(f"{self.now_ms} {partition.place} is led in epoch {partition.leader_epoch}")
        self.at(self.random.randrange(10, 1_000), self.lead_elsewhere)

    def ask_about(self, asked: Asked, end: Callable[[Mapping[TopicPartition, ErrorCode]], None]) -> None:
        """A leader asks the coordinator about a transaction."""

        def arrive(later: Callable[[Callable[[], None]], None]) -> None:
            if asked.client_version < TRANSACTIONS_V2:
                results = self.machine.verify(*asked[:4])
                later(lambda: end(results))
                return

            def added(response: dict[str, Any]) -> None:
                errors = dict.fromkeys(asked.partitions, response["error_code"])
                later(lambda: end(errors))

            self.ask(lambda token: AddPartitions(token, *asked), added)

        # A coordinator that crashes answers nobody.
        self.at(QUESTION_MS, lambda: end(dict.fromkeys(asked.partitions, ErrorCode.NETWORK_EXCEPTION)))
        if self.random.random() < 0.3:
            arrive(lambda answer: answer())
        elif not self.lost():
            slow = self.faulty and self.random.random() < 0.05
            back_ms = self.random.randrange(QUESTION_MS) if slow else self.delay()
            self.at(self.delay(), lambda: arrive(lambda answer: self.at(back_ms, answer)))

    def check_accepted(self, write: Write) -> None:
        """A batch may only land in the producer's own undecided transaction, as it is on stable ground."""
        known = self._replicated_transaction(write.transactional_id)
        must(known is not None, "a batch landed whose transactional id is not known")
        assert known is not None
        if known.state is TransactionState.ONGOING:
            same = (known.producer_id, known.producer_epoch) == (write.producer_id, write.producer_epoch)
            must(same, "a fenced producer wrote")
            must(write.place in known.partitions, "a batch landed where nobody will end its transaction")
        else:
            must(known.is_prepared and write.place in known.partitions, "a batch landed in no transaction")

    def _replicated_transaction(self, transactional_id: str) -> Transaction | None:
        wanted = transaction_key(transactional_id)
        for key, value in reversed(self.log[: self.replicated]):
            if key == wanted:
                return None if value is None else read_value(transactional_id, value)
        return None

    def _deliver_markers(self, message: MarkersToWrite, machine: TransactionMachine) -> None:
        """One partition at a time, each on its own way there and back."""
        for place in sorted(message.partitions):
            copies = 1
            if self.faulty and message.transaction_version >= 2 and self.random.random() < 0.15:
                copies = 2
            for copy in range(copies):
                if not self.lost():
                    delay_ms = self.delay() + (self.random.randrange(2_000) if copy else 0)
                    self.at(delay_ms, functools.partial(self._marker_arrives, message, place, machine))

    def _marker_arrives(
        self, message: MarkersToWrite, place: TopicPartition, machine: TransactionMachine
    ) -> None:
        if message.transaction_version < 2:
            current = machine.transactions.get(message.transactional_id)
            if machine is not self.machine or current is None or not current.is_prepared:
                return
        error = (
            ErrorCode.NOT_LEADER_OR_FOLLOWER
            if self.faulty and self.random.random() < 0.1
            else self.partitions[place].append_marker(message)
        )
        if self.lost():
            return

        def answered() -> None:
            if self.machine is machine:
                self.handle(
                    MarkersWritten(
                        message.transactional_id,
                        message.producer_id,
                        message.producer_epoch,
                        {place: error},
                    )
                )

        self.at(self.delay(), answered)

    # ------------------------------------------------------------ the coordinator

    def ask(self, command: Callable[[int], Command], answer: Callable[[dict[str, Any]], None]) -> None:
        token = self.next_token
        self.next_token += 1
        self.answers[token] = (self.now_ms, answer)
        built = command(token)
        if isinstance(built, InitProducerId | EndTransaction) and self.machine.needs_producer_id(built):
            built = replace(built, spare_producer_id=self.next_producer_id)
            self.next_producer_id += 1
        if isinstance(built, InitProducerId):
            self._disturb(built.transactional_id)
        self.handle(built)

    def _disturb(self, transactional_id: str) -> None:
        self.disturbed[transactional_id] = self.disturbed.get(transactional_id, 0) + 1

    def handle(self, command: Command) -> None:
        self.run(self.machine, self.machine.handle(command, self.now_ms))

    def run(self, machine: TransactionMachine, effects: list[Effect]) -> None:
        for effect in effects:
            if machine is not self.machine:
                return
            match effect:
                case Reply():
                    self._note(f"{self.now_ms} reply {sorted(effect.response.items())}")
                    _, answer = self.answers.pop(effect.token)
                    answer(dict(effect.response))
                case Append():
                    self._append(machine, effect)
                case Send():
                    assert isinstance(effect.message, MarkersToWrite)
                    self._deliver_markers(effect.message, machine)
                case SetTimer():
                    self._set_timer(machine, effect)
                case CancelTimer():
                    self.timers.pop(effect.key, None)

    def _set_timer(self, machine: TransactionMachine, effect: SetTimer) -> None:
        self.timers[effect.key] = effect.deadline_ms
        late_ms = self.random.randrange(100) if self.faulty else 0

        def fire() -> None:
            if self.machine is machine and self.timers.get(effect.key) == effect.deadline_ms:
                del self.timers[effect.key]
                self.handle(TimerFired(effect.key))

        self.at(max(0, effect.deadline_ms - self.now_ms) + late_ms, fire)

    def _append(self, machine: TransactionMachine, effect: Append) -> None:
        if self.faulty and self.random.random() < 0.08:
            refusal = self.random.choice(REFUSALS)
            self.run(machine, machine.append_refused(effect.token, refusal, self.now_ms))
            return
        before = dict(machine.transactions)
        base_offset = len(self.log)
        effects = machine.wrote(effect.token, base_offset, self.now_ms)
        for key, value in effect.records:
            self._note(f"{self.now_ms} wrote {key!r} {value!r}")
            self._note_decision(machine, before, key)
            self.log.append((key, value))
        end_offset = len(self.log)
        self.run(machine, effects)

        def replicate() -> None:
            if self.machine is machine:
                self.replicated = max(self.replicated, end_offset)
                self.run(machine, machine.appended(effect.token, self.now_ms))

        if not self.faulty or self.random.random() < 0.5:
            replicate()
            return
        if self.random.random() < 0.15:
            timed_out = ErrorCode.REQUEST_TIMED_OUT

            def give_up() -> None:
                if self.machine is machine and self.replicated < end_offset:
                    self.run(machine, machine.append_refused(effect.token, timed_out, self.now_ms))

            self.at(100, give_up)
            self.at(self.random.randrange(101, 600), replicate)
        else:
            self.at(self.random.randrange(1, 150), replicate)

    def _note_decision(self, machine: TransactionMachine, before: dict[str, Transaction], key: bytes) -> None:
        """Which transaction a record that was just applied decides, and how."""
        name = read_key(key)
        assert name is not None
        after, was = machine.transactions.get(name), before.get(name)
        if after is None or was is None or not after.is_prepared:
            return
        label = self.labels.get((was.producer_id, was.producer_epoch))
        if label is not None:
            committed = after.state is TransactionState.PREPARE_COMMIT
            self.decisions[label] = (len(self.log), committed)

    def crash(self) -> None:
        """The coordinator is gone, and a new one loads what is left of the log."""
        kept = self.random.randrange(self.replicated, len(self.log) + 1)
        if self.random.random() < 0.3:
            kept = len(self.log)
        del self.log[kept:]
        for label in [label for label, (offset, _) in self.decisions.items() if offset >= kept]:
            del self.decisions[label]
        self.replicated = kept
        self.timers.clear()
        for token in list(self.answers):
            del self.answers[token]
        self.coordinator_epoch += 1
        self.machine = self._new_machine()
        self._note(f"{self.now_ms} crash, {kept} records kept")
        self.run(self.machine, self.machine.loaded(self.now_ms))

    def _new_machine(self) -> TransactionMachine:
        machine = TransactionMachine(0, self.coordinator_epoch, SETTINGS)
        for key, value in self.log:
            machine.apply(key, value)
        return machine

    # ------------------------------------------------------------ what producers did and were told

    def begin(self, producer: Producer) -> int:
        self.next_label += 1
        self.labels[producer.producer_id, producer.producer_epoch] = self.next_label
        self.wrote_to[self.next_label] = {}
        return self.next_label

    def acknowledged(self, label: int, place: TopicPartition) -> None:
        written = self.wrote_to[label]
        written[place] = written.get(place, 0) + 1

    def ended(self, label: int, committed: bool) -> None:
        self.outcomes[label] = committed

    def decided(self, label: int) -> bool | None:
        """How the replicated log says the transaction ended."""
        offset, committed = self.decisions.get(label, (self.replicated, False))
        return committed if offset < self.replicated else None

    # ------------------------------------------------------------ what must hold

    def check(self) -> None:
        if self._replayed_epoch != self.coordinator_epoch:
            self._replayed_epoch = self.coordinator_epoch
            self._replayed = TransactionMachine(0, 0, SETTINGS)
            self._replayed_to = 0
        if self._replayed_to < len(self.log):
            for key, value in self.log[self._replayed_to :]:
                self._replayed.apply(key, value)
            self._replayed_to = len(self.log)
            replayed, live = self._replayed.transactions, self.machine.comparable()
            if replayed != live:
                raise Broken(f"replay gives {replayed}, live is {live}")

    def check_end(self) -> None:
        must(not self.machine.undecided(), f"never decided: {self.machine.undecided()}")
        for broker in self.brokers:
            must(not broker.writes._queues, f"still waiting: {broker.writes}")
        visible: dict[int, dict[TopicPartition, int]] = {}
        for place, partition in self.partitions.items():
            must(
                partition.last_stable_offset == len(partition.entries),
                f"{place}: a transaction hangs at {partition.last_stable_offset}",
            )
            for label in partition.visible:
                counts = visible.setdefault(label, {})
                counts[place] = counts.get(place, 0) + 1
        for label, acknowledged in self.wrote_to.items():
            seen = visible.get(label, {})
            outcome = self.decided(label)
            if outcome is True:
                for place, count in acknowledged.items():
                    must(seen.get(place, 0) == count, f"transaction {label} is torn: {acknowledged}, {seen}")
            else:
                must(not seen, f"transaction {label} was not committed, but {seen} is visible")
            if label in self.outcomes and acknowledged:
                must(outcome == self.outcomes[label], f"transaction {label}: told {self.outcomes[label]}")

    def _note(self, line: str) -> None:
        self._trace.update(line.encode())
