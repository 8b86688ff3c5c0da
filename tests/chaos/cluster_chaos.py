"""A cluster under faults: `cluster_chaos.py [--minutes M] [--faults a,b,c] [--store embedded|zookeeper]`.

Three brokers with three replicas and min.insync.replicas 2. Idempotent producers at acks=all, a group of
readers, and transactional copiers work all the time, with the default settings of confluent-kafka, while one
fault after the other is injected (cluster_faults.py): first each chosen one in turn, then by chance. Then the
faults stop, everything is read once more, and every checker of history_checks.py looks at the recorded
history; each of them must also notice an anomaly that is planted in it. The replicas are compared on disk.
Exit code 0 when every promise held.

`--seed` repeats the choices (not the timing). `--keep FOLDER` keeps data, logs and history. `--brokers 1` is
for the workload alone. Faults that this machine cannot do are named and left out; with CI=true that fails.
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.chaos import network
from tests.chaos.broker_directories import log_dirs
from tests.chaos.cluster_faults import FAULTS, WHOLE_SECONDS_MAX, ZOOKEEPER_HOST, Scene, small_disk
from tests.chaos.cluster_workload import (
    COPIERS,
    PARTITIONS,
    READERS,
    Actor,
    Copier,
    GroupReader,
    Probe,
    Reading,
    Watcher,
    Writer,
)
from tests.chaos.crash_checks import Violation
from tests.chaos.hanging_disk import HangingDisk, NoDisk
from tests.chaos.history import ACKNOWLEDGED, Copies, Follows, Recorder, load
from tests.chaos.history_checks import CHECKERS, check
from tests.chaos.history_faults import unnoticed
from tests.chaos.power_cut import Boots
from tests.chaos.replica_logs import differences
from tests.chaos.transaction_worker import INPUT, OUTPUT
from tidelog.server import local_cluster
from tidelog.server.cluster_view import NoView
from tidelog.server.zookeeper_process import ZookeeperServers
from tidelog.testing.cluster import BrokerNotStarted, RunningCluster

SETTINGS = {
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "replica.lag.time.max.ms": "4000",
    "log.segment.bytes": "4000000",
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
}
SESSION_SECONDS = {"embedded": 4.0, "zookeeper": 6.0}
SESSION_SETTING = {"embedded": "broker.session.timeout.ms", "zookeeper": "zookeeper.session.timeout.ms"}
SMALL_DISK_BYTES = 400 << 20
WRITERS, READERS_COUNT, COPIERS_COUNT = 3, 2, 2
#: partitions of one topic of the crowd
CROWD_PER_TOPIC = 500
WARM_SECONDS = 2.0
PAUSE_SECONDS = (0.2, 1.5)
DRAIN_SECONDS_MAX = 90.0
SHOWN_MAX = 8
PLANTED_SENDS_MAX = 400_000
"""A longer history is not spoiled once more for every checker: the unit tests prove them too."""
ENSEMBLE_SIZE = 3


def free_port_run(count: int) -> int:
    """The first of so many free ports in a row."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            first = int(probe.getsockname()[1])
        if first + count < 60_000 and all(_is_free(port) for port in range(first, first + count)):
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def say(text: str) -> None:
    print(text, flush=True)


class Run:
    """One run: the cluster, the clients, the faults, the figures."""

    def __init__(self, folder: Path, options: argparse.Namespace, stack: contextlib.ExitStack) -> None:
        self.folder, self.options, self.stack = folder, options, stack
        self.random = random.Random(options.seed)
        self.history_folder = folder / "history"
        self.history_folder.mkdir(parents=True)
        (folder / "data").mkdir()
        self.network: network.PrivateNetwork | None = None
        self.ensemble: ZookeeperServers | None = None
        self.session_seconds = SESSION_SECONDS[options.store]
        self.begun = time.monotonic()
        self.figures: dict[str, object] = {}
        self.recorder = Recorder(self.history_folder / "faults.jsonl")
        if network.inside():
            self.network = network.PrivateNetwork([f"broker-{number}" for number in range(1, 5)])
        self.boots = Boots(folder / "boot-id")
        self.cluster = self._cluster()
        stack.callback(self.cluster.close)
        self.clients = self._clients()
        self.probe = Probe(self.history_folder, "probe", self._addresses, 0)
        self.scene = Scene(self.cluster, self.probe, self.recorder, self.random, self.session_seconds)
        self.scene.network = self.network
        self.scene.boots = self.boots
        self._arm()

    # Building

    def _cluster(self) -> RunningCluster:
        options = self.options
        settings_of: dict[int, dict[str, str]] = {n: {} for n in range(1, 5)}
        prefix = None
        for number, own in settings_of.items():
            data = local_cluster.data_folder(self.folder / "data", number)
            own["log.dirs"] = ",".join(map(str, log_dirs(data)))
        if self.network is not None:
            addresses = self.network.addresses
            for number, own in settings_of.items():
                own["listeners"] = f"PLAINTEXT://{addresses[f'broker-{number}']}:{9091 + number}"
            prefix = self._prefix
        self.small_disk_folder = self.folder / "data" / "broker-3"
        self.has_small_disk = "full-disk" in options.faults and self.stack.enter_context(
            small_disk(self.small_disk_folder, SMALL_DISK_BYTES)
        )
        self.hanging_disk = self._hanging_disk() if "hang-disk" in options.faults else None
        settings = {**SETTINGS, SESSION_SETTING[options.store]: str(int(self.session_seconds * 1000))}
        zookeeper = None
        if options.store == "zookeeper":
            zookeeper = self._start_ensemble()
        return RunningCluster(
            options.brokers,
            settings,
            settings_of=settings_of,
            zookeeper=zookeeper,
            data_directory=self.folder / "data",
            command_prefix=prefix,
            environment=self.boots.environment,
        )

    def _hanging_disk(self) -> HangingDisk:
        (self.folder / "hanging").mkdir()
        try:
            disk = HangingDisk(
                self.folder / "hanging", self.folder / "data" / "broker-2", size_bytes=SMALL_DISK_BYTES
            )
        except NoDisk as fault:
            raise SystemExit(f"hang-disk cannot be done here: {fault}") from fault
        self.stack.enter_context(disk)
        return disk

    def _prefix(self, broker_id: int) -> list[str]:
        assert self.network is not None
        return self.network.prefix(f"broker-{broker_id}")

    def _start_ensemble(self) -> str:
        host = "127.0.0.1" if self.network is None else self.network.add_alias(ZOOKEEPER_HOST, 250)
        self.ensemble = ZookeeperServers(
            self.folder / "zookeeper", port=free_port_run(ENSEMBLE_SIZE), count=ENSEMBLE_SIZE, host=host
        )
        self.stack.enter_context(self.ensemble)
        return f"{self.ensemble.connect_string}/chaos"

    def bootstrap(self) -> str:
        if self.network is None:
            return self.cluster.bootstrap
        addresses = [self.network.addresses[f"broker-{n}"] for n in range(1, self.options.brokers + 1)]
        return ",".join(f"{address}:{9092 + place}" for place, address in enumerate(addresses))

    def _addresses(self) -> list[str]:
        return self.bootstrap().split(",")

    def _clients(self) -> list[Actor]:
        folder, seed, share = self.history_folder, self.options.seed, self.options.rate / WRITERS
        clients: list[Actor] = [
            Writer(folder, f"writer-{n}", self.bootstrap, seed + n, share) for n in range(WRITERS)
        ]
        clients += [GroupReader(folder, f"reader-{n}", self.bootstrap) for n in range(READERS_COUNT)]
        clients += [Copier(folder, f"copier-{n}", self.bootstrap, seed + n) for n in range(COPIERS_COUNT)]
        topics = (INPUT, OUTPUT)
        clients.append(Watcher(folder, "watcher", self.bootstrap, (OUTPUT,), committed=True))
        clients.append(Watcher(folder, "uncommitted", self.bootstrap, topics, committed=False))
        return clients

    def _arm(self) -> None:
        if self.has_small_disk:
            self.scene.small_disk = (3, self.small_disk_folder)
        if self.hanging_disk is not None:
            self.scene.hanging_disk = (2, self.hanging_disk)
        self.scene.zookeeper = self.ensemble
        self.scene.copiers = [client for client in self.clients if isinstance(client, Copier)]

    # The run

    def begin(self) -> None:
        try:
            self.cluster.start(known=False)
            self.cluster.wait_known(timeout_seconds=WHOLE_SECONDS_MAX)
            for topic in (INPUT, OUTPUT):
                self.cluster.create_topic(topic, PARTITIONS, min_insync_replicas=min(2, self.options.brokers))
            for first in range(0, self.options.crowd, CROWD_PER_TOPIC):
                count = min(CROWD_PER_TOPIC, self.options.crowd - first)
                self.cluster.create_topic(f"crowd-{first}", count)
        except (BrokerNotStarted, TimeoutError, KafkaException) as fault:
            raise Violation(f"the cluster did not start: {fault}") from fault
        self.recorder.write(Follows(READERS, INPUT))
        self.recorder.write(Copies(INPUT, OUTPUT))
        for client in (*self.clients, self.probe):
            client.start()
        since = time.monotonic()
        if self.probe.seconds_until_heard(since, 30.0) is None:
            raise Violation(f"the cluster takes no writes: {self.scene.view()}")
        time.sleep(WARM_SECONDS)

    def work(self) -> None:
        """Each fault once in turn, then by chance until the time is up."""
        names = [name for name in FAULTS if name in self.options.faults]
        weights = [FAULTS[name].weight for name in names]
        queue = self.random.sample(names, len(names))
        deadline = time.monotonic() + self.options.minutes * 60
        while time.monotonic() < deadline:
            name = queue.pop() if queue else self.random.choices(names, weights)[0]
            begun = time.monotonic()
            FAULTS[name].inject(self.scene, name)
            if self.options.verbose:
                say(
                    f"  {begun - self.begun:7.1f} s  {name:18} outage {self.scene.last_outage:6.2f} s, "
                    f"undone after {time.monotonic() - begun:6.1f} s"
                )
            self._check_clients()
            time.sleep(self.random.uniform(*PAUSE_SECONDS))
        if queue:
            say(f"  there was no time for {', '.join(queue)}")
            self.figures["faults without time"] = ", ".join(queue)

    def _check_clients(self) -> None:
        if complaints := [text for client in self.clients for text in client.complaints]:
            raise Violation("; ".join(complaints[:SHOWN_MAX]))
        if dead := [client.actor for client in self.clients if not client.is_alive()]:
            raise Violation(f"clients ended: {dead}")
        for broker_id in self.cluster.broker_ids:
            if not self.cluster.running(broker_id):
                raise Violation(
                    f"broker {broker_id} ended by itself: {self.cluster.log_text(broker_id)[-2000:]}"
                )

    def finish(self) -> None:
        """The faults are over: let everyone come to the end, and read everything once more."""
        self.scene.whole("the end")
        for client in self.clients:
            if isinstance(client, Writer):
                client.stop()
        self.probe.stop()
        self._drain()
        for client in self.clients:
            if not isinstance(client, Writer):
                client.stop()
        for committed in (True, False):
            name = "final-committed" if committed else "final-uncommitted"
            reader = Watcher(
                self.history_folder, name, self.bootstrap, (INPUT, OUTPUT), committed=committed, final=True
            )
            reader.start()
            self._await_end(reader, committed=committed)
            reader.stop()
        self.recorder.close()
        complaints = [text for client in (*self.clients, self.probe) for text in client.complaints]
        if complaints:
            raise Violation("; ".join(complaints[:SHOWN_MAX]))

    def _drain(self) -> None:
        """Until the readers and the copiers have done all of the input, or cannot: the checkers then say."""
        deadline = time.monotonic() + DRAIN_SECONDS_MAX
        while time.monotonic() < deadline:
            with contextlib.suppress(KafkaException):
                if all(self._lag(group) == 0 for group in (READERS, COPIERS)):
                    return
            time.sleep(0.3)
        say("  the groups did not come to the end of the input")

    def _lag(self, group: str) -> int:
        consumer = Consumer({"bootstrap.servers": self.bootstrap(), "group.id": group, "log_level": 0})
        try:
            places = [TopicPartition(INPUT, partition) for partition in range(PARTITIONS)]
            committed = consumer.committed(places, timeout=10)
            return sum(
                consumer.get_watermark_offsets(place, timeout=10)[1] - max(place.offset, 0)
                for place in committed
            )
        finally:
            consumer.close()

    def _await_end(self, reader: Reading, *, committed: bool) -> None:
        """Until a reader has everything: it gets nothing new for a while and stands at the ends."""
        deadline = time.monotonic() + DRAIN_SECONDS_MAX
        ends = self._ends(OUTPUT) | self._ends(INPUT)
        last, since = -1, time.monotonic()
        while time.monotonic() < deadline:
            if reader.count != last:
                last, since = reader.count, time.monotonic()
            behind = [
                place for place, end in ends.items() if end and reader.next_offsets.get(place, 0) < end - 1
            ]
            # A marker or an aborted record at the end of a partition is never handed over.
            if time.monotonic() - since > (2.0 if not behind else 8.0):
                return
            time.sleep(0.1)
        say(f"  {reader.actor} did not come to an end")

    def _ends(self, topic: str) -> dict[tuple[str, int], int]:
        consumer = Consumer({"bootstrap.servers": self.bootstrap(), "group.id": "ends", "log_level": 0})
        try:
            return {
                (topic, n): consumer.get_watermark_offsets(TopicPartition(topic, n), timeout=20)[1]
                for n in range(PARTITIONS)
            }
        finally:
            consumer.close()

    # The checks

    def check(self) -> None:
        history = load(self.history_folder)
        figures = self.figures
        acknowledged = [send for send in history.sends if send.outcome == ACKNOWLEDGED]
        figures["records acknowledged"] = len(acknowledged)
        figures["records of unknown outcome"] = len(history.sends) - len(acknowledged)
        figures["records read"] = sum(len(poll.records) for poll in history.polls)
        for outcome in ("committed", "aborted", "unknown"):
            number = sum(each.outcome == outcome for each in history.transactions)
            figures[f"transactions {outcome}"] = number
        copiers = [client for client in self.clients if isinstance(client, Copier)]
        figures["transactional workers replaced"] = sum(len(client.reasons) for client in copiers)
        if self.options.verbose:
            for reason in (reason for client in copiers for reason in client.reasons):
                say(f"  replaced: {reason[:200]}")
        found = check(history)
        problems = [
            f"{name} ({len(findings)}): " + "; ".join(findings[:SHOWN_MAX])
            for name, findings in found.items()
        ]
        if len(history.sends) <= PLANTED_SENDS_MAX:
            planted = unnoticed(history, CHECKERS)
            problems += [f"the planted {name} was not noticed" for name in planted["unnoticed"]]
            figures["planted anomalies noticed"] = len(CHECKERS) - len(planted["unplantable"])
            if planted["unplantable"]:
                figures["anomalies that could not be planted"] = ", ".join(planted["unplantable"])
        figures["anomalies"] = sum(map(len, found.values()))
        problems += self._compare_replicas()
        problems += [f"in a log:\n{text}" for text in self.cluster.tracebacks()[:SHOWN_MAX]]
        if problems:
            raise Violation("\n  ".join(problems))

    def _compare_replicas(self) -> list[str]:
        """Stopped, the brokers must have the same records on disk."""
        try:
            self.cluster.stop()
        except (TimeoutError, NoView) as fault:
            return [f"the cluster did not stop: {fault}"]
        folders = {n: self.cluster.data_directory_of(n) for n in self.cluster.broker_ids}
        return [
            text
            for topic in (INPUT, OUTPUT)
            for partition in range(PARTITIONS)
            for text in differences(folders, topic, partition)
        ]

    def report(self) -> None:
        scene = self.scene
        self.figures["seconds in all"] = f"{time.monotonic() - self.begun:.0f}"
        for name, value in self.figures.items():
            say(f"  {name:44} {value}")
        for name, number in sorted(scene.counts.items()):
            if name not in FAULTS:
                say(f"  {name:44} {number}")
        say(f"\n  {'no acknowledged write on the watched partition':48} times   median    worst")
        _table(scene.outages)
        seen = self._seen_by_writers()
        if seen:
            say(f"\n  {'the same as idempotent producers saw it':48} times   median    worst")
            _table(seen)
        say(f"\n  {'from undone to all replicas in sync':48} times   median    worst")
        _table(scene.recoveries)

    def _seen_by_writers(self) -> dict[str, list[float]]:
        """From each kill to the first acknowledgement of a later send to the watched partition."""
        if not self.history_folder.exists():
            return {}
        sends = [
            send
            for send in load(self.history_folder).sends
            if send.producer.startswith("writer") and send.partition == 0 and send.outcome == ACKNOWLEDGED
        ]
        found: dict[str, list[float]] = {}
        for name, moment in self.scene.moments:
            if name.startswith("kill"):
                ended = min((send.ended for send in sends if send.begun >= moment), default=None)
                if ended is not None:
                    found.setdefault(name, []).append(ended - moment)
        return found


def _table(rows: dict[str, list[float]]) -> None:
    for name, seconds in sorted(rows.items()):
        median, worst = statistics.median(seconds), max(seconds)
        say(f"  {name:48} {len(seconds):5}  {median:6.2f} s {worst:6.2f} s")


def choose_faults(options: argparse.Namespace) -> None:
    """Leave out what cannot be done here, and say so; in CI that is a failure."""
    wanted = list(FAULTS) if options.faults == "all" else options.faults.split(",")
    if unknown := [name for name in wanted if name not in FAULTS]:
        raise SystemExit(f"no such fault: {', '.join(unknown)}; there are {', '.join(FAULTS)}")
    reason = network.missing() if any("namespaces" in FAULTS[name].needs for name in wanted) else None
    lacking = {}
    if reason is not None:
        lacking["namespaces"] = reason
    if options.store != "zookeeper":
        lacking["zookeeper"] = "it is not on ZooKeeper"
    if os.geteuid() != 0:
        lacking["small disk"] = "mounting a tmpfs needs root"
        lacking["hanging disk"] = "mounting a file system needs root"
        lacking["ptrace"] = "stopping a thread of another process needs root"
    options.faults = [name for name in wanted if not FAULTS[name].needs & lacking.keys()]
    for need, why in lacking.items():
        left = [name for name in wanted if need in FAULTS[name].needs]
        if left and not (need == "zookeeper" and options.faults):
            say(f"left out: {', '.join(left)}: {why}")
            if os.environ.get("CI") == "true":
                raise SystemExit("CI has to try every fault")
    if not options.faults:
        raise SystemExit("no fault is left")


@contextlib.contextmanager
def working_folder(options: argparse.Namespace) -> Iterator[Path]:
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
        yield options.keep
        return
    with tempfile.TemporaryDirectory(prefix="tidelog-cluster-chaos-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def run(folder: Path, options: argparse.Namespace) -> int:
    failed = ""
    with contextlib.ExitStack() as stack:
        test = Run(folder, options, stack)
        try:
            test.begin()
            test.work()
            test.finish()
            test.check()
        except (Violation, BrokerNotStarted) as fault:
            failed = str(fault)
        for client in (*test.clients, test.probe):
            client.stopped.set()
        test.cluster.kill()
        if failed and options.keep is None:
            kept = Path(tempfile.mkdtemp(prefix="tidelog-cluster-chaos-failed-"))
            shutil.copytree(folder, kept, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock"))
            failed += f"\nThe folder is kept in {kept}"
        test.report()
    if failed:
        say(f"FAILED with --seed {options.seed}: {failed}")
        return 1
    say(f"passed: nothing lost, repeated or out of order; seed {options.seed}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0, help="how long faults are injected")
    parser.add_argument("--faults", default="kill-leader", help=f"all, or some of {', '.join(FAULTS)}")
    parser.add_argument("--store", choices=tuple(SESSION_SECONDS), default="embedded")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--rate", type=float, default=240.0, help="records per second of all producers")
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--crowd", type=int, default=0, help="partitions besides those of the clients")
    parser.add_argument("--keep", type=Path, help="a folder for data, logs and history, which stays")
    parser.add_argument("--verbose", action="store_true", help="a line for every fault")
    options = parser.parse_args()
    choose_faults(options)
    if any("namespaces" in FAULTS[name].needs for name in options.faults):
        network.enter(["-m", "tests.chaos.cluster_chaos", *sys.argv[1:], "--seed", str(options.seed)])
    say(
        f"{options.brokers} brokers on the {options.store} store, {options.minutes:g} minutes, "
        f"seed {options.seed}: {', '.join(options.faults)}"
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with working_folder(options) as folder:
        return run(folder, options)


if __name__ == "__main__":
    sys.exit(main())
