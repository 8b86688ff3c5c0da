"""Where the replicas of new partitions go: evenly, one rack after the other.

Brokers are lined up so that neighbours are in different racks. Leaders go down the line from a start that the
caller chose at random. The other replicas of a partition follow at a distance that grows by one each time the
line has been walked, so that the followers of one broker's partitions are spread over all the others. A rack
is used twice for a partition only when every rack has been used once.
"""

from collections.abc import Mapping


def rack_alternated(racks: Mapping[int, str | None]) -> tuple[int, ...]:
    """Line up the brokers (id to rack) so that racks alternate."""
    by_rack: dict[str, list[int]] = {}
    for broker_id in sorted(racks):
        by_rack.setdefault(racks[broker_id] or "", []).append(broker_id)
    rows = [by_rack[rack] for rack in sorted(by_rack)]
    longest = max((len(row) for row in rows), default=0)
    return tuple(row[turn] for turn in range(longest) for row in rows if turn < len(row))


def place(
    racks: Mapping[int, str | None],
    partition_count: int,
    replication_factor: int,
    *,
    first_partition: int = 0,
    start: int = 0,
    shift: int = 0,
) -> list[tuple[int, ...]]:
    """The replicas of each new partition, the preferred leader first."""
    line = rack_alternated(racks)
    assert 1 <= replication_factor <= len(line), "the caller checks that there are enough brokers"
    return [
        _replicas(line, racks, replication_factor, partition + start, shift + partition // len(line))
        for partition in range(first_partition, first_partition + partition_count)
    ]


def _replicas(
    line: tuple[int, ...], racks: Mapping[int, str | None], replication_factor: int, first: int, shift: int
) -> tuple[int, ...]:
    leader = line[first % len(line)]
    others = len(line) - 1
    candidates = [line[(first + 1 + (shift + step) % others) % len(line)] for step in range(others)]
    chosen = [leader]
    rack_use = {racks[leader]: 1}
    while len(chosen) < replication_factor:
        # min() keeps the first of equals, which is the nearest in line.
        next_one = min(candidates, key=lambda broker_id: rack_use.get(racks[broker_id], 0))
        candidates.remove(next_one)
        chosen.append(next_one)
        rack_use[racks[next_one]] = rack_use.get(racks[next_one], 0) + 1
    return tuple(chosen)
