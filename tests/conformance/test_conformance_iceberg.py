"""The pipeline `iceberg` in this process, over a real broker: upserts, restarts, other topics, a stop."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.conformance.drivers.contract import DEADLINE_SECONDS, TopicMaker
from tidelog.client.faults import ClientFault
from tidelog.pipelines.definition import read_definition
from tidelog.pipelines.lake.catalogs import CatalogOptions
from tidelog.pipelines.lake.iceberg_table import IcebergTable
from tidelog.pipelines.planning import make_plan, start_here
from tidelog.pipelines.work import Work

SECONDS_MAX = 60.0
Start = Callable[..., Work]


@pytest.fixture
def start(bootstrap: str, tmp_path: Path) -> Start:
    def started(topic: str, trigger: str = "available_now", **options: Any) -> Work:
        given = {"topic": topic, "table": "lake.t", "warehouse": str(tmp_path), **options}
        content = {"kind": "iceberg", "bootstrap": bootstrap, "trigger": trigger, "options": given}
        [work] = start_here(make_plan(read_definition(content, stem="p")))
        return work

    return started


def ended(work: Work) -> str | None:
    deadline = time.monotonic() + SECONDS_MAX
    while work.is_active():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return work.failure()


def send(bootstrap: str, topic: str, *records: tuple[bytes | None, bytes | None]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for key, value in records:
        producer.produce(topic, value, key)
    assert producer.flush(DEADLINE_SECONDS) == 0


def rows(folder: Path, table: str = "lake.t") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (
        CatalogOptions("tidelog", str(folder)).open().load_table(table).scan().to_arrow().to_pylist()
    )
    return found


def test_the_newest_of_each_key(start: Start, bootstrap: str, make_topic: TopicMaker, tmp_path: Path) -> None:
    topic = make_topic(3)
    send(bootstrap, topic, *((b"k%d" % (n % 10), b"%d" % n) for n in range(100)), (None, b"no key"))
    assert ended(start(topic, mode="upsert", batch_records=20)) is None
    assert {row["key"]: row["value"] for row in rows(tmp_path)} == {
        b"k%d" % n: b"%d" % (90 + n) for n in range(10)
    }
    send(bootstrap, topic, (b"k1", b"x"), (b"k1", None), (b"k2", None), (b"k2", b"y"), (b"k3", None))
    assert ended(start(topic, mode="upsert")) is None
    found = rows(tmp_path)
    assert len(found) == 8 and {row["key"]: row["value"] for row in found}[b"k2"] == b"y"
    [dead] = rows(tmp_path, "lake.t_dlq")
    assert (dead["value"], dead["reason"]) == (b"no key", "it has no key")
    CatalogOptions("tidelog", str(tmp_path)).open().drop_table("lake.t")
    assert "table lake.t_dlq has dead letters of this pipeline" in (ended(start(topic, mode="upsert")) or "")


def test_a_run_goes_on_where_the_table_is(
    start: Start, bootstrap: str, make_topic: TopicMaker, tmp_path: Path
) -> None:
    topic = make_topic(2)
    send(bootstrap, topic, *((None, b"%d" % n) for n in range(50)))
    work = start(topic, "continuous", commit_seconds=0.1)
    deadline = time.monotonic() + SECONDS_MAX
    while work.progress().rows < 50:
        assert work.is_active() and time.monotonic() < deadline
        time.sleep(0.02)
    send(bootstrap, topic, *((None, b"%d" % n) for n in range(50, 80)))
    while work.progress().rows < 80:
        assert work.is_active() and time.monotonic() < deadline
        time.sleep(0.02)
    work.stop()
    assert work.failure() is None and not work.is_active()
    send(bootstrap, topic, (None, b"80"))
    assert ended(start(topic)) is None
    assert sorted(int(row["value"]) for row in rows(tmp_path)) == list(range(81))
    other = make_topic(1)
    assert "was filled by this pipeline from topic" in (ended(start(other)) or "")


def test_dead_letters_without_their_rows_are_not_written_twice(
    start: Start, bootstrap: str, make_topic: TopicMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(1)
    send(bootstrap, topic, (b"k", b"1"), (None, b"dead"), (b"l", b"2"))

    def dies(*given: object) -> None:
        raise ClientFault("between the two commits")

    with monkeypatch.context() as dying:
        dying.setattr(IcebergTable, "replace", dies)
        assert ended(start(topic, mode="upsert")) == "between the two commits"
    assert (len(rows(tmp_path)), len(rows(tmp_path, "lake.t_dlq"))) == (0, 1)
    send(bootstrap, topic, (b"k", b"3"), (None, b"dead too"))
    assert ended(start(topic, mode="upsert", batch_records=2)) is None
    assert {row["key"]: row["value"] for row in rows(tmp_path)} == {b"k": b"3", b"l": b"2"}
    assert sorted(row["value"] for row in rows(tmp_path, "lake.t_dlq")) == [b"dead", b"dead too"]
