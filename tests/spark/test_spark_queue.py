"""format("tidelog") with share.group on a real Spark: a topic read as a queue.

`TIDELOG_TEST_BOOTSTRAP=$(tests/conformance/oracle start)` holds the same against Apache Kafka.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ShareConsumer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

from tests.spark.spark_driver import Driver
from tests.support.child_programs import environment, program
from tidelog.admin.cluster_admin import ClusterAdmin
from tidelog.admin.share_groups import ShareGroups
from tidelog.client.client_settings import ClientSettings

SECONDS_MAX = 300
#: longer than the locks of the group
WORK_SECONDS = 22.0
MakeTopic = Callable[..., str]
Fill = Callable[..., None]
Batches = list[tuple[int, list[int]]]

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def make_queue(admin: Any, make_topic: MakeTopic) -> Callable[[int], str]:
    """A topic whose share group, of the same name, begins at the start; with the shortest locks."""

    def make(partitions: int) -> str:
        name = make_topic(partitions, "queue")
        settings = {"share.auto.offset.reset": "earliest", "share.record.lock.duration.ms": "15000"}
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
            for key, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.GROUP, name, incremental_configs=entries)
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(SECONDS_MAX)
        return name

    return make


def read(spark: SparkSession, bootstrap: str, queue: str, **more: str) -> DataFrame:
    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": queue, "share.group": queue, **more}
    return spark.readStream.format("tidelog").options(**given).load()


def run(frame: DataFrame, folder: Path, process: Callable[[DataFrame, int], None], **trigger: Any) -> Any:
    return (
        frame.writeStream.foreachBatch(process)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(**(trigger or {"availableNow": True}))
        .start()
    )


def left(bootstrap: str, group: str) -> int:
    """What the group has still to deal with."""
    settings = ClientSettings.from_options({"bootstrap.servers": bootstrap})
    with ClusterAdmin(lambda: settings) as admin:
        return sum(lag or 0 for _, lag in ShareGroups(admin).starts(group).values())


def wait_until(condition: Callable[[], bool], query: Any) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline
        assert query.isActive, query.exception()
        time.sleep(0.1)


def test_a_queue_is_read_by_more_tasks_than_partitions_and_accepted(
    spark: SparkSession, bootstrap: str, make_queue: Callable[[int], str], fill: Fill, tmp_path: Path
) -> None:
    queue = make_queue(2)
    fill(queue, range(1_000), 2)
    batches: Batches = []
    tasks: set[int] = set()

    def process(frame: DataFrame, batch: int) -> None:
        rows = frame.select("value", "partition", F.spark_partition_id().alias("task")).collect()
        batches.append((batch, [int(row.value) for row in rows]))
        tasks.update(row.task for row in rows)

    limits = {"maxOffsetsPerTrigger": "400", "minPartitions": "5"}
    query = run(read(spark, bootstrap, queue, **limits), tmp_path, process)
    assert query.awaitTermination(SECONDS_MAX)
    assert Counter(n for _, numbers in batches for n in numbers) == Counter(range(1_000))
    assert len(batches) >= 3 and max(len(numbers) for _, numbers in batches) <= 400
    assert len(tasks) >= 5
    assert left(bootstrap, queue) == 0
    # The same query goes on where it was: with what is new.
    fill(queue, range(1_000, 1_100), 2)
    batches.clear()
    query = run(read(spark, bootstrap, queue, **limits), tmp_path, process)
    assert query.awaitTermination(SECONDS_MAX)
    assert Counter(n for _, numbers in batches for n in numbers) == Counter(range(1_000, 1_100))


def test_a_micro_batch_that_takes_longer_than_a_lock_keeps_its_records(
    spark: SparkSession, bootstrap: str, make_queue: Callable[[int], str], fill: Fill, tmp_path: Path
) -> None:
    queue = make_queue(1)
    fill(queue, range(100))
    seen: Counter[int] = Counter()
    others: list[Any] = []

    def process(frame: DataFrame, batch: int) -> None:
        seen.update(int(row.value) for row in frame.select("value").collect())
        if batch == 0:
            settings = {"bootstrap.servers": bootstrap, "group.id": queue}
            with ShareConsumer(settings) as consumer:
                consumer.subscribe([queue])
                until = time.monotonic() + WORK_SECONDS
                while time.monotonic() < until:
                    others.extend(consumer.poll(0.5))

    query = run(read(spark, bootstrap, queue), tmp_path, process)
    assert query.awaitTermination(SECONDS_MAX)
    assert seen == Counter(range(100))
    assert others == []
    assert left(bootstrap, queue) == 0


def test_what_a_failed_micro_batch_had_comes_again(
    spark: SparkSession, bootstrap: str, make_queue: Callable[[int], str], fill: Fill, tmp_path: Path
) -> None:
    queue = make_queue(1)
    fill(queue, range(50))
    batches: Batches = []

    def process(frame: DataFrame, batch: int) -> None:
        batches.append((batch, sorted(int(row.value) for row in frame.select("value").collect())))
        if len(batches) == 1:
            raise ValueError("it fails the first time")

    frame = read(spark, bootstrap, queue)
    with pytest.raises(PySparkException, match="it fails the first time"):
        run(frame, tmp_path / "first", process).awaitTermination(SECONDS_MAX)
    # The same query runs it again, with the same records.
    assert run(frame, tmp_path / "first", process).awaitTermination(SECONDS_MAX)
    assert batches == [(0, list(range(50)))] * 2
    assert left(bootstrap, queue) == 0


def test_another_query_of_the_group_gets_what_a_failed_one_had(
    spark: SparkSession, bootstrap: str, make_queue: Callable[[int], str], fill: Fill, tmp_path: Path
) -> None:
    queue = make_queue(1)
    fill(queue, range(50))
    seen: list[int] = []

    def fail(frame: DataFrame, batch: int) -> None:
        raise ValueError("it fails")

    def process(frame: DataFrame, batch: int) -> None:
        seen.extend(int(row.value) for row in frame.select("value").collect())

    frame = read(spark, bootstrap, queue)
    with pytest.raises(PySparkException, match="it fails"):
        run(frame, tmp_path / "failing", fail).awaitTermination(SECONDS_MAX)
    query = run(frame, tmp_path / "other", process, processingTime="200 milliseconds")
    try:
        wait_until(lambda: len(seen) >= 50, query)
        wait_until(lambda: left(bootstrap, queue) == 0, query)
    finally:
        query.stop()
    assert sorted(seen) == list(range(50))


def test_a_driver_that_is_killed_loses_nothing(
    bootstrap: str, make_queue: Callable[[int], str], fill: Fill, tmp_path: Path
) -> None:
    queue = make_queue(2)
    fill(queue, range(1_500), 2)
    noted = tmp_path / "batches"
    arguments = [bootstrap, queue, queue, str(tmp_path), "1.5"]
    log = tmp_path / "log"
    for kill in range(3):
        driver = Driver([*program("tests.spark.queue_driver"), *arguments], log, environment())
        try:
            if kill == 2:
                assert driver.wait(400) == 0, driver.log_tail()
                break
            before = _lines(noted)
            deadline = time.monotonic() + SECONDS_MAX
            while _lines(noted) <= before:
                assert driver.running and time.monotonic() < deadline, driver.log_tail()
                time.sleep(0.02)
            # In the middle of the micro-batch after this one.
            time.sleep(0.7)
        finally:
            if driver.running:
                driver.kill(jvm_alone=False)
    batches: Batches = [(batch, found) for batch, found in map(json.loads, noted.read_text().splitlines())]
    seen = Counter(number for _, found in batches for number in found)
    again = sum(times - 1 for times in seen.values())
    print(f"{len(batches)} micro-batches, {again} records came again", file=sys.stderr)
    assert seen.keys() == set(range(1_500))
    # A micro-batch that is run again has the same records.
    by_number: dict[int, list[int]] = {}
    for batch, found in batches:
        assert by_number.setdefault(batch, sorted(found)) == sorted(found)
    assert left(bootstrap, queue) == 0


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_mistakes_are_told_before_anything_runs(
    spark: SparkSession, bootstrap: str, make_queue: Callable[[int], str]
) -> None:
    queue = make_queue(1)
    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": queue, "share.group": queue}
    with pytest.raises(PySparkException, match=r"share\.group is for spark\.readStream"):
        spark.read.format("tidelog").options(**given).load().count()
    query = read(spark, bootstrap, queue, startingOffsets="earliest").writeStream.format("noop").start()
    with pytest.raises(PySparkException, match=r"share\.auto\.offset\.reset"):
        query.awaitTermination(SECONDS_MAX)
