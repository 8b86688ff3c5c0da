"""What ready pipelines refuse before they write, and what they tell of it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.client.faults import BadOption
from tidelog.pipelines.file_store import LocalFiles
from tidelog.pipelines.pipeline_options import check_options
from tidelog.pipelines.plan import Plan
from tidelog.pipelines.ready import file_source, order, ready_pipeline
from tidelog.pipelines.ready.table import check_buckets
from tidelog.pipelines.run_settings import RunSettings, Trigger

NEEDED: dict[str, dict[str, Any]] = {
    "jdbc-sink": {"topic": "orders", "url": "postgresql://u@db/shop", "table": "t"},
    "table": {"topic": "orders", "path": "/data/orders"},
    "order": {"topic": "orders", "to": "ordered"},
    "file-source": {"path": "/inbox", "to": "orders"},
    "dedupe": {"topic": "orders", "to": "once"},
}


def planned(kind: str, **changes: Any) -> Plan:
    ready = ready_pipeline(kind)
    options = check_options(ready.options, {**NEEDED[kind], **changes}, of=kind)
    return ready.plan(options, RunSettings("name"))


@pytest.mark.parametrize("kind", ["jdbc-sink", "table"])
@pytest.mark.parametrize(
    "changes",
    [
        {"topic": "orders,payments"},
        {"source": {"subscribe": "orders,payments"}},
        {"source": {"subscribePattern": "o.*"}},
        {"source": {"assign": '{"orders":[0],"payments":[0]}'}},
    ],
)
def test_offsets_of_several_topics_are_not_compared(kind: str, changes: dict[str, Any]) -> None:
    with pytest.raises(BadOption, match=f"{kind} reads one topic"):
        planned(kind, **changes)


@pytest.mark.parametrize("kind", ["jdbc-sink", "table"])
def test_one_topic_may_be_chosen_in_any_way(kind: str) -> None:
    for source in ({}, {"subscribe": "orders"}, {"assign": '{"orders":[0,1,2]}'}):
        planned(kind, source=source)


def test_the_buckets_of_a_table_stay(tmp_path: Path) -> None:
    store, path = LocalFiles(), f"{tmp_path}/"
    check_buckets(store, path, 8)
    # Nothing is written yet: they may still be others.
    check_buckets(store, path, 4, note=True)
    check_buckets(store, path, 4, note=True)
    for note in (False, True):
        with pytest.raises(BadOption, match="has 4 buckets, not 8: say buckets=4"):
            check_buckets(store, path, 8, note=note)


@pytest.mark.parametrize("text", ["10 bananas", "10", "seconds", "10 s", "ten seconds"])
def test_times_that_spark_does_not_know_are_refused_in_the_plan(text: str) -> None:
    with pytest.raises(BadOption, match="an interval like '10 seconds'"):
        Trigger.read(text)
    with pytest.raises(BadOption, match="within is of type duration"):
        planned("dedupe", within=text)


def test_a_month_is_no_interval_of_a_trigger() -> None:
    assert planned("dedupe", within="2 months").options["within"] == "2 months"
    with pytest.raises(BadOption, match="an interval like"):
        Trigger.read("1 month")


@pytest.mark.parametrize("text", ["10 seconds", "10seconds", " 10  Seconds "])
def test_times_are_written_as_spark_reads_them(text: str) -> None:
    assert Trigger.read(text).interval == "10 seconds"
    assert planned("dedupe", within=text).options["within"] == "10 seconds"


class Reader:
    """Keeps the options of a DataStreamReader."""

    def __init__(self) -> None:
        self.readStream = self
        self.chosen: dict[str, Any] = {}

    def format(self, kind: str) -> "Reader":
        return self

    def option(self, name: str, value: Any) -> "Reader":
        self.chosen[name] = value
        return self

    def options(self, **given: Any) -> "Reader":
        self.chosen |= given
        return self

    def load(self, path: str) -> "Reader":
        return self


def test_old_files_are_read_unless_somebody_says_otherwise() -> None:
    assert file_source._files(Reader(), planned("file-source").options).chosen["maxFileAge"] == "36500d"
    chosen = planned("file-source", read={"maxFileAge": "1d"}).options
    assert file_source._files(Reader(), chosen).chosen["maxFileAge"] == "1d"


class Late:
    """A frame with one record in it."""

    def where(self, condition: Any) -> "Late":
        return self

    def select(self, *columns: str) -> "Late":
        return self

    def head(self) -> Any:
        return SimpleNamespace(topic="orders", partition=1, offset=7)


def test_a_record_without_a_place_is_told_with_what_helps() -> None:
    pytest.importorskip("pyspark")  # Spark is an extra
    ordering = order._Ordering(planned("order"), 60_000_000)
    with pytest.raises(order.TooLate) as raised:
        ordering._write_late(Late(), None, 3)
    said = str(raised.value)
    assert "orders-1@7" in said and "late_to and start again" in said
    assert "more lateness helps a pipeline that begins anew" in said
