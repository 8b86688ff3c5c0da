"""`tidelog doctor` against a real cluster with a killed broker, a mistaken topic, a paused consumer and a
transaction that hangs: it names each of them, and what to do."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tidelog.client.client_settings import ClientSettings
from tidelog.client.link import Link
from tidelog.client.produce_requests import BatchToSend, decode_response, encode_request
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.testing.cluster import RunningCluster

# One worker for all: they share a cluster, which the last of them harms.
pytestmark = pytest.mark.xdist_group("doctor")

COMMAND_SECONDS_MAX = 60
DEADLINE_SECONDS = 20
PRODUCE, PRODUCE_VERSION, INIT_PRODUCER_ID = 0, 8, 22
TRANSACTIONAL_ID = "forgotten"


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    settings = {
        # as before KIP-890: a batch may open a transaction that its coordinator never hears of
        "transaction.partition.verification.enable": "false",
        "transaction.state.log.num.partitions": "2",
        "offsets.topic.num.partitions": "2",
    }
    with RunningCluster(3, settings) as running:
        yield running


def doctor(bootstrap: str, *words: str, code: int) -> dict[str, list[dict[str, Any]]]:
    """The findings by check; the exit code must be this one."""
    done = subprocess.run(
        [sys.executable, "-m", "tidelog.cli", "doctor", "--json", "--bootstrap", bootstrap, *words],
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS_MAX,
        env=os.environ,
    )
    assert done.returncode == code, (done.stdout, done.stderr)
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in json.loads(done.stdout)["findings"]:
        found.setdefault(finding["check"], []).append(finding)
    return found


def test_a_whole_cluster_is_well(cluster: RunningCluster) -> None:
    cluster.create_topic("orders", partitions=3)
    found = doctor(cluster.bootstrap, code=0)
    assert {item["severity"] for items in found.values() for item in items} == {"ok"}, found
    assert "all 3 brokers answer" in found["reachability"][0]["message"]


def test_min_insync_that_equals_the_replicas(cluster: RunningCluster) -> None:
    cluster.create_topic("brittle", min_insync_replicas=3)
    (said,) = doctor(cluster.bootstrap, code=0)["replication"]
    assert said["severity"] == "warning" and said["subjects"] == ["brittle"]
    assert said["next_step"].endswith("tidelog config set topic brittle min.insync.replicas=2")


def test_a_paused_consumer(cluster: RunningCluster) -> None:
    cluster.create_topic("watched")
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(20):
        producer.produce("watched", str(number).encode())
    assert producer.flush(DEADLINE_SECONDS) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "sleepy",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe(["watched"])
        assert len(consumer.consume(5, DEADLINE_SECONDS)) == 5
        consumer.commit(offsets=[TopicPartition("watched", 0, 5)], asynchronous=False)
        consumer.pause(consumer.assignment())
        (said,) = doctor(cluster.bootstrap, "--watch", "1", code=0)["groups"]
        assert said["severity"] == "warning" and said["subjects"] == ["sleepy"]
        assert "1 member but committed nothing" in said["message"] and "15 records wait" in said["message"]
    finally:
        consumer.close()
    (said,) = doctor(cluster.bootstrap, code=0)["groups"]
    assert said["severity"] == "hint" and "no members, and 15 records wait" in said["message"]


def test_a_transaction_that_hangs(cluster: RunningCluster) -> None:
    cluster.create_topic("held")
    place = cluster.address(cluster.leader("held", 0))
    hang(place)
    (said,) = doctor(cluster.bootstrap, code=1)["transactions"]
    assert said["severity"] == "problem" and said["subjects"] == ["held-0"]
    assert "hangs in held-0" in said["message"] and "from offset 0 on" in said["message"]
    words = said["next_step"].split()
    assert words[:3] == ["tidelog", "txn", "abort"]
    advised = [sys.executable, "-m", "tidelog.cli", *words[1:], "--yes", "--bootstrap", cluster.bootstrap]
    subprocess.run(advised, check=True, capture_output=True, timeout=COMMAND_SECONDS_MAX)
    (said,) = doctor(cluster.bootstrap, code=0)["transactions"]
    assert said["severity"] == "ok"


def hang(address: str) -> None:
    """Write a batch of a transaction without telling a coordinator of the partition."""
    host, _, port = address.rpartition(":")
    link = Link.open(host, int(port), ClientSettings.from_options({"bootstrap.servers": address}))
    try:
        fields = {"transactional_id": None, "transaction_timeout_ms": 60_000}
        producer = link.request(INIT_PRODUCER_ID, fields, highest=1)
        batch = build_batch(
            [Record(0, 1_700_000_000_000, None, b"x", ())],
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
        body = encode_request([BatchToSend("held", 0, batch)], TRANSACTIONAL_ID, 10_000)
        answer = link.receive(link.send(PRODUCE, PRODUCE_VERSION, body))
        (row,) = decode_response(PRODUCE_VERSION, answer)
        assert row.error == 0, row
    finally:
        link.close()


def test_a_killed_broker(cluster: RunningCluster) -> None:
    """Last in this file: what comes before wants a whole cluster."""
    victim = next(number for number in cluster.broker_ids if number != cluster.controller())
    cluster.kill(victim)
    staying = next(number for number in cluster.broker_ids if number != victim)

    def noticed() -> bool:
        return victim not in cluster.view(staying).addresses

    wait_until(noticed)
    found = doctor(cluster.bootstrap, "--watch", "0", code=1)
    (dead,) = found["brokers"]
    assert dead["severity"] == "problem" and f"broker {victim} is dead" in dead["message"]
    refusing, behind = found["partitions"]
    assert (refusing["severity"], behind["severity"]) == ("problem", "warning")
    assert refusing["subjects"] == ["brittle-0"] and "orders-0" in behind["subjects"]
    assert f"broker {victim}" in behind["next_step"]


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, "the cluster did not notice"
        time.sleep(0.05)
