"""Flows of a file: content, dead letters of every kind, sinks, state, and a stop from another terminal."""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from tests.spark.pipeline_process import kill, run_to_end, run_with_kills, start, wait_for
from tests.spark.test_spark_ready_records import read_back
from tidelog.admin import dead_letter_headers as names
from tidelog.admin.dead_letter_headers import read_headers
from tidelog.client.faults import BadOption
from tidelog.pipelines.definition import read_definition
from tidelog.pipelines.planning import make_plan
from tidelog.pipelines.planning import start as start_plan
from tidelog.pipelines.runner import wait_for_all

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS_MAX = 400

pytestmark = pytest.mark.timeout(500)


def produce(bootstrap: str, topic: str, values: list[bytes | None]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    for number, value in enumerate(values):
        producer.produce(topic, value, b"key %d" % number, headers=[("n", b"%d" % number)])
    assert producer.flush(SECONDS_MAX) == 0


def order(number: int, **more: Any) -> bytes:
    return json.dumps({"customer": f"c{number % 5}", "amount": number, "code": str(number), **more}).encode()


def records(bootstrap: str, topic: str) -> list[tuple[Any, ...]]:
    return [row for rows in read_back(bootstrap, topic).values() for row in rows]


def with_tax(record: dict[str, Any]) -> dict[str, Any] | None:
    """A step of the flow below."""
    if record["amount"] == 13:
        raise ValueError("nobody wants thirteen")
    if record["amount"] == 14:
        return None
    return {"customer": record["customer"], "code": record["code"], "total": record["amount"] * 1.5}


def flow(bootstrap: str, topic: str, folder: Path, dead: str | None) -> dict[str, Any]:
    return {
        "name": f"flow-{topic}",
        "bootstrap": bootstrap,
        "trigger": "available_now",
        "checkpoint": str(folder / "checkpoint"),
        "dead_letters": dead,
        "sources": {
            "orders": {
                "topic": topic,
                "decode": "json",
                "schema": "customer STRING, amount INT, code STRING",
                "expect": {"positive": "amount >= 0"},
                "options": {"maxOffsetsPerTrigger": "60"},
            }
        },
        "steps": [
            {"name": "taxed", "each": with_tax, "schema": "customer STRING, code STRING, total DOUBLE"},
            # what is no number fails here, and only Spark knows which record it was
            {"name": "coded", "sql": "SELECT customer, CAST(code AS INT) AS code, total FROM taxed"},
        ],
        "sinks": [
            {"from": "coded", "topic": f"{topic}-out", "key": "customer"},
            {"from": "coded", "format": "parquet", "path": str(folder / "files")},
        ],
    }


def test_what_fails_goes_to_the_dead_letters_and_the_rest_goes_on(
    spark: "SparkSession", bootstrap: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic, dead = make_topic(2), make_topic(1)
    make_out(bootstrap, f"{topic}-out")
    values: list[bytes | None] = [order(number) for number in range(100)]
    values[20], values[21], values[22] = b"{not json", None, order(22, amount=-1)
    values[40], values[90] = order(40, code="x"), order(90, code="y")
    produce(bootstrap, topic, values)
    plan = make_plan(read_definition(flow(bootstrap, topic, tmp_path, dead), stem="x"))
    (work,) = works = start_plan(spark, plan)
    wait_for_all(works, SECONDS_MAX)
    fine = sorted(set(range(100)) - {13, 14, 20, 21, 22, 40, 90})
    out = sorted(json.loads(row[1])["code"] for row in records(bootstrap, f"{topic}-out"))
    assert out == fine
    files = [path for path in (tmp_path / "files").rglob("*.parquet") if "_tidelog" not in path.parts]
    rows = [row for path in files for row in pq.ParquetFile(path).read().to_pylist()]
    assert sorted(row["code"] for row in rows) == fine
    assert {row["code"]: row["total"] for row in rows}[99] == 148.5
    letters = {row[0]: (row[1], read_headers(row[2])) for row in records(bootstrap, dead)}
    assert sorted(letters) == [b"key %d" % number for number in (13, 20, 21, 22, 40, 90)]
    assert work.progress().dead_letters == 6
    # Spark forgets rows that were read by a task that failed.
    assert work.progress().rows == 100
    value, failure = letters[b"key 13"]
    assert value == values[13] and failure.headers == (("n", b"13"),)
    assert (failure.step, failure.topic) == ("taxed", topic)
    assert failure.reason == "ValueError: nobody wants thirteen" and "with_tax" in (failure.stack or "")
    assert failure.offset is not None and failure.partition in (0, 1)
    assert "not JSON" in (letters[b"key 20"][1].reason or "")
    assert "no value" in (letters[b"key 21"][1].reason or "") and letters[b"key 21"][0] is None
    assert "positive" in (letters[b"key 22"][1].reason or "")
    assert "CAST_INVALID_INPUT" in (letters[b"key 40"][1].reason or "") and letters[b"key 40"][1].stack


def make_out(bootstrap: str, topic: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(60)


def test_without_a_dead_letter_topic_a_record_that_fails_stops_the_flow(
    spark: "SparkSession", bootstrap: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = make_topic(1)
    make_out(bootstrap, f"{topic}-out")
    produce(bootstrap, topic, [order(1), b"{not json", order(3)])
    plan = make_plan(read_definition(flow(bootstrap, topic, tmp_path, None), stem="x"))
    with pytest.raises(RuntimeError, match="at offset 1: the value is not JSON"):
        wait_for_all(start_plan(spark, plan), SECONDS_MAX)
    assert records(bootstrap, f"{topic}-out") == []


def test_a_step_that_keeps_state_must_say_so_and_then_does(
    spark: "SparkSession", bootstrap: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic, dead = make_topic(1), make_topic(1)
    make_out(bootstrap, f"{topic}-out")
    produce(bootstrap, topic, [order(number) for number in range(20)] + [b"broken"])  # type: ignore[arg-type]
    content = flow(bootstrap, topic, tmp_path, dead)
    step = {"name": "totals", "sql": "SELECT customer, sum(amount) AS total FROM orders GROUP BY customer"}
    content["sinks"] = [
        {"from": "totals", "topic": f"{topic}-out", "key": "customer", "output_mode": "update"}
    ]
    content["steps"] = [{**step, "stateful": False}]
    with pytest.raises(BadOption, match="stateful: true"):
        start_plan(spark, make_plan(read_definition(content, stem="x")))
    content["steps"] = [step]
    wait_for_all(start_plan(spark, make_plan(read_definition(content, stem="x"))), SECONDS_MAX)
    totals = {row[0]: json.loads(row[1])["total"] for row in records(bootstrap, f"{topic}-out")}
    assert totals == {b"c%d" % c: sum(n for n in range(20) if n % 5 == c) for c in range(5)}
    (letter,) = records(bootstrap, dead)
    assert letter[1] == b"broken" and dict(letter[2])[names.STEP] == b"orders"


def file_flow(bootstrap: str, topic: str, name: str, dead: str) -> dict[str, Any]:
    return {
        "name": name,
        "bootstrap": bootstrap,
        "master": "local[2]",
        "spark": {"spark.driver.memory": "1g"},
        "dead_letters": dead,
        "sources": {"lines": {"topic": topic, "options": {"maxOffsetsPerTrigger": "400"}}},
        "steps": [{"name": "numbers", "sql": "SELECT CAST(CAST(value AS STRING) AS INT) AS n FROM lines"}],
        "sinks": [{"topic": f"{topic}-out", "value": "CAST(n AS STRING)"}],
    }


def test_a_flow_with_killed_drivers_has_every_record_once_here_or_there(
    bootstrap: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic, dead = make_topic(2), make_topic(1)
    make_out(bootstrap, f"{topic}-out")
    values: list[bytes | None] = [b"%d" % n if n % 997 else b"bad %d" % n for n in range(5_000)]
    produce(bootstrap, topic, values)
    content = {**file_flow(bootstrap, topic, "killed-flow", dead), "trigger": "available_now"}
    run_with_kills(content, tmp_path, kills=2, seed=9)
    assert sorted(int(row[1]) for row in records(bootstrap, f"{topic}-out")) == [
        n for n in range(5_000) if n % 997
    ]
    assert sorted(row[1] for row in records(bootstrap, dead)) == sorted(
        b"bad %d" % n for n in range(0, 5_000, 997)
    )


def test_a_driver_that_was_killed_while_it_wrote_its_first_offsets_starts_again(
    bootstrap: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic, dead = make_topic(1), make_topic(1)
    make_out(bootstrap, f"{topic}-out")
    produce(bootstrap, topic, [b"%d" % n for n in range(100)])
    offsets = tmp_path / "state/young-flow/checkpoint/flow/offsets"
    offsets.mkdir(parents=True)
    (offsets / ".0.a9470f3e-2707-42e6-8f13-d76383235011.tmp").write_text("v1\n{")
    content = {**file_flow(bootstrap, topic, "young-flow", dead), "trigger": "available_now"}
    run_to_end(content, tmp_path)
    assert sorted(int(row[1]) for row in records(bootstrap, f"{topic}-out")) == list(range(100))


def test_status_and_stop_from_another_terminal(
    bootstrap: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic, dead = make_topic(1), make_topic(1)
    make_out(bootstrap, f"{topic}-out")
    produce(bootstrap, topic, [b"%d" % n for n in range(100)])
    name = f"stopped-{uuid.uuid4().hex[:6]}"
    content = {**file_flow(bootstrap, topic, name, dead), "trigger": "1 second"}
    environment = {**os.environ, "TIDELOG_PIPELINES": str(tmp_path / "state")}

    def tidelog(*words: str) -> str:
        command = [sys.executable, "-m", "tidelog.cli", "pipeline", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    process = start(content, tmp_path)
    try:
        wait_for(content, tmp_path, process, rows=100)
        (listed,) = json.loads(tidelog("list", "--json"))
        assert (listed["name"], listed["state"], listed["pid"]) == (name, "running", process.pid)
        assert "running" in tidelog("status", name)
        assert tidelog("stop", name, "--wait", "120") == f"pipeline {name} stopped\n"
        assert process.wait(60) == 0
    finally:
        if process.poll() is None:
            kill(process)
    assert "stopped; the next run goes on here" in (tmp_path / "output.txt").read_text()
    assert json.loads(tidelog("status", name, "--json"))["state"] == "stopped"
    produce(bootstrap, topic, [b"%d" % n for n in range(100, 150)])
    run_to_end({**content, "trigger": "available_now"}, tmp_path)
    assert sorted(int(row[1]) for row in records(bootstrap, f"{topic}-out")) == list(range(150))


def windowed(bootstrap: str, topic: str, folder: Path) -> dict[str, Any]:
    return {
        "name": f"windows-{topic}",
        "bootstrap": bootstrap,
        "trigger": "available_now",
        "checkpoint": str(folder / "checkpoint"),
        "sources": {
            "orders": {
                "topic": topic,
                "decode": "json",
                "schema": "customer STRING, amount INT, at TIMESTAMP",
                "watermark": "at 1 minute",
            }
        },
        "steps": [
            {
                "name": "sums",
                "sql": "SELECT window.start AS start, customer, sum(amount) AS amount FROM orders"
                " GROUP BY window(at, '1 minute'), customer",
            }
        ],
        "sinks": [{"format": "parquet", "path": str(folder / "files")}],
    }


def test_files_of_a_flow_with_state_are_exact_for_every_reader_and_rows_dropped_are_counted(
    spark: "SparkSession", bootstrap: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    """The driver dies when a batch is in its files, before Spark knows; the reader is not Spark."""
    topic = make_topic(1)
    minutes = ["10:00", "10:01", "10:02", "10:30"]

    def run() -> Any:
        content = windowed(bootstrap, topic, tmp_path)
        (work,) = start_plan(spark, make_plan(read_definition(content, stem="windows")))
        wait_for_all([work], SECONDS_MAX)
        return work.progress()

    def rows() -> list[tuple[str, int]]:
        files = [path for path in (tmp_path / "files").rglob("*.parquet") if "_tidelog" not in path.parts]
        found = [row for path in files for row in pq.read_table(path).to_pylist()]
        return sorted((row["customer"], row["amount"]) for row in found)

    produce(
        bootstrap, topic, [order(number, at=f"2026-01-01T{m}:00Z") for m in minutes for number in range(5)]
    )
    assert run().rows_dropped == 0
    assert rows() == sorted((f"c{n}", n) for _ in minutes[:-1] for n in range(5))
    commits = next((tmp_path / "checkpoint").rglob("commits"))
    last = max((path for path in commits.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)
    # what Spark's own sink would have written last
    for path in (tmp_path / "files" / "_spark_metadata").glob(f"*{last.name}*"):
        path.unlink()
    produce(bootstrap, topic, [order(number, at="2026-01-01T10:00:30Z") for number in range(3)])
    assert run().rows_dropped == 3, "their windows are closed"
    assert rows() == sorted((f"c{n}", n) for _ in minutes[:-1] for n in range(5))


def test_files_take_rows_once(bootstrap: str, tmp_path: Path) -> None:
    content = windowed(bootstrap, "any", tmp_path)
    content["sinks"] = [{**content["sinks"][0], "output_mode": "update"}]
    with pytest.raises(BadOption, match="output_mode is append"):
        make_plan(read_definition(content, stem="windows"))
