"""A pipeline on a real Spark, as the console's page, its metrics and Spark's own show it while it runs.

What is shown is compared with what was done: so many records, of which some are broken and some too late.
`make browser-spark-test` runs it; with TIDELOG_PICTURES it leaves pictures of the page in that folder.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.browser.browser_console import RunningConsole
from tidelog.testing.cluster import RunningCluster
from tidelog.testing.ports import ReservedPort

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

pytestmark = pytest.mark.timeout(400)
SECONDS_MAX = 240
DAY_MS = 1_700_006_400_000
GOOD, BROKEN, LATE = 4_000, 25, 7
NAME = "totals"
SAMPLE = re.compile(r"^(?P<name>\w+)\{(?P<labels>[^}]*)\} (?P<value>\S+)$", re.MULTILINE)


def order(number: int, at_ms: int) -> str:
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at_ms / 1000))
    return json.dumps({"country": ("de", "fr", "it")[number % 3], "amount": number % 50, "at": at})


def produce(cluster: RunningCluster, values: list[str]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 10})
    for number, value in enumerate(values):
        producer.produce("sales", value, key=str(number))
        producer.poll(0)
    assert producer.flush(60) == 0


@pytest.fixture
def ports() -> Iterator[tuple[int, int]]:
    """For the metrics of the pipeline, and for Spark's interface."""
    reserved = ReservedPort(), ReservedPort()
    yield reserved[0].port, reserved[1].port
    for one in reserved:
        one.close()


@pytest.fixture
def pipeline(
    cluster: RunningCluster, pipelines_folder: Path, tmp_path: Path, ports: tuple[int, int]
) -> Iterator["subprocess.Popen[str]"]:
    """Windows over sales with a watermark; what is broken is a dead letter."""
    for name, partitions in (("sales", 4), ("sales-by-country", 2), ("sales-dead", 1)):
        cluster.create_topic(name, partitions=partitions)
    content = {
        "name": NAME,
        "bootstrap": cluster.bootstrap,
        "trigger": "1 second",
        "dead_letters": "sales-dead",
        "checkpoint": str(tmp_path / "checkpoint"),
        "master": "local[2]",
        "spark": {"spark.ui.enabled": True, "spark.ui.port": ports[1], "spark.driver.memory": "1g"},
        "sources": {
            "sales": {
                "topic": "sales",
                "decode": "json",
                "schema": "country STRING, amount INT, at TIMESTAMP",
                "watermark": "at 1 minute",
            }
        },
        "steps": [
            {
                "name": "totals",
                "sql": "SELECT window.start AS start, country, sum(amount) AS amount FROM sales "
                "GROUP BY window(at, '1 minute'), country",
            }
        ],
        "sinks": [{"from": "totals", "topic": "sales-by-country", "key": "country"}],
    }
    path = tmp_path / f"{NAME}.yaml"
    path.write_text(json.dumps(content))
    command = [sys.executable, "-m", "tidelog.cli", "pipeline", "run", str(path), "--progress", "0.5"]
    with (tmp_path / "output.txt").open("w") as output:
        process = subprocess.Popen(
            [*command, "--metrics", str(ports[0])],
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "TIDELOG_PIPELINES": str(pipelines_folder)},
            start_new_session=True,
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)
        print((tmp_path / "output.txt").read_text()[-3_000:])


def fetch(address: str) -> str:
    with urllib.request.urlopen(address, timeout=20) as answer:
        return str(answer.read().decode())


def samples(text: str) -> dict[tuple[str, str], float]:
    """Values by name and labels; the pipeline's own label is left out."""
    found = {}
    for one in SAMPLE.finditer(text):
        labels = one["labels"].replace(f'pipeline="{NAME}"', "").strip(",")
        found[one["name"], labels] = float(one["value"])
    return found


def wait_until(told: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not told():
        assert process.poll() is None, "the pipeline has ended"
        assert time.monotonic() < deadline
        time.sleep(0.5)


def test_what_a_pipeline_does_is_seen_while_it_runs(
    open_page: Callable[[str], Any],
    cluster: RunningCluster,
    console: RunningConsole,
    pipeline: "subprocess.Popen[str]",
    ports: tuple[int, int],
) -> None:
    own = f"http://127.0.0.1:{ports[0]}/metrics"
    query = 'query="sales-by-country"'

    def value(name: str, labels: str = query) -> float | None:
        try:
            return samples(fetch(own)).get((f"tidelog_pipeline_{name}", labels))
        except OSError:
            return None

    produce(cluster, [order(number, DAY_MS + number * 60) for number in range(GOOD)] + ["{broken"] * BROKEN)
    wait_until(lambda: value("rows_total") == GOOD + BROKEN, pipeline)
    wait_until(lambda: value("dead_letters_total", 'query="sales-dead"') == BROKEN, pipeline)
    # The watermark has passed: these are too late for any window, one or more of each country.
    wait_until(lambda: (value("watermark_seconds") or 0) > DAY_MS / 1000, pipeline)
    produce(cluster, [order(number, DAY_MS - 3_600_000) for number in range(LATE)])
    wait_until(lambda: (value("rows_dropped_total") or 0) > 0, pipeline)
    wait_until(lambda: value("rows_total") == GOOD + BROKEN + LATE, pipeline)
    wait_until(lambda: value("max_offsets_behind_latest", f'{query},source="sales"') == 0, pipeline)

    told = samples(fetch(own))
    # Late rows of one country are one row of the partial sum by the time that state sees them.
    assert 1 <= told["tidelog_pipeline_rows_dropped_total", query] <= LATE
    assert told["tidelog_pipeline_state_rows", query] > 0 and told["tidelog_pipeline_state_bytes", query] > 0
    assert told["tidelog_pipeline_commits_total", query] > 0
    assert told["tidelog_pipeline_commits_total", 'query="sales-dead"'] > 0
    assert told["tidelog_pipeline_aborts_total", query] == 0
    assert told["tidelog_pipeline_up", ""] == 1
    phases = {labels for name, labels in told if name == "tidelog_pipeline_batch_phase_seconds"}
    assert {f'{query},phase="{phase}"' for phase in ("addBatch", "queryPlanning", "latestOffset")} <= phases

    page = open_page(console.address)
    page.goto("/pipelines")
    card = page.locator(".pipeline", has_text=NAME)
    expect(card).to_contain_text("running")
    figures = card.locator("[data-query='sales-by-country']")
    expect(figures.locator(".facts").first).to_contain_text("Watermark")
    expect(figures.locator(".facts").first).to_contain_text("no aborts")
    expect(figures.locator(".phases")).to_contain_text("addBatch")
    expect(figures.locator("tbody tr")).to_contain_text("sales")
    expect(card.locator("[data-query='sales-dead'] .facts").first).to_contain_text(str(BROKEN))
    seen = samples(fetch(f"{console.address}/metrics/pipelines"))
    assert seen["tidelog_pipeline_rows_total", query] == GOOD + BROKEN + LATE
    _spark_shows_it(f"http://127.0.0.1:{ports[1]}")
    _draw(page, cluster)


def _spark_shows_it(address: str) -> None:
    """Spark's own interface and its own metrics."""
    gauges = json.loads(fetch(f"{address}/metrics/json/"))["gauges"]
    by_end = {name.partition(".driver.")[2]: gauge["value"] for name, gauge in gauges.items()}
    assert by_end["tidelog.sales-by-country.sales.maxOffsetsBehindLatest"] == 0
    assert by_end["tidelog.sales-by-country.commits"] > 0
    assert by_end[f"spark.streaming.{NAME}-sales-by-country.states-rowsTotal"] > 0
    assert f"{NAME}-sales-by-country" in fetch(f"{address}/StreamingQuery/")


def _draw(page: Any, cluster: RunningCluster) -> None:
    folder = os.environ.get("TIDELOG_PICTURES")
    if not folder:
        return
    for number in range(6):
        produce(cluster, [order(one, DAY_MS + 300_000 + number * 60_000 + one) for one in range(5_000)])
        time.sleep(1.2)
    page.goto("/pipelines")
    page.wait_for_timeout(1_500)
    page.screenshot(path=Path(folder) / "console-pipeline-running.png", full_page=True)
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_timeout(800)
    page.screenshot(path=Path(folder) / "console-pipeline-running-phone.png", full_page=True)
