"""Schemas from a registry, and values decoded with them (Confluent's framing).

A framed value begins with a 0 byte and the schema's id in four bytes. The registry is asked with its
documented API, `GET /schemas/ids/{id}` and `GET /subjects/{subject}/versions/{version}` for references.
Schemas never change, so they are kept; one that could not be had is asked for again after RETRY_SECONDS.
Answers are bounded in size and time, and redirects are not followed, as they could carry the password
elsewhere.
"""

import base64
import json
import threading
import time
import urllib.error
import urllib.request
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit, urlunsplit

from tidelog.console import protobuf_schema
from tidelog.console.avro_reader import AvroSchema
from tidelog.console.protobuf_reader import read_indexes, read_message

#: magic byte and schema id before the payload
FRAMING_BYTES = 5
ANSWER_BYTES_MAX = 2 << 20
TIMEOUT_SECONDS = 3.0
RETRY_SECONDS = 30.0
SCHEMAS_KEPT_MAX = 1_000
REFERENCES_MAX = 50

Read = Callable[[bytes], Any]


class Framed(NamedTuple):
    """A framed value: what kind of schema it has, the value, or why there is none."""

    schema_id: int
    kind: str
    value: Any
    fault: str


class _Kept(NamedTuple):
    kind: str
    read: Read | None
    fault: str
    until: float


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


class SchemaRegistry:
    """One registry; safe from any thread."""

    def __init__(self, url: str, user_info: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("a registry has an address like http://localhost:8081")
        given, _, place = parts.netloc.rpartition("@")
        self._address = urlunsplit((parts.scheme, place, parts.path.rstrip("/"), "", ""))
        secret = user_info or given
        self._authorization = f"Basic {base64.b64encode(secret.encode()).decode()}" if secret else ""
        self._clock = clock
        self._opener = urllib.request.build_opener(_NoRedirect)
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, _Kept] = OrderedDict()

    def __repr__(self) -> str:
        return f"<SchemaRegistry {self._address} kept={len(self._kept)}>"

    def decode(self, data: bytes) -> Framed | None:
        """A value with its schema; None where it is not framed."""
        if len(data) <= FRAMING_BYTES or data[0] != 0:
            return None
        schema_id = int.from_bytes(data[1:FRAMING_BYTES], "big")
        kept = self._schema(schema_id)
        if kept.read is None:
            return Framed(schema_id, kept.kind, None, kept.fault)
        try:
            return Framed(schema_id, kept.kind, kept.read(data[FRAMING_BYTES:]), "")
        except (ValueError, RecursionError) as fault:
            return Framed(schema_id, kept.kind, None, str(fault)[:200])

    def _schema(self, schema_id: int) -> _Kept:
        with self._lock:
            kept = self._kept.get(schema_id)
        if kept is not None and self._clock() < kept.until:
            return kept
        made = self._fetched(schema_id)
        with self._lock:
            self._kept[schema_id] = made
            self._kept.move_to_end(schema_id)
            while len(self._kept) > SCHEMAS_KEPT_MAX:
                self._kept.popitem(last=False)
        return made

    def _fetched(self, schema_id: int) -> _Kept:
        soon = self._clock() + RETRY_SECONDS
        try:
            answer = self._get(f"/schemas/ids/{schema_id}")
            kind, read = self._reader(answer)
        except urllib.error.HTTPError as fault:
            known = fault.code == 404
            return _Kept("", None, "the registry does not know it" if known else f"HTTP {fault.code}", soon)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as fault:
            # An address that cannot be reached, an answer that is no schema: told in the value's place.
            return _Kept("", None, f"the registry: {str(fault)[:160]}", soon)
        return _Kept(kind, read, "", float("inf"))

    def _get(self, path: str) -> dict[str, Any]:
        request = urllib.request.Request(self._address + path, headers={"accept": "application/json"})
        if self._authorization:
            request.add_unredirected_header("authorization", self._authorization)
        with self._opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
            body = answer.read(ANSWER_BYTES_MAX + 1)
        if len(body) > ANSWER_BYTES_MAX:
            raise ValueError("its answer is too large")
        found = json.loads(body)
        if not isinstance(found, dict) or not isinstance(found.get("schema"), str):
            raise ValueError("its answer has no schema")
        return found

    def _reader(self, answer: dict[str, Any]) -> tuple[str, Read]:
        kind = str(answer.get("schemaType", "AVRO")).upper()
        if kind == "JSON":
            return "json-schema", json.loads
        references = self._references(answer)
        if kind == "PROTOBUF":
            return "protobuf", _protobuf(protobuf_schema.parse(answer["schema"], references))
        if kind == "AVRO":
            schema = AvroSchema(json.loads(answer["schema"]), [json.loads(text) for text in references])
            return "avro", schema.read
        raise ValueError(f"schemas of type {kind[:40]} are not known here")

    def _references(self, answer: dict[str, Any]) -> list[str]:
        """The texts that a schema refers to, and those that they refer to."""
        texts: list[str] = []
        seen: set[tuple[str, int]] = set()
        wanted = list(answer.get("references") or ())
        while wanted:
            reference = wanted.pop()
            key = (str(reference["subject"]), int(reference["version"]))
            if key in seen:
                continue
            seen.add(key)
            if len(seen) > REFERENCES_MAX:
                raise ValueError("too many references")
            found = self._get(f"/subjects/{quote(key[0], safe='')}/versions/{key[1]}")
            texts.append(found["schema"])
            wanted += found.get("references") or ()
        return texts


def _protobuf(schema: protobuf_schema.ProtoFile) -> Read:
    def read(data: bytes) -> Any:
        indexes, position = read_indexes(data)
        return read_message(data, position, schema.message_at(indexes), schema)

    return read
