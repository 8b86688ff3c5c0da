"""A share partition: who gets which records, how often, and what is stored when."""

import pytest

from tests.unit.shares.share_steps import ACCEPT, GAP, KEY, LOCK_MS, REJECT, RELEASE, RENEW, Steps
from tidelog.model.effects import Send
from tidelog.model.errors import ErrorCode
from tidelog.shares.commands import (
    DeadLettersWritten,
    Fence,
    FindInitialOffset,
    InitialOffsetFound,
    LogStartMoved,
    Open,
    ReleaseMember,
    StateRead,
    Wake,
)
from tidelog.shares.fetched import AbortedTransaction, FetchedBatch, OffsetRange
from tidelog.shares.settings import END_OF_LOG, SharePartitionSettings
from tidelog.shares.share_partition import Phase, SharePartition
from tidelog.shares.state_batches import StateBatch
from tidelog.shares.states import AcquireMode, RecordState

INVALID_STATE = ErrorCode.INVALID_RECORD_STATE


# ---------------------------------------------------------------- acquiring


def test_records_are_acquired_once_and_in_order() -> None:
    steps = Steps()
    assert steps.acquire("a", 10, (0, 9), (10, 19)) == [(0, 9, 1)]
    assert steps.acquire("b", 10, (10, 19)) == [(10, 19, 1)]
    assert steps.acquire("c", 10, (10, 19)) == []


def test_deliveries_keep_to_batches_unless_the_member_wants_exactly_so_many() -> None:
    steps = Steps()
    assert steps.acquire("a", 4, (0, 9), (10, 19)) == [(0, 9, 1)]
    assert steps.exactly("a", 4, (10, 19)) == [(10, 13, 1)]
    assert steps.partition.next_fetch_offset == 14
    assert steps.exactly("b", 100, (10, 19)) == [(14, 19, 1)]


def test_large_deliveries_come_in_pieces_of_batches() -> None:
    steps = Steps()
    batches = tuple((first, first + 9) for first in range(0, 100, 10))
    assert steps.acquire("a", 100, *batches, batch_size=30) == [
        (0, 29, 1), (30, 59, 1), (60, 89, 1), (90, 99, 1),
    ]  # fmt: skip


def test_locks_are_limited() -> None:
    steps = Steps(partition_max_record_locks=100)
    assert steps.acquire("a", 500, *((first, first + 9) for first in range(0, 200, 10))) == [(0, 99, 1)]
    assert not steps.partition.may_acquire
    assert steps.acquire("b", 500, (100, 109)) == []
    assert steps.says("a", 20, 29, RELEASE) is ErrorCode.NONE
    assert steps.partition.next_fetch_offset == 20
    assert steps.acquire("b", 500, (20, 29), (30, 39), (100, 109)) == [(20, 29, 2)]
    assert steps.says("a", 0, 19, ACCEPT) is ErrorCode.NONE
    assert steps.acquire("b", 500, (100, 109), (110, 119), (120, 129)) == [(100, 119, 1)]


def test_a_batch_that_begins_before_the_start_is_acquired_from_the_start_on() -> None:
    steps = Steps(start=5)
    assert steps.acquire("a", 10, (0, 9)) == [(5, 9, 1)]


def test_offsets_without_records_are_nobodys() -> None:
    steps = Steps()
    assert steps.acquire("a", 500, (3, 5), (9, 11)) == [(3, 5, 1), (9, 11, 1)]
    assert steps.says("a", 3, 5, ACCEPT) is ErrorCode.NONE
    assert steps.says("a", 9, 11, ACCEPT) is ErrorCode.NONE
    assert steps.start == 12


def test_control_batches_and_aborted_transactions_are_nobodys() -> None:
    fetched = (
        FetchedBatch(0, 4, 7, is_transactional=True),
        FetchedBatch(5, 9, 8, is_transactional=True),
        FetchedBatch(10, 10, 7, is_transactional=True, is_control=True),
        FetchedBatch(11, 11, 8, is_transactional=True, is_control=True),
        FetchedBatch(12, 14, 7, is_transactional=True),
    )
    aborted = (AbortedTransaction(7, 0),)
    committed = Steps(read_committed=True)
    assert committed.acquire("a", 500, fetched=fetched, aborted=aborted) == [(5, 9, 1), (12, 14, 1)]
    uncommitted = Steps()
    assert uncommitted.acquire("a", 500, fetched=fetched, aborted=aborted) == [(0, 9, 1), (12, 14, 1)]


def test_what_compaction_took_is_archived_when_it_is_looked_for() -> None:
    steps = Steps()
    steps.acquire("a", 500, (0, 9))
    steps.say("a", 0, 9, RELEASE)
    assert steps.acquire("a", 500, (6, 9), fetch_offset=0) == [(6, 9, 2)]
    steps.say("a", 6, 9, ACCEPT)
    assert steps.start == 10


def test_a_control_batch_at_the_start_is_stored_as_done_with() -> None:
    steps = Steps()
    assert steps.acquire("a", 500, fetched=(FetchedBatch(0, 0, 7, True, True),)) == []
    assert steps.start == 1
    assert steps.writes[-1].start_offset == 1


# ---------------------------------------------------------------- acknowledging


def test_what_is_accepted_moves_the_start_when_it_is_stored() -> None:
    steps = Steps(stores=False)
    steps.acquire("a", 500, (0, 9))
    token = steps.say("a", 0, 9, ACCEPT)
    assert token not in steps.answers
    write = steps.writes[-1]
    assert (write.start_offset, write.delivery_complete_count, write.batches) == (10, 0, ())
    assert (write.state_epoch, write.leader_epoch) == (9, 4)
    assert steps.start == 0
    steps.answer()
    assert steps.error(token) is ErrorCode.NONE
    assert steps.start == 10
    assert steps.states() == []


def test_each_offset_can_have_its_own_type() -> None:
    steps = Steps()
    steps.acquire("a", 500, (0, 5))
    types = (ACCEPT, RELEASE, REJECT, GAP, ACCEPT, ACCEPT)
    assert steps.says("a", 0, 5, *types) is ErrorCode.NONE
    assert steps.states() == [
        (1, 1, "AVAILABLE", 1), (2, 3, "ARCHIVED", 1), (4, 5, "ACKNOWLEDGED", 1),
    ]  # fmt: skip
    write = steps.writes[-1]
    assert write.start_offset == 1
    assert write.delivery_complete_count == 4
    assert write.batches == (
        StateBatch(1, 1, RecordState.AVAILABLE, 1),
        StateBatch(2, 3, RecordState.ARCHIVED, 1),
        StateBatch(4, 5, RecordState.ACKNOWLEDGED, 1),
    )


def test_released_records_are_delivered_again_with_a_higher_count() -> None:
    steps = Steps()
    steps.acquire("a", 500, (0, 9))
    steps.say("a", 3, 5, RELEASE)
    assert steps.acquire("b", 500, (0, 9)) == [(3, 5, 2)]


def test_nobody_acknowledges_for_others_or_twice() -> None:
    steps = Steps(stores=False)
    steps.acquire("a", 500, (0, 9))
    assert steps.says("b", 0, 9, ACCEPT) is INVALID_STATE
    first = steps.say("a", 0, 4, ACCEPT)
    assert steps.says("a", 4, 9, ACCEPT) is INVALID_STATE, "all of it is refused"
    assert steps.says("a", 5, 10, ACCEPT) is ErrorCode.INVALID_REQUEST
    steps.answer()
    assert steps.error(first) is ErrorCode.NONE
    assert steps.says("a", 0, 4, ACCEPT) is ErrorCode.NONE, "what lies before the start is no fault"
    assert steps.states() == [(5, 9, "ACQUIRED", 1)]


def test_where_nothing_is_in_flight_nothing_is_acquired() -> None:
    steps = Steps()
    assert steps.says("a", 0, 2, ACCEPT) is INVALID_STATE
    steps.acquire("a", 500, (0, 2))
    assert steps.says("a", 0, 3, ACCEPT) is ErrorCode.INVALID_REQUEST
    assert steps.says("a", 0, 2, ACCEPT) is ErrorCode.NONE
    assert steps.says("a", 3, 3, ACCEPT) is INVALID_STATE


def test_acknowledgements_that_come_during_a_write_go_with_the_next_one() -> None:
    steps = Steps(stores=False)
    steps.acquire("a", 500, (0, 9))
    tokens = [steps.say("a", offset, offset, ACCEPT) for offset in range(5)]
    assert len(steps.writes) == 1
    steps.answer()
    assert len(steps.writes) == 2
    assert steps.writes[-1].start_offset == 5
    steps.answer()
    assert all(steps.error(token) is ErrorCode.NONE for token in tokens)


def test_a_failed_write_leaves_the_records_acquired() -> None:
    steps = Steps(stores=False)
    steps.acquire("a", 500, (0, 9))
    token = steps.say("a", 0, 9, ACCEPT)
    steps.answer(ErrorCode.NOT_COORDINATOR)
    assert steps.error(token) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert steps.states() == [(0, 9, "ACQUIRED", 1)]
    again = steps.say("a", 0, 9, ACCEPT)
    assert len(steps.writes) == 1, "the share coordinator is left alone for a while"
    steps.wait(500)
    steps.answer()
    assert steps.error(again) is ErrorCode.NONE


def test_a_failed_write_leaves_the_records_available_if_the_lock_ended_meanwhile() -> None:
    steps = Steps(stores=False)
    steps.acquire("a", 500, (0, 9))
    steps.say("a", 0, 9, ACCEPT)
    steps.wait(LOCK_MS + 1)
    assert steps.states() == [(0, 9, "ACQUIRED", 1)]
    assert steps.acquire("b", 500, (0, 9)) == []
    steps.answer(ErrorCode.REQUEST_TIMED_OUT)
    assert steps.states() == [(0, 9, "AVAILABLE", 1)]
    assert steps.acquire("b", 500, (0, 9)) == [(0, 9, 2)]


def test_an_older_epoch_ends_the_share_partition() -> None:
    steps = Steps(stores=False)
    steps.acquire("a", 500, (0, 9))
    tokens = [steps.say("a", 0, 4, ACCEPT), steps.say("a", 5, 9, ACCEPT)]
    steps.answer(ErrorCode.FENCED_LEADER_EPOCH)
    assert [steps.error(token) for token in tokens] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
    assert steps.partition.phase is Phase.FENCED
    assert steps.timer_ms is None
    assert steps.acquire("b", 500, (0, 9)) == []
    assert steps.says("a", 0, 9, ACCEPT) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_fencing_answers_everyone() -> None:
    steps = Steps(stores=False)
    steps.acquire("a", 500, (0, 9))
    tokens = [steps.say("a", 0, 4, ACCEPT), steps.say("a", 5, 9, ACCEPT)]
    wakes = steps.wakes
    steps.do(Fence(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert [steps.error(token) for token in tokens] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
    assert steps.wakes == wakes + 1


# ---------------------------------------------------------------- locks


def test_a_lock_that_ends_makes_the_records_available() -> None:
    steps = Steps()
    steps.acquire("a", 500, (0, 9))
    steps.wait(LOCK_MS - 1)
    assert steps.states() == [(0, 9, "ACQUIRED", 1)]
    wakes = steps.wakes
    steps.wait(1)
    assert steps.states() == [(0, 9, "AVAILABLE", 1)]
    assert steps.wakes > wakes
    assert steps.says("a", 0, 9, ACCEPT) is INVALID_STATE
    assert steps.writes[-1].batches == (StateBatch(0, 9, RecordState.AVAILABLE, 1),)


def test_a_renewed_lock_lasts_from_its_renewal() -> None:
    steps = Steps()
    steps.acquire("a", 500, (0, 9))
    steps.wait(20_000)
    assert steps.says("a", 0, 4, RENEW) is ErrorCode.NONE
    steps.wait(10_000)
    assert steps.states() == [(0, 4, "ACQUIRED", 1), (5, 9, "AVAILABLE", 1)]
    assert steps.writes[-1].batches == (StateBatch(5, 9, RecordState.AVAILABLE, 1),), (
        "a renewal stores nothing"
    )
    steps.wait(20_000)
    assert steps.states() == [(0, 9, "AVAILABLE", 1)]


def test_a_lock_that_is_renewed_at_once_ends_once() -> None:
    steps = Steps()
    steps.acquire("a", 500, (0, 9))
    steps.say("a", 0, 9, RENEW)
    steps.wait(LOCK_MS)
    assert steps.acquire("b", 500, (0, 9)) == [(0, 9, 2)]
    assert steps.acquire("c", 500, (0, 9)) == []


def test_locks_are_not_renewed_where_the_group_forbids_it() -> None:
    steps = Steps(renew_acknowledge_enable=False)
    steps.acquire("a", 500, (0, 9))
    assert steps.says("a", 0, 9, RENEW) is INVALID_STATE


def test_the_end_of_a_lock_is_stored_even_if_the_first_write_fails() -> None:
    steps = Steps(stores=False)
    steps.acquire("a", 500, (0, 9))
    steps.wait(LOCK_MS)
    steps.answer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    steps.wait(500)
    assert steps.writes[-1].batches == (StateBatch(0, 9, RecordState.AVAILABLE, 1),)


def test_a_member_that_goes_gives_everything_back() -> None:
    steps = Steps()
    steps.acquire("a", 500, (0, 9))
    steps.acquire("b", 500, (10, 19))
    steps.do(ReleaseMember(99, "a"))
    assert steps.answers[99]["error_code"] is ErrorCode.NONE
    assert steps.states() == [(0, 9, "AVAILABLE", 1), (10, 19, "ACQUIRED", 1)]


# ---------------------------------------------------------------- how often


def test_a_record_is_delivered_as_often_as_allowed_and_not_more() -> None:
    steps = Steps(delivery_count_limit=3)
    for count in (1, 2, 3):
        assert steps.acquire("a", 500, (0, 0)) == [(0, 0, count)]
        steps.say("a", 0, 0, RELEASE)
    assert steps.start == 1
    assert steps.acquire("a", 500, (0, 0), fetch_offset=1) == []


def test_locks_that_end_count_as_deliveries() -> None:
    steps = Steps(delivery_count_limit=2)
    for count in (1, 2):
        assert steps.acquire("a", 500, (0, 0)) == [(0, 0, count)]
        steps.wait(LOCK_MS)
    assert steps.start == 1


def test_poison_is_isolated_by_halving() -> None:
    steps = Steps(delivery_count_limit=10)
    for count in range(1, 6):
        assert steps.acquire("a", 500, (0, 499)) == [(0, 499, count)]
        steps.say("a", 0, 499, RELEASE)
    sizes = []
    for count in range(6, 11):
        [(first, last, seen)] = steps.acquire("a", 500, (0, 499))
        assert (first, seen) == (0, count)
        sizes.append(last - first + 1)
        steps.say("a", first, last, RELEASE)
    assert sizes == [250, 125, 62, 31, 1]
    assert steps.acquire("a", 500, (0, 499)) == [(1, 1, 10)], "each of the last company comes alone"


def test_the_bad_record_alone_is_archived() -> None:
    """Whoever gets record 37 of 100 fails; all the others are accepted in the end."""
    steps = Steps(delivery_count_limit=6)
    accepted: set[int] = set()
    for _ in range(300):
        if steps.start == 100:
            break
        for first, last, _ in steps.acquire("a", 500, (0, 99)):
            if first <= 37 <= last:
                steps.say("a", first, last, RELEASE)
            else:
                steps.say("a", first, last, ACCEPT)
                accepted.update(range(first, last + 1))
    assert accepted == set(range(100)) - {37}


def test_good_records_are_not_held_up_by_bad_ones() -> None:
    steps = Steps(delivery_count_limit=4)
    for _ in range(2):
        steps.acquire("a", 500, (10, 19), fetch_offset=0)
        steps.say("a", 10, 19, RELEASE)
    assert steps.acquire("a", 500, (10, 19), (20, 29)) == [(10, 14, 3)], "alone"
    assert steps.acquire("b", 500, (10, 19), (20, 29)) == [(15, 19, 3)]
    assert steps.acquire("c", 500, (10, 19), (20, 29)) == [(20, 29, 1)]


def test_retries_wait_twice_as_long_each_time() -> None:
    steps = Steps(delivery_count_limit=10, retry_backoff_ms=1_000, retry_backoff_max_ms=3_000)
    for rest_ms in (1_000, 2_000, 3_000, 3_000):
        assert steps.acquire("a", 500, (0, 0)) != []
        steps.say("a", 0, 0, RELEASE)
        assert steps.acquire("a", 500, (0, 0), fetch_offset=0) == []
        steps.wait(rest_ms - 1)
        assert not steps.partition.runs.has_ready
        wakes = steps.wakes
        steps.wait(1)
        assert steps.partition.runs.has_ready
        assert steps.wakes > wakes


def test_resting_records_hold_no_lock_and_let_others_pass() -> None:
    steps = Steps(retry_backoff_ms=5_000, retry_backoff_max_ms=5_000)
    steps.acquire("a", 500, (0, 9))
    steps.wait(LOCK_MS)
    assert steps.partition.count()[RecordState.ACQUIRED] == 0
    assert steps.acquire("b", 500, (10, 19)) == [(10, 19, 1)]
    steps.wait(5_000)
    assert steps.acquire("b", 500, (0, 9), (10, 19)) == [(0, 9, 2)]


def test_a_member_that_closes_leaves_no_rest() -> None:
    steps = Steps(retry_backoff_ms=5_000)
    steps.acquire("a", 500, (0, 9))
    steps.do(ReleaseMember(99, "a"))
    assert steps.acquire("b", 500, (0, 9)) == [(0, 9, 2)]
    steps.do(ReleaseMember(98, "b", rests=True))
    assert steps.acquire("c", 500, (0, 9), fetch_offset=0) == []


# ---------------------------------------------------------------- dead letters


def test_rejected_records_are_archived_when_their_letters_are_written() -> None:
    steps = Steps(dead_letter_topic="dlq.g")
    steps.acquire("a", 500, (0, 9))
    assert steps.says("a", 2, 3, REJECT) is ErrorCode.NONE
    assert steps.states()[1] == (2, 3, "ARCHIVING", 1)
    assert steps.writes[-1].batches == (StateBatch(2, 3, RecordState.ARCHIVING, 1),)
    [letters] = steps.letters
    assert (letters.topic, letters.first_offset, letters.last_offset, letters.delivery_count) == (
        "dlq.g", 2, 3, 1,
    )  # fmt: skip
    assert "rejected" in letters.reason
    steps.do(DeadLettersWritten(2, 3))
    assert steps.states()[1] == (2, 3, "ARCHIVED", 1)
    assert steps.writes[-1].batches == (StateBatch(2, 3, RecordState.ARCHIVED, 1),)


def test_no_letter_is_written_before_it_is_stored_that_the_record_is_archived() -> None:
    steps = Steps(dead_letter_topic="dlq.g", stores=False, delivery_count_limit=2)
    steps.acquire("a", 500, (0, 0))
    steps.wait(LOCK_MS)
    steps.answer()
    steps.acquire("a", 500, (0, 0))
    steps.wait(LOCK_MS)
    assert steps.letters == []
    steps.answer()
    assert [letters.first_offset for letters in steps.letters] == [0]
    assert "as often as" in steps.letters[0].reason


def test_letters_are_tried_again_and_given_up_only_for_good() -> None:
    steps = Steps(dead_letter_topic="dlq.g")
    steps.acquire("a", 500, (0, 0))
    steps.say("a", 0, 0, REJECT)
    steps.do(DeadLettersWritten(0, 0, ErrorCode.NOT_ENOUGH_REPLICAS, retriable=True))
    assert len(steps.letters) == 1
    steps.wait(500)
    assert len(steps.letters) == 2
    assert steps.start == 0
    steps.do(DeadLettersWritten(0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    assert steps.start == 1
    assert [event.kind for event in steps.events] == ["dead letters given up"]


def test_letters_are_tried_again_for_what_is_stored_and_not_for_its_neighbours() -> None:
    steps = Steps(dead_letter_topic="dlq.g", stores=False, delivery_count_limit=2)
    steps.acquire("a", 500, (0, 9))
    steps.say("a", 0, 9, RELEASE)
    steps.answer()
    steps.acquire("a", 500, (0, 9))
    steps.say("a", 0, 4, RELEASE)
    steps.wait(LOCK_MS)
    steps.answer()
    assert steps.states() == [(0, 9, "ARCHIVING", 2)]
    steps.do(DeadLettersWritten(0, 4, ErrorCode.NOT_ENOUGH_REPLICAS, retriable=True))
    steps.wait(500)
    assert [(letters.first_offset, letters.last_offset) for letters in steps.letters] == [(0, 4), (0, 4)]
    steps.answer()
    assert steps.letters[-1][1:3] == (5, 9)


def test_archiving_goes_on_after_a_restart() -> None:
    batches = (StateBatch(3, 4, RecordState.ARCHIVING, 1), StateBatch(5, 5, RecordState.ARCHIVING, 5))
    steps = Steps(start=3, batches=batches, dead_letter_topic="dlq.g")
    assert [(letters.first_offset, letters.last_offset) for letters in steps.letters] == [(3, 4), (5, 5)]
    assert "rejected" in steps.letters[0].reason
    assert "as often as" in steps.letters[1].reason
    steps.do(DeadLettersWritten(3, 4))
    steps.do(DeadLettersWritten(5, 5))
    assert steps.start == 6


def test_gaps_have_no_dead_letters() -> None:
    steps = Steps(dead_letter_topic="dlq.g")
    steps.acquire("a", 500, (0, 1), (5, 6))
    steps.say("a", 0, 1, GAP)
    assert steps.letters == []


# ---------------------------------------------------------------- time to live and priority


def test_expired_records_are_nobodys_and_have_dead_letters() -> None:
    steps = Steps(dead_letter_topic="dlq.g")
    steps.acquire("a", 500, (0, 9))
    steps.say("a", 0, 9, RELEASE)
    expired = (OffsetRange(2, 3), OffsetRange(12, 12))
    assert steps.acquire("a", 500, (0, 9), (10, 19), expired=expired) == [
        (0, 1, 2), (4, 9, 2), (10, 11, 1), (13, 19, 1),
    ]  # fmt: skip
    assert [(letters.first_offset, letters.last_offset) for letters in steps.letters] == [(2, 3), (12, 12)]
    assert "time to live" in steps.letters[0].reason


def test_preferred_records_come_first_and_the_others_stay_available() -> None:
    steps = Steps()
    preferred = (OffsetRange(15, 16), OffsetRange(3, 3), OffsetRange(0, 19))
    assert steps.exactly("a", 0, (0, 19)) == []
    got = steps.acquire("a", 4, (0, 9), (10, 19), preferred=preferred, mode=AcquireMode.RECORD_LIMIT)
    assert got == [(0, 0, 1), (3, 3, 1), (15, 16, 1)]
    assert steps.acquire("b", 500, (0, 9), (10, 19)) == [(1, 2, 1), (4, 14, 1), (17, 19, 1)]


# ---------------------------------------------------------------- beginning, and the log's start


def test_a_share_partition_that_was_never_read_begins_where_the_group_says() -> None:
    steps = Steps(start=-1)
    assert steps.messages[-1] == FindInitialOffset(END_OF_LOG)
    assert steps.acquire("a", 500, (0, 9)) == []
    steps.do(InitialOffsetFound(7))
    assert steps.partition.phase is Phase.ACTIVE
    assert steps.acquire("a", 500, (0, 9)) == [(7, 9, 1)]


def test_what_was_stored_is_what_there_is_after_a_restart() -> None:
    batches = (
        StateBatch(12, 14, RecordState.ACKNOWLEDGED, 1),
        StateBatch(15, 16, RecordState.AVAILABLE, 3),
        StateBatch(20, 21, RecordState.ARCHIVED, 5),
    )
    steps = Steps(start=10, batches=batches)
    assert steps.states() == [
        (10, 11, "AVAILABLE", 0), (12, 14, "ACKNOWLEDGED", 1), (15, 16, "AVAILABLE", 3),
        (17, 19, "AVAILABLE", 0), (20, 21, "ARCHIVED", 5),
    ]  # fmt: skip
    assert steps.partition.delivery_complete_count == 5
    assert steps.acquire("a", 500, (10, 25)) == [(10, 11, 1)], "what failed often comes alone"
    assert steps.acquire("a", 500, (10, 25)) == [(15, 15, 4)]


def test_resting_begins_anew_after_a_restart() -> None:
    stored = (StateBatch(0, 0, RecordState.AVAILABLE, 2),)
    steps = Steps(batches=stored, retry_backoff_ms=1_000, retry_backoff_max_ms=9_000)
    assert not steps.partition.runs.has_ready
    steps.wait(2_000)
    assert steps.partition.runs.has_ready


def test_deleted_records_are_nobodys() -> None:
    steps = Steps(stores=False)
    steps.acquire("a", 500, (0, 9))
    token = steps.say("a", 0, 9, ACCEPT)
    steps.do(LogStartMoved(5))
    assert steps.states() == [(5, 9, "ACQUIRED", 1)]
    steps.answer()
    assert steps.error(token) is ErrorCode.NONE
    assert steps.start == 10
    assert steps.partition.delivery_complete_count == 0
    steps.do(LogStartMoved(50))
    assert (steps.start, steps.partition.next_fetch_offset) == (50, 50)


def test_how_much_is_done_with_is_counted_from_the_start_on() -> None:
    steps = Steps()
    steps.acquire("a", 500, (0, 9))
    steps.say("a", 5, 6, ACCEPT)
    assert steps.partition.delivery_complete_count == 2
    assert steps.writes[-1].delivery_complete_count == 2
    steps.say("a", 0, 4, ACCEPT)
    assert (steps.start, steps.partition.delivery_complete_count) == (7, 0)
    assert (steps.writes[-1].start_offset, steps.writes[-1].delivery_complete_count) == (7, 0)


@pytest.mark.parametrize("error", [ErrorCode.INVALID_REQUEST, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_a_share_partition_that_cannot_be_read_says_so(error: ErrorCode) -> None:
    partition = SharePartition(KEY, 0, SharePartitionSettings())
    partition.handle(Open(), 0)
    effects = partition.handle(StateRead(error=error), 0)
    assert Send(Wake()) in effects
    assert partition.phase is Phase.FAILED
    assert partition.fault is not None and partition.fault.code is error
