"""Record batches to and from plain data.

A batch to send is a mapping: `records` (rows of key, value, headers and milliseconds), and what is not as
usual of `producer_id`, `producer_epoch`, `base_sequence`, `transactional`, `control`, `codec`, `base_offset`,
`log_append_time_ms`; `spoil` names what is wrong with it on purpose. Batches that came back are mappings of
their header's fields and their records; what was cut off behind the last whole batch is left out.
"""

import struct
from typing import Any

from tidelog.records.batch import HEADER_SIZE, read_header
from tidelog.records.builder import build_batch
from tidelog.records.checksum import crc32c
from tidelog.records.compression import Codec
from tidelog.records.record import Record, iterate_records

#: what the times of records count from; long ago, so that nothing is in the future
BASE_TIME_MS = 1_704_067_200_000
_LOG_OVERHEAD = 12
_ATTRIBUTES = 21


def build(batch: dict[str, Any]) -> bytes:
    """The bytes of one batch."""
    records = [
        Record(
            offset=0,
            timestamp_ms=BASE_TIME_MS + row[3],
            key=None if row[0] is None else row[0].encode(),
            value=None if row[1] is None else row[1].encode(),
            headers=tuple((key, None if value is None else value.encode()) for key, value in row[2]),
        )
        for row in batch["records"]
    ]
    options = {
        name: batch[name]
        for name in (
            "producer_id",
            "producer_epoch",
            "base_sequence",
            "transactional",
            "control",
            "base_offset",
        )
        if name in batch
    }
    data = build_batch(records, codec=Codec(batch.get("codec", 0)), **options)
    return _spoiled(bytearray(data), batch.get("spoil", ""))


def _spoiled(data: bytearray, how: str) -> bytes:
    if how == "crc":
        data[17] ^= 0x55
    elif how == "magic":
        data[16] = 3
    elif how == "old magic":
        data[16] = 1
    elif how == "short":
        return bytes(data[:-3])
    elif how == "size":
        struct.pack_into(">i", data, 8, len(data) - _LOG_OVERHEAD + 40)
    elif how == "count":
        struct.pack_into(">i", data, 57, struct.unpack_from(">i", data, 57)[0] + 1)
        _sign(data)
    elif how == "last offset delta":
        struct.pack_into(">i", data, 23, struct.unpack_from(">i", data, 23)[0] + 2)
        _sign(data)
    elif how == "append time bit":
        data[_ATTRIBUTES + 1] |= 8
        _sign(data)
    elif how == "codec":
        data[_ATTRIBUTES + 1] |= 7
        _sign(data)
    elif how == "tail":
        return bytes(data) + b"\x00" * 5
    return bytes(data)


def _sign(data: bytearray) -> None:
    struct.pack_into(">I", data, 17, crc32c(bytes(data[_ATTRIBUTES:])))


def read(data: bytes) -> list[dict[str, Any]]:
    """The whole batches in the bytes."""
    found: list[dict[str, Any]] = []
    view = memoryview(data)
    while len(view) >= HEADER_SIZE:
        size = _LOG_OVERHEAD + struct.unpack_from(">i", view, 8)[0]
        if size > len(view):
            break
        found.append(_read_one(view[:size]))
        view = view[size:]
    return found


def _read_one(view: memoryview) -> dict[str, Any]:
    header = read_header(view)
    row: dict[str, Any] = {name: value for name, value in header._asdict().items() if name not in ("magic",)}
    row = {name: int(value) for name, value in row.items()}
    if crc32c(bytes(view[_ATTRIBUTES:])) != header.crc:
        row["crc is wrong"] = True
    row["records"] = [
        {
            "offset": record.offset,
            "timestamp": record.timestamp_ms,
            "key": _text(record.key),
            "value": _text(record.value),
            "headers": [[key, _text(value)] for key, value in record.headers],
        }
        for record in iterate_records(view)
    ]
    return row


def _text(data: bytes | None) -> str | None:
    if data is None:
        return None
    data = bytes(data)
    return data.decode() if data.isascii() and data.decode().isprintable() else "0x" + data.hex()
