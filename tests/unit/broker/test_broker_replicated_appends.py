"""Waiting for the replicas of what a broker itself appends."""

import pytest

from tests.support.in_memory_cluster import InMemoryCluster
from tidelog.broker.replicas.partition import Partition
from tidelog.model.errors import ErrorCode, Refused


class Leader:
    """A broker whose one follower stands still."""

    def __init__(self) -> None:
        self.cluster = InMemoryCluster((1, 2))
        self.cluster.create_topic("t", partitions=2, replication_factor=2)
        self.cluster.run_for(50)
        index = next(index for index in range(2) if self.cluster.state("t", index).leader == 1)
        self.broker = self.cluster.nodes[1].broker
        self.partition: Partition = self.broker.replicas.led["t", index]
        self.cluster.freeze(2)
        self.told: list[tuple[str, ErrorCode]] = []

    def append(self) -> int:
        outcome = self.partition.append_internal([(b"k", b"v")], self.broker.clock.now_ms())
        assert not isinstance(outcome, Refused)
        self.broker.replicated_appends.appended(self.partition)
        return outcome + 1

    def wait(self, name: str, end_offset: int, timeout_ms: int = 60_000, *, on: bool = False) -> None:
        """Wait; with `on` again each time when the deadline has passed."""

        def verdict(code: ErrorCode) -> None:
            self.told.append((name, code))
            if on and code is ErrorCode.REQUEST_TIMED_OUT:
                self.wait(name, end_offset, timeout_ms, on=True)

        self.broker.replicated_appends.wait(self.partition, end_offset, timeout_ms, verdict)

    def commit(self, high_watermark: int) -> None:
        self.partition.high_watermark = high_watermark
        self.broker.turn.note_progress(self.partition)
        self.broker.turn.wake()


def test_waits_end_in_the_order_of_their_offsets() -> None:
    leader = Leader()
    first, second, third = (leader.append() for _ in range(3))
    others = list(leader.partition.waiters)
    for name, end_offset in (("second", second), ("third", third), ("first", first), ("also", second)):
        leader.wait(name, end_offset)
    # Whoever waits for any progress is looked at with each; these are not.
    assert list(leader.partition.waiters) == others and leader.told == []
    leader.commit(second)
    assert leader.told == [(name, ErrorCode.NONE) for name in ("first", "second", "also")]
    leader.commit(third)
    assert leader.told[3:] == [("third", ErrorCode.NONE)] and not leader.partition.commits


def test_who_need_not_wait_is_told_at_once() -> None:
    leader = Leader()
    leader.wait("nothing", leader.partition.high_watermark)
    assert leader.told == [("nothing", ErrorCode.NONE)] and not leader.partition.commits


@pytest.mark.parametrize("others", [0, 1])
def test_waiting_on_after_a_deadline_takes_no_more_room(others: int) -> None:
    leader = Leader()
    end_offset, later = leader.append(), leader.append()
    names = ["it", *["another"] * others]
    for name in names:
        leader.wait(name, end_offset, 100, on=True)
    leader.wait("later", later)
    for _ in range(5):
        leader.cluster.run_for(101)
    assert len(leader.told) >= 5 * len(names)
    assert len(leader.partition.commits) == len(names) + 1
    leader.told.clear()
    leader.commit(end_offset)
    assert sorted(leader.told) == sorted((name, ErrorCode.NONE) for name in names)


def test_an_abandoned_wait_says_nothing() -> None:
    leader = Leader()
    end_offset = leader.append()
    wait = leader.broker.replicated_appends.wait(
        leader.partition, end_offset, 100, lambda code: leader.told.append(("it", code))
    )
    assert wait is not None
    wait.abandon()
    leader.commit(end_offset)
    leader.cluster.run_for(200)
    assert leader.told == [] and not leader.partition.commits
