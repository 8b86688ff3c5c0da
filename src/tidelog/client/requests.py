"""Requests to other brokers, as bytes: bodies from field names, frames around them, answers back.

A request body is written from a mapping of field names, as handlers write their answers, so a field that the
version does not have is left out and one that is not given takes the schema's default. Frames are built
around bodies by the transport, which alone knows correlation ids. APIs outside the table (those that only
brokers speak among themselves) have headers without tagged fields.
"""

import struct
from typing import Any

from tidelog.client.api_keys import API_VERSIONS
from tidelog.protocol import messages
from tidelog.protocol.apis import APIS
from tidelog.protocol.primitives import MalformedRequest, malformed_if_fails, skip_tags

#: size of the frame, api key, api version, correlation id, length of the client id
_FRAME_PREFIX = struct.Struct(">ihhih")
_FRAME_PREFIX_BYTES_COUNTED = _FRAME_PREFIX.size - 4
_NO_TAGS = b"\x00"
CORRELATION_ID = struct.Struct(">i")

MalformedAnswer = MalformedRequest
"""The other side's bytes do not follow the schema."""


def api_name(api_key: int) -> str:
    """Kafka's name of an API, for messages."""
    api = APIS.get(api_key)
    return f"API {api_key}" if api is None else api.name


def encode_request(api_key: int, version: int, fields: messages.Fields) -> bytes:
    """The body of a request."""
    return messages.encode_request(APIS[api_key], version, fields)


def decode_response(api_key: int, version: int, body: memoryview) -> Any:
    """The body of a response as kio's object; raises `MalformedAnswer`."""
    return messages.decode_response(APIS[api_key], version, body)


def flexible_header(api_key: int, version: int) -> bool:
    """Whether the request header of this API and version ends with tagged fields."""
    api = APIS.get(api_key)
    return api is not None and api.flexible(version)


def frame_prefix(api_key: int, version: int, correlation_id: int, client_id: bytes, body_bytes: int) -> bytes:
    """Everything that stands before a request's body on the wire."""
    tags = _NO_TAGS if flexible_header(api_key, version) else b""
    size_bytes = _FRAME_PREFIX_BYTES_COUNTED + len(client_id) + len(tags) + body_bytes
    return _FRAME_PREFIX.pack(size_bytes, api_key, version, correlation_id, len(client_id)) + client_id + tags


def response_body(frame: memoryview, flexible: bool) -> memoryview:
    """The part of a response frame (without its size) behind the header."""
    position = CORRELATION_ID.size
    if flexible:
        position = malformed_if_fails(skip_tags, frame, position)
    return frame[position:]


def flexible_answer(api_key: int, version: int) -> bool:
    """Whether the response header ends with tagged fields; never that of ApiVersions."""
    return api_key != API_VERSIONS and flexible_header(api_key, version)
