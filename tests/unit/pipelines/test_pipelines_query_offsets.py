"""What the driver of a query decides, on a cluster of a few dictionaries and a clock that stands still."""

from typing import Any
from uuid import UUID

import pytest

from tidelog.client.cluster import EARLIEST, LATEST, ListedOffset, MetadataPartition, MetadataTopic
from tidelog.client.faults import BadOption, LinkFault
from tidelog.model.identifiers import TopicPartition
from tidelog.pipelines.data_loss import DataLoss
from tidelog.pipelines.offset_planning import OffsetRange
from tidelog.pipelines.progress import PAUSE_AFTER_TROUBLE_SECONDS, OffsetCommitter
from tidelog.pipelines.query_offsets import QueryOffsets
from tidelog.pipelines.source_options import SourceOptions

A0, A1, A2, B0 = (
    TopicPartition("a", 0),
    TopicPartition("a", 1),
    TopicPartition("a", 2),
    TopicPartition("b", 0),
)


class SmallCluster:
    """Logs as (first offset, end) and timestamps as offsets."""

    def __init__(self, logs: dict[TopicPartition, tuple[int, int]]) -> None:
        self.logs = dict(logs)
        self.groups: dict[str, dict[TopicPartition, tuple[int, str]]] = {}
        self.asked = {"topics": 0, "list_offsets": 0, "commit": 0}
        self.broken = False
        self.topic_ids: dict[str, UUID] = {}
        self.cluster_id = "one"

    def topics(self, names: Any = None) -> dict[str, MetadataTopic]:
        self.asked["topics"] += 1
        wanted = None if names is None else set(names)
        found: dict[str, MetadataTopic] = {}
        for name in sorted({where.topic for where in self.logs}):
            if wanted is None or name in wanted:
                rows = tuple(
                    MetadataPartition(where.partition, 1, 0)
                    for where in sorted(self.logs)
                    if where.topic == name
                )
                found[name] = MetadataTopic(name, self.topic_ids.get(name), name.startswith("__"), rows)
        return found

    def list_offsets(self, positions: dict[TopicPartition, int]) -> dict[TopicPartition, ListedOffset]:
        self.asked["list_offsets"] += 1
        listed: dict[TopicPartition, ListedOffset] = {}
        for where, position in positions.items():
            first, end = self.logs[where]
            offset = {EARLIEST: first, LATEST: end}.get(position)
            if offset is None:
                offset = -1 if position >= end else max(first, position)
            listed[where] = ListedOffset(offset, -1, 0)
        return listed

    def commit_offsets(
        self, group_id: str, offsets: dict[TopicPartition, int], metadata: str = "", timeout_ms: int = 0
    ) -> None:
        self.asked["commit"] += 1
        if self.broken:
            raise LinkFault("nobody there")
        rows = self.groups.setdefault(group_id, {})
        rows.update({where: (offset, metadata) for where, offset in offsets.items()})

    def group_ids(self) -> list[str]:
        return sorted(self.groups)

    def commits(self, group_id: str, partitions: list[TopicPartition]) -> dict[TopicPartition, Any]:
        from tidelog.client.cluster import OffsetAndMetadata

        rows = self.groups[group_id]
        return {where: OffsetAndMetadata(*rows[where]) for where in partitions if where in rows}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def query(
    logs: dict[TopicPartition, tuple[int, int]], streaming: bool = True, **options: str
) -> tuple[QueryOffsets, SmallCluster, Clock]:
    given = {"kafka.bootstrap.servers": "x:1", "subscribe": "a", "latestOffsetCacheMs": "0"}
    given |= {"partitionDiscoveryIntervalMs": "0", **options}
    if "assign" in options or "subscribePattern" in options:
        del given["subscribe"]
    cluster, clock = SmallCluster(logs), Clock()
    read = SourceOptions.read(given, streaming=streaming)
    return QueryOffsets(read, cluster, clock), cluster, clock  # type: ignore[arg-type]


LOGS = {A0: (0, 100), A1: (20, 50), B0: (0, 7)}


def test_where_queries_start() -> None:
    assert query(LOGS, startingOffsets="earliest")[0].starting() == {A0: 0, A1: 20}
    assert query(LOGS)[0].starting() == {A0: 100, A1: 50}
    given = query(LOGS, startingOffsets='{"a":{"0":40,"1":-2}}')[0]
    assert given.starting() == {A0: 40, A1: 20}
    assert query(LOGS, startingTimestamp="30")[0].starting() == {A0: 30, A1: 30}
    by_time = query(LOGS, startingOffsetsByTimestamp='{"a":{"0":5,"1":25}}')[0]
    assert by_time.starting() == {A0: 5, A1: 25}
    assert query(LOGS, subscribe="a,b")[0].starting() == {A0: 100, A1: 50, B0: 7}
    assert query(LOGS, subscribePattern="[ab]")[0].starting() == {A0: 100, A1: 50, B0: 7}
    assert query(LOGS, subscribePattern=".")[0].partitions() == (A0, A1, B0)
    assert query(LOGS, assign='{"a":[1]}')[0].starting() == {A1: 50}


def test_internal_topics_match_no_pattern() -> None:
    logs = {**LOGS, TopicPartition("__consumer_offsets", 0): (0, 1)}
    assert query(logs, subscribePattern=".*")[0].partitions() == (A0, A1, B0)


def test_a_timestamp_behind_the_end() -> None:
    with pytest.raises(BadOption, match="startingOffsetsByTimestampStrategy=latest"):
        query(LOGS, startingTimestamp="60")[0].starting()
    relaxed = query(LOGS, startingTimestamp="60", startingOffsetsByTimestampStrategy="latest")[0]
    assert relaxed.starting() == {A0: 60, A1: 50}
    batch = query(LOGS, streaming=False, endingTimestamp="60")[0]
    assert batch.ending() == {A0: 60, A1: 50}


def test_what_is_named_must_be_there() -> None:
    with pytest.raises(BadOption, match="the cluster has no nothing"):
        query(LOGS, subscribe="a,nothing")[0].starting()
    with pytest.raises(BadOption, match="the cluster has no a-7"):
        query(LOGS, assign='{"a":[0,7]}')[0].starting()
    with pytest.raises(BadOption, match="does not say where a-1 begins"):
        query(LOGS, startingOffsets='{"a":{"0":40}}')[0].starting()
    with pytest.raises(BadOption, match="names b-0"):
        query(LOGS, startingOffsets='{"a":{"0":40,"1":-2},"b":{"0":0}}')[0].starting()
    with pytest.raises(DataLoss, match="a-1 holds offsets 20 to 50, not 3"):
        query(LOGS, startingOffsets='{"a":{"0":40,"1":3}}')[0].starting()


def test_limits() -> None:
    offsets, _, _ = query(LOGS, maxOffsetsPerTrigger="13")
    assert offsets.next_end({A0: 0, A1: 20}, limited=True) == {A0: 10, A1: 23}
    assert offsets.next_end({A0: 0, A1: 20}, limited=False) == {A0: 100, A1: 50}
    assert offsets.next_end({A0: 100, A1: 50}, limited=True) == {A0: 100, A1: 50}


def test_a_batch_waits_for_enough_records_but_not_for_ever() -> None:
    offsets, cluster, clock = query(LOGS, minOffsetsPerTrigger="10", maxTriggerDelay="60s")
    start = {A0: 95, A1: 50}
    assert offsets.next_end({A0: 94, A1: 50}, limited=True) == {A0: 100, A1: 50}, "the first goes at once"
    assert offsets.next_end(start, limited=True) == start
    clock.now += 61
    assert offsets.next_end(start, limited=True) == {A0: 100, A1: 50}
    assert offsets.next_end(start, limited=True) == start
    cluster.logs[A0] = (0, 105)
    assert offsets.next_end(start, limited=True) == {A0: 105, A1: 50}
    offsets.stop_at_present()
    assert offsets.next_end({A0: 104, A1: 50}, limited=True) == {A0: 105, A1: 50}


def test_available_now_stops_at_what_was_there() -> None:
    offsets, cluster, _ = query(LOGS, maxOffsetsPerTrigger="1000")
    offsets.stop_at_present()
    cluster.logs[A0], cluster.logs[A2] = (0, 500), (0, 9)
    assert offsets.next_end({A0: 0, A1: 20}, limited=True) == {A0: 100, A1: 50}
    assert offsets.next_end({A0: 100, A1: 50}, limited=True) == {A0: 100, A1: 50}
    # It began at the end, and that had moved on.
    assert offsets.next_end({A0: 200, A1: 50}, limited=True) == {A0: 200, A1: 50}
    with pytest.raises(DataLoss, match="a-0 was read up to offset 600, but now ends at 500"):
        offsets.next_end({A0: 600, A1: 50}, limited=True)


def test_new_partitions_are_read_from_their_beginning() -> None:
    offsets, cluster, _ = query(LOGS)
    cluster.logs[A2] = (0, 9)
    end = offsets.next_end({A0: 100, A1: 50}, limited=False)
    assert end == {A0: 100, A1: 50, A2: 9}
    assert offsets.ranges({A0: 100, A1: 50}, end) == [OffsetRange(A2, 0, 9)]
    cluster.logs[A2] = (4, 9)
    with pytest.raises(DataLoss, match="new partition a-2 begins at offset 4"):
        offsets.next_end({A0: 100, A1: 50}, limited=False)


def test_data_loss_is_an_error_or_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    start = {A0: 100, A1: 70, B0: 3}
    with pytest.raises(DataLoss, match=r"partitions b-0 are gone.*failOnDataLoss"):
        query(LOGS)[0].next_end(start, limited=False)
    with pytest.raises(DataLoss, match="a-1 was read up to offset 70, but now ends at 50"):
        query(LOGS)[0].next_end({A0: 100, A1: 70}, limited=False)
    tolerant = query(LOGS, failOnDataLoss="false")[0]
    end = tolerant.next_end(start, limited=False)
    assert end == {A0: 100, A1: 50}
    assert tolerant.ranges(start, end) == []
    assert "b-0 are gone" in caplog.text and "now ends at 50" in caplog.text


def test_a_topic_that_was_made_anew_is_another(caplog: pytest.LogCaptureFixture) -> None:
    start = {A0: 100, A1: 50}
    strict, cluster, _ = query(LOGS)
    tolerant, other, _ = query(LOGS, failOnDataLoss="false")
    for offsets, one in ((strict, cluster), (tolerant, other)):
        one.topic_ids["a"] = UUID(int=1)
        offsets.next_end(start, limited=False)
        # More records than before: offsets alone show nothing.
        one.topic_ids["a"] = UUID(int=2)
        one.logs[A0] = (0, 300)
    for _ in range(2):
        with pytest.raises(DataLoss, match="topic a was deleted and made anew"):
            strict.next_end(start, limited=False)
    assert tolerant.next_end(start, limited=False)[A0] == 300
    assert tolerant.next_end(start, limited=False)[A0] == 300
    assert caplog.text.count("made anew") == 1


def test_a_first_batch_that_would_begin_behind_its_end_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """It was planned to 90 when the log ended there or later; now the query would begin at 100."""
    start, end = {A0: 100, A1: 50}, {A0: 90, A1: 50}
    assert query(LOGS)[0].batch_ranges({A0: 90, A1: 50}, start) == [OffsetRange(A0, 90, 100)]
    assert not caplog.text
    assert query(LOGS)[0].batch_ranges(start, end) == []
    assert "a-0: a micro-batch that ends at offset 90 is to begin at 100" in caplog.text


def test_partitions_that_are_not_named_may_begin_at_their_beginning() -> None:
    given: dict[str, Any] = {"startingOffsets": '{"a":{"0":40}}', "startingOffsetsStrategy": "earliest"}
    assert query(LOGS, **given)[0].starting() == {A0: 40, A1: 20}
    for more in ({}, {"subscribePattern": "a"}, {"assign": '{"a":[0,1]}'}):
        given["startingOffsets"] = '{"b":{"0":1}}'
        with pytest.raises(BadOption, match="names b-0, which the query does not read"):
            query(LOGS, **given, **more)[0].starting()  # type: ignore[arg-type]
        given["startingOffsets"] = '{"a":{"0":40,"1":-1}}'
        assert query(LOGS, **given, **more)[0].starting() == {A0: 40, A1: 50}  # type: ignore[arg-type]


def test_an_idle_query_seldom_asks() -> None:
    offsets, cluster, clock = query(LOGS, latestOffsetCacheMs="20", partitionDiscoveryIntervalMs="1000")
    start = {A0: 100, A1: 50}
    for _ in range(200):
        clock.now += 0.012
        assert offsets.next_end(start, limited=False) == start
    assert cluster.asked["topics"] <= 4
    assert cluster.asked["list_offsets"] <= 110


def test_a_topic_that_is_gone_with_a_batch_planned() -> None:
    """The batch begins no later than the topic was found, so its start does not name it."""
    offsets, cluster, _ = query(LOGS, subscribePattern="[ab]")
    offsets.partitions()
    del cluster.logs[B0]
    with pytest.raises(DataLoss, match=r"b-0 are gone.*failOnDataLoss"):
        offsets.ranges({A0: 0, A1: 20}, {A0: 100, A1: 50, B0: 7})
    offsets, cluster, _ = query(LOGS, subscribePattern="[ab]", failOnDataLoss="false")
    del cluster.logs[B0]
    ranges = offsets.ranges({A0: 0, A1: 20}, {A0: 100, A1: 50, B0: 7})
    assert [one.where for one in ranges] == [A0, A1]


def test_tasks() -> None:
    offsets, _, _ = query(LOGS, minPartitions="5", maxRecordsPerPartition="40")
    ranges = offsets.ranges({A0: 0, A1: 20}, {A0: 100, A1: 50})
    assert len(ranges) == 5
    assert sum(one.records_count for one in ranges) == 130


def test_progress_with_a_group_that_was_named() -> None:
    cluster, clock = SmallCluster(LOGS), Clock()
    progress = OffsetCommitter(cluster, "mine", "tidelog-spark", clock)  # type: ignore[arg-type]
    assert progress.announcement([OffsetRange(A0, 0, 1)]) is None
    for _ in range(3):
        progress.processed({A0: 5})
    progress.processed({A0: 6})
    assert cluster.groups == {"mine": {A0: (6, "")}}
    assert cluster.asked["commit"] == 2


def test_progress_finds_the_group_that_a_task_announced() -> None:
    cluster, clock = SmallCluster(LOGS), Clock()
    progress = OffsetCommitter(cluster, None, "tidelog-spark", clock)  # type: ignore[arg-type]
    progress.processed({A0: 0})
    assert cluster.groups == {}
    announced = progress.announcement([OffsetRange(A0, 3, 5), OffsetRange(A1, 0, 5)])
    assert announced is not None and announced[0].where == A0
    cluster.commit_offsets("tidelog-spark-other", {A0: 3}, metadata="another token")
    cluster.commit_offsets("tidelog-spark-ours", {A0: 3}, metadata=announced[1])
    cluster.commit_offsets("unrelated", {A0: 3}, metadata=announced[1])
    progress.processed({A0: 5, A1: 5})
    assert progress.group_id == "tidelog-spark-ours"
    assert cluster.groups["tidelog-spark-ours"] == {A0: (5, ""), A1: (5, "")}
    assert progress.announcement([OffsetRange(A0, 5, 9)]) is None


def test_progress_never_fails_a_query(caplog: pytest.LogCaptureFixture) -> None:
    cluster, clock = SmallCluster(LOGS), Clock()
    progress = OffsetCommitter(cluster, "mine", "tidelog-spark", clock)  # type: ignore[arg-type]
    cluster.broken = True
    progress.processed({A0: 5})
    progress.processed({A0: 6})
    assert cluster.asked["commit"] == 1
    assert "lag of the query is not up to date: nobody there" in caplog.text
    cluster.broken = False
    clock.now += PAUSE_AFTER_TROUBLE_SECONDS + 1
    progress.processed({A0: 6})
    assert cluster.groups == {"mine": {A0: (6, "")}}
