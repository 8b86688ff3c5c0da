"""Which records the next micro-batch of a query over a share group has; the driver's side, without Spark.

The driver is a member of the group, the only one of the query. It acquires records, plans a micro-batch of
exactly those, keeps their locks while Spark works, and accepts them when Spark asks for the next offset with
this micro-batch as the start: by then it is in the checkpoint as done. What is refused then (a lock that was
lost) has been processed all the same; when it is delivered again it is accepted and not read a second time
(`Processed`).
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tidelog.client.cluster import LATEST, Cluster
from tidelog.client.share_member import AcquiredRange, ShareMember
from tidelog.client.share_requests import ACCEPT, new_member_id
from tidelog.model.identifiers import TopicPartition
from tidelog.pipelines.data_loss import report_loss
from tidelog.pipelines.queue_offsets import Processed, QueueOffset, QueueTask, tasks_of
from tidelog.pipelines.source_options import SourceOptions

log = logging.getLogger(__name__)

#: records of one micro-batch where no option says how many
BATCH_RECORDS_MAX = 100_000
#: a run that ends with what is there now waits so long for the first record once it has partitions, and for
#: more
FIRST_PATIENCE_SECONDS = 10.0
PATIENCE_SECONDS = 1.0


class Member(Protocol):
    """What is needed of a member of the group."""

    @property
    def assigned(self) -> frozenset[TopicPartition]: ...
    def acquire(
        self, records_max: int, wait_ms: int, passed_over: set[TopicPartition]
    ) -> list[AcquiredRange]: ...
    def acknowledge(self, kind: int, ranges: list[AcquiredRange]) -> list[AcquiredRange]: ...
    def close(self) -> None: ...


class QueueBatches:
    """The micro-batches of one query, for its life in the driver."""

    def __init__(
        self,
        options: SourceOptions,
        cluster: Cluster,
        join: Callable[[str], Member] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.options = options
        self.cluster = cluster
        self._join = join or self._new_member
        self._clock = clock
        self._member: Member | None = None
        #: planned, and not known to be processed
        self._pending: QueueOffset | None = None
        self._processed = Processed()
        #: when the group had given partitions to the member, and the first record came
        self._assigned_at: float | None = None
        self._has_read = False
        #: with Trigger.AvailableNow: where partitions end, as of the start of the run
        self._ends: dict[TopicPartition, int] | None = None
        self._finished: set[TopicPartition] = set()

    def _new_member(self, member_id: str) -> ShareMember:
        group_id = self.options.share_group
        assert group_id is not None
        return ShareMember(self.options.client, group_id, self.options.topics, member_id)

    @staticmethod
    def initial() -> dict[str, Any]:
        """Where a query without a checkpoint begins."""
        return QueueOffset(0, new_member_id(), ()).to_json()

    def stop_at_present(self) -> None:
        """What is appended from now on is for the next run."""
        self._assigned_at, self._has_read = None, False
        topics = self.cluster.topics(self.options.topics).values()
        places = [TopicPartition(topic.name, row.partition) for topic in topics for row in topic.partitions]
        listed = self.cluster.list_offsets(dict.fromkeys(places, LATEST))
        self._ends = {where: found.offset for where, found in listed.items()}
        self._finished = {where for where, end in self._ends.items() if end == 0}

    def next_end(self, written: Mapping[str, Any], *, limited: bool) -> dict[str, Any]:
        """Where the next micro-batch ends, with all before it processed; the same when there is nothing."""
        start = QueueOffset.read(written)
        if self._pending is not None and self._pending.batch != start.batch:
            return self._pending.to_json()
        if self._member is None:
            self._member = self._join(start.member_id)
            # Whether the driver before this one could say so is not known.
            self._processed.add(start.ranges, self._clock(), deliveries_min=2)
        if self._pending is not None:
            self._accept(list(self._pending.ranges))
            self._pending = None
        records_max = self.options.offsets_per_trigger_max if limited else None
        taken = self._take(records_max or BATCH_RECORDS_MAX)
        if not taken:
            return dict(written)
        self._pending = QueueOffset(start.batch + 1, start.member_id, tuple(taken))
        return self._pending.to_json()

    def tasks(self, written: Mapping[str, Any]) -> list[QueueTask]:
        """The tasks of the micro-batch that ends there, whether it was planned here or is run again."""
        ranges = QueueOffset.read(written).ranges
        options = self.options
        there = self.cluster.topics({one.where.topic for one in ranges})
        known = {topic.topic_id for topic in there.values()}
        for name in sorted({one.where.topic for one in ranges if one.topic_id not in known}):
            what = f"topic {name!r} was deleted or made anew; the query had still to read of it"
            report_loss(what, fail=options.fail_on_data_loss)
        kept = [one for one in ranges if one.topic_id in known]
        return tasks_of(kept, options.partitions_min, options.records_per_partition_max)

    def close(self) -> None:
        """Leave the group; what was not accepted is available to others."""
        if self._member is not None:
            self._member.close()
            self._member = None
        self.cluster.close()

    def _accept(self, ranges: list[AcquiredRange]) -> None:
        assert self._member is not None
        refused = self._member.acknowledge(ACCEPT, ranges)
        if refused:
            count = sum(one.records_count for one in refused)
            log.warning("%d records were processed, and their locks had ended: they may come again", count)
            self._processed.add(refused, self._clock())

    def _take(self, records_max: int) -> list[AcquiredRange]:
        """Acquire until there is nothing more, or enough; waits only while there is nothing at all."""
        taken: list[AcquiredRange] = []
        count = 0
        while count < records_max:
            acquired = self._acquire(records_max - count, wait=not taken)
            known = self._processed.known(acquired, self._clock())
            if known:
                self._accept(sorted(known))
            fresh = [one for one in acquired if one not in known]
            taken += fresh
            count += sum(one.records_count for one in fresh)
            if not acquired:
                break
        return taken

    def _acquire(self, records_max: int, *, wait: bool) -> list[AcquiredRange]:
        assert self._member is not None
        wait_ms = self.options.client.fetch_max_wait_ms if wait else 0
        if self._ends is None:
            return self._member.acquire(records_max, wait_ms, set())
        return self._acquire_present(self._member, self._ends, records_max, wait_ms)

    def _acquire_present(
        self, member: Member, ends: dict[TopicPartition, int], records_max: int, wait_ms: int
    ) -> list[AcquiredRange]:
        """The same of what was there when the run began, and what came while the last of it was fetched."""
        began = self._clock()
        while not ends.keys() <= self._finished:
            acquired = member.acquire(records_max, wait_ms, self._finished)
            for one in acquired:
                if one.last >= ends.get(one.where, 0) - 1:
                    self._finished.add(one.where)
            self._has_read |= bool(acquired)
            if acquired or not wait_ms or self._clock() >= self._patience_ends(member, began):
                return acquired
        return []

    def _patience_ends(self, member: Member, began: float) -> float:
        """Until when nothing has to come before there is nothing; a group that is slow is no empty one."""
        if self._has_read:
            return began + PATIENCE_SECONDS
        if self._assigned_at is None:
            if not member.assigned:
                return began + self.options.client.api_timeout_ms / 1000
            self._assigned_at = self._clock()
        return self._assigned_at + FIRST_PATIENCE_SECONDS
