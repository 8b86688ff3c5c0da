"""ApiVersions, versions 0 to 5, by hand: the first thing every client asks, so it must not wait for an
import.

    request v0–2  empty
    v3            flexible: client_software_name, client_software_version (KIP-511)
    v5            cluster_id nullable, node_id int32 (KIP-1242): the broker the client thinks it reached

    response v0   error int16, [api key int16, min int16, max int16]
    v1            throttle_time_ms int32
    v3            flexible; tagged: supported features (0), finalized features epoch (1), finalized features
    (2)

The response header has no tagged fields in any version, and a version the broker does not know is answered
with a version 0 body, error 35 and the full list, from which the client picks a version they share.
"""

import re
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from tidelog.model.errors import ErrorCode
from tidelog.protocol.apis import API_VERSIONS, APIS
from tidelog.protocol.headers import RESPONSE_PREFIX
from tidelog.protocol.primitives import (
    INT16,
    INT32,
    compact_string,
    malformed_if_fails,
    read_compact_nullable_string,
    read_compact_string,
    skip_tags,
    unsigned_varint,
)

_ROW = struct.Struct(">hhh")
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class ApiVersionsRequest(NamedTuple):
    """A decoded ApiVersions request."""

    software_name: str = ""
    software_version: str = ""
    cluster_id: str | None = None
    node_id: int = -1


class Feature(NamedTuple):
    """A feature's range of levels the broker supports, and the level in force (0 for none)."""

    min_level: int
    max_level: int
    finalized_level: int


def decode_request(buffer: memoryview, position: int, version: int) -> ApiVersionsRequest:
    """Decode the body of an ApiVersions request."""
    return malformed_if_fails(_decode, buffer, position, version)


def _decode(buffer: memoryview, position: int, version: int) -> ApiVersionsRequest:
    if version < 3:
        return ApiVersionsRequest()
    name, position = read_compact_string(buffer, position)
    software_version, position = read_compact_string(buffer, position)
    cluster_id: str | None = None
    node_id = -1
    if version >= 5:
        cluster_id, position = read_compact_nullable_string(buffer, position)
        node_id = INT32.unpack_from(buffer, position)[0]
        position += 4
    skip_tags(buffer, position)
    return ApiVersionsRequest(name, software_version, cluster_id, node_id)


def check_request(
    request: ApiVersionsRequest, version: int, own_cluster_id: str, own_node_id: int
) -> ErrorCode:
    """Say what is wrong with a request, as Kafka does."""
    if version >= 3:
        for text in (request.software_name, request.software_version):
            if _SOFTWARE.fullmatch(text) is None:
                return ErrorCode.INVALID_REQUEST
    if (request.cluster_id is None) != (request.node_id == -1):
        return ErrorCode.INVALID_REQUEST
    if request.cluster_id is not None and (request.cluster_id, request.node_id) != (
        own_cluster_id,
        own_node_id,
    ):
        return ErrorCode.REBOOTSTRAP_REQUIRED
    return ErrorCode.NONE


def _feature_tags(features: Mapping[str, Feature], epoch: int, version: int) -> bytes:
    # clients that speak no later version than 3 may not be able to read a lowest level of 0
    told = {name: f for name, f in features.items() if version >= 4 or f.min_level > 0}
    supported = unsigned_varint(len(told) + 1) + b"".join(
        compact_string(name) + struct.pack(">hh", f.min_level, f.max_level) + b"\x00"
        for name, f in told.items()
    )
    finalized = {name: f for name, f in features.items() if f.finalized_level > 0}
    final = unsigned_varint(len(finalized) + 1) + b"".join(
        compact_string(name) + struct.pack(">hh", f.finalized_level, f.finalized_level) + b"\x00"
        for name, f in finalized.items()
    )
    tags = [(0, supported), (1, struct.pack(">q", epoch)), (2, final)]
    return unsigned_varint(len(tags)) + b"".join(
        unsigned_varint(tag) + unsigned_varint(len(data)) + data for tag, data in tags
    )


def encode_response(
    version: int,
    correlation_id: int,
    error: ErrorCode,
    features: Mapping[str, Feature],
) -> bytes:
    """Encode a whole response frame; errors other than an unknown version carry no list."""
    if error == ErrorCode.UNSUPPORTED_VERSION:
        version = 0
    body = _encode_body(version, error, tuple(features.items()))
    return RESPONSE_PREFIX.pack(len(body) + 4, correlation_id) + body


@lru_cache(maxsize=64)
def _encode_body(version: int, error: ErrorCode, features: tuple[tuple[str, Feature], ...]) -> bytes:
    """Kept, since every connection asks for the same and some ask again and again."""
    listed = error in (ErrorCode.NONE, ErrorCode.UNSUPPORTED_VERSION)
    rows = list(APIS.values()) if listed else []
    body = INT16.pack(error)
    if version >= 3:
        body += unsigned_varint(len(rows) + 1)
        body += b"".join(_ROW.pack(r.key, r.min_version, r.max_version) + b"\x00" for r in rows)
    else:
        body += INT32.pack(len(rows))
        body += b"".join(_ROW.pack(r.key, r.min_version, r.max_version) for r in rows)
    if version >= 1:
        body += INT32.pack(0)  # throttle time
    if version >= 3:
        body += _feature_tags(dict(features), 0, version) if listed else b"\x00"
    return body


assert API_VERSIONS in APIS
