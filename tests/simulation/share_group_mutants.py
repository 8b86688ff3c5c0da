"""Deliberate wrong edits of share groups, each of which the simulation must notice."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.simulation.group_mutants import Patch, nothing
from tidelog.groups import share_group
from tidelog.groups.share_group import ShareDraft, ShareGroup
from tidelog.groups.share_requests import SHARE_SESSION, ShareRequests
from tidelog.groups.share_schemas import ShareRecordType, StatePartitions
from tidelog.groups.share_states import ShareStates
from tidelog.model.errors import ErrorCode
from tidelog.model.outbox import Outbox


def _no_session() -> Patch:
    original = Outbox.set_timer

    def set_timer(self: Outbox, key: Any, deadline_ms: int) -> None:
        if key[0] != SHARE_SESSION:
            original(self, key, deadline_ms)

    return Outbox, "set_timer", set_timer


def _sessions_not_begun_on_loading() -> Patch:
    return ShareRequests, "loaded", nothing


def _refused_removal_not_retried() -> Patch:
    original = ShareRequests._remove

    def remove(self: ShareRequests, group: Any, member_id: str, **kept: Any) -> None:
        kept.pop("retry_timer", None)
        original(self, group, member_id, **kept)

    return ShareRequests, "_remove", remove


def _told_before_replicated() -> Patch:
    original = Outbox.append

    def append(self: Outbox, records: Any, **kept: Any) -> None:
        on_appended = kept.pop("on_appended", None)
        kept.pop("undo", None)
        original(self, records, **kept)
        if on_appended is not None:
            on_appended(0)

    return Outbox, "append", append


def _assigned_before_there_is_state() -> Patch:
    def assignable(self: StatePartitions) -> Any:
        states = (*self.initializing.items(), *self.initialized.items())
        return frozenset((topic, index) for topic, state in states for index in state.partitions)

    return StatePartitions, "assignable", property(assignable)  # type: ignore[return-value]


def _answers_of_share_coordinators_unheard() -> Patch:
    return ShareStates, "answered", nothing


def _all_is_begun_again() -> Patch:
    original = ShareRequests._to_begin

    def to_begin(self: ShareRequests, group: ShareGroup, now_ms: int) -> Any:
        found = original(self, group, now_ms)
        return {topic: self._states.partitions_of(topic) for topic in found}

    return ShareRequests, "_to_begin", to_begin


def _never_asked_again() -> Patch:
    original = ShareRequests._ask_to_begin

    def ask(self: ShareRequests, group_id: str, epoch: int, begins: Any) -> None:
        if epoch <= 2:
            original(self, group_id, epoch, begins)

    return ShareRequests, "_ask_to_begin", ask


def _failures_count_as_begun() -> Patch:
    original = ShareStates.answered

    def answered(self: ShareStates, command: Any, now_ms: int) -> None:
        results = tuple((one, ErrorCode.NONE) for one, _ in command.results)
        original(self, replace(command, results=results), now_ms)

    return ShareStates, "answered", answered


def _epoch_stands_still() -> Patch:
    def bump_epoch(self: ShareDraft, image: Any) -> None:
        return None

    return ShareDraft, "bump_epoch", bump_epoch


def _topics_not_watched() -> Patch:
    original = ShareGroup.metadata_hash

    def metadata_hash(self: ShareGroup, image: Any) -> int:
        return self.metadata.metadata_hash or original(self, image)

    return ShareGroup, "metadata_hash", metadata_hash


def _everybody_gets_everything() -> Patch:
    def assign(members: Any, assignable: Any) -> Any:
        return {
            member_id: frozenset(one for one in assignable if one[0] in member.topics)
            for member_id, member in members.items()
        }

    return share_group, "assign_simple", assign


def _some_get_nothing() -> Patch:
    original = share_group.assign_simple  # type: ignore[attr-defined]

    def assign(members: Any, assignable: Any) -> Any:
        found = original(members, assignable)
        return {**found, min(found): frozenset()} if len(found) > 1 else found

    return share_group, "assign_simple", assign


def _leaving_forgets_the_member_only() -> Patch:
    def remove_member(self: ShareDraft, member_id: str) -> None:
        self.put(ShareRecordType.CURRENT_MEMBER_ASSIGNMENT, member_id, None)

    return ShareDraft, "remove_member", remove_member


MUTANTS: dict[str, Callable[[], Patch]] = {
    "members of share groups have no session": _no_session,
    "sessions do not begin on loading": _sessions_not_begun_on_loading,
    "a refused removal is not tried again": _refused_removal_not_retried,
    "heartbeats are answered before the record is in the log": _told_before_replicated,
    "partitions are assigned before there is state": _assigned_before_there_is_state,
    "the answers of share coordinators are not heard": _answers_of_share_coordinators_unheard,
    "what has begun is begun again": _all_is_begun_again,
    "share coordinators are asked once": _never_asked_again,
    "what failed counts as begun": _failures_count_as_begun,
    "the group's epoch does not grow": _epoch_stands_still,
    "new and deleted topics are not noticed": _topics_not_watched,
    "everybody gets everything": _everybody_gets_everything,
    "somebody gets nothing": _some_get_nothing,
    "who leaves stays a member": _leaving_forgets_the_member_only,
}
