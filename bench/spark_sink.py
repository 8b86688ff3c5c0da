"""Writing from Spark into a topic: exactly once against at least once, in one run.

    python -m bench.spark_sink [--records 1000000] [--rounds 3] [--minutes 4] [--sizes 100,1000]
                               [--codecs none,lz4] [--bootstrap host:port]

Spark runs on local[2]. The rows come from Parquet, so that making them costs the same for both; `noop` writes
the same rows to nowhere and is what reading them takes. Deliveries take turns, round after round; the best
round counts. Batch writes: each is one commit of as many transactions as tasks. Cases of larger records have
fewer of them. Numbers are printed as tables, by clock and by CPU time; nothing is asserted. Rounds that do
not fit into --minutes are left out.
"""

import argparse
import tempfile
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bench.spark_session import Place, place_of, show, show_machine, start_spark, take_turns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 4
TASKS = 4
DELIVERIES = ("exactly_once", "at_least_once")
SECONDS_MAX = 60


def make_topic(bootstrap: str) -> str:
    from confluent_kafka.admin import AdminClient, NewTopic

    name = f"sink-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(SECONDS_MAX)
    return name


def topic_writer(frame: Any, bootstrap: str, codec: str, delivery: str) -> Callable[[], str]:
    topic = make_topic(bootstrap)

    def write() -> str:
        writer = frame.write.format("tidelog").option("kafka.bootstrap.servers", bootstrap)
        writer = writer.option("topic", topic).option("kafka.compression.type", codec)
        writer.option("delivery", delivery).mode("append").save()
        return ""

    return write


def nowhere_writer(frame: Any) -> Callable[[], str]:
    def write() -> str:
        frame.write.format("noop").mode("overwrite").save()
        return ""

    return write


def run_size(
    spark: "SparkSession", cluster: Place, size_bytes: int, arguments: argparse.Namespace, folder: str
) -> None:
    records = arguments.records * 100 // max(100, min(size_bytes, 400))
    path = f"{folder}/rows-{size_bytes}"
    text = f"rpad(CAST(id AS STRING), {size_bytes}, sha2(CAST(id AS STRING), 512))"
    rows = spark.range(0, records, 1, TASKS)
    rows.selectExpr("CAST(id AS STRING) AS key", f"CAST({text} AS BINARY) AS value").write.parquet(path)
    frame = spark.read.parquet(path)
    cases = len(arguments.sizes.split(",")) * len(arguments.codecs.split(","))
    for codec in arguments.codecs.split(","):
        show_machine()
        ways = {name: topic_writer(frame, cluster.bootstrap, codec, name) for name in DELIVERIES}
        ways["noop"] = nowhere_writer(frame)
        turns = take_turns(ways, arguments.rounds, 60 * arguments.minutes / cases, cluster.process_id)
        show(f"{records:,} records of {size_bytes} B, {codec}, {TASKS} tasks", turns, records, DELIVERIES[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=4)
    parser.add_argument("--sizes", default="100,1000")
    parser.add_argument("--codecs", default="none,lz4")
    parser.add_argument("--bootstrap", help="a running cluster; else a Tidelog broker is started")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="tidelog-bench-") as folder,
        place_of(arguments.bootstrap) as place,
    ):
        spark = start_spark()
        for size in map(int, arguments.sizes.split(",")):
            run_size(spark, place, size, arguments, folder)
        spark.stop()


if __name__ == "__main__":
    main()
