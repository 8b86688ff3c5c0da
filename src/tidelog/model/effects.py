"""What a coordinator machine asks of the world: values, so that a step can be read, compared and simulated.

A machine's `handle` returns effects in the order in which they must be carried out. The runtime answers every
`Append` with exactly one verdict before it hands the machine another command: written at a base offset, or
refused.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from tidelog.model.identifiers import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

RecordPair = tuple[bytes, bytes | None]
"""Key and value of a record of an internal topic; a None value is a tombstone."""


@dataclass(frozen=True, slots=True)
class Append:
    """Append `records` as one batch to `partition` of the machine's internal topic; `token` names the
    verdict. With a producer id the batch belongs to that producer's transaction.
    """

    partition: int
    records: tuple[RecordPair, ...]
    token: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


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
class TellEvent:
    """Something worth telling a person: `kind` in a few words, its fields, and why it happened."""

    kind: str
    fields: Mapping[str, object]
    cause: str


@dataclass(frozen=True, slots=True)
class Send:
    """Carry `message` to whoever it concerns, here or on another broker; the machine knows its own messages
    and sends again what is not answered by a command.
    """

    message: object


Effect = Append | Reply | SetTimer | CancelTimer | TellEvent | Send
