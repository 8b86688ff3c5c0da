"""`tidelog share` against a real broker and librdkafka's share consumer; on Apache Kafka alike."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import AcknowledgeType, Consumer, Producer, ShareConsumer, TopicPartition

from tests.conformance.drivers.contract import new_name
from tidelog.cli.main import tidelog

PATIENCE_SECONDS = 60.0
RECORDS = 20

Share = Callable[..., Result]


@pytest.fixture
def queue(
    bootstrap: str, make_topics: Callable[..., None], configure_group: Callable[[str, dict[str, str]], None]
) -> str:
    """A topic of two partitions with ten records each; its group, of the same name, begins at the start."""
    name = new_name("queue")
    make_topics([name], 2)
    configure_group(name, {"share.auto.offset.reset": "earliest"})
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORDS):
        producer.produce(name, b"%d" % number, partition=number % 2)
    assert producer.flush(30) == 0
    return name


@pytest.fixture
def share(bootstrap: str) -> Share:
    def run(*words: str, code: int = 0) -> Result:
        done = CliRunner().invoke(tidelog, ["share", *words, "--bootstrap", bootstrap])
        assert done.exit_code == code, (words, done.output, done.exception)
        return done

    return run


@pytest.fixture
def member(bootstrap: str, queue: str) -> Iterator[Any]:
    """A member that has accepted all records."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": queue,
        "client.id": "packer",
        "share.acknowledgement.mode": "explicit",
    }
    with ShareConsumer(settings) as consumer:
        consumer.subscribe([queue])
        deadline, done = time.monotonic() + PATIENCE_SECONDS, 0
        while done < RECORDS:
            assert time.monotonic() < deadline, done
            for message in consumer.poll(0.5):
                assert message.error() is None, message.error()
                consumer.acknowledge(message, AcknowledgeType.ACCEPT)
                done += 1
            for fault in consumer.commit_sync(30).values():
                assert fault is None
        yield consumer


def lags(share: Share, queue: str) -> dict[int, tuple[int | None, ...]]:
    rows = json.loads(share("lag", queue, "--json").stdout)
    assert {row["topic"] for row in rows} <= {queue}
    return {row["partition"]: (row["start"], row["latest"], row["done"], row["lag"]) for row in rows}


def test_members_and_where_the_group_is(share: Share, queue: str, member: Any) -> None:
    assert {"group": queue, "state": "stable"} in json.loads(share("list", "--json").stdout)
    assert queue in share("list").stdout
    found = json.loads(share("describe", queue, "--json").stdout)
    (only,) = found["members"]
    assert found["state"] == "stable" and found["coordinator"] is not None
    assert (only["client_id"], only["partitions"]) == ("packer", [f"{queue}-0", f"{queue}-1"])
    assert [row["members"] for row in found["partitions"]] == [[only["member"]]] * 2
    assert lags(share, queue) == {0: (10, 10, 0, 0), 1: (10, 10, 0, 0)}
    shown = share("describe", queue).stdout
    assert "packer" in shown and "members      1" in shown
    assert "total lag 0" in share("lag", queue).stdout
    assert "NON_EMPTY_GROUP" in share("reset", queue, "--to-earliest", "--execute", code=1).output
    assert "stop the group's members" in share("delete", queue, "--yes", code=1).output


def test_a_group_is_moved_and_deleted(share: Share, queue: str) -> None:
    made = share("reset", queue, "--topic", queue, "--to-latest", "--execute")
    assert "begins there in 2 partitions" in made.stdout
    assert lags(share, queue) == {0: (10, 10, 0, 0), 1: (10, 10, 0, 0)}
    plan = share("reset", queue, "--to-earliest")
    assert "A plan" in plan.stdout and lags(share, queue)[0] == (10, 10, 0, 0)
    share("reset", queue, "--topic", f"{queue}:1", "--to-offset", "4", "--execute")
    assert lags(share, queue) == {0: (10, 10, 0, 0), 1: (4, 10, 0, 6)}
    moved = json.loads(share("reset", queue, "--to-offset", "99", "--execute", "--json").stdout)
    assert moved["executed"] and [move["new"] for move in moved["moves"]] == [10, 10]
    share("reset", queue, "--to-datetime", "1h", "--execute")
    assert lags(share, queue) == {0: (0, 10, 0, 10), 1: (0, 10, 0, 10)}
    assert "Deleted" in share("delete", queue, "--yes").stdout
    assert queue not in share("list").stdout
    assert "no share group" in share("describe", queue, code=1).output


def test_what_cannot_be_done_is_said(share: Share, queue: str, bootstrap: str) -> None:
    assert "begun nowhere" in share("reset", "nobody", "--to-earliest", code=1).output
    assert "exactly one of" in share("reset", "nobody", code=2).output
    assert "no topic" in share("reset", "nobody", "--topic", "nowhere", "--to-latest", code=1).output
    other = new_name("consumers")
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": other})
    consumer.commit(offsets=[TopicPartition(queue, 0, 1)], asynchronous=False)
    consumer.close()
    for words in (
        ("describe", other),
        ("lag", other),
        ("delete", other, "--yes"),
        ("reset", other, "--topic", queue, "--to-latest", "--execute"),
    ):
        assert "is no share group" in share(*words, code=1).output


def test_what_is_in_flight_is_told(share: Share, queue: str, bootstrap: str, oracle: bool) -> None:
    """Of what it fetched at once a member accepts 0, 2 and 4, releases 1 and 3, and keeps the rest."""
    settings = {"bootstrap.servers": bootstrap, "group.id": queue, "share.acknowledgement.mode": "explicit"}
    kinds = {number: AcknowledgeType.RELEASE if number % 2 else AcknowledgeType.ACCEPT for number in range(5)}
    with ShareConsumer(settings) as consumer:
        consumer.subscribe([queue])
        deadline = time.monotonic() + PATIENCE_SECONDS
        held: list[Any] = []
        while not held:
            assert time.monotonic() < deadline
            held = list(consumer.poll(0.5))
        for message in held[:5]:
            consumer.acknowledge(message, kinds[message.offset() or 0])
        for fault in consumer.commit_sync(30).values():
            assert fault is None
        found = json.loads(share("describe", queue, "--json").stdout)
        flying = [row["in_flight"] for row in found["partitions"]]
        if oracle:
            assert flying == [None, None] and found["counts"] is None
            return
        (first,) = (each for each in flying if each is not None and each["acknowledged"])
        assert sum(each["acquired"] for each in flying if each is not None) == len(held) - 5
        assert (first["start"], first["acknowledged"], first["available"]) == (1, 2, 2)
        assert first["deliveries"] == {"1": first["acquired"] + first["available"]}
        assert first["delivery_count_limit"] == 5 and first["lock_ends_in_ms"] > 0
        assert list(first["members"].values()) == [first["acquired"]]
        assert found["counts"]["acknowledgements"] == {"accept": 3, "release": 2}
        assert found["counts"]["deliveries"] == {"1": len(held)}
        assert "accept 3 release 2" in share("describe", queue).stdout
