"""What only the process and its event loop know: connections, how late the loop is, memory, CPU, files."""

import asyncio
import os
import resource
from collections import Counter
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING

from tidelog.broker.runtime.metrics import Histogram
from tidelog.broker.telemetry.exposition import family, histograms, single

if TYPE_CHECKING:
    from tidelog.server.socket_server import SocketServer

PROBE_SECONDS = 0.1
_PROBE_NS = int(PROBE_SECONDS * 1e9)


class LoopProbe:
    """Wakes up ten times a second and measures how much too late."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.delays = Histogram()
        self._handle: asyncio.TimerHandle | None = None
        self._due_ns = 0
        self._arm()

    def _arm(self) -> None:
        self._due_ns = perf_counter_ns() + _PROBE_NS
        self._handle = self._loop.call_later(PROBE_SECONDS, self._fired)

    def _fired(self) -> None:
        # Timers of the loop have whole milliseconds, and may be that much too early.
        self.delays.observe(max(0, perf_counter_ns() - self._due_ns))
        self._arm()

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()


def connection_families(server: "SocketServer") -> str:
    """Who is connected."""
    listeners = Counter(connection.context.listener_name for connection in server.connections)
    for listener in server.broker.settings.static.listeners:
        listeners.setdefault(listener.name, 0)
    return "".join(
        (
            family("tidelog_connections", [((name,), count) for name, count in sorted(listeners.items())]),
            single("tidelog_connections_accepted_total", server.accepted_count),
            single("tidelog_connections_refused_total", server.reported_count),
            single("tidelog_receive_buffer_bytes", server.receive_bytes),
        )
    )


def process_families(probe: LoopProbe) -> str:
    """What the system says about this process; what it does not say is left out."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    parts = [
        histograms("tidelog_event_loop_delay_seconds", {(): probe.delays}),
        single("process_cpu_seconds_total", usage.ru_utime + usage.ru_stime),
        single("process_max_fds", resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
    ]
    try:
        # The name of the program stands in brackets and may hold anything, so what counts is behind them.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        boot_seconds = next(
            int(line.split()[1])
            for line in Path("/proc/stat").read_text().splitlines()
            if line.startswith("btime")
        )
        open_count = sum(1 for _ in Path("/proc/self/fd").iterdir())
    except OSError:
        return "".join(parts)  # not Linux
    ticks_per_second = os.sysconf("SC_CLK_TCK")
    parts += [
        single("process_threads", int(fields[17])),
        single("process_start_time_seconds", boot_seconds + int(fields[19]) / ticks_per_second),
        single("process_virtual_memory_bytes", int(fields[20])),
        single("process_resident_memory_bytes", int(fields[21]) * resource.getpagesize()),
        single("process_open_fds", open_count),
    ]
    return "".join(parts)
