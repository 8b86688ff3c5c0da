"""What the driver of a query over a share group decides, with a group that is a list."""

import json
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from tests.unit.pipelines.test_pipelines_query_offsets import SmallCluster
from tidelog.client.faults import BadOption, ClientFault
from tidelog.client.share_member import AcquiredRange
from tidelog.model.identifiers import TopicPartition
from tidelog.pipelines.data_loss import DataLoss
from tidelog.pipelines.queue_batches import PATIENCE_SECONDS, QueueBatches
from tidelog.pipelines.queue_offsets import (
    GAP_MAX,
    REMEMBERED_SECONDS,
    Processed,
    QueueOffset,
    QueueTask,
    tasks_of,
)
from tidelog.pipelines.queue_records import of_spans
from tidelog.pipelines.source_options import SourceOptions

T, U = UUID(int=1), UUID(int=2)
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def taken(where: TopicPartition, first: int, last: int, count: int = 1, topic_id: UUID = T) -> AcquiredRange:
    return AcquiredRange(where, topic_id, first, last, count)


class Group:
    """A member of a share group that is given what the test says."""

    def __init__(self, *answers: list[AcquiredRange]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[int, int, set[TopicPartition]]] = []
        self.accepted: list[AcquiredRange] = []
        self.lost: set[AcquiredRange] = set()
        self.assigned = frozenset({P0, P1})
        self.closed = False
        self.now = 100.0

    def acquire(
        self, records_max: int, wait_ms: int, passed_over: set[TopicPartition]
    ) -> list[AcquiredRange]:
        self.asked.append((records_max, wait_ms, set(passed_over)))
        if self.answers:
            return self.answers.pop(0)
        self.now += wait_ms / 1000
        return []

    def acknowledge(self, kind: int, ranges: list[AcquiredRange]) -> list[AcquiredRange]:
        assert kind == 1
        self.accepted += [one for one in ranges if one not in self.lost]
        return [one for one in ranges if one in self.lost]

    def close(self) -> None:
        self.closed = True


def batches_of(group: Group, **options: str) -> QueueBatches:
    cluster = SmallCluster({P0: (0, 100), P1: (0, 0)})
    cluster.topic_ids["t"] = T
    given = {"kafka.bootstrap.servers": "a:1", "subscribe": "t", "share.group": "g", **options}
    read = SourceOptions.read(given, streaming=True)
    return QueueBatches(read, cluster, lambda _: group, lambda: group.now)  # type: ignore[arg-type]


def test_an_offset_is_written_and_read() -> None:
    offset = QueueOffset(3, "me", (taken(P0, 0, 9), taken(P0, 10, 19), taken(P0, 25, 25), taken(P1, 4, 4)))
    written = offset.to_json()
    assert written == {
        "batch": 3,
        "member": "me",
        "taken": {"t": {"id": str(T), "partitions": {"0": [[0, 19], [25, 25]], "1": [[4, 4]]}}},
    }
    read = QueueOffset.read(json.loads(json.dumps(written)))
    assert read.to_json() == written
    assert [one.records_count for one in read.ranges] == [20, 1, 1]


def test_the_checkpoint_of_another_source_is_refused() -> None:
    with pytest.raises(ClientFault, match="use another checkpoint"):
        QueueOffset.read({"t": {"0": 42}})


def test_a_micro_batch_is_accepted_when_spark_asks_for_the_next() -> None:
    group = Group([taken(P0, 0, 9)], [], [taken(P0, 10, 19)], [], [])
    batches = batches_of(group)
    start = batches.initial()
    first = batches.next_end(start, limited=True)
    assert [task.spans for task in batches.tasks(first)] == [((0, 9),)]
    assert group.accepted == []
    # Asked again before it ran: the same.
    assert batches.next_end(start, limited=True) == first
    second = batches.next_end(first, limited=True)
    assert group.accepted == [taken(P0, 0, 9)]
    assert second["batch"] == 2
    assert batches.next_end(second, limited=True) == second
    assert group.accepted == [taken(P0, 0, 9), taken(P0, 10, 19)]


def test_a_micro_batch_has_about_as_many_records_as_the_limit_says() -> None:
    group = Group([taken(P0, 0, 59)], [taken(P1, 0, 59)], [taken(P1, 60, 99)])
    batches = batches_of(group, maxOffsetsPerTrigger="100")
    first = batches.next_end(batches.initial(), limited=True)
    assert [asked[0] for asked in group.asked] == [100, 40]
    assert sum(one.records_count for one in QueueOffset.read(first).ranges) == 120
    # Only while there is nothing at all is there a wait.
    assert [asked[1] for asked in group.asked] == [500, 0]


def test_what_was_processed_with_a_lock_that_was_lost_is_not_read_again() -> None:
    group = Group([taken(P0, 0, 9), taken(P1, 0, 4)], [])
    batches = batches_of(group)
    first = batches.next_end(batches.initial(), limited=True)
    group.lost = {taken(P0, 0, 9)}
    group.answers = [[taken(P0, 0, 9, 2), taken(P0, 10, 12)], []]
    second = batches.next_end(first, limited=True)
    assert QueueOffset.read(second).ranges == (taken(P0, 10, 12, 0),)
    assert group.accepted == [taken(P1, 0, 4), taken(P0, 0, 9, 2)]


def test_after_a_restart_the_last_micro_batch_is_known() -> None:
    checkpoint = QueueOffset(5, "me", (taken(P0, 0, 9),)).to_json()
    group = Group([taken(P0, 0, 9, 2), taken(P0, 10, 12)], [])
    after = batches_of(group).next_end(checkpoint, limited=True)
    assert QueueOffset.read(after) == QueueOffset(6, "me", (taken(P0, 10, 12, 0),))
    assert group.accepted == [taken(P0, 0, 9, 2)]


@pytest.mark.parametrize(
    "again",
    [taken(P0, 0, 9, 1), taken(P0, 0, 10, 2), taken(P0, 0, 9, 2, U)],
    ids=["the group was moved back", "there is more in it", "another topic of this name"],
)
def test_what_may_be_something_else_is_delivered(again: AcquiredRange) -> None:
    checkpoint = QueueOffset(5, "me", (taken(P0, 0, 9),)).to_json()
    group = Group([again], [])
    after = batches_of(group).next_end(checkpoint, limited=True)
    assert [one[:4] for one in QueueOffset.read(after).ranges] == [again[:4]]
    assert group.accepted == []


def test_what_was_processed_is_forgotten_after_a_while() -> None:
    processed = Processed()
    processed.add([taken(P0, 0, 9)], now=0.0)
    assert processed.known([taken(P0, 0, 4)], REMEMBERED_SECONDS - 1) == {taken(P0, 0, 4)}
    assert processed.known([taken(P0, 0, 4)], REMEMBERED_SECONDS - 1) == set(), "it was told once"
    assert processed.known([taken(P0, 5, 9)], REMEMBERED_SECONDS + 1) == set()
    assert len(processed) == 0


def test_a_run_that_ends_with_what_is_there_ends() -> None:
    group = Group([taken(P0, 0, 89)], [], [taken(P0, 90, 120)], [taken(P0, 121, 150)])
    batches = batches_of(group)
    batches.stop_at_present()
    first = batches.next_end(batches.initial(), limited=False)
    second = batches.next_end(first, limited=False)
    assert QueueOffset.read(second).ranges == (taken(P0, 90, 120, 0),)
    # Partition 0 is past its end of the beginning, partition 1 had nothing.
    assert batches.next_end(second, limited=False) == second
    assert group.accepted == [taken(P0, 0, 89), taken(P0, 90, 120)]


def test_a_run_ends_when_others_have_the_rest() -> None:
    group = Group([taken(P0, 0, 9)], [])
    batches = batches_of(group)
    batches.stop_at_present()
    first = batches.next_end(batches.initial(), limited=False)
    before = group.now = 1_000.0
    assert batches.next_end(first, limited=False) == first
    assert before + PATIENCE_SECONDS <= group.now <= before + PATIENCE_SECONDS + 1


def test_a_topic_that_is_another_one_now_is_a_loss() -> None:
    checkpoint = QueueOffset(5, "me", (taken(P0, 0, 9, topic_id=U),)).to_json()
    with pytest.raises(DataLoss, match="made anew"):
        batches_of(Group()).tasks(checkpoint)
    assert batches_of(Group(), failOnDataLoss="false").tasks(checkpoint) == []


def test_closing_leaves_the_group() -> None:
    group = Group([taken(P0, 0, 9)], [])
    batches = batches_of(group)
    batches.cluster.close = lambda: None  # type: ignore[method-assign]
    batches.next_end(batches.initial(), limited=True)
    batches.close()
    assert group.closed and group.accepted == []


def test_records_become_tasks() -> None:
    ranges = [taken(P0, 0, 9), taken(P0, 20, 29), taken(P1, 0, 3)]
    assert tasks_of(ranges, None, None) == [
        QueueTask(P0, ((0, 9), (20, 29))),
        QueueTask(P1, ((0, 3),)),
    ]
    assert tasks_of(ranges, 3, None) == [
        QueueTask(P0, ((0, 7),)),
        QueueTask(P0, ((8, 9), (20, 25))),
        QueueTask(P0, ((26, 29),)),
        QueueTask(P1, ((0, 3),)),
    ]
    assert len(tasks_of(ranges, None, 1)) == 24
    far = [taken(P0, 0, 0), taken(P0, GAP_MAX + 2, GAP_MAX + 2)]
    assert len(tasks_of(far, None, None)) == 2
    assert tasks_of([], 4, None) == []


def test_a_task_keeps_its_own_records() -> None:
    batch = pa.RecordBatch.from_pydict({"offset": pa.array(np.arange(5, 25))})
    kept = of_spans(batch, ((0, 6), (10, 10), (20, 30)))
    assert kept.column("offset").to_pylist() == [5, 6, 10, 20, 21, 22, 23, 24]
    assert of_spans(batch, ((5, 24),)) is batch


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffsets": "earliest"}, "share.auto.offset.reset"),
        ({"isolationLevel": "read_committed"}, "share.isolation.level"),
        ({"group.id": "x"}, "group.id does not go with share.group"),
        ({"share.group": " "}, "share.group is empty"),
        ({"subscribe": "", "subscribePattern": "t.*"}, "by name"),
        ({"minOffsetsPerTrigger": "5"}, "does not keep waiting"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, str], words: str) -> None:
    given: dict[str, Any] = {
        "kafka.bootstrap.servers": "a:1",
        "subscribe": "t",
        "share.group": "g",
        **options,
    }
    with pytest.raises(BadOption) as refused:
        SourceOptions.read({name: value for name, value in given.items() if value}, streaming=True)
    assert words in str(refused.value)


def test_a_batch_query_is_refused() -> None:
    given = {"kafka.bootstrap.servers": "a:1", "subscribe": "t", "share.group": "g"}
    with pytest.raises(BadOption, match="availableNow"):
        SourceOptions.read(given, streaming=False)
