"""Shapes of data and work that production has: compacted topics with gaps, state of one's own, and batch jobs
with two-phase commit."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.spark.ready_runs import received
from tidelog.client.cluster import EARLIEST, LATEST, Cluster
from tidelog.model.identifiers import TopicPartition
from tidelog.pipelines.target_topics import client_settings
from tidelog.testing.broker import RunningBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)
SECONDS_MAX = 240
WINDOW = 200


def read(spark: "SparkSession", bootstrap: str, topic: str, **more: str) -> Any:
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, **more}
    return spark.read.format("tidelog").options(**options).load()


def test_a_compacted_topic_with_gaps_is_read_whole_in_batch_and_stream(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """Offsets that the cleaner took are neither waited for nor reported as lost."""
    settings = {"log.cleaner.backoff.ms": "200", "log.cleaner.min.compaction.lag.ms": "0"}
    with RunningBroker(settings, mode="process") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        config = {"cleanup.policy": "compact", "segment.bytes": "16384", "min.cleanable.dirty.ratio": "0.01"}
        admin.create_topics([NewTopic("state", 1, 1, config=config)])["state"].result(60)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
        for number in range(6_000):
            # Key 0 stays from the first record on; the others are written again and again.
            key = b"%d" % (0 if number == 0 else 1 + number % 40)
            producer.produce("state", b"%d" % number, key)
            if number % 200 == 0:
                producer.flush(60)
        assert producer.flush(60) == 0
        place = TopicPartition("state", 0)
        options = {"kafka.bootstrap.servers": broker.bootstrap}
        with Cluster(client_settings(options)) as cluster:
            ends = [cluster.list_offsets({place: word})[place].offset for word in (EARLIEST, LATEST)]
        assert ends == [0, 6_000]

        def offsets() -> list[int]:
            rows = read(spark, broker.bootstrap, "state").select("offset").collect()
            return sorted(row.offset for row in rows)

        deadline = time.monotonic() + 60
        while len(seen := offsets()) > 3_000:
            assert time.monotonic() < deadline, f"nothing was cleaned: {len(seen)} records"
            time.sleep(1)
        assert seen[0] == 0 and seen[-1] == 5_999, "the first and the last record are there"
        assert max(b - a for a, b in pairwise(seen)) > WINDOW, "there is a gap"
        # Ranges that lie in a gap from end to end have no records at all.
        inside = json.dumps({"state": {"0": seen[0] + 1}}), json.dumps({"state": {"0": seen[0] + 50}})
        part = read(spark, broker.bootstrap, "state", startingOffsets=inside[0], endingOffsets=inside[1])
        assert part.count() == 0
        stream = (
            spark.readStream.format("tidelog")
            .options(
                **options, subscribe="state", startingOffsets="earliest", maxOffsetsPerTrigger=str(WINDOW)
            )
            .load()
        )
        query = (
            stream.select("key", "value", "offset")
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(SECONDS_MAX)
        found = Counter(row.offset for row in spark.read.parquet(str(tmp_path / "out")).collect())
        # The cleaner may have gone on meanwhile; nothing is there twice, and the newest of each key is there.
        assert set(found.values()) == {1} and set(found) <= set(seen)
        newest = {row.key: row.offset for row in read(spark, broker.bootstrap, "state").collect()}
        assert len(newest) == 41 and set(newest.values()) <= set(found)


def test_transform_with_state_counts_over_a_restart_and_writes_once(
    spark: "SparkSession",
    bootstrap: str,
    make_topic: Callable[..., str],
    fill: Callable[..., None],
    tmp_path: Path,
) -> None:
    from pyspark.sql.streaming import StatefulProcessor
    from pyspark.sql.types import StructType

    class Totals(StatefulProcessor):
        """The running count of each key."""

        def init(self, handle: Any) -> None:
            self._count = handle.getValueState("count", "n BIGINT")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            from pyspark.sql import Row

            before = self._count.get()[0] if self._count.exists() else 0
            now = before + sum(1 for _ in rows)
            self._count.update((now,))
            yield Row(key=key[0], value=str(now))

        def close(self) -> None:
            """Nothing to close."""

    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    names = {
        "spark.sql.streaming.stateStore.providerClass": provider,
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    }
    before = {name: spark.conf.get(name, None) for name in names}
    for name, value in names.items():
        spark.conf.set(name, value)
    topic, out = make_topic(2), make_topic(1)
    try:
        for start, end in ((0, 300), (300, 500)):
            fill(topic, range(start, end), partitions=2)
            frame = (
                spark.readStream.format("tidelog")
                .options(
                    **{
                        "kafka.bootstrap.servers": bootstrap,
                        "subscribe": topic,
                        "startingOffsets": "earliest",
                    }
                )
                .load()
                .selectExpr("CAST(CAST(CAST(value AS STRING) AS INT) % 4 AS STRING) AS key")
            )
            totals = frame.groupBy("key").transformWithState(
                Totals(),
                StructType.fromDDL("key STRING, value STRING"),
                outputMode="Append",
                timeMode="None",
            )
            query = (
                totals.writeStream.format("tidelog")
                .options(**{"kafka.bootstrap.servers": bootstrap, "topic": out})
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .outputMode("append")
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(SECONDS_MAX)
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)
    told = Counter((message.key(), int(message.value())) for message in received(bootstrap, out))
    assert set(told.values()) == {1}
    highest = {key: max(count for one, count in told if one == key) for key, _ in told}
    assert highest == {b"%d" % key: 125 for key in range(4)}


def test_a_batch_job_with_two_phase_commit_is_whole_or_not_there(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """Named jobs have transactions without a timeout where brokers allow it; nameless ones never."""
    from tidelog.client.transactional_writer import open_transactions

    settings = {"transaction.two.phase.commit.enable": "true", "transaction.max.timeout.ms": "900000"}
    with RunningBroker(settings, mode="process") as broker:
        broker.create_topic("out", partitions=3)
        options = {"kafka.bootstrap.servers": broker.bootstrap, "topic": "out"}
        frame = spark.range(3_000).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")

        def save(version: str, rows: Any, **more: str) -> None:
            named = {"txnAppId": "job", "txnVersion": version, **more} if version else more
            rows.repartition(3).write.format("tidelog").options(**options, **named).mode("append").save()

        save("1", frame)
        save("1", frame)
        failing = frame.withColumn("value", _raise_at(2_999))
        with pytest.raises(Exception, match="on purpose"):
            save("2", failing)
        assert len(received(broker.bootstrap, "out")) == 3_000, (
            "the second try of 1 and all of 2 are not there"
        )
        save("2", frame)
        save("", frame)
        with pytest.raises(Exception, match="on purpose"):
            save("", failing)
        values = Counter(int(message.value()) for message in received(broker.bootstrap, "out"))
        assert values == Counter(dict.fromkeys(range(3000), 3))
        with Cluster(client_settings(options)) as cluster:
            deadline = time.monotonic() + 60
            while left := open_transactions(cluster, "tidelog-spark-"):
                assert time.monotonic() < deadline, left
                time.sleep(0.5)


def _raise_at(number: int) -> Any:
    from pyspark.sql import functions as F  # noqa: N812

    failed = F.raise_error(F.lit("on purpose")).cast("string")
    return F.when(F.col("key") == str(number), failed).otherwise(F.col("value"))
