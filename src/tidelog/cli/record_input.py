"""How lines of input become records to send: plain lines with an optional key delimiter, or JSON lines.

A JSON line has `value` and, if wanted, `key`, `headers`, `partition`, `timestamp_ms`. A value or key that is
not a string is sent as compact JSON, null is a null; `value_base64` and `key_base64` carry bytes. Headers are
an object, or a list of {"name", "value"}. The lines `tidelog consume --json` prints are valid input.

With a schema for keys or values their JSON is encoded with it: that of a JSON line, or the line itself; only
what is given in base64 is sent as it is.
"""

import base64
import binascii
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import IO, Any

READ_SIZE_BYTES = 1 << 16
RECORD_SIZE_MAX_BYTES = 256 << 20

Headers = list[tuple[str, bytes | None]]
#: by `key` and `value`: what encodes JSON values of that field; raises ValueError for those that do not fit
Encoders = Mapping[str, Callable[[Any], bytes]]
NO_ENCODERS: Encoders = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record as it will be sent; None leaves the choice to the client."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LineReader:
    """Makes a record of a plain line: what the command line fixes for all of them."""

    key_delimiter: bytes | None = None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    empty_is_null: bool = False

    def record(self, line: bytes) -> NewRecord:
        key, value = self.key, line
        if self.key_delimiter is not None:
            before, found, after = line.partition(self.key_delimiter)
            if found:
                key, value = before, after
        return NewRecord(
            None if self.empty_is_null and key == b"" else key,
            None if self.empty_is_null and value == b"" else value,
            list(self.headers),
        )

    def encoded(self, line: bytes, encoders: Encoders) -> NewRecord:
        """The same for a line whose key or value is JSON that a schema encodes; raises ValueError."""
        record = self.record(line)
        if not encoders:
            return record
        key, value = (
            _encoded_line("key", record.key, encoders),
            _encoded_line("value", record.value, encoders),
        )
        return replace(record, key=key, value=value)


def _encoded_line(name: str, data: bytes | None, encoders: Encoders) -> bytes | None:
    encode = encoders.get(name)
    return data if encode is None or data is None else _encoded(name, encode, _parsed(name, data))


def _parsed(name: str, data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as fault:
        raise ValueError(f"{name}: not JSON: {fault}") from fault


def _encoded(name: str, encode: Callable[[Any], bytes], value: Any) -> bytes:
    try:
        return encode(value)
    except ValueError as fault:
        raise ValueError(f"{name}: {fault}") from fault


def split_records(stream: IO[bytes], delimiter: bytes) -> Iterator[bytes]:
    """Cut a byte stream at each delimiter; a last piece without one counts, an empty one does not."""
    if delimiter == b"\n":
        # readline hands a typed line over at once; the general way waits for a full read.
        for line in iter(lambda: stream.readline(RECORD_SIZE_MAX_BYTES), b""):
            yield line[:-1] if line.endswith(b"\n") else line
        return
    pending = b""
    while piece := stream.read(READ_SIZE_BYTES):
        *complete, pending = (pending + piece).split(delimiter)
        yield from complete
        if len(pending) > RECORD_SIZE_MAX_BYTES:
            raise ValueError(f"no delimiter {delimiter!r} within {RECORD_SIZE_MAX_BYTES} bytes")
    if pending:
        yield pending


def json_record(
    line: bytes,
    extra_headers: Sequence[tuple[str, bytes | None]] = (),
    encoders: Encoders = NO_ENCODERS,
) -> NewRecord:
    """Read one JSON line, or raise ValueError saying what is wrong with it."""
    try:
        fields = json.loads(line)
    except ValueError as fault:
        raise ValueError(f"not JSON: {fault}") from fault
    if not isinstance(fields, dict):
        raise ValueError('not a JSON object; write {"key": …, "value": …}')
    if "value" not in fields and "value_base64" not in fields:
        raise ValueError('"value" is missing (null makes a tombstone)')
    partition, timestamp_ms = fields.get("partition"), fields.get("timestamp_ms")
    for name, number in (("partition", partition), ("timestamp_ms", timestamp_ms)):
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 0):
            raise ValueError(f'"{name}" is {number!r}, not a non-negative whole number')
    headers = _headers(fields.get("headers")) + list(extra_headers)
    key, value = (_bytes(fields, name, encoders.get(name)) for name in ("key", "value"))
    return NewRecord(key, value, headers, partition, timestamp_ms)


def _bytes(fields: dict[str, Any], name: str, encode: Callable[[Any], bytes] | None = None) -> bytes | None:
    encoded = fields.get(name + "_base64")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, TypeError, ValueError) as fault:
            raise ValueError(f'"{name}_base64" is not base64: {fault}') from fault
    value = fields.get(name)
    if encode is not None and value is not None:
        return _encoded(name, encode, value)
    if value is None or isinstance(value, str):
        return value.encode() if value is not None else None
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _headers(headers: Any) -> Headers:
    if headers is None:
        return []
    if isinstance(headers, dict):
        return [(name, _bytes({"value": value}, "value")) for name, value in headers.items()]
    if isinstance(headers, list) and all(isinstance(item, dict) and "name" in item for item in headers):
        return [(str(item["name"]), _bytes(item, "value")) for item in headers]
    raise ValueError('"headers" is neither an object nor a list of {"name": …, "value": …}')
