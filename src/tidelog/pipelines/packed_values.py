"""Many serialized values read side by side: a position in each of them, moved on together.

A `Cursor` has a position for each value and says of each whether it can still be read. What does not fit into
its value makes that one bad, and no other; a bad one is read no further, so it costs nothing, however it
lies. Positions never leave the buffer: it is padded by what one step can read.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog.pipelines.record_columns import VARINT_BYTES_MAX, Bytes, Numbers, Positions, cut_out

_PADDING_BYTES = 16
_WORD_BYTES = 8
_HIGHEST_BITS = np.uint64(0x8080808080808080)
#: pairs of 7 bits, then of 14, then of 28: what stays, what moves, and by how much
_PUSHED = tuple(
    (np.uint64(low), np.uint64(high), np.uint64(shift))
    for low, high, shift in (
        (0x007F007F007F007F, 0x7F007F007F007F00, 1),
        (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
        (0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
    )
)
Rows = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Cursor:
    """Positions in values of one buffer."""

    __slots__ = ("bad", "buffer", "data", "end", "position")

    def __init__(
        self, data: Bytes, buffer: pa.Buffer, position: Positions, end: Positions, bad: Flags
    ) -> None:
        self.data = data
        self.buffer = buffer
        self.position = position
        self.end = end
        self.bad = bad

    @classmethod
    def over(cls, values: pa.Array) -> "Cursor":
        """The values of a binary array; a null is empty."""
        bounds = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
        first, last = (int(bounds[0]), int(bounds[-1])) if len(values) else (0, 0)
        stored = values.buffers()[2]
        data = np.zeros(last - first + _PADDING_BYTES, np.uint8)
        if stored is not None:
            data[: last - first] = np.frombuffer(stored, np.uint8)[first:last]
        ends = bounds[1:].astype(np.int64) - first
        starts = bounds[:-1].astype(np.int64) - first
        return cls(data, pa.py_buffer(data), starts, ends, np.zeros(len(values), np.bool_))

    def __len__(self) -> int:
        return len(self.position)

    def part(self, rows: Rows) -> "Cursor":
        """Some of the values, to be read apart; `join` brings them back."""
        return Cursor(self.data, self.buffer, self.position[rows], self.end[rows], self.bad[rows])

    def join(self, part: "Cursor", rows: Rows) -> None:
        """Go on with these values where the part has come to."""
        self.position[rows] = part.position
        self.bad[rows] = part.bad

    def spoil(self, which: Flags) -> None:
        """These values cannot be read: they are as if they ended here."""
        if which.any():
            self.bad |= which
            self.position = np.where(which, self.end, self.position)

    def advance(self, sizes: Numbers | int) -> Positions:
        """Where the next bytes of each value begin; those that do not have as many are bad."""
        starts = self.position
        after = starts + sizes
        short = (after > self.end) | (after < starts)
        self.position = after
        self.spoil(short)
        return starts

    def numbers(self) -> npt.NDArray[np.uint64]:
        """The next varint of each value, as it is."""
        starts = self.position
        byte = self.data[starts]
        found = (byte & 0x7F).astype(np.uint64)
        self.position = starts + 1
        rows = np.flatnonzero(byte & 0x80)
        if len(rows):
            found[rows], sizes = _short_varints(self._words(starts[rows], _WORD_BYTES, "<u8"))
            self.position[rows] = starts[rows] + sizes
            rows = rows[sizes == 0]
        self.position[rows] = starts[rows] + _WORD_BYTES
        for number in range(_WORD_BYTES, VARINT_BYTES_MAX):
            if not len(rows):
                break
            byte = self.data[np.minimum(starts[rows] + number, self.end[rows])]
            found[rows] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * number)
            self.position[rows] += 1
            rows = rows[(byte & 0x80) != 0]
        past = self.position > self.end
        if len(rows):
            past[rows] = True
        self.spoil(past)
        if self.bad.any():
            found[self.bad] = 0
        return found

    def signed(self) -> Numbers:
        """The next zigzag number of each value."""
        found = self.numbers()
        return (found >> np.uint64(1)).view(np.int64) ^ -(found & np.uint64(1)).view(np.int64)

    def fixed(self, kind: str) -> npt.NDArray[np.generic]:
        """The next number of a fixed size of each value, little-endian; 0 where it is bad."""
        size = np.dtype(kind).itemsize
        starts = self.advance(size)
        starts = np.where(self.bad, 0, starts)
        found = self._words(starts, size, kind)
        if self.bad.any():
            found[self.bad] = 0
        return found

    def _words(self, starts: Positions, size: int, kind: str) -> npt.NDArray[Any]:
        """Numbers of a fixed size that begin anywhere."""
        window = np.lib.stride_tricks.sliding_window_view(self.data, size)[starts]
        return np.ascontiguousarray(window).view(kind).reshape(len(starts))

    def pieces(self, sizes: Numbers | int) -> pa.Array:
        """The next bytes of each value as a binary array; empty where it is bad."""
        wanted = np.broadcast_to(np.asarray(sizes, dtype=np.int64), self.position.shape)
        self.spoil(wanted < 0)
        starts = self.advance(np.where(self.bad, 0, wanted))
        return cut_out(self.buffer, starts, np.where(self.bad, 0, wanted))

    def texts(self, sizes: Numbers) -> pa.Array:
        """The same as strings; a value with what is no UTF-8 is bad."""
        found = self.pieces(sizes)
        try:
            return found.cast(pa.string())
        except pa.ArrowInvalid:
            wrong = np.fromiter((_is_no_text(data) for data in found.to_pylist()), np.bool_, len(found))
            self.spoil(wrong)
            return pa.compute.if_else(pa.array(wrong), pa.scalar(b""), found).cast(pa.string())


def _short_varints(words: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint64], Numbers]:
    """Varints from the eight bytes where they begin, and how many bytes they have; 0 where that is more.

    The first byte without its highest bit is the last one; seven bits of each are pushed together.
    """
    stops = ~words & _HIGHEST_BITS
    last = stops & (np.uint64(0) - stops)
    below = last - np.uint64(1)
    found = words & (last | below) & ~_HIGHEST_BITS
    for low, high, shift in _PUSHED:
        found = (found & low) | ((found & high) >> shift)
    sizes = (np.bitwise_count(below).astype(np.int64) + 1) // 8
    sizes[stops == 0] = 0
    return found, sizes


def _is_no_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return True
    return False


def joined(found: list[pa.Array]) -> pa.Array:
    """One array after another; Arrow itself takes the first of those that hold nothing but nulls."""
    if len(found) == 1:
        return found[0]
    if pa.types.is_null(found[0].type):
        return pa.nulls(sum(map(len, found)))
    return pa.concat_arrays(found)


def spread(found: pa.Array, rows: Rows, count: int) -> pa.Array:
    """The items at their rows among `count`; null in the others."""
    index = np.zeros(count, np.int64)
    missing = np.ones(count, np.bool_)
    index[rows] = np.arange(len(rows))
    missing[rows] = False
    return found.take(pa.array(index, mask=missing))


def in_row_order(
    found: list[pa.Array], rows: list[Rows], count: int, kind: pa.DataType
) -> tuple[pa.Array, Rows]:
    """Items that were read round by round, as the lists of `count` rows have them, and their bounds."""
    bounds = np.zeros(count + 1, np.int64)
    if not found:
        return pa.array([], kind), bounds
    places = np.concatenate(rows)
    order = np.argsort(places, kind="stable")
    np.cumsum(np.bincount(places, minlength=count), out=bounds[1:])
    if pa.types.is_null(kind):
        return pa.nulls(len(order)), bounds
    return joined(found).take(pa.array(order)), bounds
