"""The transaction coordinator of a node: one `TransactionMachine` for each led partition of
`__transaction_state`.

A transactional id belongs to partition `hash(id) mod partitions`, with Java's string hash, as in every Kafka.
`coordinator_runtime` carries the machines' effects out; this adds markers and producer ids. Loading completes
what was decided before. A machine serves when all it loaded is replicated, for a marker must not be written
on the word of a record that may be lost.
"""

import logging
from collections.abc import Callable, Hashable
from dataclasses import replace

from tidelog.broker.coordinators.coordinator_runtime import CoordinatorRuntime, LogEntry, Shard
from tidelog.broker.coordinators.internal_topic import InternalTopic
from tidelog.broker.coordinators.marker import Marker
from tidelog.broker.coordinators.replicated_appends import ReplicatedAppends
from tidelog.broker.coordinators.transaction_markers import MarkerSender, Results
from tidelog.broker.metadata.producer_ids import ProducerIds
from tidelog.broker.replicas.partition import Partition
from tidelog.broker.runtime.background_jobs import BackgroundJobs
from tidelog.broker.runtime.features import TRANSACTION_VERSION_FEATURE
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.metrics import Metrics
from tidelog.broker.runtime.timers import Timers
from tidelog.model.effects import Reply
from tidelog.model.errors import ErrorCode
from tidelog.model.ports import Clock
from tidelog.model.settings import BrokerSettings
from tidelog.transactions import arguments
from tidelog.transactions.commands import (
    AbortTimedOut,
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

log = logging.getLogger(__name__)

_ABORT_TICK = "transaction timeouts"
_ABORT_INTERVAL = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
_EXPIRY_TICK = "transactional id expiry"
_EXPIRY_INTERVAL = "transaction.remove.expired.transaction.cleanup.interval.ms"


def transaction_settings(settings: BrokerSettings) -> TransactionSettings:
    return TransactionSettings(
        transaction_max_timeout_ms=settings.get_int("transaction.max.timeout.ms"),
        two_phase_commit_enable=settings.get_bool("transaction.two.phase.commit.enable"),
        transactional_id_expiration_ms=settings.get_int("transactional.id.expiration.ms"),
        transaction_version=TRANSACTION_VERSION_FEATURE.finalized_level,
        add_partitions_wait_ms=settings.get_int("add.partitions.to.txn.retry.backoff.ms"),
    )


class TransactionCoordinator(CoordinatorRuntime[TransactionMachine, Command]):
    """Runs the machines of the partitions this node leads."""

    kind = "transaction"

    def __init__(
        self,
        topic: InternalTopic,
        appends: ReplicatedAppends,
        settings: LiveSettings,
        clock: Clock,
        timers: Timers,
        jobs: BackgroundJobs,
        metrics: Metrics,
        *,
        producer_ids: ProducerIds,
        markers: MarkerSender,
    ) -> None:
        super().__init__(topic, appends, settings, clock, timers, jobs, metrics.events)
        self._metrics = metrics
        self._producer_ids = producer_ids
        self._markers = markers
        self._settings = transaction_settings(settings.current)
        #: called with the machine of every partition that is served from now on
        self.on_taken_over: list[Callable[[TransactionMachine], None]] = []

    def _new_machine(self, partition: Partition) -> TransactionMachine:
        return TransactionMachine(partition.index, partition.leader_epoch, self._settings)

    def _loads_at_once(self, partition: Partition) -> bool:
        # While a broker starts, the partitions that wait for markers may not be open yet.
        return partition.log.log_end_offset == 0

    def _same_leader(self, shard: Shard[TransactionMachine]) -> None:
        shard.machine.coordinator_epoch = shard.partition.leader_epoch

    def _taken_over(self, shard: Shard[TransactionMachine]) -> None:
        for listener in self.on_taken_over:
            listener(shard.machine)

    def _apply(self, machine: TransactionMachine, entry: LogEntry) -> None:
        record, _, ended = entry
        if ended is None and record.key is not None:
            machine.apply(record.key, record.value)

    def _refusal(self, command: Command) -> Reply | None:
        return arguments.refusal(command, self._settings)

    def _timer_command(self, key: Hashable) -> Command:
        return TimerFired(key)

    def _adopt_settings(self) -> None:
        self._settings = transaction_settings(self._settings_source)
        for shard in self._shards.values():
            shard.machine.reconfigure(self._settings)

    # ------------------------------------------------------------ ticks

    def _start_ticks(self) -> None:
        self._schedule(_ABORT_TICK, self.abort_timed_out, _ABORT_INTERVAL)
        self._schedule(_EXPIRY_TICK, self.expire_transactional_ids, _EXPIRY_INTERVAL)

    def _stop_ticks(self) -> None:
        for key in (_ABORT_TICK, _EXPIRY_TICK):
            self._jobs.cancel(key)

    def abort_timed_out(self) -> None:
        """Abort transactions that took longer than their producers said."""
        self._tick(AbortTimedOut())

    def expire_transactional_ids(self) -> None:
        """Forget ids that nobody used for `transactional.id.expiration.ms`."""
        self._tick(ExpireTransactionalIds())

    # ------------------------------------------------------------ carrying effects out

    def _submit(self, shard: Shard[TransactionMachine], command: Command) -> None:
        """Handle a command, after fetching a producer id for it where it needs one."""
        if not isinstance(command, InitProducerId | EndTransaction) or not shard.machine.needs_producer_id(
            command
        ):
            self._handle(shard, command)
            return
        asked = command

        def give(producer_id: int | None) -> None:
            if not self._leads(shard):
                refused = {"error_code": ErrorCode.NOT_COORDINATOR, "producer_id": -1, "producer_epoch": -1}
                self._answer(Reply(asked.token, refused))
                return
            self._handle(shard, replace(asked, spare_producer_id=producer_id))

        self._producer_ids.take(give)

    def _send(self, shard: Shard[TransactionMachine], message: object) -> None:
        assert isinstance(message, MarkersToWrite)
        self._metrics.transactions_decided[message.committed] += 1
        marker = Marker(
            message.producer_id,
            message.producer_epoch,
            message.committed,
            message.coordinator_epoch,
            message.transaction_version,
        )

        def written(results: Results) -> None:
            if not self._leads(shard):
                return
            failed = {str(place): error.name for place, error in results.items() if error}
            if failed:
                log.warning("markers of %s: %s", message.transactional_id, failed)
            command = MarkersWritten(
                message.transactional_id, message.producer_id, message.producer_epoch, results
            )
            self._handle(shard, command)

        self._markers.send(marker, message.partitions, written)
