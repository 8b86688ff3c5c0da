"""A cluster of 3,000 partitions as clients and people see it: admin, groups, doctor, metrics, compaction."""

import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from tests.support.crowded_cluster import NAMES, PARTITIONS, PARTITIONS_PER_TOPIC, SECONDS_MAX
from tidelog.testing.cluster import RunningCluster

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("crowded")]

DESCRIPTORS_OF_SELECT = 1_024


def test_offsets_of_all_partitions_in_one_request(crowded_cluster: RunningCluster) -> None:
    admin = AdminClient({"bootstrap.servers": crowded_cluster.bootstrap})
    places = {TopicPartition(name, index): OffsetSpec.latest() for name in NAMES for index in range(300)}
    assert len(places) == PARTITIONS
    found = [future.result(SECONDS_MAX) for future in admin.list_offsets(places).values()]
    assert len(found) == PARTITIONS and all(each.offset >= 0 for each in found)


def test_a_group_has_all_partitions_and_commits_them(crowded_cluster: RunningCluster) -> None:
    settings = {"bootstrap.servers": crowded_cluster.bootstrap, "group.id": "everything", "log_level": 0}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.subscribe(list(NAMES))
    deadline = time.monotonic() + SECONDS_MAX
    while len(consumer.assignment()) < PARTITIONS:
        consumer.poll(0.2)
        assert time.monotonic() < deadline, "not everything was assigned"
    places = [TopicPartition(name, index, 7) for name in NAMES for index in range(PARTITIONS_PER_TOPIC)]
    committed = consumer.commit(offsets=places, asynchronous=False)
    assert committed is not None and all(each.error is None for each in committed)
    found = consumer.committed(places, timeout=SECONDS_MAX)
    assert {each.offset for each in found} == {7} and len(found) == PARTITIONS
    consumer.close()


def test_every_broker_compacts_though_it_has_thousands_of_files_open(crowded_cluster: RunningCluster) -> None:
    cluster = crowded_cluster
    for number in cluster.broker_ids:
        descriptors = list(Path(f"/proc/{cluster.process_id(number)}/fd").iterdir())
        assert len(descriptors) > DESCRIPTORS_OF_SELECT
    small = {"cleanup_policy": "compact", "segment_bytes": 20_000, "min_cleanable_dirty_ratio": 0.01}
    cluster.create_topic("table", partitions=3, **small)  # type: ignore[arg-type]
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "batch.size": 2_000, "log_level": 0})
    for number in range(600):
        producer.produce("table", b"%d" % number + bytes(500), b"key", partition=number % 3)
    assert producer.flush(SECONDS_MAX) == 0
    deadline = time.monotonic() + SECONDS_MAX
    for number in cluster.broker_ids:
        for index in range(3):
            folder = cluster.data_directory_of(number) / f"table-{index}"
            # The first of five segments is left with the last record of the key in it, or with none.
            while (folder / f"{0:020}.log").stat().st_size > 5_000:
                assert time.monotonic() < deadline, f"broker {number} did not compact table-{index}"
                time.sleep(0.1)


def test_doctor_and_health_find_nothing_wrong(crowded_cluster: RunningCluster) -> None:
    cluster = crowded_cluster
    command = [
        sys.executable,
        "-m",
        "tidelog.cli",
        "doctor",
        "--watch",
        "0",
        "--bootstrap",
        cluster.bootstrap,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX)
    assert done.returncode == 0, done.stdout
    assert "background jobs go well" in done.stdout


def test_a_scrape_tells_of_all_partitions_in_slices(crowded_cluster: RunningCluster) -> None:
    total = 0.0
    for number in crowded_cluster.broker_ids:
        text = scraped(crowded_cluster, number)
        total += sample(text, "tidelog_partitions_led")
        assert sample(text, "tidelog_cleaner_dead_threads") == 0
        assert not re.findall(r"^tidelog_background_failing\{.*\} [1-9]", text, re.MULTILINE)
        assert not re.findall(r"^tidelog_cleaner_uncleanable_partitions\{.*\} [1-9]", text, re.MULTILINE)
    assert total >= PARTITIONS


def scraped(cluster: RunningCluster, number: int) -> str:
    """The metrics of a broker; where they are stands in no answer, so its sockets are tried."""
    for port in listening_ports(cluster.process_id(number)):
        if port != cluster.port(number):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=SECONDS_MAX) as answer:
                return str(answer.read().decode())
    raise AssertionError(f"broker {number} serves no metrics")


def listening_ports(process_id: int | None) -> list[int]:
    folder = Path(f"/proc/{process_id}/fd")
    inodes = {found[1] for path in folder.iterdir() if (found := re.match(r"socket:\[(\d+)\]", _link(path)))}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and row[9] in inodes]


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except FileNotFoundError:
        return ""


def sample(text: str, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    assert found is not None, f"no {name}"
    return float(found[1])
