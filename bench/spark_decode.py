"""Avro to typed columns in Spark: our source with `decode`, and from_avro over the column of our source.

    python -m bench.spark_decode [--records 1000000] [--rounds 5] [--minutes 6] [--bootstrap host:port]
                                 [--avro 4.3.0,4.2.0 | none]

Both read the same records of one topic with the same source, in one run, in turns; the best round counts, and
the least CPU time. Spark runs on local[2] and writes to the `noop` sink, so every column is made and none is
kept. "raw" is the source alone: what reading takes before anything is decoded. from_avro is a part of Spark
that is fetched with Maven; it is given the schema, and the bytes behind the id.
"""

import argparse
import json
import sys
import uuid
from typing import TYPE_CHECKING, Any

from bench.spark_session import place_of, show, show_machine, start_spark, take_turns
from bench.spark_source import PARTITIONS, SECONDS_MAX, Reader, fetch_jars

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

AVRO = "spark-avro_2.13"
SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "customer", "type": "string"},
            {"name": "amount", "type": "double"},
            {"name": "count", "type": "int"},
            {"name": "note", "type": ["null", "string"], "default": None},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "paid", "type": "boolean"},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
        ],
    }
)
DISTINCT = 997


def fill(bootstrap: str, url: str, records: int) -> str:
    """A topic of orders."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    from tidelog.schemas.encoding import Encoder
    from tidelog.schemas.registered import RegisteredSchemas
    from tidelog.schemas.registry_client import RegistryClient

    topic = f"bench-decode-{uuid.uuid4().hex[:6]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(SECONDS_MAX)
    schema = RegisteredSchemas(RegistryClient(url)).register(f"{topic}-value", "avro", SCHEMA)
    encode = Encoder(schema).encode
    values = [
        encode(
            {
                "id": number * 1_000_003,
                "customer": f"customer-{number:06d}",
                "amount": number / 8,
                "count": number % 50,
                "note": None if number % 3 else "please ring twice",
                "at": 1_790_000_000_000 + number,
                "paid": number % 2 == 0,
                "tags": ["new", "gift"][: number % 3],
            }
        )
        for number in range(DISTINCT)
    ]
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "batch.size": 1 << 20})
    for number in range(records):
        while True:
            try:
                producer.produce(topic, values[number % DISTINCT], partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(SECONDS_MAX):
        raise SystemExit("the records could not be written in time")
    return topic


def reader_of(frame: "DataFrame") -> Reader:
    def read() -> str:
        frame.write.format("noop").mode("overwrite").save()
        return ""

    return read


def run(arguments: Any, cluster: Any, url: str, jars: list[str], version: str | None) -> None:
    topic = fill(cluster.bootstrap, url, arguments.records)
    spark = start_spark(jars)
    source = spark.read.format("tidelog").options(
        **{"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic}
    )
    raw = source.load()
    typed = source.options(**{"decode": "avro", "schema.registry.url": url}).load().select("value.*")
    readers = {"decode avro": reader_of(typed), "raw": reader_of(raw.select("value"))}
    if version is not None:
        from pyspark.sql import functions as sql
        from pyspark.sql.avro.functions import from_avro

        payload = sql.expr("substring(value, 6)")
        other = raw.select(from_avro(payload, SCHEMA).alias("value")).select("value.*")
        assert typed.agg(sql.sum("count"), sql.sum("id"), sql.count("note")).collect() == (
            other.agg(sql.sum("count"), sql.sum("id"), sql.count("note")).collect()
        )
        readers[f"from_avro {version}"] = reader_of(other)
    turns = take_turns(readers, arguments.rounds, 60 * arguments.minutes, cluster.process_id)
    show(f"{arguments.records:,} orders, {PARTITIONS} partitions", turns, arguments.records, "decode avro")
    spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=6)
    parser.add_argument("--bootstrap", help="a running cluster; else a Tidelog broker is started")
    parser.add_argument("--avro", default="4.3.0,4.2.0,4.1.0,4.0.0")
    arguments = parser.parse_args()
    found = fetch_jars(AVRO, arguments.avro)
    if found is None:
        print("without from_avro: Maven, or the version, is missing", file=sys.stderr)
    from tests.support.registry_process import RegistryProcess

    with place_of(arguments.bootstrap) as cluster, RegistryProcess(cluster.bootstrap) as registry:
        show_machine()
        run(arguments, cluster, registry.url, found[1] if found else [], found[0] if found else None)


if __name__ == "__main__":
    main()
