"""Fixtures of the conformance tier: a running broker, real clients, topics with names of their own.

The broker is a Tidelog child process, or whatever TIDELOG_TEST_BOOTSTRAP names: tests/conformance/oracle
starts a real Apache Kafka. No test knows which one it is, save those that restart it.
"""

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tests.conformance.conformance_wire import unserved_partitions
from tests.conformance.drivers.asyncio_python import AioKafkaDriver
from tests.conformance.drivers.confluent import ConfluentDriver
from tests.conformance.drivers.contract import DEADLINE_SECONDS, DRIVER_NAMES, Driver, TopicMaker, new_name
from tests.conformance.drivers.kafkajs import KafkaJsDriver, KafkaJsProcess
from tests.conformance.drivers.kcat import KcatDriver
from tests.conformance.drivers.pure_python import KafkaPythonDriver

# The same as in tests/conformance/oracle: auto-creation with four partitions, quick groups.
BROKER_SETTINGS = {
    "num.partitions": "4",
    "auto.create.topics.enable": "true",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "group.share.min.record.lock.duration.ms": "1000",
    "transaction.state.log.num.partitions": "4",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}


@pytest.fixture(scope="session")
def oracle() -> bool:
    """Whether the broker under test is a foreign one."""
    return "TIDELOG_TEST_BOOTSTRAP" in os.environ


@pytest.fixture(scope="session")
def bootstrap(oracle: bool) -> Iterator[str]:
    if oracle:
        yield os.environ["TIDELOG_TEST_BOOTSTRAP"]
        return
    from tidelog.testing.broker import RunningBroker

    with RunningBroker(BROKER_SETTINGS, mode="process") as broker:
        yield broker.bootstrap


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture(scope="session")
def configure_group(admin: AdminClient) -> Callable[[str, dict[str, str]], None]:
    """Set settings of a group."""

    def configure(group: str, settings: dict[str, str]) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(30)

    return configure


@pytest.fixture(scope="session")
def make_topics(admin: AdminClient, bootstrap: str) -> Callable[..., None]:
    """Create the topics of the given names at once."""

    def make(names: list[str], partitions: int = 1, config: dict[str, str] | None = None) -> None:
        wanted = [NewTopic(name, partitions, 1, config=config or {}) for name in names]
        for future in admin.create_topics(wanted, operation_timeout=DEADLINE_SECONDS).values():
            future.result(DEADLINE_SECONDS)
        wait_until_served(bootstrap, names, partitions)

    return make


def wait_until_served(bootstrap: str, names: list[str], partitions: int) -> None:
    """Until each partition's leader answers: Kafka says that a topic is made before its leaders take writes.

    Only acks=0 needs this, since nobody hears of the refusal. The request is written by hand, because
    librdkafka remembers for a second or more that a topic had no leader.
    """
    deadline = time.monotonic() + DEADLINE_SECONDS
    while failing := unserved_partitions(bootstrap, names, partitions):
        assert time.monotonic() < deadline, f"not served: {failing}"
        time.sleep(0.01)


@pytest.fixture(scope="session")
def make_topic(make_topics: Callable[..., None]) -> TopicMaker:
    """Create one topic under a new name and return the name."""

    def make(partitions: int = 1, prefix: str = "conformance", **config: str) -> str:
        name = new_name(prefix)
        make_topics([name], partitions, {key.replace("_", "."): value for key, value in config.items()})
        return name

    return make


@pytest.fixture
def topic(make_topic: TopicMaker) -> str:
    """A new topic with one partition."""
    return make_topic()


@pytest.fixture(scope="session")
def kafkajs() -> Iterator[KafkaJsProcess]:
    process = KafkaJsProcess()
    yield process
    process.close()


@pytest.fixture(scope="session")
def find_driver(request: pytest.FixtureRequest) -> Callable[[str], Driver]:
    """The driver of a name; skips (in CI: fails) where its client is not installed."""
    makers: dict[str, Callable[[], Any]] = {
        "confluent-kafka": ConfluentDriver,
        "kafka-python": KafkaPythonDriver,
        "aiokafka": AioKafkaDriver,
        "kafkajs": lambda: KafkaJsDriver(request.getfixturevalue("kafkajs")),
        "kcat": KcatDriver,
    }
    assert tuple(makers) == DRIVER_NAMES
    return lambda name: makers[name]()
