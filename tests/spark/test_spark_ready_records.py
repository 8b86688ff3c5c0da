"""`archive`, `replay`, `mirror` and `table` by content, also when the driver is killed at a random moment."""

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from tests.spark.pipeline_process import run_with_kills
from tests.spark.ready_runs import definition, received, run_ready

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS_MAX = 400
DAY_MS = 86_400_000
KILLS = 2

pytestmark = pytest.mark.timeout(500)


def fill_days(bootstrap: str, topic: str, numbers: range, partitions: int) -> None:
    """Records over three days; key, headers and timestamp follow from the number."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    for number in numbers:
        producer.produce(
            topic,
            b"value %d" % number,
            b"key %d" % (number % 50),
            partition=number % partitions,
            timestamp=1_700_000_000_000 + (number % 3) * DAY_MS,
            headers=[("n", b"%d" % number)],
        )
        if number % 500 == 0:
            producer.poll(0)
    assert producer.flush(SECONDS_MAX) == 0


def archived(path: Path) -> list[dict[str, Any]]:
    """What any reader of Parquet sees."""
    files = [file for file in path.rglob("*.parquet") if "_tidelog" not in file.parts]
    return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


def test_archive_has_every_record_by_date_and_merges_small_files(
    spark: "SparkSession", bootstrap: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = make_topic(2)
    fill_days(bootstrap, topic, range(3_000), 2)
    path = tmp_path / "orders"
    options: dict[str, Any] = {"topic": topic, "path": str(path), "batch_records": 700, "compact_files": 4}
    run_ready(spark, definition(bootstrap, tmp_path / "checkpoint", "archive", **options))
    rows = archived(path)
    assert Counter(row["value"] for row in rows) == Counter(b"value %d" % n for n in range(3_000))
    row = next(row for row in rows if row["value"] == b"value 7")
    assert row["key"] == b"key 7" and row["headers"] == [{"key": "n", "value": b"7"}]
    assert (row["topic"], row["partition"]) == (topic, 1)
    dates = sorted(folder.name for folder in path.iterdir() if folder.name.startswith("date="))
    day = datetime.fromtimestamp(1_700_000_000, UTC).date()
    assert dates == [f"date={day.replace(day=day.day + more)}" for more in range(3)]
    for date in dates:
        assert len(list((path / date).glob("*.parquet"))) < 4, "small files were merged"


def test_archive_of_a_killed_driver_has_every_record_once(
    bootstrap: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = make_topic(2)
    fill_days(bootstrap, topic, range(10_000), 2)
    path = tmp_path / "orders"
    options: dict[str, Any] = {"topic": topic, "path": str(path), "batch_records": 500, "compact_files": 3}
    run_with_kills(process_of("archive", bootstrap, options), tmp_path, kills=KILLS, seed=11)
    rows = archived(path)
    assert Counter(row["value"] for row in rows) == Counter(b"value %d" % n for n in range(10_000))


def read_back(bootstrap: str, topic: str) -> dict[int, list[tuple[Any, ...]]]:
    """What a read_committed consumer gets, partition by partition."""
    found: dict[int, list[tuple[Any, ...]]] = {}
    for message in received(bootstrap, topic):
        row = (message.key(), message.value(), message.headers(), message.timestamp()[1])
        found.setdefault(message.partition(), []).append(row)
    return found


def process_of(kind: str, bootstrap: str, options: dict[str, Any]) -> dict[str, Any]:
    """What `tidelog pipeline run` is given."""
    return {
        "name": f"killed-{kind}",
        "kind": kind,
        "bootstrap": bootstrap,
        "trigger": "available_now",
        "master": "local[2]",
        "spark": {"spark.driver.memory": "1g"},
        "options": options,
    }


def test_replay_of_an_archive_brings_records_back_as_they_were(
    spark: "SparkSession", bootstrap: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = make_topic(2)
    fill_days(bootstrap, topic, range(3_000), 2)
    path, to = str(tmp_path / "orders"), f"{topic}-again"
    run_ready(spark, definition(bootstrap, tmp_path / "archive", "archive", topic=topic, path=path))
    options: dict[str, Any] = {"path": path, "to": to, "chunk_records": 1_000}
    run_ready(spark, definition(bootstrap, tmp_path / "replay", "replay", **options))
    assert read_back(bootstrap, to) == read_back(bootstrap, topic)
    # Run again, it has nothing left to do.
    run_ready(spark, definition(bootstrap, tmp_path / "replay", "replay", **options))
    assert read_back(bootstrap, to) == read_back(bootstrap, topic)


def test_replay_of_a_time_range_with_killed_drivers(
    bootstrap: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = make_topic(2)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    for number in range(10_000):
        text = b"%d" % number
        producer.produce(topic, text, text, number % 2, timestamp=1_700_000_000_000 + number)
        if number % 500 == 0:
            producer.poll(0)
    assert producer.flush(SECONDS_MAX) == 0
    options: dict[str, Any] = {
        "topic": topic,
        "to": f"{topic}-range",
        "since": "1700000002000",
        "until": "1700000008000",
        "chunk_records": 300,
    }
    run_with_kills(process_of("replay", bootstrap, options), tmp_path, kills=KILLS, seed=5)
    found = read_back(bootstrap, f"{topic}-range")
    for partition in (0, 1):
        expected = [b"%d" % n for n in range(2_000, 8_000) if n % 2 == partition]
        assert [row[1] for row in found[partition]] == expected
        assert [row[3] for row in found[partition]] == [1_700_000_000_000 + int(text) for text in expected]


def test_mirror_with_killed_drivers_is_the_same_in_the_same_order(
    bootstrap: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    from tidelog.testing.broker import RunningBroker

    topic = make_topic(3)
    fill_days(bootstrap, topic, range(10_000), 3)
    with RunningBroker(mode="process") as other:
        options: dict[str, Any] = {
            "topic": topic,
            "prefix": "copy-",
            "to_bootstrap": other.bootstrap,
            "batch_records": 500,
        }
        run_with_kills(process_of("mirror", bootstrap, options), tmp_path, kills=KILLS, seed=3)
        assert read_back(other.bootstrap, f"copy-{topic}") == read_back(bootstrap, topic)


def table_rows(path: Path) -> dict[bytes, bytes]:
    """What any reader of Parquet sees; a key twice is a fault."""
    rows = archived(path)
    keys = [row["key"] for row in rows]
    assert len(keys) == len(set(keys)), "a key is there twice"
    return {row["key"]: row["value"] for row in rows}


def test_table_has_the_latest_value_of_each_key_with_killed_drivers(
    spark: "SparkSession", bootstrap: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = make_topic(2)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    expected: dict[bytes, bytes] = {}
    for number in range(8_000):
        key = b"key %d" % (number * 7919 % 300)
        # some keys are taken away now and then
        value = None if number % 11 == 0 else b"value %d" % number
        producer.produce(topic, value, key)
        expected.pop(key, None)
        if value is not None:
            expected[key] = value
        if number % 500 == 0:
            producer.poll(0)
    assert producer.flush(SECONDS_MAX) == 0
    path = tmp_path / "latest"
    options: dict[str, Any] = {"topic": topic, "path": str(path), "batch_records": 400, "buckets": 3}
    run_with_kills(process_of("table", bootstrap, options), tmp_path, kills=KILLS, seed=7)
    assert table_rows(path) == expected
    once = tmp_path / "once"
    options = {"topic": topic, "path": str(once), "snapshot": True}
    run_ready(spark, definition(bootstrap, tmp_path / "snapshot", "table", **options))
    assert table_rows(once) == expected
