"""The AMQP gateway beside RabbitMQ in one run: publishing with confirms, consuming with acknowledgements.

    python -m bench.amqp [--rounds 3] [--messages 20000] [--json]

One client on a bare socket for both, which sends frames made beforehand and only counts what comes, so that
the servers are what takes time. `publish`: persistent messages of 1,000 bytes to a durable queue, at most
1,000 not confirmed. `consume`: the same queue, prefetch 500, one acknowledgement for 100 deliveries. They
take turns; the median of the rounds is shown. RabbitMQ is Debian's `rabbitmq-server`, in folders of its own.
Tidelog is a broker and a gateway, each a process. It asserts nothing.
"""

import argparse
import json
import os
import secrets
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from pamqp import commands, frame, header

from tests.support.amqp_gateway import GatewayProcess
from tidelog.testing.broker import RunningBroker
from tidelog.testing.ports import ReservedPort

BODY = b"x" * 1_000
UNCONFIRMED_MAX, PREFETCH, ACKED_TOGETHER = 1_000, 500, 100
START_SECONDS_MAX = 90.0
_HEAD = struct.Struct(">BHI")
_ACK, _DELIVER = (60, 80), (60, 60)


class Client:
    """One connection with one channel."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        self._socket.sendall(b"AMQP\x00\x00\x09\x01")
        self._expect()
        self._send(commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"), 0)
        self._expect()
        self._send(commands.Connection.TuneOk(10, 131_072, 0), 0)
        self._send(commands.Connection.Open("/"), 0)
        self._expect()
        self.call(commands.Channel.Open())

    def close(self) -> None:
        self._socket.close()

    def call(self, method: object) -> None:
        """Send a method and wait for its answer."""
        self._send(method, 1)
        self._expect()

    def _send(self, method: object, channel: int) -> None:
        self._socket.sendall(frame.marshal(method, channel))  # type: ignore[arg-type]

    def _expect(self) -> None:
        next(self._frames())

    def _frames(self) -> Iterator[tuple[int, bytes]]:
        """Type and payload of each frame that comes."""
        while True:
            buffer, position = self._buffer, 0
            while len(buffer) - position >= 8:
                kind, _, size = _HEAD.unpack_from(buffer, position)
                end = position + 8 + size
                if len(buffer) < end:
                    break
                payload = bytes(buffer[position + 7 : end - 1])
                del buffer[:end]
                yield kind, payload
            data = self._socket.recv(1 << 18)
            if not data:
                raise ConnectionError("the server closed the connection")
            buffer += data

    def publish(self, queue: str, count: int) -> None:
        """With confirms; returns when all are confirmed."""
        self.call(commands.Confirm.Select())
        properties = commands.Basic.Properties(delivery_mode=2)
        message = frame.marshal(commands.Basic.Publish(0, "", queue), 1)
        message += frame.marshal(header.ContentHeader(0, len(BODY), properties), 1)
        message += _HEAD.pack(3, 1, len(BODY)) + BODY + b"\xce"
        sent = confirmed = 0
        frames = self._frames()
        singles: set[int] = set()
        while confirmed < count:
            room = min(UNCONFIRMED_MAX - (sent - confirmed), count - sent)
            if room >= UNCONFIRMED_MAX // 10 or (room and sent + room == count):
                self._socket.sendall(message * room)
                sent += room
            _, payload = next(frames)
            assert struct.unpack_from(">HH", payload) == _ACK, payload
            tag, multiple = struct.unpack_from(">QB", payload, 4)
            if multiple:
                singles = {each for each in singles if each > tag}
                confirmed = max(confirmed, tag)
            else:
                singles.add(tag)
            while confirmed + 1 in singles:
                confirmed += 1
                singles.discard(confirmed)

    def consume(self, queue: str, count: int) -> None:
        """With acknowledgements; returns when all have come."""
        self.call(commands.Basic.Qos(0, PREFETCH, False))
        self._send(commands.Basic.Consume(0, queue, "bench"), 1)
        come = 0
        for kind, payload in self._frames():
            if kind != 1 or struct.unpack_from(">HH", payload) != _DELIVER:
                continue
            come += 1
            if come % ACKED_TOGETHER == 0 or come == count:
                self._send(commands.Basic.Ack(come, True), 1)
            if come == count:
                return


@contextmanager
def rabbitmq(folder: Path) -> Iterator[int]:
    """Debian's server in a folder of its own; the port where it listens."""
    server = shutil.which("rabbitmq-server", path="/usr/lib/rabbitmq/bin:/usr/sbin") or ""
    assert server, "apt-get install rabbitmq-server"
    with closing(ReservedPort()) as port, closing(ReservedPort()) as distribution:
        folder.chmod(0o777)
        environment = {
            **os.environ,
            "HOME": str(folder),
            "RABBITMQ_NODENAME": f"bench{secrets.token_hex(4)}@localhost",
            "RABBITMQ_MNESIA_BASE": str(folder),
            "RABBITMQ_LOG_BASE": str(folder),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port.port),
            "RABBITMQ_DIST_PORT": str(distribution.port),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "ERL_EPMD_PORT": str(distribution.port + 1),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
        }
        process = subprocess.Popen(
            [server],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            until = time.monotonic() + START_SECONDS_MAX
            while True:
                try:
                    Client(port.port).close()
                    break
                except OSError:
                    if time.monotonic() > until or process.poll() is not None:
                        raise
                    time.sleep(0.5)
            yield port.port
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)
            # The name server that it started is nobody's child; it ends when it knows of no node any more.
            until = time.monotonic() + 10
            ended = 1
            while ended and time.monotonic() < until:
                time.sleep(0.2)
                ended = subprocess.run(
                    ["epmd", "-kill"], env=environment, capture_output=True, timeout=20, check=False
                ).returncode


@contextmanager
def tidelog() -> Iterator[int]:
    """A broker and a gateway."""
    with RunningBroker(mode="process") as broker, GatewayProcess(broker.bootstrap) as gateway:
        yield gateway.port


def measured(port: int, count: int) -> dict[str, float]:
    """Messages a second, in and out."""
    queue = f"bench-{secrets.token_hex(4)}"
    rates = {}
    client = Client(port)
    client.call(commands.Queue.Declare(0, queue, durable=True))
    for what in (client.publish, client.consume):
        begun = time.perf_counter()
        what(queue, count)
        rates[what.__name__] = count / (time.perf_counter() - begun)
    client.close()
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rates: dict[tuple[str, str], list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, rabbitmq(Path(folder)) as theirs, tidelog() as ours:
        for _ in range(options.rounds):
            for name, port in (("tidelog", ours), ("rabbitmq", theirs)):
                for what, rate in measured(port, options.messages).items():
                    rates[name, what].append(rate)
    medians = {key: statistics.median(found) for key, found in rates.items()}
    rows = [
        {
            "what": what,
            "tidelog": round(medians["tidelog", what]),
            "rabbitmq": round(medians["rabbitmq", what]),
            "ratio": round(medians["tidelog", what] / medians["rabbitmq", what], 2),
        }
        for what in ("publish", "consume")
    ]
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{'':8} {'Tidelog':>10} {'RabbitMQ':>10} {'ratio':>6}")
    for row in rows:
        print(f"{row['what']:8} {row['tidelog']:>8}/s {row['rabbitmq']:>8}/s {row['ratio']:>6}")


if __name__ == "__main__":
    main()
