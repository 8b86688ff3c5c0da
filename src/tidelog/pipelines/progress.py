"""A query's progress as a consumer group: what it has processed is committed, so its lag can be seen.

The group is the option `group.id`, or `tidelog-spark-<query id>`: the query id lives in the checkpoint, so
the group stays the same over restarts. The driver's reader is not told the query id; the tasks of a query
know it. So with the first micro-batches one task commits where it starts, with a token of the driver as the
commit's metadata, and the driver looks for the group that has this token. From then on only the driver
commits, once for each completed micro-batch.

Nothing here may fail a query: offsets in a group are for people to look at, the checkpoint alone decides
where a query goes on. After trouble the next commit waits for a while.
"""

import logging
import time
import uuid
from collections.abc import Callable

from tidelog.client.cluster import Cluster
from tidelog.client.faults import ClientFault
from tidelog.model.identifiers import TopicPartition
from tidelog.pipelines.offset_planning import OffsetRange, Offsets

log = logging.getLogger(__name__)

COMMIT_TIMEOUT_MS = 5_000
PAUSE_AFTER_TROUBLE_SECONDS = 30.0


def group_of(prefix: str, query_id: str) -> str:
    """The group of a query that was given none."""
    return f"{prefix}-{query_id}"


class OffsetCommitter:
    """Commits the processed offsets of one query, from its driver."""

    def __init__(
        self,
        cluster: Cluster,
        group_id: str | None,
        prefix: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cluster = cluster
        self.group_id = group_id
        self.prefix = prefix
        self._clock = clock
        self._token = uuid.uuid4().hex
        self._announced_at: TopicPartition | None = None
        self._committed: Offsets | None = None
        self._quiet_until = 0.0

    def announcement(self, ranges: list[OffsetRange]) -> tuple[OffsetRange, str] | None:
        """Which task is to tell the driver the query's group, and the token that it tells it with."""
        if self.group_id is not None or not ranges:
            return None
        self._announced_at = ranges[0].where
        return ranges[0], self._token

    def processed(self, offsets: Offsets) -> None:
        """Everything before these offsets is done."""
        if offsets == self._committed or not offsets or self._clock() < self._quiet_until:
            return
        try:
            if self.group_id is None:
                self.group_id = self._find_group()
            if self.group_id is not None:
                self.cluster.commit_offsets(self.group_id, offsets, timeout_ms=COMMIT_TIMEOUT_MS)
                self._committed = dict(offsets)
        except ClientFault as fault:
            self._quiet_until = self._clock() + PAUSE_AFTER_TROUBLE_SECONDS
            log.warning("the lag of the query is not up to date: %s", fault)

    def _find_group(self) -> str | None:
        where, self._announced_at = self._announced_at, None
        if where is None:
            return None
        for group_id in self.cluster.group_ids():
            if group_id.startswith(f"{self.prefix}-"):
                row = self.cluster.commits(group_id, [where]).get(where)
                if row is not None and row.metadata == self._token:
                    log.info("the query's lag is that of group %s", group_id)
                    return group_id
        return None


def announce(cluster: Cluster, group_id: str, where: TopicPartition, offset: int, token: str) -> None:
    """From a task: let the driver find the group of its query."""
    try:
        cluster.commit_offsets(group_id, {where: offset}, metadata=token, timeout_ms=COMMIT_TIMEOUT_MS)
    except ClientFault as fault:
        log.warning(
            "the group %s cannot be committed to, so the query's lag does not show: %s", group_id, fault
        )
