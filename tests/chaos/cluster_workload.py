"""The load of a cluster chaos run: clients that write down everything they did and saw (history.py).

- `Writer`: confluent-kafka's idempotent producer, otherwise with its default settings, at a steady rate.
- `GroupReader`: a member of a group that reads the input and commits as it goes.
- `Watcher`: reads the output without a group, committed or uncommitted data.
- `Copier`: keeps a process at work that reads the input in a group and writes each record to the output, both
  in one transaction.
- `Probe`: one acks=all write after the other to one partition, over a bare connection that finds the leader
  anew as fast as it can. The gaps in its acknowledgements are the broker's unavailability.

Each is a thread; `stop` ends it, `complaints` are things that must not happen to a client at all.
"""

import os
import random
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.chaos.history import ACKNOWLEDGED, FAILED, NO_OFFSET, UNKNOWN, Assigned, Poll, Recorder, Send
from tests.chaos.kafka_wire import ConnectionClosed, WireClient, batch_of
from tests.chaos.transaction_worker import INPUT
from tests.support.child_programs import environment, program

PARTITIONS = 6
READERS, COPIERS = "readers", "transformers"
NEVER_SENT = (KafkaError._PURGE_QUEUE, KafkaError._QUEUE_FULL, KafkaError.MSG_SIZE_TOO_LARGE)
"""Errors of a delivery that say for certain that the record is not in the log."""
TICK_SECONDS = 0.02
FLUSH_SECONDS_MAX = 90.0
STOPPED_SECONDS_MAX = 20.0
"""So long a transactional worker that was stopped on purpose may be silent before it counts as dead."""
SILENT_SECONDS_MAX = 60.0
"""So long any other may be: no fault lasts longer, and a client has to go on when it is over."""
PROGRAM = "tests.chaos.cluster_copier"
PROBE_SECONDS = 0.02
PROBE_TIMEOUT_SECONDS = 1.0
NOT_ENOUGH_REPLICAS = 19


class Actor(threading.Thread):
    """A client in a thread, with a file of its own."""

    def __init__(self, folder: Path, actor: str) -> None:
        super().__init__(name=actor, daemon=True)
        self.actor = actor
        self.recorder = Recorder(folder / f"{actor}.jsonl")
        self.stopped = threading.Event()
        self.complaints: list[str] = []

    def stop(self, seconds: float = FLUSH_SECONDS_MAX) -> None:
        """End it and close its file."""
        self.stopped.set()
        self.join(seconds)
        if self.is_alive():
            self.complaints.append(f"{self.actor} did not end within {seconds:.0f} s")
        self.recorder.close()


class Writer(Actor):
    """An idempotent producer, acks=all."""

    def __init__(
        self, folder: Path, actor: str, bootstrap: Callable[[], str], seed: int, per_second: float
    ) -> None:
        super().__init__(folder, actor)
        self.random = random.Random(seed)
        self.bootstrap = bootstrap
        self.per_second = per_second
        self.pending: dict[str, tuple[int, int, float]] = {}
        """What has no outcome yet: number, partition and begin by value."""
        self.counts = {ACKNOWLEDGED: 0, FAILED: 0, UNKNOWN: 0}

    def run(self) -> None:
        producer = Producer(
            {"bootstrap.servers": self.bootstrap(), "enable.idempotence": True, "log_level": 0}
        )
        begun = time.monotonic()
        numbers = count()
        number = 0
        while not self.stopped.is_set():
            while number < (time.monotonic() - begun) * self.per_second:
                number = next(numbers)
                self._send(producer, number)
            producer.poll(TICK_SECONDS)
        producer.flush(FLUSH_SECONDS_MAX)
        for value, (left, partition, since) in list(self.pending.items()):
            self._note(value, left, partition, UNKNOWN, NO_OFFSET, since)

    def _send(self, producer: Producer, number: int) -> None:
        value = f"{self.actor}/{number}"
        partition = self.random.randrange(PARTITIONS)
        self.pending[value] = (number, partition, time.monotonic())
        try:
            producer.produce(
                INPUT, value, partition=partition, on_delivery=lambda error, m: self._told(value, error, m)
            )
        except BufferError:
            del self.pending[value]
            producer.poll(TICK_SECONDS)

    def _told(self, value: str, error: KafkaError | None, message: object) -> None:
        number, partition, begun = self.pending.pop(value)
        if error is None:
            offset = message.offset()  # type: ignore[attr-defined]
            self._note(value, number, partition, ACKNOWLEDGED, offset, begun)
            return
        if error.fatal() or error.code() == KafkaError._FATAL:
            self.complaints.append(f"{self.actor}: {error.name()}: {error.str()}")
            self.stopped.set()
        outcome = FAILED if error.code() in NEVER_SENT else UNKNOWN
        self._note(value, number, partition, outcome, NO_OFFSET, begun)

    def _note(self, value: str, number: int, partition: int, outcome: str, offset: int, begun: float) -> None:
        self.counts[outcome] += 1
        ended = time.monotonic()
        self.recorder.write(Send(self.actor, number, INPUT, partition, value, outcome, offset, begun, ended))


def _values(messages: list[object]) -> dict[tuple[str, int], list[tuple[int, str]]]:
    """Records by partition, errors left out."""
    found: dict[tuple[str, int], list[tuple[int, str]]] = {}
    for message in messages:
        if message.error() is None:  # type: ignore[attr-defined]
            place = (message.topic(), message.partition())  # type: ignore[attr-defined]
            record = (message.offset(), message.value().decode())  # type: ignore[attr-defined]
            found.setdefault(place, []).append(record)
    return found


class Reading(Actor):
    """What readers have in common: they note what they get, and know how far they are."""

    group = ""
    committed = True
    final = False

    def __init__(self, folder: Path, actor: str, bootstrap: Callable[[], str]) -> None:
        super().__init__(folder, actor)
        self.bootstrap = bootstrap
        self.next_offsets: dict[tuple[str, int], int] = {}
        self.count = 0

    def settings(self) -> dict[str, object]:
        return {
            "bootstrap.servers": self.bootstrap(),
            "group.id": self.group or self.actor,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed" if self.committed else "read_uncommitted",
            "log_level": 0,
        }

    def note(self, messages: list[object]) -> None:
        at = time.monotonic()
        for (topic, partition), records in _values(messages).items():
            self.count += len(records)
            self.next_offsets[topic, partition] = records[-1][0] + 1
            self.recorder.write(
                Poll(
                    self.actor,
                    self.group,
                    topic,
                    partition,
                    tuple(records),
                    at,
                    self.committed,
                    self.final,
                )
            )
        for message in messages:
            error = message.error()  # type: ignore[attr-defined]
            if error is not None and error.fatal():
                self.complaints.append(f"{self.actor}: {error.name()}: {error.str()}")


class GroupReader(Reading):
    """A member of the group of readers."""

    group = READERS

    def run(self) -> None:
        consumer = Consumer({**self.settings(), "auto.commit.interval.ms": 1000})

        def assigned(_: Consumer, places: list[TopicPartition]) -> None:
            found = tuple((place.topic, place.partition) for place in places)
            self.recorder.write(Assigned(self.actor, time.monotonic(), found))

        consumer.subscribe([INPUT], on_assign=assigned, on_revoke=lambda c, _: assigned(c, []))
        while not self.stopped.is_set():
            # One by one: what a batch call had in hand when the group rebalances is no one's business.
            message = consumer.poll(0.1)
            if message is not None:
                self.note([message])
        consumer.close()


class Watcher(Reading):
    """Reads topics from their beginning on, all partitions, without a group."""

    def __init__(
        self,
        folder: Path,
        actor: str,
        bootstrap: Callable[[], str],
        topics: tuple[str, ...],
        *,
        committed: bool,
        final: bool = False,
    ) -> None:
        super().__init__(folder, actor, bootstrap)
        self.topics, self.committed, self.final = topics, committed, final

    def run(self) -> None:
        consumer = Consumer({**self.settings(), "enable.auto.commit": False})
        places = [TopicPartition(topic, n, 0) for topic in self.topics for n in range(PARTITIONS)]
        consumer.assign(places)
        while not self.stopped.is_set():
            self.note(consumer.consume(1000, 0.1))  # type: ignore[arg-type]
        consumer.close()


class Copier(Actor):
    """Keeps one transactional worker (cluster_copier.py) at work: a process that ends, or was stopped on
    purpose, is replaced by another with the same transactional id. One that hangs by itself is a complaint.
    """

    def __init__(self, folder: Path, actor: str, bootstrap: Callable[[], str], seed: int) -> None:
        super().__init__(folder, actor)
        self.folder = folder
        self.bootstrap = bootstrap
        self.seed = seed
        self.lives = 0
        self.reasons: list[str] = []
        """Why processes ended that were not stopped by `stop`."""
        self._process: subprocess.Popen[bytes] | None = None
        self._is_frozen = False

    def run(self) -> None:
        while not self.stopped.is_set():
            self.lives += 1
            self._is_frozen = False
            life = f"{self.actor}.{self.lives}"
            history = self.folder / f"{life}.jsonl"
            command = [*program(PROGRAM), self.bootstrap(), self.actor, life, str(history)]
            command.append(f"--seed={self.seed}")
            with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as process:
                self._process = process
                reason = self._watch(process)
                process.kill()
            if not self.stopped.is_set():
                self.reasons.append(f"{life}: {reason}")

    def signal(self, number: int) -> bool:
        """Send a signal to the process of the moment; False if there is none."""
        process = self._process
        if process is None or process.poll() is not None:
            return False
        self._is_frozen |= number == signal.SIGSTOP
        process.send_signal(number)
        return True

    def _watch(self, process: subprocess.Popen[bytes]) -> str:
        """Until the process ends, hangs, or does not end when it is told to; why."""
        assert process.stdout is not None
        descriptor = process.stdout.fileno()
        os.set_blocking(descriptor, False)
        heard = time.monotonic()
        last_line, told = "", False
        while time.monotonic() - heard < (STOPPED_SECONDS_MAX if self._is_frozen else SILENT_SECONDS_MAX):
            if self.stopped.is_set() and not told:
                told, heard = True, time.monotonic()
                process.terminate()
            if not select.select([descriptor], [], [], 0.2)[0]:
                continue
            text = os.read(descriptor, 65536).decode(errors="replace")
            if not text:
                return last_line or f"ended with {process.wait()}"
            heard = time.monotonic()
            last_line = text.strip().rpartition("\n")[2]
        if self._is_frozen:
            return f"stopped on purpose, and killed after {STOPPED_SECONDS_MAX:g} s"
        self.complaints.append(f"{self.actor}.{self.lives} was silent for {SILENT_SECONDS_MAX:g} s")
        return self.complaints[-1]


class Probe(Actor):
    """Writes to one partition all the time and notes when it was heard.

    `leaders` says which addresses to try: the leader's first if it is known.
    """

    write_seconds_max = PROBE_TIMEOUT_SECONDS

    def __init__(self, folder: Path, actor: str, addresses: Callable[[], list[str]], partition: int) -> None:
        super().__init__(folder, actor)
        self.addresses = addresses
        self.partition = partition
        self.acknowledged: list[tuple[float, float]] = []
        """When each acknowledged write began and ended."""
        self._client: WireClient | None = None
        self._turn = 0

    def run(self) -> None:
        for number in count():
            if self.stopped.is_set():
                return
            begun = time.monotonic()
            outcome, offset = self._write(f"{self.actor}/{number}")
            ended = time.monotonic()
            if outcome == ACKNOWLEDGED:
                self.acknowledged.append((begun, ended))
            value = f"{self.actor}/{number}"
            send = Send(self.actor, number, INPUT, self.partition, value, outcome, offset, begun, ended)
            self.recorder.write(send._replace(idempotent=False))
            self.stopped.wait(PROBE_SECONDS)

    def _write(self, value: str) -> tuple[str, int]:
        try:
            if self._client is None:
                self._client = self._leader()
            if self._client is None:
                return FAILED, NO_OFFSET
        except (OSError, ConnectionClosed):
            return FAILED, NO_OFFSET
        try:
            produced = self._client.produce(INPUT, self.partition, batch_of(value.encode()))
        except (OSError, ConnectionClosed):
            self._drop()
            return UNKNOWN, NO_OFFSET
        if produced.error == 0:
            return ACKNOWLEDGED, produced.base_offset
        if produced.error != NOT_ENOUGH_REPLICAS:
            self._drop()
        return UNKNOWN, NO_OFFSET

    def _drop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _leader(self) -> WireClient | None:
        """Ask the brokers in turn who leads, and connect to it."""
        addresses = self.addresses()
        if not addresses:
            return None
        self._turn += 1
        with WireClient(addresses[self._turn % len(addresses)], self.write_seconds_max) as client:
            answer = client.ask("metadata", 12, topics=[{"topic_id": None, "name": INPUT}])
        hosts = {broker.node_id: f"{broker.host}:{broker.port}" for broker in answer.brokers}
        for topic in answer.topics:
            for partition in topic.partitions:
                if partition.partition_index == self.partition and partition.leader_id in hosts:
                    return WireClient(hosts[partition.leader_id], self.write_seconds_max)
        return None

    def seconds_until_heard(self, since: float, patience_seconds: float) -> float | None:
        """How long it took from a moment until a write that began later was acknowledged."""
        deadline = time.monotonic() + patience_seconds
        place = 0
        while True:
            for begun, ended in self.acknowledged[place:]:
                place += 1
                if begun >= since:
                    return ended - since
            if time.monotonic() > deadline:
                return None
            time.sleep(0.01)
