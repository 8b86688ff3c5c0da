"""A broker with an authorizer in a child process, a client beside it who is timed, and what both cost.

`HostileBroker` is the child: the super user is on one listener, everybody else logs in on another by SASL.
`Probe` asks for Metadata again and again in a process of its own. It notes how long the answer took and how
much the broker computed meanwhile: on a machine that others keep busy only the second is the broker's doing.
"""

import contextlib
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from tests.chaos.broker_process import PreparedBroker
from tests.chaos.kafka_wire import frame
from tests.support.child_programs import environment, program
from tidelog.client.client_settings import ClientSettings
from tidelog.client.link import Link

#: longer waits the stranger for no answer
ANSWER_SECONDS_MAX = 60.0
STRANGER, PASSWORD = "stranger", "of no account"
#: a topic that is there, which the stranger may not see
EXISTING = "healthy"
METADATA, CREATE_TOPICS, HANDSHAKE, AUTHENTICATE = 3, 19, 17, 36
PROBE_PAUSE_SECONDS = 0.002
MIB = 1 << 20


class Seen(NamedTuple):
    """What the probe has seen since it was last asked."""

    rounds: int
    worst_ms: float
    #: what the broker computed at most while one request waited
    worst_cpu_ms: float


class HostileBroker(PreparedBroker):
    """The child process and its ports."""

    def __init__(self, folder: Path, frame_bytes_max: int, source: str | None = None) -> None:
        """`source` is where another version of the package lies that shall be attacked."""
        login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        settings = {
            "node.id": "1",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
            "inter.broker.listener.name": "INSIDE",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.clients.plain.sasl.jaas.config": f'{login} user_{STRANGER}="{PASSWORD}";',
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "tidelog.coordination.path": str(folder / "cluster.sqlite"),
            "socket.request.max.bytes": str(frame_bytes_max),
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "delegation.token.secret.key": "a secret of the cluster",
        }
        super().__init__(folder, settings, listeners=("INSIDE", "CLIENTS"), source=source)

    def _prepare(self) -> None:
        settings = ClientSettings((), request_timeout_ms=60_000, connection_timeout_ms=30_000)
        link = Link.open("127.0.0.1", self.ports["INSIDE"], settings)
        topics = [{"name": EXISTING, "num_partitions": 3, "replication_factor": 1, "configs": []}]
        made = link.request(CREATE_TOPICS, {"topics": topics, "timeout": 30_000}, lowest=5, highest=5)
        assert [int(topic.error_code) for topic in made.topics] == [0]
        # The coordinators are there, so that what asks for them meets them.
        for key_type in (0, 1):
            found = link.request(10, {"key": "g", "key_type": key_type}, lowest=3, highest=3)
            assert int(found.error_code) == 0, found
        link.close()

    def connect(self, *, authenticated: bool) -> socket.socket:
        """A connection of the stranger."""
        stream = socket.create_connection(("127.0.0.1", self.ports["CLIENTS"]), ANSWER_SECONDS_MAX)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if authenticated:
            mechanism = struct.pack(">h", 5) + b"PLAIN"
            stream.sendall(frame(HANDSHAKE, 1, 1, mechanism, flexible=False))
            receive(stream)
            token = f"\0{STRANGER}\0{PASSWORD}".encode()
            stream.sendall(frame(AUTHENTICATE, 0, 2, struct.pack(">i", len(token)) + token, flexible=False))
            answer = receive(stream)
            assert answer[4:6] == b"\0\0", answer
        return stream

    def connect_inside(self) -> socket.socket:
        """A connection of the super user."""
        stream = socket.create_connection(("127.0.0.1", self.ports["INSIDE"]), ANSWER_SECONDS_MAX)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return stream

    def cpu_seconds(self) -> float:
        return cpu_ns(self.pid) / 1e9


def cpu_ns(pid: int) -> int:
    """What all threads of a process have computed."""
    total = 0
    for path in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that ended meanwhile
            total += int((path / "schedstat").read_text().split()[0])
    return total


def receive(stream: socket.socket) -> bytes:
    """One answer, from its correlation id on; raises ConnectionError where there is none."""
    head = _exactly(stream, 4)
    return _exactly(stream, struct.unpack(">i", head)[0])


def _exactly(stream: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        part = stream.recv(min(count, MIB))
        if not part:
            raise ConnectionError("closed")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


class Probe:
    """The process that asks for Metadata."""

    def __init__(self, broker: HostileBroker) -> None:
        command = [*program("tests.chaos.hostile_broker"), str(broker.ports["INSIDE"]), str(broker.pid)]
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
        )
        self.seen()

    def seen(self) -> Seen:
        """What there was since the last call; waits for the round that is under way."""
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write(b"\n")
        self._child.stdin.flush()
        line = self._child.stdout.readline()
        assert line, "the probe was not served"
        rounds, worst_ns, worst_cpu_ns = map(int, line.split())
        return Seen(rounds, worst_ns / 1e6, worst_cpu_ns / 1e6)

    def __enter__(self) -> "Probe":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.kill()
        self._child.wait()


def _probe(port: int, pid: int) -> None:
    """Ask, and tell whenever a line comes in."""
    import select

    stream = socket.create_connection(("127.0.0.1", port), 120)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    asked = frame(METADATA, 4, 3, struct.pack(">ih", 1, 7) + EXISTING.encode() + b"\0", flexible=False)
    rounds = worst_ns = worst_cpu_ns = 0
    while True:
        cpu_before = cpu_ns(pid)
        begun = time.perf_counter_ns()
        stream.sendall(asked)
        receive(stream)
        worst_ns = max(worst_ns, time.perf_counter_ns() - begun)
        worst_cpu_ns = max(worst_cpu_ns, cpu_ns(pid) - cpu_before)
        rounds += 1
        if select.select([sys.stdin], [], [], PROBE_PAUSE_SECONDS)[0]:
            if not sys.stdin.readline():
                return
            print(rounds, worst_ns, worst_cpu_ns, flush=True)
            rounds = worst_ns = worst_cpu_ns = 0


if __name__ == "__main__":
    _probe(int(sys.argv[1]), int(sys.argv[2]))
