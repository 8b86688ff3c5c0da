"""Real processes whose machines all lose power: the first to return must not lead with a shorter log."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.chaos.power_cut import Boots, batches_of, cut_log
from tidelog.server.cluster_view import NoView
from tidelog.testing.cluster import RunningCluster

RECORDS = 2_000
KEPT = {1: 0, 2: 900, 3: 1_700}
"""How much of the log each disk has kept; nobody has everything."""
SETTINGS = {"broker.session.timeout.ms": "3000"}
WAIT_SECONDS_MAX = 40.0


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        try:
            if condition():
                return
        except NoView:
            pass
        assert time.monotonic() < deadline, f"{what} did not come about in {WAIT_SECONDS_MAX} s"
        time.sleep(0.05)


def produce(cluster: RunningCluster, values: range) -> int:
    """How many of the records were acknowledged by all."""
    errors: list[object] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "batch.num.messages": 50})
    for number in values:
        producer.produce("orders", f"{number}", partition=0, on_delivery=lambda e, _: errors.append(e))
        producer.poll(0)
    assert producer.flush(30) == 0
    return errors.count(None)


def consume(cluster: RunningCluster) -> list[int]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "all", "log_level": 0})
    place = TopicPartition("orders", 0, 0)
    end = consumer.get_watermark_offsets(place, timeout=20)[1]
    consumer.assign([place])
    found: list[int] = []
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while len(found) < end and time.monotonic() < deadline:
        found += [int(message.value()) for message in consumer.consume(500, 0.5) if message.error() is None]  # type: ignore[arg-type]
    consumer.close()
    return found


def kept_end(cluster: RunningCluster, broker_id: int) -> int:
    batches = batches_of(cluster.data_directory_of(broker_id) / "orders-0")
    return batches[-1].next_offset if batches else 0


def test_the_longest_log_leads_whoever_returns_first(tmp_path: Path) -> None:
    boots = Boots(tmp_path / "boot-id")
    with RunningCluster(3, SETTINGS, environment=boots.environment) as cluster:
        cluster.create_topic("orders", 1, min_insync_replicas=2)
        cluster.wait_in_sync()
        assert produce(cluster, range(RECORDS)) == RECORDS
        cluster.kill()
        for broker_id, offset in KEPT.items():
            cut_log(cluster.data_directory_of(broker_id) / "orders-0", offset, torn_bytes=30)
        kept = {broker_id: kept_end(cluster, broker_id) for broker_id in cluster.broker_ids}
        boots.next()
        cluster.start(1, known=False)
        until(lambda: cluster.controller() == 1, "the controller")
        time.sleep(1.0)
        leader = cluster.leader("orders", 0)
        assert leader == -1, f"broker {leader} leads with {kept[1]} of {RECORDS} records"
        described = describe(cluster)
        assert described["partitions"][0]["last_known_elr"] == [1]  # type: ignore[index]
        assert set(described["partitions"][0]["elr"]) == {2, 3}  # type: ignore[index]
        assert described["waiting"], "nobody says whom the partition waits for"
        cluster.start(2, known=False)
        cluster.start(3, known=False)
        cluster.wait_in_sync()
        assert consume(cluster) == list(range(max(kept.values())))
        assert 1_600 < max(kept.values()) <= 1_700, kept
        assert produce(cluster, range(RECORDS, RECORDS + 10)) == 10
        assert not cluster.tracebacks()


def describe(cluster: RunningCluster) -> dict[str, object]:
    """What `tidelog topic describe` says while only broker 1 is back."""
    words = ["topic", "describe", "orders", "--json", "--bootstrap", cluster.address(1)]
    told = subprocess.run(
        [sys.executable, "-m", "tidelog.cli", *words], capture_output=True, check=False, timeout=60
    )
    assert told.returncode == 0, told.stderr.decode()
    found = json.loads(told.stdout)
    described = found[0] if isinstance(found, list) else found
    assert isinstance(described, dict)
    return described
