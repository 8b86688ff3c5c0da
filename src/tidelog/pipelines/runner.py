"""Runs a plan to its end: session, work, reports, and a clean stop when it is asked for.

A stop comes from a signal (the caller sets `stopping`) or from another terminal (`running`). Queries stop
where they are: what a micro-batch had written is not visible, and the next start repeats it.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

from tidelog.admin.shared_pipelines import SharedPipeline
from tidelog.client.faults import ClientFault
from tidelog.client.masking import masked_text
from tidelog.client.pipeline_places import ALIVE, ENDED, FAILED, RUNNING, STARTING, STOPPED
from tidelog.pipelines import planning
from tidelog.pipelines.failure_causes import cause_of
from tidelog.pipelines.metrics_server import MetricsServer
from tidelog.pipelines.plan import Plan
from tidelog.pipelines.run_settings import SPARK
from tidelog.pipelines.running import Place, Status
from tidelog.pipelines.session import open_session
from tidelog.pipelines.shared_run import SharedRun, TakenOver
from tidelog.pipelines.sink_events import SinkEvents
from tidelog.pipelines.spark_gauges import SparkGauges
from tidelog.pipelines.work import Progress, StreamingWork, Work

POLL_SECONDS = 0.25
log = logging.getLogger(__name__)

Report = Callable[[Sequence[Progress]], None]


class Runner:
    """One run of one pipeline."""

    def __init__(
        self,
        plan: Plan,
        origin: Path | None,
        stopping: threading.Event,
        metrics_at: str | None = None,
        *,
        replaces: bool = False,
        on_waiting: Callable[[SharedPipeline], None] = lambda before: None,
    ) -> None:
        self._on_waiting = on_waiting
        self._plan = plan
        self._metrics_at = metrics_at
        self._gauges: SparkGauges | None = None
        self._shared: SharedRun | None = None
        #: the last that was told
        self._status: dict[str, Any] = {}
        self._origin = origin
        self._stopping = stopping
        self._replaces = replaces
        self._started_ms = int(time.time() * 1000)
        self._place = Place(plan.run.name)
        self._progress: tuple[Progress, ...] = ()
        self._sink_events = SinkEvents(self._place.folder / "sink-events")

    def run(self, report: Report, report_seconds: float, on_session: Callable[[], None]) -> Status:
        """Run until everything has ended or a stop is asked for.

        `on_session` is called when the session stands: Spark takes over Ctrl-C when it starts.
        """
        with ExitStack() as during:
            during.enter_context(self._place)
            if not self._replaces:
                self._place.check_same(self._origin, self._plan.kind)
            server = during.enter_context(self._metrics())
            self._shared = during.enter_context(self._shared_run())
            self._tell(STARTING)
            if server is not None:
                log.info("metrics of %s: %s", self._plan.run.name, server.address)
            self._sink_events.begin()
            try:
                state, failure = self._run_to_end(report, report_seconds, on_session)
            except BaseException as fault:
                self._tell(FAILED, str(fault) if isinstance(fault, ClientFault) else repr(fault))
                raise
            return self._tell(state, failure)

    def _run_to_end(
        self, report: Report, report_seconds: float, on_session: Callable[[], None]
    ) -> tuple[str, str | None]:
        if self._plan.run.engine != SPARK:
            return self._follow(planning.start_here(self._plan), report, report_seconds)
        spark = open_session(self._plan.run)
        on_session()
        try:
            works = planning.start(spark, self._plan)
            self._gauges = SparkGauges(spark)
            for work in works:
                if isinstance(work, StreamingWork):
                    work.count_transactions = self._sink_events.of
            return self._follow(works, report, report_seconds)
        finally:
            spark.stop()

    def _follow(self, works: list[Work], report: Report, report_seconds: float) -> tuple[str, str | None]:
        try:
            stopped = self._watch(works, report, report_seconds)
        finally:
            for work in works:
                work.stop()
        # A query that is stopped in the middle of a batch may say that it failed.
        failure = None if stopped else next(filter(None, (work.failure() for work in works)), None)
        self._progress = tuple(work.progress() for work in works)
        report(self._progress)
        if stopped:
            return STOPPED, None
        return (ENDED, None) if failure is None else (FAILED, failure)

    def _watch(self, works: list[Work], report: Report, report_seconds: float) -> bool:
        """Report until there is nothing to wait for; True when a stop was asked for."""
        last_report = time.monotonic()
        while True:
            if self._stopping.is_set() or self._place.stop_asked():
                return True
            if self._shared is not None:
                if (elsewhere := self._shared.taken_over()) is not None:
                    raise TakenOver(f"pipeline {self._plan.run.name} was taken over: it runs on {elsewhere}")
                if self._shared.stop_asked():
                    return True
            active = [work.is_active() for work in works]
            failed = any(not one and work.failure() for one, work in zip(active, works, strict=True))
            if failed or not any(active):
                return False
            if time.monotonic() - last_report >= report_seconds:
                last_report = time.monotonic()
                self._progress = tuple(work.progress() for work in works)
                report(self._progress)
                self._tell(RUNNING)
            self._stopping.wait(POLL_SECONDS)

    def _tell(self, state: str, failure: str | None = None) -> Status:
        status = self._status_of(state, failure)
        self._place.tell(status)
        self._status = status.as_json()
        if self._shared is not None:
            self._shared.tell(self._status)
        if self._gauges is not None and state in ALIVE:
            self._gauges.tell(self._status)
        return status

    def _status_of(self, state: str, failure: str | None = None) -> Status:
        run = self._plan.run
        return Status(
            name=run.name,
            kind=self._plan.kind,
            state=state,
            pid=os.getpid(),
            started_ms=self._started_ms,
            updated_ms=int(time.time() * 1000),
            origin=None if self._origin is None else str(self._origin),
            dead_letters=run.dead_letters,
            failure=None if failure is None else masked_text(failure, self._plan.secrets()),
            cause=None if failure is None else masked_text(cause_of(failure), self._plan.secrets()),
            progress=self._progress,
            plan=self._plan.as_json(),
        )

    def _shared_run(self) -> AbstractContextManager[SharedRun | None]:
        """Told to the team, if the pipeline is shared."""
        if not self._plan.run.shared:
            return nullcontext()
        starting = self._status_of(STARTING).as_json()
        return SharedRun(self._plan.run, self._place.folder, starting, on_waiting=self._on_waiting)

    def _metrics(self) -> AbstractContextManager[MetricsServer | None]:
        """Served while it runs, if somebody wants them."""
        if self._metrics_at is None:
            return nullcontext()
        return MetricsServer(self._metrics_at, lambda: [self._status] if self._status else [])


def wait_for_all(works: Sequence[Any], timeout_seconds: float) -> None:
    """Until streaming queries and batch jobs have ended; raises what they met, or TimeoutError."""
    deadline = time.monotonic() + timeout_seconds
    for work in works:
        while work.is_active():
            if time.monotonic() >= deadline:
                raise TimeoutError(f"{work.name} has not ended in {timeout_seconds:g} s")
            time.sleep(POLL_SECONDS)
        failure = work.failure()
        if failure is not None:
            raise RuntimeError(failure)
