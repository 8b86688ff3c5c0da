"""Moving a group's committed offsets: the plan as a value, made without touching the cluster.

A `Target` says where to go; `plan_reset` turns it into one `Move` per partition, kept inside what the log
still has (like Kafka's tool). The plan can be printed, exported, and executed; making it changes nothing.
"""

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

Partition = tuple[str, int]


class TargetKind(Enum):
    """The ways to say where a group should go."""

    EARLIEST = auto()
    LATEST = auto()
    TIMESTAMP = auto()
    OFFSET = auto()
    SHIFT = auto()
    FILE = auto()
    CURRENT = auto()


@dataclass(frozen=True, slots=True)
class Target:
    """Where to go; `number` is the offset, the shift or the timestamp in ms, `offsets` those of a file."""

    kind: TargetKind
    number: int = 0
    offsets: Mapping[Partition, int] | None = None


@dataclass(frozen=True, slots=True)
class LogEnds:
    """What the log of one partition offers: its ends, and the offset at the target's time if asked."""

    earliest: int
    latest: int
    at_time: int | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """One partition's change; `current` is None where the group has committed nothing."""

    topic: str
    partition: int
    current: int | None
    new: int
    note: str = ""

    @property
    def changes(self) -> bool:
        return self.current != self.new


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """Every move of one group, sorted by topic and partition."""

    group: str
    moves: tuple[Move, ...]

    def as_csv(self) -> str:
        """Lines of `topic,partition,offset`, the format of kafka-consumer-groups --export."""
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows(
            (move.topic, move.partition, move.new) for move in self.moves
        )
        return out.getvalue()


def plan_reset(
    group: str, target: Target, committed: Mapping[Partition, int], ends: Mapping[Partition, LogEnds]
) -> ResetPlan:
    """Decide the new offset of every partition in `ends`."""
    moves = []
    for partition in sorted(ends):
        current = committed.get(partition)
        wanted = _wanted(target, partition, current, ends[partition])
        if wanted is None:
            continue
        kept = min(max(wanted, ends[partition].earliest), ends[partition].latest)
        note = "" if kept == wanted else f"{wanted} is outside the log, nearest taken"
        moves.append(Move(partition[0], partition[1], current, kept, note))
    return ResetPlan(group, tuple(moves))


def _wanted(target: Target, partition: Partition, current: int | None, ends: LogEnds) -> int | None:
    match target.kind:
        case TargetKind.EARLIEST:
            return ends.earliest
        case TargetKind.LATEST:
            return ends.latest
        case TargetKind.OFFSET:
            return target.number
        case TargetKind.TIMESTAMP:
            # No record that young: everything before the time has been read, so the end is right.
            return ends.latest if ends.at_time is None else ends.at_time
        case TargetKind.SHIFT:
            return None if current is None else current + target.number
        case TargetKind.CURRENT:
            return current
        case TargetKind.FILE:
            assert target.offsets is not None
            return target.offsets.get(partition)


def parse_offsets_csv(text: str) -> dict[Partition, int]:
    """Read `topic,partition,offset` lines; ValueError names the line that is wrong."""
    offsets: dict[Partition, int] = {}
    for number, row in enumerate(csv.reader(io.StringIO(text)), start=1):
        if not row or row[0].startswith("#"):
            continue
        words = [word.strip() for word in row]
        if len(words) != 3 or not words[1].isdigit() or not words[2].isdigit():
            raise ValueError(f"line {number} is {','.join(row)!r}, not topic,partition,offset")
        offsets[(words[0], int(words[1]))] = int(words[2])
    if not offsets:
        raise ValueError("it has no lines of topic,partition,offset")
    return offsets


def partitions_of(words: Iterable[str], partition_counts: Mapping[str, int]) -> list[Partition]:
    """The partitions named by `TOPIC` or `TOPIC:0,1`; ValueError names what does not exist."""
    chosen: dict[Partition, None] = {}
    for word in words:
        topic, separator, numbers = word.partition(":")
        count = partition_counts.get(topic)
        if count is None:
            raise ValueError(f"there is no topic {topic!r}")
        for number in numbers.split(",") if separator else map(str, range(count)):
            if not number.isdigit() or int(number) >= count:
                raise ValueError(f"topic {topic!r} has no partition {number!r} (it has {count})")
            chosen[(topic, int(number))] = None
    return list(chosen)
