"""How one member of a consumer group moves to its target: give up first, then take what nobody holds.

`reconciled` is a pure function of the member's current assignment, its target and who owns what. The order
keeps a partition from ever having two readers:

    STABLE ─ a new target takes partitions away ─▶ UNREVOKED_PARTITIONS (epoch unchanged)
    UNREVOKED_PARTITIONS ─ the member no longer reports them as owned ─▶ the next epoch
    UNREVOKED_PARTITIONS ─ it gives up topics meanwhile ─▶ their partitions are to be revoked too
    any ─ the target is reached but for partitions others hold ─▶ UNRELEASED_PARTITIONS
    any ─ the target is reached ─▶ STABLE, in the target's epoch
"""

from collections.abc import Mapping, Set
from uuid import UUID

from tidelog.groups.consumer_schemas import CurrentAssignment, MemberState, Partition, Partitions


def reconciled(
    member_id: str,
    current: CurrentAssignment,
    target: Partitions,
    target_epoch: int,
    owners: Mapping[Partition, str],
    owned: Partitions | None,
    resubscribed: Set[UUID] | None = None,
) -> CurrentAssignment:
    """The member's next assignment.

    `owned` is what it says it reads, None if it did not say. `resubscribed` are the topics that it wants now,
    if its subscription has just changed.
    """
    if current.state is MemberState.STABLE:
        if current.epoch == target_epoch:
            return current
        return _next(member_id, current, current.epoch, target, target_epoch, owners, owned)
    if current.state is MemberState.UNREVOKED_PARTITIONS:
        if _still_owns(owned, current.pending_revocation):
            return current if resubscribed is None else _without_other_topics(current, resubscribed)
        return _next(member_id, current, current.epoch + 1, target, target_epoch, owners, owned)
    if current.state is MemberState.UNKNOWN:
        return _next(member_id, current, target_epoch, target, target_epoch, owners, owned)
    return _next(member_id, current, current.epoch, target, target_epoch, owners, owned)


def _without_other_topics(current: CurrentAssignment, topics: Set[UUID]) -> CurrentAssignment:
    kept = frozenset(partition for partition in current.assigned if partition[0] in topics)
    revoked = current.pending_revocation | (current.assigned - kept)
    return current._replace(assigned=kept, pending_revocation=revoked)


def _still_owns(owned: Partitions | None, revoked: Partitions) -> bool:
    return owned is None or not owned.isdisjoint(revoked)


def _next(
    member_id: str,
    current: CurrentAssignment,
    epoch: int,
    target: Partitions,
    target_epoch: int,
    owners: Mapping[Partition, str],
    owned: Partitions | None,
) -> CurrentAssignment:
    kept = current.assigned & target
    to_revoke = current.assigned - kept
    if to_revoke and _still_owns(owned, to_revoke):
        return _moved(current, epoch, MemberState.UNREVOKED_PARTITIONS, kept, to_revoke)
    missing = target - kept
    # What this member itself is giving up or has given up in this step is free for nobody but it.
    free = frozenset(partition for partition in missing if owners.get(partition, member_id) == member_id)
    state = MemberState.STABLE if free == missing else MemberState.UNRELEASED_PARTITIONS
    return _moved(current, target_epoch, state, kept | free, frozenset())


def _moved(
    current: CurrentAssignment, epoch: int, state: MemberState, assigned: Partitions, revoked: Partitions
) -> CurrentAssignment:
    return CurrentAssignment(epoch, current.epoch, state, assigned, revoked)
