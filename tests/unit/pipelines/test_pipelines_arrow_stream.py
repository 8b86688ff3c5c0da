"""Ranges of a running broker's partitions as Arrow batches: content, transactions, gaps."""

import os
import random
import uuid
from collections.abc import Iterator

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ConfluentTopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tidelog.client.client_settings import READ_UNCOMMITTED, ClientSettings
from tidelog.client.cluster import LATEST
from tidelog.model.identifiers import TopicPartition
from tidelog.pipelines import arrow_stream
from tidelog.pipelines.arrow_stream import Columns, read_range
from tidelog.pipelines.data_loss import DataLoss
from tidelog.pipelines.offset_planning import OffsetRange
from tidelog.pipelines.shared_clusters import cluster_of
from tidelog.testing.broker import RunningBroker

SECONDS_MAX = 60


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    if foreign := os.environ.get("TIDELOG_TEST_BOOTSTRAP"):
        yield foreign
        return
    with RunningBroker({"transaction.state.log.num.partitions": "4"}) as broker:
        yield broker.bootstrap


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture
def topic(admin: AdminClient) -> str:
    name = f"arrow-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(SECONDS_MAX)
    return name


def settings(bootstrap: str, **options: str) -> ClientSettings:
    names = {name.replace("_", "."): value for name, value in options.items()}
    return ClientSettings.from_options({"bootstrap.servers": bootstrap, **names})


def end_of(bootstrap: str, topic: str) -> int:
    where = TopicPartition(topic, 0)
    return cluster_of(settings(bootstrap)).list_offsets({where: LATEST}, READ_UNCOMMITTED)[where].offset


def read(
    client: ClientSettings,
    topic: str,
    start: int,
    end: int,
    columns: Columns = Columns(),  # noqa: B008 (a value)
    patience_ms: int = 2_000,
    fail_on_data_loss: bool = True,
) -> pa.Table:
    wanted = OffsetRange(TopicPartition(topic, 0), start, end)
    batches = list(
        read_range(client, wanted, columns, patience_ms=patience_ms, fail_on_data_loss=fail_on_data_loss)
    )
    assert all(batch.schema == columns.arrow_schema() and batch.num_rows for batch in batches)
    return pa.Table.from_batches(batches, columns.arrow_schema())


def test_content(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "zstd"})
    rows = [
        (
            None if n % 3 == 0 else b"k%d" % n,
            None if n % 7 == 0 else b"v%d" % n,
            [("h", b"%d" % n), ("n", None)],
        )
        for n in range(500)
    ]
    for number, (key, value, headers) in enumerate(rows):
        producer.produce(topic, value, key, headers=headers if number % 2 else None, timestamp=5_000 + number)  # type: ignore[arg-type]
    assert producer.flush(SECONDS_MAX) == 0
    table = read(settings(bootstrap), topic, 0, 500, Columns(headers=True, leader_epoch=True)).to_pydict()
    assert list(zip(table["key"], table["value"], strict=True)) == [row[:2] for row in rows]
    assert table["offset"] == list(range(500))
    assert set(table["topic"]) == {topic} and set(table["partition"]) == {0}
    assert [int(stamp.timestamp() * 1000) for stamp in table["timestamp"]] == [5_000 + n for n in range(500)]
    assert set(table["timestampType"]) == {0} and min(table["leaderEpoch"]) >= 0
    assert table["headers"][0] is None
    assert table["headers"][3] == [{"key": "h", "value": b"3"}, {"key": "n", "value": None}]
    part = read(settings(bootstrap), topic, 123, 321)
    assert part["offset"].to_pylist() == list(range(123, 321))


def write_transactions(bootstrap: str, topic: str, seed: int) -> tuple[list[bytes], list[bytes]]:
    """Transactions of two producers, committed or aborted by chance; what is to be seen, and all there is."""
    generator = random.Random(seed)
    producers = []
    for name in "ab":
        producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-{name}", "linger.ms": 0}
        )
        producer.init_transactions(SECONDS_MAX)
        producers.append(producer)
    seen: list[bytes] = []
    everything: list[bytes] = []
    for number in range(12):
        chosen = producers if number % 3 == 0 else [generator.choice(producers)]
        for producer in chosen:
            producer.begin_transaction()
        for part in range(3):
            for index, producer in enumerate(chosen):
                everything.append(b"%d-%d-%d" % (number, index, part))
                producer.produce(topic, everything[-1], partition=0)
                producer.flush(SECONDS_MAX)
        for index, producer in enumerate(chosen):
            if generator.random() < 0.5:
                producer.abort_transaction(SECONDS_MAX)
            else:
                producer.commit_transaction(SECONDS_MAX)
                seen += [b"%d-%d-%d" % (number, index, part) for part in range(3)]
    return seen, everything


@pytest.mark.parametrize("records_max", [1, 4, arrow_stream.BATCH_RECORDS_MAX])
def test_aborted_transactions_are_not_seen(
    bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch, records_max: int
) -> None:
    # Small pieces: what a producer wrote after an abort must be seen, wherever a fetch was cut.
    monkeypatch.setattr(arrow_stream, "BATCH_RECORDS_MAX", records_max)
    seen, everything = write_transactions(bootstrap, topic, seed=records_max)
    assert 0 < len(seen) < len(everything)
    end = end_of(bootstrap, topic)
    whole = read(settings(bootstrap), topic, 0, end)
    assert sorted(whole["value"].to_pylist()) == sorted(seen)
    for start in range(0, end, 5):
        table = read(settings(bootstrap, max_partition_fetch_bytes="300"), topic, start, end)
        assert table["offset"].to_pylist() == [
            offset for offset in whole["offset"].to_pylist() if offset >= start
        ]
    uncommitted = settings(bootstrap, isolation_level="read_uncommitted")
    assert read(uncommitted, topic, 0, end)["value"].to_pylist() == everything


def test_records_that_retention_removed(bootstrap: str, admin: AdminClient, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(100):
        producer.produce(topic, b"%d" % number)
    assert producer.flush(SECONDS_MAX) == 0
    deleted = admin.delete_records([ConfluentTopicPartition(topic, 0, 40)])
    for future in deleted.values():
        future.result(SECONDS_MAX)
    with pytest.raises(DataLoss, match=r"offset 10 is not in the log, which begins at 40.*failOnDataLoss"):
        read(settings(bootstrap), topic, 10, 100)
    tolerant = read(settings(bootstrap), topic, 10, 100, fail_on_data_loss=False)
    assert tolerant["offset"].to_pylist() == list(range(40, 100))
    assert read(settings(bootstrap), topic, 10, 30, fail_on_data_loss=False).num_rows == 0
    assert read(settings(bootstrap), topic, 500, 600, fail_on_data_loss=False).num_rows == 0


def test_a_log_that_ends_too_early(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"only")
    assert producer.flush(SECONDS_MAX) == 0
    with pytest.raises(DataLoss, match="records up to offset 9 were announced, but the log now ends at 1"):
        read(settings(bootstrap), topic, 0, 9, patience_ms=1)
    assert read(settings(bootstrap), topic, 0, 9, patience_ms=1, fail_on_data_loss=False).num_rows == 1


def test_a_topic_that_was_deleted(
    bootstrap: str, admin: AdminClient, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"only")
    assert producer.flush(SECONDS_MAX) == 0
    admin.delete_topics([topic])[topic].result(SECONDS_MAX)
    with pytest.raises(DataLoss, match=r"-0 is gone; .* from 0 to 1\..*failOnDataLoss to false"):
        read(settings(bootstrap), topic, 0, 1)
    assert read(settings(bootstrap), topic, 0, 1, fail_on_data_loss=False).num_rows == 0
    assert "is gone" in caplog.text
