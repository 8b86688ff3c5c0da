"""What a coordinator machine asks of the world: values, so that a step can be read, compared and simulated.

A machine's `handle` returns effects in the order in which they must be carried out. The runtime answers every
`Append` with exactly one verdict before it hands the machine another command: written at a base offset, or
refused.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

RecordPair = tuple[bytes, bytes | None]
"""Key and value of a record of an internal topic; a None value is a tombstone."""


@dataclass(frozen=True, slots=True)
class Append:
    """Append `records` as one batch to `partition` of the machine's internal topic; `token` names the
    verdict.
    """

    partition: int
    records: tuple[RecordPair, ...]
    token: int


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the request that came in under `token`."""

    token: int
    response: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Fire `key` at `deadline_ms`; an armed timer of the same key moves."""

    key: Hashable
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Disarm `key`; not armed is fine."""

    key: Hashable


@dataclass(frozen=True, slots=True)
class Event:
    """Something worth telling a person: `kind` in a few words, its fields, and why it happened."""

    kind: str
    fields: Mapping[str, object]
    cause: str


Effect = Append | Reply | SetTimer | CancelTimer | Event
