"""A broker of a cluster with 3,000 partitions dies while all of them are written to.

Every record that was acknowledged (acks=all) is read back, where it was acknowledged and once.
"""

import threading
import time

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.support.crowded_cluster import NAMES, PARTITIONS, PARTITIONS_PER_TOPIC, SECONDS_MAX
from tidelog.testing.cluster import RunningCluster

pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("crowded")]

Place = tuple[str, int]


class Writer:
    """Writes a record into each partition, round after round, and remembers what was acknowledged where."""

    def __init__(self, bootstrap: str) -> None:
        settings = {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 20,
            "log_level": 0,
        }
        self._producer = Producer({**settings, "delivery.timeout.ms": int(SECONDS_MAX * 1000)})
        self.acknowledged: dict[tuple[Place, int], bytes] = {}
        self.faults: list[str] = []
        self._round = 0

    def write_round(self) -> None:
        self._round += 1
        for name in NAMES:
            for index in range(PARTITIONS_PER_TOPIC):
                value = b"%d of %s-%d" % (self._round, name.encode(), index)
                self._producer.produce(name, value, partition=index, on_delivery=self._delivered)
                self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        topic, index, offset, value = message.topic(), message.partition(), message.offset(), message.value()
        if (
            error is not None
            or topic is None
            or index is None
            or offset is None
            or not isinstance(value, bytes)
        ):
            self.faults.append(str(error))
        else:
            self.acknowledged[(topic, index), offset] = value

    def finish(self) -> None:
        assert self._producer.flush(SECONDS_MAX) == 0
        assert self.faults == []


def read_everything(bootstrap: str, wanted: dict[tuple[Place, int], bytes]) -> dict[tuple[Place, int], bytes]:
    """What is in the partitions from the first acknowledged offset of each to the last."""
    first: dict[Place, int] = {}
    for place, offset in wanted:
        first[place] = min(offset, first.get(place, offset))
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "crowd-check", "log_level": 0})
    consumer.assign([TopicPartition(*place, offset) for place, offset in first.items()])
    found: dict[tuple[Place, int], bytes] = {}
    deadline = time.monotonic() + SECONDS_MAX
    while len(found) < len(wanted) and time.monotonic() < deadline:
        for message in consumer.consume(5_000, 0.5):
            assert message.error() is None, message.error()
            topic, index, offset, value = (
                message.topic(),
                message.partition(),
                message.offset(),  # type: ignore[assignment]
                message.value(),
            )
            assert topic is not None and index is not None and offset is not None and isinstance(value, bytes)
            assert ((topic, index), offset) not in found
            found[(topic, index), offset] = value
    consumer.close()
    return found


def test_nothing_is_lost_when_a_broker_with_thousands_of_leaders_dies(
    crowded_cluster: RunningCluster,
) -> None:
    cluster = crowded_cluster
    writer = Writer(cluster.bootstrap)
    writer.write_round()
    victim = cluster.controller()
    assert victim is not None
    killer = threading.Thread(target=cluster.kill, args=(victim,))
    killer.start()
    writer.write_round()
    killer.join()
    writer.finish()
    cluster.start(victim)
    writer.write_round()
    writer.finish()
    cluster.wait_in_sync(timeout_seconds=SECONDS_MAX)
    assert len(writer.acknowledged) == 3 * PARTITIONS
    assert read_everything(cluster.bootstrap, writer.acknowledged) == writer.acknowledged
    assert cluster.tracebacks() == []
