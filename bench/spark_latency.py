"""How long one record takes through a query with the trigger `continuous`, and in which phase.

    python -m bench.spark_latency [--records 12] [--sinks exactly_once,at_least_once,noop]

One record at a time, to an idle query on local[2]: from the acknowledgement of the record to the moment in
which a consumer with read_committed has its copy, and what Spark says of the micro-batch that took it. For
`noop` there is no copy: only the phases. The numbers are medians; nothing is asserted.

    latestOffset    the source says how far there is something to read
    queryPlanning   Spark plans the micro-batch, and asks source and sink, each in a Python process
    walCommit       Spark writes the offsets to its checkpoint
    addBatch        the tasks read and write, then the sink commits
    commitOffsets   Spark writes to its checkpoint that the batch is done
"""

import argparse
import statistics
import tempfile
import time
import uuid
from typing import Any

from bench.spark_session import start_spark
from tidelog.testing.broker import RunningBroker

WARM_UP = 3
PAUSE_SECONDS = 1.0
SECONDS_MAX = 60


def start_query(spark: Any, broker: RunningBroker, source: str, target: str, sink: str, folder: str) -> Any:
    """A copy of a topic that runs without a pause."""
    frame = (
        spark.readStream.format("tidelog")
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
        .select("key", "value")
    )
    writer = frame.writeStream.option("checkpointLocation", folder)
    if sink == "noop":
        return writer.format("noop").start()
    options = {"kafka.bootstrap.servers": broker.bootstrap, "topic": target, "delivery": sink}
    return writer.format("tidelog").options(**options).start()


def measure(spark: Any, broker: RunningBroker, sink: str, records: int) -> dict[str, float]:
    """Medians in ms: end to end, and of each phase."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

    source, target = (f"{name}-{uuid.uuid4().hex[:6]}" for name in ("in", "out"))
    for topic in (source, target):
        broker.create_topic(topic, 1)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "latency",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 50,
        }
    )
    consumer.assign([TopicPartition(target, 0, OFFSET_BEGINNING)])
    taken: dict[str, list[float]] = {"end to end": []}
    with tempfile.TemporaryDirectory() as folder:
        query = start_query(spark, broker, source, target, sink, folder)
        for number in range(records + WARM_UP):
            time.sleep(PAUSE_SECONDS)
            producer.produce(source, b"%d" % number, b"%d" % number)
            assert producer.flush(SECONDS_MAX) == 0
            sent = time.monotonic()
            if sink != "noop":
                while (message := consumer.poll(1)) is None or message.error() is not None:
                    assert time.monotonic() - sent < SECONDS_MAX and query.isActive, query.exception()
            came = time.monotonic()
            batch = batch_of(query, number + 1, sent)
            if number >= WARM_UP:
                taken["end to end"].append((came - sent) * 1000)
                for name, took_ms in batch["durationMs"].items():
                    taken.setdefault(name, []).append(took_ms)
        query.stop()
    consumer.close()
    return {name: statistics.median(values) for name, values in taken.items()}


def batch_of(query: Any, rows: int, since: float) -> Any:
    """What Spark says of the micro-batch with which so many rows were read."""
    while True:
        assert time.monotonic() - since < SECONDS_MAX and query.isActive, query.exception()
        time.sleep(0.02)
        done = [one for one in query.recentProgress if one["numInputRows"]]
        if sum(one["numInputRows"] for one in done) == rows:
            return done[-1]


def main() -> None:
    """Measure each sink in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--records", type=int, default=12)
    parser.add_argument("--sinks", default="exactly_once,at_least_once,noop")
    arguments = parser.parse_args()
    spark = start_spark()
    with RunningBroker(mode="process") as broker:
        for sink in arguments.sinks.split(","):
            found = measure(spark, broker, sink, arguments.records)
            print(
                f"{sink}: " + ", ".join(f"{name} {value:.0f} ms" for name, value in found.items()), flush=True
            )
    spark.stop()


if __name__ == "__main__":
    main()
