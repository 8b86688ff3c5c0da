"""Deliberate wrong edits of consumer groups, each of which the simulation must notice."""

from collections.abc import Callable
from typing import Any

from tests.simulation.group_mutants import Patch, nothing
from tidelog.groups import consumer_draft, reconciliation
from tidelog.groups.classic_members import ClassicMembers
from tidelog.groups.consumer_draft import Draft
from tidelog.groups.consumer_group import ConsumerGroup
from tidelog.groups.consumer_requests import REBALANCE, SESSION, ConsumerRequests
from tidelog.groups.consumer_schemas import CurrentAssignment
from tidelog.groups.protocol_migration import Migration
from tidelog.model.errors import ErrorCode
from tidelog.model.outbox import Outbox


def _given_before_released() -> Patch:
    original = consumer_draft.reconciled  # type: ignore[attr-defined]

    def reconciled(
        member_id: str, current: Any, target: Any, epoch: int, owners: Any, owned: Any, resubscribed: Any
    ) -> Any:
        return original(member_id, current, target, epoch, {}, owned, resubscribed)

    return consumer_draft, "reconciled", reconciled


def _revocation_not_awaited() -> Patch:
    return reconciliation, "_still_owns", lambda owned, revoked: False


def _silence_counts_as_revoked() -> Patch:
    original = consumer_draft.reconciled  # type: ignore[attr-defined]

    def reconciled(
        member_id: str, current: Any, target: Any, epoch: int, owners: Any, owned: Any, resubscribed: Any
    ) -> Any:
        return original(member_id, current, target, epoch, owners, frozenset(), resubscribed)

    return consumer_draft, "reconciled", reconciled


def _owners_forgotten_while_revoking() -> Patch:
    original = ConsumerGroup._apply_current

    def apply_current(self: ConsumerGroup, member_id: str, current: CurrentAssignment | None) -> None:
        original(self, member_id, current)
        for partition in current.pending_revocation if current is not None else ():
            self.owners.pop(partition, None)

    return ConsumerGroup, "_apply_current", apply_current


def _any_epoch_welcome() -> Patch:
    return ConsumerRequests, "_epoch_fault", nothing


def _epoch_stands_still() -> Patch:
    def bump_epoch(self: Draft) -> None:
        self.set_epoch(max(1, self.group.epoch))

    return Draft, "bump_epoch", bump_epoch


def _no_session() -> Patch:
    original = Outbox.set_timer

    def set_timer(self: Outbox, key: Any, deadline_ms: int) -> None:
        if key[0] != SESSION:
            original(self, key, deadline_ms)

    return Outbox, "set_timer", set_timer


def _no_rebalance_timer() -> Patch:
    original = Outbox.set_timer

    def set_timer(self: Outbox, key: Any, deadline_ms: int) -> None:
        if key[0] != REBALANCE:
            original(self, key, deadline_ms)

    return Outbox, "set_timer", set_timer


def _topics_not_watched() -> Patch:
    original = ConsumerRequests.refresh

    def refresh(self: ConsumerRequests, draft: Draft, now_ms: int, *, changed: bool) -> None:
        if changed:
            original(self, draft, now_ms, changed=changed)

    return ConsumerRequests, "refresh", refresh


def _told_before_replicated() -> Patch:
    original = ConsumerRequests.store

    def store(self: ConsumerRequests, draft: Draft, *, answer: Any, **kept: Any) -> None:
        if answer is not None:
            self._outbox.reply(*answer)
        original(self, draft, answer=None, **kept)

    return ConsumerRequests, "store", store


def _refused_removal_not_retried() -> Patch:
    original = ConsumerRequests.store

    def store(self: ConsumerRequests, draft: Draft, **kept: Any) -> None:
        kept.pop("retry_timer", None)
        original(self, draft, **kept)

    return ConsumerRequests, "store", store


def _static_id_taken_over() -> Patch:
    original = ConsumerRequests._admit

    def admit(self: ConsumerRequests, draft: Draft, command: Any, member_id: str) -> Any:
        refused = original(self, draft, command, member_id)
        if refused is not None and refused.code is ErrorCode.UNRELEASED_INSTANCE_ID:
            draft.replace_member(draft.group.static_members[command.instance_id], member_id)
            return None
        return refused

    return ConsumerRequests, "_admit", admit


def _removed_members_keep_partitions() -> Patch:
    original = ConsumerGroup._apply_current

    def apply_current(self: ConsumerGroup, member_id: str, current: CurrentAssignment | None) -> None:
        before = dict(self.owners)
        original(self, member_id, current)
        if current is None:
            self.owners = before

    return ConsumerGroup, "_apply_current", apply_current


def _classic_members_never_told() -> Patch:
    return ClassicMembers, "_tell_to_rejoin", nothing


def _upgrade_forgets_assignments() -> Patch:
    original = Migration._take_members_over

    def take_members_over(self: Migration, draft: Draft, classic: Any, image: Any) -> None:
        original(self, draft, classic, image)
        for member_id in list(draft.group.current):
            draft.put_current(member_id, CurrentAssignment(classic.generation, classic.generation))

    return Migration, "_take_members_over", take_members_over


def _upgrade_leaves_parked_requests() -> Patch:
    return Migration, "_dismiss", nothing


MUTANTS: dict[str, Callable[[], Patch]] = {
    "a partition is given while another member holds it": _given_before_released,
    "revoked partitions are free before the member gave them up": _revocation_not_awaited,
    "what a member says it reads is not heard": _silence_counts_as_revoked,
    "partitions on their way back have no owner": _owners_forgotten_while_revoking,
    "a member may report in any epoch": _any_epoch_welcome,
    "the group's epoch does not grow": _epoch_stands_still,
    "members of consumer groups have no session": _no_session,
    "giving up has no deadline": _no_rebalance_timer,
    "new and deleted topics are not noticed": _topics_not_watched,
    "heartbeats are answered before the record is in the log": _told_before_replicated,
    "a refused removal is not tried again": _refused_removal_not_retried,
    "an instance id is taken from a living member": _static_id_taken_over,
    "removed members still own their partitions": _removed_members_keep_partitions,
    "the upgrade forgets what classic members read": _upgrade_forgets_assignments,
    "the upgrade leaves parked requests unanswered": _upgrade_leaves_parked_requests,
    "classic members have no time limit to rejoin": _classic_members_never_told,
}
