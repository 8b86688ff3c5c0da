"""The sink's writing and committing against a real broker, without Spark."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")  # Spark is an extra

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
from tidelog.pipelines.commit_protocol import (
    BatchTooOld,
    Claim,
    CommitDecision,
    Decision,
    End,
    FencedDriver,
    LostTransactions,
    ReadCommitLog,
    Steps,
    Transaction,
    WriteDecision,
    commit,
    transaction_name,
)
from tidelog.pipelines.record_batches import BadRow, choose_partitions
from tidelog.pipelines.record_columns import AbortedTransaction, decode
from tidelog.pipelines.sink import TaskWriter
from tidelog.pipelines.sink_commits import SinkCommits
from tidelog.pipelines.sink_options import SinkOptions
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


def commits_of(options: SinkOptions, age_ms: float = 0, two_phase: bool = False) -> SinkCommits:
    return SinkCommits(options.settings, options.transaction_timeout_ms, age_ms, two_phase)


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


def test_a_batch_that_took_too_long_is_given_up_whole(broker: RunningBroker, query: str) -> None:
    options = options_of(broker)
    written = write(options, query, 0, "a", [f"{query}-1"])
    with (
        commits_of(options, age_ms=options.transaction_timeout_ms * 0.6) as commits,
        pytest.raises(BatchTooOld, match=r"transaction\.timeout\.ms"),
    ):
        commits.run(commit(query, 0, [written]))
    with commits_of(options, age_ms=options.transaction_timeout_ms * 0.6, two_phase=True) as commits:
        assert commits.run(commit(query, 0, [written])).transactions == 1
    assert visible(options, query) == [f"{query}-1"]


def test_a_decided_transaction_that_is_gone_is_told_every_time(broker: RunningBroker, query: str) -> None:
    options = options_of(broker)
    written = write(options, query, 0, "a", [f"{query}-1"])
    with commits_of(options) as commits:
        driver = commits.execute(Claim(query))
        assert commits.execute(WriteDecision(driver, Decision(query, 0, (written,))))
        assert commits.execute(CommitDecision(driver))
        end_transactions(commits._cluster, [Producer(*written)], committed=False)
    for _ in range(2):
        with commits_of(options) as commits, pytest.raises(LostTransactions, match="are missing"):
            commits.run(commit(query, 0, []))


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
            on_delivery=lambda error, sent: chosen.update({sent.key(): sent.partition()}),
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
