"""A Spark query sees what devices and workers write, and they get what it writes."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.both_gateways import both_gateways

pytestmark = pytest.mark.timeout(240)


def test_spark_reads_and_writes_what_devices_and_workers_do(
    spark: SparkSession, bootstrap: str, make_topic: Callable[[int], str], tmp_path: Path
) -> None:
    topic = make_topic(1)
    cluster = {"kafka.bootstrap.servers": bootstrap}
    with both_gateways(bootstrap, tmp_path, topic) as doors, doors.device() as device:
        device.subscribe("sensors/+", qos=1)
        device.publish("sensors/7", b"21.5", 1)
        doors.send(b"18.0", {"tidelog-key": "8"})
        read = spark.read.format("tidelog").options(**cluster, subscribe=topic).load()
        rows = read.selectExpr(
            "CAST(key AS STRING) AS device", "CAST(CAST(value AS STRING) AS DOUBLE) AS degrees"
        )
        assert [tuple(row) for row in rows.orderBy("device").collect()] == [("7", 21.5), ("8", 18.0)]
        answers = rows.selectExpr("device AS key", "CAST(degrees + 1 AS STRING) AS value").orderBy("key")
        answers.coalesce(1).write.format("tidelog").options(**cluster, topic=topic).mode("append").save()
        device.expect(4)
        assert sorted((each.topic, bytes(each.payload)) for each in device.messages) == [
            ("sensors/7", b"21.5"),
            ("sensors/7", b"22.5"),
            ("sensors/8", b"18.0"),
            ("sensors/8", b"19.0"),
        ]
        assert sorted(each.body for each in doors.take(4)) == [b"18.0", b"19.0", b"21.5", b"22.5"]
