"""The transaction machine, step by step, with a log that does as it is told."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tidelog.model.effects import Append, Effect, Reply, Send, SetTimer
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import TopicPartition
from tidelog.transactions.commands import (
    AbortTimedOut,
    AddPartitions,
    Command,
    EndTransaction,
    ExpireTransactionalIds,
    InitProducerId,
    MarkersToWrite,
    MarkersWritten,
    TimerFired,
)
from tidelog.transactions.machine import TransactionMachine
from tidelog.transactions.settings import TransactionSettings
from tidelog.transactions.states import TransactionState, mermaid
from tidelog.transactions.transaction import EPOCH_MAX, Transaction

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
SETTINGS = TransactionSettings(
    transaction_max_timeout_ms=900_000, transactional_id_expiration_ms=10_000, add_partitions_wait_ms=0
)
PATIENT = replace(SETTINGS, add_partitions_wait_ms=20)


class Bench:
    """A machine, its log, and what it answered and sent."""

    def __init__(self, settings: TransactionSettings = SETTINGS) -> None:
        self.settings = settings
        self.machine = TransactionMachine(0, 3, settings)
        self.log: list[tuple[bytes, bytes | None]] = []
        self.answers: dict[int, dict[str, Any]] = {}
        self.sent: list[MarkersToWrite] = []
        self.timers: dict[Any, int] = {}
        self.unreplicated: list[int] = []
        self.refusal: ErrorCode | None = None
        self.replicates = True
        self.marks = True
        self.now_ms = 1_000
        self.token = 0
        self.next_producer_id = 500

    def run(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Reply():
                    assert effect.token not in self.answers
                    self.answers[effect.token] = dict(effect.response)
                case SetTimer():
                    self.timers[effect.key] = effect.deadline_ms
                case Send():
                    assert isinstance(effect.message, MarkersToWrite)
                    self.sent.append(effect.message)
                    if self.marks:
                        self.mark(effect.message)
                case Append():
                    self.append(effect)

    def append(self, effect: Append) -> None:
        if self.refusal is not None:
            self.run(self.machine.append_refused(effect.token, self.refusal, self.now_ms))
            return
        self.run(self.machine.wrote(effect.token, len(self.log), self.now_ms))
        self.log += effect.records
        if self.replicates:
            self.run(self.machine.appended(effect.token, self.now_ms))
        else:
            self.unreplicated.append(effect.token)

    def replicate(self) -> None:
        while self.unreplicated:
            self.run(self.machine.appended(self.unreplicated.pop(0), self.now_ms))

    def mark(self, message: MarkersToWrite, error: ErrorCode = ErrorCode.NONE) -> None:
        self.do(
            MarkersWritten(
                message.transactional_id,
                message.producer_id,
                message.producer_epoch,
                dict.fromkeys(message.partitions, error),
            )
        )

    def do(self, command: Command) -> None:
        self.run(self.machine.handle(command, self.now_ms))

    def ask(self, command: Any) -> dict[str, Any] | None:
        self.token += 1
        command = replace(command, token=self.token)
        if self.machine.needs_producer_id(command):
            command = replace(command, spare_producer_id=self.next_producer_id)
            self.next_producer_id += 1
        self.do(command)
        return self.answers.get(self.token)

    def init(self, *, timeout_ms: int = 60_000, producer_id: int = -1, epoch: int = -1) -> Any:
        answer = self.ask(InitProducerId(0, "tx", timeout_ms, producer_id, epoch))
        return answer and (answer["error_code"].name, answer["producer_id"], answer["producer_epoch"])

    def add(self, producer_id: int, epoch: int, *places: TopicPartition, version: int = 0) -> Any:
        answer = self.ask(AddPartitions(0, "tx", producer_id, epoch, frozenset(places or (P0,)), version))
        return answer and answer["error_code"].name

    def end(self, producer_id: int, epoch: int, committed: bool = True, version: int = 0) -> Any:
        answer = self.ask(EndTransaction(0, "tx", producer_id, epoch, committed, version))
        return answer and (answer["error_code"].name, answer["producer_id"], answer["producer_epoch"])

    def reload(self) -> None:
        """A new coordinator takes over."""
        self.machine = TransactionMachine(0, 4, self.settings)
        for key, value in self.log:
            self.machine.apply(key, value)
        self.run(self.machine.loaded(self.now_ms))

    @property
    def transaction(self) -> Transaction:
        return self.machine.transactions["tx"]

    @property
    def state(self) -> str:
        return str(self.transaction.state)

    def worn(self, epoch: int) -> None:
        """Bring the id to an epoch near the end."""
        self.init()
        self.machine.transactions["tx"] = replace(self.transaction, producer_epoch=epoch)


FENCED = ("PRODUCER_FENCED", -1, -1)
CONCURRENT = ("CONCURRENT_TRANSACTIONS", -1, -1)


# InitProducerId


def test_a_new_id_and_the_next_producers() -> None:
    bench = Bench()
    assert bench.init() == ("NONE", 500, 0)
    assert bench.init() == ("NONE", 500, 1)
    assert bench.state == "Empty" and len(bench.log) == 2


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_out_of_bounds(timeout_ms: int) -> None:
    assert Bench().init(timeout_ms=timeout_ms) == ("INVALID_TRANSACTION_TIMEOUT", -1, -1)


def test_an_empty_id_is_invalid() -> None:
    answer = Bench().ask(InitProducerId(0, "", 1_000))
    assert answer is not None and answer["error_code"] is ErrorCode.INVALID_REQUEST


def test_no_producer_id_to_be_had() -> None:
    bench = Bench()
    bench.do(InitProducerId(9, "tx", 1_000))
    assert bench.answers[9]["error_code"] is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_producer_that_recovers_names_its_epoch() -> None:
    bench = Bench()
    bench.init()
    assert bench.init(producer_id=500, epoch=0) == ("NONE", 500, 1)
    assert bench.init(producer_id=500, epoch=0) == ("NONE", 500, 1), "the answer was lost: the same again"
    assert bench.init(producer_id=500, epoch=1) == ("NONE", 500, 2)
    assert bench.init(producer_id=499, epoch=2) == FENCED
    bench.init()
    assert bench.init(producer_id=500, epoch=2) == FENCED, "another producer came in between"


def test_exhausted_epochs_bring_a_new_producer_id() -> None:
    bench = Bench()
    bench.worn(EPOCH_MAX - 2)
    assert bench.init() == ("NONE", 500, EPOCH_MAX - 1)
    assert bench.init() == ("NONE", 501, 0)


def test_exhausted_epochs_of_a_producer_that_recovers() -> None:
    bench = Bench()
    bench.worn(EPOCH_MAX - 1)
    assert bench.init(producer_id=500, epoch=EPOCH_MAX - 1) == ("NONE", 501, 0)
    assert bench.init(producer_id=500, epoch=EPOCH_MAX - 1) == ("NONE", 501, 0), "a retry"
    assert bench.init(producer_id=500, epoch=EPOCH_MAX - 2) == FENCED


def test_a_new_producer_fences_and_aborts() -> None:
    bench = Bench()
    bench.init()
    bench.add(500, 0)
    bench.marks = False
    assert bench.init() == CONCURRENT
    (marker,) = bench.sent
    assert (marker.producer_epoch, marker.committed, marker.coordinator_epoch) == (1, False, 3)
    assert bench.init() == CONCURRENT, "markers are missing"
    assert bench.add(500, 0) == "CONCURRENT_TRANSACTIONS"
    bench.mark(marker)
    assert bench.add(500, 0) == "PRODUCER_FENCED"
    assert bench.init() == ("NONE", 500, 2)
    assert bench.end(500, 0) == FENCED
    assert bench.end(500, 0, committed=False, version=2) == FENCED


def test_fencing_can_always_reach_a_higher_epoch() -> None:
    bench = Bench()
    bench.worn(EPOCH_MAX - 1)
    bench.add(500, EPOCH_MAX - 1)
    assert bench.init() == CONCURRENT
    assert bench.transaction.producer_epoch == EPOCH_MAX
    assert bench.init(producer_id=500, epoch=EPOCH_MAX - 1) == FENCED
    assert bench.init() == ("NONE", 501, 0)


# Adding and verifying partitions


def test_partitions_add_up_and_are_not_written_twice() -> None:
    bench = Bench()
    bench.init()
    assert bench.add(500, 0, P0) == "NONE"
    assert bench.add(500, 0, P1) == "NONE"
    written = len(bench.log)
    assert bench.add(500, 0, P0, P1) == "NONE"
    assert len(bench.log) == written
    assert bench.transaction.partitions == {P0, P1} and bench.state == "Ongoing"


def test_who_may_not_add() -> None:
    bench = Bench()
    assert bench.add(500, 0) == "INVALID_PRODUCER_ID_MAPPING"
    bench.init()
    assert bench.add(499, 0) == "INVALID_PRODUCER_ID_MAPPING"
    assert bench.add(500, 1) == "PRODUCER_FENCED"


def test_verification() -> None:
    bench = Bench()
    both = frozenset({P0, P1})
    assert set(bench.machine.verify("tx", 500, 0, both).values()) == {ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    bench.init()
    bench.add(500, 0, P0)
    assert bench.machine.verify("tx", 500, 0, both) == {
        P0: ErrorCode.NONE,
        P1: ErrorCode.TRANSACTION_ABORTABLE,
    }
    assert bench.machine.verify("tx", 500, 1, frozenset({P0})) == {P0: ErrorCode.PRODUCER_FENCED}
    bench.replicates = False
    assert bench.add(500, 0, P1) is None
    assert bench.machine.verify("tx", 500, 0, both) == {
        P0: ErrorCode.NONE,
        P1: ErrorCode.CONCURRENT_TRANSACTIONS,
    }, "what may still be lost does not count"
    bench.replicate()
    bench.end(500, 0)
    assert set(bench.machine.verify("tx", 500, 0, both).values()) == {ErrorCode.CONCURRENT_TRANSACTIONS}


# Ending, before transactions v2


@pytest.mark.parametrize(("committed", "state"), [(True, "CompleteCommit"), (False, "CompleteAbort")])
def test_an_end_and_its_retry(committed: bool, state: str) -> None:
    bench = Bench()
    bench.init()
    bench.add(500, 0, P0, P1)
    assert bench.end(500, 0, committed) == ("NONE", 500, 0)
    (marker,) = bench.sent
    assert (marker.committed, marker.partitions, marker.producer_epoch) == (committed, {P0, P1}, 0)  # type: ignore[comparison-overlap]
    assert marker.transaction_version == 0
    assert bench.state == state
    assert bench.end(500, 0, committed) == ("NONE", 500, 0)
    assert bench.end(500, 0, not committed)[0] == "INVALID_TXN_STATE"
    assert bench.add(500, 0) == "NONE", "the next transaction has the same epoch"


def test_who_may_not_end() -> None:
    bench = Bench()
    assert bench.end(500, 0)[0] == "INVALID_PRODUCER_ID_MAPPING"
    bench.init()
    assert bench.end(499, 0)[0] == "INVALID_PRODUCER_ID_MAPPING"
    assert bench.end(500, 1) == FENCED
    assert bench.end(500, 0)[0] == "INVALID_TXN_STATE"
    assert bench.end(500, 0, committed=False)[0] == "INVALID_TXN_STATE"


def test_nobody_moves_while_markers_are_missing() -> None:
    bench = Bench()
    bench.init()
    bench.add(500, 0)
    bench.marks = False
    assert bench.end(500, 0) == ("NONE", 500, 0)
    assert bench.end(500, 0) == CONCURRENT
    assert bench.add(500, 0) == "CONCURRENT_TRANSACTIONS"
    assert bench.init() == CONCURRENT


# Transactions v2


def test_every_end_bumps_the_epoch() -> None:
    bench = Bench()
    bench.init()
    bench.add(500, 0, version=2)
    assert bench.end(500, 0, version=2) == ("NONE", 500, 1)
    assert (bench.sent[-1].producer_epoch, bench.sent[-1].transaction_version) == (1, 2)
    assert bench.end(500, 0, version=2) == ("NONE", 500, 1), "a retry"
    assert bench.end(500, 0, committed=False, version=2)[0] == "INVALID_TXN_STATE"
    bench.add(500, 1, version=2)
    assert bench.end(500, 0, version=2) == FENCED, "a late copy must not end the next transaction"
    assert bench.end(500, 1, committed=False, version=2) == ("NONE", 500, 2)


def test_an_abort_with_nothing_added() -> None:
    bench = Bench()
    bench.init()
    assert bench.end(500, 0, committed=False, version=2) == ("NONE", 500, 1)
    assert bench.state == "CompleteAbort" and not bench.sent
    assert bench.end(500, 1, committed=False, version=2) == ("NONE", 500, 2)
    assert bench.end(500, 2, committed=True, version=2)[0] == "INVALID_TXN_STATE"


def test_a_v2_retry_while_markers_are_missing() -> None:
    bench = Bench()
    bench.init()
    bench.add(500, 0, version=2)
    bench.marks = False
    bench.end(500, 0, version=2)
    assert bench.end(500, 0, version=2) == CONCURRENT
    bench.reload()
    assert bench.end(500, 0, version=2) == CONCURRENT
    bench.mark(bench.sent[-1])
    assert bench.end(500, 0, version=2) == ("NONE", 500, 1), "also by the next coordinator"


@pytest.mark.parametrize("committed", [True, False])
def test_the_next_transaction_may_end_while_markers_of_the_last_are_missing(committed: bool) -> None:
    """Commit, begin, send, abort at once: it is the producer's turn as soon as the markers are written."""
    bench = Bench()
    bench.init()
    bench.add(500, 0, version=2)
    bench.replicates = False
    bench.end(500, 0, version=2, committed=committed)
    assert bench.end(500, 1, version=2, committed=False) == CONCURRENT, "the outcome is not replicated"
    bench.marks = False
    bench.replicates = True
    bench.replicate()
    assert bench.end(500, 1, version=2, committed=False) == CONCURRENT
    assert bench.add(500, 1, version=2) == "CONCURRENT_TRANSACTIONS"
    bench.replicates = False
    bench.mark(bench.sent[-1])
    assert bench.state.startswith("Complete")
    assert bench.end(500, 1, version=2, committed=False) == CONCURRENT, "the completion is not replicated"
    bench.replicates = bench.marks = True
    bench.replicate()
    assert bench.end(500, 1, version=2, committed=False) == ("NONE", 500, 2)
    assert bench.end(500, 0, version=2, committed=False) == FENCED


def test_a_producer_may_be_ahead_of_the_state_by_a_producer_id() -> None:
    """Epochs are used up: EndTxn's answer names an id that is stored when the markers are written."""
    bench = Bench()
    bench.worn(EPOCH_MAX - 1)
    bench.add(500, EPOCH_MAX - 1, version=2)
    bench.marks = False
    assert bench.end(500, EPOCH_MAX - 1, version=2) == ("NONE", 501, 0)
    assert bench.add(501, 0, version=2) == "CONCURRENT_TRANSACTIONS"
    assert bench.end(501, 0, version=2, committed=False) == CONCURRENT
    assert bench.init(producer_id=501, epoch=0) == CONCURRENT
    bench.marks = True
    bench.mark(bench.sent[-1])
    assert bench.add(501, 0, version=2) == "NONE"
    assert bench.end(501, 0, version=2, committed=False) == ("NONE", 501, 1)


def answers(bench: Bench, *tokens: int) -> list[str | None]:
    return [bench.answers[t]["error_code"].name if t in bench.answers else None for t in tokens]


def test_partitions_of_the_next_transaction_wait_for_the_markers_of_the_last() -> None:
    bench = Bench(PATIENT)
    bench.init()
    bench.add(500, 0, version=2)
    bench.marks = False
    bench.end(500, 0, version=2)
    assert bench.add(500, 1, P0, version=2) is None
    first = bench.token
    assert bench.add(500, 1, P1, version=2) is None
    assert bench.add(500, 0, P1, version=2) is None, "of the transaction that was ended"
    assert bench.timers["waiting", "tx"] == bench.now_ms + 20
    written = len(bench.log)
    bench.mark(bench.sent[-1])
    assert answers(bench, first, first + 1, first + 2) == ["NONE", "NONE", "PRODUCER_FENCED"]
    assert len(bench.log) == written + 2, "the completion, and both partitions together"
    assert bench.transaction.partitions == {P0, P1} and bench.state == "Ongoing"
    assert not bench.machine._waiting


def test_partitions_wait_for_other_partitions_of_their_transaction() -> None:
    bench = Bench(PATIENT)
    bench.init()
    bench.replicates = False
    tokens = []
    for place in (P0, P1, P0):
        bench.add(500, 0, place, version=2)
        tokens.append(bench.token)
    assert answers(bench, *tokens) == [None, None, None]
    bench.run(bench.machine.appended(bench.unreplicated.pop(0), bench.now_ms))
    assert answers(bench, *tokens) == ["NONE", None, None], "the others are on their way together"
    bench.replicate()
    assert answers(bench, *tokens) == ["NONE", "NONE", "NONE"]
    assert bench.transaction.partitions == {P0, P1}


def test_partitions_do_not_wait_for_long() -> None:
    bench = Bench(PATIENT)
    bench.init()
    bench.add(500, 0, version=2)
    bench.marks = False
    bench.end(500, 0, version=2)
    bench.add(500, 1, version=2)
    first = bench.token
    bench.now_ms += 15
    bench.add(500, 1, version=2)
    bench.now_ms += 5
    bench.do(TimerFired(("waiting", "tx")))
    assert answers(bench, first, first + 1) == ["CONCURRENT_TRANSACTIONS", None]
    assert bench.timers["waiting", "tx"] == bench.now_ms + 15
    bench.now_ms += 15
    bench.do(TimerFired(("waiting", "tx")))
    assert answers(bench, first + 1) == ["CONCURRENT_TRANSACTIONS"]
    bench.do(TimerFired(("waiting", "tx")))
    assert not bench.machine._waiting


def test_partitions_that_wait_are_added_when_the_step_before_is_refused() -> None:
    bench = Bench(PATIENT)
    bench.init()
    bench.replicates = False
    bench.add(500, 0, P0, version=2)
    first = bench.token
    bench.add(500, 0, P1, version=2)
    bench.run(bench.machine.append_refused(bench.unreplicated[0], ErrorCode.REQUEST_TIMED_OUT, bench.now_ms))
    assert answers(bench, first, first + 1) == ["COORDINATOR_NOT_AVAILABLE", None], "still on its way"
    bench.replicates = True
    bench.replicate()
    assert answers(bench, first + 1) == ["NONE"]
    assert bench.transaction.partitions == {P0, P1}


def test_who_waits_learns_that_the_coordinator_moved() -> None:
    bench = Bench(PATIENT)
    bench.init()
    bench.replicates = False
    bench.add(500, 0, P0, version=2)
    first = bench.token
    bench.add(500, 0, P1, version=2)
    bench.run(bench.machine.resign(bench.now_ms))
    assert answers(bench, first, first + 1) == ["NOT_COORDINATOR", "NOT_COORDINATOR"]


def test_exhausted_epochs_at_the_end_of_a_transaction() -> None:
    bench = Bench()
    bench.worn(EPOCH_MAX - 1)
    bench.add(500, EPOCH_MAX - 1, version=2)
    assert bench.end(500, EPOCH_MAX - 1, version=2) == ("NONE", 501, 0)
    assert bench.sent[-1].producer_id == 500 and bench.sent[-1].producer_epoch == EPOCH_MAX
    assert bench.end(500, EPOCH_MAX - 1, version=2) == ("NONE", 501, 0), "a retry"
    bench.reload()
    assert bench.end(500, EPOCH_MAX - 1, version=2) == ("NONE", 501, 0)
    assert bench.add(501, 0, version=2) == "NONE"


# Time


def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced() -> None:
    bench = Bench()
    bench.init(timeout_ms=5_000)
    bench.add(500, 0)
    bench.now_ms += 5_000
    bench.do(AbortTimedOut())
    assert bench.state == "Ongoing"
    bench.now_ms += 1
    bench.do(AbortTimedOut())
    assert bench.state == "CompleteAbort" and bench.transaction.producer_epoch == 1
    assert bench.end(500, 0) == FENCED


def test_a_v2_producer_goes_on_after_its_timeout() -> None:
    bench = Bench()
    bench.init(timeout_ms=5_000)
    bench.add(500, 0, version=2)
    bench.now_ms += 5_001
    bench.do(AbortTimedOut())
    assert bench.end(500, 0, version=2)[0] == "INVALID_TXN_STATE"
    assert bench.end(500, 0, committed=False, version=2) == ("NONE", 500, 1)


def test_the_last_epoch_is_given_to_nobody() -> None:
    bench = Bench()
    bench.worn(EPOCH_MAX - 1)
    bench.add(500, EPOCH_MAX - 1, version=2)
    bench.now_ms += 60_001
    bench.do(AbortTimedOut())
    assert bench.end(500, EPOCH_MAX - 1, committed=False, version=2) == FENCED
    assert bench.init() == ("NONE", 501, 0)


def test_unused_ids_expire() -> None:
    bench = Bench()
    bench.init()
    bench.now_ms += 10_000
    bench.do(ExpireTransactionalIds())
    assert not bench.machine.transactions and bench.log[-1][1] is None
    assert bench.add(500, 0) == "INVALID_PRODUCER_ID_MAPPING"
    bench.reload()
    assert not bench.machine.transactions
    assert bench.init(producer_id=500, epoch=0) == ("NONE", 501, 0), "the old identity is no hindrance"


def test_open_transactions_do_not_expire() -> None:
    bench = Bench()
    bench.init()
    bench.add(500, 0)
    bench.now_ms += 100_000
    bench.do(ExpireTransactionalIds())
    assert bench.state == "Ongoing"


# Trouble


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, "COORDINATOR_NOT_AVAILABLE"),
        (ErrorCode.KAFKA_STORAGE_ERROR, "NOT_COORDINATOR"),
    ],
)
def test_a_refused_append_leaves_everything_as_it_was(refusal: ErrorCode, told: str) -> None:
    bench = Bench()
    bench.init()
    bench.refusal = refusal
    assert bench.add(500, 0) == told
    assert bench.init()[0] == told
    bench.refusal = None
    assert bench.state == "Empty" and bench.transaction.producer_epoch == 0
    assert bench.add(500, 0) == "NONE"
    bench.refusal = refusal
    assert bench.end(500, 0)[0] == told
    bench.refusal = None
    assert bench.end(500, 0) == ("NONE", 500, 0)


def test_a_refused_fence_is_as_if_never_tried() -> None:
    bench = Bench()
    bench.init()
    bench.add(500, 0)
    bench.refusal = ErrorCode.NOT_ENOUGH_REPLICAS
    assert bench.init()[0] == "COORDINATOR_NOT_AVAILABLE"
    bench.refusal = None
    assert bench.end(500, 0) == ("NONE", 500, 0)


def test_answers_and_markers_wait_for_the_replicas() -> None:
    bench = Bench()
    bench.init()
    bench.add(500, 0)
    bench.replicates = False
    assert bench.end(500, 0) is None and not bench.sent
    assert bench.add(500, 0) == "CONCURRENT_TRANSACTIONS"
    bench.replicates = True
    bench.replicate()
    assert bench.answers[bench.token - 1]["error_code"] is ErrorCode.NONE
    assert bench.state == "CompleteCommit"


def test_replicas_that_are_late_change_the_answer_not_the_outcome() -> None:
    bench = Bench()
    bench.init()
    bench.add(500, 0)
    bench.replicates = False
    assert bench.end(500, 0) is None
    bench.run(bench.machine.append_refused(bench.unreplicated[0], ErrorCode.REQUEST_TIMED_OUT, bench.now_ms))
    assert bench.answers[bench.token]["error_code"] is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert bench.end(500, 0) == CONCURRENT and not bench.sent
    bench.replicates = True
    bench.replicate()
    assert bench.state == "CompleteCommit" and len(bench.sent) == 1


@pytest.mark.parametrize("state", [TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT])
def test_the_next_coordinator_completes_what_was_decided(state: TransactionState) -> None:
    bench = Bench()
    bench.init()
    bench.add(500, 0, P0, P1)
    bench.marks = False
    bench.end(500, 0, committed=state is TransactionState.PREPARE_COMMIT)
    assert bench.transaction.state is state
    bench.sent.clear()
    bench.marks = True
    bench.reload()
    (marker,) = bench.sent
    assert marker.partitions == {P0, P1} and marker.coordinator_epoch == 4
    assert bench.state == ("CompleteCommit" if state is TransactionState.PREPARE_COMMIT else "CompleteAbort")


def test_an_open_transaction_outlives_the_coordinator() -> None:
    bench = Bench()
    bench.init()
    bench.add(500, 0)
    bench.reload()
    assert not bench.sent and bench.end(500, 0) == ("NONE", 500, 0)


def test_markers_are_sent_until_every_partition_has_one() -> None:
    bench = Bench()
    bench.init()
    bench.add(500, 0, P0, P1)
    bench.marks = False
    bench.end(500, 0)
    first = bench.sent[-1]
    bench.do(MarkersWritten("tx", 500, 0, {P0: ErrorCode.NONE, P1: ErrorCode.NOT_LEADER_OR_FOLLOWER}))
    assert bench.machine.unmarked("tx") == {P1}
    bench.do(TimerFired(("markers", "tx")))
    assert bench.sent[-1] == replace(first, partitions=frozenset({P1}))
    bench.mark(bench.sent[-1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert bench.state == "CompleteCommit", "a partition that is gone needs no marker"
    bench.mark(first)
    bench.do(TimerFired(("markers", "tx")))
    assert bench.state == "CompleteCommit" and len(bench.sent) == 2


def test_a_refused_completion_is_tried_again() -> None:
    bench = Bench()
    bench.init()
    bench.add(500, 0)
    bench.marks = False
    bench.end(500, 0)
    bench.refusal = ErrorCode.NOT_ENOUGH_REPLICAS
    bench.mark(bench.sent[-1])
    assert bench.state == "PrepareCommit"
    bench.refusal = None
    assert bench.timers[("markers", "tx")] > bench.now_ms
    bench.do(TimerFired(("markers", "tx")))
    assert bench.state == "CompleteCommit"


def test_resigning_answers_those_who_wait() -> None:
    bench = Bench()
    bench.init()
    bench.replicates = False
    assert bench.add(500, 0) is None
    bench.run(bench.machine.resign(bench.now_ms))
    assert bench.answers[bench.token]["error_code"] is ErrorCode.NOT_COORDINATOR


def test_the_diagram_has_every_state_that_is_reached() -> None:
    drawn = mermaid()
    page = Path(__file__).parents[3] / "docs" / "transactions.md"
    assert drawn in page.read_text(encoding="utf-8")
    for state in TransactionState:
        assert (str(state) in drawn) is (state is not TransactionState.PREPARE_EPOCH_FENCE)


def test_a_transaction_of_two_phases_has_no_timeout_where_that_is_allowed() -> None:
    asked = InitProducerId(0, "tx", 5_000, two_phase=True)
    refused = Bench().ask(asked)
    assert refused is not None and refused["error_code"] is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    bench = Bench(replace(SETTINGS, two_phase_commit_enable=True))
    answer = bench.ask(asked)
    assert answer is not None and answer["error_code"] is ErrorCode.NONE
    bench.add(500, 0)
    bench.reload()
    bench.now_ms += 100 * 24 * 3_600_000
    bench.do(AbortTimedOut())
    assert bench.state == "Ongoing"
    assert bench.end(500, 0)[0] == "NONE"
    # A producer that does not ask for it has a timeout again, and the same id.
    assert bench.init(timeout_ms=5_000) == ("NONE", 500, 1)
    assert bench.transaction.timeout_ms == 5_000
