"""One record batch with every field of its header explained, over the bytes that it is made of.

The bytes come from an ordinary Fetch, so they are what the broker keeps on disk. `records.batch` draws the
layout.
"""

from dataclasses import dataclass

from tidelog.console.decoding import hex_rows
from tidelog.records.batch import BatchHeader, crc_matches, iterate_headers
from tidelog.records.corrupt_record import CorruptRecord

DUMPED_BYTES_MAX = 2_048
_POSITIONS = (
    ("base_offset", 0, 8, "offset of the first record; the leader sets it"),
    ("batch_length", 8, 4, "bytes that follow this field"),
    ("partition_leader_epoch", 12, 4, "which leader wrote it"),
    ("magic", 16, 1, "the version of the layout"),
    ("crc", 17, 4, "CRC-32C of everything behind it"),
    ("attributes", 21, 2, "codec and flags"),
    ("last_offset_delta", 23, 4, "last offset minus the first"),
    ("base_timestamp_ms", 27, 8, "the first record's timestamp"),
    ("max_timestamp_ms", 35, 8, "the largest timestamp"),
    ("producer_id", 43, 8, "-1 without idempotence"),
    ("producer_epoch", 51, 2, "fences older producers of the same id"),
    ("base_sequence", 53, 4, "sequence of the first record"),
    ("records_count", 57, 4, "records that follow"),
)


@dataclass(frozen=True, slots=True)
class FieldView:
    """One field of a header: where it is, its bytes, its value, its meaning."""

    name: str
    position: int
    bytes_hex: str
    value: str
    meaning: str


@dataclass(frozen=True, slots=True)
class BatchView:
    """A batch for a page."""

    fields: tuple[FieldView, ...]
    flags: tuple[str, ...]
    size_bytes: int
    records_count: int
    first_offset: int
    last_offset: int
    dump: str
    dump_cut: bool


def batch_with(data: bytes, offset: int) -> BatchView | None:
    """The batch of `data` that holds an offset; None where it does not begin there or is cut off."""
    try:
        for position, header in iterate_headers(data):
            if header.base_offset <= offset <= header.last_offset:
                if position + header.size_bytes > len(data):
                    return None
                return _view(data[position : position + header.size_bytes], header)
    except CorruptRecord:
        return None
    return None


def _view(batch: bytes, header: BatchHeader) -> BatchView:
    values = header._asdict()
    fields = tuple(
        FieldView(name, position, batch[position : position + size].hex(" "), str(values[name]), meaning)
        for name, position, size, meaning in _POSITIONS
    )
    flags = [
        f"codec {header.codec.name.lower()}",
        header.timestamp_type,
        "CRC is right" if crc_matches(batch, 0, header.size_bytes) else "CRC is wrong",
    ]
    flags += ["transactional"] if header.transactional else []
    flags += ["control"] if header.control else []
    return BatchView(
        fields,
        tuple(flags),
        len(batch),
        header.records_count,
        header.base_offset,
        header.last_offset,
        hex_rows(batch[:DUMPED_BYTES_MAX]),
        len(batch) > DUMPED_BYTES_MAX,
    )
