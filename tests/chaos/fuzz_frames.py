"""Hostile bytes against a live broker: `fuzz_frames.py --frames 120000 [--seed N]`; exit code 0 when it held.

Two processes send frames made by `hostile_frames`, one at a time: behind each goes a small probe, so that a
frame counts only when the broker answered it, parked it or closed the connection because of it. Other
connections hold half a frame, announce what they never send, send one byte at a time, or ask for much and
never read. Batches that unpack to hundreds of megabytes arrive all along. Meanwhile a healthy client
produces, reads back what it wrote and times both, and the broker's memory is sampled. At the end everything
the healthy client wrote must be there, the broker's log must hold no traceback, and its memory must have
stayed below the bound.
"""

import argparse
import multiprocessing
import multiprocessing.connection
import os
import random
import socket
import struct
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from tests.chaos.broker_process import BrokerDied, BrokerProcess
from tests.chaos.hostile_frames import FrameForge, Hostile
from tests.chaos.kafka_wire import ConnectionClosed, WireClient, batch_of, frame
from tidelog.records.record import iterate_records

SETTINGS = {
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "tidelog.partitions.max": "100",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.backoff.ms": "1000",
    "log.segment.delete.delay.ms": "1000",
}
PROBE_ID = 0x7EADBEEF
PROBE = frame(18, 0, PROBE_ID, b"", flexible=False)
SENDERS = 2
FRAMES_PER_CONNECTION_MAX = 50
PARKED_SECONDS = 0.5
ANSWER_SECONDS_MAX = 20.0
MAY_PARK = (
    "Fetch",
    "JoinGroup",
    "SyncGroup",
    "Produce",
    "CreateTopics",
    "CreatePartitions",
    "DeleteTopics",
    "?",
)
BOMB_EVERY_SECONDS = 4.0
HEALTHY_PAUSE_SECONDS = 0.004
#: Idle memory, one bomb unpacked twice over (tidelog.decompressed.bytes.max is 256 MB), buffers and caches.
RESIDENT_BYTES_MAX = 500 << 20
#: After the bombs the memory must be given back; what stays is what all the odd requests made it remember.
RESIDENT_BYTES_AFTER_MAX = 200 << 20
RUN_SECONDS_MIN = 120.0


class Sender:
    """Sends hostile frames from one process."""

    def __init__(self, bootstrap: str, seed: int, topic_ids: tuple[uuid.UUID, ...]) -> None:
        self.address = bootstrap.rsplit(":", 1)
        self.forge = FrameForge(seed, topic_ids)
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self._source = 0

    def run(self, frames: int) -> None:
        while self.counts["frames"] < frames and not self.faults:
            self._connection(frames)

    def _connect(self) -> socket.socket:
        """A connection from one of several local addresses, so that ports do not run out."""
        self._source = (self._source + 1) % 8
        connection = socket.socket()
        connection.bind((f"127.0.0.{2 + self._source}", 0))
        connection.settimeout(ANSWER_SECONDS_MAX)
        connection.connect((self.address[0], int(self.address[1])))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _connection(self, frames: int) -> None:
        with self._connect() as connection:
            self.counts["connections"] += 1
            for _ in range(FRAMES_PER_CONNECTION_MAX):
                hostile = self.forge.hostile()
                self.counts["frames"] += 1
                self.counts[f"kind: {hostile.kind}"] += 1
                try:
                    outcome = self._send(connection, hostile)
                except (BrokenPipeError, ConnectionResetError):
                    outcome = "closed"
                self.counts[f"outcome: {outcome}"] += 1
                if outcome != "answered" or self.counts["frames"] >= frames:
                    return

    def _send(self, connection: socket.socket, hostile: Hostile) -> str:
        if hostile.closes:
            connection.sendall(hostile.data)
            if self.forge.random.random() < 0.5:
                connection.shutdown(socket.SHUT_WR)
                connection.settimeout(ANSWER_SECONDS_MAX)
                while connection.recv(65536):
                    pass
                return "half-closed"
            return "abandoned"
        connection.sendall(hostile.data + PROBE)
        begun = time.monotonic()
        received = bytearray()
        connection.settimeout(PARKED_SECONDS)
        while True:
            try:
                part = connection.recv(65536)
            except TimeoutError:
                if hostile.api in MAY_PARK and time.monotonic() - begun > PARKED_SECONDS:
                    return "parked"
                if time.monotonic() - begun > ANSWER_SECONDS_MAX:
                    self.faults.append(
                        f"no answer to {hostile.kind} {hostile.api}: {hostile.data[:400].hex()}"
                    )
                    return "no answer"
                continue
            if not part:
                return "closed"
            received += part
            if _has_probe(received):
                return "answered"


def _has_probe(received: bytearray) -> bool:
    """Take whole answers off the front; whether one of them is the probe's."""
    while len(received) >= 8:
        size, correlation_id = struct.unpack_from(">ii", received)
        if correlation_id == PROBE_ID:
            return True
        if len(received) < size + 4:
            return False
        del received[: size + 4]
    return False


def _sender_process(
    pipe: multiprocessing.connection.Connection,
    bootstrap: str,
    seed: int,
    ids: tuple[uuid.UUID, ...],
    frames: int,
) -> None:
    sender = Sender(bootstrap, seed, ids)
    try:
        sender.run(frames)
    except OSError as fault:
        sender.faults.append(f"the broker could not be reached: {fault!r}")
    pipe.send((sender.counts, sender.faults))


class HealthyClient(threading.Thread):
    """Produces a record, reads it back, and times both, until told to stop."""

    def __init__(self, bootstrap: str, bombing: threading.Event) -> None:
        super().__init__(name="healthy", daemon=True)
        self.bombed_seconds: list[float] = []
        self._bombing = bombing
        self.values: list[bytes] = []
        self.produce_seconds: list[float] = []
        self.fetch_seconds: list[float] = []
        self.fault: str | None = None
        self.stopping = threading.Event()
        self._address = bootstrap

    def run(self) -> None:
        try:
            with WireClient(self._address, timeout_seconds=60) as client:
                while not self.stopping.wait(HEALTHY_PAUSE_SECONDS):
                    self._round(client)
        except (ConnectionClosed, OSError) as fault:
            self.fault = f"the healthy client lost its connection: {fault!r}"
        except AssertionError as fault:
            self.fault = f"the healthy client saw a wrong answer: {fault}"

    def _round(self, client: WireClient) -> None:
        value = b"healthy-%d" % len(self.values)
        bombed = self._bombing.is_set()
        begun = time.perf_counter()
        produced = client.produce("healthy", 0, batch_of(value))
        middle = time.perf_counter()
        assert produced.error == 0 and produced.base_offset == len(self.values), f"produced {produced}"
        fetched = client.fetch("healthy", 0, produced.base_offset)
        end = time.perf_counter()
        if bombed or self._bombing.is_set():
            self.bombed_seconds.append(end - begun)
        else:
            self.produce_seconds.append(middle - begun)
            self.fetch_seconds.append(end - middle)
        records = list(iterate_records(fetched.records))
        assert [record.value for record in records] == [value], f"fetched {records!r}"
        self.values.append(value)


class Holders(threading.Thread):
    """Connections that hold half a frame, lie about its size, send slowly, or never read; and the bombs."""

    def __init__(self, bootstrap: str, seed: int) -> None:
        super().__init__(name="holders", daemon=True)
        self.stopping = threading.Event()
        self.bombs = 0
        self.bomb_seconds: list[float] = []
        self.bombing = threading.Event()
        self.fault: str | None = None
        self._address = bootstrap
        self._forge = FrameForge(seed)
        self._forge.decompression_bomb()  # builds them all, which takes longer than unpacking one
        self._connections: list[socket.socket] = []
        self._slow: list[tuple[socket.socket, bytes]] = []

    def run(self) -> None:
        host, port = self._address.rsplit(":", 1)
        generator = random.Random(3)
        for number in range(300):
            connection = socket.create_connection((host, int(port)), timeout=20)
            self._connections.append(connection)
            if number < 150:
                # 100 MB announced, a few bytes sent, then silence
                sent = generator.randbytes(generator.choice((0, 9, 2_000)))
                connection.sendall(struct.pack(">i", 100 << 20) + sent)
            elif number < 250:
                self._slow.append((connection, frame(3, 1, 5, struct.pack(">i", -1), flexible=False)))
            else:
                self._ask_and_never_read(connection)
        self._bomb_until_stopped()
        for connection in self._connections:
            connection.close()

    @staticmethod
    def _ask_and_never_read(connection: socket.socket) -> None:
        connection.setblocking(False)
        request = frame(18, 0, 1, b"", flexible=False)
        try:
            for _ in range(2_000):
                connection.send(request * 10)
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            return

    def _bomb_until_stopped(self) -> None:
        ticks = 0
        next_bomb = time.monotonic() + BOMB_EVERY_SECONDS
        while not self.stopping.wait(0.1):
            for connection, data in self._slow:
                try:
                    connection.send(data[ticks % len(data) : ticks % len(data) + 1])
                except OSError as fault:
                    self.fault = f"a slow but honest sender was cut off: {fault!r}"
            ticks += 1
            if time.monotonic() >= next_bomb:
                try:
                    self._bomb()
                except (ConnectionClosed, OSError) as fault:
                    self.fault = f"a decompression bomb was not answered: {fault!r}"
                next_bomb = time.monotonic() + BOMB_EVERY_SECONDS

    def _bomb(self) -> None:
        bomb = self._forge.decompression_bomb()
        with WireClient(self._address, timeout_seconds=60) as client:
            self.bombing.set()
            begun = time.monotonic()
            client.exchange(bomb.data)
            self.bomb_seconds.append(time.monotonic() - begun)
            self.bombing.clear()
        self.bombs += 1


class MemorySampler(threading.Thread):
    """Samples the broker's resident memory."""

    def __init__(self, broker: BrokerProcess) -> None:
        super().__init__(name="memory", daemon=True)
        self.largest_bytes = 0
        self.stopping = threading.Event()
        self._broker = broker

    def run(self) -> None:
        while not self.stopping.wait(0.02) and self._broker.running:
            self.largest_bytes = max(self.largest_bytes, self._broker.resident_bytes())


class FuzzTest:
    """One run."""

    def __init__(self, folder: Path, frames: int, seed: int) -> None:
        self.frames = frames
        self.seed = seed
        self.broker = BrokerProcess(folder, SETTINGS)
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []

    def run(self) -> None:
        begun = time.monotonic()
        self.broker.start()
        self.idle_bytes = self.broker.resident_bytes()
        with WireClient(self.broker.bootstrap) as client:
            client.create_topic("healthy")
            client.create_topic("fuzz-plain")
            client.create_topic("fuzz-table", cleanup_policy="compact", segment_ms="1000")
            metadata = client.ask("metadata", 12, topics=None)
        ids = tuple(topic.topic_id for topic in metadata.topics if topic.name.startswith("fuzz"))
        self.sampler = MemorySampler(self.broker)
        self.holders = Holders(self.broker.bootstrap, self.seed)
        self.healthy = HealthyClient(self.broker.bootstrap, self.holders.bombing)
        threads = (self.sampler, self.healthy, self.holders)
        for thread in threads:
            thread.start()
        self._send(ids)
        for thread in threads[::-1]:
            thread.stopping.set()
            thread.join(60)
        self._judge()
        self.seconds = time.monotonic() - begun

    def _send(self, ids: tuple[uuid.UUID, ...]) -> None:
        """Have the senders work, within a hard bound of time."""
        context = multiprocessing.get_context("spawn")
        share = (self.frames + SENDERS - 1) // SENDERS
        deadline = time.monotonic() + max(RUN_SECONDS_MIN, self.frames / 150)
        children = []
        for number in range(SENDERS):
            here, there = context.Pipe()
            arguments = (there, self.broker.bootstrap, self.seed * 100 + number, ids, share)
            child = context.Process(target=_sender_process, args=arguments, daemon=True)
            child.start()
            there.close()
            children.append((child, here))
        for child, pipe in children:
            try:
                if not pipe.poll(max(deadline - time.monotonic(), 0)):
                    self.faults.append("the senders did not finish in time")
                    child.kill()
                    continue
                counts, faults = pipe.recv()
                self.counts += counts
                self.faults += faults
            except EOFError:
                self.faults.append("a sender ended without a word")
            child.join(10)

    def _judge(self) -> None:
        faults = self.faults
        if not self.broker.running:
            raise BrokerDied(f"the broker died; its log ends:\n{self.broker.log_tail()}")
        faults += [fault for fault in (self.healthy.fault, self.holders.fault) if fault is not None]
        time.sleep(1.5)
        self.after_bytes = self.broker.resident_bytes()
        if self.sampler.largest_bytes > RESIDENT_BYTES_MAX:
            faults.append(f"memory reached {self.sampler.largest_bytes >> 20} MiB")
        if self.after_bytes > RESIDENT_BYTES_AFTER_MAX:
            faults.append(f"memory stayed at {self.after_bytes >> 20} MiB afterwards")
        self._read_everything("as the broker stands")
        if self.broker.stop() != 0:
            faults.append("the broker did not stop cleanly")
        self.broker.start()
        self._read_everything("after a restart")
        self.broker.stop()
        tracebacks = Counter(self.broker.tracebacks())
        for text, count in tracebacks.most_common(10):
            faults.append(f"{count} times this traceback in the broker's log:\n{text}")

    def _read_everything(self, when: str) -> None:
        """A client library reads all that the healthy client wrote."""
        consumer = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": "after", "log_level": 0})
        consumer.assign([TopicPartition("healthy", 0, 0)])
        found: list[bytes | None] = []
        deadline = time.monotonic() + 60
        while len(found) < len(self.healthy.values) and time.monotonic() < deadline:
            found += [message.value() for message in consumer.consume(10_000, timeout=1.0)]
        consumer.close()
        if found != self.healthy.values:
            wanted = len(self.healthy.values)
            self.faults.append(f"{when}: {len(found)} of {wanted} records, or others, came back")

    def report(self) -> None:
        for name, count in sorted(self.counts.items()):
            print(f"  {name:32} {count}")
        print(f"  {'decompression bombs':32} {self.holders.bombs}, {_times(self.holders.bomb_seconds)}")
        print(f"  {'healthy records':32} {len(self.healthy.values)}")
        print(f"  {'healthy produce':32} {_times(self.healthy.produce_seconds)}")
        print(f"  {'healthy fetch':32} {_times(self.healthy.fetch_seconds)}")
        print(f"  {'healthy round during a bomb':32} {_times(self.healthy.bombed_seconds)}")
        mib = 1 << 20
        idle, largest, after = (
            size // mib for size in (self.idle_bytes, self.sampler.largest_bytes, self.after_bytes)
        )
        bound = RESIDENT_BYTES_MAX // mib
        print(f"  {'resident memory, MiB':32} idle {idle}, largest {largest} (bound {bound}), after {after}")
        warnings = self.broker.log_text().count(" WARNING ")
        print(f"  {'lines of warning in its log':32} {warnings}")
        print(f"  {'seconds':32} {self.seconds:.0f}")


def _times(seconds: list[float]) -> str:
    if not seconds:
        return "none"
    ordered = sorted(seconds)
    p50, p99 = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
    return f"p50 {p50 * 1000:.2f} ms, p99 {p99 * 1000:.1f} ms, worst {ordered[-1] * 1000:.0f} ms"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=120_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"{options.frames} frames, seed {options.seed}, pid {os.getpid()}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tidelog-fuzz-") as folder:
        test = FuzzTest(Path(folder), options.frames, options.seed)
        with test.broker:
            try:
                test.run()
            except BrokerDied as died:
                print(f"FAILED with --seed {options.seed}: {died}")
                return 1
        test.report()
    for fault in test.faults:
        print(f"FAILED with --seed {options.seed}: {fault}")
    if not test.faults:
        print(f"passed: {test.counts['frames']} frames, seed {options.seed}")
    return 1 if test.faults else 0


if __name__ == "__main__":
    sys.exit(main())
