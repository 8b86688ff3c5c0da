"""A record as the console holds it, and its forms for pages, scripts and files."""

import base64
from dataclasses import dataclass
from typing import Any

from tidelog.console.decoding import decode
from tidelog.console.schema_registry import SchemaRegistry

PREVIEW_CHARACTERS = 400


@dataclass(frozen=True, slots=True)
class RecordView:
    """One record of a partition."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    timestamp_type: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def size_bytes(self) -> int:
        return len(self.key or b"") + len(self.value or b"")


def record_row(
    record: RecordView,
    key_format: str = "auto",
    value_format: str = "auto",
    schemas: SchemaRegistry | None = None,
) -> dict[str, Any]:
    """What a row of the record browser shows: previews, not the whole of large values."""
    key = decode(record.key, key_format, schemas=schemas)
    value = decode(record.value, value_format, schemas=schemas)
    return {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": key.text[:PREVIEW_CHARACTERS],
        "key_format": key.format,
        "value": value.text[:PREVIEW_CHARACTERS],
        "value_format": value.format,
        "value_cut": len(value.text) > PREVIEW_CHARACTERS,
        "size_bytes": record.size_bytes,
        "headers": [(name, decode(data).text[:PREVIEW_CHARACTERS]) for name, data in record.headers],
    }


def record_json(record: RecordView) -> dict[str, Any]:
    """The record in full for JSONL files and the API, fit to be read back by `tidelog produce`'s formats.

    Bytes that are no UTF-8 text become base64, named so.
    """
    fields: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
    }
    _put(fields, "key", record.key)
    _put(fields, "value", record.value)
    headers = []
    for name, data in record.headers:
        header: dict[str, Any] = {"name": name}
        _put(header, "value", data)
        headers.append(header)
    fields["headers"] = headers
    return fields


def _put(fields: dict[str, Any], name: str, data: bytes | None) -> None:
    if data is None:
        fields[name] = None
        return
    try:
        fields[name] = data.decode("utf-8")
    except UnicodeDecodeError:
        fields[f"{name}_base64"] = base64.b64encode(data).decode()
