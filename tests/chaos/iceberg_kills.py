"""A topic into an Iceberg table while the pipeline is killed, others commit to the table, and schemas change.

    python -m tests.chaos.iceberg_kills --records 100000 --kills 30

Records in Avro flow into a topic; in the middle they get another schema, which some producers do not have
yet. A few are no Avro at all. `tidelog pipeline run`, a process of its own without Spark, is killed with
SIGKILL again and again and started anew; a second writer appends to the table meanwhile, so commits are in
each other's way, and small files are merged. At the end, read by pyiceberg and by DuckDB from the files:

    every record is once in the table, or, if it is no Avro, once in the table of dead letters
    each row has what was written, and a null where its schema had no such field
    what the second writer was told is there is there, once
"""

import argparse
import json
import os
import random
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyiceberg.exceptions import CommitFailedException

from tests.support.child_programs import environment, program
from tests.support.registry_process import RegistryProcess
from tidelog.pipelines.lake.catalogs import CatalogOptions
from tidelog.testing.broker import RunningBroker

TOPIC, TABLE = "orders", "lake.orders"
PARTITIONS = 4
#: one in so many is no Avro
BAD_EVERY = 97
RUN_SECONDS_MAX = 300.0
OLD = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "int"}, {"name": "note", "type": "string"}],
}
LINE = {"type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}]}
NEW = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "extra", "type": ["null", "string"], "default": None},
        {"name": "note", "type": "string"},
        {"name": "lines", "type": {"type": "array", "items": LINE}, "default": []},
    ],
}


@dataclass
class Sent:
    """What the broker has acknowledged, by partition and offset."""

    good: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    bad: dict[tuple[int, int], bytes] = field(default_factory=dict)


class Records(threading.Thread):
    """Sends the records in parts, one for each run of the pipeline, while it runs."""

    def __init__(self, bootstrap: str, registry: str, count: int, parts: int) -> None:
        super().__init__(daemon=True)
        self.sent = Sent()
        self._count = count
        self._part_count = -(-count // parts)
        self._parts = threading.Semaphore(0)
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
        client = SchemaRegistryClient({"url": registry})
        self._old = AvroSerializer(client, json.dumps(OLD), conf={"auto.register.schemas": True})
        self._new = AvroSerializer(client, json.dumps(NEW), conf={"auto.register.schemas": True})

    def run(self) -> None:
        for number in range(self._count):
            if number % self._part_count == 0:
                self._producer.flush(60)
                self._parts.acquire()
            self._send(number)
            if number % 500 == 499:
                self._producer.poll(0)
                time.sleep(0.05)
        assert self._producer.flush(60) == 0

    def send_part(self) -> None:
        """Let the next part go."""
        self._parts.release()

    def _send(self, number: int) -> None:
        row = {"id": number, "note": f"n{number}"}
        context = SerializationContext(TOPIC, MessageField.VALUE)
        if number % BAD_EVERY == BAD_EVERY - 1:
            value: bytes | None = b"no avro %d" % number
        elif number >= self._count // 2 and number % 3:
            row |= {
                "id": number + (1 << 40),
                "extra": f"e{number}",
                "lines": [{"sku": "a"}, {"sku": f"{number}"}],
            }
            value = self._new(row, context)
        else:
            value = self._old(row, context)

        def delivered(fault: Any, message: Any) -> None:
            assert fault is None, fault
            place = (message.partition(), message.offset())
            if number % BAD_EVERY == BAD_EVERY - 1:
                self.sent.bad[place] = value or b""
            else:
                self.sent.good[place] = {"extra": None, "lines": None, **row}

        self._producer.produce(TOPIC, value, str(number).encode(), on_delivery=delivered)


class SecondWriter(threading.Thread):
    """Appends rows of its own to the table, as any other program may."""

    def __init__(self, warehouse: Path) -> None:
        super().__init__(daemon=True)
        self.ending = threading.Event()
        self.acknowledged: list[str] = []
        self.unknown: set[str] = set()
        self.conflicts = 0
        self._catalog = CatalogOptions("tidelog", str(warehouse)).open()

    def run(self) -> None:
        number = 0
        while not self.ending.wait(random.uniform(0.02, 0.2)):
            if not self._catalog.table_exists(TABLE):
                continue
            note = f"second-{number}"
            try:
                self._catalog.load_table(TABLE).append(pa.table({"note": [note]}))
                self.acknowledged.append(note)
            except CommitFailedException:
                self.conflicts += 1
            except Exception:
                # SQLite was locked for too long: nobody knows.
                self.unknown.add(note)
            number += 1


@dataclass
class Outcome:
    """What came of a run."""

    records: int
    kills: int
    commits: int
    second: int
    seconds: float


def definition(folder: Path, bootstrap: str, registry: str, trigger: str) -> Path:
    options = {
        "topic": TOPIC,
        "table": TABLE,
        "warehouse": str(folder / "lake"),
        "decode": "avro",
        "registry": registry,
        "batch_records": 4_000,
        "commit_seconds": 0.1,
        "compact_files": 10,
    }
    path = folder / f"{trigger}.yaml"
    content = {
        "name": "orders",
        "kind": "iceberg",
        "bootstrap": bootstrap,
        "trigger": trigger,
        "options": options,
    }
    path.write_text(json.dumps(content))
    return path


def start(path: Path, folder: Path) -> "subprocess.Popen[bytes]":
    command = [
        *program("tidelog.cli"),
        "pipeline",
        "run",
        str(path),
        "--no-check",
        "--replace",
        "--progress",
        "0.5",
    ]
    with (folder / "output.txt").open("a") as output:
        return subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(TIDELOG_PIPELINES=str(folder / "state")),
            start_new_session=True,
        )


def run(records: int, kills: int, seed: int, folder: Path) -> Outcome:
    """All of it; raises AssertionError with what is wrong."""
    moments = random.Random(seed)
    began = time.monotonic()
    with RunningBroker({}, mode="process") as broker, RegistryProcess(broker.bootstrap) as registry:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
        source = Records(broker.bootstrap, registry.url, records, kills + 1)
        second = SecondWriter(folder / "lake")
        source.start()
        second.start()
        path = definition(folder, broker.bootstrap, registry.url, "continuous")
        try:
            for _ in range(kills):
                _kill_in_the_middle(path, folder, moments, source)
            source.send_part()
            source.join(RUN_SECONDS_MAX)
            assert not source.is_alive()
        finally:
            second.ending.set()
            second.join(60)
        last = start(definition(folder, broker.bootstrap, registry.url, "available_now"), folder)
        try:
            code = last.wait(RUN_SECONDS_MAX)
        finally:
            _end(last)
        assert code == 0, (folder / "output.txt").read_text()[-3_000:]
    commits = check(folder, source.sent, second)
    return Outcome(records, kills, commits, len(second.acknowledged), time.monotonic() - began)


def _kill_in_the_middle(path: Path, folder: Path, moments: random.Random, source: Records) -> None:
    """Kill a run some time after it has begun to write, or, now and then, before."""
    before = _data_files(folder)
    process = start(path, folder)
    try:
        source.send_part()
        if moments.random() < 0.8:
            _await_files(folder, before)
        time.sleep(moments.uniform(0.0, 1.5))
        assert process.poll() is None, (folder / "output.txt").read_text()[-3_000:]
    finally:
        _end(process)


def _await_files(folder: Path, before: set[str]) -> None:
    deadline = time.monotonic() + RUN_SECONDS_MAX
    while _data_files(folder) <= before:
        assert time.monotonic() < deadline, (folder / "output.txt").read_text()[-3_000:]
        time.sleep(0.01)


def _data_files(folder: Path) -> set[str]:
    """What has been written for the table, committed or not."""
    return {str(path) for path in (folder / "lake").glob("lake/orders/data/*.parquet")}


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def check(folder: Path, sent: Sent, second: SecondWriter) -> int:
    """Compare the tables with what was sent; how many commits of the pipeline there are."""
    catalog = CatalogOptions("tidelog", str(folder / "lake")).open()
    table = catalog.load_table(TABLE)
    paths = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
    query = (
        f"SELECT _partition, _offset, id, note, extra, lines FROM read_parquet({paths}, union_by_name=true)"
    )
    with duckdb.connect() as database:
        by_duckdb = database.execute(query).fetchall()
    names = ("_partition", "_offset", "id", "note", "extra", "lines")
    scanned = table.scan(selected_fields=names).to_arrow().select(names).to_pylist()
    by_pyiceberg = [tuple(row.values()) for row in scanned]
    for reader, rows in (("DuckDB", by_duckdb), ("pyiceberg", by_pyiceberg)):
        _check_rows(reader, rows, sent, second)
    dead = catalog.load_table(f"{TABLE}_dlq").scan().to_arrow().to_pylist()
    places = Counter((row["partition"], row["offset"]) for row in dead)
    assert places == Counter(sent.bad.keys()), (
        "dead letters are not those records that are no Avro, once each"
    )
    assert all(row["value"] == sent.bad[row["partition"], row["offset"]] for row in dead)
    assert {row["reason"] for row in dead} == {"it is not framed with a schema id"}
    summaries = [one.summary for one in table.metadata.snapshots if one.summary is not None]
    return sum("tidelog.offsets" in one.additional_properties for one in summaries)


def _check_rows(reader: str, rows: list[tuple[Any, ...]], sent: Sent, second: SecondWriter) -> None:
    ours = [row for row in rows if row[0] is not None]
    twice = [place for place, count in Counter(row[:2] for row in ours).items() if count > 1]
    assert not twice, f"{reader}: {len(twice)} records are there more than once, such as {twice[0]}"
    lost = sent.good.keys() - {row[:2] for row in ours}
    assert not lost, f"{reader}: {len(lost)} records are lost, such as {min(lost)}"
    for partition, offset, *values in ours:
        wanted = sent.good.get((partition, offset))
        assert wanted is not None, f"{reader}: {partition}-{offset} was never sent, or is no Avro"
        # An absent list is read as an empty one by pyiceberg.
        found = dict(zip(("id", "note", "extra", "lines"), values, strict=True))
        found["lines"] = found["lines"] or None
        assert found == wanted, f"{reader}: {partition}-{offset} is {found}, not {wanted}"
    theirs = Counter(row[3] for row in rows if row[0] is None)
    assert all(count == 1 for count in theirs.values())
    assert set(second.acknowledged) <= set(theirs) <= set(second.acknowledged) | second.unknown, reader


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tidelog-iceberg-") as folder:
        outcome = run(given.records, given.kills, given.seed, Path(folder))
    print(
        f"{outcome.records} records, {outcome.kills} kills, {outcome.second} commits of a second writer, "
        f"{outcome.commits} snapshots with offsets, {outcome.seconds:.0f} s: every record once",
        flush=True,
    )


if __name__ == "__main__":
    main()
