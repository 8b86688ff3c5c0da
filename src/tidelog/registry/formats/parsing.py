"""Chooses the format of a schema, and keeps what was read for a while: schemas never change."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

from tidelog.registry import limits
from tidelog.registry.entities import AVRO, JSON, PROTOBUF
from tidelog.registry.faults import BadSchema
from tidelog.registry.formats import avro_schema, json_schema, protobuf_schema
from tidelog.registry.formats.parsed import Parsed, Referenced

KEPT_BYTES_MAX = 16 << 20

_FORMATS: dict[str, Callable[[str, Sequence[Referenced]], Parsed]] = {
    AVRO: avro_schema.parse,
    JSON: json_schema.parse,
    PROTOBUF: protobuf_schema.parse,
}


class Parser:
    """Reads schemas; safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str, tuple[Referenced, ...]], Parsed] = OrderedDict()
        self._kept_bytes = 0

    def __repr__(self) -> str:
        return f"<Parser kept={len(self._kept)}>"

    def parse(self, schema_type: str, text: str, references: Sequence[Referenced]) -> Parsed:
        """Read a schema and what it refers to; raises BadSchema."""
        read = _FORMATS.get(schema_type)
        if read is None:
            raise BadSchema(f"Invalid schema type {schema_type[:40]}")
        if len(text) > limits.SCHEMA_BYTES_MAX or len(text.encode()) > limits.SCHEMA_BYTES_MAX:
            raise BadSchema(f"the schema has more than {limits.SCHEMA_BYTES_MAX} bytes")
        key = (schema_type, text, tuple(references))
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        found = read(text, references)
        with self._lock:
            if key not in self._kept:
                self._kept[key] = found
                self._kept_bytes += len(text)
            while self._kept_bytes > KEPT_BYTES_MAX:
                (_, old, _), _ = self._kept.popitem(last=False)
                self._kept_bytes -= len(old)
        return found
