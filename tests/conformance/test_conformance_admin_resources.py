"""Producers on every replica and settings of every resource: Java's admin client and tools, and librdkafka's.

Three brokers. Each client program runs a few times here; `TIDELOG_ITERATIONS=200` makes it 200 times (about a
minute). TIDELOG_TEST_BOOTSTRAP names another cluster, such as an Apache Kafka.
"""

import os
import subprocess
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource  # type: ignore[attr-defined]

from tests.conformance.drivers.contract import new_name
from tests.conformance.drivers.java import SOURCE, java_command, tool_jars
from tidelog.model.resource_settings import GROUP_SETTINGS
from tidelog.testing.cluster import RunningCluster

ITERATIONS = int(os.environ.get("TIDELOG_ITERATIONS", "3"))
OTHER = os.environ.get("TIDELOG_TEST_BOOTSTRAP")
#: a logger that both have
LOGGER = "root"
SECONDS_EACH = 5


@pytest.fixture(scope="module")
def three_brokers() -> Iterator[str]:
    if OTHER:
        yield OTHER
        return
    with RunningCluster(3) as cluster:
        yield cluster.bootstrap


def test_java(three_brokers: str) -> None:
    source = SOURCE.with_name("AdminResources.java")
    command = java_command(source, three_brokers, str(ITERATIONS), LOGGER, jars_folder=tool_jars())
    timeout = 60 + ITERATIONS * SECONDS_EACH
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    said = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert said["iterations"] == str(ITERATIONS)
    assert said["types"] == "[GROUP, CLIENT_METRICS, BROKER_LOGGER, BROKER, TOPIC]"


def test_librdkafka(three_brokers: str) -> None:
    """It knows topics, brokers and groups."""
    admin = AdminClient({"bootstrap.servers": three_brokers})
    group = new_name("settings")
    for number in range(ITERATIONS):
        value = str(45_000 + number)
        entry = ConfigEntry("consumer.session.timeout.ms", value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource("group", group, incremental_configs=[entry])
        admin.incremental_alter_configs([resource], request_timeout=30)[resource].result()
        asked = ConfigResource("group", group)
        found = admin.describe_configs([asked], request_timeout=30)[asked].result()
        assert OTHER or set(found) == set(GROUP_SETTINGS)
        assert found["consumer.session.timeout.ms"].value == value
        assert list(found["consumer.session.timeout.ms"].synonyms) == [
            "consumer.session.timeout.ms",
            "group.consumer.session.timeout.ms",
        ]
