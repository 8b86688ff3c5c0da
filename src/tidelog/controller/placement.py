"""Where the replicas of new partitions go: evenly, one rack after the other.

Brokers are lined up so that neighbours are in different racks. Leaders go down the line from a start that the
caller chose at random. The other replicas of a partition follow at a distance that grows by one each time the
line has been walked, so that the followers of one broker's partitions are spread over all the others. A rack
is used twice for a partition only when every rack has been used once.

On its broker a new replica goes to the log directory that has the fewest. The controller chooses it, not the
broker as in Kafka: so there is no moment at which a record is acknowledged and the cluster does not know in
which directory it is.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain

from tidelog.model.identifiers import MIGRATING_DIRECTORY
from tidelog.model.image import ClusterImage


class DirectoryLoads:
    """How many replicas each log directory has; counted only if a broker has several to choose from."""

    __slots__ = ("_counts", "_image")

    def __init__(self, image: ClusterImage) -> None:
        self._image = image
        self._counts: Counter[str] | None = None

    def choose(self, directories: Sequence[str]) -> str:
        """The directory of a new replica on a broker with these online ones, as far as that can be said."""
        if not directories or MIGRATING_DIRECTORY in directories:
            return MIGRATING_DIRECTORY
        if len(directories) == 1:
            return directories[0]
        if self._counts is None:
            topics = self._image.topics.values()
            partitions = chain.from_iterable(topic.partitions for topic in topics)
            self._counts = Counter(chain.from_iterable(each.directories for each in partitions))
        counts = self._counts
        chosen = min(directories, key=lambda directory: counts[directory])
        counts[chosen] += 1
        return chosen


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
