"""Who may come in, as metadata: the SCRAM credentials of users, and delegation tokens.

    users/<name>     the SCRAM credentials of a user, by mechanism
    tokens/<id>      a delegation token (KIP-48): whose it is, who may renew it, how long it lasts

Names are percent-encoded in keys, since they may have any characters. A user without credentials and a token
without an owner are gone. Neither passwords nor the tokens' own secrets are stored: of a password only what
checks it (RFC 5802), and a token's secret follows from its id and `delegation.token.secret.key`.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

USERS_PREFIX = "users/"
TOKENS_PREFIX = "tokens/"

SCRAM_SHA_256 = "SCRAM-SHA-256"
SCRAM_SHA_512 = "SCRAM-SHA-512"
#: mechanisms by their number in the protocol
SCRAM_MECHANISMS = {1: SCRAM_SHA_256, 2: SCRAM_SHA_512}

USER_TYPE = "User"
ANONYMOUS = "User:ANONYMOUS"


def key_text(name: str) -> str:
    """A name as part of a key: neither slashes nor dots, which some stores give a meaning."""
    return quote(name, safe="").replace(".", "%2E")


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What checks one user's password under one mechanism."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int

    def fields(self) -> dict[str, object]:
        """As JSON."""
        return {
            "salt": _text(self.salt),
            "stored_key": _text(self.stored_key),
            "server_key": _text(self.server_key),
            "iterations": self.iterations,
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> "ScramCredential":
        return cls(
            _bytes(fields["salt"]),
            _bytes(fields["stored_key"]),
            _bytes(fields["server_key"]),
            int(fields["iterations"]),
        )


@dataclass(frozen=True, slots=True)
class UserRecord:
    """All SCRAM credentials that a user has now, by mechanism; none when the user went away."""

    name: str
    credentials: Mapping[str, ScramCredential] = field(default_factory=dict)

    def writes(self) -> tuple[tuple[str, bytes | None], ...]:
        value = {mechanism: credential.fields() for mechanism, credential in self.credentials.items()}
        return ((USERS_PREFIX + key_text(self.name), _encode(value) if value else None),)

    @classmethod
    def from_entry(cls, key: str, fields: Mapping[str, Any]) -> "UserRecord":
        credentials = {mechanism: ScramCredential.from_fields(each) for mechanism, each in fields.items()}
        return cls(unquote(key), credentials)


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """A token that stands for its owner; principals are written `User:name`."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_timestamp_ms: int
    expiry_timestamp_ms: int
    max_timestamp_ms: int

    def expired(self, now_ms: int) -> bool:
        return now_ms > self.expiry_timestamp_ms or now_ms > self.max_timestamp_ms

    def may_renew(self, principal: str) -> bool:
        return principal == self.owner or principal in self.renewers


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """A delegation token, new or changed; None when it went away."""

    token_id: str
    token: DelegationToken | None = None

    def writes(self) -> tuple[tuple[str, bytes | None], ...]:
        token = self.token
        value = None
        if token is not None:
            value = _encode(
                {
                    "owner": token.owner,
                    "requester": token.requester,
                    "renewers": token.renewers,
                    "issued_ms": token.issue_timestamp_ms,
                    "expires_ms": token.expiry_timestamp_ms,
                    "max_ms": token.max_timestamp_ms,
                }
            )
        return ((TOKENS_PREFIX + key_text(self.token_id), value),)

    @classmethod
    def from_entry(cls, key: str, fields: Mapping[str, Any]) -> "TokenRecord":
        token_id = unquote(key)
        if not fields:
            return cls(token_id)
        token = DelegationToken(
            token_id,
            str(fields["owner"]),
            str(fields["requester"]),
            tuple(str(renewer) for renewer in fields["renewers"]),
            int(fields["issued_ms"]),
            int(fields["expires_ms"]),
            int(fields["max_ms"]),
        )
        return cls(token_id, token)


def _encode(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _bytes(text: object) -> bytes:
    return base64.b64decode(str(text), validate=True)
