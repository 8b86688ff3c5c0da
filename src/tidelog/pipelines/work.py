"""What a started pipeline is made of: pieces of work that can be watched and stopped.

A `Work` is a streaming query (`StreamingWork`) or a batch job in a thread of its own (`BatchWork`). The
runner asks each for its progress and whether it goes on; it does not know what they do.
"""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidelog.pipelines.query_metrics import (
    BatchFigures,
    SourceProgress,
    batch_figures,
    dead_letters,
    had_batch,
    lag,
    rate,
    rows_dropped,
    source_progress,
)
from tidelog.pipelines.sink_events import SinkCounts

STOP_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a piece of work is. What is not known is None."""

    name: str
    batch_id: int | None = None
    #: of the last micro-batch
    input_rows: int | None = None
    input_rows_per_second: float | None = None
    processed_rows_per_second: float | None = None
    batch_ms: int | None = None
    #: records in the topics that are still to be read
    lag: int | None = None
    #: since the start
    rows: int = 0
    dead_letters: int = 0
    message: str = ""
    sources: tuple[SourceProgress, ...] = ()
    #: of the last batch: how long Spark took for planning, reading and writing, committing
    phases_ms: Mapping[str, int] = field(default_factory=dict)
    #: of all stateful operators
    state_rows: int | None = None
    state_bytes: int | None = None
    watermark_ms: int | None = None
    #: rows older than the watermark, since the start
    rows_dropped: int = 0
    #: transactions of the sink, since the start
    commits: int = 0
    aborts: int = 0

    @classmethod
    def read(cls, content: dict[str, Any]) -> "Progress":
        """From the JSON that a status has."""
        sources = tuple(SourceProgress(**one) for one in content.get("sources", ()))
        return cls(**{**content, "sources": sources})


class Work(Protocol):
    """A started piece of a pipeline."""

    name: str

    def progress(self) -> Progress: ...

    def is_active(self) -> bool: ...

    def failure(self) -> str | None:
        """Why it ended, if that was not as planned."""

    def stop(self) -> None:
        """End after what is being written is whole; safe to call again."""


class StreamingWork:
    """A streaming query of Spark, and how many dead letters it wrote.

    They are counted by the query itself (an observation called `DEAD_LETTERS`) or by `count_dead_letters`.
    """

    def __init__(self, name: str, query: Any, count_dead_letters: Callable[[], int] | None = None) -> None:
        self.name = name
        self.query = query
        #: set by the runner: the transactions of a query
        self.count_transactions: Callable[[str], SinkCounts] = lambda query_id: SinkCounts()
        self._count = count_dead_letters
        self._rows = 0
        self._dead_letters = 0
        self._rows_dropped = 0
        self._figures = BatchFigures()
        self._seen_batch_id = -1

    def progress(self) -> Progress:
        last = None
        for last in self.query.recentProgress:
            if last["batchId"] > self._seen_batch_id and had_batch(last):
                self._seen_batch_id = last["batchId"]
                self._rows += last["numInputRows"]
                self._dead_letters += dead_letters(last)
                self._rows_dropped += rows_dropped(last)
                self._figures = batch_figures(last)
        counted = self._dead_letters if self._count is None else self._count()
        message = self.query.status["message"]
        if last is None:
            return Progress(self.name, dead_letters=counted, message=message)
        sources = source_progress(last)
        transactions = self.count_transactions(str(self.query.id))
        return Progress(
            self.name,
            last["batchId"],
            last["numInputRows"],
            rate(last["inputRowsPerSecond"]),
            rate(last["processedRowsPerSecond"]),
            last["durationMs"].get("triggerExecution"),
            lag(sources),
            self._rows,
            counted,
            message,
            sources,
            self._figures.phases_ms,
            self._figures.state_rows,
            self._figures.state_bytes,
            self._figures.watermark_ms,
            self._rows_dropped,
            transactions.commits,
            transactions.aborts,
        )

    def is_active(self) -> bool:
        return bool(self.query.isActive)

    def failure(self) -> str | None:
        fault = self.query.exception()
        return None if fault is None else str(fault)

    def stop(self) -> None:
        self.query.stop()

    def __repr__(self) -> str:
        return f"<StreamingWork {self.name} {self.query.id}>"


class BatchWork:
    """A batch job in a thread. `job` gets this object, to call `tell` and to look at `stopping`."""

    def __init__(self, name: str, spark: Any, job: Callable[["BatchWork"], None]) -> None:
        self.name = name
        self.stopping = threading.Event()
        self._spark = spark
        self._job = job
        self._group = f"tidelog-{name}-{id(self)}"
        self._told = Progress(name)
        threads = ThreadPoolExecutor(1, thread_name_prefix=f"pipeline-{name}")
        self._result = threads.submit(self._run)
        threads.shutdown(wait=False)

    def _run(self) -> None:
        # Spark looks for data sources in Python through the active session of the thread.
        session_class = type(self._spark)._get_j_spark_session_class(self._spark._jvm)
        session_class.setActiveSession(self._spark._jsparkSession)
        self._spark.sparkContext.setJobGroup(self._group, self.name, interruptOnCancel=True)
        self._job(self)

    def tell(self, rows: int, dead_letters: int = 0, message: str = "") -> None:
        """From the job: how far it is."""
        self._told = Progress(self.name, rows=rows, dead_letters=dead_letters, message=message)

    def progress(self) -> Progress:
        return self._told

    def is_active(self) -> bool:
        return not self._result.done()

    def failure(self) -> str | None:
        """What a job that was told to end has met is no failure."""
        if not self._result.done() or self.stopping.is_set():
            return None
        fault = self._result.exception()
        return None if fault is None else f"{type(fault).__name__}: {fault}"

    def wait(self, timeout_seconds: float | None = None) -> None:
        """Until it has ended; raises what the job raised."""
        self._result.result(timeout_seconds)

    def stop(self) -> None:
        # What ended before keeps the reason why it did.
        if self.is_active():
            self.stopping.set()
            self._spark.sparkContext.cancelJobGroup(self._group)
            wait([self._result], STOP_SECONDS_MAX)

    def __repr__(self) -> str:
        return f"<BatchWork {self.name} {'running' if self.is_active() else 'ended'}>"
