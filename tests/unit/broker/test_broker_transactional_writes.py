"""Transactional writes in the order they came in, while a coordinator is asked about the first of them."""

from collections.abc import Callable
from typing import Any

import pytest

from tidelog.broker.coordinators import transactional_writes
from tidelog.broker.coordinators.transaction_verification import Asked, Results
from tidelog.broker.coordinators.transactional_writes import ProducerKey, TransactionalWrites, Write
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.identifiers import TopicPartition
from tidelog.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader
from tidelog.storage.producer_state import ProducerState

P0, P1, P2 = (TopicPartition("t", index) for index in range(3))
NONE = ErrorCode.NONE
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
RETRY_MS, RETRY_FOR_MS = 20, 100
V1, V2 = 0, 2


def header(producer_id: int, epoch: int, sequence: int, attributes: int = TRANSACTIONAL_BIT) -> BatchHeader:
    return BatchHeader(0, 0, 0, 2, 0, attributes, 0, 0, 0, producer_id, epoch, sequence, 1)


class Bench:
    """A broker with three partitions and a coordinator that answers when it is told to."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.logs = {place: ProducerState() for place in (P0, P1, P2)}
        self.timers: list[tuple[int, Callable[[], None]]] = []
        self.questions: list[tuple[Asked, Callable[[Results], None]]] = []
        self.appended: list[tuple[TopicPartition, int, int]] = []
        self.writes = TransactionalWrites(self)

    # -- what the queues need

    def monotonic_ms(self) -> int:
        return self.now_ms

    def set_after(self, key: object, delay_ms: int, callback: Callable[[], None]) -> None:
        self.timers.append((self.now_ms + delay_ms, callback))

    def retry_ms(self) -> tuple[int, int]:
        return RETRY_MS, RETRY_FOR_MS

    def producers(self, place: TopicPartition) -> ProducerState | None:
        return self.logs.get(place)

    def verify_or_add(self, asked: Asked, answer: Callable[[Results], None]) -> None:
        self.questions.append((asked, answer))

    # -- what happens

    def send(
        self,
        *batches: tuple[TopicPartition, int],
        version: int = V2,
        producer_id: int = 7,
        epoch: int = 0,
        transactional_id: str = "tx",
    ) -> list[Any]:
        """Send a request with batches of one record; what comes of each is in the list, once it is there."""
        outcome: list[Any] = []

        def append(refused: Results) -> None:
            for place, sequence in batches:
                outcome.append(refused.get(place) or self.append(place, producer_id, epoch, sequence))

        key = ProducerKey(transactional_id, producer_id, epoch)
        self.writes.submit(Write(key, dict(batches), version, append))
        return outcome

    def append(self, place: TopicPartition, producer_id: int, epoch: int, sequence: int) -> ErrorCode:
        log = self.logs.get(place)
        if log is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        verdict = log.check(header(producer_id, epoch, sequence))
        if isinstance(verdict, Refused):
            return verdict.code
        if verdict is None:
            log.update(header(producer_id, epoch, sequence), len(self.appended), self.now_ms)
            self.appended.append((place, epoch, sequence))
        return NONE

    def mark(self, place: TopicPartition, epoch: int, producer_id: int = 7) -> None:
        marker = header(producer_id, epoch, -1, TRANSACTIONAL_BIT | CONTROL_BIT)
        self.logs[place].complete_transaction(
            producer_id, marker.producer_epoch, 1, len(self.appended), aborted=True, now_ms=self.now_ms
        )
        self.writes.transaction_ended(place, producer_id)

    def answer(self, error: ErrorCode = NONE, **errors: ErrorCode) -> Asked:
        """Answer the oldest question."""
        asked, answer = self.questions.pop(0)
        answer({place: errors.get(f"p{place.partition}", error) for place in asked.partitions})
        return asked

    def wait(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        due = [callback for at_ms, callback in self.timers if at_ms <= self.now_ms]
        self.timers = [timer for timer in self.timers if timer[0] > self.now_ms]
        for callback in due:
            callback()


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize("version", [V1, V2])
def test_batches_in_flight_are_appended_behind_the_first_with_one_question(
    bench: Bench, version: int
) -> None:
    outcomes = [bench.send((P0, number), version=version) for number in range(5)]
    assert outcomes == [[]] * 5 and len(bench.questions) == 1
    bench.answer()
    assert outcomes == [[NONE]] * 5
    assert bench.appended == [(P0, 0, number) for number in range(5)]
    assert bench.send((P0, 5), version=version) == [NONE], "the transaction is open: nothing to wait for"
    assert not bench.questions and not bench.writes._queues and not bench.writes._lowest


def test_requests_for_several_partitions_keep_the_order_of_each(bench: Bench) -> None:
    first = bench.send((P0, 0), (P1, 0))
    second = bench.send((P1, 1), (P2, 0))
    third = bench.send((P0, 1), (P2, 1))
    assert bench.answer().partitions == {P0, P1}
    assert first == [NONE, NONE] and not second and not third
    assert bench.answer().partitions == {P2}, "only what is not open yet"
    assert second == third == [NONE, NONE]
    assert not bench.questions


def test_a_producer_that_is_not_known_starts_with_sequence_0(bench: Bench) -> None:
    gap = bench.send((P0, 3))
    assert bench.answer().partitions == {P0}, "as in Kafka, its partition is added all the same"
    assert gap == [OUT_OF_ORDER] and not bench.appended
    resumes = bench.send((P1, 3), version=V1)
    bench.answer()
    assert resumes == [NONE], "before transactions v2 its state may have been forgotten"


@pytest.mark.parametrize("version", [V1, V2])
@pytest.mark.parametrize("error", [ErrorCode.NETWORK_EXCEPTION, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_a_batch_that_must_come_again_is_not_overtaken(bench: Bench, version: int, error: ErrorCode) -> None:
    first, second = bench.send((P0, 0), version=version), bench.send((P0, 1), version=version)
    bench.answer(error)
    assert first == [error]
    assert not second
    bench.answer()
    assert second == [OUT_OF_ORDER]
    again = bench.send((P0, 0), version=version)
    behind = bench.send((P0, 1), version=version)
    bench.answer()
    assert again == behind == [NONE]
    assert not bench.writes._lowest


def test_what_was_refused_before_a_marker_comes_no_more(bench: Bench) -> None:
    bench.send((P0, 0), version=V1)
    bench.answer(ErrorCode.NETWORK_EXCEPTION)
    bench.mark(P0, 0)
    bench.logs[P0] = ProducerState()
    later = bench.send((P0, 1), version=V1)
    bench.answer()
    assert later == [NONE]


def test_what_was_refused_before_another_led_does_not_count(bench: Bench) -> None:
    """The batch went to another leader, and so did those behind it: this one has them as a follower has."""
    first = bench.send((P0, 0), version=V1)
    bench.answer(ErrorCode.NOT_COORDINATOR)
    assert first == [ErrorCode.NOT_COORDINATOR] and bench.writes._lowest
    for sequence in range(3):
        bench.logs[P0].update(header(7, 0, sequence), sequence, 0)
    bench.logs[P0].complete_transaction(7, 0, 1, 3, aborted=False, now_ms=0)
    later = bench.send((P0, 3), version=V1)
    bench.answer()
    assert later == [NONE] and not bench.writes._lowest


def test_a_higher_epoch_begins_anew(bench: Bench) -> None:
    bench.send((P0, 0), version=V1)
    bench.answer(ErrorCode.NETWORK_EXCEPTION)
    later = bench.send((P0, 4), version=V1, epoch=1)
    bench.answer()
    assert later == [NONE]
    assert bench.send((P0, 0), version=V1) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert not bench.questions, "the partition knows better already"


def test_a_batch_that_was_refused_for_good_leaves_no_gap(bench: Bench) -> None:
    """Whoever leaves it out needs a new epoch, in which every partition begins at 0."""
    first = bench.send((P0, 0), version=V1)
    bench.answer(ErrorCode.INVALID_TXN_STATE)
    later = bench.send((P0, 2), version=V1)
    bench.answer()
    assert first == [ErrorCode.INVALID_TXN_STATE] and later == [OUT_OF_ORDER]
    again = bench.send((P0, 0), version=V1, epoch=1)
    bench.answer()
    assert again == [NONE] and not bench.writes._lowest


def test_a_batch_that_the_log_refuses_keeps_its_place(bench: Bench) -> None:
    first = bench.send((P0, 0), version=V1)
    log = bench.logs.pop(P0)
    bench.answer()
    assert first == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    bench.logs[P0] = log
    second = bench.send((P0, 1), version=V1)
    bench.answer()
    assert second == [OUT_OF_ORDER]


def test_some_partitions_of_a_request_may_be_refused(bench: Bench) -> None:
    first = bench.send((P0, 0), (P1, 0))
    second = bench.send((P0, 1), (P1, 1))
    bench.answer(p1=ErrorCode.TRANSACTION_ABORTABLE)
    assert first == [NONE, ErrorCode.TRANSACTION_ABORTABLE]
    assert bench.answer().partitions == {P1}
    assert second == [NONE, OUT_OF_ORDER]


def test_a_busy_coordinator_is_asked_again_and_the_order_kept(bench: Bench) -> None:
    first, second = bench.send((P0, 0)), bench.send((P0, 1))
    for _ in range(3):
        bench.answer(CONCURRENT)
        assert not bench.questions and not first
        bench.wait(RETRY_MS)
        assert len(bench.questions) == 1
    bench.answer()
    assert first == second == [NONE]


def test_a_coordinator_that_stays_busy_is_the_producers_business(bench: Bench) -> None:
    first, second = bench.send((P0, 0)), bench.send((P0, 1))
    for _ in range(RETRY_FOR_MS // RETRY_MS):
        bench.answer(CONCURRENT)
        assert not first
        bench.wait(RETRY_MS)
    bench.answer(CONCURRENT)
    assert first == [CONCURRENT]
    bench.answer()
    assert second == [OUT_OF_ORDER], "the producer sends both again"
    assert not bench.questions and not bench.timers and not bench.writes._queues


def test_before_transactions_v2_the_broker_does_not_ask_again(bench: Bench) -> None:
    first = bench.send((P0, 0), version=V1)
    bench.answer(CONCURRENT)
    assert first == [CONCURRENT] and not bench.timers


def test_a_marker_of_the_last_transaction_comes_while_the_next_one_waits(bench: Bench) -> None:
    bench.send((P0, 0))
    bench.answer()
    first, second = bench.send((P0, 0), epoch=1), bench.send((P0, 1), epoch=1)
    bench.answer(CONCURRENT)
    bench.mark(P0, 1)
    bench.wait(RETRY_MS)
    bench.answer()
    assert first == second == [NONE]


def test_nobody_waits_for_another_producer(bench: Bench) -> None:
    bench.send((P0, 0))
    other = bench.send((P0, 0), producer_id=8, transactional_id="other")
    claims = bench.send((P0, 0), transactional_id="a stranger that claims the same producer id")
    newer = bench.send((P0, 0), epoch=1)
    assert len(bench.questions) == 4
    bench.questions.reverse()
    bench.answer()
    assert newer == [NONE]
    bench.answer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    assert claims == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    bench.answer()
    assert other == [NONE]


def test_a_copy_over_another_connection_is_answered_like_the_first(bench: Bench) -> None:
    first, copy, behind = bench.send((P0, 0)), bench.send((P0, 0)), bench.send((P0, 1))
    bench.answer()
    assert first == copy == behind == [NONE]
    assert bench.appended == [(P0, 0, 0), (P0, 0, 1)]


def test_partitions_that_are_led_elsewhere_are_not_asked_about(bench: Bench) -> None:
    del bench.logs[P0]
    assert bench.send((P0, 0)) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert not bench.questions


def test_what_is_remembered_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactional_writes, "LOWEST_SEQUENCES_MAX", 10)
    for producer_id in range(25):
        bench.send((P0, 0), producer_id=producer_id, version=V1)
        bench.answer(ErrorCode.NETWORK_EXCEPTION)
    assert [producer_id for _, producer_id in bench.writes._lowest] == list(range(15, 25))
