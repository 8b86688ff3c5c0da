"""The offset index of a segment: from an offset to the position of a batch at or before it.

On disk (`<base offset>.index`), Kafka's format, a run of 8-byte big-endian entries in ascending order:

    0               4               8
    ├───────────────┼───────────────┤
    │ int32         │ int32         │
    │ last offset   │ position of   │
    │ of a batch,   │ the batch in  │
    │ minus base    │ the .log file │
    └───────────────┴───────────────┘

The index is sparse: an entry about every `index.interval.bytes`. A lookup gives a place to start scanning
from, never an exact hit. Kafka allocates the file at its greatest size and trims it when the segment is
closed; here the file only ever holds the entries.
"""

from array import array
from bisect import bisect_right
from operator import lt
from sys import byteorder

ENTRY_SIZE = 8
RELATIVE_OFFSET_MAX = 2**31 - 1

assert array("i").itemsize == 4


class OffsetIndex:
    """The entries of one segment, in memory."""

    __slots__ = ("base_offset", "positions", "relative_offsets")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.relative_offsets = array("i")
        self.positions = array("i")

    def append(self, offset: int, position: int) -> None:
        """Note that the batch at `position` ends with `offset`; both must grow from entry to entry."""
        relative_offset = offset - self.base_offset
        relative_offsets, positions = self.relative_offsets, self.positions
        assert not positions or (relative_offset > relative_offsets[-1] and position > positions[-1])
        relative_offsets.append(relative_offset)
        positions.append(position)

    def position_for(self, offset: int) -> int:
        """The position to scan from for the batch that holds `offset`, or the first one after it."""
        # An entry that ends exactly with the offset points at the very batch; one that ends later may be
        # past it.
        slot = bisect_right(self.relative_offsets, offset - self.base_offset) - 1
        return self.positions[slot] if slot >= 0 else 0

    def offset_at(self, position: int) -> int | None:
        """The last offset of the indexed batch that starts at `position`; None when that is not indexed."""
        slot = bisect_right(self.positions, position) - 1
        if slot < 0 or self.positions[slot] != position:
            return None
        return self.base_offset + self.relative_offsets[slot]

    def boundary_before(self, position: int) -> int:
        """The position of the last indexed batch that starts at or before `position`, else 0."""
        slot = bisect_right(self.positions, position) - 1
        return self.positions[slot] if slot >= 0 else 0

    @property
    def last_position(self) -> int:
        """The position of the last indexed batch, 0 without entries."""
        return self.positions[-1] if self.positions else 0

    def ascends(self) -> bool:
        """Whether the entries are in order; a file that others damaged need not be."""
        offsets, positions = self.relative_offsets, self.positions
        return all(map(lt, offsets, offsets[1:])) and all(map(lt, positions, positions[1:]))

    def truncate_to(self, offset: int) -> None:
        """Forget every entry whose batch ends at `offset` or later."""
        keep = bisect_right(self.relative_offsets, offset - self.base_offset - 1)
        del self.relative_offsets[keep:]
        del self.positions[keep:]

    def encode(self, first_entry: int = 0) -> bytes:
        """The bytes on disk of the entries from number `first_entry` on."""
        words = array("i", bytes(ENTRY_SIZE * (len(self) - first_entry)))
        words[0::2] = self.relative_offsets[first_entry:]
        words[1::2] = self.positions[first_entry:]
        if byteorder == "little":
            words.byteswap()
        return words.tobytes()

    @classmethod
    def decode(cls, base_offset: int, data: bytes) -> "OffsetIndex | None":
        """Read the bytes of an index file; None when they cannot be one."""
        if len(data) % ENTRY_SIZE:
            return None
        words = array("i", data)
        if byteorder == "little":
            words.byteswap()
        index = cls(base_offset)
        index.relative_offsets = words[0::2]
        index.positions = words[1::2]
        return index

    def __len__(self) -> int:
        return len(self.positions)

    def __repr__(self) -> str:
        return f"<OffsetIndex base_offset={self.base_offset} entries={len(self)}>"
