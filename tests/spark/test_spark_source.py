"""format("tidelog") on a real Spark: content, limits, checkpoints, new partitions, data loss, lag."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewPartitions, NewTopic, OffsetSpec  # type: ignore[attr-defined]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

from tests.spark.ready_runs import committed
from tidelog.cli.main import tidelog
from tidelog.pipelines.source import TidelogStreamReader
from tidelog.pipelines.source_options import SourceOptions
from tidelog.pipelines.spark_api import ReadAllAvailable

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


def written_or_none(spark: SparkSession, folder: Path) -> list[int]:
    """The same while there may be nothing yet."""
    return written(spark, folder) if (folder / "out" / "_spark_metadata" / "0").exists() else []


def wait_until(condition: Callable[[], bool], query: Any = None) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline
        assert query is None or query.isActive, query.exception()
        time.sleep(0.1)


def lag_seen(admin: Any, group: str, topic: str, partitions: int) -> int:
    """The lag of a group, from nothing but what an unmodified admin client is told."""
    asked = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in range(partitions)}
    ends = [future.result(SECONDS_MAX).offset for future in admin.list_offsets(asked).values()]
    return sum(ends) - sum(max(0, offset) for offset in committed(admin, group, topic, partitions))


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


def test_batch_by_pattern_assignment_and_timestamps(
    spark: SparkSession, bootstrap: str, make_topic: MakeTopic, fill: Fill
) -> None:
    first, second = make_topic(2, "patterned"), make_topic(1, "patterned")
    fill(first, range(100), 2)
    fill(second, range(100, 200))

    def read(**given: str) -> list[int]:
        frame = spark.read.format("tidelog").options(**{"kafka.bootstrap.servers": bootstrap, **given}).load()
        return numbers(frame)

    assert read(subscribePattern=f"{first}|{second[:-1]}.") == list(range(200))
    assert read(subscribe=f"{first}, {second}") == list(range(200))
    assert read(assign=f'{{"{first}":[1],"{second}":[0]}}') == [*range(1, 100, 2), *range(100, 200)]
    starting = f'{{"{first}":{{"0":1000050,"1":1000090}}}}'
    assert read(subscribe=first, startingOffsetsByTimestamp=starting) == sorted(
        [*range(50, 100, 2), *range(91, 100, 2)]
    )
    ending = f'{{"{first}":{{"0":1000010,"1":0}}}}'
    assert read(subscribe=first, endingOffsetsByTimestamp=ending) == list(range(0, 10, 2))
    late = {"subscribe": first, "startingTimestamp": "2000000"}
    with pytest.raises(PySparkException, match="startingOffsetsByTimestampStrategy=latest"):
        read(**late)
    assert read(**late, startingOffsetsByTimestampStrategy="latest") == []
    frame = spark.read.format("tidelog").options(**options(bootstrap, second, maxRecordsPerPartition="30"))
    assert frame.load().rdd.getNumPartitions() == 4


def test_a_query_begins_where_it_was_first_said_to(bootstrap: str, make_topic: MakeTopic, fill: Fill) -> None:
    """Spark asks twice, and in between there may be new records."""
    topic = make_topic(1)
    fill(topic, range(10))
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    reader = TidelogStreamReader(SourceOptions.read(options, streaming=True))
    try:
        assert reader.initialOffset() == {topic: {"0": 10}}
        fill(topic, range(10, 15))
        assert reader.initialOffset() == {topic: {"0": 10}}
        assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable()) == {topic: {"0": 15}}
    finally:
        reader.stop()


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


def test_lag_of_a_running_query_as_an_admin_client_sees_it(
    spark: SparkSession, bootstrap: str, make_topic: MakeTopic, fill: Fill, admin: Any, tmp_path: Path
) -> None:
    topic = make_topic(2)
    fill(topic, range(1_000), 2)
    given = options(bootstrap, topic, startingOffsets="earliest", maxOffsetsPerTrigger="100")
    query = start(spark, tmp_path, given, processingTime="1 second")
    try:
        group = f"tidelog-spark-{query.id}"
        seen: list[int] = []

        def caught_up() -> bool:
            seen.append(lag_seen(admin, group, topic, 2))
            return seen[-1] == 0

        wait_until(caught_up, query)
        between = [lag for lag in seen if 0 < lag < 1_000]
        assert between and between == sorted(between, reverse=True), seen
        listed = admin.list_consumer_groups().result(SECONDS_MAX).valid
        assert group in {row.group_id for row in listed}
    finally:
        query.stop()
    fill(topic, range(1_000, 1_070), 2)
    assert lag_seen(admin, group, topic, 2) == 70


def test_a_micro_batch_waits_for_enough_records(
    spark: SparkSession, bootstrap: str, make_topic: MakeTopic, fill: Fill, tmp_path: Path
) -> None:
    topic = make_topic(1)
    fill(topic, range(100))
    given = options(bootstrap, topic, startingOffsets="earliest", minOffsetsPerTrigger="150")
    given |= {"maxTriggerDelay": "10m", "maxOffsetsPerTrigger": "160"}
    query = start(spark, tmp_path, given, processingTime="100 milliseconds")
    try:
        # The first batch goes at once, as in Spark.
        wait_until(lambda: written_or_none(spark, tmp_path) == list(range(100)), query)
        fill(topic, range(100, 200))
        time.sleep(2)
        wait_until(lambda: query.status["message"] == "Waiting for data to arrive", query)
        assert written(spark, tmp_path) == list(range(100))
        fill(topic, range(200, 300))
        wait_until(lambda: written_or_none(spark, tmp_path) == list(range(260)), query)
    finally:
        query.stop()
    # What is there is read at once when a query is told to stop at it.
    run(spark, tmp_path, given)
    assert written(spark, tmp_path) == list(range(300))


def test_a_pattern_sees_topics_that_are_made_later(
    spark: SparkSession, bootstrap: str, make_topic: MakeTopic, fill: Fill, tmp_path: Path
) -> None:
    first = make_topic(1, "later")
    fill(first, range(10))
    given = {"kafka.bootstrap.servers": bootstrap, "subscribePattern": "later-.*"}
    given |= {"startingOffsets": "earliest", "partitionDiscoveryIntervalMs": "200"}
    query = start(spark, tmp_path, given, processingTime="100 milliseconds")
    try:
        wait_until(lambda: written_or_none(spark, tmp_path) == list(range(10)), query)
        second = make_topic(1, "later")
        fill(second, range(10, 20))
        wait_until(lambda: written_or_none(spark, tmp_path) == list(range(20)), query)
    finally:
        query.stop()


def test_a_topic_that_is_made_anew_stops_a_query(
    spark: SparkSession, bootstrap: str, make_topic: MakeTopic, fill: Fill, admin: Any, tmp_path: Path
) -> None:
    topic = make_topic(1)
    fill(topic, range(10))
    given = options(bootstrap, topic, startingOffsets="earliest", partitionDiscoveryIntervalMs="200")
    query = start(spark, tmp_path, given, processingTime="100 milliseconds")
    try:
        wait_until(lambda: written_or_none(spark, tmp_path) == list(range(10)), query)
        admin.delete_topics([topic])[topic].result(SECONDS_MAX)
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(SECONDS_MAX)
        wait_until(lambda: not query.isActive)
        assert "failOnDataLoss" in str(query.exception())
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
