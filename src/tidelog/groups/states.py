"""The states of a classic group and the ways between them, as a table.

The table is what the machine obeys (`ClassicGroup.transition_to` refuses anything else) and what `mermaid`
draws for docs/groups.md.
"""

from enum import Enum


class GroupState(Enum):
    """Kafka's names, as shown by ListGroups and DescribeGroups."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"

    def __str__(self) -> str:
        return self.value


_EMPTY = GroupState.EMPTY
_PREPARING = GroupState.PREPARING_REBALANCE
_COMPLETING = GroupState.COMPLETING_REBALANCE
_STABLE = GroupState.STABLE
_DEAD = GroupState.DEAD

TRANSITIONS: dict[tuple[GroupState, GroupState], str] = {
    (_EMPTY, _PREPARING): "a member joins",
    (_PREPARING, _COMPLETING): "all members joined, or the rebalance timeout passed",
    (_PREPARING, _EMPTY): "no member is left",
    (_COMPLETING, _STABLE): "the leader's assignment is stored",
    (_COMPLETING, _PREPARING): "a member joins, leaves, fails or does not sync",
    (_STABLE, _PREPARING): "a member joins, leaves or fails, or the leader rejoins",
    (_EMPTY, _DEAD): "deleted, or its last offset expired",
    (_PREPARING, _DEAD): "the coordinator moved",
    (_COMPLETING, _DEAD): "the coordinator moved",
    (_STABLE, _DEAD): "the coordinator moved",
}

CAN_REBALANCE = frozenset(source for source, target in TRANSITIONS if target is _PREPARING)


def mermaid() -> str:
    """Draw the table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {_EMPTY}"]
    lines += [f"    {source} --> {target}: {reason}" for (source, target), reason in TRANSITIONS.items()]
    return "\n".join([*lines, f"    {_DEAD} --> [*]"])
