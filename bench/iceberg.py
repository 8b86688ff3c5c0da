"""A topic into an Iceberg table, by the pipeline `iceberg`, beside the same records into plain Parquet files.

    python -m bench.iceberg --records 1000000

Both read the topic with the same reader in one process. Plain Parquet is one file for each batch of the same
size and codec, by pyarrow, without a table, a commit or a position; that is the floor. Values are 100 bytes
as they are, and Avro of five fields, decoded to columns for both. The rates are of the best of three.
"""

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.support.registry_process import RegistryProcess
from tidelog.client.cluster import Cluster
from tidelog.pipelines.arrow_stream import Columns, read_range
from tidelog.pipelines.definition import read_definition
from tidelog.pipelines.lake.column_types import conformed_table, plain_schema
from tidelog.pipelines.lake.first_columns import row_maker
from tidelog.pipelines.planning import make_plan, start_here
from tidelog.pipelines.query_offsets import QueryOffsets
from tidelog.pipelines.source_options import SourceOptions
from tidelog.schemas.encoding import Encoder
from tidelog.schemas.registered import RegisteredSchemas
from tidelog.schemas.registry_client import RegistryClient
from tidelog.testing.broker import RunningBroker

ROUNDS = 3
PARTITIONS = 2
BATCH_RECORDS = 500_000
FIELDS = [
    ("id", "long"),
    ("customer", "string"),
    ("amount", "double"),
    ("paid", "boolean"),
    ("note", "string"),
]
SCHEMA = json.dumps(
    {"type": "record", "name": "Order", "fields": [{"name": name, "type": kind} for name, kind in FIELDS]}
)


def fill(bootstrap: str, topic: str, records: int, value: Callable[[int], bytes]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 500_000}
    )
    for number in range(records):
        while True:
            try:
                producer.produce(topic, value(number), b"%d" % number, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(300) == 0


def planned(bootstrap: str, topic: str, folder: Path, registry: str | None) -> Any:
    options: dict[str, Any] = {
        "topic": topic,
        "table": "lake.t",
        "warehouse": str(folder),
        "batch_records": BATCH_RECORDS,
        "compact_files": 0,
    }
    if registry is not None:
        options |= {"decode": "avro", "registry": registry}
    content = {"kind": "iceberg", "bootstrap": bootstrap, "trigger": "available_now", "options": options}
    return make_plan(read_definition(content, stem="bench"))


def into_iceberg(bootstrap: str, topic: str, folder: Path, registry: str | None, records: int) -> float:
    began = time.monotonic()
    [work] = start_here(planned(bootstrap, topic, folder, registry))
    while work.is_active():
        time.sleep(0.005)
    seconds = time.monotonic() - began
    assert work.failure() is None, work.failure()
    assert work.progress().rows == records
    return seconds


def into_parquet(bootstrap: str, topic: str, folder: Path, registry: str | None, records: int) -> float:
    began = time.monotonic()
    maker = row_maker(planned(bootstrap, topic, folder, registry).lake.values)
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    source = SourceOptions.read({**options, "maxOffsetsPerTrigger": str(BATCH_RECORDS)}, streaming=True)
    written = 0
    with Cluster(source.client) as cluster:
        offsets = QueryOffsets(source, cluster)
        position = offsets.starting()
        while (end := offsets.next_end(position, limited=True)) != position:
            pieces: list[pa.Table] = []
            for wanted in offsets.batch_ranges(position, end):
                for batch in read_range(
                    source.client, wanted, Columns(headers=True), patience_ms=60_000, fail_on_data_loss=True
                ):
                    pieces += [one.rows for one in maker.rows(batch).pieces]
            schema = plain_schema(pieces[0].schema)
            rows = pa.concat_tables([conformed_table(one, schema) for one in pieces])
            pq.write_table(rows, folder / f"{written}.parquet", compression="zstd")
            written += len(rows)
            position = end
    assert written == records
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=1_000_000)
    records: int = parser.parse_args().records
    text = random.Random(1).randbytes(4_096).hex().encode()
    with RunningBroker({}, mode="process") as broker, RegistryProcess(broker.bootstrap) as registry:
        schema = RegisteredSchemas(RegistryClient(registry.url)).register("avro-value", "avro", SCHEMA)
        encode = Encoder(schema).encode

        def order(number: int) -> bytes:
            row = {
                "id": number,
                "customer": f"c{number % 997}",
                "amount": number / 7,
                "paid": number % 2 == 0,
            }
            return encode({**row, "note": text[number % 4_000 :][:60].decode()})

        fill(broker.bootstrap, "raw", records, lambda number: text[number % 4_000 :][:100])
        fill(broker.bootstrap, "avro", records, order)
        print(f"{records:,} records, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        print("values     Iceberg rec/s   Parquet rec/s   ratio")
        for topic, address in (("raw", None), ("avro", registry.url)):
            best = {}
            for way in (into_iceberg, into_parquet) * ROUNDS:
                with tempfile.TemporaryDirectory() as folder:
                    seconds = way(broker.bootstrap, topic, Path(folder), address, records)
                best[way] = min(seconds, best.get(way, seconds))
            table, plain = (records / best[way] for way in (into_iceberg, into_parquet))
            print(f"{topic:8} {table:15,.0f} {plain:15,.0f} {table / plain:7.2f}", flush=True)


if __name__ == "__main__":
    main()
