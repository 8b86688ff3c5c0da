"""Reading a topic into Spark: our source, Spark's own Kafka connector, a confluent-kafka loop, Parquet.

    python -m bench.spark_source [--records 3000000] [--rounds 3] [--minutes 6] [--sizes 100,1000]
                                 [--codecs none,lz4] [--bootstrap host:port] [--connector 4.3.0,4.0.0 | none]

All of them read the same records in one run, one after the other, round after round; the best round counts.
Spark runs on local[2] and writes to the `noop` sink, so every column is made and none is kept. The loop of
confluent-kafka touches key and value: once as everybody writes it, with `poll`, and once with 1,000 messages
at a time and without the pause of a second that librdkafka makes when it has read far ahead. Cases of larger
records have fewer of them. A job of Spark costs about half a second of CPU before its first record: few
records measure that. Numbers are printed, by clock and by CPU time; nothing is asserted. Rounds that do not
fit into --minutes are left out.

The connector is fetched with Maven. The first version of --connector that Maven has is taken, and the table
names it: one that is not of the Spark that runs is a comparison of mixed versions, and is marked so.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.spark_session import Place, place_of, show, show_machine, start_spark, take_turns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 4
SECONDS_MAX = 300
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tidelog" / "spark-jars"
CONNECTOR = "spark-sql-kafka-0-10_2.13"
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tidelog.bench</groupId><artifactId>spark-kafka</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.apache.spark</groupId><artifactId>{artifact}</artifactId><version>{version}</version>
    <exclusions>
      <exclusion><groupId>org.apache.hadoop</groupId><artifactId>*</artifactId></exclusion>
      <exclusion><groupId>org.scala-lang</groupId><artifactId>*</artifactId></exclusion>
    </exclusions>
  </dependency></dependencies>
</project>
"""

Reader = Callable[[], str]


def fetch_jars(artifact: str, versions: str) -> tuple[str, list[str]] | None:
    """The version of an artifact of Spark that could be had, and its jars."""
    if versions == "none" or shutil.which("mvn") is None:
        return None
    for version in versions.split(","):
        folder = CACHE / artifact / version
        if not (folder / ".complete").exists():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "pom.xml").write_text(POM.format(artifact=artifact, version=version))
            command = ["mvn", "-q", "-B", "-f", str(folder / "pom.xml"), "dependency:copy-dependencies"]
            command += ["-DincludeScope=runtime", f"-DoutputDirectory={folder / 'libs'}"]
            done = subprocess.run(command, capture_output=True, timeout=SECONDS_MAX, check=False)
            if done.returncode:
                print(f"Maven has no {artifact} {version}", file=sys.stderr)
                continue
            (folder / ".complete").touch()
        return version, sorted(map(str, (folder / "libs").glob("*.jar")))
    return None


def make_topic(bootstrap: str, records: int, size_bytes: int, codec: str) -> str:
    """A topic of records whose value has the size, half of it hard to compress."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    topic = f"bench-spark-{size_bytes}-{codec}-{uuid.uuid4().hex[:6]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(SECONDS_MAX)
    config = {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 50}
    config |= {"batch.size": 1 << 20, "queue.buffering.max.messages": 500_000}
    producer = Producer(config)
    values = [os.urandom(size_bytes // 2) + bytes(size_bytes - size_bytes // 2) for _ in range(997)]
    for number in range(records):
        while True:
            try:
                producer.produce(
                    topic, values[number % 997], b"%010d" % number, partition=number % PARTITIONS
                )
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(SECONDS_MAX):
        raise SystemExit("the records could not be written in time")
    return topic


def spark_reader(spark: "SparkSession", source: str, options: dict[str, str]) -> Reader:
    def read() -> str:
        from pyspark.errors import PySparkException

        frame = spark.read.format(source).options(**options)
        try:
            frame.load().write.format("noop").mode("overwrite").save()
        except PySparkException as fault:
            return "failed: " + str(fault).splitlines()[0][:90]
        return ""

    return read


def loop_reader(bootstrap: str, topic: str, records: int, *, tuned: bool) -> Reader:
    config = {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False}
    if tuned:
        config["fetch.queue.backoff.ms"] = 5

    def read() -> str:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        consumer = Consumer(config)
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(PARTITIONS)])
        seen = 0
        deadline = time.monotonic() + SECONDS_MAX
        while seen < records and time.monotonic() < deadline:
            if tuned:
                for message in consumer.consume(1_000, 1.0):
                    message.key()
                    message.value()
                    seen += 1
                continue
            one = consumer.poll(1.0)
            if one is not None:
                one.key()
                one.value()
                seen += 1
        consumer.close()
        return "" if seen == records else f"read {seen} of {records}"

    return read


def run_case(
    spark: "SparkSession", cluster: Place, size_bytes: int, codec: str, connector: str | None, arguments: Any
) -> None:
    import pyspark

    records = arguments.records * 100 // max(100, min(size_bytes, 150))
    topic = make_topic(cluster.bootstrap, records, size_bytes, codec)
    options = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic}
    cases = len(arguments.sizes.split(",")) * len(arguments.codecs.split(","))
    with tempfile.TemporaryDirectory() as folder:
        frame = spark.read.format("tidelog").options(**options).load()
        assert frame.count() == records
        frame.write.parquet(f"{folder}/rows")
        readers = {"tidelog": spark_reader(spark, "tidelog", options)}
        if connector is not None:
            mixed = "" if connector == pyspark.__version__ else f" on {pyspark.__version__} (mixed)"
            readers[f"kafka connector {connector}{mixed}"] = spark_reader(spark, "kafka", options)
        for name, tuned in (("confluent-kafka loop", False), ("confluent-kafka loop, tuned", True)):
            readers[name] = loop_reader(cluster.bootstrap, topic, records, tuned=tuned)
        readers["parquet"] = spark_reader(spark, "parquet", {"path": f"{folder}/rows"})
        turns = take_turns(readers, arguments.rounds, 60 * arguments.minutes / cases, cluster.process_id)
    show(
        f"{records:,} records of {size_bytes} B, {codec}, {PARTITIONS} partitions", turns, records, "tidelog"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=3_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=6)
    parser.add_argument("--sizes", default="100,1000")
    parser.add_argument("--codecs", default="none,lz4")
    parser.add_argument("--bootstrap", help="a running cluster; else a Tidelog broker is started")
    parser.add_argument("--connector", default="4.3.0,4.2.0,4.0.0")
    arguments = parser.parse_args()
    connector = fetch_jars(CONNECTOR, arguments.connector)
    if connector is None:
        print("without Spark's own connector: Maven, or the version, is missing", file=sys.stderr)
    with place_of(arguments.bootstrap) as cluster:
        spark = start_spark([] if connector is None else connector[1])
        for size in arguments.sizes.split(","):
            for codec in arguments.codecs.split(","):
                show_machine()
                run_case(spark, cluster, int(size), codec, connector[0] if connector else None, arguments)
        spark.stop()


if __name__ == "__main__":
    main()
