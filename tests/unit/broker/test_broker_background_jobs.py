"""Background jobs: one that fails is told, counted, tried again, and keeps no other waiting."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.broker.node import NodeUnderTest
from tidelog.broker.maintenance import dirty_logs
from tidelog.broker.maintenance.compaction import JOB
from tidelog.broker.maintenance.dirty_logs import UNCLEANABLE_MS_MAX
from tidelog.broker.replicas.partition import Partition
from tidelog.broker.runtime.background_jobs import RETRY_MS_MAX, BackgroundJobs
from tidelog.model.events import BACKGROUND_JOB_FAILED, BACKGROUND_JOB_RECOVERED, COMPACTION_FAILED
from tidelog.records.builder import build_batch
from tidelog.records.corrupt_record import CorruptRecord
from tidelog.records.record import Record
from tidelog.storage.cleaner import CleaningPlan
from tidelog.storage.cleaning_process import CleanerUnavailable
from tidelog.storage.partition_log import PartitionLog

HOUR_MS = 3_600_000


class Failing:
    """Work that fails until it is told not to."""

    def __init__(self, fault: Exception) -> None:
        self.fault: Exception | None = fault
        self.calls_ms: list[int] = []
        self.now: Callable[[], int] = lambda: 0

    def __call__(self) -> None:
        self.calls_ms.append(self.now())
        if self.fault is not None:
            raise self.fault


def run_for(node: NodeUnderTest, milliseconds: int, step_ms: int = 500) -> None:
    for _ in range(milliseconds // step_ms):
        node.advance(step_ms)


@pytest.fixture
def node() -> NodeUnderTest:
    node = NodeUnderTest(log_cleaner_backoff_ms="1000")
    node.broker.jobs.raise_unexpected = False
    return node


def jobs_of(node: NodeUnderTest) -> BackgroundJobs:
    return node.broker.jobs


class TestEvery:
    @pytest.mark.parametrize("fault", [OSError(5, "Input/output error"), KeyError("a bug"), ValueError("x")])
    def test_it_is_tried_again_ever_more_rarely_but_not_later_than_it_would_run(
        self, node: NodeUnderTest, fault: Exception
    ) -> None:
        work = Failing(fault)
        began_ms = node.clock.time_ms
        work.now = lambda: (node.clock.time_ms - began_ms) // 1000
        jobs_of(node).every("test", lambda: 20_000, work)
        run_for(node, 100_000)
        assert work.calls_ms == [20, 21, 23, 27, 35, 51, 71, 91]
        assert jobs_of(node).job("test").failures == 8
        work.fault = None
        run_for(node, 20_000)
        job = jobs_of(node).job("test")
        assert not job.failing and job.runs == 1 and job.fault == ""
        counts = node.broker.metrics.events.counts
        assert counts[BACKGROUND_JOB_FAILED] == counts[BACKGROUND_JOB_RECOVERED] == 1

    def test_the_log_tells_the_first_and_then_less_and_less(
        self, node: NodeUnderTest, caplog: pytest.LogCaptureFixture
    ) -> None:
        jobs_of(node).every("test", lambda: 1_000, Failing(KeyError("a bug")))
        with caplog.at_level(logging.ERROR):
            run_for(node, 100_000)
        told = [record for record in caplog.records if record.getMessage().startswith("test failed")]
        assert len(told) == 7, "1, 2, 4, … 64 times in a row"
        assert told[0].exc_info is not None, "a bug of ours has its traceback in the log"

    def test_a_bug_surfaces_where_a_simulation_wants_it(self, node: NodeUnderTest) -> None:
        jobs_of(node).raise_unexpected = True
        jobs_of(node).every("test", lambda: 1_000, Failing(KeyError("a bug")))
        with pytest.raises(KeyError):
            run_for(node, 2_000)

    def test_the_pause_has_a_bound(self, node: NodeUnderTest) -> None:
        for _ in range(100):
            jobs_of(node).failed("test", OSError("no"))
        assert jobs_of(node).job("test").retry_ms == RETRY_MS_MAX


@pytest.mark.parametrize(
    ("job", "attribute", "interval_ms"),
    [
        ("retention", "retention_plan", 300_000),
        ("flush by age", "write_indexes", 1_000),
    ],
)
def test_one_log_that_fails_keeps_no_other_waiting(
    node: NodeUnderTest, monkeypatch: pytest.MonkeyPatch, job: str, attribute: str, interval_ms: int
) -> None:
    node.create_topic("t", partitions=3)
    for index in range(3):
        fill(node, "t", index, 1)
    seen: list[int] = []
    real: Any = getattr(PartitionLog, attribute)

    def look(log: PartitionLog, *arguments: object) -> object:
        seen.append(log.topic_partition.partition)
        if log.topic_partition.partition == 1:
            raise AssertionError("damaged")
        return real(log, *arguments)

    monkeypatch.setattr(PartitionLog, attribute, look)
    node.advance(interval_ms)
    assert set(seen) >= {0, 1, 2}
    found = jobs_of(node).job(job)
    assert found.failing and "t-1" in found.fault


def test_what_waits_for_a_flush_hears_of_a_bug_too(
    node: NodeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create_topic("t", flush_messages="1")
    partition = node.broker.replicas.led["t", 0]
    failed: list[OSError] = []
    flusher = node.broker.flusher
    monkeypatch.setattr(flusher, "_tell_of", lambda partition, fault: failed.append(fault))
    flusher._running.add(partition)
    flusher._finish(partition, None, KeyError("a bug"))  # type: ignore[arg-type]
    assert "a bug" in str(failed[0])


def fill(node: NodeUnderTest, topic: str, index: int, count: int) -> Partition:
    """Records of one key, a segment each."""
    partition = node.broker.replicas.led[topic, index]
    for number in range(count):
        batch = memoryview(bytearray(build_batch([Record(0, node.clock.time_ms, b"k", b"%d" % number)])))
        append(partition, batch, node.clock.time_ms)
    return partition


def append(partition: Partition, batch: memoryview, now_ms: int) -> None:
    from tidelog.records.batch import patch_offset_and_epoch, read_header

    offset = partition.log.log_end_offset
    patch_offset_and_epoch(batch, 0, offset, 0)
    partition.log.append(batch, read_header(batch), offset, 0, now_ms)
    partition.appended_bytes += len(batch)
    partition.high_watermark = offset + 1


class TestCompaction:
    @pytest.fixture
    def tables(self, node: NodeUnderTest) -> list[Partition]:
        node.create_topic(
            "t", partitions=3, cleanup_policy="compact", segment_bytes="100", min_cleanable_dirty_ratio="0.01"
        )
        return [fill(node, "t", index, 20) for index in range(3)]

    def faults(
        self, monkeypatch: pytest.MonkeyPatch, fault: Exception, partitions: set[int]
    ) -> dict[int, int]:
        """Have the compaction of some partitions fail; how often each was tried."""
        tried: dict[int, int] = {}
        real = CleaningPlan.run

        def run(plan: CleaningPlan, *arguments: Any, **more: Any) -> Any:
            index = plan.topic_partition.partition
            tried[index] = tried.get(index, 0) + 1
            if index in partitions:
                raise fault
            return real(plan, *arguments, **more)

        monkeypatch.setattr(CleaningPlan, "run", run)
        return tried

    @pytest.mark.parametrize(
        "fault", [OSError(5, "Input/output error"), CorruptRecord("a damaged batch"), ValueError("a bug")]
    )
    def test_one_log_that_cannot_be_compacted_does_not_stop_the_others(
        self,
        node: NodeUnderTest,
        tables: list[Partition],
        monkeypatch: pytest.MonkeyPatch,
        fault: Exception,
    ) -> None:
        broken = {1}
        monkeypatch.setattr("tidelog.broker.runtime.background.InlineBackground.run", run_and_tell)
        tried = self.faults(monkeypatch, fault, broken)
        run_for(node, 10_000)
        assert tried[0] == tried[2] == 1, "the others were compacted"
        assert tried[1] == 4, "and this one tried again, after pauses that double"
        assert list(node.broker.dirty_logs.uncleanable) == [tables[1]]
        assert node.broker.metrics.events.counts[COMPACTION_FAILED] == 4
        text = "".join(node.broker.scrape.get().run())
        assert 'tidelog_cleaner_uncleanable_partitions{log_dir="/data"} 1\n' in text
        assert f'tidelog_cleaner_uncleanable_bytes{{log_dir="/data"}} {tables[1].log.size_bytes}\n' in text
        broken.clear()
        run_for(node, 20_000)
        assert not node.broker.dirty_logs.uncleanable
        assert not jobs_of(node).failing()
        assert 'tidelog_cleaner_uncleanable_partitions{log_dir="/data"} 0\n' in "".join(
            node.broker.scrape.get().run()
        )

    def test_the_pause_of_an_uncleanable_log_has_a_bound(
        self, node: NodeUnderTest, tables: list[Partition], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tried = self.faults(monkeypatch, CorruptRecord("a damaged batch"), {1})
        run_for(node, 12 * HOUR_MS, step_ms=600_000)
        before = tried[1]
        run_for(node, 5 * HOUR_MS, step_ms=600_000)
        assert tried[1] - before == pytest.approx(5 * HOUR_MS // UNCLEANABLE_MS_MAX, abs=1)

    def test_a_cleaner_that_cannot_work_blames_no_log_and_comes_back(
        self, node: NodeUnderTest, tables: list[Partition], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        broken = {0, 1, 2}
        self.faults(monkeypatch, CleanerUnavailable("no process can be started"), broken)
        run_for(node, 30_000)
        job = jobs_of(node).job(JOB)
        assert job.failing and "no process" in job.fault
        assert not node.broker.dirty_logs.uncleanable
        text = "".join(node.broker.scrape.get().run())
        assert "tidelog_cleaner_dead_threads 1\n" in text
        assert "tidelog_cleaner_seconds_since_last_run 30.0\n" in text
        assert 'tidelog_background_failing{job="compaction"}' in text
        broken.clear()
        run_for(node, RETRY_MS_MAX)
        assert not job.failing
        assert node.broker.metrics.cleaner.rounds == 3
        assert "tidelog_cleaner_dead_threads 0\n" in "".join(node.broker.scrape.get().run())

    def test_a_log_that_cannot_be_looked_at_does_not_stop_the_others(
        self, node: NodeUnderTest, tables: list[Partition], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = dirty_logs.plan_cleaning  # type: ignore[attr-defined]

        def plan(log: PartitionLog, **more: Any) -> Any:
            if log.topic_partition.partition == 0:
                raise AssertionError("damaged")
            return real(log, **more)

        monkeypatch.setattr(dirty_logs, "plan_cleaning", plan)
        run_for(node, 5_000)
        assert node.broker.metrics.cleaner.rounds == 2
        assert list(node.broker.dirty_logs.uncleanable) == [tables[0]]

    def test_new_segments_without_their_names_are_left_until_a_restart(
        self, node: NodeUnderTest, tables: list[Partition], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another round would take the files that the log reads for leftovers, and remove them."""
        real = PartitionLog.finish_replacement

        def finish(log: PartitionLog) -> None:
            if log.topic_partition.partition == 1:
                raise OSError(5, "Input/output error")
            real(log)

        monkeypatch.setattr(PartitionLog, "finish_replacement", finish)
        tried = self.faults(monkeypatch, OSError(), set())
        run_for(node, 3 * HOUR_MS, step_ms=600_000)
        assert tried == {0: 1, 1: 1, 2: 1}
        assert list(node.broker.dirty_logs.uncleanable) == [tables[1]]


def run_and_tell(self: object, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
    """As the worker threads do: every exception is an outcome."""
    try:
        outcome = work()
    except Exception as fault:
        outcome = fault
    then(outcome)


def test_deleted_files_that_stay_are_tried_again(
    node: NodeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Failing(OSError(30, "Read-only file system"))
    node.broker.removals._later(0, work)
    run_for(node, 10_000)
    assert len(work.calls_ms) == 4
    assert jobs_of(node).job("removal of deleted files").failing
    work.fault = None
    run_for(node, 20_000)
    assert not jobs_of(node).failing()


def test_checkpoints_are_tried_again_before_their_time(
    node: NodeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Failing(OSError(28, "No space left on device"))
    node.create_topic("t")

    class Plan:
        run = staticmethod(work)

    monkeypatch.setattr(type(node.broker.log_directories), "checkpoint_plan", lambda self, marks: Plan)
    run_for(node, 60_000)
    assert jobs_of(node).job("checkpoint").failing and len(work.calls_ms) == 1
    run_for(node, 7_000)
    assert len(work.calls_ms) == 4, "after 1, 2 and 4 seconds, not after another minute"
