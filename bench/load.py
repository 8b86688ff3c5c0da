"""The load generator of `load.c` in Python, for machines without a C compiler.

Same options, same checks, same JSON line. It is several times slower than the C one and therefore limits the
small-batch rows: `run.py` says so in its report when it had to use it.
"""

import argparse
import json
import math
import os
import resource
import select
import socket
import struct
import sys
import time
from collections import deque
from pathlib import Path

CHECKED_BYTES = 256
SOCKET_BUFFER_BYTES = 4 * 1024 * 1024


class LoadFailure(Exception):
    """The server's answer is wrong, or it went away."""


def read_frames(path: Path) -> list[bytes]:
    data = path.read_bytes()
    frames = []
    position = 0
    while position < len(data):
        size = 4 + struct.unpack_from(">i", data, position)[0]
        frames.append(data[position : position + size])
        position += size
    return frames


def server_cpu_seconds(pid: int) -> float:
    if pid <= 0:
        return -1.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_seconds(pid: int) -> float:
    """Seconds a process was ready to run but had no CPU: what others took from it. -1 when unknown."""
    path = Path(f"/proc/{pid}/schedstat")
    return int(path.read_text().split()[1]) / 1e9 if pid > 0 and path.exists() else -1.0


def own_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Connection:
    """One socket, its window of unanswered requests, and the parser of its answers."""

    def __init__(self, index: int, options: argparse.Namespace, frames: list[bytes]) -> None:
        self.index = index
        self.options = options
        self.frames = frames
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
        self.socket.connect((options.host, options.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.begun = 0
        self.done = 0
        self.begun_ns: deque[int] = deque()
        self.outgoing: list[memoryview] = []
        self.answer = bytearray()
        self.answer_skip = 0
        self.last_offset: dict[int, int] = {}

    def send(self, time_ns: int, stopping: bool) -> int:
        """Fills the window; the number of bytes the kernel took."""
        while not stopping and self.begun < self.done + self.options.depth:
            frame = self.frames[(self.index + self.begun * self.options.connections) % len(self.frames)]
            self.outgoing.append(memoryview(frame[:8] + struct.pack(">I", self.begun & 0xFFFFFFFF)))
            self.outgoing.append(memoryview(frame)[12:])
            self.begun_ns.append(time_ns)
            self.begun += 1
        if not self.outgoing:
            return 0
        try:
            size = self.socket.sendmsg(self.outgoing)
        except BlockingIOError:
            return 0
        left = size
        while left:
            first = self.outgoing[0]
            if left < len(first):
                self.outgoing[0] = first[left:]
                break
            left -= len(first)
            del self.outgoing[0]
        return size

    def take(self, data: memoryview, time_ns: int, latencies_us: list[float]) -> None:
        while data:
            if self.answer_skip:
                step = min(len(data), self.answer_skip)
                self.answer_skip -= step
                data = data[step:]
                if not self.answer_skip:
                    self._answered(time_ns, latencies_us)
                continue
            if len(self.answer) < 4:
                step = 4 - len(self.answer)
                self.answer += data[:step]
                data = data[step:]
                continue
            size = 4 + struct.unpack_from(">i", self.answer)[0]
            step = min(size, CHECKED_BYTES) - len(self.answer)
            self.answer += data[:step]
            data = data[step:]
            if len(self.answer) == min(size, CHECKED_BYTES):
                self._check(size)
                self.answer_skip = size - len(self.answer)
                if not self.answer_skip:
                    self._answered(time_ns, latencies_us)

    def _answered(self, time_ns: int, latencies_us: list[float]) -> None:
        latencies_us.append((time_ns - self.begun_ns.popleft()) / 1000)
        self.answer.clear()
        self.done += 1

    def _check(self, size: int) -> None:
        options = self.options
        if options.response_bytes and size != options.response_bytes:
            raise LoadFailure(f"an answer of {size} bytes, {options.response_bytes} expected")
        if options.no_check:
            return
        if struct.unpack_from(">I", self.answer, 4)[0] != self.done & 0xFFFFFFFF:
            raise LoadFailure("answers out of order (correlation id)")
        if options.error_at >= 0:
            code = struct.unpack_from(">h", self.answer, options.error_at)[0]
            if code:
                raise LoadFailure(f"the server answered with error code {code}")
        if options.offset_at >= 0:
            offset = struct.unpack_from(">q", self.answer, options.offset_at)[0]
            frame = (self.index + self.done * options.connections) % len(self.frames)
            if offset <= self.last_offset.get(frame, -1):
                raise LoadFailure("base offsets do not grow")
            self.last_offset[frame] = offset


class Load:
    """All connections in one epoll loop."""

    def __init__(self, options: argparse.Namespace) -> None:
        frames = read_frames(Path(options.requests))
        self.options = options
        self.frame_count = len(frames)
        self.connections = [Connection(index, options, frames) for index in range(options.connections)]
        self.by_fd = {connection.socket.fileno(): connection for connection in self.connections}
        self.epoll = select.epoll()
        for fd in self.by_fd:
            self.epoll.register(fd, select.EPOLLIN)
        self.buffer = memoryview(bytearray(256 * 1024))
        self.latencies_us: list[float] = []
        self.sent_bytes = 0
        self.received_bytes = 0
        self.stopping = False

    def turn(self) -> None:
        for fd, events in self.epoll.poll(1.0):
            connection = self.by_fd[fd]
            time_ns = time.monotonic_ns()
            if events & ~select.EPOLLOUT:
                size = connection.socket.recv_into(self.buffer)
                if not size:
                    raise LoadFailure("the server closed the connection")
                self.received_bytes += size
                connection.take(self.buffer[:size], time.monotonic_ns(), self.latencies_us)
            self.sent_bytes += connection.send(time_ns, self.stopping)
            self.epoll.modify(fd, select.EPOLLIN | (select.EPOLLOUT if connection.outgoing else 0))

    def total_done(self) -> int:
        return sum(connection.done for connection in self.connections)

    def warm_up(self) -> None:
        start_ns = time.monotonic_ns()
        for connection in self.connections:
            connection.send(start_ns, False)
            if connection.outgoing:
                self.epoll.modify(connection.socket.fileno(), select.EPOLLIN | select.EPOLLOUT)
        # Every connection goes once through all frames it will ever send, so that each partition is open.
        once = self.frame_count // math.gcd(self.frame_count, self.options.connections)
        end = time.monotonic() + self.options.warmup_ms / 1000
        while time.monotonic() < end or min(one.done for one in self.connections) < once:
            self.turn()
            if time.monotonic() > end + 60:
                raise LoadFailure("no progress while warming up")

    def measure(self) -> dict[str, float]:
        options = self.options
        self.latencies_us.clear()
        self.sent_bytes = self.received_bytes = 0
        own, server = own_cpu_seconds(), server_cpu_seconds(options.server_pid)
        own_wait, server_wait = wait_seconds(os.getpid()), wait_seconds(options.server_pid)
        start = time.monotonic()
        while time.monotonic() < start + options.duration_ms / 1000:
            if options.max_bytes and self.sent_bytes + self.received_bytes >= options.max_bytes:
                break
            self.turn()
        seconds = time.monotonic() - start
        ordered = sorted(self.latencies_us) or [0.0]
        return {
            "requests": len(self.latencies_us),
            "seconds": seconds,
            "sent_bytes": self.sent_bytes,
            "received_bytes": self.received_bytes,
            "p50_us": ordered[len(ordered) // 2],
            "p99_us": ordered[len(ordered) * 99 // 100],
            "max_us": ordered[-1],
            "load_cpu_seconds": own_cpu_seconds() - own,
            "server_cpu_seconds": server_cpu_seconds(options.server_pid) - server if server >= 0 else -1.0,
            "load_wait_seconds": wait_seconds(os.getpid()) - own_wait if own_wait >= 0 else -1.0,
            "server_wait_seconds": wait_seconds(options.server_pid) - server_wait
            if server_wait >= 0
            else -1.0,
            "total_requests": self.total_done(),
        }

    def drain(self) -> None:
        self.stopping = True
        deadline = time.monotonic() + 5
        while any(one.done < one.begun for one in self.connections) and time.monotonic() < deadline:
            self.turn()


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--requests", required=True)
    parser.add_argument("--port", type=int, required=True)
    for name, default in (("connections", 1), ("depth", 1), ("warmup-ms", 200), ("duration-ms", 1000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("max-bytes", 0), ("response-bytes", 0), ("server-pid", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name in ("error-at", "offset-at"):
        parser.add_argument(f"--{name}", type=int, default=-1)
    parser.add_argument("--no-check", action="store_true")
    return parser.parse_args()


def main() -> int:
    try:
        load = Load(read_options())
        load.warm_up()
        result = load.measure()
        load.drain()
    except (LoadFailure, OSError) as failure:
        print(f"load: {failure}", file=sys.stderr)
        return 2
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
