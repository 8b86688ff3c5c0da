"""Batch jobs of the sink against a real broker, without Spark: what holds with a name and without one."""

import pickle
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")  # Spark is an extra

from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

from tidelog.client.cluster import LATEST, Cluster
from tidelog.client.faults import LinkFault, Refusal
from tidelog.client.transactional_writer import Producer, end_transactions, open_transactions
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import TopicPartition
from tidelog.pipelines import sink, sink_commits
from tidelog.pipelines.commit_protocol import COMMIT_LOG_TOPIC, BatchTooOld, LostTransactions, commit
from tidelog.pipelines.sink import TaskWrote, TidelogBatchWriter
from tidelog.pipelines.sink_commits import SinkCommits
from tidelog.pipelines.sink_options import SinkOptions
from tidelog.testing.broker import RunningBroker

TOPIC = "out"


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with RunningBroker({"transaction.two.phase.commit.enable": "true"}, mode="thread") as running:
        running.create_topic(TOPIC, 1)
        yield running


@pytest.fixture(autouse=True)
def nothing_is_left(broker: RunningBroker) -> Iterator[None]:
    yield
    with Cluster(options_of(broker).settings) as cluster:
        end_transactions(cluster, open_transactions(cluster, ""), committed=False)


def options_of(broker: RunningBroker, **more: str) -> SinkOptions:
    return SinkOptions.read({"kafka.bootstrap.servers": broker.bootstrap, "topic": TOPIC, **more})


def job_of(broker: RunningBroker, **more: str) -> TidelogBatchWriter:
    """As commit and abort have it: through pickle."""
    writer: TidelogBatchWriter = pickle.loads(pickle.dumps(TidelogBatchWriter(options_of(broker, **more))))
    return writer


def task(writer: TidelogBatchWriter, value: str) -> TaskWrote:
    wrote = writer.write(iter([pa.record_batch({"value": pa.array([value])})]))
    assert isinstance(wrote, TaskWrote) and wrote.transaction is not None
    return wrote


def open_ids(broker: RunningBroker, writer: TidelogBatchWriter) -> list[str | None]:
    with Cluster(writer.options.settings) as cluster:
        return [one.transactional_id for one in open_transactions(cluster, writer.query)]


def outcome(broker: RunningBroker, wrote: TaskWrote) -> str:
    """What became of a task's transaction: EndTxn again is answered as the first time, and only then."""
    assert wrote.transaction is not None
    with Cluster(options_of(broker).settings) as cluster:
        answer = end_transactions(cluster, [Producer(*wrote.transaction)], committed=True)
    return "committed" if set(answer.values()) == {ErrorCode.NONE} else "aborted"


def test_only_a_job_with_a_name_may_leave_something_without_a_timeout(broker: RunningBroker) -> None:
    assert not task(job_of(broker), "a").two_phase
    assert task(job_of(broker, txnAppId="app", txnVersion="0"), "b").two_phase


def test_a_job_is_committed_and_forgotten(broker: RunningBroker) -> None:
    writer = job_of(broker)
    wrote = [task(writer, "a"), task(writer, "b")]
    writer.commit(list(wrote))
    assert [outcome(broker, one) for one in wrote] == ["committed"] * 2
    with SinkCommits(writer.options.settings, 60_000, 0) as commits:
        assert commits._read_log(writer.query).decision is None


def test_a_failed_job_aborts_what_lost_tasks_left(broker: RunningBroker) -> None:
    writer, other = job_of(broker), job_of(broker)
    reported, lost, others = task(writer, "a"), task(writer, "b"), task(other, "c")
    assert len(open_ids(broker, writer)) == 2
    writer.abort([reported, None])
    assert open_ids(broker, writer) == []
    assert [outcome(broker, one) for one in (reported, lost)] == ["aborted"] * 2
    assert open_ids(broker, other) == [others.transaction and others.transaction.transactional_id]


def test_a_failed_job_of_which_no_task_reported(broker: RunningBroker) -> None:
    writer = job_of(broker)
    task(writer, "a")
    writer.abort([None, None])
    assert open_ids(broker, writer) == []


def test_a_failed_job_with_a_name_leaves_what_is_not_its_own(broker: RunningBroker) -> None:
    """Another driver of the same name may be about to decide it; the next commit of the name sweeps."""
    writer = job_of(broker, txnAppId="named", txnVersion="0")
    reported, others = task(writer, "a"), task(writer, "b")
    writer.abort([reported, None])
    assert open_ids(broker, writer) == [others.transaction and others.transaction.transactional_id]


class Away:
    """The cluster is away for the first so many EndTxn of tasks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
        self.left = times
        self.pauses: list[float] = []
        self._end = SinkCommits._end
        monkeypatch.setattr(SinkCommits, "_end", self)

    def __get__(self, commits: SinkCommits, _: object) -> Any:
        def end(transactions: Any, committed: bool) -> Any:
            if committed and self.left:
                self.left -= 1
                self._end(commits, transactions[:1], committed)
                raise LinkFault("nobody answers")
            return self._end(commits, transactions, committed)

        return end


def test_a_job_that_is_decided_is_not_given_up(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = job_of(broker)
    wrote = [task(writer, "a"), task(writer, "b")]
    away = Away(monkeypatch, times=3)
    sink._commit_job(writer.options, wrote, away.pauses.append)
    assert away.pauses == [sink.RETRY_SECONDS] * 3
    assert [outcome(broker, one) for one in wrote] == ["committed"] * 2


def test_a_job_whose_time_is_over_is_finished_by_its_abort(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer = job_of(broker)
    wrote = [task(writer, "a"), task(writer, "b")]
    Away(monkeypatch, times=1)
    # The time passes while the first try is under way.
    moments = iter([0.0, 0.0, writer.options.transaction_timeout_ms / 1000])
    with pytest.MonkeyPatch.context() as clock, pytest.raises(LinkFault):
        clock.setattr(sink, "time", SimpleNamespace(monotonic=lambda: next(moments)))
        sink._commit_job(writer.options, wrote)
    writer.abort(list(wrote))
    assert [outcome(broker, one) for one in wrote] == ["committed"] * 2
    assert "all of it is visible" in caplog.text


def test_a_job_that_failed_before_its_decision_is_aborted(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = job_of(broker)
    wrote = [task(writer, "a"), task(writer, "b")]

    def refuse(self: SinkCommits, driver: object, decision: object) -> bool:
        raise LinkFault("nobody answers")

    monkeypatch.setattr(SinkCommits, "_write_decision", refuse)
    with pytest.raises(LinkFault):
        writer.commit(list(wrote))
    writer.abort(list(wrote))
    assert [outcome(broker, one) for one in wrote] == ["aborted"] * 2
    assert open_ids(broker, writer) == []


def test_a_job_that_took_too_long_leaves_nothing(broker: RunningBroker) -> None:
    """Its records cannot be published: here because nobody knows where they are."""
    writer = job_of(broker)
    wrote = [task(writer, "a"), task(writer, "b")]
    with Cluster(writer.options.settings) as cluster:
        assert wrote[0].transaction is not None
        end_transactions(cluster, [Producer(*wrote[0].transaction)], committed=False)
    with pytest.raises(BatchTooOld):
        writer.commit([replace(one, records=one.records + 1) for one in wrote])
    assert open_ids(broker, writer) == []
    writer.abort(list(wrote))
    assert open_ids(broker, writer) == []


def test_a_job_that_took_long_is_published(broker: RunningBroker) -> None:
    writer = job_of(broker)
    wrote = [task(writer, "a"), task(writer, "b")]
    with Cluster(writer.options.settings) as cluster:
        assert wrote[0].transaction is not None
        end_transactions(cluster, [Producer(*wrote[0].transaction)], committed=False)
        place = TopicPartition(TOPIC, 0)
        before = cluster.list_offsets({place: LATEST})[place].offset
        writer.commit(list(wrote))
        assert [outcome(broker, one) for one in wrote] == ["aborted", "committed"]
        assert cluster.list_offsets({place: LATEST})[place].offset > before + 1, "the record once more"


def test_an_end_that_is_refused_is_told_by_its_name(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as lost: nothing was aborted, and whoever may end it still can."""
    writer = job_of(broker, txnAppId="acl", txnVersion="0")
    wrote = task(writer, "a")
    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

    def denied(cluster: Cluster, producers: list[Producer], *, committed: bool) -> dict[Any, ErrorCode]:
        return {producer.transactional_id: code for producer in producers}

    with pytest.MonkeyPatch.context() as acl:
        acl.setattr(sink_commits, "end_transactions", denied)
        with pytest.raises(Refusal, match=code.name):
            writer.commit([wrote])
        writer.abort([wrote, None])  # no more than a warning
    with SinkCommits(writer.options.settings, 60_000, 0) as commits:
        assert commits.run(commit(writer.query, 0, [])).was_decided_before
    assert outcome(broker, wrote) == "committed"


def test_a_transaction_that_timed_out_is_lost(broker: RunningBroker) -> None:
    writer = job_of(broker, txnAppId="lost", txnVersion="0")
    wrote = task(writer, "a")
    assert wrote.transaction is not None
    with SinkCommits(writer.options.settings, 60_000, 0) as commits:
        steps = commit(writer.query, 0, [wrote.transaction])
        answer = None
        while not commits.may_be_decided:
            answer = commits.execute(steps.send(answer))
        end_transactions(commits._cluster, [Producer(*wrote.transaction)], committed=False)
        with pytest.raises(LostTransactions):
            while True:
                answer = commits.execute(steps.send(answer))


def test_the_commit_log_is_cut_into_small_segments(broker: RunningBroker) -> None:
    """Each commit reads what compaction leaves: the newest segment, whole."""
    job = job_of(broker)
    job.commit([task(job, "a")])
    resource = ConfigResource(ConfigResource.Type.TOPIC, COMMIT_LOG_TOPIC)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    configs = admin.describe_configs([resource])[resource].result(20)
    assert configs["cleanup.policy"].value == "compact"
    assert int(configs["segment.bytes"].value) <= 1 << 20
