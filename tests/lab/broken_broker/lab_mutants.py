"""Wrong edits of a broker, by name; each breaks one promise, and the scenario about it must notice."""

from collections.abc import Callable
from typing import Any

from lab_edits import edit


def retries_are_stored_again() -> None:
    from tidelog.storage.producer_state import ProducerState

    edit(ProducerState, "check", lambda self, header, *, from_client=True: None)


def acknowledged_before_replicated() -> None:
    from tidelog.broker.replicas.partition import Partition
    from tidelog.model.errors import ErrorCode

    def replicated(self: Partition, end_offset: int) -> ErrorCode:
        return ErrorCode.NONE if self.leads else ErrorCode.NOT_LEADER_OR_FOLLOWER

    edit(Partition, "replicated", replicated)


def minimum_of_replicas_is_ignored() -> None:
    from tidelog.broker.replicas.partition import Partition

    edit(Partition, "not_enough_replicas", lambda self: None)


def nothing_is_retained_away() -> None:
    from tidelog.broker.maintenance.log_maintenance import LogMaintenance

    edit(LogMaintenance, "retain", lambda self: None)


def nothing_is_compacted() -> None:
    from tidelog.broker.maintenance.dirty_logs import DirtyLogs

    edit(DirtyLogs, "dirtiest", lambda self: None)


def elections_are_unclean() -> None:
    from tidelog.controller.partition_change import Election, PartitionDraft

    original = PartitionDraft.settle

    def settle(self: Any, lives: Any, min_insync_replicas: int, election: Any = Election.CLEAN) -> Any:
        election = Election.UNCLEAN if election is Election.CLEAN else election
        return original(self, lives, min_insync_replicas, election)

    edit(PartitionDraft, "settle", settle)


def divergence_is_not_seen() -> None:
    from tidelog.broker.replicas import reading

    edit(reading, "divergence", lambda partition, wanted: None)


def open_transactions_are_visible() -> None:
    from tidelog.broker.replicas.partition import Partition

    edit(Partition, "readable_end", lambda self, read_committed: self.high_watermark)


def lookups_by_time_are_late() -> None:
    from tidelog.storage.partition_log import PartitionLog

    original = PartitionLog.offset_by_timestamp

    def offset_by_timestamp(self: PartitionLog, timestamp_ms: int, *rest: Any, **how: Any) -> Any:
        return original(self, timestamp_ms + 5_000, *rest, **how)

    edit(PartitionLog, "offset_by_timestamp", offset_by_timestamp)


MUTANTS: dict[str, Callable[[], None]] = {
    "retries are stored again": retries_are_stored_again,
    "acknowledged before replicated": acknowledged_before_replicated,
    "the minimum of replicas is ignored": minimum_of_replicas_is_ignored,
    "nothing is retained away": nothing_is_retained_away,
    "nothing is compacted": nothing_is_compacted,
    "elections are unclean": elections_are_unclean,
    "divergence is not seen": divergence_is_not_seen,
    "open transactions are visible": open_transactions_are_visible,
    "lookups by time are late": lookups_by_time_are_late,
}
