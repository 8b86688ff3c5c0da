"""Work of a pipeline in a thread of this process, without Spark (`--engine local`)."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

from tidelog.client.faults import ClientFault
from tidelog.pipelines.work import STOP_SECONDS_MAX, Progress


class LocalWork:
    """A job in a thread. It gets this object, to call `tell` and to look at `stopping`."""

    def __init__(self, name: str, job: Callable[["LocalWork"], None]) -> None:
        self.name = name
        self.stopping = threading.Event()
        self._told = Progress(name)
        threads = ThreadPoolExecutor(1, thread_name_prefix=f"pipeline-{name}")
        self._result = threads.submit(job, self)
        threads.shutdown(wait=False)

    def __repr__(self) -> str:
        return f"<LocalWork {self.name} {'running' if self.is_active() else 'ended'}>"

    def tell(self, progress: Progress) -> None:
        """From the job: how far it is."""
        self._told = progress

    def progress(self) -> Progress:
        return self._told

    def is_active(self) -> bool:
        return not self._result.done()

    def failure(self) -> str | None:
        """Why it ended, if that was not as planned."""
        if not self._result.done():
            return None
        fault = self._result.exception()
        if fault is None:
            return None
        return str(fault) if isinstance(fault, ClientFault) else f"{type(fault).__name__}: {fault}"

    def stop(self) -> None:
        """End between two batches, or in the middle of one, which is as if it had not begun."""
        self.stopping.set()
        wait([self._result], STOP_SECONDS_MAX)
