"""The sink in a real Spark: batch and streaming writes, columns, replays. Faults: exactly_once_spark.py."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidelog.client.client_settings import ClientSettings
from tidelog.client.cluster import Cluster
from tidelog.client.transactional_writer import open_transactions
from tidelog.pipelines.foreach_batch import to_topic

#: sink_options has it, which needs Spark
DEFAULT_PREFIX = "tidelog-spark-"
SECONDS_MAX = 120

pytestmark = pytest.mark.timeout(240)


def rows_of(spark: Any, bootstrap: str, topic: str) -> list[Any]:
    return (
        spark.read.format("tidelog")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("includeHeaders", "true")
        .load()
        .collect()
    )


def numbers_of(spark: Any, bootstrap: str, topic: str) -> list[int]:
    return sorted(int(row.value) for row in rows_of(spark, bootstrap, topic))


def numbers(spark: Any, count: int, partitions: int = 3) -> Any:
    return spark.range(0, count, 1, partitions).selectExpr(
        "CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value"
    )


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_batch_write(
    spark: Any, bootstrap: str, make_topic: Callable[..., str], delivery: str, codec: str
) -> None:
    topic = make_topic(3)
    (
        numbers(spark, 5_000)
        .write.format("tidelog")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", topic)
        .option("delivery", delivery)
        .option("kafka.compression.type", codec)
        .mode("append")
        .save()
    )
    assert numbers_of(spark, bootstrap, topic) == list(range(5_000))


def test_columns(spark: Any, bootstrap: str, make_topic: Callable[..., str]) -> None:
    first, second = make_topic(4), make_topic(2)
    frame = spark.sql(
        f"SELECT '{first}' AS topic, 'k' AS key, 'a' AS value, 3 AS partition,"
        " array(named_struct('key', 'h', 'value', CAST('1' AS BINARY))) AS headers,"
        " TIMESTAMP_MILLIS(1700000000123) AS timestamp"
        f" UNION ALL SELECT '{second}', NULL, NULL, 1, NULL, TIMESTAMP_MILLIS(5)"
    )
    frame.write.format("tidelog").option("kafka.bootstrap.servers", bootstrap).mode("append").save()
    (row,) = rows_of(spark, bootstrap, first)
    assert (bytes(row.key), bytes(row.value), row.partition) == (b"k", b"a", 3)
    assert [(header.key, bytes(header.value)) for header in row.headers] == [("h", b"1")]
    assert round(row.timestamp.timestamp() * 1000) % 1000 == 123
    (row,) = rows_of(spark, bootstrap, second)
    assert (row.key, row.value, row.partition) == (None, None, 1)


def test_a_version_is_written_once(spark: Any, bootstrap: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(2)
    for version in (0, 0, 1, 0):
        (
            numbers(spark, 100)
            .write.format("tidelog")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("topic", topic)
            .option("txnAppId", f"app-{topic}")
            .option("txnVersion", str(version))
            .mode("append")
            .save()
        )
    assert numbers_of(spark, bootstrap, topic) == sorted([*range(100), *range(100)])


def test_a_job_that_fails_leaves_nothing(spark: Any, bootstrap: str, make_topic: Callable[..., str]) -> None:
    """Tasks that are done have reported; the one that fails takes its rows with it. The job has no name."""
    topic = make_topic(3)
    # More rows than the sink gathers before it writes: the task that fails has a transaction by then.
    rows = spark.range(0, 90_000, 1, 3).selectExpr(
        "CAST(id AS STRING) AS key",
        "concat(CAST(IF(id = 89999, raise_error('no more'), id) AS STRING), repeat('x', 300)) AS value",
    )
    writer = rows.write.format("tidelog").option("kafka.bootstrap.servers", bootstrap)
    with pytest.raises(Exception, match="no more"):  # Spark wraps it as it likes
        writer.option("topic", topic).mode("append").save()
    assert rows_of(spark, bootstrap, topic) == []
    with Cluster(ClientSettings.from_options({"bootstrap.servers": bootstrap})) as cluster:
        assert open_transactions(cluster, f"{DEFAULT_PREFIX}job-") == []


def test_what_cannot_be_written_is_told(spark: Any, bootstrap: str, make_topic: Callable[..., str]) -> None:
    def attempt(frame: Any, **options: str) -> str:
        writer = frame.write.format("tidelog").option("kafka.bootstrap.servers", bootstrap)
        for name, value in options.items():
            writer = writer.option(name, value)
        with pytest.raises(Exception) as raised:  # Spark wraps it as it likes
            writer.mode("append").save()
        return str(raised.value)

    assert "column 'value'" in attempt(spark.range(1), topic="t")
    assert "Set the option 'topic'" in attempt(numbers(spark, 1))
    assert "exactly_once or at_least_once" in attempt(numbers(spark, 1), topic="t", delivery="perhaps")


def test_a_query_that_is_stopped_and_started_again(
    spark: Any,
    bootstrap: str,
    make_topic: Callable[..., str],
    fill: Callable[..., None],
    tmp_path: Path,
) -> None:
    source, target = make_topic(3), make_topic(3)
    fill(source, range(900), 3)

    def run() -> None:
        query = (
            spark.readStream.format("tidelog")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "300")
            .load()
            .select("key", "value")
            .writeStream.format("tidelog")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("topic", target)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(SECONDS_MAX)

    run()
    assert numbers_of(spark, bootstrap, target) == list(range(900))
    # As if the driver had died after the sink's commit and before Spark's own: the last batch is replayed.
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    run()
    assert numbers_of(spark, bootstrap, target) == list(range(900))
    fill(source, range(900, 1_200), 3)
    run()
    assert numbers_of(spark, bootstrap, target) == list(range(1_200))


def totals_of(spark: Any, bootstrap: str, source: str) -> Any:
    return (
        spark.readStream.format("tidelog")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
        .groupBy("key")
        .count()
        .selectExpr("CAST(key AS STRING) AS key", "CAST(count AS STRING) AS value")
    )


def test_output_mode_update_through_foreach_batch(
    spark: Any, bootstrap: str, make_topic: Callable[..., str], fill: Callable[..., None], tmp_path: Path
) -> None:
    """Exactly once, also when the driver dies between the sink's commit and Spark's."""
    source, target = make_topic(1), make_topic(1)
    write = to_topic({"kafka.bootstrap.servers": bootstrap, "topic": target})

    def run() -> list[tuple[str, str]]:
        writer = totals_of(spark, bootstrap, source).writeStream.outputMode("update").foreachBatch(write)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.trigger(availableNow=True).start().awaitTermination(SECONDS_MAX)
        return sorted(
            (bytes(row.key).decode(), bytes(row.value).decode()) for row in rows_of(spark, bootstrap, target)
        )

    fill(source, range(5))
    assert run() == [(str(number), "1") for number in range(5)]
    for path in (tmp_path / "checkpoint" / "commits").iterdir():
        if path.name.strip(".").startswith("0"):
            path.unlink()
    assert run() == [(str(number), "1") for number in range(5)]
    fill(source, range(2))
    assert run() == sorted([*((str(n), "1") for n in range(5)), ("0", "2"), ("1", "2")])


def test_where_spark_asks_for_another_mode_it_says_so(
    spark: Any, bootstrap: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Nothing of the sink is asked: the words are Spark's, or the sink's where it is asked."""
    topic = make_topic(1)
    options = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
    with pytest.raises(Exception, match=r"use either the .Append. or .Overwrite. mode"):
        numbers(spark, 1).write.format("tidelog").options(**options).save()
    with pytest.raises(Exception, match=r'write \.mode\("append"\)'):
        numbers(spark, 1).write.format("tidelog").options(**options).mode("overwrite").save()
    assert rows_of(spark, bootstrap, topic) == []
    writer = totals_of(spark, bootstrap, topic).writeStream.format("tidelog").options(**options)
    with pytest.raises(Exception, match="does not support Update mode"):
        writer.outputMode("update").option("checkpointLocation", str(tmp_path)).start().awaitTermination(
            SECONDS_MAX
        )


def test_output_mode_complete_writes_the_whole_result(
    spark: Any, bootstrap: str, make_topic: Callable[..., str], fill: Callable[..., None], tmp_path: Path
) -> None:
    source, target = make_topic(1), make_topic(1)
    for expected in (3, 6):
        fill(source, range(3))
        writer = totals_of(spark, bootstrap, source).writeStream.outputMode("complete").format("tidelog")
        writer = writer.options(**{"kafka.bootstrap.servers": bootstrap, "topic": target})
        writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
        assert writer.start().awaitTermination(SECONDS_MAX)
        assert len(rows_of(spark, bootstrap, target)) == expected
