"""When the records of a batch are due, without making an object of each.

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
_HEADERS_MAX = 12
RECORDS_MAX = 10_000


class Scanned(NamedTuple):
    """The timestamps and due times of a batch, and where each record begins."""

    least_timestamp_ms: int
    largest_timestamp_ms: int
    due_ms: list[int]
    places: list[int]


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


def _due(data: bytes, position: int, count: int, timestamp_ms: int) -> tuple[int, int]:
    """The time in so many headers, -1 if none has one, and the position behind them."""
    due_ms = -1
    for _ in range(count):
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
    return due_ms, position


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
    if not 0 < records_count <= RECORDS_MAX:
        return None
    try:
        found = _scan(bytes(data), records_count, base_timestamp_ms, delay_ms, stamped)
    except (IndexError, _Unusual):
        return None
    usual = found.least_timestamp_ms >= 0 and delay_ms <= INT64_MAX - found.largest_timestamp_ms
    return found if usual else None


def _scan(data: bytes, records_count: int, base_timestamp_ms: int, delay_ms: int, stamped: bool) -> Scanned:
    position = 0
    least, largest = INT64_MAX, -1
    dues: list[int] = []
    places: list[int] = []
    timestamp = base_timestamp_ms
    for offset_delta in range(records_count):
        places.append(position)
        size, position = data[position], position + 1
        if size >= 0x80:
            size, position = _wide(data, position - 1)
        end = position + (size >> 1)
        number, position = data[position + 1], position + 2  # behind the attributes
        if number >= 0x80:
            number, position = _wide(data, position - 1)
        if not stamped:
            timestamp = base_timestamp_ms + ((number >> 1) ^ -(number & 1))
        if timestamp > largest:
            largest = timestamp
        if timestamp < least:
            least = timestamp
        number, position = data[position], position + 1
        if number >= 0x80:
            number, position = _wide(data, position - 1)
        if number != offset_delta << 1:
            raise _Unusual
        number, position = data[position], position + 1
        if number >= 0x80:
            number, position = _wide(data, position - 1)
        if not number & 1:
            position += number >> 1
        elif number != NULL:
            raise _Unusual
        number, position = data[position], position + 1
        if number >= 0x80:
            number, position = _wide(data, position - 1)
        if number & 1:
            raise _Unusual  # a tombstone, or damage
        position += number >> 1
        count, position = data[position], position + 1
        if count & 1 or count > _HEADERS_MAX << 1:
            raise _Unusual
        due = -1
        if count:
            due, position = _due(data, position, count >> 1, timestamp)
        if position != end or size & 1:
            raise _Unusual
        dues.append(timestamp + delay_ms if due < 0 else due)
    if position != len(data):
        raise _Unusual
    return Scanned(least, largest, dues, places)
