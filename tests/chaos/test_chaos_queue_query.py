"""The driver of a query over a share group killed with SIGKILL in a micro-batch: nothing is lost."""

import json
import subprocess
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tests.support.child_programs import environment, program
from tidelog.admin.cluster_admin import ClusterAdmin
from tidelog.admin.share_groups import ShareGroups
from tidelog.client.client_settings import ClientSettings
from tidelog.testing.broker import RunningBroker

QUEUE, COUNT, KILLS = "jobs", 1_500, 2
PARTITIONS = 2
#: of a micro-batch of `queue_query`
BATCH_RECORDS = 200
SECONDS_MAX = 120.0


def noted(log: Path) -> list[list[Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def left(bootstrap: str) -> int:
    settings = ClientSettings.from_options({"bootstrap.servers": bootstrap})
    with ClusterAdmin(lambda: settings) as admin:
        return sum(lag or 0 for _, lag in ShareGroups(admin).starts(QUEUE).values())


def fill(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(QUEUE, PARTITIONS, 1)])[QUEUE].result(30)
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, QUEUE, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(COUNT):
        producer.produce(QUEUE, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(30) == 0


@pytest.mark.timeout(300)
def test_every_record_is_processed_at_least_once(tidelog_broker: RunningBroker, tmp_path: Path) -> None:
    bootstrap, log = tidelog_broker.bootstrap, tmp_path / "log"
    fill(bootstrap)
    command = [*program("tests.chaos.queue_query"), bootstrap, QUEUE, QUEUE, str(tmp_path), "0.3"]
    for _ in range(KILLS):
        before = len(noted(log))
        process = subprocess.Popen(command, env=environment())
        try:
            deadline = time.monotonic() + SECONDS_MAX
            # At least one micro-batch is done, and another is planned and being worked on.
            while len(noted(log)) < before + 4 or noted(log)[-1][0] != "planned":
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.005)
        finally:
            process.kill()
            process.wait()
    assert noted(log)[-1][0] == "planned", "it was killed in the middle"
    subprocess.run(command, env=environment(), check=True, timeout=SECONDS_MAX)
    batches: dict[int, set[frozenset[int]]] = defaultdict(set)
    times: dict[int, list[int]] = defaultdict(list)
    for word, *rest in noted(log):
        if word == "processed":
            batches[rest[0]].add(frozenset(rest[1]))
            for number in rest[1]:
                times[number].append(rest[0])
    assert times.keys() == set(range(COUNT))
    assert all(len(contents) == 1 for contents in batches.values()), "run again, it has the same records"
    # What a driver was killed with is known to the next as processed, but to no other after that.
    again = sum(len(set(where)) > 1 for where in times.values())
    assert again <= KILLS * BATCH_RECORDS
    assert left(bootstrap) == 0
