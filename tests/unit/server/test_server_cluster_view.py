"""Restart policy, layout of a local cluster, and the Metadata answer the supervisor reads by hand."""

import socket
import struct
import threading
from pathlib import Path

import pytest

from tidelog.model.settings_table import BROKER_SETTINGS
from tidelog.server import local_cluster
from tidelog.server.cluster_view import ClusterView, NoView, PartitionView, ask
from tidelog.server.restart_policy import RestartPolicy, Verdict


def test_a_broker_that_served_is_started_at_once() -> None:
    policy = RestartPolicy(healthy_seconds=3.0)
    assert policy.after_end(failures=4, served_seconds=3.0) == Verdict(0, 0.0)


def test_immediate_failures_wait_longer_each_time_and_end() -> None:
    policy = RestartPolicy(delay_first_seconds=0.5, delay_max_seconds=1.5, failures_max=5)
    failures, delays = 0, []
    for _ in range(5):
        failures, delay = policy.after_end(failures, served_seconds=0.1)
        delays.append(delay)
    assert delays == [0.5, 1.0, 1.5, 1.5, None]


@pytest.mark.parametrize(
    ("brokers", "replicas", "in_sync"), [(1, "1", "1"), (2, "2", "1"), (3, "3", "2"), (9, "3", "2")]
)
def test_replication_follows_the_size(brokers: int, replicas: str, in_sync: str) -> None:
    settings = local_cluster.replication_settings(brokers)
    assert settings["default.replication.factor"] == settings["offsets.topic.replication.factor"] == replicas
    assert settings["min.insync.replicas"] == settings["transaction.state.log.min.isr"] == in_sync
    assert set(settings) <= set(BROKER_SETTINGS)


def test_brokers_share_a_store_and_nothing_else() -> None:
    data = Path("/data")
    first, second = (
        local_cluster.broker_settings(
            {"num.partitions": "3"}, data=data, broker_id=n, listeners=f"PLAINTEXT://h:{n}", rack="r"
        )
        for n in (1, 2)
    )
    same = {name for name in first if first[name] == second[name]}
    assert same == {"num.partitions", "tidelog.coordination.path", "broker.rack"}
    with_zookeeper = local_cluster.broker_settings(
        {"zookeeper.connect": "zk:2181/t"}, data=data, broker_id=1, listeners="PLAINTEXT://h:1"
    )
    assert "tidelog.coordination.path" not in with_zookeeper


def answered(frame: bytes) -> str:
    """The address of a server that answers one connection with `frame`."""
    server = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        channel, _ = server.accept()
        with server, channel:
            (size,) = struct.unpack(">i", channel.recv(4, socket.MSG_WAITALL))
            channel.recv(size, socket.MSG_WAITALL)
            channel.sendall(frame)

    threading.Thread(target=answer, daemon=True).start()
    return f"127.0.0.1:{server.getsockname()[1]}"


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def metadata_answer() -> bytes:
    brokers = struct.pack(">ii", 2, 1) + text("a") + struct.pack(">ih", 9092, -1)
    brokers += struct.pack(">i", 7) + text("::1") + struct.pack(">i", 9093) + text("rack")
    whole = struct.pack(">hiiiiiiii", 0, 0, 7, 2, 1, 7, 2, 7, 1)
    broken = struct.pack(">hiiiiiii", 5, 1, -1, 2, 1, 7, 1, 1)
    topic = struct.pack(">h", 0) + text("t") + struct.pack(">?i", False, 2) + whole + broken
    body = struct.pack(">i", 0) + brokers + struct.pack(">ii", 7, 1) + topic
    return struct.pack(">i", len(body)) + body


def test_the_view_has_brokers_controller_and_partitions() -> None:
    view = ask(answered(metadata_answer()))
    assert view.addresses == {1: "a:9092", 7: "[::1]:9093"}
    assert view.controller_id == 7
    assert view.partitions[0] == PartitionView("t", 0, 7, (1, 7), (7, 1))
    assert view.out_of_sync == (PartitionView("t", 1, -1, (1, 7), (1,)),)


@pytest.mark.parametrize(
    "frame", [b"", metadata_answer()[:-30], struct.pack(">i", 20) + b"x" * 20, b"\xff" * 8]
)
def test_a_strange_answer_is_no_view(frame: bytes) -> None:
    with pytest.raises(NoView):
        ask(answered(frame))


def test_nobody_there_is_no_view() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(NoView):
        ask(address)


def test_a_partition_of_a_view() -> None:
    rows = tuple(PartitionView("t", number, 1, (1,), (1,)) for number in range(2))
    view = ClusterView(1, {}, rows)
    assert view.partition("t", 1) is rows[1]
    with pytest.raises(LookupError, match="no partition t-2"):
        view.partition("t", 2)
