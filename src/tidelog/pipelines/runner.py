"""Runs a plan to its end: session, work, reports, and a clean stop when it is asked for.

A stop comes from a signal (the caller sets `stopping`) or from another terminal (`running`). Queries stop
where they are: what a micro-batch had written is not visible, and the next start repeats it.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tidelog.client.masking import masked_text
from tidelog.client.pipeline_places import ENDED, FAILED, RUNNING, STARTING, STOPPED
from tidelog.pipelines import planning
from tidelog.pipelines.plan import Plan
from tidelog.pipelines.running import Place, Status
from tidelog.pipelines.session import open_session
from tidelog.pipelines.work import Progress, Work

POLL_SECONDS = 0.25

Report = Callable[[Sequence[Progress]], None]


class Runner:
    """One run of one pipeline."""

    def __init__(self, plan: Plan, origin: Path | None, stopping: threading.Event) -> None:
        self._plan = plan
        self._origin = origin
        self._stopping = stopping
        self._started_ms = int(time.time() * 1000)
        self._place = Place(plan.run.name)
        self._progress: tuple[Progress, ...] = ()

    def run(self, report: Report, report_seconds: float, on_session: Callable[[], None]) -> Status:
        """Run until everything has ended or a stop is asked for.

        `on_session` is called when the session stands: Spark takes over Ctrl-C when it starts.
        """
        with self._place:
            self._tell(STARTING)
            try:
                spark = open_session(self._plan.run)
                on_session()
                try:
                    state, failure = self._run_in(spark, report, report_seconds)
                finally:
                    spark.stop()
            except BaseException as fault:
                self._tell(FAILED, f"{type(fault).__name__}: {fault}")
                raise
            return self._tell(state, failure)

    def _run_in(self, spark: Any, report: Report, report_seconds: float) -> tuple[str, str | None]:
        works = planning.start(spark, self._plan)
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
        run = self._plan.run
        status = Status(
            name=run.name,
            kind=self._plan.kind,
            state=state,
            pid=os.getpid(),
            started_ms=self._started_ms,
            updated_ms=int(time.time() * 1000),
            origin=None if self._origin is None else str(self._origin),
            dead_letters=run.dead_letters,
            failure=None if failure is None else masked_text(failure, self._plan.secrets()),
            progress=self._progress,
            plan=self._plan.as_json(),
        )
        self._place.tell(status)
        return status


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
