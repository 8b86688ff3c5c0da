"""Entries of a broker's files as sentences for a newcomer, and as JSON for programs."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tidelog.admin.sizes import bytes_text
from tidelog.cli.log_entries import (
    AbortedTransaction,
    Batch,
    BatchRecord,
    CheckpointRow,
    Damage,
    Entry,
    ProducerEntry,
    Summary,
    base_offset_of,
)
from tidelog.cli.output import utc_text
from tidelog.cli.record_format import json_bytes
from tidelog.storage.index_entries import OffsetIndexEntry, TimeIndexEntry

_KINDS = {
    ".log": "a log segment: record batches, stored exactly as they travel",
    ".timeindex": "a time index: finds the offset for a timestamp without reading the log",
    ".txnindex": "a transaction index: the aborted transactions of the segment",
    ".index": "an offset index: finds the place in the .log file for an offset (one entry every few KiB)",
    ".snapshot": "a producer snapshot: what the log knew of idempotent producers just before this offset",
    "leader-epoch-checkpoint": "leader epochs: the offset at which each leader of the partition began",
    "offset-checkpoint": "an offset checkpoint: one offset for each partition of the folder",
}
_NAMES = {
    Batch: "batch",
    BatchRecord: "record",
    Damage: "damage",
    OffsetIndexEntry: "offset_index_entry",
    TimeIndexEntry: "time_index_entry",
    ProducerEntry: "producer",
    AbortedTransaction: "aborted_transaction",
    CheckpointRow: "checkpoint_row",
    Summary: "summary",
}


def heading(path: Path) -> str:
    """The line above a file's entries: what kind of file it is, where it begins, how large it is."""
    kind = next((words for ending, words in _KINDS.items() if ending in path.name), "a file")
    base_offset = base_offset_of(path)
    begins = f"; its name says it begins at offset {base_offset}" if base_offset is not None else ""
    return f"{path}\n  {kind}{begins}; {bytes_text(path.stat().st_size)}"


def preview(data: bytes | None, limit_bytes: int) -> str:
    """Bytes for a person: quoted text, else hexadecimal; cut at the limit, with the full size."""
    if data is None:
        return "null"
    cut = data[:limit_bytes]
    try:
        # A limit can cut a character in half; its bytes are dropped, not shown as an error.
        text = cut.decode("utf-8", "strict" if len(cut) == len(data) else "ignore")
        shown = json.dumps(text, ensure_ascii=False) if text.isprintable() or not text else None
    except UnicodeDecodeError:
        shown = None
    if shown is None:
        shown = "0x" + cut.hex()
    more = "…" if len(cut) < len(data) else ""
    return f"{shown}{more} ({bytes_text(len(data))})"


def entry_text(entry: Entry, limit_bytes: int) -> str:
    """One entry as indented lines."""
    match entry:
        case Batch():
            return _batch_text(entry)
        case BatchRecord():
            return _record_text(entry, limit_bytes)
        case Damage():
            size = f" ({entry.size_bytes} bytes)" if entry.size_bytes else ""
            return f"  !! damage at position {entry.position}{size}: {entry.reason}"
        case OffsetIndexEntry():
            return f"  offset {entry.offset} → position {entry.file_position} of the .log file"
        case TimeIndexEntry():
            time = utc_text(entry.timestamp_ms) or f"{entry.timestamp_ms} ms"
            return f"  up to {time} → offset {entry.offset}"
        case ProducerEntry():
            return _producer_text(entry)
        case AbortedTransaction():
            return (
                f"  producer {entry.producer_id} aborted offsets {entry.first_offset} to {entry.last_offset} "
                f"(last stable offset then: {entry.last_stable_offset})"
            )
        case CheckpointRow():
            what = f"epoch {entry.subject} begins at" if entry.subject.isdigit() else f"{entry.subject}:"
            return f"  {what} offset {entry.offset}"
        case Summary():
            state = "no damage" if not entry.damaged_count else f"DAMAGED in {entry.damaged_count} place(s)"
            return f"  = {entry.note}; {state}"


def _batch_text(batch: Batch) -> str:
    state = "CRC ok" if batch.crc_ok else "CRC BAD (the bytes changed after they were written)"
    if batch.producer_id >= 0:
        last = f", sequence from {batch.base_sequence}" if batch.base_sequence >= 0 else ""
        producer = f"producer {batch.producer_id} epoch {batch.producer_epoch}{last}"
    else:
        producer = "no producer id (not idempotent)"
    flags = "".join(
        word for word, on in ((", transactional", batch.transactional), (", control", batch.control)) if on
    )
    time = utc_text(batch.max_timestamp_ms) or "none"
    offsets = (
        f"offset {batch.base_offset}"
        if batch.base_offset == batch.last_offset
        else f"offsets {batch.base_offset} to {batch.last_offset}"
    )
    count = f"{batch.records_count} record{'s' if batch.records_count != 1 else ''}"
    return (
        f"  batch at position {batch.position}: {offsets}, {count}, "
        f"{batch.size_bytes} bytes, codec {batch.codec}, {state}\n"
        f"    leader epoch {batch.partition_leader_epoch}, {producer}{flags}, "
        f"newest {batch.timestamp_type} {time}"
    )


def _record_text(record: BatchRecord, limit_bytes: int) -> str:
    if record.marker is not None:
        return f"    offset {record.offset}  transaction marker {record.marker}"
    time = utc_text(record.timestamp_ms) or "no time"
    headers = " ".join(f"{name}={preview(value, limit_bytes)}" for name, value in record.headers)
    text = (
        f"    offset {record.offset}  {time}  "
        f"key {preview(record.key, limit_bytes)}  value {preview(record.value, limit_bytes)}"
    )
    return f"{text}  headers {headers}" if headers else text


def _producer_text(producer: ProducerEntry) -> str:
    open_from = producer.transaction_first_offset
    transaction = f"transaction open since offset {open_from}" if open_from >= 0 else "no open transaction"
    first_offset = producer.last_offset - producer.offset_delta
    batch = (
        f"last batch offsets {first_offset} to {producer.last_offset}, last sequence {producer.last_sequence}"
        if producer.last_offset >= 0
        else "no batch"
    )
    return (
        f"  producer {producer.producer_id} epoch {producer.producer_epoch}: {batch}, "
        f"wrote last at {utc_text(producer.timestamp_ms) or 'unknown'}, {transaction}"
    )


def entry_json(path: Path, entry: Entry) -> str:
    """One entry as a line of JSON; bytes that are not UTF-8 are base64 under `…_base64`."""
    fields: dict[str, Any] = {"file": str(path), "type": _NAMES[type(entry)]}
    if isinstance(entry, BatchRecord):
        fields |= {"offset": entry.offset, "timestamp_ms": entry.timestamp_ms}
        fields |= json_bytes("key", entry.key) | json_bytes("value", entry.value)
        fields["headers"] = [{"name": name, **json_bytes("value", value)} for name, value in entry.headers]
        fields["marker"] = entry.marker
    else:
        fields |= asdict(entry)
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
