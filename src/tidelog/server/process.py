"""Run a broker: as this process, or in a thread of it.

`serve` blocks until SIGTERM or SIGINT and stops cleanly; a second signal ends at once. `BrokerThread` runs a
broker with an event loop of its own beside other work, for tests.
"""

import asyncio
import gc
import logging
import os
import signal
import threading
from collections.abc import Callable

from tidelog.model.settings import BrokerSettings
from tidelog.server import allocator
from tidelog.server.node import ListenError, Node, NotRegistered, ReadyInfo

__all__ = ["BrokerThread", "ListenError", "NotRegistered", "ReadyInfo", "serve"]

log = logging.getLogger(__name__)

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's loop where there is one, asyncio's otherwise."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def spare_the_collector() -> None:
    """Keep what start-up made out of every later garbage collection, and collect less often.

    Requests leave no cycles behind; the default thresholds would look for them every few hundred requests.
    What a long request has made so far is looked through in one step when the second generation is collected:
    a million objects took 150 ms, a fifth of that many holds nobody up.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 4, 200)


def serve(settings: BrokerSettings, *, on_ready: Callable[[ReadyInfo], None]) -> int:
    """Run a broker until it is told to stop; return the exit code."""

    allocator.settle()

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        stopping = asyncio.Event()

        def stop() -> None:
            if stopping.is_set():
                os._exit(130)
            stopping.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        node = Node(settings)

        def give_up(reason: str) -> None:
            log.critical("the broker stops: %s", reason)
            failures.append(reason)
            stopping.set()

        node.on_fatal = give_up
        info = await node.start()
        spare_the_collector()
        on_ready(info)
        await stopping.wait()
        log.info("stopping")
        await node.stop()
        log.info("stopped cleanly")

    failures: list[str] = []
    loop = new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(main(loop))
    finally:
        loop.close()
    return 1 if failures else 0


class BrokerThread:
    """A broker in a thread of this process."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._ready = threading.Event()
        self._fault: BaseException | None = None
        self.node: Node | None = None
        self.info: ReadyInfo | None = None

    @property
    def bootstrap(self) -> str:
        """The address clients connect to."""
        assert self.info is not None, "the broker is not running"
        return self.info.bootstrap

    def start(self) -> ReadyInfo:
        """Start and wait until requests are served."""
        self._thread = threading.Thread(target=self._run, name="tidelog-broker", daemon=True)
        self._thread.start()
        if not self._ready.wait(START_SECONDS_MAX):
            raise TimeoutError(f"the broker was not ready within {START_SECONDS_MAX:.0f} s")
        if self._fault is not None:
            raise self._fault
        assert self.info is not None
        return self.info

    def stop(self) -> None:
        """Stop cleanly and wait for the end."""
        if self._thread is None or self._loop is None:
            return
        if self._thread.is_alive() and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(STOP_SECONDS_MAX)
        if self._thread.is_alive():
            raise TimeoutError(f"the broker did not stop within {STOP_SECONDS_MAX:.0f} s")
        self._thread = None

    def _run(self) -> None:
        self._loop = loop = new_event_loop()
        try:
            loop.run_until_complete(self._main())
        except BaseException as fault:
            self._fault = fault
        finally:
            self._ready.set()
            loop.close()

    async def _main(self) -> None:
        self._stopping = asyncio.Event()
        self.node = Node(self._settings)
        self.info = await self.node.start()
        self._ready.set()
        await self._stopping.wait()
        await self.node.stop()
