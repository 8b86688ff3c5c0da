"""A full disk: a clear error, reads go on, other disks go on, nothing acknowledged is lost, and room heals
it.

The broker runs as a child process with two data folders, one of them on a tmpfs of a few megabytes.
"""

import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.chaos.broker_process import BrokerProcess
from tests.chaos.crash_checks import check_indexes, read_partition
from tests.chaos.kafka_wire import WireClient, batch_of
from tidelog.model.errors import ErrorCode

SIZE_BYTES = 6 << 20
RECORD_BYTES = 20_000
SETTINGS = {
    "log.flush.offset.checkpoint.interval.ms": "200",
    "log.retention.check.interval.ms": "200",
    "log.segment.delete.delay.ms": "100",
    "log.index.size.max.bytes": "4096",
    "offsets.topic.num.partitions": "1",
}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A mounted tmpfs."""
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def broker(tmp_path: Path, small_disk: Path) -> Iterator[BrokerProcess]:
    """Its metadata and half of the partitions are on a large disk, the other half on the small one."""
    folder = tmp_path / "broker"
    folder.mkdir()
    with BrokerProcess(folder, SETTINGS, log_dirs=[folder / "large", small_disk / "data"]) as process:
        process.start()
        yield process


class Model:
    """What was acknowledged per partition: values by offset."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.acknowledged: dict[int, dict[int, bytes]] = {}
        self.number = 0

    def produce(self, client: WireClient, partition: int) -> int:
        """Produce one record; return the error."""
        self.number += 1
        value = b"%d-" % self.number + os.urandom(RECORD_BYTES)
        produced = client.produce(self.topic, partition, batch_of(value))
        if produced.error == 0:
            self.acknowledged.setdefault(partition, {})[produced.base_offset] = value
        return produced.error

    def check(self, client: WireClient) -> None:
        """Everything acknowledged is there, and nothing else."""
        for partition, expected in self.acknowledged.items():
            found = {r.offset: r.value for r in read_partition(client, self.topic, partition, 0)}
            assert found == expected, f"partition {partition}"


def partitions_on(disk: Path, topic: str) -> list[int]:
    return sorted(int(folder.name.rpartition("-")[2]) for folder in (disk / "data").glob(f"{topic}-*"))


class Filled(NamedTuple):
    """A broker whose small disk is full: what it acknowledged, and a partition on either disk."""

    model: Model
    small: int
    large: int


def fill(broker: BrokerProcess, small_disk: Path) -> Filled:
    """Fill the small disk; about half of it with a topic that can be deleted."""
    model, filler = Model("events"), Model("filler")
    with WireClient(broker.bootstrap) as client:
        client.create_topic("events", 4, segment_bytes="300000")
        client.create_topic("filler", 4, segment_bytes="1000000")
        small = partitions_on(small_disk, "events")
        large = [partition for partition in range(4) if partition not in small]
        assert small and large, "partitions are spread over both folders"
        for partition in partitions_on(small_disk, "filler"):
            for _ in range(40):
                assert filler.produce(client, partition) == 0
        errors = fill_up(client, model, small[0])
        assert set(errors) == {ErrorCode.KAFKA_STORAGE_ERROR}
    return Filled(model, small[0], large[0])


def check_indexes_on(small_disk: Path) -> None:
    for partition in partitions_on(small_disk, "events"):
        check_indexes(small_disk / "data" / f"events-{partition}", random.Random(0), everything=True)


def test_full_then_room_again(broker: BrokerProcess, small_disk: Path) -> None:
    model, small, large = fill(broker, small_disk)
    with WireClient(broker.bootstrap) as client:
        # While the disk is full reads, metadata and the other disk work, and the error stays the same one.
        # (A checkpoint that could not be written may leave room for a record now and then.)
        model.check(client)
        assert len(client.ask("metadata", 12, topics=None).topics) == 2
        errors = []
        for _ in range(20):
            assert model.produce(client, large) == 0
            errors.append(model.produce(client, small))
        assert set(errors) <= {ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR}
        # Room comes back when a topic goes.
        client.ask("delete_topics", 4, topic_names=["filler"], timeout=10_000)
        wait_for_room(client, model, small)
        for _ in range(30):
            assert model.produce(client, small) == 0
        model.check(client)
    assert broker.stop() == 0
    broker.start()
    with WireClient(broker.bootstrap) as client:
        model.check(client)
        assert model.produce(client, small) == 0
    check_indexes_on(small_disk)
    assert broker.tracebacks() == []


def test_killed_and_started_again_on_a_full_disk(broker: BrokerProcess, small_disk: Path) -> None:
    """Who cannot start cannot delete: a broker must come up on a full disk and serve what is there."""
    model, small, large = fill(broker, small_disk)
    broker.kill()
    broker.start()
    with WireClient(broker.bootstrap) as client:
        model.check(client)
        assert model.produce(client, large) == 0
        client.ask("delete_topics", 4, topic_names=["filler"], timeout=10_000)
        wait_for_room(client, model, small)
        model.check(client)
    broker.kill()
    broker.start()
    with WireClient(broker.bootstrap) as client:
        model.check(client)
    check_indexes_on(small_disk)
    assert broker.tracebacks() == []


def fill_up(client: WireClient, model: Model, partition: int) -> list[int]:
    """Produce until nothing is taken any more; the errors seen."""
    errors: list[int] = []
    for _ in range(2 * SIZE_BYTES // RECORD_BYTES):
        error = model.produce(client, partition)
        if error:
            errors.append(error)
            if len(errors) == 10:
                return errors
    raise AssertionError("the disk never filled up")


def wait_for_room(client: WireClient, model: Model, partition: int) -> None:
    """Deleted files go a moment after the topic."""
    deadline = time.monotonic() + 10
    while model.produce(client, partition) != 0:
        assert time.monotonic() < deadline, "appends fail although there is room again"
        time.sleep(0.05)
