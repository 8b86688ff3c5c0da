"""Keeps the ISRs of the led partitions true: proposes to the controller who falls out and who joins.

Twice in `replica.lag.time.max.ms` every led partition is looked at for followers that do not keep up; a
follower that catches up is proposed as soon as it fetches. Proposals travel together, one message at a time:
those that come meanwhile wait for the next. Until the outcome is known a proposal stays pending, and the
watermark waits for the members of both ISRs.
"""

import logging
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from tidelog.controller.commands import ChangeIsr, IsrChange, IsrChanged, Result
from tidelog.model.errors import ErrorCode, Refused

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.partition import Partition

log = logging.getLogger(__name__)

CHANGES_PER_MESSAGE = 1_000
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

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._waiting: dict[Partition, None] = {}
        self._in_flight = False
        self._stopped = False

    def start(self) -> None:
        """Look after the ISRs from now on."""
        self._broker.jobs.every(
            CHECK_JOB,
            lambda: max(1, self._broker.settings.get_int("replica.lag.time.max.ms") // 2),
            self._check,
        )

    def stop(self) -> None:
        self._stopped = True

    def _check(self) -> None:
        if self._stopped:
            return
        now_ms = self._broker.clock.monotonic_ms()
        for partition in list(self._broker.partitions.values()):
            try:
                self._check_one(partition, now_ms)
            except Exception as fault:
                self._broker.jobs.failed(CHECK_JOB, fault, partition)

    def _check_one(self, partition: "Partition", now_ms: int) -> None:
        broker = self._broker
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
        if (moved or partition.commits) and partition.awaited and not partition.progressing:
            broker.note_progress(partition)

    def consider(self, partition: "Partition", follower_id: int) -> None:
        """A follower has fetched: have it join if it has caught up."""
        replicas = partition.replicas
        if replicas is not None and replicas.may_join(follower_id, partition.high_watermark):
            self._propose(partition, replicas.isr | {follower_id})

    def confirm(self, partition: "Partition") -> None:
        """Tell the controller that the leader lives, which ends the last known ELR."""
        replicas = partition.replicas
        if replicas is not None and replicas.pending_isr is None:
            self._propose(partition, replicas.isr)

    def consider_all(self, partition: "Partition") -> None:
        """Something else has changed: have those join who could not when they last fetched."""
        replicas = partition.replicas
        if replicas is None or len(replicas.isr) == replicas.replica_count:
            return
        now_ms = self._broker.clock.monotonic_ms()
        for follower_id, follower in replicas.followers.items():
            contact = follower.contact
            if contact is not None and now_ms - contact.last_fetch_ms <= replicas.lag_max_ms:
                self.consider(partition, follower_id)

    def _propose(self, partition: "Partition", isr: frozenset[int]) -> None:
        assert partition.replicas is not None
        partition.replicas.propose(isr)
        self._waiting[partition] = None
        if not self._in_flight:
            self._send_soon(0)

    def _send_soon(self, delay_ms: int) -> None:
        # Not in this turn: the image may change under the feet of whoever is proposing.
        self._broker.timers.set("isr changes", self._broker.clock.now_ms() + delay_ms, self._send)

    def _send(self) -> None:
        broker = self._broker
        own = broker.image.brokers.get(broker.node_id)
        if self._in_flight or self._stopped or own is None:
            return
        chosen = list(islice(self._waiting, CHANGES_PER_MESSAGE))
        asked: list[Partition] = []
        changes: list[IsrChange] = []
        for partition in chosen:
            del self._waiting[partition]
            replicas = partition.replicas
            if replicas is None or replicas.pending_isr is None:
                continue  # settled by a newer record, or led elsewhere now
            isr, epochs = replicas.proposal()
            epochs = tuple(
                own.epoch if member == broker.node_id else epoch
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
            return
        self._in_flight = True
        command = ChangeIsr(broker.node_id, own.epoch, tuple(changes))
        broker.metadata.submit(command, lambda results: self._decided(asked, changes, results))

    def _decided(
        self, asked: "Sequence[Partition]", changes: Sequence[IsrChange], results: Sequence[Result]
    ) -> None:
        self._in_flight = False
        if self._stopped:
            return
        delay_ms = 0
        for partition, change, result in zip(asked, changes, results, strict=True):
            replicas = partition.replicas
            current = replicas is not None and replicas.leader_epoch == change.leader_epoch
            if isinstance(result, IsrChanged):
                if current and result.partition.leader == self._broker.node_id:
                    self._broker.replication.learn(partition, result.partition)
                continue
            assert isinstance(result, Refused)
            if replicas is None or not current or replicas.partition_epoch != change.partition_epoch:
                continue
            log.info("%s: the ISR %s was refused: %s", partition, list(change.isr), result.code.name)
            if result.code in NOT_MADE:
                # Looked at again when the image changes, or with the next check.
                replicas.take_back()
            elif result.code not in OUT_OF_DATE:
                self._waiting[partition] = None
                delay_ms = RETRY_MS
        if self._waiting:
            self._send_soon(delay_ms)

    def __repr__(self) -> str:
        return f"<IsrChanges waiting={len(self._waiting)} in_flight={self._in_flight}>"
