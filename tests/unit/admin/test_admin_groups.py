"""Groups asked for with our own client: a cluster of two, members of both protocols, a broker that dies."""

import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, Producer

from tidelog.admin.cluster_admin import ClusterAdmin
from tidelog.admin.groups import Groups, read_assignment
from tidelog.admin.offset_reset import LogEnds, Target, TargetKind, plan_reset
from tidelog.admin.snapshot import GroupView
from tidelog.client.client_settings import ClientSettings
from tidelog.client.faults import Refusal
from tidelog.testing.cluster import RunningCluster

pytestmark = pytest.mark.timeout(180)
WAIT_SECONDS_MAX = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    settings = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "4"}
    with RunningCluster(2, settings=settings) as running:
        running.create_topic("t", partitions=4)
        yield running


@pytest.fixture
def groups(cluster: RunningCluster) -> Iterator[Groups]:
    options = {"bootstrap.servers": cluster.bootstrap, "default.api.timeout.ms": "5000"}
    with ClusterAdmin(lambda: ClientSettings.from_options(options)) as admin:
        yield Groups(admin)


@contextmanager
def member(cluster: RunningCluster, group: str, protocol: str) -> Iterator[None]:
    stop = threading.Event()

    def run() -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": group,
                "client.id": f"{group}-client",
                "auto.offset.reset": "earliest",
                "group.protocol": protocol,
            }
        )
        consumer.subscribe(["t"])
        while not stop.is_set():
            consumer.poll(0.1)
        consumer.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)


def eventually(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not check():
        assert time.monotonic() < deadline, "it did not come true in time"
        threading.Event().wait(0.1)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_and_their_partitions(cluster: RunningCluster, groups: Groups, protocol: str) -> None:
    name = f"{protocol}-group"
    with member(cluster, name, protocol):
        eventually(lambda: name in groups.list_groups([1, 2])[0])
        listed, problems = groups.list_groups([1, 2])
        assert problems == []
        assert listed[name].type == protocol

        def assigned() -> bool:
            view = groups.describe(name, protocol)
            assert view is not None
            return view.state == "stable" and sum(len(one.assignment) for one in view.members) == 4

        eventually(assigned)
        view = groups.describe_groups({name: protocol, "nobody": "classic"})[name]
        assert [one.client_id for one in view.members] == [f"{name}-client"]
        assert view.members[0].assignment == tuple(("t", number) for number in range(4))
        assert view.coordinator in (1, 2)
        # The kind of a group that no look has seen yet is found out.
        found = groups.describe(name)
        assert found is not None and found.type == protocol
    eventually(lambda: (found := groups.describe(name)) is not None and found.state == "empty")


def test_offsets_are_moved_and_the_group_deleted(groups: Groups) -> None:
    ends = {("t", number): LogEnds(0, 0, None) for number in range(4)}
    plan = plan_reset("moved", Target(TargetKind.LATEST), {}, ends)
    assert groups.reset(plan) == 4
    assert groups.committed(["moved", "unknown"])["moved"] == {("t", number): 0 for number in range(4)}
    groups.delete("moved")
    assert groups.describe("moved") is None
    with pytest.raises(Refusal, match="GROUP_ID_NOT_FOUND"):
        groups.delete("moved")


def test_what_a_transaction_has_not_committed_is_lag_too(cluster: RunningCluster, groups: Groups) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "open"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("t", b"undecided", partition=3)
    assert producer.flush(30) == 0
    groups.reset(plan_reset("behind", Target(TargetKind.LATEST), {}, {("t", 3): LogEnds(0, 0, None)}))
    (row,) = groups.lag(GroupView("behind", "empty", "classic"))
    assert (row.committed, row.latest, row.lag) == (0, 1, 1)
    producer.abort_transaction(30)


def test_a_broker_that_is_away_hides_only_its_own(cluster: RunningCluster, groups: Groups) -> None:
    names = [f"g{number}" for number in range(12)]
    ends = {("t", 0): LogEnds(0, 0, None)}
    for name in names:
        groups.reset(plan_reset(name, Target(TargetKind.LATEST), {}, ends))
    assert set(groups.committed(names)) == set(names)
    cluster.kill(2)
    try:
        _, problems = groups.list_groups([1, 2])
        assert len(problems) == 1 and "broker 2" in problems[0]
        # All partitions of offsets have a leader again soon: replicas of broker 1 take over.
        eventually(lambda: set(groups.committed(names)) == set(names))
        eventually(lambda: set(names) <= set(groups.list_groups([1])[0]))
    finally:
        cluster.start(2)


def test_assignments_that_consumers_did_not_write_are_no_partitions() -> None:
    written = struct.pack(">hih1sii", 0, 1, 1, b"t", 1, 7)
    assert read_assignment(written) == (("t", 7),)
    assert read_assignment(b"") == ()
    for size in range(len(written)):
        assert read_assignment(written[:size]) in ((), (("t", 7),))
    assert read_assignment(struct.pack(">hi", 0, 2**31 - 1) + b"\xff" * 40) == ()
