"""The states of a record in a share partition, what a member says of one, and the ways between, as a table.

The numbers are Kafka's: those of states are stored in `__share_group_state`, those of acknowledgements are on
the wire. `mermaid` draws the table for docs/share-groups.md.
"""

from enum import IntEnum


class RecordState(IntEnum):
    """How far the delivery of a record is. Only ACQUIRED is never stored."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    """Its dead letter is on its way (KIP-1191)."""
    ARCHIVED = 4


class AcknowledgeType(IntEnum):
    GAP = 0
    """The member found no record at this offset."""
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4
    """The member needs longer (KIP-1222)."""


class AcquireMode(IntEnum):
    """What the limit of records in a ShareFetch means (KIP-1206)."""

    BATCH_OPTIMIZED = 0
    RECORD_LIMIT = 1


TERMINAL = frozenset((RecordState.ACKNOWLEDGED, RecordState.ARCHIVED))
"""Nothing happens to these any more; the start offset moves over them."""

_AVAILABLE = RecordState.AVAILABLE
_ACQUIRED = RecordState.ACQUIRED
_ACKNOWLEDGED = RecordState.ACKNOWLEDGED
_ARCHIVING = RecordState.ARCHIVING
_ARCHIVED = RecordState.ARCHIVED

TRANSITIONS: dict[tuple[RecordState, RecordState], str] = {
    (_AVAILABLE, _ACQUIRED): "a member fetches it",
    (_AVAILABLE, _ARCHIVED): "the log has no record there, or it expired",
    (_AVAILABLE, _ARCHIVING): "it expired, and the group has a topic for dead letters",
    (_ACQUIRED, _ACKNOWLEDGED): "accepted",
    (_ACQUIRED, _AVAILABLE): "released, or its lock expired",
    (_ACQUIRED, _ARCHIVED): "rejected, or delivered as often as allowed",
    (_ACQUIRED, _ARCHIVING): "the same, and the group has a topic for dead letters",
    (_ARCHIVING, _ARCHIVED): "the dead letter is written, or cannot be",
}


def mermaid() -> str:
    """Draw the table as a Mermaid state diagram."""
    names = {state: state.name.capitalize() for state in RecordState}
    lines = ["stateDiagram-v2", f"    [*] --> {names[_AVAILABLE]}"]
    lines += [
        f"    {names[source]} --> {names[target]}: {reason}"
        for (source, target), reason in TRANSITIONS.items()
    ]
    return "\n".join([*lines, *(f"    {names[state]} --> [*]" for state in sorted(TERMINAL))])
