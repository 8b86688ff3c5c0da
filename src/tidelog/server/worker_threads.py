"""Blocking work (fsync, recovery, compaction, the metadata store) off the event loop."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


class WorkerThreads:
    """Runs work in a small pool of threads and its completion on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int) -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tidelog-worker")
        self._pending = 0
        #: when the work began that threads are at now
        self._began: dict[object, float] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    def run(self, work: Callable[[], T], then: Callable[[T | BaseException], None]) -> None:
        """Run `work` in a thread, then `then` with its result or its exception on the loop."""
        self._pending += 1
        self._idle.clear()
        future = self._pool.submit(self._timed, work)
        future.add_done_callback(lambda done: self._loop.call_soon_threadsafe(self._finish, done, then))

    def _timed(self, work: Callable[[], T]) -> T:
        key = object()
        self._began[key] = time.monotonic()
        try:
            return work()
        finally:
            del self._began[key]

    def longest_seconds(self) -> float:
        """For how long the longest work has been under way in a thread; 0 if none is. From any thread."""
        # A list of the values is made in one step, which no other thread can come between.
        began = min(list(self._began.values()), default=None)
        return 0.0 if began is None else time.monotonic() - began

    def _finish(self, future: "Future[T]", then: Callable[[T | BaseException], None]) -> None:
        self._pending -= 1
        if self._pending == 0:
            self._idle.set()
        fault = future.exception()
        then(future.result() if fault is None else fault)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run `callback` on the loop; callable from any thread, without effect once the loop is closed."""
        # Somebody else's thread may be late: the loop can close between a look and the call.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)

    async def drain(self) -> None:
        """Wait until no work is under way."""
        while self._pending:
            await self._idle.wait()

    def close(self) -> None:
        """End the threads; call after `drain`."""
        self._pool.shutdown(wait=True)
