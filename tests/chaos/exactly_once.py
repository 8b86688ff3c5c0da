"""Exactly once under kill -9: `exactly_once.py [--records N] [--seconds-max S] [--seed N] [--plant FAULT]`.

An input topic is filled with numbered records. Workers (transaction_worker.py; confluent-kafka and
kafka-python, static and dynamic members of one group) transform them into an output topic, offsets and output
in one transaction. Workers and the broker are killed with `kill -9` at random moments and started again.
Zombies are stopped inside a transaction, until it timed out or a successor has taken their transactional id,
and continued. In the end the output under read_committed must be the input, each record once and in order,
and nothing of an aborted transaction may ever have been visible. Exit code 0 when every promise held.

`--plant` shows that the checks can fail: `careless` lets the workers work without transactions, the other
names spoil what was read (exactly_once_checks.SPOILERS). Every run also tries all of those.
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from confluent_kafka import Consumer, IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from tests.chaos.broker_process import BrokerDied, BrokerProcess
from tests.chaos.crash_checks import Violation
from tests.chaos.exactly_once_checks import SPOILERS, History, Said, Seen, View, tags, violations
from tests.chaos.transaction_worker import (
    EXIT_DONE,
    EXIT_FENCED,
    EXIT_REFUSED,
    EXIT_STUCK,
    GROUP,
    INPUT,
    OUTPUT,
    ZOMBIE_SECONDS_MAX,
    transform,
)
from tests.support.child_programs import environment, program

PARTITIONS = 6
SETTINGS = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "300",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "log.flush.offset.checkpoint.interval.ms": "500",
    "auto.create.topics.enable": "false",
}
TOPIC_SETTINGS = {"segment.bytes": "1000000"}
SLOTS = (("confluent-kafka", True), ("kafka-python", True), ("confluent-kafka", False))
"""The workers: client, and whether it is a static member."""
KILL_WEIGHTS = (2, 2, 1)
"""A dead dynamic member holds up its group until its session ends; a static one is back at once."""
ZOMBIES = (
    ("confluent-kafka", "timeout"),
    ("kafka-python", "successor"),
    ("confluent-kafka", "successor"),
    ("kafka-python", "timeout"),
)
ZOMBIES_AT_ONCE = 2
TICK_RECORDS = 2_000
HEAD = 0.1
ZOMBIE_SHARE = 0.7
DROP_RECORDS = 2
ZOMBIE_STOP_SECONDS = 4.0
ZOMBIE_SUCCESSOR_STOP_SECONDS = 2.5
BROKER_SETTLED_SECONDS = 1.5
WORKER_KILL_SECONDS = (0.4, 1.8)
BROKER_KILL_SECONDS = (3.0, 7.0)
CHAOS_PROGRESS = 0.9
CHAOS_TIME = 0.7
TICK_SECONDS = 0.05
READ_SECONDS_MAX = 60.0
KILL_RECORDS = {"kills of workers": 1_600, "kills of the broker": 5_000}
"""There is at least one kill for so many records: the input is written as the kills come."""
OPEN = ("begin", "flushed", "refused")
"""Events after which a worker is inside a transaction."""
WORKER = "tests.chaos.transaction_worker"


class Child:
    """A worker process and what it wrote down; its lives are numbered."""

    def __init__(self, run: "Run", client: str, name: str, role: str, *, static: bool = False) -> None:
        self.run, self.client, self.name, self.role, self.static = run, client, name, role, static
        self.life = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.events = Path()

    def start(self) -> None:
        self.life += 1
        instance = f"{self.name}.{self.role}.{self.life}"
        self.events = self.run.folder / "events" / instance
        command = [*program(WORKER), self.client, self.run.broker.bootstrap, self.name, instance]
        command += [str(self.events), "--role", self.role] + (["--static"] if self.static else [])
        with (self.run.folder / "workers.log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(),
            )

    @property
    def ended(self) -> int | None:
        """Its exit code, None while it runs."""
        assert self.process is not None
        return self.process.poll()

    def last(self) -> list[str]:
        """The words of its last event."""
        lines = self.events.read_text().splitlines() if self.events.exists() else []
        return lines[-1].split(" ", 1) if lines else ["", ""]

    def signal(self, number: int) -> None:
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)

    def finish(self, seconds: float) -> None:
        """Ask it to end, kill it when it does not."""
        assert self.process is not None
        self.signal(signal.SIGTERM)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self.process.wait()


class Zombie:
    """One worker that sleeps through its own end; `step` moves it on."""

    def __init__(self, run: "Run", client: str, kind: str) -> None:
        self.run, self.kind = run, kind
        name = f"zombie-{client}-{kind}"
        self.child = Child(run, client, name, "zombie")
        self.successor = Child(run, client, name, "successor")
        self.state = "new"
        self.since = self.begun = 0.0
        self.tag = ""

    def __repr__(self) -> str:
        return f"<Zombie {self.child.name} {self.state} {self.tag}>"

    @property
    def awake(self) -> bool:
        """Whether it speaks with the broker about the transaction that is not its own any more."""
        return self.state == "awake"

    def _go(self, state: str) -> None:
        self.state, self.since = state, time.monotonic()

    def step(self) -> bool:
        """Whether it has come to its end."""
        now = time.monotonic()
        if self.state == "new":
            self.begun = self.begun or now
            self.child.start()
            self._go("running")
        elif self.state == "running":
            if self.child.last()[0] == "waiting":
                self.child.signal(signal.SIGSTOP)
                self.tag = self.child.last()[1]
                self._go("stopped")
            elif self.child.ended is not None:
                self._go("new")  # the broker died under it before it got there: another one
        elif self.state == "stopped":
            self._while_stopped(now)
        elif self.state == "awake" and self.child.ended is not None:
            self._judge(self.child.ended)
            self._go("ended")
        if now - self.begun > ZOMBIE_SECONDS_MAX:
            raise Violation(f"{self!r} did not come to its end")
        return self.state == "ended"

    def _while_stopped(self, now: float) -> None:
        if self.kind == "timeout":
            # The coordinator looks for what timed out now and then: it has to be up for a moment.
            if now - self.since > ZOMBIE_STOP_SECONDS and self.run.broker_seconds() > BROKER_SETTLED_SECONDS:
                self.child.signal(signal.SIGCONT)
                self._go("awake")
            return
        if self.successor.process is None or self.successor.ended not in (None, EXIT_DONE):
            self.successor.start()
        elif self.successor.ended == EXIT_DONE and now - self.since > ZOMBIE_SUCCESSOR_STOP_SECONDS:
            self.child.signal(signal.SIGCONT)
            self._go("awake")

    def _judge(self, code: int) -> None:
        """Fenced by a successor for good; after a timeout it may also be told to abort."""
        allowed = (EXIT_FENCED,) if self.kind == "successor" else (EXIT_FENCED, EXIT_REFUSED)
        if code not in allowed:
            raise Violation(f"{self!r} was not fenced: exit code {code}, last event {self.child.last()}")
        self.run.counts["zombies fenced" if code == EXIT_FENCED else "zombies told to abort"] += 1


class Feeder:
    """Writes the input, number n to partition n mod 6; leaves enough for the zombies."""

    def __init__(self, bootstrap: str, records: int) -> None:
        self.records, self.written = records, 0
        self.refused: list[str] = []
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": 120_000,
                "linger.ms": 20,
                "reconnect.backoff.max.ms": 300,
                "log_level": 0,
            }
        )

    def feed(self, share: float) -> None:
        """Some more, up to a share of all and a little ahead of it; then in drops, so that nobody starves."""
        due = int(self.records * (HEAD + share)) - self.written
        count = min(self.records - self.written, TICK_RECORDS, max(due, DROP_RECORDS))
        for number in range(self.written, self.written + count):
            value = b"%d" % number
            self.producer.produce(INPUT, value, partition=number % PARTITIONS, on_delivery=self._delivered)
        self.written += count
        self.producer.poll(0)
        if self.refused:
            raise Violation(f"the input could not be written: {self.refused[0]}")

    def _delivered(self, error: object, _: object) -> None:
        if error is not None:
            self.refused.append(str(error))


class Watcher(threading.Thread):
    """Reads the output under read_committed all the time, through every crash of the broker."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.bootstrap = bootstrap
        self.view: View = [[] for _ in range(PARTITIONS)]
        self.stopped = threading.Event()

    def run(self) -> None:
        consumer = reader(self.bootstrap, "read_committed")
        while not self.stopped.is_set():
            for message in consumer.consume(500, 0.2):
                if message.error() is None:
                    self.view[message.partition()].append(seen(message))  # type: ignore[index]
        consumer.close()

    def finish(self, committed: View) -> View:
        """What it saw, when it has seen as much as there is, or cannot."""
        deadline = time.monotonic() + READ_SECONDS_MAX
        wanted = [records[-1].offset if records else -1 for records in committed]
        while time.monotonic() < deadline:
            if [records[-1].offset if records else -1 for records in self.view] == wanted:
                break
            time.sleep(0.1)
        self.stopped.set()
        self.join(10)
        return self.view


def reader(bootstrap: str, isolation_level: str) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"reader-{isolation_level}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation_level,
            "reconnect.backoff.max.ms": 300,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(OUTPUT, partition, 0) for partition in range(PARTITIONS)])
    return consumer


def seen(message: object) -> Seen:
    headers = message.headers()  # type: ignore[attr-defined]
    return Seen(message.offset(), message.value(), headers[0][1].decode())  # type: ignore[attr-defined]


def read_all(bootstrap: str, isolation_level: str) -> View:
    """The output topic from its start to its end."""
    consumer = reader(bootstrap, isolation_level)
    view: View = [[] for _ in range(PARTITIONS)]
    ended: set[int] = set()
    deadline = time.monotonic() + READ_SECONDS_MAX
    while len(ended) < PARTITIONS:
        if time.monotonic() > deadline:
            raise Violation(f"the output was not read to its end under {isolation_level}: {ended}")
        for message in consumer.consume(2_000, 0.5):
            if message.error() is None:
                view[message.partition()].append(seen(message))  # type: ignore[index]
            else:
                ended.add(message.partition())  # type: ignore[arg-type]
    consumer.close()
    return view


class Run:
    """One run: broker, workers, zombies, and the figures."""

    def __init__(self, folder: Path, records: int, seconds_max: float, seed: int, plant: str) -> None:
        self.folder, self.records, self.plant = folder, records, plant
        self.seconds_max = seconds_max
        self.random = random.Random(seed)
        self.broker = BrokerProcess(folder, SETTINGS)
        self.counts: Counter[str] = Counter()
        role = "careless" if plant == "careless" else "worker"
        self.workers = [
            Child(self, client, f"{client}-{number}", role, static=static)
            for number, (client, static) in enumerate(SLOTS)
        ]
        self.zombies = [] if plant == "careless" else [Zombie(self, *each) for each in ZOMBIES]
        self.zombies_ended: list[Zombie] = []
        self.feeder = Feeder(self.broker.bootstrap, records)
        self.watcher = Watcher(self.broker.bootstrap)
        self.begun = time.monotonic()
        self.broker_begun = self.chaos_seconds = self.work_seconds = 0.0
        self.group = Consumer(
            {
                "bootstrap.servers": self.broker.bootstrap,
                "group.id": GROUP,
                "log_level": 0,
                "reconnect.backoff.max.ms": 300,
            }
        )
        self.done_records = 0

    def broker_seconds(self) -> float:
        """How long the broker has been up."""
        return time.monotonic() - self.broker_begun if self.broker.running else 0.0

    def _start_broker(self) -> None:
        self.broker.start()
        self.broker_begun = time.monotonic()

    # -- steps of a run

    def begin(self) -> None:
        """A broker, two topics, the workers."""
        (self.folder / "events").mkdir()
        self._start_broker()
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        wanted = [NewTopic(name, PARTITIONS, 1, config=TOPIC_SETTINGS) for name in (INPUT, OUTPUT)]
        for future in admin.create_topics(wanted, operation_timeout=20).values():
            future.result(20)
        self.watcher.start()
        for worker in self.workers:
            worker.start()

    def work(self) -> None:
        """Chaos until most of the input is done, then quiet until all of it is."""
        begun = now = time.monotonic()
        kill_worker_at = now + self.random.uniform(*WORKER_KILL_SECONDS) + 1.0
        kill_broker_at = now + self.random.uniform(*BROKER_KILL_SECONDS)
        look_at, said_at = now + 1.0, now
        quiet = False
        while not (self.done_records >= self.records and not self.zombies):
            now = time.monotonic()
            if now - self.begun > self.seconds_max:
                raise Violation(f"{self.done_records} of {self.records} records in {self.seconds_max:.0f} s")
            self.feeder.feed(1.0 if quiet else self._chaos_share())
            self._step_zombies()
            self._restart_workers()
            if not quiet and now > kill_worker_at:
                self._kill_worker()
                kill_worker_at = now + self.random.uniform(*WORKER_KILL_SECONDS)
            if not quiet and now > kill_broker_at and not any(zombie.awake for zombie in self.zombies):
                self._kill_broker()
                kill_broker_at = time.monotonic() + self.random.uniform(*BROKER_KILL_SECONDS)
            if now > look_at:
                self._look()
                look_at = time.monotonic() + 0.5
                enough = self.done_records >= CHAOS_PROGRESS * self.records and self._chaos_share() >= 1.0
                if not quiet and (enough or now - self.begun > CHAOS_TIME * self.seconds_max):
                    quiet, self.chaos_seconds = True, now - begun
            if now > said_at + 10:
                said_at = now
                print(f"  {now - self.begun:4.0f} s: {self.done_records} records done", flush=True)
            time.sleep(TICK_SECONDS)
        self.work_seconds = time.monotonic() - begun
        for worker in self.workers:
            worker.finish(15)

    def _chaos_share(self) -> float:
        """How much of the least number of kills there was; a part is kept for the zombies that are left."""
        shares = [self.counts[name] * records / self.records for name, records in KILL_RECORDS.items()]
        return min(*shares, ZOMBIE_SHARE if self.zombies else 1.0)

    def _step_zombies(self) -> None:
        """Two zombies at a time."""
        for zombie in self.zombies[:ZOMBIES_AT_ONCE]:
            if zombie.step():
                self.zombies.remove(zombie)
                self.zombies_ended.append(zombie)

    def _restart_workers(self) -> None:
        for worker in self.workers:
            code = worker.ended
            if code is not None:
                if code == EXIT_STUCK and worker.client == "confluent-kafka":
                    raise Violation(f"{worker.name} waited in a transaction for too long: {worker.last()}")
                if code >= 0:
                    self.counts["workers that ended by themselves"] += 1
                    print(f"  {worker.name} ended with {code}: {' '.join(worker.last())}", flush=True)
                worker.start()

    def _await_open(self, workers: list[Child]) -> None:
        """Half of the time: until one of them is inside a transaction, and a little longer."""
        deadline = time.monotonic() + (0.5 if self.random.random() < 0.5 else 0.0)
        while time.monotonic() < deadline and not any(worker.last()[0] in OPEN for worker in workers):
            time.sleep(0.001)
        time.sleep(self.random.uniform(0, 0.03))

    def _kill_worker(self) -> None:
        """One of them; half of the time not before it is inside a transaction."""
        worker = self.random.choices(self.workers, KILL_WEIGHTS)[0]
        self._await_open([worker])
        self.counts["kills of workers"] += 1
        if worker.last()[0] in OPEN:
            self.counts["kills of workers inside a transaction"] += 1
        worker.signal(signal.SIGKILL)
        assert worker.process is not None
        worker.process.wait()

    def _kill_broker(self) -> None:
        if not self.broker.running:
            raise BrokerDied(f"the broker ended by itself:\n{self.broker.log_tail()}")
        self._await_open(self.workers)
        self.counts["kills of the broker"] += 1
        if any(worker.last()[0] in OPEN for worker in self.workers):
            self.counts["kills of the broker inside a transaction"] += 1
        self.broker.kill()
        while self.random.random() < 0.15:
            self.broker.start(wait=False)
            time.sleep(self.random.uniform(0.15, 0.7))
            self.broker.kill()
            self.counts["kills of the broker"] += 1
            self.counts["kills of the broker while it starts"] += 1
        time.sleep(self.random.uniform(0, 0.3))
        self._start_broker()

    def _look(self) -> None:
        """How far the group has come, by its committed offsets."""
        places = [TopicPartition(INPUT, partition) for partition in range(PARTITIONS)]
        with contextlib.suppress(KafkaException):
            offsets = self.group.committed(places, timeout=2)
            self.done_records = sum(max(place.offset, 0) for place in offsets)

    def history(self) -> History:
        """Everything that was seen and said, when no transaction is open any more."""
        self._await_stable()
        places = [TopicPartition(INPUT, partition) for partition in range(PARTITIONS)]
        committed = read_all(self.broker.bootstrap, "read_committed")
        return History(
            expected=[
                [transform(b"%d" % number) for number in range(partition, self.records, PARTITIONS)]
                for partition in range(PARTITIONS)
            ],
            committed=committed,
            uncommitted=read_all(self.broker.bootstrap, "read_uncommitted"),
            watched=self.watcher.finish(committed),
            said=self._said(),
            group_offsets=[place.offset for place in self.group.committed(places, timeout=10)],
        )

    def _await_stable(self) -> None:
        """Until the last stable offset is the end: what the dead left open has to time out."""
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        wanted = {TopicPartition(OUTPUT, partition): OffsetSpec.latest() for partition in range(PARTITIONS)}
        deadline = time.monotonic() + 30
        while True:
            stable, end = (
                [
                    future.result(10).offset
                    for future in admin.list_offsets(wanted, isolation_level=level).values()
                ]
                for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
            )
            if stable == end:
                return
            if time.monotonic() > deadline:
                raise Violation(f"transactions stay open: stable {stable}, end {end}")
            time.sleep(0.2)

    def _said(self) -> Said:
        said: dict[str, set[str]] = {kind: set() for kind in ("begin", "committed", "aborted", "flushed")}
        for path in sorted((self.folder / "events").iterdir()):
            for line in path.read_text().splitlines():
                kind, _, tag = line.partition(" ")
                if kind in said:
                    said[kind].add(tag)
        self.counts["transactions begun"] = len(said["begin"])
        return Said(
            begun=frozenset(said["begin"]),
            committed=frozenset(said["committed"]),
            aborted=frozenset(said["aborted"]),
            flushed=frozenset(said["flushed"]),
            zombies=frozenset(zombie.tag for zombie in self.zombies_ended),
        )

    def check(self) -> None:
        """The promises, the broker's log, and that each planted fault would have been noticed."""
        history = self.history()
        visible, written = tags(history.committed), tags(history.uncommitted)
        self.counts["records visible under read_committed"] = visible.total()
        self.counts["records of aborted transactions in the log"] = (written - visible).total()
        self.counts["transactions committed"] = len(visible)
        self.counts["transactions aborted with records"] = len(written.keys() - visible.keys())
        planted = SPOILERS[self.plant](history) if self.plant in SPOILERS else history
        if found := violations(planted):
            raise Violation("\n  ".join(found))
        for name, spoil in SPOILERS.items():
            if not violations(spoil(history)):
                raise Violation(f"the planted fault {name!r} was not noticed")
        self.counts["planted faults noticed"] = len(SPOILERS)
        faults = self.broker.tracebacks()
        faults += [line for line in self.broker.log_text().splitlines() if " ERROR " in line]
        if faults:
            raise Violation(f"in the broker's log:\n{faults[0]}")

    def close(self) -> None:
        """End every child."""
        self.watcher.stopped.set()
        children = list(self.workers)
        for zombie in (*self.zombies_ended, *self.zombies):
            children += (zombie.child, zombie.successor)
        for child in children:
            if child.process is not None and child.process.poll() is None:
                child.signal(signal.SIGKILL)
                child.process.wait()

    def report(self) -> None:
        rows: dict[str, object] = {"records": self.records, **dict(sorted(self.counts.items()))}
        rows["seconds of chaos"] = f"{self.chaos_seconds or self.work_seconds:.1f}"
        rows["seconds of work"] = f"{self.work_seconds:.1f}"
        rows["seconds in all"] = f"{time.monotonic() - self.begun:.1f}"
        for name, value in rows.items():
            print(f"  {name:44} {value}")


def run(folder: Path, options: argparse.Namespace) -> int:
    test = Run(folder, options.records, options.seconds_max, options.seed, options.plant)
    try:
        with test.broker:
            test.begin()
            test.work()
            test.check()
    except (Violation, BrokerDied) as fault:
        kept = Path(tempfile.mkdtemp(prefix="tidelog-exactly-once-failed-"))
        shutil.copytree(folder, kept, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock"))
        print(f"FAILED with --seed {options.seed}: {fault}\nThe folder is kept in {kept}", flush=True)
        return 1
    finally:
        test.close()
        test.report()
    print(f"passed: {options.records} records exactly once, seed {options.seed}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=40_000)
    parser.add_argument("--seconds-max", type=float, help="fail after this time (90 s for 40,000 records)")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--plant", choices=("none", "careless", *SPOILERS), default="none")
    options = parser.parse_args()
    if options.seconds_max is None:
        options.seconds_max = max(90.0, 90.0 * options.records / 40_000)
    print(f"{options.records} records, seed {options.seed}, planted fault: {options.plant}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tidelog-exactly-once-") as folder:
        return run(Path(folder), options)


if __name__ == "__main__":
    sys.exit(main())
