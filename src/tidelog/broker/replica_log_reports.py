"""Tells the controller how long the logs of replicas here are whose partitions have no leader (KIP-966).

A partition without a leader has nobody to append to its logs or to have them cut. So what is said of a log
holds until a leader is elected, or this life of the broker ends. The image shows what has been heard; what it
does not show is said again, so a message that gets lost costs `RETRY_MS`.
"""

import logging
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from tidelog.controller.commands import ReplicaLog, ReportReplicaLogs, Result
from tidelog.model.errors import Refused
from tidelog.model.identifiers import NO_LEADER

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.partition import Partition

log = logging.getLogger(__name__)

LOGS_PER_MESSAGE = 1_000
RETRY_MS = 500
_TIMER = "replica log reports"


class ReplicaLogReports:
    """The logs of one broker that the controller has to hear of."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._waiting: dict[Partition, None] = {}
        self._in_flight = False
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True
        self._broker.timers.cancel(_TIMER)

    def consider(self, partition: "Partition") -> None:
        """The image has changed: report the log of a partition if it has no leader."""
        if partition not in self._waiting and self._due(partition) is not None:
            self._waiting[partition] = None
            self._send_soon(0)

    def _due(self, partition: "Partition") -> ReplicaLog | None:
        """What is to be said of a replica; None if nothing is (any more)."""
        broker = self._broker
        state = broker.image.partition(partition.topic, partition.index)
        if state is None or state.leader != NO_LEADER or broker.node_id in dict(state.replica_logs):
            return None
        here = broker.replica(partition.topic, partition.index)
        if here is not partition or partition.leads or partition.leader_epoch != state.leader_epoch:
            return None
        position = partition.position
        return ReplicaLog(
            partition.topic_id,
            partition.index,
            state.leader_epoch,
            position.last_fetched_epoch,
            position.fetch_offset,
        )

    def _send_soon(self, delay_ms: int) -> None:
        # Not in this turn: all partitions that an image has left without a leader go together.
        if not self._in_flight and (delay_ms == 0 or _TIMER not in self._broker.timers):
            self._broker.timers.set(_TIMER, self._broker.clock.now_ms() + delay_ms, self._send)

    def _send(self) -> None:
        broker = self._broker
        epoch = broker.metadata.broker_epoch
        if self._in_flight or self._stopped:
            return
        asked: dict[Partition, ReplicaLog] = {}
        for partition in list(islice(self._waiting, LOGS_PER_MESSAGE)):
            due = self._due(partition)
            if due is None:
                del self._waiting[partition]
            else:
                asked[partition] = due
        if not asked:
            if self._waiting:
                self._send_soon(0)
            return
        self._in_flight = True
        command = ReportReplicaLogs(broker.node_id, epoch, tuple(asked.values()))
        broker.metadata.submit(command, lambda results: self._decided(tuple(asked), results))

    def _decided(self, asked: "Sequence[Partition]", results: Sequence[Result]) -> None:
        self._in_flight = False
        if self._stopped:
            return
        for partition, result in zip(asked, results, strict=True):
            if isinstance(result, Refused):
                log.debug("the log of %s was not taken note of: %s", partition, result.code.name)
            # Also what was taken note of may be given up again, where the controller did not know yet in
            # which directory the log is. Whether it is still to be said the image tells, next time.
            self._waiting[partition] = self._waiting.pop(partition, None)
        self._send_soon(0 if len(self._waiting) > len(asked) else RETRY_MS)

    def __repr__(self) -> str:
        return f"<ReplicaLogReports waiting={len(self._waiting)} in_flight={self._in_flight}>"
