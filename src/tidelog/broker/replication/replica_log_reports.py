"""Tells the controller how long the logs of replicas here are whose partitions have no leader (KIP-966).

A partition without a leader has nobody to append to its logs or to have them cut. So what is said of a log
holds until a leader is elected, or this life of the broker ends. The image shows what has been heard; what it
does not show is said again, so a message that gets lost costs `RETRY_MS`.
"""

import logging
from collections.abc import Sequence
from functools import partial

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.replicas.partition import Partition
from tidelog.broker.replicas.replicas import Replicas
from tidelog.broker.replication.controller_reports import ControllerReports, Message
from tidelog.broker.runtime.timers import Timers
from tidelog.controller.commands import ReplicaLog, ReportReplicaLogs, Result
from tidelog.model.errors import Refused
from tidelog.model.identifiers import NO_LEADER

log = logging.getLogger(__name__)

RETRY_MS = 500


class ReplicaLogReports:
    """The logs of one broker that the controller has to hear of."""

    def __init__(self, metadata: Metadata, replicas: Replicas, timers: Timers) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._reports = ControllerReports(metadata, timers, "replica log reports", RETRY_MS, self._message)

    def stop(self) -> None:
        self._reports.stop()

    def consider(self, partition: Partition) -> None:
        """The image has changed: report the log of a partition if it has no leader."""
        if partition not in self._reports.due and self._due(partition) is not None:
            self._reports.add(partition)

    def _due(self, partition: Partition) -> ReplicaLog | None:
        """What is to be said of a replica; None if nothing is (any more)."""
        metadata = self._metadata
        state = metadata.image.partition(partition.topic, partition.index)
        if state is None or state.leader != NO_LEADER or metadata.node_id in dict(state.replica_logs):
            return None
        here = self._replicas.replica(partition.topic, partition.index)
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

    def _message(self, partitions: Sequence[Partition], epoch: int) -> Message | None:
        asked = {partition: due for partition in partitions if (due := self._due(partition)) is not None}
        if not asked:
            return None
        command = ReportReplicaLogs(self._metadata.node_id, epoch, tuple(asked.values()))
        return Message(command, partial(self._heard, tuple(asked)))

    def _heard(self, asked: Sequence[Partition], results: Sequence[Result]) -> bool:
        others = not self._reports.due.keys() <= set(asked)
        for partition, result in zip(asked, results, strict=True):
            if isinstance(result, Refused):
                log.debug("the log of %s was not taken note of: %s", partition, result.code.name)
            # Also what was taken note of may be given up again, where the controller did not know yet in
            # which directory the log is. Whether it is still to be said the image tells, next time.
            self._reports.add(partition)
        return not others

    def __repr__(self) -> str:
        return f"<ReplicaLogReports of {self._metadata.node_id} {self._reports!r}>"
