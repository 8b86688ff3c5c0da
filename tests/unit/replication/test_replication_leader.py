"""What a leader concludes from the fetches of its followers."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from tidelog.model.image import PartitionImage
from tidelog.replication.leader import Contact, LeaderReplicas

LAG_MS = 1_000


def replicas(
    isr: tuple[int, ...] = (1, 2, 3), *, epoch: int = 5, end_offset: int = 10, alive: set[int] | None = None
) -> LeaderReplicas:
    state = PartitionImage(1, epoch, (1, 2, 3), isr, 7)
    living = {2, 3} if alive is None else alive
    return LeaderReplicas(
        1,
        state,
        epoch_start_offset=end_offset,
        now_ms=0,
        lag_max_ms=LAG_MS,
        eligible=lambda broker_id, broker_epoch: broker_id in living,
    )


def at(now_ms: int) -> Callable[[], int]:
    return lambda: now_ms


def fetch(
    leader: LeaderReplicas, broker_id: int, offset: int, end_offset: int, now_ms: int, **more: object
) -> bool:
    return leader.fetched(
        broker_id,
        1,
        offset,
        0,
        end_offset=end_offset,
        now_ms=now_ms,
        **more,  # type: ignore[arg-type]
    )


def test_the_watermark_is_the_smallest_end_in_the_isr() -> None:
    leader = replicas()
    assert leader.watermark(0, 10, 1, at(0)) == 0, "nobody has fetched yet"
    fetch(leader, 2, 10, 10, 1)
    assert leader.watermark(0, 10, 1, at(1)) == 0
    fetch(leader, 3, 8, 10, 2)
    assert leader.watermark(0, 10, 1, at(2)) == 8
    assert leader.watermark(9, 10, 1, at(2)) == 9, "it never goes back"


def test_nobody_outside_the_isr_holds_the_watermark_unless_it_is_about_to_join() -> None:
    leader = replicas((1, 2))
    fetch(leader, 2, 10, 10, 1)
    fetch(leader, 3, 4, 10, 1)
    assert leader.watermark(0, 10, 1, at(1)) == 10
    fetch(leader, 3, 10, 10, 2)
    leader.appending(10)
    fetch(leader, 2, 12, 12, 3)
    # 3 was caught up a moment ago and may join: it is waited for.
    assert leader.watermark(10, 12, 1, at(3)) == 10
    assert leader.watermark(10, 12, 1, at(3 + LAG_MS)) == 12
    dead = replicas((1, 2), alive={2})
    fetch(dead, 3, 10, 10, 2)
    fetch(dead, 2, 12, 12, 3)
    assert dead.watermark(10, 12, 1, at(3)) == 12


def test_too_few_in_sync_commit_nothing() -> None:
    leader = replicas((1,))
    assert leader.under_min_isr(2) and leader.watermark(3, 10, 2, at(0)) == 3
    assert not leader.under_min_isr(1) and leader.watermark(3, 10, 1, at(0)) == 10
    # More than there are replicas cannot be asked for.
    assert replicas().effective_min_isr(5) == 3 and not replicas().under_min_isr(5)


def test_a_pending_member_counts_before_the_controller_has_decided() -> None:
    leader = replicas((1, 2))
    fetch(leader, 2, 10, 10, 1)
    fetch(leader, 3, 10, 10, 1)
    assert leader.may_join(3, 10) and not leader.may_join(2, 10)
    assert leader.propose(leader.isr | {3}) == ((1, 2, 3), (-1, 1, 1))
    assert not leader.may_join(3, 10), "one change at a time"
    assert leader.maximal_isr == {1, 2, 3} and leader.isr == {1, 2}
    fetch(leader, 2, 20, 20, 2)
    assert leader.watermark(10, 20, 1, at(10 * LAG_MS)) == 10
    leader.take_back()
    assert leader.watermark(10, 20, 1, at(10 * LAG_MS)) == 20


def test_who_shrinks_the_isr_waits_for_both_until_it_is_decided() -> None:
    leader = replicas()
    fetch(leader, 2, 10, 10, 0)
    fetch(leader, 2, 12, 12, LAG_MS)
    assert leader.fallen_behind(12, LAG_MS) == frozenset()
    assert leader.fallen_behind(12, LAG_MS + 1) == {3}
    leader.propose(leader.isr - {3})
    assert leader.fallen_behind(12, LAG_MS + 1) == frozenset()
    assert leader.watermark(0, 12, 1, at(LAG_MS + 1)) == 0
    state = PartitionImage(1, 5, (1, 2, 3), (1, 2), 8)
    assert leader.update(state, epoch_start_offset=12, now_ms=LAG_MS + 2)
    assert leader.watermark(0, 12, 1, at(LAG_MS + 2)) == 12
    assert not leader.update(PartitionImage(1, 5, (1, 2, 3), (1, 2, 3), 7), epoch_start_offset=12, now_ms=0)
    assert leader.isr == {1, 2}, "an older record changes nothing"


def test_who_has_not_all_from_before_this_leadership_may_not_join() -> None:
    leader = replicas((1, 2), end_offset=10)
    fetch(leader, 3, 9, 10, 1)
    assert not leader.may_join(3, 5)
    fetch(leader, 3, 10, 10, 1)
    assert leader.may_join(3, 5) and not leader.may_join(3, 11)


def test_a_steady_stream_keeps_a_follower_in_sync() -> None:
    """It is never at the end, but always has what there was at its last fetch."""
    leader = replicas(end_offset=0)
    end_offset = 0
    for now_ms in range(0, 10 * LAG_MS, 100):
        fetch(leader, 2, end_offset, end_offset + 5, now_ms)
        fetch(leader, 3, 0, end_offset + 5, now_ms)
        end_offset += 5
    assert leader.fallen_behind(end_offset, 10 * LAG_MS) == {3}


def test_a_session_speaks_for_the_partitions_it_does_not_name() -> None:
    leader = replicas((1, 2), end_offset=10)
    contact = Contact(0)
    fetch(leader, 2, 10, 10, 0, contact=contact)
    contact.last_fetch_ms = 50 * LAG_MS
    leader.appending(10)
    assert leader.fallen_behind(11, 50 * LAG_MS + 5) == frozenset()
    assert leader.fallen_behind(11, 51 * LAG_MS + 5) == {2}


def test_strangers_and_earlier_lives_are_not_heard() -> None:
    leader = replicas()
    assert not fetch(leader, 9, 10, 10, 0)
    assert leader.fetched(2, 4, 10, 0, end_offset=10, now_ms=0)
    assert not leader.fetched(2, 3, 5, 0, end_offset=10, now_ms=0)
    assert leader.followers[2].log_end_offset == 10


def test_a_new_epoch_of_the_same_leader_keeps_what_is_known() -> None:
    leader = replicas((1, 2))
    fetch(leader, 2, 10, 10, 1)
    fetch(leader, 3, 6, 10, 1)
    leader.update(PartitionImage(1, 6, (1, 2, 3), (1, 2), 8), epoch_start_offset=10, now_ms=500)
    assert leader.followers[2].log_end_offset == 10
    assert leader.watermark(0, 10, 1, at(500)) == 10
    leader.update(PartitionImage(1, 6, (1, 2, 4), (1, 2), 9), epoch_start_offset=10, now_ms=500)
    assert sorted(leader.followers) == [2, 4]


def test_who_was_removed_and_assigned_again_unseen_does_not_join_by_what_it_had() -> None:
    """The leader sees the last of two records: by the first one the follower has dropped its log."""
    leader = replicas((1, 2, 3))
    fetch(leader, 2, 10, 10, 1)
    fetch(leader, 3, 10, 10, 1)
    leader.update(PartitionImage(1, 6, (1, 2, 3), (1, 2), 9, adding=(3,)), epoch_start_offset=10, now_ms=500)
    assert not leader.may_join(3, 10)
    # Member 2 may have been in sync with another leader meanwhile: it is heard first, too.
    assert leader.watermark(5, 12, 2, lambda: 500) == 5
    fetch(leader, 2, 12, 12, 501)
    assert leader.watermark(5, 12, 2, lambda: 501) == 12
    fetch(leader, 3, 0, 12, 502)
    assert not leader.may_join(3, 12)
    fetch(leader, 3, 12, 12, 503)
    assert leader.may_join(3, 12)


def test_the_low_watermark_is_that_of_the_living() -> None:
    leader = replicas()
    leader.fetched(2, 1, 10, 7, end_offset=10, now_ms=0)
    leader.fetched(3, 1, 10, 3, end_offset=10, now_ms=0)
    assert leader.low_watermark(9, lambda broker_id: True) == 3
    assert leader.low_watermark(9, lambda broker_id: broker_id != 3) == 7


@given(st.lists(st.tuples(st.sampled_from((2, 3)), st.integers(0, 20), st.integers(0, 3000)), max_size=30))
def test_below_the_watermark_everything_is_in_every_log_of_the_isr(
    fetches: list[tuple[int, int, int]],
) -> None:
    leader = replicas(end_offset=0)
    high_watermark, now_ms = 0, 0
    best = {2: -1, 3: -1}
    for broker_id, offset, wait_ms in fetches:
        now_ms += wait_ms
        fetch(leader, broker_id, offset, 20, now_ms)
        best[broker_id] = max(best[broker_id], offset)
        high_watermark = leader.watermark(high_watermark, 20, 2, at(now_ms))
        assert high_watermark <= max(0, min(best.values()))
