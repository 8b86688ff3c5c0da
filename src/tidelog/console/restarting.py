"""Runs the console in a child process and starts it again when a crash ends it.

The console reads with a library in C, librdkafka, and whoever watches a cluster wants to keep watching: its
known abort (confluentinc/librdkafka, issue 4605) is avoided by `admin.groups`, others may exist.
The listening socket belongs to the parent, so browsers connect again to the same address; the console's
memory of events and samples begins anew. An end that is no crash is passed on.
"""

import logging
import os
import signal
import time
from collections.abc import Callable
from types import FrameType

CRASHES = frozenset({signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS})
PAUSE_SECONDS = 0.5
#: crashes in a row, each within QUICK_SECONDS of its start, after which trying again is no use
QUICK_CRASHES_MAX = 5
QUICK_SECONDS = 10.0

log = logging.getLogger("tidelog.console")


def run_restarted(run: Callable[[], None]) -> int:
    """Run until an end that is no crash; the exit code. Call it before any thread exists: it forks."""
    child = 0

    def forward(number: int, _: FrameType | None) -> None:
        if child:
            os.kill(child, number)

    previous = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)}
    quick_crashes = 0
    try:
        while True:
            started = time.monotonic()
            # A signal that comes while we fork waits until both sides know what to do with it.
            signal.pthread_sigmask(signal.SIG_BLOCK, previous)
            child = os.fork()
            if child == 0:
                for number, handler in previous.items():
                    signal.signal(number, handler)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, previous)
                run()
                os._exit(0)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, previous)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            child = 0
            if -code not in CRASHES:
                return code if code >= 0 else 128 - code
            quick_crashes = quick_crashes + 1 if time.monotonic() - started < QUICK_SECONDS else 1
            if quick_crashes >= QUICK_CRASHES_MAX:
                log.error("the console crashed %d times in a row", quick_crashes)
                return 128 - code
            log.warning("the console crashed in the Kafka client (%s) and is started again", -code)
            time.sleep(PAUSE_SECONDS)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
