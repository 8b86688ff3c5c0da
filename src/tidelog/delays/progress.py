"""How far a delay partition is forwarded: a value that is committed in the transaction of the copies.

A record is done if its offset is below `taken` and its (due time, offset) is not above (`due_ms`, `offset`).
Everything before `low` is done, too. `delays` says which delay of the topic held for the records from an
offset on: what a record is due at must not change once it was taken over.

It is stored as the offset (`low`) and the metadata of a committed offset:

    1;<topic id>;<taken>;<due ms>;<offset>;<from offset>:<delay ms>,<from offset>:<delay ms>...
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from tidelog.model.identifiers import NO_OFFSET, NO_TIMESTAMP

_VERSION = "1"
#: how many changes of a topic's delay are told apart among the records that wait
DELAYS_MAX = 64


class Delay(NamedTuple):
    """The delay of the topic, as it held for the records from an offset on."""

    from_offset: int
    delay_ms: int


@dataclass(frozen=True, slots=True)
class Progress:
    """What is done of one delay partition."""

    low: int = 0
    taken: int = 0
    due_ms: int = NO_TIMESTAMP
    offset: int = NO_OFFSET
    delays: tuple[Delay, ...] = ()

    def is_done(self, due_ms: int, offset: int) -> bool:
        """Whether a record was forwarded, or found to be cancelled when it was due."""
        return offset < self.taken and (due_ms, offset) <= (self.due_ms, self.offset)

    def within(self, start_offset: int, end_offset: int) -> "Progress":
        """What is true of it for a log with these bounds: an unclean election may have cut it."""
        return Progress(
            min(max(self.low, start_offset), end_offset),
            min(self.taken, end_offset),
            self.due_ms,
            self.offset,
            self.delays,
        )

    def metadata(self, topic_id: UUID) -> str:
        """What is committed beside `low`."""
        delays = ",".join(f"{each.from_offset}:{each.delay_ms}" for each in self.delays)
        return f"{_VERSION};{topic_id.hex};{self.taken};{self.due_ms};{self.offset};{delays}"


def read_progress(low: int, metadata: str, topic_id: UUID) -> Progress | None:
    """What was committed for this topic; None if that was for another one of its name.

    Raises ValueError for what no forwarder commits: somebody else has set the offset.
    """
    version, id_hex, taken, due_ms, offset, delays = metadata.split(";")
    if version != _VERSION:
        raise ValueError(f"progress of version {version}")
    if UUID(hex=id_hex) != topic_id:
        return None
    pairs = [each.split(":") for each in delays.split(",") if each]
    return Progress(
        low,
        int(taken),
        int(due_ms),
        int(offset),
        tuple(Delay(int(start), int(delay)) for start, delay in pairs),
    )


def kept_delays(delays: Sequence[Delay], low: int, taken: int) -> tuple[Delay, ...]:
    """The ranges that offsets from `low` up to `taken` lie in."""
    first = 0
    for number, each in enumerate(delays):
        if each.from_offset <= low:
            first = number
    return tuple(each for each in delays[first:] if each.from_offset < taken)
