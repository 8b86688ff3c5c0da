"""The test cluster: three processes, killed, paused, wiped and brought back; nothing left behind."""

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.support.crowded_cluster import NAMES, PARTITIONS
from tests.support.crowded_cluster import SECONDS_MAX as CROWD_SECONDS_MAX
from tidelog.testing import RunningCluster
from tidelog.testing.cluster import BrokerNotStarted
from tidelog.testing.ports import ReservedPort

pytest_plugins = ["pytester"]
DEADLINE_SECONDS = 30.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    with RunningCluster(3, racks=("a", "b", "c")) as running:
        yield running


def test_brokers_know_each_other_and_replicate(cluster: RunningCluster) -> None:
    assert cluster.broker_ids == (1, 2, 3) and cluster.bootstrap.count(",") == 2
    assert {number: set(cluster.view(number).addresses) for number in (1, 2, 3)} == {
        number: {1, 2, 3} for number in (1, 2, 3)
    }
    cluster.create_topic("replicated", partitions=3)
    assert all(set(item.isr) == {1, 2, 3} for item in cluster.view().partitions)
    assert all((cluster.data_directory_of(number) / "replicated-0").is_dir() for number in (1, 2, 3))


def test_a_killed_controller_is_replaced_and_comes_back(cluster: RunningCluster) -> None:
    cluster.create_topic("survivor", partitions=3)
    old = cluster.controller()
    assert old is not None
    cluster.kill(old)
    assert cluster.state(old) == "down" and cluster.exit_code(old) == -signal.SIGKILL
    assert cluster.wait_controller(other_than=old) != old
    address = cluster.address(old)
    cluster.start(old)
    assert cluster.address(old) == address
    cluster.wait_in_sync(["survivor"])


def test_pause_and_resume(cluster: RunningCluster) -> None:
    cluster.pause(2)
    assert cluster.state(2) == "paused" and cluster.responsive_ids == (1, 3)
    cluster.resume(2)
    cluster.wait_in_sync()
    assert cluster.responsive_ids == (1, 2, 3)  # type: ignore[comparison-overlap]


def test_a_wiped_broker_refills_after_a_clean_stop(cluster: RunningCluster) -> None:
    cluster.create_topic("refilled")
    with pytest.raises(RuntimeError, match="runs"):
        cluster.wipe(3)
    cluster.stop(3)
    assert cluster.exit_code(3) == 0
    cluster.wipe(3)
    cluster.start(3)
    cluster.wait_in_sync(["refilled"])
    assert (cluster.data_directory_of(3) / "refilled-0").is_dir()


def test_one_more_broker(cluster: RunningCluster) -> None:
    number = cluster.add_broker(rack="d")
    assert number == 4 and set(cluster.view(1).addresses) == {1, 2, 3, 4}
    assert cluster.tracebacks() == []


def test_misuse_is_told() -> None:
    with pytest.raises(ValueError, match="racks"):
        RunningCluster(3, racks=("a",))
    with pytest.raises(BrokerNotStarted, match=r"no\.such\.setting"):
        RunningCluster(1, {"no.such.setting": "1"}).start()


@pytest.mark.parametrize("paused", [False, True])
def test_no_broker_outlives_the_test_process(paused: bool) -> None:
    program = (
        "import sys\nfrom tidelog.testing import RunningCluster\n"
        "cluster = RunningCluster(2).start()\n"
        f"{'cluster.pause()' if paused else ''}\n"
        "print(cluster.data_directory, *(cluster.process_id(n) for n in cluster.broker_ids), flush=True)\n"
        "sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    folder, *process_ids = parent.stdout.readline().split()
    children = [os.pidfd_open(int(process_id)) for process_id in process_ids]
    try:
        os.kill(parent.pid, signal.SIGKILL)
        parent.communicate(timeout=DEADLINE_SECONDS)
        for child in children:
            ended, _, _ = select.select([child], [], [], DEADLINE_SECONDS)
            assert ended, "a broker outlived the process that started it"
    finally:
        for child in children:
            os.close(child)
        shutil.rmtree(folder, ignore_errors=True)


def test_reserved_ports_differ_and_are_given_back() -> None:
    reserved = [ReservedPort() for _ in range(20)]
    ports = [item.port for item in reserved]
    assert len(set(ports)) == 20 and max(ports) < 32_000
    for item in reserved:
        item.close()
    with socket.create_server(("127.0.0.1", ports[0])):
        pass


def test_the_fixture_and_its_marker(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.tidelog_cluster(brokers=2, racks=("a", "b"), num_partitions=4)
        def test_two(tidelog_cluster):
            assert tidelog_cluster.broker_ids == (1, 2)
            assert tidelog_cluster.settings["num.partitions"] == "4"
            tidelog_cluster.create_topic("both")
            assert set(tidelog_cluster.partition("both", 0).isr) == {1, 2}
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider", "--strict-markers").assert_outcomes(passed=1)


@pytest.mark.timeout(300)
@pytest.mark.xdist_group("crowded")
def test_three_thousand_partitions(crowded_cluster: RunningCluster) -> None:
    cluster = crowded_cluster
    for number in cluster.broker_ids:
        view = cluster.view(number)
        assert len([item for item in view.partitions if item.topic in NAMES]) == PARTITIONS
        assert not view.out_of_sync
    cluster.kill(3)
    deadline = time.monotonic() + CROWD_SECONDS_MAX
    while any(item.leader not in (1, 2) for item in cluster.view().partitions):
        assert time.monotonic() < deadline, "broker 3 still leads"
        time.sleep(0.1)
    cluster.start(3)
    cluster.wait_in_sync(timeout_seconds=CROWD_SECONDS_MAX)
    assert cluster.tracebacks() == []
