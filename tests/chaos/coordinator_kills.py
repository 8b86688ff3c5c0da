"""Kill the coordinator of an exactly-once application's group again and again, and see that it goes on.

    coordinator_kills.py [--kills N] [--system tidelog|kafka] [--client confluent|java]
                         [--protocol classic|consumer] [--pause SECONDS] [--stop]
                         [--zookeeper] [--keep FOLDER] [--seed N] [NAME=VALUE ...]

Three brokers, three replicas. Two processes with default settings (coordinator_worker.py, or its likeness in
Java) read a topic in a group and write to another, records and offsets in one transaction. Each time the
broker that coordinates the group is killed with SIGKILL (--stop: with SIGTERM, so that it leaves cleanly); it
comes back when both have gone on, or after AWAY_SECONDS. Input comes steadily, or with --pause in bursts, so
that the processes are idle when the coordinator changes.

A stall is a process that commits nothing for more than STALL_SECONDS_MAX. In the end every record must be in
the output once. Exit code 0: no stall, no process that ended, nothing lost or twice. `--keep` keeps the logs
of the clients (with `debug=eos,cgrp,broker,protocol,metadata`) and of the brokers. `--system kafka` does the
same to Apache Kafka (kafka_cluster.py).
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.chaos.kafka_cluster import KafkaCluster
from tests.chaos.kafka_wire import ConnectionClosed, WireClient
from tests.support.child_programs import environment, program
from tidelog.server.zookeeper_process import ZookeeperServers
from tidelog.testing.cluster import RunningCluster
from tidelog.testing.ports import ReservedPort

GROUP, INPUT, OUTPUT = "transformers", "input", "output"
PARTITIONS = 6
WORKERS = 2
RECORDS_PER_SECOND = 200
BURST_RECORDS = 60
STALL_SECONDS_MAX = 20.0
AWAY_SECONDS = 30.0
SETTLED_SECONDS = 2.0
PATIENCE_SECONDS = 180.0
READY_SECONDS_MAX = 60.0
TICK_SECONDS = 0.02
POLL_SECONDS = 0.2
ZOOKEEPER_SESSION_MS = 6_000
DEBUG = "debug=eos,cgrp,broker,protocol,metadata"
FOLDER = Path(__file__).parent


class Cluster(Protocol):
    """What is needed of a cluster, Tidelog's or Kafka's."""

    broker_ids: tuple[int, ...]

    @property
    def bootstrap(self) -> str: ...
    @property
    def responsive_ids(self) -> tuple[int, ...]: ...
    def address(self, broker_id: int) -> str: ...
    def kill(self, broker_id: int) -> None: ...
    def stop(self, broker_id: int) -> None: ...
    def start(self, broker_id: int) -> object: ...
    def tracebacks(self) -> list[str]: ...


class Said(NamedTuple):
    """A line of a worker."""

    at: float
    word: str
    begun: float
    rest: str


class Worker:
    """One process of the application, and what it said."""

    def __init__(self, number: int, options: argparse.Namespace, bootstrap: str) -> None:
        self.number, self.options, self.bootstrap = number, options, bootstrap
        self.lines: list[Said] = []
        self.lives = 0
        self.process: subprocess.Popen[str] | None = None
        self._start()

    def _command(self) -> list[str]:
        settings = [f"group.protocol={self.options.protocol}", *self.options.settings]
        arguments = [self.bootstrap, f"transformer-{self.number}", GROUP, INPUT, OUTPUT]
        if self.options.client == "java":
            from tests.conformance.drivers.java import java_command

            return java_command(FOLDER / "java" / "CoordinatorWorker.java", *arguments, *settings)
        debug = [DEBUG] if self.options.keep else []
        return [*program("tests.chaos.coordinator_worker"), *arguments, *settings, *debug]

    def _start(self) -> None:
        self.lives += 1
        keep = self.options.keep
        name = Path(os.devnull) if keep is None else keep / f"worker-{self.number}.{self.lives}.log"
        with name.open("w") as log:
            self.process = subprocess.Popen(
                self._command(),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                process_group=0,
                env=environment(),
            )
        threading.Thread(target=self._listen, args=(self.process,), daemon=True).start()

    def _listen(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            word, *rest = line.split()
            begun = float(rest.pop(0)) if word in ("committed", "aborted") else 0.0
            self.lines.append(Said(time.monotonic(), word, begun, " ".join(rest)))

    @property
    def ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def replace(self) -> None:
        """Kill it if it is there, and start another with the same transactional id."""
        self.end()
        self._start()

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def committed_since(self, moment: float) -> bool:
        """Whether it committed a transaction that began later."""
        return any(said.word == "committed" and said.begun >= moment for said in reversed(self.lines[-50:]))

    def longest_silence(self, since: float, until: float) -> float:
        """The longest time without a commit that touches this span."""
        commits = [said.at for said in self.lines if said.word == "committed"]
        before = max((at for at in commits if at <= since), default=since)
        moments = [before, *(at for at in commits if since < at < until), until]
        return max(later - earlier for earlier, later in pairwise(moments))

    def said(self, word: str) -> list[Said]:
        return [said for said in self.lines if said.word == word]


class Feeder(threading.Thread):
    """Writes numbers to the input until it is stopped."""

    def __init__(self, bootstrap: str, pause_seconds: float) -> None:
        super().__init__(daemon=True)
        self.producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0, "linger.ms": 5}
        )
        self.pause_seconds = pause_seconds
        self.count = 0
        self.failed: list[str] = []
        self.stopped = threading.Event()

    def run(self) -> None:
        while not self.stopped.is_set():
            for _ in range(BURST_RECORDS if self.pause_seconds else 1):
                self.producer.produce(
                    INPUT, str(self.count), partition=self.count % PARTITIONS, on_delivery=self._told
                )
                self.count += 1
            self.producer.poll(0)
            self.stopped.wait(self.pause_seconds or 1 / RECORDS_PER_SECOND)
        self.producer.flush(60)

    def _told(self, error: object, _: object) -> None:
        if error is not None:
            self.failed.append(str(error))


class Kill(NamedTuple):
    """One kill and what followed."""

    number: int
    broker: int
    silence_seconds: float
    """The longest time without a commit of any one worker, until the next kill."""
    away_seconds: float


class Run:
    """A cluster, an application, and the kills."""

    def __init__(self, options: argparse.Namespace, cluster: Cluster) -> None:
        self.options, self.cluster = options, cluster
        self.random = random.Random(options.seed)
        self.kills: list[Kill] = []
        self.faults: list[str] = []
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        new = [NewTopic(name, num_partitions=PARTITIONS, replication_factor=3) for name in (INPUT, OUTPUT)]
        for future in admin.create_topics(new, request_timeout=30).values():
            future.result(timeout=60)
        self.workers = [Worker(number, options, cluster.bootstrap) for number in range(WORKERS)]
        self.feeder = Feeder(cluster.bootstrap, options.pause)
        self.feeder.start()

    def all_committed_since(self, moment: float, seconds: float) -> bool:
        """Wait for every worker to commit a transaction that began after a moment."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if all(worker.committed_since(moment) for worker in self.workers):
                return True
            if any(worker.ended for worker in self.workers):
                return False
            time.sleep(TICK_SECONDS)
        return False

    def ask_any(self, module: str, version: int, **fields: object) -> object:
        """One request to the first broker that answers."""
        for number in self.cluster.responsive_ids:
            try:
                with WireClient(self.cluster.address(number)) as client:
                    return client.ask(module, version, **fields)
            except (OSError, ConnectionClosed):
                continue
        raise RuntimeError("no broker answers")

    def coordinator(self) -> int:
        """The broker that coordinates the group, as soon as the cluster is whole."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < deadline:
            view = self.ask_any("metadata", 9, topics=None)
            whole = all(
                len(partition.isr_nodes) == len(partition.replica_nodes) == 3
                for topic in view.topics  # type: ignore[attr-defined]
                for partition in topic.partitions
            )
            if whole:
                found = self.ask_any("find_coordinator", 2, key=GROUP, key_type=0)
                if int(found.error_code) == 0:  # type: ignore[attr-defined]
                    return int(found.node_id)  # type: ignore[attr-defined]
            time.sleep(POLL_SECONDS)
        raise TimeoutError("the cluster did not become whole")

    def kill_once(self, number: int) -> None:
        broker = self.coordinator()
        time.sleep(self.random.uniform(0.0, 1.0 + self.options.pause))
        killed = time.monotonic()
        if self.options.stop:
            self.cluster.stop(broker)
        else:
            self.cluster.kill(broker)
        seconds = self.options.away
        self.all_committed_since(killed + SETTLED_SECONDS, seconds)
        self.cluster.start(broker)
        back = time.monotonic()
        patience = max(STALL_SECONDS_MAX, self.options.patience - (back - killed))
        if not self.all_committed_since(back, patience):
            self._replace_hung(number, back)
        now = time.monotonic()
        silence = max(worker.longest_silence(killed, now) for worker in self.workers)
        self.kills.append(Kill(number, broker, silence, back - killed))
        verdict = " STALL" if silence > STALL_SECONDS_MAX else ""
        print(f"kill {number}: broker {broker}, no commit for {silence:.1f} s{verdict}", flush=True)

    def _replace_hung(self, number: int, moment: float) -> None:
        for worker in self.workers:
            if not worker.committed_since(moment):
                why = worker.said("ended")[-1].rest if worker.said("ended") else "it hangs"
                self.faults.append(f"kill {number}: worker {worker.number} was replaced: {why}")
                print(self.faults[-1], flush=True)
                worker.replace()
        self.all_committed_since(time.monotonic(), PATIENCE_SECONDS)

    def check_output(self) -> None:
        """Every record once, as a read_committed reader sees it."""
        self.feeder.stopped.set()
        self.feeder.join(90)
        self.faults += [f"input: {fault}" for fault in self.feeder.failed[:3]]
        consumer = Consumer(
            {
                "bootstrap.servers": self.cluster.bootstrap,
                "group.id": "check",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        consumer.assign([TopicPartition(OUTPUT, number, 0) for number in range(PARTITIONS)])
        seen: Counter[int] = Counter()
        deadline = time.monotonic() + 90
        while len(seen) < self.feeder.count and time.monotonic() < deadline:
            seen.update(int(m.value()) for m in consumer.consume(2000, 0.5) if m.error() is None)  # type: ignore[arg-type]
        seen.update(int(m.value()) for m in consumer.consume(2000, 1.0) if m.error() is None)  # type: ignore[arg-type]
        consumer.close()
        missing = self.feeder.count - len(seen)
        twice = sum(1 for count in seen.values() if count > 1)
        if missing or twice:
            self.faults.append(f"{missing} records are missing, {twice} are there twice")

    def report(self) -> int:
        silences = sorted(kill.silence_seconds for kill in self.kills)
        stalls = [kill for kill in self.kills if kill.silence_seconds > STALL_SECONDS_MAX]
        commits = sum(len(worker.said("committed")) for worker in self.workers)
        aborted = [said.rest for worker in self.workers for said in worker.said("aborted")]
        aborts = dict(Counter(why.split(":")[0] for why in aborted))
        self.faults += self.cluster.tracebacks()
        options = self.options
        print(
            f"{options.system}, {options.client}, {options.protocol} protocol, "
            f"pause {options.pause:g} s, seed {options.seed}: "
            f"{len(self.kills)} {'stops' if options.stop else 'kills'}, "
            f"{len(stalls)} stalls of more than {STALL_SECONDS_MAX:g} s; "
            f"without a commit {silences[len(silences) // 2]:.1f} s (median), {silences[-1]:.1f} s (worst); "
            f"{self.feeder.count} records, {commits} transactions committed, {len(aborted)} aborted "
            f"{aborts or ''}; faults: {self.faults or 'none'}"
        )
        return 1 if stalls or self.faults else 0

    def close(self) -> None:
        for worker in self.workers:
            worker.end()


def _cluster(options: argparse.Namespace, stack: contextlib.ExitStack) -> KafkaCluster | RunningCluster:
    if options.system == "kafka":
        return KafkaCluster(3)
    data = options.keep / "cluster" if options.keep else None
    if data:
        data.mkdir()
    if not options.zookeeper:
        return RunningCluster(3, data_directory=data)
    port = stack.enter_context(contextlib.closing(ReservedPort())).port
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidelog-zookeeper-")))
    servers = stack.enter_context(ZookeeperServers(folder, port=port))
    session = {"zookeeper.session.timeout.ms": str(ZOOKEEPER_SESSION_MS)}
    return RunningCluster(3, session, zookeeper=servers.connect_string, data_directory=data)


def run(options: argparse.Namespace) -> int:
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(_cluster(options, stack))
        current = Run(options, cluster)  # type: ignore[arg-type]
        try:
            if not current.all_committed_since(0.0, READY_SECONDS_MAX):
                raise TimeoutError(f"the application did not start: {[w.lines for w in current.workers]}")
            for number in range(1, options.kills + 1):
                current.kill_once(number)
            current.check_output()
            return current.report()
        finally:
            current.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--system", choices=("tidelog", "kafka"), default="tidelog")
    parser.add_argument("--client", choices=("confluent", "java"), default="confluent")
    parser.add_argument("--protocol", choices=("classic", "consumer"), default="classic")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between bursts of input")
    parser.add_argument("--away", type=float, default=AWAY_SECONDS, help="how long a broker is away at most")
    parser.add_argument("--stop", action="store_true", help="stop brokers cleanly instead of killing them")
    parser.add_argument("--patience", type=float, default=PATIENCE_SECONDS, help="then a worker is replaced")
    parser.add_argument("--zookeeper", action="store_true", help="Tidelog's brokers meet in ZooKeeper")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE", help="settings of the clients")
    # So that a run that is told to end closes what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
