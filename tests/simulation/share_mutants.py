"""Deliberate wrong edits of share partitions and of what is stored of them, each of which must be noticed."""

from collections.abc import Callable
from typing import Any

from tests.simulation.group_mutants import Patch, nothing
from tidelog.model.errors import ErrorCode
from tidelog.model.outbox import Outbox
from tidelog.shares import acknowledging, acquisition, fetched, redelivery
from tidelog.shares.acquisition import Acquisition
from tidelog.shares.commands import StateWritten
from tidelog.shares.coordinator import ShareCoordinator, StoredState
from tidelog.shares.fetched import OffsetRange
from tidelog.shares.runs import Run, Runs
from tidelog.shares.schemas import ShareSnapshot, ShareUpdate
from tidelog.shares.share_partition import SharePartition
from tidelog.shares.state_batches import StateBatch, StateBatches
from tidelog.shares.states import RecordState


def _locks_end_early() -> Patch:
    original = Runs.lock

    def lock(self: Runs, run: Run, member_id: str, deadline_ms: int) -> None:
        original(self, run, member_id, deadline_ms - 300)

    return Runs, "lock", lock


def _renewal_changes_nothing() -> Patch:
    original = Runs.lock

    def lock(self: Runs, run: Run, member_id: str, deadline_ms: int) -> None:
        if run.state is not RecordState.ACQUIRED:
            original(self, run, member_id, deadline_ms)

    return Runs, "lock", lock


def _acquired_records_stay_on_offer() -> Patch:
    return Runs, "withdraw", nothing


def _locks_have_no_timer() -> Patch:
    return SharePartition, "_arm", nothing


def _told_before_stored() -> Patch:
    original = SharePartition._await

    def wait(self: SharePartition, token: int, ranges: Any, *, rests: bool) -> None:
        original(self, token, ranges, rests=rests)
        if ranges:
            self._answer(token, None)

    return SharePartition, "_await", wait


def _failed_writes_count() -> Patch:
    original = SharePartition._written

    def written(self: SharePartition, command: StateWritten, now_ms: int) -> None:
        original(self, StateWritten(command.number), now_ms)

    return SharePartition, "_written", written


def _failed_writes_are_forgotten() -> Patch:
    original = SharePartition._not_written

    def not_written(self: SharePartition, writing: Any, *rest: Any) -> None:
        original(self, writing._replace(ranges=[]), *rest)

    return SharePartition, "_not_written", not_written


def _failed_acknowledgements_keep_records_for_ever() -> Patch:
    def roll_back(self: SharePartition, run: Run, now_ms: int) -> None:
        run.target = None

    return SharePartition, "_roll_back", roll_back


def _ends_of_locks_are_not_stored() -> Patch:
    original = SharePartition._expire

    def expire(self: SharePartition, run: Run, now_ms: int) -> None:
        kept = list(self._unsaved)
        original(self, run, now_ms)
        self._unsaved = kept

    return SharePartition, "_expire", expire


def _count_begins_anew() -> Patch:
    original = SharePartition._offer

    def offer(self: SharePartition, run: Run, now_ms: int, *, rests: bool = False) -> None:
        run.delivery_count = 0
        original(self, run, now_ms, rests=rests)

    return SharePartition, "_offer", offer


def _count_does_not_grow() -> Patch:
    original = Acquisition._take

    def take(self: Acquisition, run: Run) -> None:
        original(self, run)
        run.delivery_count = max(1, run.delivery_count - 1)

    return Acquisition, "_take", take


def _no_limit_of_deliveries() -> Patch:
    def expire(self: SharePartition, run: Run, now_ms: int) -> None:
        self._offer(run, now_ms, rests=True)
        self._unsaved.append(OffsetRange(run.first, run.last))

    return SharePartition, "_expire", expire


def _anybody_acknowledges() -> Patch:
    original = acknowledging.fault

    def fault(runs: Runs, member_id: str, batches: Any, *, may_renew: bool) -> Any:
        refused = original(runs, member_id, batches, may_renew=may_renew)
        return None if refused is not None and "another member" in (refused.message or "") else refused

    return acknowledging, "fault", fault


def _start_passes_over_what_is_available() -> Patch:
    original = SharePartition._start_after

    def start_after(self: SharePartition) -> int:
        start = original(self)
        run = self.runs.at(start) if start < self.runs.end else None
        return run.last + 1 if run is not None and run.state is RecordState.AVAILABLE else start

    return SharePartition, "_start_after", start_after


def _holes_are_delivered() -> Patch:
    return acquisition, "gaps", lambda *_, **__: []


def _aborted_records_are_delivered() -> Patch:
    return fetched, "aborted_batches", lambda *_: []


def _nothing_rests() -> Patch:
    return redelivery, "rest_ms", lambda *_: 0


def _letters_before_it_is_stored() -> Patch:
    original = SharePartition._archive

    def archive(self: SharePartition, run: Run, reason: str) -> None:
        original(self, run, reason)
        self._send_letters(OffsetRange(run.first, run.last))

    return SharePartition, "_archive", archive


def _letters_are_not_resumed() -> Patch:
    original = SharePartition._begin

    def begin(self: SharePartition, start: int, batches: Any, now_ms: int) -> None:
        archived = RecordState.ARCHIVED
        forgotten = (
            batch._replace(delivery_state=archived)
            if batch.delivery_state is RecordState.ARCHIVING
            else batch
            for batch in batches
        )
        original(self, start, tuple(forgotten), now_ms)

    return SharePartition, "_begin", begin


def _letters_are_not_tried_again() -> Patch:
    original = SharePartition._letters_written

    def letters_written(self: SharePartition, command: Any, now_ms: int) -> None:
        if not command.retriable:
            original(self, command, now_ms)

    return SharePartition, "_letters_written", letters_written


def _restart_skips_what_was_acquired() -> Patch:
    original = SharePartition._begin

    def begin(self: SharePartition, start: int, batches: Any, now_ms: int) -> None:
        filled, position = [], start
        for batch in batches:
            if batch.first_offset > position:
                filled.append(StateBatch(position, batch.first_offset - 1, RecordState.ARCHIVED, 0))
            filled.append(batch)
            position = batch.last_offset + 1
        original(self, start, tuple(filled), now_ms)

    return SharePartition, "_begin", begin


def _older_leaders_write() -> Patch:
    original = ShareCoordinator._leader_fault

    def leader_fault(self: ShareCoordinator, key: Any, leader_epoch: int, operation: str) -> Any:
        refused = original(self, key, leader_epoch, operation)
        is_fence = refused is not None and refused.code is ErrorCode.FENCED_LEADER_EPOCH
        return None if is_fence else refused

    return ShareCoordinator, "_leader_fault", leader_fault


def _late_writes_take_the_start_back() -> Patch:
    def update(self: StoredState, update: ShareUpdate) -> None:
        self.updates += 1
        self.leader_epoch = max(self.leader_epoch, update.leader_epoch)
        self.start_offset = update.start_offset
        self.delivery_complete_count = update.delivery_complete_count
        self.batches.merge(update.batches)
        self.batches.prune(self.start_offset)

    return StoredState, "update", update


def _who_is_last_wins() -> Patch:
    return StateBatch, "rank", property(lambda self: (1, self.delivery_state and 1))  # type: ignore[return-value]


def _snapshots_forget_batches() -> Patch:
    original = StoredState.snapshot

    def snapshot(self: StoredState) -> ShareSnapshot:
        return original(self)._replace(batches=())

    return StoredState, "snapshot", snapshot


def _snapshots_forget_the_leader() -> Patch:
    original = StoredState.snapshot

    def snapshot(self: StoredState) -> ShareSnapshot:
        return original(self)._replace(leader_epoch=0)

    return StoredState, "snapshot", snapshot


def _pruning_forgets_too_much() -> Patch:
    original = StateBatches.prune

    def prune(self: StateBatches, start_offset: int) -> None:
        original(self, start_offset + 1)

    return StateBatches, "prune", prune


def _answers_before_replication() -> Patch:
    original = Outbox.append

    def append(self: Outbox, records: Any, **kept: Any) -> None:
        on_appended = kept.pop("on_appended", None)
        original(self, records, **kept)
        if on_appended is not None:
            on_appended(0)

    return Outbox, "append", append


MUTANTS: dict[str, Callable[[], Patch]] = {
    "locks end before their time": _locks_end_early,
    "a renewed lock ends as before": _renewal_changes_nothing,
    "what is acquired stays on offer": _acquired_records_stay_on_offer,
    "nothing ends the locks": _locks_have_no_timer,
    "members are told before it is stored": _told_before_stored,
    "a write that failed counts": _failed_writes_count,
    "what a failed write was to store is forgotten": _failed_writes_are_forgotten,
    "after a failed write a lock never ends": _failed_acknowledgements_keep_records_for_ever,
    "the end of a lock is not stored": _ends_of_locks_are_not_stored,
    "the delivery count begins anew": _count_begins_anew,
    "the delivery count does not grow": _count_does_not_grow,
    "records are delivered without end": _no_limit_of_deliveries,
    "anybody acknowledges anything": _anybody_acknowledges,
    "the start passes over available records": _start_passes_over_what_is_available,
    "holes in the log are delivered": _holes_are_delivered,
    "aborted records are delivered": _aborted_records_are_delivered,
    "failed records do not rest": _nothing_rests,
    "dead letters are written too early": _letters_before_it_is_stored,
    "dead letters are not resumed after a crash": _letters_are_not_resumed,
    "dead letters are tried once": _letters_are_not_tried_again,
    "a crash skips what was acquired": _restart_skips_what_was_acquired,
    "an older leader writes": _older_leaders_write,
    "a late write takes the start back": _late_writes_take_the_start_back,
    "whoever writes last is right": _who_is_last_wins,
    "snapshots forget the batches": _snapshots_forget_batches,
    "snapshots forget the leader's epoch": _snapshots_forget_the_leader,
    "a record at the start is forgotten": _pruning_forgets_too_much,
    "writes are answered before they are replicated": _answers_before_replication,
}
