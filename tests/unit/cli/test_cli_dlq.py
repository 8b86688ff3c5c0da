"""`tidelog dlq` against a broker in this process: list, show, and sending back exactly once."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from tidelog.admin import dead_letter_headers as names
from tidelog.admin.dead_letter_topic import DeadLetterTopic
from tidelog.cli.connection import Connection
from tidelog.cli.main import tidelog
from tidelog.testing.broker import RunningBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with RunningBroker({"transaction.state.log.num.partitions": "2"}) as running:
        yield running


def letter_headers(number: int, topic: str | None, reason: str) -> list[tuple[str, bytes]]:
    headers = [
        ("trace", b"%d" % number),
        (names.PIPELINE, b"totals"),
        (names.STEP, b"decode" if number % 2 else b"score"),
        (names.REASON, reason.encode()),
        (names.STACK, b"Traceback\n  line"),
        (names.PARTITION, b"1"),
        (names.OFFSET, b"%d" % (100 + number)),
        (names.TIMESTAMP, b"%d" % (1_700_000_000_000 + number)),
    ]
    return headers if topic is None else [*headers, (names.TOPIC, topic.encode())]


def fill(broker: RunningBroker, dead: str, origin: str | None, count: int) -> None:
    broker.create_topic(dead, partitions=2)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(count):
        reason = "not JSON" if number % 2 else "ValueError: no"
        producer.produce(
            dead,
            b"v%d" % number,
            b"k%d" % number,
            number % 2,
            headers=letter_headers(number, origin, reason),  # type: ignore[arg-type]
        )
    assert producer.flush(10) == 0


def run(broker: RunningBroker, *words: str) -> Result:
    return CliRunner().invoke(tidelog, ["dlq", *words, "--bootstrap", broker.bootstrap])


def records(broker: RunningBroker, topic: str, count: int) -> list[Any]:
    """The first records of a topic with one partition; more than `count` is a fault."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found = []
    while (message := consumer.poll(10)) is not None and message.error() is None:
        found.append(message)
    consumer.close()
    assert len(found) == count
    return found


def test_list_and_show(broker: RunningBroker) -> None:
    fill(broker, "listed-dead", "orders", 4)
    rows = json.loads(run(broker, "list", "listed-dead", "--json").output)
    assert sorted(row["key"] for row in rows) == ["k0", "k1", "k2", "k3"]
    assert {row["from"]["topic"] for row in rows} == {"orders"} and not any(row["redriven"] for row in rows)
    (row,) = json.loads(run(broker, "list", "listed-dead", "--step", "decode", "--count", "--json").output)
    assert row == {"step": "decode", "group": None, "reason": "not JSON", "letters": 2}
    assert "orders-1@103" in run(broker, "list", "listed-dead", "--reason", "JSON").output
    assert "no dead letters" in run(broker, "list", "listed-dead", "--from-topic", "other").output
    shown = run(broker, "show", "listed-dead", "1", "0").output
    assert "Traceback" in shown and "trace=1" in shown and "k1" in shown
    assert json.loads(run(broker, "show", "listed-dead", "1", "0", "--json").output)["value"] == "v1"
    assert (
        "no dead letter in listed-dead-1 at offset 9" in run(broker, "show", "listed-dead", "1", "9").output
    )
    assert "there is no topic nothing" in run(broker, "list", "nothing").output


def test_redrive_sends_each_letter_once_as_it_was(broker: RunningBroker) -> None:
    broker.create_topic("redriven", partitions=1)
    fill(broker, "redriven-dead", "redriven", 6)
    assert (
        "would send 3 to redriven; add --yes"
        in run(broker, "redrive", "redriven-dead", "--reason", "JSON").output
    )
    records(broker, "redriven", 0)
    assert "sent back 3" in run(broker, "redrive", "redriven-dead", "--reason", "JSON", "--yes").output
    assert "sent back 0" in run(broker, "redrive", "redriven-dead", "--reason", "JSON", "--yes").output
    sent = records(broker, "redriven", 3)
    assert [message.key() for message in sent] == [b"k1", b"k3", b"k5"]
    assert sent[1].value() == b"v3" and sent[1].timestamp()[1] == 1_700_000_000_003
    assert sent[1].headers() == [("trace", b"3"), (names.ATTEMPTS, b"1")]
    left = json.loads(run(broker, "list", "redriven-dead", "--json").output)
    assert sorted(row["key"] for row in left) == ["k0", "k2", "k4"]
    every = json.loads(run(broker, "list", "redriven-dead", "--all", "--json").output)
    assert sorted(row["key"] for row in every if row["redriven"]) == ["k1", "k3", "k5"]
    one = run(broker, "redrive", "redriven-dead", "--partition", "0", "--offset", "1", "--yes")
    assert "sent back 1" in one.output
    assert "sent back 2" in run(broker, "redrive", "redriven-dead", "--yes").output
    assert sorted(message.key() for message in records(broker, "redriven", 6)) == [
        b"k%d" % number for number in range(6)
    ]


def test_letters_of_share_groups(broker: RunningBroker) -> None:
    """The second has no copy of the record."""
    for name in ("queued", "dlq.queued"):
        broker.create_topic(name, partitions=1)
    told = {"topic": "queued", "partition": "0", "group": "packers", "message": "rejected"}
    told["delivery.count"] = "3"
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for offset, record in enumerate(({"value": b"v", "key": b"k"}, {})):
        own = [
            (f"__dlq.errors.{name}", text.encode()) for name, text in {**told, "offset": str(offset)}.items()
        ]
        kept = [("trace", b"t"), (names.ATTEMPTS, b"1")] if record else []
        producer.produce("dlq.queued", **record, headers=[*kept, *own])  # type: ignore[arg-type]
    assert producer.flush(10) == 0
    first, second = json.loads(run(broker, "list", "dlq.queued", "--group", "packers", "--json").output)
    assert (first["group"], first["deliveries"], first["reason"]) == ("packers", 3, "rejected")
    assert first["from"] == {"topic": "queued", "partition": 0, "offset": 0} and first["attempts"] == 1
    assert first["headers"] == [["trace", "t"]] and second["headers"] == []
    assert "packers" in run(broker, "list", "dlq.queued").output
    assert "no dead letters" in run(broker, "list", "dlq.queued", "--group", "others").output
    shown = run(broker, "show", "dlq.queued", "0", "0").output
    assert "deliveries  3" in shown
    done = run(broker, "redrive", "dlq.queued", "--yes")
    assert "1 without a copy of the record stay" in done.output and "sent back 1" in done.output
    (sent,) = records(broker, "queued", 1)
    assert (sent.key(), sent.value()) == (b"k", b"v")
    assert sent.headers() == [("trace", b"t"), (names.ATTEMPTS, b"2")]
    assert "sent back 0" in run(broker, "redrive", "dlq.queued", "--yes").output


def test_letters_without_an_origin_need_a_topic(broker: RunningBroker) -> None:
    broker.create_topic("elsewhere", partitions=1)
    fill(broker, "lost-dead", None, 2)
    refused = run(broker, "redrive", "lost-dead", "--yes")
    assert refused.exit_code == 1 and "name a topic with --to" in refused.output
    assert "sent back 2" in run(broker, "redrive", "lost-dead", "--to", "elsewhere", "--yes").output
    records(broker, "elsewhere", 2)


def partitions_of(broker: RunningBroker, topic: str, partitions: int) -> dict[bytes, int]:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "reader", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, one, OFFSET_BEGINNING) for one in range(partitions)])
    found: dict[bytes, int] = {}
    ends = 0
    while ends < partitions:
        message = consumer.poll(10)
        assert message is not None
        if message.error() is None:
            found[message.key()] = message.partition()  # type: ignore[assignment, index]
        else:
            ends += 1
    consumer.close()
    return found


def test_letters_go_back_to_the_partition_they_are_from(broker: RunningBroker) -> None:
    broker.create_topic("placed", partitions=4)
    fill(broker, "placed-dead", "placed", 12)
    assert "sent back 12" in run(broker, "redrive", "placed-dead", "--yes").output
    assert set(partitions_of(broker, "placed", 4).values()) == {1}


def test_letters_go_elsewhere_as_java_would_send_them(broker: RunningBroker) -> None:
    broker.create_topic("moved", partitions=5)
    broker.create_topic("moved-by-java", partitions=5)
    fill(broker, "moved-dead", "origin", 12)
    assert "sent back 12" in run(broker, "redrive", "moved-dead", "--to", "moved", "--yes").output
    producer = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random"})
    for number in range(12):
        producer.produce("moved-by-java", b"", b"k%d" % number)
    assert producer.flush(10) == 0
    assert partitions_of(broker, "moved", 5) == partitions_of(broker, "moved-by-java", 5)


def test_one_that_dies_in_the_middle_leaves_nothing_sent_or_noted(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("torn", partitions=1)
    fill(broker, "torn-dead", "torn", 4)
    connection = Connection(broker.bootstrap)

    class Died(Exception):
        pass

    def dies(*arguments: Any) -> None:
        raise Died

    letters = DeadLetterTopic(connection, "torn-dead")
    real = connection.producer

    def producer(defaults: Any) -> Any:
        made = real(defaults)

        class Dying:
            def __getattr__(self, name: str) -> Any:
                return dies if name == "commit_transaction" else getattr(made, name)

        return Dying()

    monkeypatch.setattr(Connection, "producer", lambda self, defaults: producer(defaults))
    with pytest.raises(Died):
        letters.redrive(lambda letter: True, None)
    monkeypatch.undo()
    assert "sent back 4" in run(broker, "redrive", "torn-dead", "--yes").output
    records(broker, "torn", 4)
