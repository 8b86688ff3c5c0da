"""The rules that share partitions follow, one by one: offsets to begin at, isolation, rest, letters, gaps."""

import pytest

from tidelog.model.errors import ErrorCode
from tidelog.shares import dead_letters
from tidelog.shares.acknowledging import Said, malformed, said
from tidelog.shares.commands import AcknowledgementBatch
from tidelog.shares.fetched import (
    AbortedTransaction,
    BatchEnds,
    FetchedBatch,
    OffsetRange,
    aborted_batches,
    gaps,
)
from tidelog.shares.redelivery import company_max, lag, rest_ms, throttle_count
from tidelog.shares.settings import (
    END_OF_LOG,
    START_OF_LOG,
    InitialOffset,
    SharePartitionSettings,
    initial_offset,
)
from tidelog.shares.states import AcknowledgeType

ACCEPT, RENEW = AcknowledgeType.ACCEPT, AcknowledgeType.RENEW
NOW_MS = 1_000_000_000


@pytest.mark.parametrize(
    ("reset", "wanted"),
    [
        ("earliest", START_OF_LOG),
        ("latest", END_OF_LOG),
        ("by_duration:PT1H", InitialOffset(NOW_MS - 3_600_000)),
        ("by_duration:P1DT2H3M4.5S", InitialOffset(NOW_MS - 93_784_500)),
        ("by_duration:P9999D", InitialOffset(0)),
    ],
)
def test_where_a_group_begins(reset: str, wanted: InitialOffset) -> None:
    assert initial_offset(reset, NOW_MS) == wanted


def test_isolation_begins_at_half_the_limit_and_ends_with_one() -> None:
    assert [throttle_count(limit) for limit in (2, 3, 4, 5, 10)] == [2, 2, 2, 3, 5]
    assert [company_max(count, 0, 500, 10) for count in range(10)] == [
        None, None, None, None, None, 250, 125, 62, 31, 1,
    ]  # fmt: skip
    assert company_max(6, 500, 3, 10) == 125, "what counts is how many failed together"
    assert company_max(8, 4, 4, 10) == 1
    assert company_max(1, 0, 500, 2) is None


def test_rests_double_up_to_the_maximum() -> None:
    settings = SharePartitionSettings(retry_backoff_ms=100, retry_backoff_max_ms=1_000)
    assert [rest_ms(count, settings) for count in (0, 1, 2, 3, 4, 5, 10_000)] == [
        0, 100, 200, 400, 800, 1_000, 1_000,
    ]  # fmt: skip
    assert rest_ms(3, SharePartitionSettings()) == 0
    assert rest_ms(3, SharePartitionSettings(retry_backoff_ms=100)) == 100


def test_lag_is_what_is_still_to_be_dealt_with() -> None:
    assert lag(100, 40, 15) == 45
    assert lag(100, -1, 0) == -1
    assert lag(100, 40, -1) == -1


def test_acknowledgements_are_looked_at_before_anything_else() -> None:
    good = AcknowledgementBatch(0, 4, (ACCEPT,))
    assert malformed([good, AcknowledgementBatch(5, 6, (1, 2))], is_renew=False) is None
    for bad in (
        [good, AcknowledgementBatch(4, 6, (1,))],
        [AcknowledgementBatch(3, 2, (1,))],
        [AcknowledgementBatch(0, 2, ())],
        [AcknowledgementBatch(0, 2, (1, 1))],
        [AcknowledgementBatch(0, 2, (1, 1, 5))],
        [AcknowledgementBatch(0, 2, (-1,))],
        [AcknowledgementBatch(0, 2, (RENEW,))],
    ):
        refused = malformed(bad, is_renew=False)
        assert refused is not None and refused.code is ErrorCode.INVALID_REQUEST
    assert malformed([AcknowledgementBatch(0, 2, (RENEW,))], is_renew=True) is None


def test_types_of_neighbours_are_taken_together() -> None:
    assert list(said(AcknowledgementBatch(3, 9, (ACCEPT,)))) == [Said(3, 9, ACCEPT)]
    release = AcknowledgeType.RELEASE
    assert list(said(AcknowledgementBatch(3, 7, (1, 1, 2, 2, 1)))) == [
        Said(3, 4, ACCEPT), Said(5, 6, release), Said(7, 7, ACCEPT),
    ]  # fmt: skip


def test_a_producer_may_abort_one_transaction_and_commit_the_next() -> None:
    def batch(base: int, last: int, *, control: bool = False) -> FetchedBatch:
        return FetchedBatch(base, last, 7, True, control)

    batches = [
        batch(0, 4),
        batch(5, 5, control=True),
        batch(6, 9),
        batch(10, 10, control=True),
        batch(11, 12),
    ]
    aborted = [AbortedTransaction(7, 11), AbortedTransaction(7, 0)]
    assert aborted_batches(batches, aborted) == [OffsetRange(0, 4), OffsetRange(11, 12)]
    other = [FetchedBatch(0, 4, 8, True), FetchedBatch(5, 9, 7, False)]
    assert aborted_batches(other, [AbortedTransaction(7, 0)]) == []


def test_gaps_are_what_lies_between_batches_and_control_batches() -> None:
    batches = [FetchedBatch(4, 6), FetchedBatch(9, 9, 7, True, True), FetchedBatch(10, 12)]
    assert gaps(2, batches, (), read_committed=False) == [
        OffsetRange(2, 3), OffsetRange(7, 8), OffsetRange(9, 9),
    ]  # fmt: skip
    assert gaps(5, batches[:1], (), read_committed=False) == []


def test_pieces_begin_with_batches() -> None:
    ends = BatchEnds([FetchedBatch(0, 9), FetchedBatch(10, 14), FetchedBatch(20, 39)])
    assert [ends.end_of(offset) for offset in (0, 9, 12, 16, 25)] == [9, 9, 14, 16, 39]
    assert ends.pieces(0, 39, 10) == [OffsetRange(0, 9), OffsetRange(10, 19), OffsetRange(20, 39)]
    assert ends.pieces(3, 39, 500) == [OffsetRange(3, 39)]


def test_dead_letters_keep_headers_and_say_what_happened() -> None:
    original = (("trace", b"1"), (dead_letters.TOPIC, b"of an earlier letter"))
    headers = dead_letters.dead_letter_headers("g", "t", 3, 41, 5, dead_letters.REJECTED, original)
    assert headers == (
        ("trace", b"1"),
        ("__dlq.errors.topic", b"t"),
        ("__dlq.errors.partition", b"3"),
        ("__dlq.errors.offset", b"41"),
        ("__dlq.errors.group", b"g"),
        ("__dlq.errors.delivery.count", b"5"),
        ("__dlq.errors.message", dead_letters.REJECTED.encode()),
    )
    assert dead_letters.dead_letter_partition(7, 3) == 1


@pytest.mark.parametrize("name", ["orders", "dlq.or ders", "", "dlq.t"])
def test_topics_that_take_no_dead_letters(name: str) -> None:
    assert dead_letters.topic_fault(name, "dlq.", "dlq.t") is not None


def test_a_topic_that_takes_dead_letters() -> None:
    assert dead_letters.topic_fault("dlq.orders", "dlq.", "orders") is None
