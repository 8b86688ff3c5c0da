"""format("tidelog") on a real Spark: content, limits, checkpoints, new partitions, data loss, lag."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import NewPartitions
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

from tidelog.cli.main import tidelog

SECONDS_MAX = 100
MakeTopic = Callable[..., str]
Fill = Callable[..., None]

pytestmark = pytest.mark.timeout(240)


def options(bootstrap: str, topic: str, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, **more}


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in frame.select("value").collect())


def start(spark: SparkSession, folder: Path, given: dict[str, str], **trigger: Any) -> Any:
    """A query that copies values to Parquet."""
    return (
        spark.readStream.format("tidelog")
        .options(**given)
        .load()
        .select("partition", "offset", F.col("value").cast("string").alias("value"))
        .writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(**trigger)
        .start()
    )


def run(spark: SparkSession, folder: Path, given: dict[str, str]) -> Any:
    """The same until everything that is there was read."""
    query = start(spark, folder, given, availableNow=True)
    assert query.awaitTermination(SECONDS_MAX)
    return query


def written(spark: SparkSession, folder: Path) -> list[int]:
    return numbers(spark.read.schema("partition int, offset long, value string").parquet(str(folder / "out")))


def wait_until(condition: Callable[[], bool], query: Any = None) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline
        assert query is None or query.isActive, query.exception()
        time.sleep(0.1)


def committed(admin: Any, group: str, topic: str, partitions: int) -> list[int]:
    """As an unmodified admin client sees it."""
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, p) for p in range(partitions)])
    found = admin.list_consumer_group_offsets([asked])[group].result(SECONDS_MAX)
    return [row.offset for row in found.topic_partitions]


def test_batch(spark: SparkSession, bootstrap: str, make_topic: MakeTopic, fill: Fill) -> None:
    topic = make_topic(3)
    fill(topic, range(3_000), 3, **{"compression.type": "lz4"})
    frame = spark.read.format("tidelog").options(**options(bootstrap, topic)).load()
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    assert frame.count() == 3_000
    rows = frame.orderBy("timestamp").limit(4).collect()
    assert [(row.key, row.value, row.topic, row.partition, row.offset) for row in rows] == [
        (b"0", b"0", topic, 0, 0),
        (b"1", b"1", topic, 1, 0),
        (b"2", b"2", topic, 2, 0),
        (b"3", b"3", topic, 0, 1),
    ]
    assert frame.selectExpr("unix_millis(min(timestamp))", "max(timestampType)").first() == (1_000_000, 0)


def test_batch_ranges_and_columns(
    spark: SparkSession, bootstrap: str, make_topic: MakeTopic, fill: Fill
) -> None:
    topic = make_topic(2)
    fill(topic, range(1_000), 2)
    given = options(
        bootstrap,
        topic,
        startingOffsets=f'{{"{topic}":{{"0":100,"1":-2}}}}',
        endingOffsets=f'{{"{topic}":{{"0":110,"1":3}}}}',
        includeHeaders="true",
        includeLeaderEpoch="true",
        minPartitions="4",
    )
    frame = spark.read.format("tidelog").options(**given).load()
    rows = frame.withColumn("task", F.spark_partition_id()).orderBy("partition", "offset").collect()
    assert [int(row.value) for row in rows] == [*range(200, 220, 2), 1, 3, 5]
    assert len({row.task for row in rows}) == 4
    assert rows[0].headers is None
    assert [(header.key, header.value) for header in rows[-1].headers] == [("n", b"5")]
    assert all(row.leaderEpoch >= 0 for row in rows)
    by_time = options(bootstrap, topic, startingTimestamp="1000990", endingTimestamp="1000995")
    assert numbers(spark.read.format("tidelog").options(**by_time).load()) == list(range(990, 995))


def test_stream_in_limited_batches_and_from_a_checkpoint(
    spark: SparkSession, bootstrap: str, make_topic: MakeTopic, fill: Fill, admin: Any, tmp_path: Path
) -> None:
    topic = make_topic(2)
    fill(topic, range(1_000), 2)
    given = options(bootstrap, topic, startingOffsets="earliest", maxOffsetsPerTrigger="400")
    query = run(spark, tmp_path, given)
    assert [progress["numInputRows"] for progress in query.recentProgress][:3] == [400, 400, 200]
    assert written(spark, tmp_path) == list(range(1_000))
    # No group was named: it has the name of the query, and the last batch is in it.
    group = f"tidelog-spark-{query.id}"
    assert committed(admin, group, topic, 2) == [500, 500]
    fill(topic, range(1_000, 1_300), 2)
    again = run(spark, tmp_path, given)
    assert again.id == query.id
    assert written(spark, tmp_path) == list(range(1_300))
    assert committed(admin, group, topic, 2) == [650, 650]


def test_a_running_query_sees_new_records_and_partitions_and_shows_its_lag(
    spark: SparkSession, bootstrap: str, make_topic: MakeTopic, fill: Fill, admin: Any, tmp_path: Path
) -> None:
    topic = make_topic(1)
    given = options(bootstrap, topic, startingOffsets="earliest", **{"group.id": f"group-of-{topic}"})
    given["partitionDiscoveryIntervalMs"] = "200"
    query = start(spark, tmp_path, given, processingTime="200 milliseconds")
    try:
        fill(topic, range(500))
        wait_until(lambda: committed(admin, f"group-of-{topic}", topic, 1) == [500], query)
        assert written(spark, tmp_path) == list(range(500))
        admin.create_partitions([NewPartitions(topic, 3)])[topic].result(SECONDS_MAX)
        fill(topic, range(501, 900), 3)
        expected = [*range(500), *range(501, 900)]
        wait_until(lambda: written(spark, tmp_path) == expected, query)
        wait_until(lambda: committed(admin, f"group-of-{topic}", topic, 3) == [633, 133, 133], query)
        shown = CliRunner().invoke(tidelog, ["group", "lag", f"group-of-{topic}", "--bootstrap", bootstrap])
        assert shown.exit_code == 0, shown.output
        assert "total lag 0" in shown.output
    finally:
        query.stop()


def test_lost_records_stop_a_query_unless_it_is_told_to_go_on(
    spark: SparkSession, bootstrap: str, make_topic: MakeTopic, fill: Fill, admin: Any, tmp_path: Path
) -> None:
    topic = make_topic(1)
    fill(topic, range(100))
    given = options(bootstrap, topic, startingOffsets="earliest")
    run(spark, tmp_path, given)
    fill(topic, range(100, 200))
    for future in admin.delete_records([TopicPartition(topic, 0, 150)]).values():
        future.result(SECONDS_MAX)
    with pytest.raises(PySparkException, match="offset 100 is not in the log, which begins at 150"):
        run(spark, tmp_path, given)
    run(spark, tmp_path, {**given, "failOnDataLoss": "false"})
    assert written(spark, tmp_path) == [*range(100), *range(150, 200)]


def test_mistakes_are_told_before_anything_runs(
    spark: SparkSession, bootstrap: str, make_topic: MakeTopic
) -> None:
    with pytest.raises(PySparkException, match="is 'startingOffsets' meant"):
        spark.read.format("tidelog").options(
            **options(bootstrap, "x", startingOffset="latest")
        ).load().count()
    with pytest.raises(PySparkException, match="the cluster has no nothing-here: create it first"):
        spark.read.format("tidelog").options(**options(bootstrap, "nothing-here")).load().count()
