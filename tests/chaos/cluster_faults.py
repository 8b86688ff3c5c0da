"""The faults of a cluster chaos run, each a function that does its harm and undoes it.

A fault works on a `Scene` (the cluster, its network and its ZooKeeper, the probe) and leaves the cluster with
all brokers started and all cuts healed. It measures how long the watched partition took no write, and checks
what it alone can check (metadata kept, tail cut off, leaders back). `FAULTS` is the table.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.chaos.broker_directories import (
    META_PROPERTIES,
    directory_id,
    log_dirs,
    replica_folder,
    second_folder,
    set_log_dirs,
)
from tests.chaos.cluster_workload import PARTITIONS, Copier, Probe
from tests.chaos.crash_checks import Violation
from tests.chaos.hanging_disk import HangingDisk
from tests.chaos.history import ACKNOWLEDGED, Recorder, Send
from tests.chaos.kafka_wire import ConnectionClosed, WireClient, batch_of
from tests.chaos.network import PrivateNetwork
from tests.chaos.power_cut import Boots, cut_power
from tests.chaos.replica_logs import stored_batches
from tests.chaos.stopped_thread import CannotStop, StoppedThread
from tests.chaos.transaction_worker import INPUT, OUTPUT
from tidelog.server.cluster_view import NoView
from tidelog.server.zookeeper_process import ZookeeperServers
from tidelog.testing.cluster import BrokerNotStarted, RunningCluster

HEARD_SECONDS_MAX = 45.0
WHOLE_SECONDS_MAX = 60.0
TOPIC_SECONDS_MAX = 30.0
BROKER_HOST = "broker-{}"
ZOOKEEPER_HOST = "zookeeper"
ELECTION_NOT_NEEDED = 84
DIVERGED_RECORDS = 40
#: after this time a broker has imported what it needs, on a busy machine too
IMPORTING_SECONDS = 10.0
#: how long the probe may take to find another leader, on a busy machine
LOOKING_SECONDS_MAX = 5.0


class Scene:
    """What faults work on, and where they write down what they saw."""

    def __init__(
        self,
        cluster: RunningCluster,
        probe: Probe,
        recorder: Recorder,
        rand: random.Random,
        session_seconds: float,
    ) -> None:
        self.cluster, self.probe, self.recorder, self.random = cluster, probe, recorder, rand
        self.session_seconds = session_seconds
        self.network: PrivateNetwork | None = None
        self.zookeeper: ZookeeperServers | None = None
        self.boots: Boots | None = None
        self.small_disk: tuple[int, Path] | None = None
        """A broker and the folder of its tmpfs."""
        self.hanging_disk: tuple[int, HangingDisk] | None = None
        """A broker and the disk under its data."""
        self.copiers: list[Copier] = []
        self.outages: dict[str, list[float]] = defaultdict(list)
        self.last_outage = 0.0
        self.moments: list[tuple[str, float]] = []
        """When each fault struck."""
        self.recoveries: dict[str, list[float]] = defaultdict(list)
        self.counts: dict[str, int] = defaultdict(int)
        self.topics = {INPUT, OUTPUT}
        self._numbers = 0

    # What faults ask

    def leader(self) -> int:
        """The leader of the watched partition, when there is one."""
        deadline = time.monotonic() + HEARD_SECONDS_MAX
        while True:
            with contextlib.suppress(NoView, LookupError):
                if (found := self.cluster.leader(INPUT, self.probe.partition)) >= 0:
                    return found
            if time.monotonic() > deadline:
                raise Violation("the watched partition has no leader")
            time.sleep(0.05)

    def others(self, broker_id: int) -> list[int]:
        return [number for number in self.cluster.broker_ids if number != broker_id]

    def hold(self, least: float, most: float) -> None:
        time.sleep(self.random.uniform(least, most))

    def host(self, broker_id: int) -> str:
        return BROKER_HOST.format(broker_id)

    # What faults measure

    def strike(self, name: str) -> float:
        now = time.monotonic()
        self.moments.append((name, now))
        self.counts[name] += 1
        return now

    def heard(self, name: str, since: float) -> float:
        """Wait for the next acknowledged write; the time until then is the outage."""
        seconds = self.probe.seconds_until_heard(since, HEARD_SECONDS_MAX)
        if seconds is None:
            raise Violation(
                f"{name}: no write was acknowledged within {HEARD_SECONDS_MAX:.0f} s: {self.view()}"
            )
        self.outages[name].append(seconds)
        self.last_outage = seconds
        return seconds

    def within_session(self, name: str, since: float) -> None:
        """Somebody else must lead by the end of the session timeout; the rest is for whoever looks."""
        if (seconds := self.heard(name, since)) > self.session_seconds + LOOKING_SECONDS_MAX:
            raise Violation(f"{name}: no acknowledged write for {seconds:.1f} s")

    def quiet_seconds(self, name: str, since: float) -> float:
        """The longest time without an acknowledged write from a moment until the probe is heard again."""
        until = time.monotonic()
        if self.probe.seconds_until_heard(until, HEARD_SECONDS_MAX) is None:
            raise Violation(f"{name}: no write was acknowledged after it was undone: {self.view()}")
        ends = [since, *(ended for begun, ended in list(self.probe.acknowledged) if ended >= since)]
        longest = max(after - before for before, after in pairwise(ends))
        self.outages[name].append(longest)
        self.last_outage = longest
        return longest

    def whole(self, name: str) -> float:
        """Wait until every replica is in sync."""
        begun = time.monotonic()
        try:
            self.cluster.wait_in_sync(timeout_seconds=WHOLE_SECONDS_MAX)
        except TimeoutError as fault:
            raise Violation(f"{name}: {fault}") from fault
        seconds = time.monotonic() - begun
        self.recoveries[name].append(seconds)
        return seconds

    def start(self, name: str, broker_id: int | None = None) -> None:
        try:
            self.cluster.start(broker_id, known=False)
            self.cluster.wait_known(timeout_seconds=WHOLE_SECONDS_MAX)
        except (BrokerNotStarted, TimeoutError) as fault:
            raise Violation(f"{name}: {fault}") from fault

    def new_controller(self, name: str, other_than: int) -> int:
        try:
            return self.cluster.wait_controller(other_than, timeout_seconds=HEARD_SECONDS_MAX)
        except TimeoutError as fault:
            raise Violation(f"{name}: {fault}") from fault

    def view(self) -> str:
        try:
            return str(self.cluster.view())
        except NoView as fault:
            return str(fault)

    def make_topic(self, name: str) -> None:
        """A new topic, to see that metadata can be changed; all made before must still be there."""
        self._numbers += 1
        topic = f"made-{self._numbers}"
        deadline = time.monotonic() + TOPIC_SECONDS_MAX
        # A new client each time: librdkafka's waits for ever for a controller that hangs once it has met it.
        while (fault := self._try_topic(topic)) is not None:
            if time.monotonic() > deadline:
                raise Violation(f"{name}: no topic could be made: {fault}")
        self.topics.add(topic)
        self.check_topics(name)

    def _try_topic(self, topic: str) -> str | None:
        """Why the topic could not be made, or None."""
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap, "log_level": 0})
        wanted = NewTopic(topic, num_partitions=2, replication_factor=3)
        try:
            admin.create_topics([wanted], request_timeout=5)[topic].result(10)
        except KafkaException as fault:
            if fault.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:  # an earlier try was heard after all
                return str(fault)
        return None

    def check_topics(self, name: str) -> None:
        for broker_id in self.cluster.responsive_ids:
            deadline = time.monotonic() + 20
            while True:
                known: set[str] = set()
                with contextlib.suppress(NoView):
                    known = {each.topic for each in self.cluster.view(broker_id).partitions}
                if self.topics <= known:
                    break
                if time.monotonic() > deadline:
                    raise Violation(f"{name}: broker {broker_id} does not know {self.topics - known}")
                time.sleep(0.1)


# Processes


def kill_leader(scene: Scene, name: str) -> None:
    """kill -9 of the watched partition's leader; sometimes the next fault comes before it has caught up."""
    leader = scene.leader()
    since = scene.strike(name)
    scene.cluster.kill(leader)
    scene.heard(name, since)
    scene.hold(0.0, 1.5)
    scene.start(name, leader)
    if scene.random.random() < 0.75:
        scene.whole(name)


def kill_controller(scene: Scene, name: str) -> None:
    """Another takes over; what was known stays known, and metadata can be changed."""
    controller = scene.new_controller(name, -1)
    since = scene.strike(name)
    scene.cluster.kill(controller)
    scene.new_controller(name, controller)
    scene.recoveries[f"{name}: next controller"].append(time.monotonic() - since)
    scene.heard(name, since)
    scene.make_topic(name)
    scene.start(name, controller)
    scene.whole(name)
    scene.check_topics(name)


def pause_leader(scene: Scene, name: str) -> None:
    """SIGSTOP: it holds its connections and answers nobody, for less or more than its session."""
    leader = scene.leader()
    since = scene.strike(name)
    scene.cluster.pause(leader)
    long = scene.random.random() < 0.6
    scene.hold(*((scene.session_seconds + 1, scene.session_seconds + 4) if long else (0.3, 1.5)))
    if long:
        scene.heard(name, since)
    scene.cluster.resume(leader)
    if not long:
        scene.quiet_seconds(f"{name} briefly", since)
    scene.whole(name)


def pause_controller(scene: Scene, name: str) -> None:
    """A controller sleeps through its own end: what it decided is refused, the next one's stands."""
    controller = scene.new_controller(name, -1)
    since = scene.strike(name)
    scene.cluster.pause(controller)
    successor = scene.new_controller(name, controller)
    scene.recoveries[f"{name}: next controller"].append(time.monotonic() - since)
    scene.make_topic(name)
    scene.cluster.resume(controller)
    scene.quiet_seconds(name, since)
    scene.whole(name)
    deadline = time.monotonic() + 20
    while True:
        with contextlib.suppress(NoView):
            seen = {scene.cluster.view(number).controller_id for number in scene.cluster.broker_ids}
            if seen == {successor}:
                break
        if time.monotonic() > deadline:
            raise Violation(f"{name}: brokers see the controllers {seen}, not {successor}")
        time.sleep(0.1)
    scene.check_topics(name)


def restart_all(scene: Scene, name: str) -> None:
    """kill -9 of everything at the same moment."""
    since = scene.strike(name)
    scene.cluster.kill()
    scene.hold(0.0, 2.0)
    scene.start(name)
    scene.heard(name, since)
    scene.whole(name)
    scene.check_topics(name)


def power_cut_all(scene: Scene, name: str) -> None:
    """All machines lose power; of every partition one disk of those that had everything has kept it."""
    since = scene.strike(name)
    scene.cluster.kill()
    assert scene.boots is not None
    for what, number in cut_power(scene.cluster, scene.boots, scene.random).items():
        scene.counts[f"{name}: {what}"] += number
    for broker_id in scene.random.sample(scene.cluster.broker_ids, len(scene.cluster.broker_ids)):
        scene.hold(0.0, 1.5)
        try:
            scene.cluster.start(broker_id, known=False)
        except BrokerNotStarted as fault:
            raise Violation(f"{name}: {fault}") from fault
    scene.heard(name, since)
    scene.whole(name)
    scene.check_topics(name)


def roll(scene: Scene, name: str) -> None:
    """A graceful restart of one broker after the other."""
    for broker_id in scene.cluster.broker_ids:
        since = scene.strike(name)
        try:
            scene.cluster.stop(broker_id)
        except TimeoutError as fault:
            raise Violation(f"{name}: {fault}") from fault
        scene.start(name, broker_id)
        scene.quiet_seconds(name, since)
        scene.whole(name)


def lose_copier(scene: Scene, name: str) -> None:
    """A transactional worker is killed, or hangs until it counts as dead; its successor fences it."""
    since = scene.strike(name)
    victim = scene.random.choice(scene.copiers)
    victim.signal(scene.random.choice((signal.SIGKILL, signal.SIGSTOP)))
    scene.hold(0.0, 1.0)
    scene.quiet_seconds(name, since)


# Data


def wipe(scene: Scene, name: str) -> None:
    """A broker comes back with an empty disk and is filled again by the others."""
    scene.whole(name)
    victim = scene.random.choice([n for n in scene.cluster.broker_ids if not _on_small_disk(scene, n)])
    since = scene.strike(name)
    scene.cluster.kill(victim)
    scene.cluster.wipe(victim)
    shutil.rmtree(second_folder(scene.cluster.data_directory_of(victim)), ignore_errors=True)
    scene.heard(name, since)
    scene.start(name, victim)
    scene.whole(name)


def lose_directory(scene: Scene, name: str) -> None:
    """All are killed; an empty directory stands in the place of one; its broker starts first.

    It must not lead what was in there, nor take the empty one into use if there was anything. Then the
    directory is found again, or is given up and filled again.
    """
    scene.whole(name)
    victim = scene.random.choice(scene.cluster.broker_ids)
    directories = log_dirs(scene.cluster.data_directory_of(victim))
    lost = directories[1]
    if scene.random.random() < 0.5 and not _is_mounted(scene, victim):
        lost = directories[0]
    since = scene.strike(name)
    scene.cluster.kill()
    aside, lost_id = lost.with_name(f"{lost.name}-aside"), directory_id(lost)
    held_logs = any(each.is_dir() for each in lost.iterdir())
    lost.rename(aside)
    lost.mkdir()
    scene.random.shuffle(directories)
    set_log_dirs(scene.cluster, victim, directories)
    scene.start(name, victim)
    scene.hold(0.0, 2.0)
    scene.start(name)
    scene.heard(name, since)
    if held_logs and (lost / META_PROPERTIES).exists():
        raise Violation(f"{name}: an empty directory was taken into use")
    scene.cluster.kill(victim)
    if scene.random.random() < 0.5:
        shutil.rmtree(lost)
        aside.rename(lost)
        set_log_dirs(scene.cluster, victim, directories)
        scene.counts[f"{name}: found again"] += 1
    else:
        shutil.rmtree(aside)
        set_log_dirs(scene.cluster, victim, directories, lost_id)
        scene.counts[f"{name}: given up"] += 1
    scene.start(name, victim)
    scene.whole(name)
    scene.check_topics(name)


def swap_directories(scene: Scene, name: str) -> None:
    """Two brokers are killed and get a directory of each other: neither starts before they are put back."""
    scene.whole(name)
    one, other = scene.random.sample(scene.cluster.broker_ids, 2)
    folders = [second_folder(scene.cluster.data_directory_of(number)) for number in (one, other)]
    since = scene.strike(name)
    for number in (one, other):
        scene.cluster.kill(number)

    def swap() -> None:
        aside = folders[0].with_name(f"{folders[0].name}-aside")
        folders[0].rename(aside)
        folders[1].rename(folders[0])
        aside.rename(folders[1])

    swap()
    for number, owner in ((one, other), (other, one)):
        try:
            scene.cluster.start(number, known=False)
        except BrokerNotStarted as refused:
            if f"belongs to broker {owner}" not in str(refused):
                raise Violation(f"{name}: {refused}") from refused
        else:
            raise Violation(f"{name}: broker {number} starts with a directory of broker {owner}")
    swap()
    for number in (one, other):
        scene.start(name, number)
    scene.quiet_seconds(name, since)
    scene.whole(name)


def _is_mounted(scene: Scene, broker_id: int) -> bool:
    hanging = scene.hanging_disk is not None and scene.hanging_disk[0] == broker_id
    return hanging or _on_small_disk(scene, broker_id)


def _on_small_disk(scene: Scene, broker_id: int) -> bool:
    return scene.small_disk is not None and scene.small_disk[0] == broker_id


def diverge(scene: Scene, name: str) -> None:
    """The leader writes what its followers never get, dies, and must give it up when it is back."""
    scene.whole(name)
    leader = scene.leader()
    followers = [number for number in scene.others(leader) if scene.cluster.state(number) == "running"]
    address = scene.cluster.address(leader)
    since = scene.strike(name)
    for follower in followers:
        scene.cluster.pause(follower)
    try:
        offsets = _write_unreplicated(scene, name, address)
        scene.cluster.kill(leader)
    finally:
        for follower in followers:
            scene.cluster.resume(follower)
    data = scene.cluster.data_directory_of(leader)
    folder = replica_folder(data, f"{INPUT}-{scene.probe.partition}")
    before = {batch.base_offset: batch for batch in stored_batches(folder)}
    scene.heard(name, since)
    scene.start(name, leader)
    scene.whole(name)
    after = {batch.base_offset: batch for batch in stored_batches(folder)}
    tail = [offset for offset in offsets if offset in before]
    cut = [offset for offset in tail if after.get(offset) != before[offset]]
    scene.counts[f"{name}: batches cut off"] += len(cut)
    if not cut:
        raise Violation(f"{name}: none of the {len(tail)} batches that only broker {leader} had was cut off")


def _write_unreplicated(scene: Scene, name: str, address: str) -> list[int]:
    offsets = []
    with WireClient(address) as client:
        for number in range(DIVERGED_RECORDS):
            begun = time.monotonic()
            value = f"{name}/{scene.counts[name]}/{number}"
            try:
                produced = client.produce(INPUT, scene.probe.partition, batch_of(value.encode()), acks=1)
            except (OSError, ConnectionClosed):
                break
            if produced.error:
                break
            offsets.append(produced.base_offset)
            send = Send(
                name,
                scene.counts[name] * DIVERGED_RECORDS + number,
                INPUT,
                scene.probe.partition,
                value,
                ACKNOWLEDGED,
                produced.base_offset,
                begun,
                time.monotonic(),
                acks="1",
                idempotent=False,
            )
            scene.recorder.write(send)
    if not offsets:
        raise Violation(f"{name}: the leader took no acks=1 write")
    return offsets


def full_disk(scene: Scene, name: str) -> None:
    """One broker's disk is full for a while; the others go on, and it catches up when there is room."""
    assert scene.small_disk is not None
    _, folder = scene.small_disk
    ballast = folder / "ballast"
    since = scene.strike(name)
    space = os.statvfs(folder)
    with ballast.open("wb") as file:
        file.write(b"\0")
        with contextlib.suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, space.f_bavail * space.f_frsize - 4096)
    scene.hold(4.0, 8.0)
    ballast.unlink()
    scene.quiet_seconds(name, since)
    scene.whole(name)


# Replicas


def _ask_controller(scene: Scene, module: str, version: int, **fields: object) -> object:
    with WireClient(scene.cluster.address(scene.new_controller(module, -1))) as client:
        return client.ask(module, version, **fields)


def _reassign(scene: Scene, name: str, wanted: dict[int, list[int]]) -> None:
    answer = _ask_controller(
        scene,
        "alter_partition_reassignments",
        0,
        timeout=30_000,
        topics=[
            {
                "name": INPUT,
                "partitions": [{"partition_index": n, "replicas": r} for n, r in wanted.items()],
            }
        ],
    )
    errors = [p for t in answer.responses for p in t.partitions if int(p.error_code)]  # type: ignore[attr-defined]
    if int(answer.error_code) or errors:  # type: ignore[attr-defined]
        raise Violation(f"{name}: reassignment refused: {answer}")
    deadline = time.monotonic() + WHOLE_SECONDS_MAX
    while True:
        with contextlib.suppress(NoView):
            found = {
                each.partition: each
                for each in scene.cluster.view().partitions
                if each.topic == INPUT and each.partition in wanted
            }
            if all(
                list(found[n].replicas) == replicas and set(found[n].isr) == set(replicas)
                for n, replicas in wanted.items()
            ):
                return
        if time.monotonic() > deadline:
            raise Violation(f"{name}: not reassigned to {wanted} in time, but {found}")
        time.sleep(0.1)


def reassign(scene: Scene, name: str) -> None:
    """Partitions move to a fourth broker under load, and back."""
    if len(scene.cluster.broker_ids) == 3:
        try:
            scene.cluster.add_broker()
        except (BrokerNotStarted, TimeoutError) as fault:
            raise Violation(f"{name}: {fault}") from fault
    scene.whole(name)
    before = {p.partition: list(p.replicas) for p in scene.cluster.view().partitions if p.topic == INPUT}
    since = scene.strike(name)
    # The new broker takes the place of the first, second and third replica in turn.
    moved = {
        n: [4 if place == n % 3 else replica for place, replica in enumerate(replicas)]
        for n, replicas in before.items()
    }
    _reassign(scene, name, moved)
    scene.hold(0.5, 2.0)
    _reassign(scene, name, before)
    scene.quiet_seconds(name, since)
    scene.whole(name)


def preferred(scene: Scene, name: str) -> None:
    """After a broker came back, leadership returns to the preferred replicas."""
    scene.whole(name)
    victim = scene.leader()
    since = scene.strike(name)
    scene.cluster.kill(victim)
    scene.heard(name, since)
    scene.start(name, victim)
    scene.whole(name)
    answer = _ask_controller(
        scene,
        "elect_leaders",
        2,
        election_type=0,
        timeout=30_000,
        topic_partitions=[{"topic": INPUT, "partitions": list(range(PARTITIONS))}],
    )
    refused = [
        int(p.error_code)
        for result in answer.replica_election_results  # type: ignore[attr-defined]
        for p in result.partition_result
        if int(p.error_code) not in (0, ELECTION_NOT_NEEDED)
    ]
    deadline = time.monotonic() + 20
    while True:
        parts = [each for each in scene.cluster.view().partitions if each.topic == INPUT]
        away = [each for each in parts if each.leader != each.replicas[0]]
        if not away:
            break
        if time.monotonic() > deadline:
            raise Violation(f"{name}: leaders are not preferred: {away}, refused {refused}")
        time.sleep(0.1)
    scene.counts[f"{name}: leaders back"] += 1


# Network


def cut_pair(scene: Scene, name: str) -> None:
    """The leader and one follower do not hear each other."""
    assert scene.network is not None
    _cut_off_a_follower(scene, name, scene.network.cut)


def cut_one_way(scene: Scene, name: str) -> None:
    """What the leader sends does not reach one follower; the other way is open."""
    assert scene.network is not None
    _cut_off_a_follower(scene, name, scene.network.cut_one_way)


def _cut_off_a_follower(scene: Scene, name: str, cut: Callable[[str, str], None]) -> None:
    assert scene.network is not None
    leader = scene.leader()
    follower = scene.random.choice(scene.others(leader))
    since = scene.strike(name)
    cut(scene.host(leader), scene.host(follower))
    scene.hold(3.0, 9.0)
    scene.network.heal()
    scene.quiet_seconds(name, since)
    scene.whole(name)


def isolate_leader(scene: Scene, name: str) -> None:
    """The leader does not hear the other brokers; clients, and its store, it may still hear."""
    assert scene.network is not None
    leader = scene.leader()
    from_clients = scene.random.random() < 0.5
    since = scene.strike(name)
    for other in scene.others(leader):
        scene.network.cut(scene.host(leader), scene.host(other))
    if from_clients:
        scene.network.cut(scene.host(leader), "hub")
    scene.hold(3.0, 10.0)
    scene.network.heal()
    scene.quiet_seconds(name, since)
    scene.whole(name)


# ZooKeeper


def zookeeper_leader(scene: Scene, name: str) -> None:
    """kill -9 of the ensemble's leader; sessions move to the others."""
    assert scene.zookeeper is not None
    leader = next(n for n in range(scene.zookeeper.count) if scene.zookeeper.mode(n) == "leader")
    since = scene.strike(name)
    scene.zookeeper.kill(leader)
    scene.hold(2.0, 5.0)
    scene.zookeeper.restart(leader)
    scene.quiet_seconds(name, since)
    scene.whole(name)
    scene.make_topic(name)
    scene.zookeeper.wait_ready()


def zookeeper_outage(scene: Scene, name: str) -> None:
    """The whole ensemble is gone for a while: partitions go on; then metadata can be changed again."""
    assert scene.zookeeper is not None
    since = scene.strike(name)
    for number in range(scene.zookeeper.count):
        scene.zookeeper.kill(number)
    scene.hold(2.0, scene.session_seconds + 4.0)
    for number in range(scene.zookeeper.count):
        scene.zookeeper.restart(number)
    scene.zookeeper.wait_ready()
    scene.quiet_seconds(name, since)
    scene.whole(name)
    scene.make_topic(name)


def session_expiry(scene: Scene, name: str) -> None:
    """A leader is cut from the ensemble until its session is over; it must stop leading and come back."""
    assert scene.network is not None
    leader = scene.leader()
    since = scene.strike(name)
    scene.network.cut_one_way(scene.host(leader), ZOOKEEPER_HOST)
    scene.hold(scene.session_seconds + 2.0, scene.session_seconds + 5.0)
    scene.network.heal()
    scene.quiet_seconds(name, since)
    scene.whole(name)


# Hangs: threads run, and no progress is made


def hang_loop(scene: Scene, name: str) -> None:
    """The event loop of the watched partition's leader stands, for less or more than its session.

    Its other threads run. Sometimes it is the controller's that stands.
    """
    hung = scene.leader()
    if scene.random.random() < 0.3:
        hung = scene.new_controller(name, -1)
    process_id = scene.cluster.process_id(hung)
    assert process_id is not None
    # A broker that has just started still imports, and is not watched yet.
    while time.time() - Path(f"/proc/{process_id}").stat().st_ctime < IMPORTING_SECONDS:
        time.sleep(0.1)
    leads = scene.leader() == hung
    try:
        thread = StoppedThread(process_id)
    except CannotStop:
        scene.counts[f"{name}: never at rest"] += 1
        return
    since = scene.strike(name)
    long = scene.random.random() < 0.6
    try:
        scene.hold(*((scene.session_seconds + 1, scene.session_seconds + 4) if long else (0.3, 1.5)))
        if long and leads:
            scene.within_session(name, since)
    finally:
        thread.go_on()
    if not (long and leads):
        scene.quiet_seconds(f"{name} briefly", since)
    scene.whole(name)


def hang_disk(scene: Scene, name: str) -> None:
    """The disk of one broker does not answer: whoever writes to it waits, or whoever syncs."""
    assert scene.hanging_disk is not None
    broker_id, disk = scene.hanging_disk
    leads = scene.leader() == broker_id
    since = scene.strike(name)
    scene.random.choice((disk.hang_writes, disk.hang_device))()
    try:
        scene.hold(scene.session_seconds + 2, scene.session_seconds + 5)
    finally:
        disk.release()
    seconds = scene.quiet_seconds(name if leads else f"{name} of a follower", since)
    if leads and seconds > scene.session_seconds + LOOKING_SECONDS_MAX:
        raise Violation(f"{name}: no acknowledged write for {seconds:.1f} s")
    scene.whole(name)


class Fault(NamedTuple):
    """One row of the table."""

    inject: Callable[[Scene, str], None]
    needs: frozenset[str] = frozenset()
    """Of `namespaces`, `zookeeper`, `small disk`, `hanging disk`, `ptrace`."""
    weight: int = 1


NETWORK, ENSEMBLE, DISK = frozenset({"namespaces"}), frozenset({"zookeeper"}), frozenset({"small disk"})
TRACING, HANGING_DISK = frozenset({"ptrace"}), frozenset({"hanging disk"})
FAULTS: dict[str, Fault] = {
    "kill-leader": Fault(kill_leader, weight=6),
    "kill-controller": Fault(kill_controller, weight=2),
    "pause-leader": Fault(pause_leader, weight=2),
    "pause-controller": Fault(pause_controller),
    "restart-all": Fault(restart_all),
    "power-cut-all": Fault(power_cut_all, weight=2),
    "roll": Fault(roll),
    "lose-copier": Fault(lose_copier),
    "wipe": Fault(wipe),
    "lose-directory": Fault(lose_directory, weight=2),
    "swap-directories": Fault(swap_directories),
    "diverge": Fault(diverge, weight=2),
    "reassign": Fault(reassign),
    "preferred": Fault(preferred),
    "cut-pair": Fault(cut_pair, NETWORK, weight=2),
    "cut-one-way": Fault(cut_one_way, NETWORK),
    "isolate-leader": Fault(isolate_leader, NETWORK, weight=2),
    "full-disk": Fault(full_disk, DISK),
    "hang-loop": Fault(hang_loop, TRACING, weight=2),
    "hang-disk": Fault(hang_disk, HANGING_DISK),
    "zookeeper-leader": Fault(zookeeper_leader, ENSEMBLE),
    "zookeeper-outage": Fault(zookeeper_outage, ENSEMBLE),
    "session-expiry": Fault(session_expiry, NETWORK | ENSEMBLE),
}


@contextlib.contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[bool]:
    """A tmpfs on a folder while the block runs; False where none can be mounted."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)
