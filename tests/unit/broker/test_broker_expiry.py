"""Expired records leave the logs of a simulated cluster, whoever leads, and nobody misses anything else."""

from random import Random

import pytest

from tests.support.in_memory_cluster import InMemoryCluster
from tests.unit.broker.test_broker_delays import SETTINGS, send
from tidelog.records.record import Record, iterate_records
from tidelog.storage.cleaner import read_batches

TOPIC = "later"
CONFIGS = {
    "tidelog_ttl_enable": "true",
    "segment_bytes": "400",
    "min_cleanable_dirty_ratio": "0",
    "file_delete_delay_ms": "1",
}


def expiring(nodes: int = 3, seed: int = 1) -> InMemoryCluster:
    cluster = InMemoryCluster(range(1, nodes + 1), seed=seed, **SETTINGS, log_cleaner_backoff_ms="200")
    cluster.create_topic(TOPIC, 1, min(3, nodes), **CONFIGS)
    return cluster


def record(cluster: InMemoryCluster, value: bytes, ttl_ms: int | None) -> Record:
    headers = () if ttl_ms is None else (("tidelog-ttl-ms", b"%d" % ttl_ms),)
    return Record(0, cluster.clock.now_ms(), None, value, headers)


def there(cluster: InMemoryCluster, node_id: int) -> list[tuple[int, bytes]]:
    """What a replica has."""
    log = cluster.replica(node_id, TOPIC).log
    return [
        (each.offset, bytes(each.value or b""))
        for segment in log.segments
        for header, batch in read_batches(segment.file, segment.size_bytes)
        for each in iterate_records(batch, header)
    ]


def test_every_replica_removes_what_has_expired() -> None:
    cluster = expiring()
    for number in range(30):
        send(cluster, record(cluster, b"%d" % number, None if number % 5 == 0 else 500))
    cluster.run_for(25_000)
    lasting = [(number, b"%d" % number) for number in range(0, 30, 5)]
    for node_id in (1, 2, 3):
        found = there(cluster, node_id)
        active = cluster.replica(node_id, TOPIC).log.active.base_offset
        assert [each for each in found if each[0] < active] == [each for each in lasting if each[0] < active]
        assert active > 20
        assert cluster.replica(node_id, TOPIC).log.log_end_offset == 30


def test_a_replica_that_was_away_follows_over_the_gaps() -> None:
    cluster = expiring()
    send(cluster, record(cluster, b"first", None))
    leader = cluster.leader(TOPIC)
    assert leader is not None
    away = next(node_id for node_id in (1, 2, 3) if node_id != leader.node_id)
    cluster.kill(away)
    for number in range(30):
        send(cluster, record(cluster, b"%d" % number, 100))
    send(cluster, record(cluster, b"last", None))
    cluster.run_for(25_000)
    assert len(there(cluster, leader.node_id)) < 10
    cluster.restart(away)
    cluster.run_for(5_000)
    assert cluster.replica(away, TOPIC).log.log_end_offset == 32
    assert there(cluster, away)[0] == (0, b"first")
    assert there(cluster, away)[-1] == (31, b"last")


@pytest.mark.parametrize("seed", range(3))
def test_what_has_not_expired_stays_whoever_dies(seed: int) -> None:
    random = Random(seed)
    cluster = expiring(seed=seed)
    lasting: list[bytes] = []
    dead: int | None = None
    for number in range(50):
        ttl_ms = random.choice([None, 0, 100, 10**8])
        value = b"%d" % number
        send(cluster, record(cluster, value, ttl_ms))
        if ttl_ms is None or ttl_ms == 10**8:
            lasting.append(value)
        if number % 10 == 4 and dead is None:
            dead = random.choice([1, 2, 3])
            cluster.kill(dead)
        elif number % 10 == 9 and dead is not None:
            cluster.restart(dead, power_cut=random.random() < 0.4)
            dead = None
        cluster.run_for(random.randint(1, 900))
    cluster.run_for(25_000)
    for node_id in (1, 2, 3):
        values = [value for _, value in there(cluster, node_id)]
        # A record may be there twice after a leader died: nobody told these producers apart.
        assert set(lasting) <= set(values)
        assert len(values) < 45, "much of it has expired"
    first = there(cluster, 1)
    for node_id in (2, 3):
        shared = set(first) & set(there(cluster, node_id))
        assert {value for _, value in shared} >= set(lasting)
