"""The controller of a real cluster killed and paused: another takes over, nothing decided is lost, and what a
paused one still had to write is refused.
"""

import socket
import sqlite3
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.chaos.kafka_wire import read_response, request_frame
from tidelog.server import local_cluster
from tidelog.testing.cluster import RunningCluster

SESSION_TIMEOUT_MS = 3_000
TOPIC_ALREADY_EXISTS = 36
WAIT_SECONDS_MAX = 30.0


@pytest.fixture
def cluster() -> Iterator[RunningCluster]:
    with RunningCluster(3, {"broker.session.timeout.ms": str(SESSION_TIMEOUT_MS)}) as running:
        yield running
        assert not running.tracebacks()


class Link:
    """One connection to one broker: requests go out now, answers are read later."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=WAIT_SECONDS_MAX)

    def send(self, module: str, version: int, **fields: Any) -> None:
        self._socket.sendall(request_frame(module, version, 1, fields))

    def receive(self, module: str, version: int) -> Any:
        (size,) = struct.unpack(">i", self._exactly(4))
        return read_response(module, version, self._exactly(size))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self._socket.recv(size - len(data))
            assert chunk, "the broker closed the connection"
            data += chunk
        return data

    def close(self) -> None:
        self._socket.close()


def send_creation(link: Link, name: str, partitions: int = 3) -> None:
    topic = {"name": name, "num_partitions": partitions, "replication_factor": 2, "configs": []}
    link.send("create_topics", 7, topics=[topic], timeout=30_000)


def receive_creation(link: Link) -> int:
    return int(link.receive("create_topics", 7).topics[0].error_code)


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come about in {WAIT_SECONDS_MAX} s"
        time.sleep(0.02)


def same_views(cluster: RunningCluster) -> bool:
    """Every broker tells the same story, with all brokers in it."""
    views = [cluster.view(broker_id) for broker_id in (1, 2, 3)]
    return views[0] == views[1] == views[2] and sorted(views[0].addresses) == [1, 2, 3]


def test_a_killed_controller_is_replaced_and_nothing_decided_is_lost(cluster: RunningCluster) -> None:
    created: set[str] = set()
    for turn in range(3):
        controller = cluster.controller()
        assert controller is not None
        other = next(broker_id for broker_id in (1, 2, 3) if broker_id != controller)
        link = Link(cluster.address(other))
        for number in range(5):
            send_creation(link, f"t{turn}-{number}")
        # Answered or not, the controller dies while it decides.
        assert receive_creation(link) == 0
        created.add(f"t{turn}-0")
        cluster.kill(controller)
        for number in range(1, 5):
            # 36: the first controller decided it and died before its answer came.
            assert receive_creation(link) in (0, TOPIC_ALREADY_EXISTS)
            created.add(f"t{turn}-{number}")
        link.close()
        until(lambda dead=controller: cluster.controller() not in (None, dead), "another controller")  # type: ignore[misc]
        cluster.start(controller)
        until(lambda: same_views(cluster), "one view of the cluster")
        partitions = cluster.view().partitions
        assert {partition.topic for partition in partitions} == created
        assert len(partitions) == 3 * len(created)


def test_a_paused_controller_cannot_write_any_more(cluster: RunningCluster) -> None:
    controller = cluster.controller()
    assert controller is not None
    link = Link(cluster.address(controller))
    send_creation(link, "before")
    assert receive_creation(link) == 0
    cluster.pause(controller)
    # Work that the paused process finds when it wakes up, still believing that it decides.
    for number in range(3):
        send_creation(link, f"queued-{number}")
    others = [broker_id for broker_id in (1, 2, 3) if broker_id != controller]

    def replaced() -> bool:
        view = cluster.view(others[0])
        return view.controller_id in others and controller not in view.addresses

    until(replaced, "another controller")
    second = Link(cluster.address(others[1]))
    send_creation(second, "meanwhile")
    assert receive_creation(second) == 0
    # Asked of the broker that answered: the other one may hear of it a moment later.
    assert {partition.topic for partition in cluster.view(others[1]).partitions} == {"before", "meanwhile"}
    cluster.resume(controller)
    # The old one is a plain broker again and let its clients go; the new controller decides what they ask.
    again = Link(cluster.address(controller))
    for number in range(3):
        send_creation(again, f"queued-{number}")
    assert {receive_creation(again) for _ in range(3)} <= {0, TOPIC_ALREADY_EXISTS}
    until(lambda: same_views(cluster), "one view of the cluster")
    assert "no longer the controller of epoch 1" in cluster.log_text(controller)
    assert cluster.controller() in others
    topics = {partition.topic for partition in cluster.view(controller).partitions}
    assert topics == {"before", "meanwhile", "queued-0", "queued-1", "queued-2"}


def test_a_commit_that_was_under_way_when_the_controller_was_paused_does_not_land(
    cluster: RunningCluster,
) -> None:
    """The old controller wakes up inside its commit, alone in the world: the store refuses it."""
    controller = cluster.controller()
    assert controller is not None
    others = [broker_id for broker_id in (1, 2, 3) if broker_id != controller]
    link = Link(cluster.address(controller))
    send_creation(link, "before")
    assert receive_creation(link) == 0
    store = sqlite3.connect(cluster.data_directory / local_cluster.STORE_NAME, isolation_level=None)
    # While somebody else writes, the controller's commit waits inside the store.
    store.execute("BEGIN IMMEDIATE")
    send_creation(link, "too-late")
    time.sleep(0.5)
    cluster.pause(controller)
    store.execute("ROLLBACK")
    until(lambda: cluster.view(others[0]).controller_id in others, "another controller")
    second = Link(cluster.address(others[1]))
    send_creation(second, "meanwhile")
    assert receive_creation(second) == 0
    # Nobody is left who could decide for the old controller what it was asked.
    for broker_id in others:
        cluster.pause(broker_id)
    decided = metadata_of(store)
    assert "topics/meanwhile" in decided and "topics/before" in decided
    cluster.resume(controller)
    until(lambda: "no longer the controller of epoch 1" in cluster.log_text(controller), "its resignation")
    assert metadata_of(store) == decided, "a write of the paused controller landed"
    for broker_id in others:
        cluster.resume(broker_id)
    again = Link(cluster.address(controller))
    send_creation(again, "too-late")
    assert receive_creation(again) in (0, TOPIC_ALREADY_EXISTS)
    until(lambda: same_views(cluster), "one view of the cluster")
    topics = {partition.topic for partition in cluster.view(controller).partitions}
    assert topics == {"before", "meanwhile", "too-late"}
    store.close()


def metadata_of(store: sqlite3.Connection) -> dict[str, tuple[bytes, int]]:
    """Everything decided so far, with versions; who is there at the moment is not part of it."""
    rows = store.execute("SELECT key, value, version FROM entries WHERE owner IS NULL")
    return {key: (value, version) for key, value, version in rows}
