"""When the records of a batch are due, without making an object of each.

A leader wants this of each batch twice: when it is produced, and a moment later when its records are taken
over into the index of what waits. `RecentScans` keeps what was found for the second time; it is known again
by all bytes of its records, so it is never another batch.

`scan` reads records as clients usually write them to a delay topic: up to 10,000, each with a value, headers
by the dozen at most, one of them `tidelog-delay-ms` or `tidelog-deliver-at` as a number, or none of them. It
says None of all others: cancels, tombstones, other forms of a time, what is damaged or cannot be obeyed.
`record.parse_records` and `delivery_headers` then read them one by one, and know what is wrong.

Every number of a record is a varint; those of one byte and of two are read in place, as in `plain_records`.
"""

from typing import NamedTuple

from tidelog.model.log_config import INT64_MAX
from tidelog.records.delivery_headers import CANCEL, DELAY_MS, DELIVER_AT, PRIORITY, TTL_MS
from tidelog.records.plain_records import NULL

_AFTER, _AT = DELAY_MS.encode(), DELIVER_AT.encode()
_OURS = frozenset((_AFTER, _AT))
#: these are left to who knows them
_OTHERS = frozenset(each.encode() for each in (CANCEL, TTL_MS, PRIORITY))
_DIGITS_MAX = 15
_NO_HEADERS = b"\0"
# The headers of a record up to the length of the value, where there is one header: what most records have.
_ONLY_AFTER = b"\x02" + bytes((len(_AFTER) << 1,)) + _AFTER
_ONLY_AT = b"\x02" + bytes((len(_AT) << 1,)) + _AT
_ONLY_AFTER_SIZE, _ONLY_AT_SIZE = len(_ONLY_AFTER), len(_ONLY_AT)
_HEADERS_MAX = 12
RECORDS_MAX = 10_000
#: of how many batches it is kept what was found, and how large they may be together
KEPT_MAX = 31
KEPT_BYTES_MAX = 8 << 20
#: smaller ones are scanned again as quickly as they are found
KEPT_FROM_RECORDS = 16


class Scanned(NamedTuple):
    """The timestamps and due times of a batch, and where each record begins."""

    least_timestamp_ms: int
    largest_timestamp_ms: int
    due_ms: list[int]
    places: list[int]
    #: where the last one ends
    end: int


class _Unusual(Exception):
    """Not a record of the usual form."""


def _wide(data: bytes, position: int) -> tuple[int, int]:
    """A varint of any length, not zig-zagged back, and the position behind it."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise _Unusual


def _due_of(headers: bytes, timestamp_ms: int, delay_ms: int) -> int:
    """The due time of a record with these headers, which are the rest of it, with their count."""
    if headers == _NO_HEADERS:
        return timestamp_ms + delay_ms
    if headers.startswith(_ONLY_AT):
        value, length = headers[_ONLY_AT_SIZE + 1 :], headers[_ONLY_AT_SIZE]
        timestamp_ms = 0
    elif headers.startswith(_ONLY_AFTER):
        value, length = headers[_ONLY_AFTER_SIZE + 1 :], headers[_ONLY_AFTER_SIZE]
    else:
        return _due_among(headers, timestamp_ms, delay_ms)
    if len(value) << 1 != length or length > _DIGITS_MAX << 1 or not value.isdigit():
        raise _Unusual
    return timestamp_ms + int(value)


def _due_among(data: bytes, timestamp_ms: int, delay_ms: int) -> int:
    """The due time in any headers."""
    count, position = data[0], 1
    if count & 1 or count > _HEADERS_MAX << 1:
        raise _Unusual
    due_ms = -1
    for _ in range(count >> 1):
        length, position = data[position], position + 1
        if length >= 0x80 or length & 1:
            raise _Unusual
        name = data[position : position + (length >> 1)]
        position += length >> 1
        length, position = data[position], position + 1
        if length >= 0x80:
            length, position = _wide(data, position - 1)
        if name in _OURS:
            value = data[position : position + (length >> 1)]
            if due_ms >= 0 or length & 1 or not value.isdigit() or len(value) > _DIGITS_MAX:
                raise _Unusual
            due_ms = int(value) + timestamp_ms if name == _AFTER else int(value)
        elif name in _OTHERS:
            raise _Unusual
        if not length & 1:
            position += length >> 1
        elif length != NULL:
            raise _Unusual
    if position != len(data):
        raise _Unusual
    return timestamp_ms + delay_ms if due_ms < 0 else due_ms


def scan(
    data: bytes | memoryview,
    records_count: int,
    base_timestamp_ms: int,
    delay_ms: int,
    *,
    stamped: bool = False,
) -> Scanned | None:
    """What is due when; None where the records have to be read one by one.

    With `stamped` all have the base timestamp: their topic has LogAppendTime.
    """
    found = scan_some(data, 0, 0, records_count, base_timestamp_ms, delay_ms, stamped=stamped)
    return found if found is not None and found.end == len(data) else None


def scan_some(
    data: bytes | memoryview,
    place: int,
    index: int,
    count: int,
    base_timestamp_ms: int,
    delay_ms: int,
    *,
    stamped: bool = False,
) -> Scanned | None:
    """As `scan`, for so many records from one on, which begins at `place`."""
    if not 0 < count <= RECORDS_MAX:
        return None
    numbers = range(index << 1, index + count << 1, 2)
    try:
        found = _scan(bytes(data), place, numbers, base_timestamp_ms, delay_ms, stamped)
    except (IndexError, _Unusual):
        return None
    usual = found.least_timestamp_ms >= 0 and delay_ms <= INT64_MAX - found.largest_timestamp_ms
    return found if usual else None


def _scan(
    data: bytes, position: int, numbers: range, base_timestamp_ms: int, delay_ms: int, stamped: bool
) -> Scanned:
    """`numbers` are the offset deltas as varints say them."""
    dues: list[int] = []
    places: list[int] = []
    timestamps: list[int] = []
    odd = 0  # a length below zero, which is no null, has its lowest bit here
    timestamp = base_timestamp_ms
    for offset_number in numbers:
        places.append(position)
        size, number = data[position], data[position + 1]
        if size < 0x80:
            position += 1
        elif number < 0x80:
            size, position = size & 0x7F | number << 7, position + 2
        else:
            size, position = _wide(data, position)
        odd |= size
        end = position + (size >> 1)
        number, position = data[position + 1], position + 2  # behind the attributes
        if number >= 0x80:
            number, position = _wide(data, position - 1)
        if not stamped:
            timestamp = base_timestamp_ms + ((number >> 1) ^ -(number & 1))
            timestamps.append(timestamp)
        number, position = data[position], position + 1
        if number >= 0x80:
            number, position = number & 0x7F | data[position] << 7, position + 1
            if number >= 1 << 14:
                number, position = _wide(data, position - 2)
        if number != offset_number:
            raise _Unusual
        number, position = data[position], position + 1
        if number >= 0x80:
            number, position = _wide(data, position - 1)
        if not number & 1:
            position += number >> 1
        elif number != NULL:
            raise _Unusual
        size, number = data[position], data[position + 1]
        if size < 0x80:
            position += 1
        elif number < 0x80:
            size, position = size & 0x7F | number << 7, position + 2
        else:
            size, position = _wide(data, position)
        odd |= size  # a tombstone, or damage
        dues.append(_due_of(data[position + (size >> 1) : end], timestamp, delay_ms))
        position = end
    if odd & 1 or position > len(data):
        raise _Unusual
    if stamped:
        return Scanned(timestamp, timestamp, dues, places, position)
    return Scanned(min(timestamps), max(timestamps), dues, places, position)


class _Kept(NamedTuple):
    """What was found in these records, asked in this way."""

    asked: tuple[int, int, int, bool]
    data: bytes
    found: Scanned


class RecentScans:
    """What was found in the last few batches, each to be asked for once more.

    Brokers that share a process share it, too: it is replaced, never changed, and who comes between only
    loses what was kept.
    """

    def __init__(self) -> None:
        self._kept: tuple[_Kept, ...] = ()

    def __repr__(self) -> str:
        return f"<RecentScans batches={len(self._kept)}>"

    def keep(
        self, data: bytes, records_count: int, base_timestamp_ms: int, delay_ms: int, *, stamped: bool
    ) -> Scanned | None:
        """As `scan`, for the first time."""
        found = scan(data, records_count, base_timestamp_ms, delay_ms, stamped=stamped)
        if found is None or records_count < KEPT_FROM_RECORDS:
            return found
        asked = (records_count, base_timestamp_ms, delay_ms, stamped)
        kept = (*self._kept[-KEPT_MAX:], _Kept(asked, data, found))
        while sum(len(each.data) for each in kept) > KEPT_BYTES_MAX:
            kept = kept[1:]
        self._kept = kept
        return found

    def take(
        self, data: bytes, records_count: int, base_timestamp_ms: int, delay_ms: int, *, stamped: bool
    ) -> Scanned | None:
        """As `scan`, for the second time; what was kept of it is forgotten."""
        asked = (records_count, base_timestamp_ms, delay_ms, stamped)
        kept = self._kept
        for number, each in enumerate(kept):
            if each.asked == asked and each.data == data:
                self._kept = kept[:number] + kept[number + 1 :]
                return each.found
        return scan(data, records_count, base_timestamp_ms, delay_ms, stamped=stamped)


recent_scans = RecentScans()
