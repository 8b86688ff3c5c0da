"""A broker of a real cluster that makes no progress: its event loop hangs, or its disk does.

Its threads run all the while, those too that keep its session alive. Another broker must lead within the
session timeout, as a client sees it; what hangs for less costs nothing. When the broker comes back it must
not acknowledge as the leader it was: the requests that wait in its sockets are the first thing it finds.
"""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from cluster_workload import Probe
from hanging_disk import HangingDisk, NoDisk
from kafka_wire import ConnectionClosed, WireClient, batch_of, produce_frame, read_produced
from stopped_thread import StoppedThread
from transaction_worker import INPUT

from tidelog.server.zookeeper_process import ZookeeperError, ZookeeperServers
from tidelog.testing.cluster import RunningCluster

SESSION_MS = 3_000
#: what an ensemble grants at least, with its ticks of two seconds
ZOOKEEPER_SESSION_MS = 4_000
#: for machines that do other things beside: asking who leads, connecting, the write itself
SLACK_SECONDS = 3.0
HEARD_SECONDS_MAX = 20.0
STARTED_SECONDS_MAX = 60.0
#: the probe gives up a write after so long and looks for the leader again
WRITE_SECONDS_MAX = 0.3
#: the broker that hangs, and the one whose disk does
LEADER = 1


pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="stopping a thread and making a disk need root")


class ImpatientProbe(Probe):
    """Gives a write up early, and looks for the leader again."""

    write_seconds_max = WRITE_SECONDS_MAX


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

    def check_outage(self, since: float) -> float:
        seconds = self.outage_seconds(since)
        print(f"no acknowledged write for {seconds:.2f} s (session timeout {self.session_seconds:.1f} s)")
        assert seconds < self.session_seconds + SLACK_SECONDS
        return seconds

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
    go_on = stop()
    hung.standing, since = leader, time.monotonic()
    try:
        for client in clients:
            client.send(produce_frame(INPUT, 0, batch, acks=1))
        hung.check_outage(since)
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
    controller = hung.cluster.controller()
    assert controller is not None
    other = next(number for number in hung.cluster.broker_ids if number != controller)
    with StoppedThread(hung.process_id(controller)):
        deadline = time.monotonic() + hung.session_seconds + SLACK_SECONDS
        while hung.cluster.view(other).controller_id in (controller, -1, None):
            assert time.monotonic() < deadline, "nobody else decides"
            time.sleep(0.02)
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
    (hung.disk.hang_writes if what == "writes" else hung.disk.hang_device)()
    hung.standing, since = LEADER, time.monotonic()
    try:
        hung.check_outage(since)
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
