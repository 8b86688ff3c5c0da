"""Figures out of Spark's reports, transactions counted across processes, and the metrics made of them."""

import json
import re
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tidelog.client.faults import BadOption
from tidelog.client.pipeline_metrics import METRICS, exposition
from tidelog.pipelines.metrics_server import MetricsServer
from tidelog.pipelines.query_metrics import SourceProgress, batch_figures, rows_dropped, source_progress
from tidelog.pipelines.running import Status
from tidelog.pipelines.sink_events import EVENTS_VARIABLE, SinkCounts, SinkEvents, tell
from tidelog.pipelines.work import Progress, StreamingWork

PAGE = Path(__file__).parents[3] / "docs" / "pipelines-metrics.md"


def report(batch_id: int = 3, **more: Any) -> dict[str, Any]:
    """A report of Spark, as far as it is read."""
    source = {
        "numInputRows": 600,
        "inputRowsPerSecond": 300.0,
        "processedRowsPerSecond": float("nan"),
        "endOffset": '{"orders": {"0": 90, "1": 100}}',
        "latestOffset": {"orders": {"0": 100, "1": 130, "2": 5}},
    }
    return {
        "batchId": batch_id,
        "numInputRows": 600,
        "inputRowsPerSecond": 300.0,
        "processedRowsPerSecond": 450.0,
        "durationMs": {"addBatch": 700, "queryPlanning": 40, "triggerExecution": 800},
        "eventTime": {"watermark": "2026-01-31T12:00:00.500Z"},
        "stateOperators": [
            {"numRowsTotal": 12, "memoryUsedBytes": 1_000, "numRowsDroppedByWatermark": 3},
            {"numRowsTotal": 8, "memoryUsedBytes": 500, "numRowsDroppedByWatermark": 1},
        ],
        "sources": [source],
        "observedMetrics": {"dead_letters": {"count": 2}},
        **more,
    }


class Query:
    """What is asked of a streaming query."""

    id = "8edc"
    isActive = True  # noqa: N815 (Spark's name)

    def __init__(self, *reports: dict[str, Any]) -> None:
        self.recentProgress = reports
        self.status = {"message": "Processing"}


def test_the_figures_of_a_report() -> None:
    assert source_progress(report()) == (SourceProgress("orders", 600, 300.0, None, 45, 5, 30, 15.0),)
    figures = batch_figures(report())
    assert (figures.state_rows, figures.state_bytes) == (20, 1_500)
    assert figures.watermark_ms == 1_769_860_800_500 and figures.phases_ms["addBatch"] == 700
    assert rows_dropped(report()) == 4


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"latestOffset": None}, SourceProgress("orders", 600, 300.0, None)),
        ({"endOffset": None}, None),
        ({"endOffset": '{"logOffset": 4}'}, None),
        ({"endOffset": "7"}, None),
    ],
)
def test_sources_that_tell_less(change: dict[str, Any], said: SourceProgress | None) -> None:
    source = {**report()["sources"][0], **change}
    assert source_progress(report(sources=[source])) == (() if said is None else (said,))


def test_there_is_no_state_and_no_watermark_without_steps_that_keep_some() -> None:
    plain = batch_figures(report(stateOperators=[], eventTime={}))
    assert (plain.state_rows, plain.state_bytes, plain.watermark_ms) == (None, None, None)
    assert batch_figures(report(eventTime={"watermark": "1970-01-01T00:00:00.000Z"})).watermark_ms is None


def test_a_batch_counts_once_and_an_idle_report_keeps_the_figures_of_the_last() -> None:
    idle = report(4, numInputRows=0, durationMs={"latestOffset": 1}, stateOperators=[], observedMetrics={})
    work = StreamingWork("totals", Query(report(2), report(3), idle))
    work.count_transactions = lambda query_id: {"8edc": SinkCounts(6, 1)}[query_id]
    for _ in range(2):
        told = work.progress()
        assert (told.rows, told.dead_letters, told.rows_dropped) == (1_200, 4, 8)
        assert (told.batch_id, told.state_rows, told.phases_ms["addBatch"]) == (4, 20, 700)
        assert (told.commits, told.aborts, told.lag) == (6, 1, 45)


def test_what_processes_of_the_sink_have_done_adds_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(EVENTS_VARIABLE, raising=False)
    tell("tidelog-spark-8edc", committed=4)  # nobody counts
    events = SinkEvents(tmp_path / "sink-events")
    (tmp_path / "sink-events").write_text('{"query": "x8edc", "committed": 100, "aborted": 0}\n')
    monkeypatch.setenv(EVENTS_VARIABLE, "")
    events.begin()
    tell("tidelog-spark-8edc", committed=4)
    tell("tidelog-spark-8edc")
    assert events.of("8edc") == SinkCounts(4, 0)
    threads = [threading.Thread(target=tell, args=("out-8edc",), kwargs={"committed": 1}) for _ in range(20)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    tell("tidelog-spark-8edc", aborted=2)
    tell("tidelog-spark-other", committed=50)
    with (tmp_path / "sink-events").open("a") as file:
        file.write('{"query": "tidelog-spark-8edc", "comm')
    assert events.of("8edc") == SinkCounts(24, 2)


def status(name: str = "totals") -> Status:
    told = report()
    told["sources"][0]["processedRowsPerSecond"] = 450.0
    work = StreamingWork('to"tals', Query(told))
    return Status(name, "flow", "running", 1, 2, 3_000, progress=(work.progress(),))


def test_a_status_comes_back_from_its_file() -> None:
    told = status()
    assert Status.read(json.dumps(told.as_json())) == told
    old = json.loads(json.dumps(told.as_json()))
    old["progress"] = [{"name": "archive", "rows": 5}]
    del old["cause"]
    assert Status.read(json.dumps(old)).progress == (Progress("archive", rows=5),)


def test_metrics_of_pipelines_as_text() -> None:
    text = exposition([status().as_json(), {**status("other").as_json(), "state": "failed"}])
    assert 'tidelog_pipeline_up{pipeline="totals"} 1\n' in text
    assert 'tidelog_pipeline_up{pipeline="other"} 0\n' in text
    labels = 'pipeline="totals",query="to\\"tals"'
    assert f'tidelog_pipeline_batch_phase_seconds{{{labels},phase="addBatch"}} 0.7\n' in text
    assert f'tidelog_pipeline_max_offsets_behind_latest{{{labels},source="orders"}} 30\n' in text
    assert f"tidelog_pipeline_watermark_seconds{{{labels}}} 1769860800.5\n" in text
    families = re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
    assert families == [(metric.name, metric.type) for metric in METRICS], "every family, once"
    assert exposition([]) == ""


def test_every_metric_is_documented() -> None:
    documented = re.findall(r"^\| `(tidelog_pipeline_\w+)` \| (\w+) \|", PAGE.read_text(), re.MULTILINE)
    assert documented == [(metric.name, metric.type) for metric in METRICS]


def test_metrics_are_served_while_a_pipeline_runs() -> None:
    with MetricsServer("127.0.0.1:0", lambda: [status().as_json()]) as server:
        with urllib.request.urlopen(server.address, timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert b"tidelog_pipeline_up" in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(server.address.replace("/metrics", "/"), timeout=10)
        listening = server.address.removeprefix("http://").removesuffix("/metrics")
        with pytest.raises(BadOption, match="cannot be served"):
            MetricsServer(listening, list)
    with pytest.raises(BadOption, match="cannot be served at http"):
        MetricsServer("http", list)
