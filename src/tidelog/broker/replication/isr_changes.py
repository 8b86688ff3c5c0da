"""Keeps the ISRs of the led partitions true: proposes to the controller who falls out and who joins.

Twice in `replica.lag.time.max.ms` every led partition is looked at for followers that do not keep up; a
follower that catches up is proposed as soon as it fetches. Proposals travel together, one message at a time:
those that come meanwhile wait for the next. Until the outcome is known a proposal stays pending, and the
watermark waits for the members of both ISRs. A change that was made is told to whoever gives replicas their
roles (`roles`), who is above.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.replicas.partition import Partition
from tidelog.broker.replicas.replicas import Replicas
from tidelog.broker.replication.controller_reports import ControllerReports, Message
from tidelog.broker.runtime.background_jobs import BackgroundJobs
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.timers import Timers
from tidelog.broker.runtime.turn import Turn
from tidelog.controller.commands import ChangeIsr, IsrChange, IsrChanged, Result
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.image import PartitionImage
from tidelog.model.ports import Clock
from tidelog.replication.leader import LeaderReplicas

log = logging.getLogger(__name__)

RETRY_MS = 200
CHECK_JOB = "ISR check"
#: the controller has certainly not made the change: another may be proposed
NOT_MADE = frozenset({ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED})
#: our idea of the partition is out of date: a newer image is on its way, and settles what is pending
OUT_OF_DATE = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_REQUEST,
    }
)


class IsrChanges:
    """The ISR changes of one broker."""

    def __init__(
        self,
        metadata: Metadata,
        replicas: Replicas,
        settings: LiveSettings,
        clock: Clock,
        timers: Timers,
        turn: Turn,
        jobs: BackgroundJobs,
        learn: Callable[[Partition, PartitionImage], None],
    ) -> None:
        """`learn` hears of led partitions whose ISR has changed, before the image shows it."""
        self._metadata = metadata
        self._replicas = replicas
        self._settings = settings
        self._clock = clock
        self._turn = turn
        self._jobs = jobs
        self._learn = learn
        self._reports = ControllerReports(metadata, timers, "isr changes", RETRY_MS, self._message)
        self._stopped = False

    def start(self) -> None:
        """Look after the ISRs from now on."""
        self._jobs.every(CHECK_JOB, lambda: max(1, self._lag_max_ms // 2), self._check)

    def stop(self) -> None:
        self._stopped = True
        self._reports.stop()

    @property
    def _lag_max_ms(self) -> int:
        return self._settings.get_int("replica.lag.time.max.ms")

    def replicas_of(self, partition: Partition, state: PartitionImage) -> LeaderReplicas:
        """What this broker knows of the followers of a partition that it begins to lead."""
        return LeaderReplicas(
            self._metadata.node_id,
            state,
            epoch_start_offset=partition.log.log_end_offset,
            now_ms=self._clock.monotonic_ms(),
            lag_max_ms=self._lag_max_ms,
            eligible=partial(self._eligible, partition.topic, partition.index),
        )

    def _eligible(self, topic: str, index: int, broker_id: int, broker_epoch: int) -> bool:
        """Whether the controller would take a follower into the ISR, as far as the image tells."""
        image = self._metadata.image
        found = image.alive_brokers.get(broker_id)
        if found is None or not found.active or broker_epoch not in (-1, found.epoch):
            return False
        state = image.partition(topic, index)
        if state is None or broker_id not in state.replicas:
            return False
        return found.has_online(state.directory_of(broker_id))

    def _check(self) -> None:
        if self._stopped:
            return
        now_ms = self._clock.monotonic_ms()
        for partition in list(self._replicas.led.values()):
            try:
                self._check_one(partition, now_ms)
            except Exception as fault:
                self._jobs.failed(CHECK_JOB, fault, partition)

    def _check_one(self, partition: Partition, now_ms: int) -> None:
        replicas = partition.replicas
        if replicas is None:
            return
        fallen = replicas.fallen_behind(partition.log.log_end_offset, now_ms)
        if fallen:
            log.info("%s: %s fell behind", partition, sorted(fallen))
            self._propose(partition, replicas.isr - fallen)
        self.consider_all(partition)
        # Somebody outside the ISR who was waited for may have been given up by now.
        moved = partition.advance_high_watermark()
        if moved or partition.commits:
            self._turn.note_progress(partition)

    def consider(self, partition: Partition, follower_id: int) -> None:
        """A follower has fetched: have it join if it has caught up."""
        replicas = partition.replicas
        if replicas is not None and replicas.may_join(follower_id, partition.high_watermark):
            self._propose(partition, replicas.isr | {follower_id})

    def confirm(self, partition: Partition) -> None:
        """Tell the controller that the leader lives, which ends the last known ELR."""
        replicas = partition.replicas
        if replicas is not None and replicas.pending_isr is None:
            self._propose(partition, replicas.isr)

    def consider_all(self, partition: Partition) -> None:
        """Something else has changed: have those join who could not when they last fetched."""
        replicas = partition.replicas
        if replicas is None or len(replicas.isr) == replicas.replica_count:
            return
        now_ms = self._clock.monotonic_ms()
        for follower_id, follower in replicas.followers.items():
            contact = follower.contact
            if contact is not None and now_ms - contact.last_fetch_ms <= replicas.lag_max_ms:
                self.consider(partition, follower_id)

    def _propose(self, partition: Partition, isr: frozenset[int]) -> None:
        assert partition.replicas is not None
        partition.replicas.propose(isr)
        # Not told in this turn: the image may change under the feet of whoever is proposing.
        self._reports.add(partition)

    def _message(self, partitions: Sequence[Partition], broker_epoch: int) -> Message | None:
        node_id = self._metadata.node_id
        asked: list[Partition] = []
        changes: list[IsrChange] = []
        for partition in partitions:
            replicas = partition.replicas
            if replicas is None or replicas.pending_isr is None:
                continue  # settled by a newer record, or led elsewhere now
            isr, epochs = replicas.proposal()
            epochs = tuple(
                broker_epoch if member == node_id else epoch
                for member, epoch in zip(isr, epochs, strict=True)
            )
            asked.append(partition)
            changes.append(
                IsrChange(
                    partition.topic_id,
                    partition.index,
                    replicas.leader_epoch,
                    replicas.partition_epoch,
                    isr,
                    epochs,
                )
            )
        if not changes:
            return None
        return Message(ChangeIsr(node_id, broker_epoch, tuple(changes)), partial(self._heard, asked, changes))

    def _heard(
        self, asked: Sequence[Partition], changes: Sequence[IsrChange], results: Sequence[Result]
    ) -> bool:
        later = False
        for partition, change, result in zip(asked, changes, results, strict=True):
            replicas = partition.replicas
            current = replicas is not None and replicas.leader_epoch == change.leader_epoch
            if isinstance(result, IsrChanged):
                if current and result.partition.leader == self._metadata.node_id:
                    self._learn(partition, result.partition)
                continue
            assert isinstance(result, Refused)
            if replicas is None or not current or replicas.partition_epoch != change.partition_epoch:
                continue
            log.info("%s: the ISR %s was refused: %s", partition, list(change.isr), result.code.name)
            if result.code in NOT_MADE:
                # Looked at again when the image changes, or with the next check.
                replicas.take_back()
            elif result.code not in OUT_OF_DATE:
                self._reports.add(partition)
                later = True
        return later

    def __repr__(self) -> str:
        return f"<IsrChanges of {self._metadata.node_id} {self._reports!r}>"
