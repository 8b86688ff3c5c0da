"""One Spark session and one broker for all tests of this folder, which `make spark-test` runs.

They are left out of an ordinary run: a session takes ten seconds to start, and Spark is an extra.
"""

import os
import sys
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

if not os.environ.get("TIDELOG_SPARK_TESTS"):
    collect_ignore_glob = ["*"]

SECONDS_MAX = 60


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    # Workers run the same Python, whether or not its environment is activated.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .appName("tidelog-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    """A broker of its own process, or whatever TIDELOG_TEST_BOOTSTRAP names."""
    if foreign := os.environ.get("TIDELOG_TEST_BOOTSTRAP"):
        yield foreign
        return
    from tidelog.testing.broker import RunningBroker

    with RunningBroker(mode="process") as broker:
        yield broker.bootstrap


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> Any:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture
def make_topic(admin: Any) -> Callable[..., str]:
    from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

    def make(partitions: int = 1, prefix: str = "spark") -> str:
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        # The records of `fill` are from 1970: retention would take them when its check comes by.
        wanted = NewTopic(name, partitions, 1, config={"retention.ms": "-1"})
        admin.create_topics([wanted])[name].result(SECONDS_MAX)
        return name

    return make


@pytest.fixture
def fill(bootstrap: str) -> Callable[..., None]:
    """Write records with the numbers of a range as values, key = value, round robin over partitions."""
    from confluent_kafka import Producer

    def write(topic: str, numbers: range, partitions: int = 1, **config: Any) -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, **config})
        for number in numbers:
            headers = [("n", b"%d" % number)] if number % 2 else None
            text = b"%d" % number
            producer.produce(
                topic,
                text,
                text,
                partition=number % partitions,
                timestamp=1_000_000 + number,
                headers=headers,  # type: ignore[arg-type]
            )
            if number % 500 == 0:
                producer.poll(0)
        assert producer.flush(SECONDS_MAX) == 0

    return write
