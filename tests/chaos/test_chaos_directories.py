"""Log directories of a real cluster that are lost, swapped or reordered while all brokers are down."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tidelog.server.broker_process import BrokerNotStarted
from tidelog.testing.cluster import RunningCluster

RECORDS = 2_000
PARTITIONS = 4
SETTINGS = {"broker.session.timeout.ms": "3000", "replica.high.watermark.checkpoint.interval.ms": "200"}


@contextmanager
def cluster_with_records(folder: Path) -> Iterator[RunningCluster]:
    """Three brokers with two log directories each; every record was acknowledged by all; all are killed."""
    log_dirs = {number: f"{folder}/{number}/x,{folder}/{number}/y" for number in (1, 2, 3)}
    settings_of = {number: {"log.dirs": paths} for number, paths in log_dirs.items()}
    with RunningCluster(3, SETTINGS, settings_of=settings_of) as cluster:
        cluster.create_topic("t", partitions=PARTITIONS, min_insync_replicas=2)
        refused: list[object] = []
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
        for number in range(RECORDS):
            producer.produce(
                "t",
                b"%d" % number,
                partition=number % PARTITIONS,
                on_delivery=lambda error, _: refused.append(error) if error else None,
            )
            producer.poll(0)
        assert producer.flush(30) == 0 and not refused
        time.sleep(0.5)
        cluster.kill()
        yield cluster


def records(cluster: RunningCluster) -> set[bytes]:
    """Everything that a consumer finds in the topic."""
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "g", "enable.partition.eof": True}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition("t", index, 0) for index in range(PARTITIONS)])
    found: set[bytes] = set()
    ended = 0
    deadline = time.monotonic() + 30
    while ended < PARTITIONS and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            ended += 1
        else:
            value = message.value()
            assert value is not None
            found.add(value)
    consumer.close()
    return found


def wait_led(cluster: RunningCluster) -> None:
    deadline = time.monotonic() + 30
    while any(view.leader < 0 for view in cluster.view().partitions if view.topic == "t"):
        assert time.monotonic() < deadline, "a partition has no leader"
        time.sleep(0.1)


def test_a_broker_that_lost_a_directory_does_not_lead_with_an_empty_log(tmp_path: Path) -> None:
    with cluster_with_records(tmp_path) as cluster:
        shutil.rmtree(tmp_path / "1" / "y")
        (tmp_path / "1" / "y").mkdir()
        cluster.start(1)
        time.sleep(1)
        cluster.start()
        wait_led(cluster)
        found = records(cluster)
        assert len(found) == RECORDS, f"{RECORDS - len(found)} acknowledged records are lost"
        assert "tidelog.lost.directories=" in cluster.log_text(1)
        assert not cluster.tracebacks()


def test_another_order_of_the_directories_changes_nothing(tmp_path: Path) -> None:
    with cluster_with_records(tmp_path) as cluster:
        for number, process in cluster._processes.items():
            process.settings["log.dirs"] = f"{tmp_path}/{number}/y,{tmp_path}/{number}/x"
        cluster.start()
        cluster.wait_in_sync(["t"])
        assert len(records(cluster)) == RECORDS


def test_swapped_directories_are_refused_and_put_back_they_serve(tmp_path: Path) -> None:
    with cluster_with_records(tmp_path) as cluster:
        one, two, aside = tmp_path / "1" / "y", tmp_path / "2" / "y", tmp_path / "aside"

        def swap() -> None:
            one.rename(aside)
            two.rename(one)
            aside.rename(two)

        swap()
        with pytest.raises(BrokerNotStarted, match="belongs to broker 2, this is broker 1"):
            cluster.start(1)
        swap()
        cluster.start()
        cluster.wait_in_sync(["t"])
        assert len(records(cluster)) == RECORDS


def test_a_directory_that_goes_away_at_run_time_loses_its_leaders_at_once(tmp_path: Path) -> None:
    """As if a disk were pulled: the broker goes on with the other directory, other brokers lead the rest."""
    log_dirs = {number: f"{tmp_path}/{number}/x,{tmp_path}/{number}/y" for number in (1, 2, 3)}
    settings_of = {number: {"log.dirs": paths} for number, paths in log_dirs.items()}
    with RunningCluster(3, SETTINGS, settings_of=settings_of) as cluster:
        cluster.create_topic("t", partitions=6, min_insync_replicas=2)
        gone = tmp_path / "1" / "y"
        in_there = {int(folder.name.removeprefix("t-")) for folder in gone.glob("t-*")}
        led = {view.partition for view in cluster.view().partitions if view.topic == "t" and view.leader == 1}
        assert led & in_there, "broker 1 leads nothing from there"
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
        gone.rename(tmp_path / "pulled")
        began = time.monotonic()
        while any(view.leader == 1 for view in cluster.view().partitions if view.partition in in_there):
            assert time.monotonic() - began < 20, "a leader whose directory is gone keeps leading"
            for partition in in_there:
                producer.produce("t", b"x", partition=partition)
            producer.poll(0.05)
        print(f"others lead after {time.monotonic() - began:.2f} s")
        view = cluster.view()
        assert all(each.leader >= 0 for each in view.partitions)
        assert {each.partition for each in view.partitions if each.leader == 1} == led - in_there
        refused: list[object] = []
        for number in range(600):
            producer.produce(
                "t",
                b"%d" % number,
                partition=number % 6,
                on_delivery=lambda error, _: refused.append(error) if error else None,
            )
        assert producer.flush(30) == 0 and not refused
        assert "has failed" in cluster.log_text(1) and not cluster.tracebacks()
