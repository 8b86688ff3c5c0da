"""The time index of a segment: from a timestamp to an offset before which every record is older.

On disk (`<base offset>.timeindex`), Kafka's format, a run of 12-byte big-endian entries in ascending order:

    0                               8               12
    ├───────────────────────────────┼───────────────┤
    │ int64                         │ int32         │
    │ greatest timestamp up to here │ last offset   │
    │                               │ of the batch  │
    │                               │ that has it,  │
    │                               │ minus base    │
    └───────────────────────────────┴───────────────┘

An entry says: a record with a greater timestamp than mine has a greater offset than mine. The last entry of a
closed segment therefore carries the greatest timestamp of the segment, by which retention judges it.
"""

from array import array
from bisect import bisect_left, bisect_right
from operator import lt
from sys import byteorder

from tidelog.model.identifiers import NO_TIMESTAMP

ENTRY_SIZE = 12


class TimeIndex:
    """The entries of one segment, in memory."""

    __slots__ = ("base_offset", "relative_offsets", "timestamps_ms")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.timestamps_ms = array("q")
        self.relative_offsets = array("i")

    def append(self, timestamp_ms: int, offset: int) -> None:
        """Note the greatest timestamp so far and its offset; nothing is added when it has not grown."""
        timestamps_ms = self.timestamps_ms
        if timestamp_ms > (timestamps_ms[-1] if timestamps_ms else NO_TIMESTAMP):
            timestamps_ms.append(timestamp_ms)
            self.relative_offsets.append(offset - self.base_offset)

    def offset_for(self, timestamp_ms: int) -> int:
        """The offset to search from for the first record with this timestamp or a greater one."""
        slot = bisect_right(self.timestamps_ms, timestamp_ms) - 1
        return self.base_offset + self.relative_offsets[slot] if slot >= 0 else self.base_offset

    @property
    def last_timestamp_ms(self) -> int:
        return self.timestamps_ms[-1] if self.timestamps_ms else NO_TIMESTAMP

    @property
    def last_offset(self) -> int:
        """The offset of the last entry, the base offset without entries."""
        return self.base_offset + (self.relative_offsets[-1] if self.relative_offsets else 0)

    def ascends(self) -> bool:
        """Whether the entries are in order; a file that others damaged need not be."""
        timestamps, offsets = self.timestamps_ms, self.relative_offsets
        return all(map(lt, timestamps, timestamps[1:])) and all(map(lt, offsets, offsets[1:]))

    def truncate_to(self, offset: int) -> None:
        """Forget every entry at `offset` or later."""
        keep = bisect_left(self.relative_offsets, offset - self.base_offset)
        del self.timestamps_ms[keep:]
        del self.relative_offsets[keep:]

    def encode(self, first_entry: int = 0) -> bytes:
        """The bytes on disk of the entries from number `first_entry` on."""
        timestamps = self.timestamps_ms[first_entry:]
        offsets = self.relative_offsets[first_entry:]
        if byteorder == "little":
            timestamps.byteswap()
            offsets.byteswap()
        halves = array("i", timestamps.tobytes())
        words = array("i", bytes(ENTRY_SIZE * len(offsets)))
        words[0::3] = halves[0::2]
        words[1::3] = halves[1::2]
        words[2::3] = offsets
        return words.tobytes()

    @classmethod
    def decode(cls, base_offset: int, data: bytes) -> "TimeIndex | None":
        """Read the bytes of a time index file; None when they cannot be one."""
        if len(data) % ENTRY_SIZE:
            return None
        words = array("i", data)
        halves = array("i", bytes(8 * (len(words) // 3)))
        halves[0::2] = words[0::3]
        halves[1::2] = words[1::3]
        index = cls(base_offset)
        index.timestamps_ms = array("q", halves.tobytes())
        index.relative_offsets = words[2::3]
        if byteorder == "little":
            index.timestamps_ms.byteswap()
            index.relative_offsets.byteswap()
        return index

    def __len__(self) -> int:
        return len(self.timestamps_ms)

    def __repr__(self) -> str:
        return f"<TimeIndex base_offset={self.base_offset} entries={len(self)}>"
