"""Offsets as values: their JSON, limits, splits, and what changed."""

import random

import pytest

from tidelog.client.faults import BadOption
from tidelog.model.identifiers import TopicPartition
from tidelog.pipelines.offset_planning import (
    OffsetRange,
    compare_offsets,
    from_json,
    limit_offsets,
    parse_assignment,
    parse_offsets,
    split_ranges,
    to_json,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def test_json_is_in_order_whatever_the_order_of_the_offsets() -> None:
    offsets = {B0: 3, TopicPartition("a", 10): 2, A1: 1, A0: 0}
    text = str(to_json(offsets))
    assert text == "{'a': {'0': 0, '1': 1, '10': 2}, 'b': {'0': 3}}"
    assert from_json(to_json(offsets)) == offsets


def test_offsets_of_an_option() -> None:
    assert parse_offsets("startingOffsets", '{"a":{"0":23,"1":-2},"b":{"0":-1}}') == {A0: 23, A1: -2, B0: -1}


@pytest.mark.parametrize(
    "text",
    ["soon", "[]", '{"a":3}', '{"a":{"x":1}}', '{"a":{"0":"1"}}', '{"a":{"0":true}}', '{"a":{"-1":1}}'],
)
def test_offsets_that_are_none(text: str) -> None:
    with pytest.raises(BadOption, match="startingOffsets is written"):
        parse_offsets("startingOffsets", text)


def test_assignments() -> None:
    assert parse_assignment('{"b":[0],"a":[1,0,1]}') == (A0, A1, B0)
    for text in ("a", "{}", '{"a":0}', '{"a":["0"]}', '{"a":[-1]}'):
        with pytest.raises(BadOption, match="assign is written"):
            parse_assignment(text)


def test_limits_are_shared_in_proportion() -> None:
    start, latest = {A0: 0, A1: 100, B0: 5}, {A0: 900, A1: 200, B0: 5}
    assert limit_offsets(start, latest, 100) == {A0: 90, A1: 110, B0: 5}
    assert limit_offsets(start, latest, 1_000) == latest
    # None starves: a share below one record is one record.
    assert limit_offsets({A0: 0, A1: 0}, {A0: 10_000, A1: 1}, 10) == {A0: 9, A1: 1}


def test_limits_reach_the_end_in_the_end() -> None:
    generator = random.Random(7)
    for _ in range(100):
        latest = {TopicPartition("t", number): generator.randrange(500) for number in range(5)}
        start = {where: generator.randrange(end + 1) for where, end in latest.items()}
        most = generator.randrange(1, 300)
        for _ in range(3_000):
            if start == latest:
                break
            end = limit_offsets(start, latest, most)
            taken = sum(end[where] - start[where] for where in end)
            assert 0 < taken <= most + len(latest)
            assert all(start[where] <= end[where] <= latest[where] for where in end)
            start = end
        assert start == latest


def test_splits_cover_everything_once() -> None:
    generator = random.Random(8)
    for _ in range(300):
        ranges = [
            OffsetRange(
                TopicPartition("t", number), start := generator.randrange(50), start + generator.randrange(90)
            )
            for number in range(generator.randrange(1, 6))
        ]
        least = generator.choice([None, 1, 3, 10, 40])
        most = generator.choice([None, 1, 7, 1_000])
        pieces = split_ranges(ranges, least, most)
        for whole in ranges:
            mine = [one for one in pieces if one.where == whole.where]
            covered = [offset for one in mine for offset in range(one.start, one.end)]
            assert covered == list(range(whole.start, whole.end))
        assert all(one.records_count > 0 for one in pieces)
        if most is not None:
            assert all(one.records_count <= most for one in pieces)


def test_splits_give_the_large_ones_more_tasks() -> None:
    pieces = split_ranges([OffsetRange(A0, 0, 1_000), OffsetRange(A1, 0, 10)], 6, None)
    assert len(pieces) == 6
    assert [one.where for one in pieces] == [A0] * 5 + [A1]
    assert len(split_ranges([OffsetRange(A0, 0, 3)], 10, None)) == 3


def test_changes() -> None:
    changes = compare_offsets([A0, B0], {A0: 10, A1: 5}, {A0: 7, B0: 3})
    assert (changes.appeared, changes.gone, changes.backwards) == ((B0,), (A1,), (A0,))
