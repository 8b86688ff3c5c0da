"""What the examples share: a pipeline file in a Spark of this process, orders with a time of arrival, topics
read back."""

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from demo_report import Found, Screen, errors_into
from rich.console import Console
from shop_orders import OPENING, TICK_SECONDS, Order

from tidelog.pipelines.definition import Overrides, load_definition
from tidelog.pipelines.planning import make_plan, start
from tidelog.pipelines.session import check_environment
from tidelog.pipelines.work import Work
from tidelog.testing.broker import RunningBroker

#: an order and when it arrived
Arrival = tuple[Order, datetime]
WAIT_SECONDS_MAX = 300
READ_SECONDS_MAX = 60


@dataclass(frozen=True, slots=True)
class Stage:
    """What an example plays on."""

    spark: Any
    bootstrap: str
    folder: Path
    screen: Screen


@contextlib.contextmanager
def stage(console: Console, topics: Mapping[str, Mapping[str, Any]]) -> Iterator[Stage]:
    """A broker with these topics (partitions and settings), a Spark and a folder, all gone at the end."""
    from order_windows import end_session, spark_session

    check_environment()
    with tempfile.TemporaryDirectory(prefix="tidelog-example-") as name:
        folder = Path(name)
        with (
            Screen(console) as screen,
            errors_into(folder / "errors.log"),
            RunningBroker(mode="process", data_directory=folder / "data") as broker,
        ):
            for topic, settings in topics.items():
                broker.create_topic(topic, **settings)
            screen.say("a broker runs; starting Spark")
            with screen.busy("Spark starts"):
                spark = spark_session(folder)
            try:
                yield Stage(spark, broker.bootstrap, folder, screen)
            finally:
                end_session(spark)


def start_file(place: Stage, path: Path, options: Mapping[str, Any] | None = None) -> list[Work]:
    """Start a pipeline as `tidelog pipeline run FILE` does, with its checkpoint in the stage's folder."""
    over = Overrides(
        kafka={"bootstrap.servers": place.bootstrap},
        checkpoint=str(place.folder / f"checkpoint-{path.stem}"),
        options=options or {},
    )
    return start(place.spark, make_plan(load_definition(path, over)))


def arrivals(ticks: Iterable[list[Order]], first_tick: int = 0) -> list[Arrival]:
    """Orders with the end of their tick as the time of arrival."""
    found = []
    for number, orders in enumerate(ticks, first_tick + 1):
        moment = OPENING + timedelta(seconds=number * TICK_SECONDS)
        found += [(order, moment) for order in orders]
    return found


def send(bootstrap: str, topic: str, orders: Iterable[Arrival]) -> None:
    """Send orders; a record's timestamp is when the order arrived."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20})
    for order, moment in orders:
        producer.produce(topic, order.to_json(), order.customer, timestamp=int(moment.timestamp() * 1_000))
        producer.poll(0)
    if left := producer.flush(READ_SECONDS_MAX):
        raise RuntimeError(f"{left} orders were not acknowledged")


def wait(what: str, reached: Callable[[], bool], work: Iterable[Work]) -> None:
    """Until it is reached; raises what went wrong meanwhile."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not reached():
        for one in work:
            if (failure := one.failure()) is not None:
                raise RuntimeError(f"{one.name}: {failure}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {WAIT_SECONDS_MAX} s for {what}")
        time.sleep(0.2)


def read_records(bootstrap: str, topic: str) -> list[tuple[str | None, Any]]:
    """Keys and JSON values of all that a consumer with read_committed finds in a topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "examples",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    partitions = consumer.list_topics(topic, READ_SECONDS_MAX).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
    records: list[tuple[str | None, Any]] = []
    ended: set[int] = set()
    deadline = time.monotonic() + READ_SECONDS_MAX
    while len(ended) < len(partitions):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the end of {topic} was not reached within {READ_SECONDS_MAX} s")
        message = consumer.poll(1)
        if message is not None and message.error() is not None:
            ended.add(message.partition())
        elif message is not None:
            key = message.key()
            records.append((None if key is None else key.decode(), json.loads(message.value())))
    consumer.close()
    return records


Row = tuple[int, str, int, int, int]


def total_rows(bootstrap: str, topic: str) -> list[Row]:
    """The totals of a topic as they were written, one by one: window, country, orders, items, cents."""
    return [
        (
            int(datetime.fromisoformat(row["window_start"]).astimezone(UTC).timestamp()),
            row["country"],
            row["orders"],
            row["items"],
            row["revenue_cents"],
        )
        for _, row in read_records(bootstrap, topic)
    ]


def totals_of(bootstrap: str, topic: str) -> Found:
    """A topic of totals, added up; what is there twice counts twice."""
    return Found.of(topic, total_rows(bootstrap, topic))
