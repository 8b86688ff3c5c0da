"""What the registry refuses, with Confluent's error codes: the HTTP status is the code's first three
digits.

The class of such an answer is that which clients of a registry raise.
"""

from tidelog.schemas.registry_client import RegistryFault as RegistryFault


class Incompatible(RegistryFault):
    """A schema that does not fit the versions before it; `messages` say where."""

    def __init__(self, message: str, messages: list[str]) -> None:
        self.messages = messages
        super().__init__(INCOMPATIBLE, message)


class BadSchema(Exception):
    """A schema that cannot be used; the text says why."""


class TooComplex(BadSchema):
    """A schema, or a comparison of two, that would take more work than one request may."""


BAD_REQUEST = 400
UNAUTHORIZED = 401
FORBIDDEN = 403
NOT_FOUND = 404
TOO_LARGE = 413
TOO_MANY_REQUESTS = 429
SUBJECT_NOT_FOUND = 40401
VERSION_NOT_FOUND = 40402
SCHEMA_NOT_FOUND = 40403
SUBJECT_SOFT_DELETED = 40404
SUBJECT_NOT_SOFT_DELETED = 40405
VERSION_SOFT_DELETED = 40406
VERSION_NOT_SOFT_DELETED = 40407
NO_SUBJECT_CONFIG = 40408
NO_SUBJECT_MODE = 40409
INCOMPATIBLE = 40901
INVALID_SCHEMA = 42201
INVALID_VERSION = 42202
INVALID_LEVEL = 42203
INVALID_MODE = 42204
NOT_PERMITTED = 42205
REFERENCE_EXISTS = 42206
ID_DOES_NOT_MATCH = 42207
INVALID_SUBJECT = 42208
SCHEMA_TOO_LARGE = 42209
INVALID_RULE_SET = 42210
CONTEXT_NOT_EMPTY = 42211
STORE_FAULT = 50001
TIMED_OUT = 50002
FORWARDING_FAILED = 50003
NO_LEADER = 50004


def subject_not_found(subject: str) -> RegistryFault:
    return RegistryFault(SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")


def version_not_found(version: int | str) -> RegistryFault:
    return RegistryFault(VERSION_NOT_FOUND, f"Version {version} not found.")


def schema_not_found(what: int | str | None = None) -> RegistryFault:
    return RegistryFault(SCHEMA_NOT_FOUND, "Schema not found" if what is None else f"Schema {what} not found")


def invalid_schema(why: str) -> RegistryFault:
    return RegistryFault(INVALID_SCHEMA, why)


def not_permitted(why: str) -> RegistryFault:
    return RegistryFault(NOT_PERMITTED, why)
