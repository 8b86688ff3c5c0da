"""Deliberate wrong edits of brokers and controller, which the simulation of the cluster must notice.

A mutant is a sentence and the attributes it replaces while it lives.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tidelog.broker.metadata import change_log
from tidelog.broker.metadata import metadata as metadata_module
from tidelog.broker.metadata.change_log import Changes
from tidelog.broker.metadata.controller_runtime import ControllerRuntime
from tidelog.broker.replicas import reading
from tidelog.broker.replicas.partition import Partition
from tidelog.broker.replicas.replicas import Replicas
from tidelog.broker.replication.followed_logs import FollowedLogs
from tidelog.broker.replication.follower_feeds import FollowerFeed, FollowerFeeds
from tidelog.broker.replication.isr_changes import IsrChanges
from tidelog.broker.replication.replica_homes import ReplicaHomes
from tidelog.broker.replication.roles import Roles
from tidelog.broker.runtime.liveness import Liveness
from tidelog.controller import partition_change
from tidelog.controller.machine import Controller
from tidelog.controller.partition_change import Election, Lives, PartitionDraft
from tidelog.coordination.store import Check
from tidelog.model.errors import ErrorCode
from tidelog.model.image import BrokerImage
from tidelog.model.metadata import PartitionRecord
from tidelog.records.batch import read_header
from tidelog.replication.leader import LeaderReplicas
from tidelog.storage import log_directory
from tidelog.storage.log_directories import LogDirectories
from tidelog.storage.partition_log import PartitionLog
from tidelog.storage.producer_state import ProducerState

Patch = tuple[Any, str, Any]


def _acknowledged_before_replicated() -> list[Patch]:
    def replicated(self: Partition, end_offset: int) -> ErrorCode:
        return ErrorCode.NONE if self.leads else ErrorCode.NOT_LEADER_OR_FOLLOWER

    return [(Partition, "replicated", replicated)]


def _lost_leadership_is_success() -> list[Patch]:
    original = Partition.replicated

    def replicated(self: Partition, end_offset: int) -> ErrorCode | None:
        return original(self, end_offset) if self.leads else ErrorCode.NONE

    return [(Partition, "replicated", replicated)]


def _watermark_ahead() -> list[Patch]:
    original = LeaderReplicas.watermark

    def watermark(self: LeaderReplicas, high_watermark: int, end_offset: int, *rest: Any) -> int:
        found = original(self, high_watermark, end_offset, *rest)
        return min(found + 1, end_offset)

    return [(LeaderReplicas, "watermark", watermark)]


def _slowest_is_not_waited_for() -> list[Patch]:
    original = LeaderReplicas.watermark

    def watermark(self: LeaderReplicas, high_watermark: int, end_offset: int, *rest: Any) -> int:
        found = original(self, high_watermark, end_offset, *rest)
        ends = [f.log_end_offset for f in self.followers.values() if f.broker_id in self.maximal_isr]
        return max(found, max(ends, default=found)) if len(self.isr) > 1 else found

    return [(LeaderReplicas, "watermark", watermark)]


def _watermark_is_the_end_of_the_log() -> list[Patch]:
    original = Partition.lead

    def lead(self: Partition, *role: Any) -> bool:
        if not self.leads:
            self.high_watermark = self.log.log_end_offset
        return original(self, *role)

    return [(Partition, "lead", lead)]


def _end_is_noted_as_watermark() -> list[Patch]:
    original = Replicas.replicated

    def replicated(self: Replicas) -> Iterator[Any]:
        for partition in original(self):
            yield _WithWatermark(partition)

    return [(Replicas, "replicated", replicated)]


class _WithWatermark:
    def __init__(self, partition: Partition) -> None:
        self.place = partition.place
        self.high_watermark = partition.log.log_end_offset


def _follower_believes_the_leader() -> list[Patch]:
    def learn_high_watermark(self: Partition, high_watermark: int) -> bool:
        moved = high_watermark > self.high_watermark
        self.high_watermark = max(self.high_watermark, high_watermark)
        return moved

    return [(Partition, "learn_high_watermark", learn_high_watermark)]


def _no_epoch_check_on_fetch() -> list[Patch]:
    original_fetch, original_note = reading.read_for_follower, FollowerFeeds.note_fetch

    def read_for_follower(partition: Any, follower_id: int, wanted: Any, *rest: Any, **how: Any) -> Any:
        believed = wanted._replace(current_leader_epoch=-1, last_fetched_epoch=-1)
        return original_fetch(partition, follower_id, believed, *rest, **how)

    def note_fetch(self: FollowerFeeds, partition: Any, request: Any, wanted: Any, *rest: Any) -> None:
        believed = wanted._replace(current_leader_epoch=-1, last_fetched_epoch=-1)
        original_note(self, partition, request, believed, *rest)

    return [
        (reading, "read_for_follower", read_for_follower),
        (FollowerFeeds, "note_fetch", note_fetch),
    ]


def _divergence_not_seen() -> list[Patch]:
    return [(reading, "divergence", lambda partition, wanted: None)]


def _not_truncated() -> list[Patch]:
    original = FollowedLogs._truncate

    def truncate(self: FollowedLogs, cuts: Sequence[Any], *, fully: bool = False) -> None:
        if fully:
            original(self, cuts, fully=fully)

    return [(FollowedLogs, "_truncate", truncate)]


def _truncated_too_far() -> list[Patch]:
    original = FollowedLogs._truncate

    def truncate(self: FollowedLogs, cuts: Sequence[Any], *, fully: bool = False) -> None:
        original(self, [(partition, max(0, offset - 1)) for partition, offset in cuts], fully=fully)

    return [(FollowedLogs, "_truncate", truncate)]


def _cut_below_the_watermark() -> list[Patch]:
    """A follower that diverges gives up all of the last epoch that it shares with its leader, and nothing
    keeps it from that."""

    def divergence(partition: Partition, diverging_epoch: tuple[int, int]) -> int:
        starts = dict(partition.log.leader_epochs.entries)
        return min(starts.get(diverging_epoch[0], 0), original(partition, diverging_epoch))

    original = FollowedLogs.divergence
    return [
        (FollowedLogs, "divergence", staticmethod(divergence)),
        (Partition, "may_lose_committed", property(lambda self: True)),
    ]


def _batches_missing_on_followers() -> list[Patch]:
    original = Partition.append_fetched

    def append_fetched(self: Partition, records: memoryview, now_ms: int) -> Any:
        first_bytes = read_header(records).size_bytes
        return original(self, records[first_bytes:] if len(records) > first_bytes else records, now_ms)

    return [(Partition, "append_fetched", append_fetched)]


def _no_producers_on_followers() -> list[Patch]:
    original = PartitionLog.append_replicated

    def append_replicated(self: PartitionLog, *batches: Any) -> None:
        kept, self.producers = self.producers, ProducerState()
        try:
            original(self, *batches)
        finally:
            self.producers = kept

    return [(PartitionLog, "append_replicated", append_replicated)]


def _retries_are_appended_again() -> list[Patch]:
    return [(ProducerState, "check", lambda self, header, *, from_client=True: None)]


def _proposed_isr_counts() -> list[Patch]:
    original = LeaderReplicas.propose

    def propose(self: LeaderReplicas, isr: Any) -> Any:
        proposal = original(self, isr)
        assert self.pending_isr is not None
        self.isr = self.pending_isr
        return proposal

    return [(LeaderReplicas, "propose", propose)]


def _pending_members_are_not_waited_for() -> list[Patch]:
    return [
        (LeaderReplicas, "maximal_isr", property(lambda self: self.isr)),
        (LeaderReplicas, "_about_to_join", lambda self, follower, end_offset, now_ms: False),
    ]


def _shrunk_without_the_controller() -> list[Patch]:
    original = IsrChanges._propose

    def propose(self: IsrChanges, partition: Partition, isr: frozenset[int]) -> None:
        assert partition.replicas is not None
        if isr < partition.replicas.isr:
            partition.replicas.isr = isr
        else:
            original(self, partition, isr)

    return [(IsrChanges, "_propose", propose)]


def _everybody_may_join() -> list[Patch]:
    original = LeaderReplicas.may_join

    def may_join(self: LeaderReplicas, broker_id: int, high_watermark: int) -> bool:
        kept, self.epoch_start_offset = self.epoch_start_offset, 0
        try:
            return original(self, broker_id, 0)
        finally:
            self.epoch_start_offset = kept

    return [(LeaderReplicas, "may_join", may_join)]


def _not_fenced() -> list[Patch]:
    original = ControllerRuntime._commit

    def commit(self: ControllerRuntime, store: Any, *what: Any) -> Any:
        return original(self, _WithoutChecks(store), *what)  # type: ignore[arg-type]

    return [(ControllerRuntime, "_commit", commit)]


class _WithoutChecks:
    def __init__(self, store: Any) -> None:
        self._store = store

    def commit(self, writes: Sequence[Any]) -> Any:
        return self._store.commit([write for write in writes if not isinstance(write, Check)])


def _unclean_elections() -> list[Patch]:
    original = PartitionDraft.settle

    def settle(
        self: PartitionDraft, lives: Lives, min_insync_replicas: int, election: Any = Election.CLEAN
    ) -> Any:
        election = Election.UNCLEAN if election is Election.CLEAN else election
        return original(self, lives, min_insync_replicas, election)

    return [(PartitionDraft, "settle", settle)]


def _restarts_not_noticed() -> list[Patch]:
    original = Lives.of.__func__  # type: ignore[attr-defined]

    def of(cls: type[Lives], brokers: Any, restarted: Any = frozenset(), *rest: Any, **named: Any) -> Lives:
        made: Lives = original(cls, brokers, frozenset(), *rest, **named)
        return made

    return [(Lives, "of", classmethod(of))]


def _power_cuts_are_not_told() -> list[Patch]:
    original = Lives.of.__func__  # type: ignore[attr-defined]

    def of(cls: type[Lives], *what: Any, **named: Any) -> Lives:
        made: Lives = original(cls, *what, **named)
        return replace(made, unclean=frozenset())

    return [(Lives, "of", classmethod(of))]


def _any_log_leads() -> list[Patch]:
    def longest_log(self: PartitionDraft, lives: Lives) -> int:
        self._unclean = True
        return next((replica for replica in self.replicas if replica in lives.active), -1)

    return [(PartitionDraft, "_longest_log", longest_log)]


def _the_absent_are_not_waited_for() -> list[Patch]:
    original = PartitionDraft._elect

    def elect(self: PartitionDraft, lives: Lives, election: Election) -> int:
        leader = original(self, lives, election)
        back = any(member in lives.active for member in self.last_known_elr)
        return self._longest_log(lives) if leader < 0 and back else leader

    return [(PartitionDraft, "_elect", elect)]


def _elr_is_not_emptied() -> list[Patch]:
    original = PartitionDraft._keep_eligible

    def keep(self: PartitionDraft, min_insync_replicas: int) -> None:
        original(self, len(self.replicas) + 1 if not self._unclean else min_insync_replicas)

    def watermark(self: LeaderReplicas, *what: Any) -> int:
        self.elr = ()
        return right(self, *what)

    right = LeaderReplicas.watermark
    return [(PartitionDraft, "_keep_eligible", keep), (LeaderReplicas, "watermark", watermark)]


def _elr_is_ignored() -> list[Patch]:
    original = PartitionDraft._keep_eligible

    def keep(self: PartitionDraft, min_insync_replicas: int) -> None:
        original(self, min_insync_replicas)
        if self.last_known_elr:
            self.elr = ()

    return [(PartitionDraft, "_keep_eligible", keep)]


def _doubt_is_forgotten() -> list[Patch]:
    return [(LogDirectories, "kept_their_ends", property(lambda self: True))]


def _empty_directories_are_taken() -> list[Patch]:
    return [
        (log_directory, "_held_back", lambda *what: ""),
        (ReplicaHomes, "may_open", lambda self, place, state: True),
    ]


def _offline_replicas_count() -> list[Patch]:
    return [
        (partition_change, "is_online", lambda directory, directories: True),
        (BrokerImage, "has_online", lambda self, directory: True),
    ]


def _leads_from_an_old_image() -> list[Patch]:
    original = Roles.give

    def give(self: Roles, partition: Any, state: Any, *, trusted: bool) -> None:
        metadata = self._metadata
        fenced, metadata.fenced = metadata.fenced, False
        original(self, partition, state, trusted=trusted)
        metadata.fenced = fenced

    return [(Roles, "give", give)]


def _changes_out_of_order() -> list[Patch]:
    original = change_log.read_changes

    def read_changes(store: Any, after: int) -> Any:
        found = original(store, after)
        return None if found is None else Changes(found.sequence, _newest_first(found.records))

    return [(metadata_module, "read_changes", read_changes)]


def _newest_first(records: list[Any]) -> list[Any]:
    """Of several states of a partition the oldest comes last."""
    oldest: dict[tuple[str, int], Any] = {}
    for record in records:
        if isinstance(record, PartitionRecord):
            oldest.setdefault((record.topic, record.index), record)
    return [*records, *(record for record in oldest.values() if record.partition_epoch > 0)]


def _changes_missed() -> list[Patch]:
    original = change_log.read_changes

    def read_changes(store: Any, after: int) -> Any:
        found = original(store, after)
        if found is None or not found.records:
            return found
        last = found.records[-1]
        missed = isinstance(last, PartitionRecord) and last.partition_epoch > 0
        return Changes(found.sequence, found.records[:-1] if missed else found.records)

    return [(metadata_module, "read_changes", read_changes)]


def _another_log_is_fetched() -> list[Patch]:
    original = FollowerFeed._fetch

    def fetch(self: FollowerFeed, key: Any, wanted: Any, remaining: int, *, at_least_one: bool) -> Any:
        fetched = original(self, (key[0], 0), wanted, remaining, at_least_one=at_least_one)
        return fetched._replace(partition=wanted.partition)

    return [(FollowerFeed, "_fetch", fetch)]


def _ids_given_twice() -> list[Patch]:
    original = Controller._allocate_producer_ids

    def allocate(self: Controller, command: Any, image: Any) -> Any:
        decision = original(self, command, image)
        return replace(decision, records=()) if image.next_producer_id else decision

    return [(Controller, "_allocate_producer_ids", allocate)]


def _session_kept_while_hung() -> list[Patch]:
    return [(Liveness, "look", lambda self: 0)]


def _one_offset_for_a_run() -> list[Patch]:
    original = Partition.append_run

    def append_run(self: Partition, views: Sequence[memoryview], now_ms: int) -> Any:
        outcome = original(self, views, now_ms)
        return [outcome[0]] * len(outcome) if isinstance(outcome, list) else outcome

    return [(Partition, "append_run", append_run)]


def _end_of_a_run_is_not_written() -> list[Patch]:
    original = Partition.append_run

    def append_run(self: Partition, views: Sequence[memoryview], now_ms: int) -> Any:
        outcome = original(self, views[:-1], now_ms)
        return [*outcome, self.log.log_end_offset] if isinstance(outcome, list) else outcome

    return [(Partition, "append_run", append_run)]


def _no_lease() -> list[Patch]:
    def renew(self: Liveness) -> None:
        self._moves += 1

    return [(Liveness, "_renew", renew)]


MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "all requests of a run are told one offset": _one_offset_for_a_run,
    "the last batch of a run is not written": _end_of_a_run_is_not_written,
    "acks=all is answered before it is replicated": _acknowledged_before_replicated,
    "a leader that is deposed answers those who wait": _lost_leadership_is_success,
    "the watermark is one ahead": _watermark_ahead,
    "the watermark does not wait for the slowest": _slowest_is_not_waited_for,
    "a new leader takes the end of its log as watermark": _watermark_is_the_end_of_the_log,
    "the end of the log is noted as watermark": _end_is_noted_as_watermark,
    "a follower's watermark goes beyond its log": _follower_believes_the_leader,
    "no epochs are checked on fetches": _no_epoch_check_on_fetch,
    "a diverging log is not seen": _divergence_not_seen,
    "a diverging log is not truncated": _not_truncated,
    "truncation cuts one too many": _truncated_too_far,
    "a follower cuts below its watermark": _cut_below_the_watermark,
    "a follower's log has gaps": _batches_missing_on_followers,
    "followers do not keep the producers": _no_producers_on_followers,
    "retries are appended again": _retries_are_appended_again,
    "an ISR counts before it is stored": _proposed_isr_counts,
    "those who join are not waited for": _pending_members_are_not_waited_for,
    "a leader shrinks its ISR by itself": _shrunk_without_the_controller,
    "whoever fetches may join": _everybody_may_join,
    "the controller's commits are not fenced": _not_fenced,
    "elections are unclean": _unclean_elections,
    "restarts are not noticed": _restarts_not_noticed,
    "the first of the ISR to return leads after a power cut": _power_cuts_are_not_told,
    "a broker does not tell that it lost its power": _doubt_is_forgotten,
    "any log leads after a blackout": _any_log_leads,
    "an empty directory is taken for one that is away": _empty_directories_are_taken,
    "a replica counts though its directory is away": _offline_replicas_count,
    "those who are away are not waited for": _the_absent_are_not_waited_for,
    "the ELR is not emptied": _elr_is_not_emptied,
    "the ELR is ignored": _elr_is_ignored,
    "a broker leads by an image from before its start": _leads_from_an_old_image,
    "changes are applied in the wrong order": _changes_out_of_order,
    "a change is missed": _changes_missed,
    "producer ids are given twice": _ids_given_twice,
    "a fetch session answers from another log": _another_log_is_fetched,
    "a session is kept while the loop hangs": _session_kept_while_hung,
    "a broker that stood still does not look whether it was given up": _no_lease,
}


@contextmanager
def alive(name: str) -> Iterator[None]:
    """Run with the wrong edit in place."""
    right: list[Patch] = []
    try:
        for holder, attribute, wrong in MUTANTS[name]():
            right.append((holder, attribute, holder.__dict__[attribute]))
            setattr(holder, attribute, wrong)
        yield
    finally:
        for patch in reversed(right):
            setattr(*patch)
