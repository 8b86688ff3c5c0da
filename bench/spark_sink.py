"""Writing from Spark into a topic: exactly once against at least once, in one run.

    python bench/spark_sink.py [--records 1000000] [--rounds 3] [--sizes 100,1000] [--codecs none,lz4]
                               [--bootstrap host:port]

Spark runs on local[2]. The rows come from Parquet, so that making them costs the same for both; `noop` writes
the same rows to nowhere and is what reading them takes. Deliveries take turns, round after round; the best
round counts. Batch writes: each is one commit of as many transactions as tasks. Numbers are printed as a
table; nothing is asserted.
"""

import argparse
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 4
TASKS = 4
DELIVERIES = ("at_least_once", "exactly_once")
SECONDS_MAX = 60


def start_spark(folder: str) -> "SparkSession":
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def make_topic(bootstrap: str) -> str:
    from confluent_kafka.admin import AdminClient, NewTopic

    name = f"sink-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(SECONDS_MAX)
    return name


def write(frame: Any, bootstrap: str, codec: str, delivery: str) -> float:
    topic = make_topic(bootstrap)
    writer = (
        frame.write.format("tidelog")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", topic)
        .option("kafka.compression.type", codec)
        .option("delivery", delivery)
        .mode("append")
    )
    started = time.perf_counter()
    writer.save()
    return time.perf_counter() - started


def write_nowhere(frame: Any) -> float:
    started = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def measure(spark: "SparkSession", bootstrap: str, arguments: argparse.Namespace, folder: str) -> None:
    print(f"{'bytes':>6} {'codec':>6} {'noop':>10} {'at least':>10} {'exactly':>10} {'ratio':>6}   records/s")
    for size in map(int, arguments.sizes.split(",")):
        path = f"{folder}/rows-{size}"
        text = f"rpad(CAST(id AS STRING), {size}, sha2(CAST(id AS STRING), 512))"
        rows = spark.range(0, arguments.records, 1, TASKS)
        rows.selectExpr("CAST(id AS STRING) AS key", f"CAST({text} AS BINARY) AS value").write.parquet(path)
        frame = spark.read.parquet(path)
        for codec in arguments.codecs.split(","):
            ways: dict[str, Callable[[], float]] = {"noop": lambda frame=frame: write_nowhere(frame)}
            for delivery in DELIVERIES:
                ways[delivery] = lambda frame=frame, codec=codec, delivery=delivery: write(
                    frame, bootstrap, codec, delivery
                )
            best: dict[str, float] = {}
            for number in range(arguments.rounds + 1):
                for name, way in ways.items():
                    seconds = way()
                    if number:  # the first round warms up
                        best[name] = min(seconds, best.get(name, seconds))
            rates = [arguments.records / best[name] for name in ("noop", *DELIVERIES)]
            print(
                f"{size:>6} {codec:>6} {rates[0]:>10,.0f} {rates[1]:>10,.0f} {rates[2]:>10,.0f}"
                f" {rates[2] / rates[1]:>6.2f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", default="100,1000")
    parser.add_argument("--codecs", default="none,lz4")
    parser.add_argument("--bootstrap")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as folder:
        spark = start_spark(folder)
        if arguments.bootstrap:
            measure(spark, arguments.bootstrap, arguments, folder)
        else:
            from tidelog.testing.broker import RunningBroker

            with RunningBroker(mode="process") as broker:
                measure(spark, broker.bootstrap, arguments, folder)
        spark.stop()


if __name__ == "__main__":
    main()
