"""A cluster, its console and a real browser for the tests of this folder, which `make browser-test` runs.

They are left out of an ordinary run: they need a chromium, which a user may not have.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.browser_console import RunningConsole, chromium_path
from tidelog.testing.cluster import RunningCluster

PAGE_MS_MAX = 45_000

if not os.environ.get("TIDELOG_BROWSER_TESTS"):
    collect_ignore_glob = ["*"]
elif not os.environ.get("TIDELOG_SPARK_TESTS"):
    # `make browser-spark-test` has a Spark, too.
    collect_ignore_glob = ["test_browser_pipeline_run.py"]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    path = chromium_path()
    if path is None:
        pytest.skip("there is no chromium: run tests/browser/setup")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as running:
        launched = running.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def cluster(browser: Any) -> Iterator[RunningCluster]:
    settings = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "4"}
    with RunningCluster(3, settings=settings) as running:
        yield running


@pytest.fixture(scope="session")
def pipelines_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pipelines of this machine say how they are."""
    return tmp_path_factory.mktemp("pipelines")


@pytest.fixture(scope="session")
def console(cluster: RunningCluster, pipelines_folder: Path) -> Iterator[RunningConsole]:
    with RunningConsole(
        cluster.bootstrap, data_folders=(cluster.data_directory,), pipelines_folder=pipelines_folder
    ) as running:
        yield running


class WatchedPage:
    """A page whose errors and dialogs fail the test that opened it."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.faults: list[str] = []
        page.set_default_timeout(PAGE_MS_MAX)
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", self._hear)

    def _hear(self, message: Any) -> None:
        if message.type == "error":
            self.faults.append(message.text)


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[[str], Any]]:
    """Opens pages of a console at an address; their errors fail the test at its end."""
    opened: list[WatchedPage] = []

    def open_watched(address: str) -> Any:
        context = browser.new_context(base_url=address, viewport={"width": 1280, "height": 860})
        opened.append(WatchedPage(context.new_page()))
        return opened[-1].page

    yield open_watched
    for watched in opened:
        watched.page.context.close()
    assert [fault for watched in opened for fault in watched.faults] == []


@pytest.fixture
def page(open_page: Callable[[str], Any], console: RunningConsole) -> Any:
    return open_page(console.address)
