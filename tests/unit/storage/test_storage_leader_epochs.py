"""Leader epochs: where each began, where each ended, and what survives a crash."""

from random import Random

import pytest

from tests.support.simulated_disk import SimulatedDisk
from tidelog.storage.leader_epochs import EpochEntry, LeaderEpochs

PATH = "/leader-epoch-checkpoint"


def epochs(*rows: tuple[int, int]) -> LeaderEpochs:
    result = LeaderEpochs(SimulatedDisk(), PATH)
    for epoch, start_offset in rows:
        assert result.assign(epoch, start_offset)
    return result


def test_without_entries_nothing_is_known() -> None:
    empty = epochs()
    assert empty.latest == -1
    assert empty.end_offset_for(0, 100) == (-1, -1)
    assert empty.epoch_at(0) == -1
    assert empty.entries == ()


def test_only_a_new_epoch_is_news() -> None:
    known = epochs((0, 0))
    assert not known.assign(0, 5)
    assert known.assign(2, 5)
    assert not known.assign(2, 5)
    assert known.entries == (EpochEntry(0, 0), EpochEntry(2, 5))
    assert known.latest == 2


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ((3, 20), ((1, 0), (2, 10), (3, 20))),
        ((3, 30), ((1, 0), (2, 10), (3, 20))),  # no news
        ((5, 10), ((1, 0), (5, 10))),  # nothing was written in epochs 2 and 3
        ((4, 5), ((1, 0), (4, 5))),
        ((4, 0), ((4, 0),)),
        ((2, 40), ((1, 0), (2, 40))),  # an epoch that goes back wins over the later ones
        ((0, 40), ((0, 40),)),
        ((3, 19), ((1, 0), (2, 10), (3, 19))),
    ],
)
def test_an_entry_drops_those_it_contradicts(
    row: tuple[int, int], expected: tuple[tuple[int, int], ...]
) -> None:
    known = epochs((1, 0), (2, 10), (3, 20))
    known.assign(*row)
    assert known.entries == expected


@pytest.mark.parametrize(
    ("epoch", "answer"),
    [
        (-1, (-1, -1)),  # the asker does not know its epoch
        (0, (0, 7)),  # before everything: ends where the first known epoch starts
        (2, (2, 12)),
        (3, (2, 12)),  # unknown, between: the largest known one before it
        (4, (2, 12)),
        (5, (5, 20)),
        (9, (9, 33)),  # the latest: the end of the log
        (10, (-1, -1)),  # later than everything
    ],
)
def test_where_an_epoch_ended(epoch: int, answer: tuple[int, int]) -> None:
    assert epochs((2, 7), (5, 12), (9, 20)).end_offset_for(epoch, 33) == answer


def test_the_epoch_at_an_offset() -> None:
    known = epochs((2, 7), (5, 12), (9, 20))
    assert [known.epoch_at(offset) for offset in (0, 6, 7, 11, 12, 19, 20, 1000)] == [
        -1,
        -1,
        2,
        2,
        5,
        5,
        9,
        9,
    ]


@pytest.mark.parametrize(
    ("end_offset", "left"),
    [
        (100, ((2, 7), (5, 12))),
        (13, ((2, 7), (5, 12))),
        (12, ((2, 7),)),
        (8, ((2, 7),)),
        (7, ()),
        (0, ()),
    ],
)
def test_truncation_from_the_end(end_offset: int, left: tuple[tuple[int, int], ...]) -> None:
    known = epochs((2, 7), (5, 12))
    known.truncate_from_end(end_offset)
    assert known.entries == left


@pytest.mark.parametrize(
    ("start_offset", "left"),
    [
        (0, ((2, 7), (5, 12), (6, 20))),
        (7, ((2, 7), (5, 12), (6, 20))),
        (8, ((2, 8), (5, 12), (6, 20))),
        (12, ((5, 12), (6, 20))),
        (19, ((5, 19), (6, 20))),
        (99, ((6, 99),)),
    ],
)
def test_truncation_from_the_start(start_offset: int, left: tuple[tuple[int, int], ...]) -> None:
    known = epochs((2, 7), (5, 12), (6, 20))
    known.truncate_from_start(start_offset)
    assert known.entries == left


def test_the_file_is_kafkas_and_read_back() -> None:
    disk = SimulatedDisk()
    known = LeaderEpochs(disk, PATH)
    known.assign(0, 0)
    known.assign(3, 1500)
    known.flush()
    assert disk.open(PATH, create=False).read(0, 100) == b"0\n2\n0 0\n3 1500\n"
    again = LeaderEpochs(disk, PATH)
    assert again.entries == known.entries
    assert not again.was_malformed


def test_an_epoch_change_touches_no_disk_and_a_flush_without_change_neither() -> None:
    disk = SimulatedDisk()
    known = LeaderEpochs(disk, PATH)
    known.assign(0, 0)
    known.truncate_from_start(5)
    assert disk.operations_count == 0
    known.flush()
    written = disk.operations_count
    known.flush()
    assert disk.operations_count == written > 0


@pytest.mark.parametrize("data", [b"0\n1\n3 15", b"0\n1\n3\n", b"0\n1\n-3 15\n", b"\0\0\0", b"7\n0\n"])
def test_a_malformed_file_is_reported_and_mended_by_the_next_flush(data: bytes) -> None:
    disk = SimulatedDisk()
    disk.open(PATH, create=True).append(data)
    known = LeaderEpochs(disk, PATH)
    assert known.was_malformed
    assert known.entries == ()
    known.flush()
    assert not LeaderEpochs(disk, PATH).was_malformed


def test_replaying_the_batches_behind_the_flush_restores_any_history_after_a_power_cut() -> None:
    for seed in range(200):
        random = Random(seed)
        disk = SimulatedDisk(seed)
        known = LeaderEpochs(disk, PATH)
        batches: list[int] = []  # the epoch of the batch at each offset
        epoch = recovery_point = 0
        for _ in range(random.randint(1, 30)):
            action = random.random()
            if action < 0.3:
                epoch += random.randint(1, 3)
            elif action < 0.4 and batches:
                cut = random.randint(recovery_point, len(batches))
                del batches[cut:]
                known.truncate_from_end(cut)
            elif action < 0.5:
                known.flush()
                recovery_point = len(batches)
            else:
                known.assign(epoch, len(batches))
                batches.append(epoch)
        del batches[random.randint(recovery_point, len(batches)) :]
        found = LeaderEpochs(disk.crash(), PATH)
        for offset in range(recovery_point, len(batches)):
            found.replay(batches[offset], offset, offset)
        found.truncate_from_end(len(batches))
        assert [found.epoch_at(offset) for offset in range(len(batches))] == batches
        assert found.latest == (batches[-1] if batches else -1)


def test_replay_believes_entries_that_agree_with_the_batches_and_no_others() -> None:
    known = epochs((0, 0), (1, 5), (2, 9))
    assert not known.replay(0, 3, 4)
    assert not known.replay(1, 7, 8)
    assert not known.replay(2, 12, 12), "the batches from 9 on were compacted away"
    assert known.entries == ((0, 0), (1, 5), (2, 9))
    assert known.replay(2, 7, 8), "an entry from before the log was cut and written again"
    assert known.entries == ((0, 0), (1, 5), (2, 7))


def test_replay_of_an_older_epoch_keeps_where_that_epoch_began() -> None:
    known = epochs((0, 0), (1, 5), (2, 8))
    assert known.replay(1, 8, 9)
    assert known.entries == ((0, 0), (1, 5))


def test_replay_drops_an_entry_that_begins_inside_of_a_batch() -> None:
    known = epochs((0, 0), (1, 5), (2, 8))
    assert known.replay(1, 7, 9), "where the batch at 8 was, another one now is"
    assert known.entries == ((0, 0), (1, 5))
    assert known.replay(2, 10, 10)
    assert known.entries == ((0, 0), (1, 5), (2, 10))  # type: ignore[comparison-overlap]
