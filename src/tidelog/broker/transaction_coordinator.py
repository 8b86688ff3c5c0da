"""The transaction coordinator of a node: one `TransactionMachine` for each led partition of
`__transaction_state`.

It carries out the machines' effects: appends to the partition's log, answers parked requests, sets timers,
writes markers. It loads a machine by replaying the log when the node becomes leader, which also completes
what was decided before, and lets it go when it is leader no more. A transactional id belongs to partition
`hash(id) mod partitions`, with Java's string hash, as in every Kafka.
"""

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from tidelog.broker.group_coordinator import ReplicationWait, coordinator_partition
from tidelog.broker.transaction_markers import Marker, write_marker
from tidelog.controller.commands import CreateTopics
from tidelog.controller.internal_topics import internal_topic
from tidelog.model.effects import Append, CancelTimer, Effect, Event, Reply, Send, SetTimer
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.identifiers import TRANSACTION_STATE_TOPIC, TopicPartition
from tidelog.model.settings import BrokerSettings
from tidelog.protocol.api_versions import Feature
from tidelog.records.record import Record
from tidelog.records.stored_fields import UnreadableRecord
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
from tidelog.transactions.settings import TransactionSettings

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.partition import Partition

log = logging.getLogger(__name__)

Answer = Callable[[Mapping[str, object]], None]
Results = Mapping[TopicPartition, ErrorCode]
MakeCommand = Callable[[int], Command]

LOAD_RECORDS_PER_TURN = 5_000
"""How many records are replayed before the event loop gets its turn."""

TRANSACTION_VERSION = "transaction.version"
TRANSACTION_VERSION_FEATURE = Feature(0, 2, 2)
"""Every transaction has an epoch of its own, and partitions are verified (KIP-890)."""


def transaction_settings(settings: BrokerSettings) -> TransactionSettings:
    return TransactionSettings(
        transaction_max_timeout_ms=settings.get_int("transaction.max.timeout.ms"),
        transactional_id_expiration_ms=settings.get_int("transactional.id.expiration.ms"),
        transaction_version=TRANSACTION_VERSION_FEATURE.finalized_level,
    )


class _Shard:
    """One led partition: its machine, and what is left to load."""

    __slots__ = ("loading", "machine", "partition", "timers")

    def __init__(
        self, partition: "Partition", machine: TransactionMachine, records: Iterator[Record]
    ) -> None:
        self.partition = partition
        self.machine = machine
        self.loading: Iterator[Record] | None = records
        self.timers: set[Hashable] = set()


class TransactionCoordinator:
    """Runs the machines of the partitions this node leads."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._settings_source = broker.settings
        self._settings = transaction_settings(broker.settings)
        self._shards: dict[int, _Shard] = {}
        self._answers: dict[int, Answer] = {}
        self._next_token = 0
        self._verifies = broker.settings.get_bool("transaction.partition.verification.enable")

    def __repr__(self) -> str:
        return f"<TransactionCoordinator partitions={len(self._shards)} waiting={len(self._answers)}>"

    # ------------------------------------------------------------ life cycle, called by the broker

    def load(self, partition_index: int) -> None:
        """This node leads the partition now: replay its log, complete what was decided, then serve it."""
        partition = self._broker.partition(TRANSACTION_STATE_TOPIC, partition_index)
        if partition is None or partition_index in self._shards:
            return
        machine = TransactionMachine(partition_index, partition.leader_epoch, self._settings)
        shard = _Shard(partition, machine, partition.read_records(0))
        if not self._shards:
            self._schedule_ticks()
        self._shards[partition_index] = shard
        if partition.log.log_end_offset == 0:
            self._load_some(shard)
            return
        # Not in this turn: while a broker starts, the partitions that wait for markers may not be open yet.
        now_ms = self._broker.clock.now_ms()
        self._broker.timers.set(
            ("transaction load", partition_index), now_ms, partial(self._load_some, shard)
        )

    def _load_some(self, shard: _Shard) -> None:
        if shard.loading is None or self._shards.get(shard.machine.partition) is not shard:
            return
        taken = 0
        for record in islice(shard.loading, LOAD_RECORDS_PER_TURN):
            taken += 1
            if record.key is None:
                continue
            try:
                shard.machine.apply(record.key, record.value)
            except UnreadableRecord as fault:
                log.warning("%s: record %d left out: %s", shard.partition, record.offset, fault)
        now_ms = self._broker.clock.now_ms()
        if taken == LOAD_RECORDS_PER_TURN:
            self._broker.timers.set(
                ("transaction load", shard.machine.partition), now_ms, partial(self._load_some, shard)
            )
            return
        shard.loading = None
        self._run(shard, shard.machine.loaded(now_ms))

    def unload(self, partition_index: int) -> None:
        """This node leads the partition no more: everyone who waits is sent elsewhere."""
        shard = self._shards.pop(partition_index, None)
        if shard is None:
            return
        for key in shard.timers:
            self._broker.timers.cancel(("transaction", partition_index, key))
        shard.timers.clear()
        self._broker.timers.cancel(("transaction load", partition_index))
        for effect in shard.machine.resign(self._broker.clock.now_ms()):
            if isinstance(effect, Reply):
                self._answer(effect)
        if not self._shards:
            self._broker.timers.cancel("transaction timeouts")
            self._broker.timers.cancel("transactional id expiry")

    def create_state_topic(self, then: Callable[[], None]) -> None:
        """Ask the controller for `__transaction_state`; `then` runs when it has answered."""
        broker = self._broker
        spec = internal_topic(TRANSACTION_STATE_TOPIC, broker.settings, max(1, len(broker.image.brokers)))
        broker.metadata.submit(CreateTopics((spec,)), lambda _: then())

    # ------------------------------------------------------------ ticks

    def _schedule_ticks(self) -> None:
        self._schedule("transaction timeouts", self.abort_timed_out, _ABORT_INTERVAL)
        self._schedule("transactional id expiry", self.expire_transactional_ids, _EXPIRY_INTERVAL)

    def _schedule(self, key: str, tick: Callable[[], None], interval_setting: str) -> None:
        interval_ms = self._broker.settings.get_int(interval_setting)
        self._broker.timers.set(key, self._broker.clock.now_ms() + interval_ms, tick)

    def abort_timed_out(self) -> None:
        """Abort transactions that took longer than their producers said."""
        self._tick(AbortTimedOut())
        self._schedule("transaction timeouts", self.abort_timed_out, _ABORT_INTERVAL)

    def expire_transactional_ids(self) -> None:
        """Forget ids that nobody used for `transactional.id.expiration.ms`."""
        self._tick(ExpireTransactionalIds())
        self._schedule("transactional id expiry", self.expire_transactional_ids, _EXPIRY_INTERVAL)

    def _tick(self, command: Command) -> None:
        for shard in list(self._shards.values()):
            if shard.loading is None:
                self._handle(shard, command)

    # ------------------------------------------------------------ asking, called by handlers

    def partition_for(self, transactional_id: str) -> int:
        topic = self._broker.image.topics.get(TRANSACTION_STATE_TOPIC)
        count = len(topic.partitions) if topic is not None and topic.partitions else 0
        return coordinator_partition(
            transactional_id, count or self._broker.settings.get_int("transaction.state.log.num.partitions")
        )

    def machine_for(self, transactional_id: str) -> TransactionMachine | ErrorCode:
        """The machine of a transactional id, to look at; or why there is none here."""
        shard = self._shards.get(self.partition_for(transactional_id))
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if shard.loading is not None else shard.machine

    def machines(self) -> list[TransactionMachine] | ErrorCode:
        """Every machine of this node, to look at."""
        if any(shard.loading is not None for shard in self._shards.values()):
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return [shard.machine for shard in self._shards.values()]

    def ask(self, transactional_id: str, make_command: MakeCommand, answer: Answer) -> ErrorCode:
        """Hand a command to the id's machine; `answer` is called once, perhaps at once.

        `make_command` builds it for a token. An error other than NONE means that nothing was asked.
        """
        shard = self._shards.get(self.partition_for(transactional_id))
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        if shard.loading is not None:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        token = self._next_token
        self._next_token += 1
        self._answers[token] = answer
        self._submit(shard, make_command(token))
        return ErrorCode.NONE

    def verify_or_add(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: frozenset[TopicPartition],
        client_version: int,
        answer: Callable[[Results], None],
    ) -> None:
        """Before a transactional write (KIP-890): add the partitions to the transaction for producers of
        transactions v2; of others, check that they were added.
        """
        machine = self.machine_for(transactional_id)
        if isinstance(machine, ErrorCode):
            answer(dict.fromkeys(partitions, machine))
        elif client_version < 2:
            if self._verifies:
                answer(machine.verify(transactional_id, producer_id, producer_epoch, partitions))
            else:
                answer(dict.fromkeys(partitions, ErrorCode.NONE))
        else:

            def added(response: Mapping[str, object]) -> None:
                error = response["error_code"]
                assert isinstance(error, ErrorCode)
                answer(dict.fromkeys(partitions, error))

            self.ask(
                transactional_id,
                lambda token: AddPartitions(
                    token, transactional_id, producer_id, producer_epoch, partitions, client_version
                ),
                added,
            )

    # ------------------------------------------------------------ carrying effects out

    def _submit(self, shard: _Shard, command: Command) -> None:
        """Handle a command, after fetching a producer id for it where it needs one."""
        if not isinstance(command, InitProducerId | EndTransaction) or not shard.machine.needs_producer_id(
            command
        ):
            self._handle(shard, command)
            return
        asked = command

        def give(producer_id: int | None) -> None:
            if self._shards.get(shard.machine.partition) is not shard:
                refused = {"error_code": ErrorCode.NOT_COORDINATOR, "producer_id": -1, "producer_epoch": -1}
                self._answer(Reply(asked.token, refused))
                return
            self._handle(shard, replace(asked, spare_producer_id=producer_id))

        self._broker.producer_ids.take(give)

    def _handle(self, shard: _Shard, command: Command) -> None:
        if self._broker.settings is not self._settings_source:
            self._adopt_settings()
        self._run(shard, shard.machine.handle(command, self._broker.clock.now_ms()))

    def _adopt_settings(self) -> None:
        self._settings_source = self._broker.settings
        self._settings = transaction_settings(self._settings_source)
        self._verifies = self._settings_source.get_bool("transaction.partition.verification.enable")
        for shard in self._shards.values():
            shard.machine.reconfigure(self._settings)

    def _run(self, shard: _Shard, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Reply():
                    self._answer(effect)
                case Append():
                    self._append(shard, effect)
                case Send():
                    assert isinstance(effect.message, MarkersToWrite)
                    self._write_markers(shard, effect.message)
                case SetTimer():
                    self._set_timer(shard, effect)
                case CancelTimer():
                    shard.timers.discard(effect.key)
                    self._broker.timers.cancel(("transaction", shard.machine.partition, effect.key))
                case Event():
                    log.info("%s %s (%s)", effect.kind, dict(effect.fields), effect.cause)

    def _answer(self, reply: Reply) -> None:
        self._answers.pop(reply.token)(reply.response)

    def _append(self, shard: _Shard, effect: Append) -> None:
        broker, machine, partition = self._broker, shard.machine, shard.partition
        now_ms = broker.clock.now_ms()
        outcome = partition.append_internal(effect.records, now_ms)
        if isinstance(outcome, Refused):
            log.warning("%s: %s", partition, outcome.message)
            self._run(shard, machine.append_refused(effect.token, outcome.code, now_ms))
            return
        if partition.waiters and not partition.progressing:
            broker.note_progress(partition)
        self._run(shard, machine.wrote(effect.token, outcome, now_ms))
        end_offset = outcome + len(effect.records)
        if partition.high_watermark >= end_offset:
            self._run(shard, machine.appended(effect.token, now_ms))
        else:
            self._await_replication(shard, effect.token, end_offset)

    def _await_replication(self, shard: _Shard, token: int, end_offset: int) -> None:
        """Wait for the replicas; past the request timeout the callers get an error, and we wait on."""
        broker, machine, partition = self._broker, shard.machine, shard.partition

        def verdict(replicated: bool) -> None:
            if self._shards.get(machine.partition) is not shard:
                return
            now_ms = broker.clock.now_ms()
            if replicated:
                self._run(shard, machine.appended(token, now_ms))
            else:
                self._run(shard, machine.append_refused(token, ErrorCode.REQUEST_TIMED_OUT, now_ms))
                self._await_replication(shard, token, end_offset)

        deadline_ms = broker.clock.now_ms() + broker.settings.get_int("offsets.commit.timeout.ms")
        broker.parking.park(ReplicationWait(partition, end_offset, verdict), (partition,), deadline_ms)

    def _write_markers(self, shard: _Shard, message: MarkersToWrite) -> None:
        """Every partition is led here so far; one led elsewhere answers NOT_LEADER_OR_FOLLOWER, and the
        machine sends again.
        """
        marker = Marker(
            message.producer_id,
            message.producer_epoch,
            message.committed,
            message.coordinator_epoch,
            message.transaction_version,
        )
        results = {place: write_marker(self._broker, place, marker) for place in sorted(message.partitions)}
        failed = {str(place): error.name for place, error in results.items() if error}
        if failed:
            log.warning("markers of %s: %s", message.transactional_id, failed)
        self._handle(
            shard,
            MarkersWritten(message.transactional_id, message.producer_id, message.producer_epoch, results),
        )

    def _set_timer(self, shard: _Shard, effect: SetTimer) -> None:
        shard.timers.add(effect.key)
        self._broker.timers.set(
            ("transaction", shard.machine.partition, effect.key),
            effect.deadline_ms,
            partial(self._fired, shard, effect.key),
        )

    def _fired(self, shard: _Shard, key: Hashable) -> None:
        shard.timers.discard(key)
        self._handle(shard, TimerFired(key))


_ABORT_INTERVAL = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
_EXPIRY_INTERVAL = "transaction.remove.expired.transaction.cleanup.interval.ms"
