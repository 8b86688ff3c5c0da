"""Running ready pipelines in tests: in the session of the test, or in a driver process that can be killed.

    python -m tests.spark.ready_runs DEFINITIONS.json

runs all pipelines of a file in one session until they have done what is there. A definition is
`{"name", "kind", "options", "bootstrap", "checkpoint", "dead_letters"}`.
"""

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    Producer,
    TopicPartition,
)

from tidelog.pipelines.pipeline_options import check_options
from tidelog.pipelines.ready import ready_pipeline
from tidelog.pipelines.run_settings import RunSettings, Trigger, kafka_options
from tidelog.pipelines.work import Work

SECONDS_MAX = 400


def definition(
    bootstrap: str, folder: Path, kind: str, dead: str | None = None, **options: Any
) -> dict[str, Any]:
    """A definition for `start_ready`, with its progress below `folder`."""
    return {
        "name": kind,
        "kind": kind,
        "bootstrap": bootstrap,
        "checkpoint": str(folder / f"checkpoint-{kind}"),
        "dead_letters": dead,
        "options": options,
    }


def join_options(left: tuple[str, str], right: tuple[str, str], on: str, **more: Any) -> dict[str, Any]:
    """Options of `join`; a side is its topic and the schema of its values."""
    sides = {"left": left[0], "left_schema": left[1], "right": right[0], "right_schema": right[1]}
    return {**sides, "on": on, **more}


def start_ready(spark: Any, given: Mapping[str, Any]) -> list[Work]:
    """Plan and start a definition, for what is there now."""
    pipeline = ready_pipeline(given["kind"])
    options = check_options(pipeline.options, given["options"], of=pipeline.name)
    run = RunSettings(
        given["name"],
        Trigger.read(given.get("trigger", "available_now")),
        kafka_options({"bootstrap.servers": given["bootstrap"]}),
        checkpoint=given["checkpoint"],
        dead_letters=given.get("dead_letters"),
    )
    return pipeline.start(spark, pipeline.plan(options, run))


def run_ready(spark: Any, given: Mapping[str, Any]) -> list[Work]:
    """The same until it has ended; a failure is raised."""
    started = start_ready(spark, given)
    wait_for(started)
    return started


def wait_for(started: list[Work]) -> None:
    """Until all have ended, or one has failed, which is raised."""
    deadline = time.monotonic() + SECONDS_MAX
    try:
        while True:
            active = [work.is_active() for work in started]
            for work, is_active in zip(started, active, strict=True):
                if not is_active and (failure := work.failure()) is not None:
                    raise RuntimeError(failure)
            if not any(active):
                return
            assert time.monotonic() < deadline, f"still running: {started}"
            time.sleep(0.1)
    finally:
        for work in started:
            work.stop()


def run_all(spark: Any, definitions: list[dict[str, Any]]) -> None:
    """Run all to their end, at the same time; the first failure is raised.

    Each has its first batch behind it before the next is started: Spark gives a Python worker ten seconds to
    start, hard-coded, which many that start at once on a small machine do not keep.
    """
    started: list[Work] = []
    deadline = time.monotonic() + SECONDS_MAX
    for given in definitions:
        while not all(_has_begun(work) for work in started):
            assert time.monotonic() < deadline, f"not begun: {started}"
            time.sleep(0.1)
        started += start_ready(spark, given)
    wait_for(started)


def _has_begun(work: Any) -> bool:
    return not work.is_active() or work.query.lastProgress is not None


def send(bootstrap: str, topic: str, records: Any) -> None:
    """Write records: dicts with value (a dict becomes JSON) and, as wanted, key, partition, timestamp."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    for record in records:
        value = record["value"]
        given = {
            name: record[name] for name in ("key", "partition", "timestamp", "headers") if name in record
        }
        producer.produce(topic, json.dumps(value) if isinstance(value, dict) else value, **given)
        producer.poll(0)
    assert producer.flush(60) == 0


def received(bootstrap: str, topic: str) -> list[Any]:
    """All that read_committed shows of a topic, partition by partition, as messages."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "ready-tests",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    numbers = consumer.list_topics(topic, 30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in numbers])
    found: list[Any] = []
    ended: set[int] = set()
    deadline = time.monotonic() + 60
    while len(ended) < len(numbers):
        assert time.monotonic() < deadline, f"the end of {topic} was not reached"
        message = consumer.poll(1)
        if message is not None and message.error() is not None:
            ended.add(message.partition())  # type: ignore[arg-type]  # never None in an answer
        elif message is not None:
            found.append(message)
    consumer.close()
    return sorted(found, key=lambda message: (message.partition(), message.offset()))


def committed(admin: Any, group: str, topic: str, partitions: int) -> list[int]:
    """As an unmodified admin client sees it."""
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, p) for p in range(partitions)])
    found = admin.list_consumer_group_offsets([asked])[group].result(60)
    return [row.offset for row in found.topic_partitions]


def values(bootstrap: str, topic: str) -> list[Any]:
    """The JSON values of a topic."""
    return [json.loads(message.value()) for message in received(bootstrap, topic)]


def drive(definitions: list[dict[str, Any]]) -> None:
    """All pipelines in one session, until each has done what is there."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    run_all(spark, definitions)
    spark.stop()


if __name__ == "__main__":
    drive(json.loads(Path(sys.argv[1]).read_text()))
