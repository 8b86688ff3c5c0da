"""The program of the scenario total-order that brings events of several partitions back in order."""

import random

import pytest

from tidelog.lab.clients import ReadRecord
from tidelog.lab.scenarios.total_order import out_of_order, reordered


def spread(count: int, partitions: int, rng: random.Random) -> dict[int, list[ReadRecord]]:
    """Events 0 to count - 1, one a second, each in a random partition."""
    found: dict[int, list[ReadRecord]] = {number: [] for number in range(partitions)}
    for number in range(count):
        partition = rng.randrange(partitions)
        found[partition].append(
            ReadRecord(partition, len(found[partition]), None, str(number), number * 1_000)
        )
    return found


@pytest.mark.parametrize("seed", range(50))
def test_events_come_out_in_order(seed: int) -> None:
    rng = random.Random(seed)
    count, partitions = rng.randrange(1, 80), rng.randrange(1, 6)
    numbers, held_max = reordered(spread(count, partitions, rng), late_ms=rng.choice((0, 3_000)))
    assert numbers == list(range(count))
    assert 0 < held_max <= count


def test_a_partition_that_is_out_of_order_needs_time_to_be_late() -> None:
    late = [ReadRecord(0, place, None, str(n), n * 1_000) for place, n in enumerate((0, 3, 6, 5, 9, 12, 15))]
    steady = [ReadRecord(1, place, None, str(n), n * 1_000) for place, n in enumerate((1, 4, 7, 10, 13))]
    assert out_of_order(reordered({0: steady, 1: late}, late_ms=0)[0]) == 1
    assert reordered({0: steady, 1: late}, late_ms=2_000)[0] == [0, 1, 3, 4, 5, 6, 7, 9, 10, 12, 13, 15]


def test_out_of_order_counts_steps_back() -> None:
    assert [out_of_order(numbers) for numbers in ([], [1], [1, 2, 3], [2, 1, 3, 0])] == [0, 0, 0, 2]
