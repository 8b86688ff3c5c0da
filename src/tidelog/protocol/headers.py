"""Request and response headers.

A request frame is `int32 size`, then api key, api version, correlation id, client id (a nullable string with
a 16-bit length in every version) and, where the version is flexible, tagged fields. A response frame is
`int32 size`, the correlation id and, where flexible, tagged fields. ApiVersions answers always use the
header without tags, because a client reads that answer before it knows which version the broker has.
"""

import struct

from tidelog.protocol.apis import API_VERSIONS, Api
from tidelog.protocol.primitives import (
    MalformedRequest,
    checked_slice,
    fit_string,
    malformed_if_fails,
    skip_tags,
)

#: api key, api version, correlation id, length of the client id
REQUEST_PREFIX = struct.Struct(">hhih")
#: size of the frame, correlation id
RESPONSE_PREFIX = struct.Struct(">ii")
#: the same followed by an empty section of tagged fields
RESPONSE_PREFIX_FLEXIBLE = struct.Struct(">iib")

#: what says how long a frame is, in front of it
FRAME_SIZE_BYTES = 4
FRAME_SIZE_MIN = REQUEST_PREFIX.size


def read_client_id(frame: memoryview, length: int) -> str | None:
    """Read the client id of a request, None when the client sent none."""
    if length < 0:
        return None
    client_id = str(checked_slice(frame, REQUEST_PREFIX.size, length), "utf-8", "replace")
    # A byte that is no UTF-8 becomes three: what is told of the client must fit a string again.
    return fit_string(client_id)


def body_position(frame: memoryview, client_id_length: int, flexible: bool) -> int:
    """Where the body of a request starts."""
    position = REQUEST_PREFIX.size + max(client_id_length, 0)
    if position > len(frame):
        raise MalformedRequest("the client id does not fit the frame")
    return malformed_if_fails(skip_tags, frame, position) if flexible else position


def response_frame(api: Api, version: int, correlation_id: int, body: bytes) -> bytes:
    """Put the frame and response header before an encoded body."""
    return _response_prefix(api, version, correlation_id, len(body)) + body


def response_chunks(api: Api, version: int, correlation_id: int, pieces: list[bytes]) -> bytes | list[bytes]:
    """The same for a body in pieces; several stay as they are, for they are large."""
    prefix = _response_prefix(api, version, correlation_id, sum(map(len, pieces)))
    return prefix + pieces[0] if len(pieces) == 1 else [prefix, *pieces]


def _response_prefix(api: Api, version: int, correlation_id: int, body_bytes: int) -> bytes:
    if api.flexible(version) and api.key != API_VERSIONS:
        return RESPONSE_PREFIX_FLEXIBLE.pack(body_bytes + 5, correlation_id, 0)
    return RESPONSE_PREFIX.pack(body_bytes + 4, correlation_id)
