"""Deliberate wrong edits of the group machine, each of which the simulation must notice.

A mutant is a sentence and the attributes it replaces while it lives.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from tidelog.groups.classic_draft import ClassicDraft, ClassicGroups
from tidelog.groups.classic_group import ClassicGroup
from tidelog.groups.classic_requests import ClassicRequests
from tidelog.groups.durable import DurableGroups
from tidelog.groups.machine import GroupMachine
from tidelog.groups.membership import Rebalances
from tidelog.groups.offset_requests import OffsetRequests
from tidelog.groups.states import GroupState
from tidelog.model.effects import SetTimer
from tidelog.model.errors import ErrorCode
from tidelog.model.outbox import Outbox

Patch = tuple[type | ModuleType, str, Callable[..., Any]]


def nothing(*_: Any, **__: Any) -> None:
    return None


def _adopted_before_written() -> Patch:
    original = ClassicGroups.commit

    def commit(self: ClassicGroups, draft: ClassicDraft, outbox: Outbox, **told: Any) -> None:
        original(self, draft, outbox, **told)
        self.adopt(draft.group)

    return ClassicGroups, "commit", commit


def _never_adopted() -> Patch:
    original = ClassicGroups.commit

    def commit(self: ClassicGroups, draft: ClassicDraft, outbox: Outbox, **told: Any) -> None:
        before = self.get(draft.group.group_id)
        original(self, draft, outbox, **told)
        for pending in outbox.pending.values():
            if draft.records and before is not None and pending.records == tuple(draft.records):
                pending.on_written = None

    return ClassicGroups, "commit", commit


def _no_retry_timer() -> Patch:
    original = GroupMachine.append_refused

    def append_refused(self: GroupMachine, token: int, error: ErrorCode, now_ms: int) -> Any:
        effects = original(self, token, error, now_ms)
        retry_ms = now_ms + self._rebalances.settings.append_retry_ms
        return [e for e in effects if not (isinstance(e, SetTimer) and e.deadline_ms == retry_ms)]

    return GroupMachine, "append_refused", append_refused


def _answer_before_append() -> Patch:
    original = Outbox.append

    def append(self: Outbox, records: Any, **kept: Any) -> None:
        on_appended = kept.pop("on_appended", None)
        original(self, records, **kept)
        if on_appended is not None and kept.get("undo") is None:
            on_appended(0)

    return Outbox, "append", append


def _no_session_after_load() -> Patch:
    original = GroupMachine.loaded

    def loaded(self: GroupMachine, now_ms: int) -> Any:
        return [effect for effect in original(self, now_ms) if not isinstance(effect, SetTimer)]

    return GroupMachine, "loaded", loaded


def _tombstones_ignored() -> Patch:
    original = DurableGroups.apply

    def apply(self: DurableGroups, key: bytes, value: bytes | None, *rest: Any) -> Any:
        return original(self, key, value, *rest) if value is not None else None

    return DurableGroups, "apply", apply


def _live_records_not_applied() -> Patch:
    def wrote(self: GroupMachine, token: int, base_offset: int, now_ms: int) -> Any:
        pending = self._outbox.pending[token]
        pending.written = True
        self._outbox.emit(pending.held)
        return self._outbox.take()

    return GroupMachine, "wrote", wrote


def _part_of_a_commit_is_applied() -> Patch:
    original = GroupMachine._apply_commit

    def apply_commit(self: GroupMachine, contents: Any, *rest: Any) -> None:
        original(self, contents[:1], *rest)

    return GroupMachine, "_apply_commit", apply_commit


def _generation_stands_still() -> Patch:
    original = ClassicGroup.next_generation

    def next_generation(self: ClassicGroup, now_ms: int) -> None:
        original(self, now_ms)
        self.generation = max(1, self.generation - 1)

    return ClassicGroup, "next_generation", next_generation


def _zombies_commit() -> Patch:
    original = OffsetRequests._commit_fault

    def commit_fault(self: OffsetRequests, group: Any, command: Any) -> ErrorCode:
        error = original(self, group, command)
        return ErrorCode.NONE if error is ErrorCode.ILLEGAL_GENERATION and group is not None else error

    return OffsetRequests, "_commit_fault", commit_fault


def _stale_sync_accepted() -> Patch:
    original = ClassicRequests._sync_fault

    def sync_fault(self: ClassicRequests, group: Any, command: Any) -> ErrorCode:
        error = original(self, group, command)
        stale = error is ErrorCode.ILLEGAL_GENERATION and group.is_in(GroupState.STABLE)
        return ErrorCode.NONE if stale else error

    return ClassicRequests, "_sync_fault", sync_fault


def _join_without_timer() -> Patch:
    return Rebalances, "_await_joins", nothing


def _dropped_without_answer() -> Patch:
    return Rebalances, "refuse_parked", nothing


def _failed_store_says_nothing() -> Patch:
    return Rebalances, "fail_syncs", nothing


def _heartbeats_do_not_count() -> Patch:
    def heartbeat(self: ClassicRequests, command: Any, now_ms: int) -> None:
        group = self._groups.get(command.group_id)
        error = ErrorCode.UNKNOWN_MEMBER_ID if group is None else self._heartbeat_fault(group, command)
        self._outbox.reply(command.token, {"error_code": error})

    return ClassicRequests, "heartbeat", heartbeat


def _reads_do_not_wait() -> Patch:
    def read_reply(self: Outbox, token: int, response: Any, otherwise: Any) -> None:
        self.reply(token, response)

    return Outbox, "read_reply", read_reply


def _silent_members_stay() -> Patch:
    return Rebalances, "session_timer_fired", nothing


def _sync_never_times_out() -> Patch:
    original = Rebalances.complete_join

    def complete_join(self: Rebalances, draft: ClassicDraft, now_ms: int) -> None:
        original(self, draft, now_ms)
        self._outbox.cancel_timer(("sync", draft.group.group_id, ""))

    return Rebalances, "complete_join", complete_join


MUTANTS: dict[str, Callable[[], Patch]] = {
    "a step counts before its records are in the log": _adopted_before_written,
    "a step does not count when its records are in the log": _never_adopted,
    "the timer of a refused step is not armed again": _no_retry_timer,
    "answers go out before the record is in the log": _answer_before_append,
    "loaded members have no session": _no_session_after_load,
    "tombstones are not applied": _tombstones_ignored,
    "written records are not applied": _live_records_not_applied,
    "of a commit that is written only a part is applied": _part_of_a_commit_is_applied,
    "the generation does not grow": _generation_stands_still,
    "a member of an old generation may commit": _zombies_commit,
    "a stable group answers syncs of old generations": _stale_sync_accepted,
    "the join phase has no timer": _join_without_timer,
    "a dropped member's parked request is forgotten": _dropped_without_answer,
    "waiting syncs are not told that the store failed": _failed_store_says_nothing,
    "heartbeats do not keep the session": _heartbeats_do_not_count,
    "reads do not wait for replication": _reads_do_not_wait,
    "silent members are never removed": _silent_members_stay,
    "members that never sync are kept": _sync_never_times_out,
}


@contextmanager
def alive(mutant: Callable[[], Patch]) -> Iterator[None]:
    owner, name, replacement = mutant()
    original = getattr(owner, name)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        setattr(owner, name, original)
