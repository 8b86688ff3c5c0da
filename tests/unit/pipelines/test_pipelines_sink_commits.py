"""The sink's writing and committing against a real broker, without Spark."""

import contextlib
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")  # Spark is an extra

from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from tidelog.client.client_settings import READ_COMMITTED, READ_UNCOMMITTED
from tidelog.client.cluster import LATEST, Cluster
from tidelog.client.partition_reader import PartitionReader
from tidelog.client.transactional_writer import (
    Producer,
    end_transactions,
    init_producer,
    open_transactions,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import TopicPartition
from tidelog.pipelines import sink, sink_commits
from tidelog.pipelines.commit_protocol import (
    BatchTooOld,
    Claim,
    CommitDecision,
    CommitSome,
    Decision,
    End,
    FencedDriver,
    LostTransactions,
    PublishSome,
    ReadCommitLog,
    Steps,
    Transaction,
    WriteDecision,
    commit,
    transaction_name,
)
from tidelog.pipelines.record_batches import BadRow, choose_partitions
from tidelog.pipelines.record_columns import AbortedTransaction, decode
from tidelog.pipelines.sink import TaskWrote
from tidelog.pipelines.sink_commits import SinkCommits
from tidelog.pipelines.sink_options import SinkOptions
from tidelog.pipelines.task_writer import TaskWriter
from tidelog.testing.broker import RunningBroker

TOPIC = "out"
PARTITIONS = 3


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with RunningBroker({"transaction.two.phase.commit.enable": "true"}, mode="thread") as running:
        running.create_topic(TOPIC, PARTITIONS)
        yield running


@pytest.fixture
def query(request: pytest.FixtureRequest, broker: RunningBroker) -> Iterator[str]:
    yield f"query-{request.node.name}"
    # What a test leaves open would hide the records of the next one.
    with Cluster(options_of(broker).settings) as cluster:
        end_transactions(cluster, open_transactions(cluster, ""), committed=False)


def options_of(broker: RunningBroker, **more: str) -> SinkOptions:
    names = {name.replace("_", "."): value for name, value in more.items()}
    return SinkOptions.read({"kafka.bootstrap.servers": broker.bootstrap, "topic": TOPIC, **names})


def write(options: SinkOptions, query: str, batch_id: int, attempt: str, values: list[str]) -> Transaction:
    table = pa.record_batch({"key": pa.array(values), "value": pa.array(values)})
    name = transaction_name(query, batch_id, 0, attempt)
    written = TaskWriter(options, name).write(iter([table]))
    assert written is not None
    return written


def commits_of(options: SinkOptions, age_ms: float = 0) -> SinkCommits:
    return SinkCommits(options.settings, options.transaction_timeout_ms, age_ms)


def report(options: SinkOptions, query: str, batch_id: int, attempt: str, values: list[str]) -> TaskWrote:
    """What an attempt tells the driver."""
    table = pa.record_batch({"key": pa.array(values), "value": pa.array(values)})
    writer = TaskWriter(options, transaction_name(query, batch_id, 0, attempt))
    transaction = writer.write(iter([table]))
    return TaskWrote(query, transaction, writer.records, 0.0, False, writer.is_held, writer.spans())


def held(options: SinkOptions, wrote: TaskWrote) -> TaskWrote:
    """The same of an attempt that took long."""
    assert wrote.transaction is not None
    with Cluster(options.settings) as cluster:
        end_transactions(cluster, [Producer(*wrote.transaction)], committed=False)
    return replace(wrote, is_held=True)


def wait_for_markers(cluster: Cluster) -> None:
    """EndTxn is answered when the outcome is durable; the markers, and with them the records, follow."""
    places = dict.fromkeys([TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)], LATEST)
    deadline = time.monotonic() + 20
    while cluster.list_offsets(places, READ_COMMITTED) != cluster.list_offsets(places, READ_UNCOMMITTED):
        assert time.monotonic() < deadline, "a transaction stays open"
        time.sleep(0.01)


def visible(options: SinkOptions, prefix: str, *, settled: bool = True) -> list[str]:
    found: list[str] = []
    with Cluster(options.settings) as cluster:
        if settled:
            wait_for_markers(cluster)
        for partition in range(PARTITIONS):
            place = TopicPartition(TOPIC, partition)
            end = cluster.list_offsets({place: LATEST})[place].offset
            offset = 0
            for piece in PartitionReader(cluster, place).slices(0, end, 10_000):
                aborted = [AbortedTransaction(*one) for one in piece.aborted or ()]
                columns, offset = decode(piece.records, offset, end, aborted=aborted)
                found += [value.decode() for value in columns.values.to_pylist()]
    return sorted(value for value in found if value.startswith(prefix))


def test_a_batch_is_visible_once_it_is_committed_and_a_replay_adds_nothing(
    broker: RunningBroker, query: str
) -> None:
    options = options_of(broker)
    values = [f"{query}-{number}" for number in range(50)]
    first = write(options, query, 0, "a", values[:25])
    second = write(options, query, 0, "b", values[25:])
    lost = write(options, query, 0, "c", values[:25])
    assert visible(options, query, settled=False) == []
    with commits_of(options) as commits:
        done = commits.run(commit(query, 0, [first, second]))
    assert (done.transactions, done.was_decided_before, done.swept) == (2, False, 1)
    assert visible(options, query) == sorted(values)
    with Cluster(options.settings) as cluster:
        assert open_transactions(cluster, query) == []
        again = end_transactions(cluster, [Producer(*lost)], committed=True)
        assert again == {lost.transactional_id: ErrorCode.INVALID_TXN_STATE}
    replayed = write(options, query, 0, "d", values)
    with commits_of(options) as commits:
        done = commits.run(commit(query, 0, [replayed]))
    assert done.was_decided_before
    assert visible(options, query) == sorted(values)


def test_a_new_driver_finishes_what_the_last_one_decided(broker: RunningBroker, query: str) -> None:
    options = options_of(broker)
    written = write(options, query, 0, "a", [f"{query}-1"])
    with commits_of(options) as commits:
        driver = commits.execute(Claim(query))
        assert commits.execute(WriteDecision(driver, Decision(query, 0, (written,))))
        assert commits.execute(CommitDecision(driver))
    assert visible(options, query, settled=False) == []
    with commits_of(options) as commits:
        replayed = write(options, query, 0, "b", [f"{query}-1"])
        assert commits.run(commit(query, 0, [replayed])).was_decided_before
        assert commits.execute(ReadCommitLog(query)).is_settled
    assert visible(options, query) == [f"{query}-1"]


def test_a_decision_that_was_not_committed_counts_for_nothing(broker: RunningBroker, query: str) -> None:
    options = options_of(broker)
    with commits_of(options) as old, commits_of(options) as new:
        written = write(options, query, 0, "a", [f"{query}-old"])
        driver = old.execute(Claim(query))
        assert old.execute(WriteDecision(driver, Decision(query, 0, (written,))))
        new.execute(Claim(query))
        assert new.execute(ReadCommitLog(query)).decision is None
        assert old.execute(CommitDecision(driver)) is False
        assert new.execute(ReadCommitLog(query)).decision is None


def test_what_the_next_driver_is_about_to_decide_is_not_decided(broker: RunningBroker, query: str) -> None:
    """The old driver claimed, stood still, and reads while the new one has its decision written."""
    options = options_of(broker)
    with commits_of(options) as old, commits_of(options) as new:
        old.execute(Claim(query))
        written = write(options, query, 0, "a", [f"{query}-new"])
        driver = new.execute(Claim(query))
        assert new.execute(WriteDecision(driver, Decision(query, 0, (written,))))
        assert old.execute(ReadCommitLog(query)).decision is None
        assert new.execute(CommitDecision(driver))
        new.execute(Claim(query))  # which waits for the marker
        assert old.execute(ReadCommitLog(query)).decided_batch_id == 0


def test_a_driver_that_was_overtaken_is_fenced(broker: RunningBroker, query: str) -> None:
    options = options_of(broker)
    written = write(options, query, 0, "a", [f"{query}-1"])
    with commits_of(options) as old, commits_of(options) as new:
        steps = commit(query, 0, [written])
        answer = old.execute(next(steps))
        answer = old.execute(steps.send(answer))
        new.execute(Claim(query))
        with pytest.raises(FencedDriver, match="took over"):
            while True:
                answer = old.execute(steps.send(answer))


def test_another_querys_open_decision_hides_nothing(broker: RunningBroker) -> None:
    """Both queries have one partition of the commit log; the first holds its last stable offset back."""
    options = options_of(broker)
    with commits_of(options) as commits:
        place = commits._commit_log_place("other-0")
        names = (f"other-{number}" for number in range(1, 100))
        neighbour = next(name for name in names if commits._commit_log_place(name) == place)
    with commits_of(options) as blocking, commits_of(options) as commits:
        driver = blocking.execute(Claim("other-0"))
        assert blocking.execute(WriteDecision(driver, Decision("other-0", 0, ())))
        commits.run(commit(neighbour, 0, [write(options, neighbour, 0, "a", ["other-value"])]))
        assert commits.execute(ReadCommitLog(neighbour)).decided_batch_id == 0


def test_what_was_aborted_for_its_time_is_published_with_the_rest(broker: RunningBroker, query: str) -> None:
    options = options_of(broker, kafka_compression_type="zstd")
    values = [f"{query}-{number}" for number in range(90)]
    timed_out = held(options, report(options, query, 0, "a", values[:30]))
    wrote = [
        replace(timed_out, is_held=False),  # it was open when it reported
        held(options, report(options, query, 0, "b", values[30:60])),
        report(options, query, 0, "c", values[60:]),
    ]
    lost = held(options, report(options, query, 0, "d", values))
    assert lost.transaction is not None and visible(options, query, settled=False) == []
    with commits_of(options) as commits:
        done = commits.run(sink._commit_steps(0, wrote))
    assert (done.transactions, done.published, done.swept) == (3, 60, 0)
    assert visible(options, query) == sorted(values)
    with commits_of(options) as commits:
        assert commits.run(sink._commit_steps(0, [report(options, query, 0, "e", values)])).was_decided_before
    assert visible(options, query) == sorted(values)


def test_what_is_published_keeps_keys_partitions_order_headers_and_time(
    broker: RunningBroker, query: str
) -> None:
    options = options_of(broker, kafka_batch_size="300")
    numbers = list(range(200))
    headers = pa.array(
        [[{"key": "h", "value": b"%d" % number}] for number in numbers],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    table = pa.record_batch(
        {
            "key": pa.array([b"%d" % (number % 7) for number in numbers]),
            "value": pa.array([f"{query}-{number:04}" for number in numbers]),
            "headers": headers,
            "timestamp": pa.array(np.array(numbers) * 1_000_000, pa.timestamp("us", "UTC")),
        }
    )
    writer = TaskWriter(options, transaction_name(query, 0, 0, "a"))
    transaction = writer.write(iter([table]))
    wrote = held(options, TaskWrote(query, transaction, 200, 0.0, False, False, writer.spans()))
    with commits_of(options) as commits:
        commits.run(sink._commit_steps(0, [wrote]))
    found = []
    with Cluster(options.settings) as cluster:
        wait_for_markers(cluster)
        for partition in range(PARTITIONS):
            place = TopicPartition(TOPIC, partition)
            end = cluster.list_offsets({place: LATEST})[place].offset
            offset, last = 0, ""
            for piece in PartitionReader(cluster, place).slices(0, end, 10_000):
                aborted = [AbortedTransaction(*one) for one in piece.aborted or ()]
                columns, offset = decode(piece.records, offset, end, aborted=aborted, with_headers=True)
                assert columns.headers is not None
                for key, value, time_ms, header in zip(
                    columns.keys.to_pylist(),
                    columns.values.to_pylist(),
                    columns.timestamps_ms.tolist(),
                    columns.headers.to_pylist(),
                    strict=True,
                ):
                    if value.decode().startswith(query):
                        number = int(value[-4:])
                        assert key == b"%d" % (number % 7) and time_ms == number * 1_000
                        assert header == [{"key": "h", "value": b"%d" % number}]
                        assert choose_partitions(pa.array([key]), PARTITIONS, 0)[0] == partition
                        assert value.decode() > last, "in the order in which it was written"
                        last = value.decode()
                        found.append(number)
    assert sorted(found) == numbers


def test_a_driver_that_dies_while_it_publishes(
    broker: RunningBroker, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A piece is a batch here; each time another driver goes on, and the first one wakes up late."""
    monkeypatch.setattr(sink_commits, "PIECE_BYTES_MAX", 1)
    options = options_of(broker, kafka_batch_size="200")
    for pieces in (1, 2, 4, 7, 8):
        name = f"{query}-{pieces}"
        values = [f"{name}-{number}" for number in range(20)]
        wrote = [held(options, report(options, name, 0, "a", values))]
        with commits_of(options) as first, commits_of(options) as second:
            steps = sink._commit_steps(0, wrote)
            request = next(steps)
            while pieces:
                answer = first.execute(request)
                pieces -= isinstance(request, PublishSome | CommitSome)
                request = steps.send(answer)
            assert visible(options, name, settled=False) != values
            again = sink._commit_steps(0, [report(options, name, 0, "b", values)])
            assert second.run(again).was_decided_before
            with pytest.raises(FencedDriver):
                while True:
                    request = steps.send(first.execute(request))
        assert visible(options, name) == sorted(values)


def test_records_that_are_gone_are_not_decided(broker: RunningBroker, query: str) -> None:
    """The words say how old it is and what is allowed; nothing is left open; the next try may succeed."""
    broker.create_topic(query[:60], 1)
    options = replace(options_of(broker), topic=query[:60])
    wrote = [held(options, report(options, query, 0, "a", ["1", "2"])), report(options, query, 0, "b", ["3"])]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    place = KafkaPartition(query[:60], 0, 1)
    admin.delete_records([place])[place].result(20)
    with commits_of(options, age_ms=70_000) as commits, pytest.raises(BatchTooOld) as told:
        commits.run(sink._commit_steps(0, wrote))
    for words in (
        "nothing of it is visible",
        "70 s after it began",
        "900 s",
        "2 of their 2 records",
        query[:60],
    ):
        assert words in str(told.value)
    with Cluster(options.settings) as cluster:
        assert open_transactions(cluster, query) == []
    with commits_of(options) as commits:
        assert commits.run(sink._commit_steps(0, [report(options, query, 0, "c", ["3"])])).transactions == 1


def test_decided_records_that_are_gone_are_told_every_time(broker: RunningBroker, query: str) -> None:
    """What another version decided without saying where it is, and what the log has lost since."""
    broker.create_topic(query[:60], 1)
    options = replace(options_of(broker), topic=query[:60])
    wrote = report(options, query, 0, "a", [f"{query}-1"])
    assert wrote.transaction is not None
    records = sink.records_of([wrote])
    for batch_id, known in enumerate((None, records)):
        decision = Decision(query, batch_id, (wrote.transaction,), (), known)
        with commits_of(options) as commits:
            driver = commits.execute(Claim(query))
            assert commits.execute(WriteDecision(driver, decision))
            assert commits.execute(CommitDecision(driver))
            end_transactions(commits._cluster, [Producer(*wrote.transaction)], committed=False)
            if known is not None:
                place = KafkaPartition(query[:60], 0, -1)
                admin = AdminClient({"bootstrap.servers": broker.bootstrap})
                admin.delete_records([place])[place].result(20)
        for _ in range(2):
            with commits_of(options) as commits, pytest.raises(LostTransactions, match="are missing"):
                commits.run(commit(query, batch_id, []))


def test_what_timed_out_after_the_decision_is_published_by_the_next_driver(
    broker: RunningBroker, query: str
) -> None:
    options = options_of(broker)
    wrote = [report(options, query, 0, "a", [f"{query}-1"]), report(options, query, 0, "b", [f"{query}-2"])]
    with commits_of(options) as commits:
        driver = commits.execute(Claim(query))
        transactions = tuple(one.transaction for one in wrote if one.transaction is not None)
        decision = Decision(query, 0, transactions, (), sink.records_of(wrote))
        assert commits.execute(WriteDecision(driver, decision))
        assert commits.execute(CommitDecision(driver))
    held(options, wrote[0])  # nobody came for longer than its timeout
    with commits_of(options) as commits:
        assert commits.run(commit(query, 1, [])).published == 0
    assert visible(options, query) == [f"{query}-1", f"{query}-2"]


def test_an_attempt_that_takes_long_keeps_no_reader_waiting(broker: RunningBroker, query: str) -> None:
    """Its rows come now and then, and once not for longer than half of what its transaction may last."""
    options = replace(options_of(broker, kafka_transaction_timeout_ms="10000"), two_phase=False)
    values = [f"{query}-{number}" for number in range(6)]

    def rows() -> Iterator[pa.RecordBatch]:
        for value, pause in zip(values, (0, 0.3, 8, 0.3, 0, 0), strict=True):
            time.sleep(pause)
            # a batch large enough to be sent at once
            yield pa.record_batch({"value": pa.array([value, *(f"{query}-x" * 300 for _ in range(2_000))])})

    writer = TaskWriter(options, transaction_name(query, 0, 0, "a"))
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(writer.write, rows())
        open_since: dict[int, float] = {}
        longest = 0.0
        with Cluster(options.settings) as cluster:
            places = dict.fromkeys([TopicPartition(TOPIC, one) for one in range(PARTITIONS)], LATEST)
            while not writing.done():
                now = time.monotonic()
                stable = cluster.list_offsets(places, READ_COMMITTED)
                for place, end in cluster.list_offsets(places, READ_UNCOMMITTED).items():
                    if stable[place].offset < end.offset:
                        longest = max(longest, now - open_since.setdefault(place.partition, now))
                    else:
                        open_since.pop(place.partition, None)
                time.sleep(0.05)
        transaction = writing.result()
    seconds = time.monotonic() - began
    assert seconds > 8
    assert writer.is_held and transaction is not None
    assert longest < seconds - 1.5, "it waited for the whole of it"
    wrote = TaskWrote(query, transaction, writer.records, 0.0, False, writer.is_held, writer.spans())
    with commits_of(options) as commits:
        assert commits.run(sink._commit_steps(0, [wrote])).published == writer.records == 6 * 2_001
    found = visible(options, query)
    assert len(found) == 6 * 2_001 and [value for value in found if len(value) < 100] == values


def test_a_task_that_fails_aborts(broker: RunningBroker, query: str) -> None:
    options = options_of(broker)

    def rows() -> Iterator[pa.RecordBatch]:
        values = pa.array([f"{query}-{number}" for number in range(60_000)])
        yield pa.record_batch({"value": values, "key": values})
        yield pa.record_batch({"value": pa.array([b"x" * (5 << 20)]), "key": pa.array(["k"])})
        raise OSError("the executor stumbles")

    with pytest.raises(BadRow, match=r"kafka\.batch\.size"):
        TaskWriter(options, transaction_name(query, 0, 0, "large")).write(
            iter([pa.record_batch({"value": pa.array([b"x" * (5 << 20)])})])
        )
    with pytest.raises((OSError, BadRow)):
        TaskWriter(options, transaction_name(query, 0, 0, "a")).write(rows())
    with Cluster(options.settings) as cluster:
        assert open_transactions(cluster, query) == []
    assert visible(options, query) == []


def test_at_least_once_is_visible_at_once(broker: RunningBroker, query: str) -> None:
    options = options_of(broker)
    table = pa.record_batch({"value": pa.array([f"{query}-1"])})
    assert TaskWriter(options, None).write(iter([table])) is None
    assert visible(options, query) == [f"{query}-1"]


def test_columns_choose_topic_partition_headers_and_time(broker: RunningBroker, query: str) -> None:
    broker.create_topic(f"{query[:60]}-x", 4)
    options = SinkOptions.read(
        {"kafka.bootstrap.servers": broker.bootstrap, "kafka.compression.type": "zstd"}
    )
    headers = pa.array(
        [[{"key": "h", "value": b"1"}], None],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    table = pa.record_batch(
        {
            "topic": pa.array([f"{query[:60]}-x", TOPIC]),
            "key": pa.array([None, b"k"], pa.binary()),
            "value": pa.array([f"{query}-1", f"{query}-2"]),
            "partition": pa.array([3, 1], pa.int32()),
            "headers": headers,
            "timestamp": pa.array(np.array([1_700_000_000_123_456, 5_000]), pa.timestamp("us", "UTC")),
        }
    )
    TaskWriter(options, None).write(iter([table]))
    with Cluster(options.settings) as cluster:
        place = TopicPartition(f"{query[:60]}-x", 3)
        (piece,) = PartitionReader(cluster, place).slices(0, 1, 10_000)
        columns, _ = decode(piece.records, 0, 1, aborted=(), with_headers=True)
    assert columns.timestamps_ms.tolist() == [1_700_000_000_123]
    assert columns.headers is not None and columns.headers.to_pylist() == [[{"key": "h", "value": b"1"}]]
    assert columns.keys.to_pylist() == [None]
    assert visible(options, query) == [f"{query}-2"]


def test_two_phases_where_the_broker_allows_them(broker: RunningBroker, query: str) -> None:
    with Cluster(options_of(broker).settings) as cluster:
        assert init_producer(cluster, f"{query}-2pc", 60_000, two_phase=True).two_phase
    with RunningBroker({}, mode="thread") as plain, Cluster(options_of(plain).settings) as cluster:
        assert not init_producer(cluster, f"{query}-2pc", 60_000, two_phase=True).two_phase


def test_forgetting_a_query(broker: RunningBroker, query: str) -> None:
    options = options_of(broker)
    with commits_of(options) as commits:
        commits.run(commit(query, 0, [write(options, query, 0, "a", [f"{query}-1"])]))
        commits.forget(query)
        log = commits.execute(ReadCommitLog(query))
    assert log.decision is None and log.is_settled


def test_keys_go_where_other_clients_send_them(broker: RunningBroker) -> None:
    from confluent_kafka import Producer as OtherProducer

    broker.create_topic("partitioned", 7)
    keys = [b"%d" % number * (1 + number % 9) for number in range(300)]
    chosen: dict[bytes, int] = {}
    other = OtherProducer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random"})
    for key in keys:
        other.produce(
            "partitioned",
            b"v",
            key,
            on_delivery=lambda error, sent: chosen.update({sent.key(): sent.partition()}),  # type: ignore[dict-item]
        )
    assert other.flush(30) == 0
    ours = choose_partitions(pa.array(keys), 7, 0)
    assert dict(zip(keys, ours.tolist(), strict=True)) == chosen


def run_to(commits: SinkCommits, steps: Steps, requests: int, halves_end: bool) -> Any:
    """Carry so many requests out and return the last answer; an End may be cut off after its first half."""
    answer: Any = None
    for number in range(requests):
        request = steps.send(answer)
        if halves_end and number == requests - 1 and isinstance(request, End):
            half = request.transactions[: len(request.transactions) // 2]
            commits.execute(replace(request, transactions=half))
            return None
        answer = commits.execute(request)
    return answer


@pytest.mark.parametrize("wakes_up", [False, True], ids=["dies", "wakes up late"])
@pytest.mark.parametrize("halves_end", [False, True], ids=["whole", "in the middle"])
def test_a_driver_that_stops_after_any_request(
    broker: RunningBroker, query: str, wakes_up: bool, halves_end: bool
) -> None:
    """Each time another driver replays the batch; then the first may go on where it stopped."""
    options = options_of(broker)
    for requests in range(9):
        name = f"{query}-{requests}"
        values = [f"{name}-a", f"{name}-b"]

        def tasks(attempt: str, name: str = name, values: list[str] = values) -> list[Transaction]:
            return [
                write(options, name, 0, f"{attempt}{number}", [value]) for number, value in enumerate(values)
            ]

        with commits_of(options) as first, commits_of(options) as second:
            steps = commit(name, 0, tasks("first"))
            try:
                answer = run_to(first, steps, requests, halves_end)
            except StopIteration:
                break
            assert second.run(commit(name, 0, tasks("second"))).batch_id == 0
            assert visible(options, name) == values, f"after {requests} requests"
            if wakes_up and requests and not halves_end:
                with contextlib.suppress(FencedDriver, BatchTooOld, StopIteration):
                    while True:
                        answer = first.execute(steps.send(answer))
            second.run(commit(name, 1, []))
            assert visible(options, name) == values, (
                f"after {requests} requests, and more of the first driver"
            )
    else:
        assert requests >= 8


COMMIT_IN_A_NEW_PROCESS = """
import pickle, sys
options, batch_id, messages = pickle.load(open(sys.argv[1], "rb"))
from tidelog.pipelines import sink
import tidelog.pipelines.data_source
sink._commit(options, batch_id, messages)
print(*sorted({"numpy", "pandas", "pyarrow"} & set(sys.modules)))
"""


def test_a_commit_imports_nothing_that_only_tasks_need(
    broker: RunningBroker, query: str, tmp_path: Path
) -> None:
    """Spark commits each micro-batch in a process of its own: Arrow and numpy take longer than the commit."""
    options = options_of(broker)
    wrote = report(options, query, 0, "a", [f"{query}-1"])
    (tmp_path / "commit").write_bytes(pickle.dumps((options, 0, [wrote])))
    command = [sys.executable, "-c", COMMIT_IN_A_NEW_PROCESS, str(tmp_path / "commit")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == ""
    assert visible(options, query) == [f"{query}-1"]
