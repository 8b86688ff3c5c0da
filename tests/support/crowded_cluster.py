"""A cluster of three brokers with 3,000 partitions, made once for the tests of all folders that ask for it.

Tests that use the fixture `crowded_cluster` are marked with `pytest.mark.xdist_group("crowded")`: one worker
runs them, on one cluster. They leave it whole. The data is in memory where there is a file system for that:
nine thousand logs are fifty thousand files.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tidelog.testing.cluster import RunningCluster

PARTITIONS = 3_000
TOPICS = 10
PARTITIONS_PER_TOPIC = PARTITIONS // TOPICS
NAMES = tuple(f"crowd-{number}" for number in range(TOPICS))
SECONDS_MAX = 100.0
#: short pauses, so that every background job has had its turn
SETTINGS = {
    "offsets.topic.num.partitions": "5",
    "auto.create.topics.enable": "false",
    "log.cleaner.backoff.ms": "200",
    "log.retention.check.interval.ms": "1000",
    "log.flush.offset.checkpoint.interval.ms": "1000",
    "tidelog.metrics.port": "0",
}


@contextmanager
def running() -> Iterator[RunningCluster]:
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="tidelog-crowd-", dir=memory if memory.is_dir() else None))
    try:
        with RunningCluster(3, SETTINGS, data_directory=folder, log_level="warning") as cluster:
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
            topics = [NewTopic(name, PARTITIONS_PER_TOPIC, 3) for name in NAMES]
            for made in admin.create_topics(topics, request_timeout=SECONDS_MAX).values():
                made.result(SECONDS_MAX)
            cluster.wait_in_sync(NAMES, SECONDS_MAX)
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)
