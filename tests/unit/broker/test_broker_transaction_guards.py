"""Which markers take the worth from a coordinator's answer that was asked for before them."""

import pytest

from tidelog.broker.coordinators.transaction_guards import Guards
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import TopicPartition

PLACE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
PRODUCER, LEADER_EPOCH = 7, 3


def asked(guards: Guards, producer_epoch: int, *markers: tuple[int, int]) -> ErrorCode:
    """What a good answer is worth, after markers of these epochs and transaction versions."""
    guard = guards.set(PLACE, PRODUCER, producer_epoch, LEADER_EPOCH)
    for epoch, version in markers:
        guards.transaction_ended(PLACE, PRODUCER, epoch, version)
    return guards.end(PLACE, PRODUCER, guard, ErrorCode.NONE, LEADER_EPOCH)


@pytest.mark.parametrize(
    ("marker_epoch", "transaction_version", "worth"),
    [
        (4, 2, ErrorCode.NONE),
        (5, 2, ErrorCode.NONE),
        (6, 2, ErrorCode.INVALID_TXN_STATE),
        (4, 0, ErrorCode.NONE),
        (5, 0, ErrorCode.INVALID_TXN_STATE),
        (6, 0, ErrorCode.INVALID_TXN_STATE),
    ],
)
def test_only_a_marker_of_the_transaction_itself_or_a_later_one_breaks_the_guard(
    marker_epoch: int, transaction_version: int, worth: ErrorCode
) -> None:
    """With transactions v2 a marker carries the epoch after that of its transaction."""
    guards = Guards()
    assert asked(guards, 5, (marker_epoch, transaction_version)) is worth
    assert not guards


def test_a_guard_stays_broken_and_is_of_one_question() -> None:
    guards = Guards()
    assert asked(guards, 5, (6, 2), (5, 2)) is ErrorCode.INVALID_TXN_STATE
    early = guards.set(PLACE, PRODUCER, 5, LEADER_EPOCH)
    elsewhere = guards.set(OTHER, PRODUCER, 5, LEADER_EPOCH)
    guards.transaction_ended(PLACE, PRODUCER, 5, 0)
    late = guards.set(PLACE, PRODUCER, 5, LEADER_EPOCH)
    for place, guard, worth in (
        (PLACE, late, ErrorCode.NONE),
        (OTHER, elsewhere, ErrorCode.NONE),
        (PLACE, early, ErrorCode.INVALID_TXN_STATE),
    ):
        assert guards.end(place, PRODUCER, guard, ErrorCode.NONE, LEADER_EPOCH) is worth
    assert not guards


@pytest.mark.parametrize("leader_epoch", [None, LEADER_EPOCH + 1])
def test_an_answer_is_worth_nothing_to_another_leader(leader_epoch: int | None) -> None:
    guards = Guards()
    guard = guards.set(PLACE, PRODUCER, 5, LEADER_EPOCH)
    assert (
        guards.end(PLACE, PRODUCER, guard, ErrorCode.NONE, leader_epoch) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    )


def test_a_refusal_stays_one() -> None:
    guards = Guards()
    guard = guards.set(PLACE, PRODUCER, 5, LEADER_EPOCH)
    refusal = ErrorCode.CONCURRENT_TRANSACTIONS
    assert guards.end(PLACE, PRODUCER, guard, refusal, None) is refusal
