"""Stored batches: merging, pruning, and the rule that decides between two states of one offset."""

import random
from itertools import pairwise

from tidelog.shares.state_batches import StateBatch, StateBatches
from tidelog.shares.states import RecordState

AVAILABLE, ACKNOWLEDGED, ARCHIVED = RecordState.AVAILABLE, RecordState.ACKNOWLEDGED, RecordState.ARCHIVED


def batch(first: int, last: int, state: RecordState = AVAILABLE, count: int = 1) -> StateBatch:
    return StateBatch(first, last, state, count)


def test_neighbours_in_one_state_become_one() -> None:
    batches = StateBatches([batch(0, 4), batch(10, 14), batch(5, 9)])
    assert list(batches) == [batch(0, 14)]


def test_neighbours_that_differ_stay_two() -> None:
    batches = StateBatches([batch(0, 4), batch(5, 9, count=2)])
    assert list(batches) == [batch(0, 4), batch(5, 9, count=2)]


def test_a_later_delivery_wins_inside_an_older_batch() -> None:
    batches = StateBatches([batch(0, 9), batch(3, 5, count=2)])
    assert list(batches) == [batch(0, 2), batch(3, 5, count=2), batch(6, 9)]


def test_what_is_late_takes_nothing_back() -> None:
    batches = StateBatches([batch(0, 9, ACKNOWLEDGED, 2)])
    batches.merge([batch(0, 9, AVAILABLE, 2), batch(2, 12, ARCHIVED, 1)])
    assert list(batches) == [batch(0, 9, ACKNOWLEDGED, 2), batch(10, 12, ARCHIVED, 1)]


def test_pruning_cuts_the_batch_that_the_start_lies_in() -> None:
    batches = StateBatches([batch(0, 4), batch(5, 9, count=2), batch(20, 29, ARCHIVED)])
    batches.prune(7)
    assert list(batches) == [batch(7, 9, count=2), batch(20, 29, ARCHIVED)]
    batches.prune(30)
    assert list(batches) == []


def test_merging_agrees_with_a_map_of_offsets() -> None:
    chance = random.Random(11)
    for _ in range(300):
        batches, model = StateBatches(), dict[int, StateBatch]()
        for _ in range(chance.randint(1, 25)):
            first = chance.randint(0, 40)
            state = chance.choice([AVAILABLE, ACKNOWLEDGED, RecordState.ARCHIVING, ARCHIVED])
            new = batch(first, first + chance.randint(0, 12), state, chance.randint(1, 3))
            batches.merge([new])
            for offset in range(new.first_offset, new.last_offset + 1):
                if offset not in model or model[offset].rank <= new.rank:
                    model[offset] = new
            if chance.random() < 0.1:
                start = chance.randint(0, 30)
                batches.prune(start)
                model = {offset: kept for offset, kept in model.items() if offset >= start}
        found = {
            offset: kept.rank for kept in batches for offset in range(kept.first_offset, kept.last_offset + 1)
        }
        assert found == {offset: kept.rank for offset, kept in model.items()}
        ordered = list(batches)
        for left, right in pairwise(ordered):
            assert left.last_offset < right.first_offset
            assert left.last_offset + 1 < right.first_offset or left.rank != right.rank
