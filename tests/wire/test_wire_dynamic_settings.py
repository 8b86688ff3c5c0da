"""Settings that are changed while a broker runs take effect on it, without a restart and on open logs too."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos.kafka_wire import ConnectionClosed, WireClient, batch_of
from tidelog.model.settings import BrokerSettings
from tidelog.server.process import BrokerThread

BROKER = 4
SET, DELETE = 0, 1
WAIT_SECONDS_MAX = 10.0
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "offsets.topic.num.partitions": "1",
    # Idle producer ids are looked for all the time.
    "producer.id.expiration.check.interval.ms": "20",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    """One broker for the tests of this module."""
    folder: Path = tmp_path_factory.mktemp("dynamic")
    settings = {**SETTINGS, "log.dirs": str(folder)}
    thread = BrokerThread(BrokerSettings.resolve(settings))
    thread.start()
    yield thread
    thread.stop()


def alter(client: WireClient, kind: int, resource: str, name: str, value: str | None) -> None:
    """Set a setting, or take it back where the value is None."""
    change = {"name": name, "config_operation": DELETE if value is None else SET, "value": value}
    resources = [{"resource_type": kind, "resource_name": resource, "configs": [change]}]
    answer = client.ask("incremental_alter_configs", 1, resources=resources, validate_only=False)
    assert int(answer.responses[0].error_code) == 0, answer.responses[0].error_message


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, "the change did not take effect"
        time.sleep(0.01)


def producer_ids(client: WireClient, topic: str) -> set[int]:
    """The producers that a partition remembers."""
    answer = client.ask("describe_producers", 0, topics=[{"name": topic, "partition_indexes": [0]}])
    [partition] = answer.topics[0].partitions
    assert int(partition.error_code) == 0
    return {int(producer.producer_id) for producer in partition.active_producers}


def test_a_log_that_is_open_forgets_idle_producers_after_the_new_time(client: WireClient, topic: str) -> None:
    producer_id, epoch = client.init_producer_id()
    batch = batch_of(b"a", producer_id=producer_id, producer_epoch=epoch, base_sequence=0)
    assert client.produce(topic, 0, batch).error == 0
    assert producer_ids(client, topic) == {producer_id}
    alter(client, BROKER, "", "producer.id.expiration.ms", "1")
    wait_until(lambda: not producer_ids(client, topic))
    # And back again: a day passes in no test.
    alter(client, BROKER, "", "producer.id.expiration.ms", None)
    assert client.produce(topic, 0, batch).error == 0
    time.sleep(0.1)
    assert producer_ids(client, topic) == {producer_id}


def is_served(broker: BrokerThread) -> bool:
    """Whether a new connection gets an answer."""
    try:
        with WireClient(broker.bootstrap) as connection:
            return bool(connection.ask("api_versions", 0).api_keys)
    except (ConnectionClosed, OSError):
        return False


@pytest.mark.parametrize("name", ["max.connections", "max.connections.per.ip"])
def test_a_limit_of_connections_holds_for_the_next_one(
    broker: BrokerThread, client: WireClient, name: str
) -> None:
    assert is_served(broker)
    alter(client, BROKER, "", name, "1")
    wait_until(lambda: not is_served(broker))
    # Who is connected stays.
    alter(client, BROKER, "", name, None)
    wait_until(lambda: is_served(broker))


def test_a_rate_of_new_connections_holds_from_the_next_second_on(
    broker: BrokerThread, client: WireClient
) -> None:
    alter(client, BROKER, "", "max.connection.creation.rate", "1")
    wait_until(lambda: not (is_served(broker) and is_served(broker)))
    alter(client, BROKER, "", "max.connection.creation.rate", None)
    wait_until(lambda: all(is_served(broker) for _ in range(5)))
