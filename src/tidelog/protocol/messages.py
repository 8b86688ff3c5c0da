"""Control-plane messages through kio, imported on first use.

kio has one frozen dataclass per message and version. A handler reads a request as kio's object and answers
with a plain mapping of field names written for the newest version; `encode_response` keeps the fields the
negotiated version has and fills the rest with the schema's defaults. So a handler is written once, not once
per version.

Requests are read by `schema_reader` and answers written by `schema_writer`, from kio's schemas but not by
kio's own code: its parser allocates what a hostile length announces, and ends the process when there is not
so much memory; its writer takes most of a second for fifty thousand rows.

kio itself takes about 150 ms to import, so nothing here touches it until the first control-plane request;
`warm` imports it in the background after start-up.
"""

import importlib
import sys
from functools import cache
from typing import Any

from tidelog.protocol.apis import Api
from tidelog.protocol.primitives import malformed_if_fails
from tidelog.protocol.schema_reader import Reader, entity_reader, read_limited
from tidelog.protocol.schema_writer import Fields, Parts, Write, entity_writer
from tidelog.protocol.slices import pieces_of

__all__ = [
    "Fields",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
    "encode_response_pieces",
    "warm",
]


def _message_class(module: str, version: int, side: str) -> type[Any]:
    """Find kio's class for a message: `create_topics`, 7, `request` → CreateTopicsRequest."""
    name = "".join(word.capitalize() for word in module.split("_")) + side.capitalize()
    schema = importlib.import_module(f"kio.schema.{module}.v{version}.{side}")
    found: type[Any] = getattr(schema, name)
    return found


@cache
def _reader(module: str, version: int, side: str = "request") -> Reader:
    return entity_reader(_message_class(module, version, side))


@cache
def _writer(module: str, version: int, side: str = "response") -> Write:
    return entity_writer(_message_class(module, version, side))


def warm() -> None:
    """Import kio and the schemas nearly every client asks for first."""
    _reader("metadata", 12)
    _writer("metadata", 12)


def decode_request(
    api: Api, version: int, frame: memoryview, position: int, elements_max: int = sys.maxsize
) -> Any:
    """Decode the body of a request into kio's object for this version.

    Bytes behind the end are passed over, as Kafka does: librdkafka leaves some behind Metadata v13.
    """
    reader = _reader(api.module, version)
    return malformed_if_fails(read_limited, reader, frame, position, elements_max)[0]


def encode_response(api: Api, version: int, fields: Fields) -> bytes:
    """Encode the body of a response from a mapping of field names."""
    return _encoded(_writer(api.module, version), fields)


def encode_response_pieces(
    api: Api, version: int, fields: Fields, bytes_max: int = sys.maxsize
) -> list[bytes]:
    """The same in pieces of about a megabyte, at least one; putting them together can be put aside.

    Raises AnswerTooLong for one of more bytes, give or take a few megabytes.
    """
    out = Parts(bytes_max)
    _writer(api.module, version)(fields, out)
    return pieces_of(out)


def encode_request(api: Api, version: int, fields: Fields) -> bytes:
    """Encode the body of a request to another broker from a mapping of field names."""
    return _encoded(_writer(api.module, version, "request"), fields)


def decode_response(api: Api, version: int, body: memoryview) -> Any:
    """Decode the body of another broker's response into kio's object for this version."""
    return malformed_if_fails(_reader(api.module, version, "response"), body, 0)[0]


def _encoded(write: Write, fields: Fields) -> bytes:
    out: list[bytes] = []
    write(fields, out)
    return b"".join(out)
