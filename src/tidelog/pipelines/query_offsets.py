"""What the driver of a query asks a cluster about offsets, and how it answers Spark; without Spark.

One object serves one query for its life in the driver. It finds the partitions (again and again, so that new
ones are read), resolves where to start and end, and decides how far the next micro-batch goes. Idle queries
ask about a hundred times a second, so answers are kept for `latestOffsetCacheMs`, and the list of partitions
for `partitionDiscoveryIntervalMs`.

Data loss: partitions that are gone, topics that were made anew while the query runs, ends that went backwards
and new partitions that do not begin at 0 are errors, or warnings with failOnDataLoss=false. Offsets that
retention removed are found by the readers.
"""

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from uuid import UUID

from tidelog.client.cluster import EARLIEST, LATEST, Cluster, MetadataTopic
from tidelog.client.faults import BadOption
from tidelog.model.identifiers import TopicPartition
from tidelog.pipelines.data_loss import report_loss
from tidelog.pipelines.offset_planning import (
    OffsetRange,
    Offsets,
    compare_offsets,
    limit_offsets,
    split_ranges,
)
from tidelog.pipelines.source_options import EARLIEST_TEXT, ReadBoundary, SourceOptions

log = logging.getLogger(__name__)

_NO_SUCH_RECORD = -1


class QueryOffsets:
    """The offsets of one query's topics."""

    def __init__(
        self, options: SourceOptions, cluster: Cluster, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.options = options
        self.cluster = cluster
        self._clock = clock
        self._partitions: tuple[TopicPartition, ...] = ()
        self._partitions_at: float | None = None
        self._topic_ids: dict[str, UUID] = {}
        self._latest: Offsets = {}
        self._latest_at: float | None = None
        #: where a query with Trigger.AvailableNow ends
        self._target: Offsets | None = None
        #: when the last micro-batch was let go, for maxTriggerDelay; the first one goes at once, as in Spark
        self._triggered_at: float | None = None

    # Partitions

    def partitions(self) -> tuple[TopicPartition, ...]:
        """All partitions that the query reads, as of a moment ago; raises BadOption if there is nothing."""
        now = self._clock()
        fresh_seconds = self.options.discovery_interval_ms / 1000
        if self._partitions_at is None or now - self._partitions_at >= fresh_seconds:
            self._partitions = self._find_partitions()
            self._partitions_at = now
        return self._partitions

    def _find_partitions(self) -> tuple[TopicPartition, ...]:
        options = self.options
        if options.pattern is not None:
            pattern = re.compile(options.pattern)
            found = self.cluster.topics()
            topics = {
                name: topic for name, topic in found.items() if pattern.fullmatch(name) and not topic.internal
            }
        elif options.assigned:
            topics = self.cluster.topics(where.topic for where in options.assigned)
        else:
            topics = self.cluster.topics(options.topics)
        self._look_for_new_lives(topics)
        existing = {
            TopicPartition(name, row.partition) for name, topic in topics.items() for row in topic.partitions
        }
        if options.assigned:
            return tuple(where for where in options.assigned if where in existing)
        return tuple(sorted(existing))

    def _look_for_new_lives(self, topics: Mapping[str, MetadataTopic]) -> None:
        """A topic with another id than before is another topic, though its offsets may look like progress."""
        ids = {name: topic.topic_id for name, topic in topics.items() if topic.topic_id is not None}
        for name in sorted(ids):
            if self._topic_ids.get(name, ids[name]) != ids[name]:
                self._report_loss(f"topic {name} was deleted and made anew, with what was not read of it")
        self._topic_ids.update(ids)

    def check_subscription(self) -> None:
        """At the start of a query everything that was named must be there; raises BadOption."""
        found = self.partitions()
        topics = {where.topic for where in found}
        missing: Iterable[object] = [name for name in self.options.topics if name not in topics]
        if self.options.assigned:
            missing = [where for where in self.options.assigned if where not in found]
        names = ", ".join(map(str, missing))
        if names:
            raise BadOption(
                f"the cluster has no {names}: create it first ('tidelog topic create'), or correct the option"
            )
        if not found:
            log.warning("no topic matches subscribePattern %r yet", self.options.pattern)

    # Positions

    def starting(self) -> Offsets:
        """Where a query without a checkpoint starts."""
        self.check_subscription()
        return self._resolve("starting", self.options.starting)

    def ending(self) -> Offsets:
        """Where a batch query ends."""
        return self._resolve("ending", self.options.ending)

    def _resolve(self, side: str, position: ReadBoundary) -> Offsets:
        partitions = self.partitions()
        if position.word is not None:
            return self._list(partitions, EARLIEST if position.word == EARLIEST_TEXT else LATEST)
        if position.offsets is not None:
            return self._resolve_given(side, position.offsets, partitions)
        if position.timestamp_ms is not None:
            return self._by_timestamp(side, dict.fromkeys(partitions, position.timestamp_ms))
        assert position.timestamps_ms is not None
        self._check_named(f"{side}OffsetsByTimestamp", position.timestamps_ms, partitions)
        return self._by_timestamp(side, position.timestamps_ms)

    def _check_named(self, option: str, named: Offsets, partitions: Iterable[TopicPartition]) -> None:
        """As in Spark, all partitions are named and no others, so that none is forgotten by mistake."""
        wanted = set(partitions)
        absent = ", ".join(map(str, sorted(wanted - set(named))))
        extra = ", ".join(map(str, sorted(set(named) - wanted)))
        if absent:
            raise BadOption(f"{option} does not say where {absent} begins or ends; -2 is earliest, -1 latest")
        if extra:
            raise BadOption(f"{option} names {extra}, which the query does not read")

    def _resolve_given(self, side: str, given: Offsets, partitions: tuple[TopicPartition, ...]) -> Offsets:
        if side == "starting" and self.options.offsets_strategy == EARLIEST_TEXT:
            given = self._with_unnamed(given, partitions)
        else:
            self._check_named(f"{side}Offsets", given, partitions)
        words = {where: offset for where, offset in given.items() if offset in (EARLIEST, LATEST)}
        listed = self.cluster.list_offsets(words) if words else {}
        resolved = {where: listed[where].offset if where in listed else given[where] for where in given}
        exact = [where for where in given if where not in words]
        if exact:
            earliest, latest = self._list(exact, EARLIEST), self._list(exact, LATEST)
            wrong = [where for where in exact if not earliest[where] <= given[where] <= latest[where]]
            if wrong:
                where = wrong[0]
                self._report_loss(
                    f"{side}Offsets: {where} holds offsets {earliest[where]} to {latest[where]},"
                    f" not {given[where]}"
                )
                resolved.update({one: min(max(given[one], earliest[one]), latest[one]) for one in wrong})
        return resolved

    def _with_unnamed(self, given: Offsets, partitions: tuple[TopicPartition, ...]) -> Offsets:
        """The offsets of partitions that are there, from their beginning on where none is given."""
        gone = tuple(sorted(set(given).difference(partitions)))
        never = tuple(where for where in gone if not self._subscribed(where))
        if never:
            raise BadOption(f"startingOffsets names {_listed(never)}, which the query does not read")
        if gone:
            self._report_loss(f"partitions {_listed(gone)} are gone, with what was not read of them")
        return {where: given.get(where, EARLIEST) for where in partitions}

    def _subscribed(self, where: TopicPartition) -> bool:
        """Whether the query would read a partition if it was there."""
        options = self.options
        if options.pattern is not None:
            return re.fullmatch(options.pattern, where.topic) is not None
        return where in options.assigned or where.topic in options.topics

    def _by_timestamp(self, side: str, timestamps_ms: Offsets) -> Offsets:
        listed = self.cluster.list_offsets(timestamps_ms)
        late = sorted(where for where, row in listed.items() if row.offset == _NO_SUCH_RECORD)
        latest = self._list(late, LATEST) if late else {}
        if late and side == "starting" and self.options.timestamp_strategy == "error":
            where = late[0]
            raise BadOption(
                f"{where} has no record at or after timestamp {timestamps_ms[where]}; to start at the end in"
                " such a case, set option startingOffsetsByTimestampStrategy=latest"
            )
        return {where: latest.get(where, row.offset) for where, row in listed.items()}

    def _list(self, partitions: Iterable[TopicPartition], position: int) -> Offsets:
        wanted = dict.fromkeys(partitions, position)
        if not wanted:
            return {}
        return {where: row.offset for where, row in self.cluster.list_offsets(wanted).items()}

    # The stream

    def latest(self) -> Offsets:
        """The ends of all partitions, as of a moment ago."""
        now = self._clock()
        fresh_seconds = self.options.latest_offset_cache_ms / 1000
        if self._latest_at is None or now - self._latest_at >= fresh_seconds:
            self._latest = self._list(self.partitions(), LATEST)
            self._latest_at = now
        return self._latest

    def stop_at_present(self) -> None:
        """From now on act as if nothing was appended any more (Trigger.AvailableNow)."""
        self._latest_at = self._partitions_at = None
        self._target = dict(self.latest())

    def next_end(self, start: Offsets, limited: bool) -> Offsets:
        """Where the micro-batch that begins at `start` ends; equal to `start` when there is nothing to do."""
        latest = self._reachable(start)
        first = {**self._first_offsets(start, latest), **start}
        if not limited:
            return latest
        fresh = sum(max(0, latest[where] - first[where]) for where in latest)
        if fresh and self._wait_for_more(fresh):
            return start
        if fresh:
            self._triggered_at = self._clock()
        most = self.options.offsets_per_trigger_max
        return latest if most is None else limit_offsets(first, latest, most)

    def _reachable(self, start: Offsets) -> Offsets:
        """The ends to read to, after a look at whether anything was lost."""
        latest = self.latest() if self._target is None else self._capped(self._target, start)
        changes = compare_offsets(latest, start, latest)
        if changes.gone:
            self._report_loss(f"partitions {_listed(changes.gone)} are gone, with what was not read of them")
        if changes.backwards:
            where = changes.backwards[0]
            self._report_loss(
                f"{where} was read up to offset {start[where]}, but now ends at {latest[where]}"
            )
        return dict(latest)

    def _capped(self, target: Offsets, start: Offsets) -> Offsets:
        """The target, save where the query is beyond it already, having begun at the end a moment later."""
        beyond = {where for where, end in target.items() if where in start and start[where] > end}
        if not beyond:
            return target
        current = self.latest()
        return {
            where: min(start[where], current.get(where, end)) if where in beyond else end
            for where, end in target.items()
        }

    def _first_offsets(self, start: Offsets, latest: Offsets) -> Offsets:
        """Where partitions begin that appeared since `start`."""
        appeared = [where for where in latest if where not in start]
        if not appeared:
            return {}
        earliest = self._list(appeared, EARLIEST)
        missed = sorted(where for where in appeared if earliest[where] > 0)
        if missed and start:
            self._report_loss(
                f"new partition {missed[0]} begins at offset {earliest[missed[0]]}; what was before is gone"
            )
        log.info("new partitions: %s", _listed(tuple(sorted(appeared))))
        return earliest

    def _wait_for_more(self, fresh: int) -> bool:
        least = self.options.offsets_per_trigger_min
        if least is None or fresh >= least or self._target is not None or self._triggered_at is None:
            return False
        return self._clock() - self._triggered_at < self.options.trigger_delay_max_ms / 1000

    # Tasks

    def batch_ranges(self, start: Offsets, end: Offsets) -> list[OffsetRange]:
        """What the tasks of a micro-batch read.

        Spark repeats one that it had planned before a crash. If that was the first, it asks anew where the
        query begins, and that may be behind the end by now. Such a batch was most likely empty, but nobody
        can tell.
        """
        for where in sorted(end):
            if start.get(where, 0) > end[where]:
                log.warning(
                    "%s: a micro-batch that ends at offset %d is to begin at %d; what it had, if anything,"
                    " is not read",
                    *(where, end[where], start[where]),
                )
        return self.ranges(start, end)

    def ranges(self, start: Offsets, end: Offsets) -> list[OffsetRange]:
        """What the tasks of a query read."""
        appeared = {where for where in end if where not in start}
        gone = tuple(sorted(appeared.difference(self.partitions()))) if appeared else ()
        if gone:
            self._report_loss(f"partitions {_listed(gone)} are gone, with what was not read of them")
            end = {where: offset for where, offset in end.items() if where not in gone}
        first = {**self._first_offsets(start, end), **start}
        whole = [OffsetRange(where, first[where], end[where]) for where in sorted(end)]
        return split_ranges(whole, self.options.partitions_min, self.options.records_per_partition_max)

    def _report_loss(self, what: str) -> None:
        report_loss(what, fail=self.options.fail_on_data_loss)


def _listed(partitions: tuple[TopicPartition, ...]) -> str:
    shown = ", ".join(map(str, partitions[:5]))
    return f"{shown} and {len(partitions) - 5} more" if len(partitions) > 5 else shown
