"""A broker of a real cluster that makes no progress: its event loop hangs, or its disk does.

Its threads run all the while, those too that keep its session alive. Another broker must lead within the
session timeout; what hangs for less costs nothing. When the broker comes back it must not acknowledge as the
leader it was: the requests that wait in its sockets are the first thing it finds.

When another leads is what the brokers themselves say: the time of the event in their logs. A client notices
it when it has given up the write that was under way, and asked. The machine may be busy: `Lateness` measures
for how long something that was due did not run meanwhile, and that much later is not too late.
"""

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path

import pytest

from tests.chaos.cluster_workload import Probe
from tests.chaos.hanging_disk import HangingDisk, NoDisk
from tests.chaos.kafka_wire import ConnectionClosed, WireClient, batch_of, produce_frame, read_produced
from tests.chaos.stopped_thread import StoppedThread
from tests.chaos.transaction_worker import INPUT
from tidelog.server.zookeeper_process import ZookeeperError, ZookeeperServers
from tidelog.testing.cluster import RunningCluster

SESSION_MS = 3_000
#: a process that is stopped right behind a heartbeat has its whole session timeout; who leads then is decided
#: and told after that
DECIDING_SECONDS_MAX = 0.1
#: what an ensemble grants at least, with its ticks of two seconds
ZOOKEEPER_SESSION_MS = 4_000
HEARD_SECONDS_MAX = 20.0
STARTED_SECONDS_MAX = 60.0
#: the probe gives up a write after so long and looks for the leader again
WRITE_SECONDS_MAX = 0.3
#: from the election to the client's next acknowledged write: one write is given up, one that goes to an old
#: leader fails, one comes through
CLIENT_SECONDS_MAX = 3 * WRITE_SECONDS_MAX
LATENESS_TICK_SECONDS = 0.01
#: the broker that hangs, and the one whose disk does
LEADER = 1


pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="stopping a thread and making a disk need root")


class ImpatientProbe(Probe):
    """Gives a write up early, and looks for the leader again."""

    write_seconds_max = WRITE_SECONDS_MAX


class Lateness:
    """For how long, in sum, a thread that wanted to run every now and then was kept from it."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        last = time.monotonic()
        while not self._over.wait(LATENESS_TICK_SECONDS):
            now = time.monotonic()
            self.seconds += max(0.0, now - last - 2 * LATENESS_TICK_SECONDS)
            last = now

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


class Stall:
    """The moment at which something begins to hang, and how busy the machine is since then."""

    def __init__(self) -> None:
        self.lateness = Lateness()
        self.wall_seconds, self.monotonic_seconds = time.time(), time.monotonic()

    def begun(self) -> None:
        """It hangs by now: a write that begins from here on goes nowhere."""
        self.monotonic_seconds = time.monotonic()

    def told_after(self, texts: list[str], event: str) -> float | None:
        """After how many seconds the first broker wrote this event into its log; None if nobody did yet."""
        found = re.findall(rf"^(\S+)Z \w+ +{event}", "\n".join(texts), re.MULTILINE)
        moments = [datetime.fromisoformat(f"{moment}+00:00").timestamp() for moment in found]
        # The log has milliseconds.
        return min((m - self.wall_seconds for m in moments if m >= self.wall_seconds - 0.001), default=None)


class Hung:
    """A cluster under a steady load of single writes, and how long none of them was acknowledged."""

    def __init__(
        self, cluster: RunningCluster, session_ms: int, disk: HangingDisk | None, folder: Path
    ) -> None:
        self.cluster, self.disk = cluster, disk
        self.session_seconds = session_ms / 1000
        #: whom the probe need not ask who leads
        self.standing: int | None = None
        self.probe = ImpatientProbe(folder, "probe", self._addresses, partition=0)

    def _addresses(self) -> list[str]:
        return [self.cluster.address(number) for number in self.cluster.broker_ids if number != self.standing]

    def leader(self) -> int:
        return self.cluster.leader(INPUT, 0)

    def process_id(self, broker_id: int) -> int:
        found = self.cluster.process_id(broker_id)
        assert found is not None
        return found

    def controller(self, *, instead_of: int | None = None) -> int:
        """Who decides, as soon as all brokers that move say the same: each learns it for itself.

        `instead_of` is the one that hangs, and decides no more.
        """
        deadline = time.monotonic() + HEARD_SECONDS_MAX
        asked = [number for number in self.cluster.broker_ids if number != instead_of]
        while True:
            said = {self.cluster.view(number).controller_id for number in asked}
            if len(said) == 1 and (controller := next(iter(said))) in asked:
                return controller
            assert time.monotonic() < deadline, f"the brokers do not agree on a controller: {said}"
            time.sleep(0.02)

    def elect(self, broker_id: int) -> None:
        """Give leadership back to the preferred replica, as soon as it is in sync."""
        wanted = [{"topic": INPUT, "partitions": [0]}]
        deadline = time.monotonic() + HEARD_SECONDS_MAX
        while self.leader() != broker_id:
            assert time.monotonic() < deadline, f"broker {broker_id} does not lead"
            with WireClient(self.cluster.address(broker_id)) as client:
                client.ask("elect_leaders", 2, election_type=0, topic_partitions=wanted, timeout=10_000)
            time.sleep(0.1)

    def outage_seconds(self, since: float) -> float:
        seconds = self.probe.seconds_until_heard(since, HEARD_SECONDS_MAX)
        assert seconds is not None, f"no write was acknowledged within {HEARD_SECONDS_MAX:.0f} s"
        return seconds

    def check_told(self, stall: Stall, event: str) -> float:
        """An event must be told within the session timeout."""
        deadline = time.monotonic() + HEARD_SECONDS_MAX
        while (seconds := stall.told_after(self._logs(), event)) is None:
            assert time.monotonic() < deadline, f"nobody told: {event}"
            time.sleep(0.02)
        late = stall.lateness.seconds
        print(
            f"{event}: after {seconds:.2f} s, session timeout {self.session_seconds:.1f} s, late {late:.2f} s"
        )
        assert seconds < self.session_seconds + DECIDING_SECONDS_MAX + late
        return seconds

    def _logs(self) -> list[str]:
        return [self.cluster.log_text(number) for number in self.cluster.broker_ids]

    def check_outage(self, stall: Stall) -> None:
        outage = self.outage_seconds(stall.monotonic_seconds)
        elected = self.check_told(stall, f"leader elected: topic={INPUT} partition=0 ")
        late = stall.lateness.seconds
        stall.lateness.stop()
        print(f"no acknowledged write for {outage:.2f} s")
        assert outage < elected + CLIENT_SECONDS_MAX + late

    def whole_again(self) -> None:
        self.cluster.wait_in_sync()
        assert not self.cluster.tracebacks()


def _start(
    stack: ExitStack, folder: Path, session_ms: int, zookeeper: str | None, disk: HangingDisk | None
) -> Hung:
    settings = {
        "broker.session.timeout.ms": str(session_ms),
        "zookeeper.session.timeout.ms": str(session_ms),
        "min.insync.replicas": "2",
        "auto.leader.rebalance.enable": "false",
        "tidelog.metrics.port": "0",
    }
    settings_of = {} if disk is None else {LEADER: {"log.dirs": str(disk.path)}}
    cluster = stack.enter_context(RunningCluster(3, settings, settings_of=settings_of, zookeeper=zookeeper))
    with WireClient(cluster.address(LEADER)) as client:
        assignment = {"partition_index": 0, "broker_ids": [LEADER, 2, 3]}
        topic = {"name": INPUT, "num_partitions": -1, "replication_factor": -1, "assignments": [assignment]}
        created = client.ask("create_topics", 7, topics=[{**topic, "configs": []}], timeout=30_000)
        assert created.topics[0].error_code == 0, created
    cluster.wait_in_sync()
    for number in cluster.broker_ids:
        # A broker that still imports is not watched yet.
        deadline = time.monotonic() + STARTED_SECONDS_MAX
        while "costs this broker its session" not in cluster.log_text(number):
            assert time.monotonic() < deadline, cluster.log_text(number)[-2000:]
            time.sleep(0.02)
    hung = Hung(cluster, session_ms, disk, folder)
    stack.callback(hung.probe.stop, 10.0)
    hung.probe.start()
    hung.outage_seconds(time.monotonic())
    return hung


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hung]:
    tmp_path = tmp_path_factory.mktemp("hung")
    with ExitStack() as stack:
        yield _start(stack, tmp_path, SESSION_MS, None, None)


@pytest.fixture(scope="module")
def hung_with_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hung]:
    tmp_path = tmp_path_factory.mktemp("hung")
    with ExitStack() as stack:
        try:
            disk = stack.enter_context(HangingDisk(tmp_path))
        except NoDisk as fault:
            pytest.skip(f"no disk that can hang: {fault}")
        started = _start(stack, tmp_path, SESSION_MS, None, disk)
        # Before the cluster is closed, or its processes could not end.
        stack.callback(disk.release)
        yield started


@pytest.fixture(scope="module")
def hung_with_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hung]:
    tmp_path = tmp_path_factory.mktemp("hung")
    with ExitStack() as stack:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            zookeeper = ZookeeperServers(tmp_path / "zookeeper", port=free.getsockname()[1])
        try:
            stack.enter_context(zookeeper)
        except ZookeeperError as fault:
            if os.environ.get("CI") == "true":
                raise
            pytest.skip(f"{fault}; {fault.hint}")
        yield _start(stack, tmp_path, ZOOKEEPER_SESSION_MS, f"{zookeeper.connect_string}/hung", None)


def _asked_too_late(hung: Hung, leader: int, stop: Callable[[], Callable[[], None]]) -> None:
    """Stop a leader with requests of clients in its sockets, and see what it answers when it is back."""
    batch = batch_of(b"only here")
    clients = [WireClient(hung.cluster.address(leader)) for _ in range(3)]
    idle = WireClient(hung.cluster.address(leader))
    idle.ask("metadata", 12, topics=[])
    stall = Stall()
    go_on = stop()
    stall.begun()
    hung.standing = leader
    try:
        for client in clients:
            client.send(produce_frame(INPUT, 0, batch, acks=1))
        hung.check_outage(stall)
        assert hung.leader() != leader
    finally:
        go_on()
        hung.standing = None
    for client in clients:
        with suppress(ConnectionClosed, OSError):
            assert read_produced(client.receive()).error != 0, "acknowledged by a broker that leads no more"
        client.close()
    # As after a crash: its clients look for the others.
    assert idle.closed_by_peer(HEARD_SECONDS_MAX)
    idle.close()
    hung.whole_again()


def test_a_hung_loop_costs_leadership_within_the_session_timeout(hung: Hung) -> None:
    leader = hung.leader()

    # Less than the stall limit: nothing happens.
    with StoppedThread(hung.process_id(leader)):
        time.sleep(hung.session_seconds / 3)
    time.sleep(hung.session_seconds / 2)
    assert hung.leader() == leader
    assert "gives up" not in hung.cluster.log_text(leader)

    def stop() -> Callable[[], None]:
        return StoppedThread(hung.process_id(leader)).go_on

    _asked_too_late(hung, leader, stop)
    assert "has not moved for" in hung.cluster.log_text(leader)


def test_a_hung_controller_is_replaced_within_the_session_timeout(hung: Hung) -> None:
    controller = hung.controller()
    stall = Stall()
    with StoppedThread(hung.process_id(controller)):
        hung.check_told(stall, r"broker \d is the controller now")
        hung.controller(instead_of=controller)
    stall.lateness.stop()
    hung.whole_again()


def test_a_stopped_process_does_not_answer_as_the_leader_it_was(hung: Hung) -> None:
    leader = hung.leader()

    def stop() -> Callable[[], None]:
        hung.cluster.pause(leader)
        return lambda: hung.cluster.resume(leader)

    _asked_too_late(hung, leader, stop)


@pytest.mark.parametrize("what", ["writes", "device"])
def test_a_hung_disk_costs_leadership_within_the_session_timeout(hung_with_disk: Hung, what: str) -> None:
    hung = hung_with_disk
    assert hung.disk is not None
    if what == "device":
        # Acknowledged when it is synced, in a thread: the loop turns all the while.
        with WireClient(hung.cluster.address(hung.leader())) as client:
            config = {"name": "flush.messages", "config_operation": 0, "value": "1"}
            resource = {"resource_type": 2, "resource_name": INPUT, "configs": [config]}
            client.ask("incremental_alter_configs", 1, resources=[resource], validate_only=False)
    hung.elect(LEADER)
    stall = Stall()
    (hung.disk.hang_writes if what == "writes" else hung.disk.hang_device)()
    stall.begun()
    hung.standing = LEADER
    try:
        hung.check_outage(stall)
        assert hung.leader() != LEADER
    finally:
        hung.disk.release()
        hung.standing = None
    hung.whole_again()


def test_a_hung_loop_with_zookeeper(hung_with_zookeeper: Hung) -> None:
    hung = hung_with_zookeeper
    leader = hung.leader()

    def stop() -> Callable[[], None]:
        return StoppedThread(hung.process_id(leader)).go_on

    _asked_too_late(hung, leader, stop)
