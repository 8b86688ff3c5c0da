"""What every supported Spark has to do: read a batch and a stream, write exactly once, restart.

`make spark-versions` runs this file with each of them, in an environment of its own, and `make spark-test`
with the one that is installed. That drivers die in the middle is `exactly_once_spark`, for each version too.
"""

import datetime
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.ready_runs import committed, received
from tests.spark.test_spark_flows import SECONDS_MAX, make_out, order, produce
from tidelog.pipelines.checking import check_plan
from tidelog.pipelines.definition import read_definition
from tidelog.pipelines.planning import make_plan
from tidelog.pipelines.planning import start as start_plan
from tidelog.pipelines.problems import Findings
from tidelog.pipelines.runner import wait_for_all
from tidelog.pipelines.spark_api import HAS_ADMISSION_CONTROL, HAS_ARROW_STREAM_WRITER
from tidelog.pipelines.spark_versions import SUPPORTED, limits_note

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(500)


def stream(spark: "SparkSession", bootstrap: str, topic: str, **options: str) -> Any:
    chosen = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    return spark.readStream.format("tidelog").options(**chosen, **options).load()


def run(frame: Any, bootstrap: str, topic: str, checkpoint: Path) -> Any:
    query = (
        frame.writeStream.format("tidelog")
        .options(**{"kafka.bootstrap.servers": bootstrap, "topic": topic})
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(SECONDS_MAX)
    return query


def test_the_version_is_one_that_is_supported(spark: "SparkSession") -> None:
    numbers = tuple(int(part) for part in spark.version.split(".")[:2])
    assert numbers in SUPPORTED
    assert numbers >= (4, 2) if HAS_ADMISSION_CONTROL else numbers < (4, 2)
    assert numbers >= (4, 1) if HAS_ARROW_STREAM_WRITER else numbers < (4, 1)


def test_a_batch_is_read_and_written(
    spark: "SparkSession", bootstrap: str, make_topic: Callable[..., str], fill: Callable[..., None]
) -> None:
    topic, out = make_topic(3), make_topic(2)
    fill(topic, range(3_000), partitions=3)
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "includeHeaders": "true"}
    frame = spark.read.format("tidelog").options(**options).load()
    assert frame.count() == 3_000
    row = frame.where("offset = 1 AND partition = 1").first()
    assert row is not None and (row.key, row.topic) == (b"4", topic)
    writer = frame.select("key", "value", "headers", "timestamp").write.format("tidelog").mode("append")
    writer.options(**{"kafka.bootstrap.servers": bootstrap, "topic": out}).save()
    assert Counter(one.value() for one in received(bootstrap, out)) == Counter(
        b"%d" % n for n in range(3_000)
    )


def test_a_stream_is_written_once_over_restarts(
    spark: "SparkSession",
    bootstrap: str,
    admin: Any,
    make_topic: Callable[..., str],
    fill: Callable[..., None],
    tmp_path: Path,
) -> None:
    topic, out = make_topic(2), make_topic(2)
    for start, end in ((0, 1_000), (1_000, 1_000), (1_000, 2_500)):
        fill(topic, range(start, end), partitions=2)
        frame = stream(spark, bootstrap, topic, includeHeaders="true", **{"group.id": f"g-{topic}"})
        run(frame.select("key", "value", "headers", "timestamp"), bootstrap, out, tmp_path / "checkpoint")
    messages = received(bootstrap, out)
    assert Counter(one.value() for one in messages) == Counter(b"%d" % n for n in range(2_500))
    by_value = {int(one.value()): one for one in messages}
    assert by_value[7].headers() == [("n", b"7")] and not by_value[8].headers()
    assert {by_value[n].timestamp()[1] for n in (0, 2_499)} == {1_000_000, 1_002_499}
    # What was complete when the last batch was planned is committed; the last one is told by the next run.
    assert sum(committed(admin, f"g-{topic}", topic, 2)) >= 1_000


def test_a_flow_with_state_and_one_without(
    spark: "SparkSession", bootstrap: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic, dead = make_topic(2), make_topic(1)
    values: list[bytes | None] = [order(number, amount=number) for number in range(40)]
    produce(bootstrap, topic, [*values, b"broken"])
    flow = {
        "name": f"versions-{topic}",
        "bootstrap": bootstrap,
        "trigger": "available_now",
        "dead_letters": dead,
        "checkpoint": str(tmp_path / "plain"),
        "sources": {"orders": {"topic": topic, "decode": "json", "schema": "customer STRING, amount INT"}},
        "steps": [
            {"name": "scored", "each": lambda record: {"n": record["amount"] * 2}, "schema": "n INT"},
            {"name": "big", "sql": "SELECT n FROM scored WHERE n >= 20"},
        ],
        "sinks": [{"from": "big", "topic": f"{topic}-out"}],
    }
    grouped = {
        **flow,
        "checkpoint": str(tmp_path / "grouped"),
        "steps": [{"name": "n", "sql": "SELECT customer, count(*) AS n FROM orders GROUP BY customer"}],
        "sinks": [{"from": "n", "topic": f"{topic}-n", "key": "customer", "output_mode": "update"}],
    }
    for content, out, count in ((flow, f"{topic}-out", 30), (grouped, f"{topic}-n", 5)):
        make_out(bootstrap, out)
        plan = make_plan(read_definition(content, stem="x"))
        assert check_plan(plan) == Findings()
        for _ in range(2):
            wait_for_all(start_plan(spark, plan), SECONDS_MAX)
        assert len(received(bootstrap, out)) == count
    assert len(received(bootstrap, dead)) == 2, "one of each flow"


def test_limits_are_kept_or_said_to_be_not(
    spark: "SparkSession",
    bootstrap: str,
    make_topic: Callable[..., str],
    fill: Callable[..., None],
    tmp_path: Path,
) -> None:
    topic, out = make_topic(1), make_topic(1)
    fill(topic, range(500))
    frame = stream(spark, bootstrap, topic, maxOffsetsPerTrigger="100").select("key", "value")
    query = run(frame, bootstrap, out, tmp_path / "checkpoint")
    rows = [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]]
    assert len(received(bootstrap, out)) == 500, "AvailableNow reads what was there, with limits or without"
    assert rows == ([100] * 5 if HAS_ADMISSION_CONTROL else [500])
    (note,) = limits_note(["batch_records", "path"], "4.1.4")
    assert note.startswith("Spark before 4.2 has no admission control") and "batch_records" in note
    assert limits_note(["batch_records"], "4.2.0") == limits_note(["path"], "4.0.1") == ()


def test_times_without_a_zone_are_those_of_the_machine() -> None:
    """Spark 4.0 hands a stream's rows over with such times."""
    from pyspark.sql import Row
    from pyspark.sql.types import StructType

    from tidelog.pipelines.sink import batches_of_rows

    schema = StructType.fromDDL(
        "key BINARY, value STRING, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, timestamp TIMESTAMP"
    )
    moment = datetime.datetime(2026, 1, 31, 12, 0, 0, 5_000, tzinfo=datetime.UTC)
    naive = moment.astimezone().replace(tzinfo=None)
    rows = [
        Row(bytearray(b"k"), "v", [Row(key="h", value=bytearray(b"x"))], naive),
        Row(None, "w", None, None),
    ]
    (batch,) = batches_of_rows(iter(rows), schema)
    assert batch.to_pylist() == [
        {"key": b"k", "value": "v", "headers": [{"key": "h", "value": b"x"}], "timestamp": moment},
        {"key": None, "value": "w", "headers": None, "timestamp": None},
    ]
