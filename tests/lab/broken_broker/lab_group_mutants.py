"""Wrong edits of a broker that the scenarios about groups, transactions and access must notice, by name."""

from collections.abc import Callable, Mapping
from typing import Any

from lab_edits import edit


def aborted_data_is_shown() -> None:
    from tidelog.storage.partition_log import PartitionLog

    edit(PartitionLog, "aborted_transactions", lambda self, start_offset, end_offset: [])


def zombies_are_not_fenced() -> None:
    """A new producer gets the id and epoch that the last one has, and what that left open stays open."""
    from tidelog.model.errors import ErrorCode
    from tidelog.transactions import machine
    from tidelog.transactions.responses import producer

    def fence(self: machine.TransactionMachine, transaction: Any, command: Any, now_ms: int) -> None:
        self._outbox.reply(command.token, producer(ErrorCode.NONE, transaction))

    edit(machine.TransactionMachine, "_fence", fence)


def commits_are_dropped() -> None:
    """Committed offsets are answered and stored, and then forgotten."""
    from tidelog.groups.offsets import Offsets
    from tidelog.model.identifiers import NO_PRODUCER_ID

    original = Offsets.apply

    def apply(self: Offsets, key: Any, value: Any, record_offset: int, producer_id: int) -> None:
        if producer_id != NO_PRODUCER_ID:
            original(self, key, value, record_offset, producer_id)

    edit(Offsets, "apply", apply)


def offsets_of_open_transactions_count() -> None:
    from tidelog.groups.offsets import Offsets
    from tidelog.model.identifiers import NO_PRODUCER_ID

    original = Offsets.apply

    def apply(self: Offsets, key: Any, value: Any, record_offset: int, producer_id: int) -> None:
        original(self, key, value, record_offset, NO_PRODUCER_ID)

    edit(Offsets, "apply", apply)


def sessions_never_end() -> None:
    from tidelog.groups.membership import Rebalances

    def session_timer_fired(self: Rebalances, group: Any, member_id: str, now_ms: int) -> None:
        member = group.members.get(member_id)
        if member is not None:
            self.keep_session(group, member, now_ms)

    edit(Rebalances, "session_timer_fired", session_timer_fired)


def one_member_gets_everything() -> None:
    from tidelog.groups import assignors

    def assign_equal(members: Mapping[str, Any], partition_counts: Mapping[Any, int]) -> dict[str, set[Any]]:
        everything = {(topic, index) for topic, count in partition_counts.items() for index in range(count)}
        first = min(members)
        return {member: everything if member == first else set() for member in members}

    edit(assignors, "_assign_equal", assign_equal)


def everything_is_allowed() -> None:
    from tidelog.broker.requests.authorization import Authorization

    edit(Authorization, "allows", lambda self, context, operation, kind, name: True)


def said_is_taken_for_release(*wrong: str) -> Callable[[], None]:
    """What members say of records in these words has the records delivered again."""

    def break_it() -> None:
        from tidelog.shares.share_partition import SharePartition
        from tidelog.shares.states import RecordState

        original = SharePartition._aim

        def aim(self: SharePartition, run: Any, kind: Any) -> None:
            original(self, run, kind)
            if kind.name in wrong:
                run.target = RecordState.AVAILABLE

        edit(SharePartition, "_aim", aim)

    return break_it


def locks_never_end() -> None:
    from tidelog.shares.runs import Runs

    edit(Runs, "expired", lambda self, now_ms: [])


GROUP_MUTANTS: dict[str, Callable[[], None]] = {
    "aborted data is shown": aborted_data_is_shown,
    "zombies are not fenced": zombies_are_not_fenced,
    "commits are dropped": commits_are_dropped,
    "offsets of open transactions count": offsets_of_open_transactions_count,
    "sessions never end": sessions_never_end,
    "one member gets everything": one_member_gets_everything,
    "everything is allowed": everything_is_allowed,
    "accepted records come again": said_is_taken_for_release("ACCEPT"),
    "rejected records come again": said_is_taken_for_release("REJECT"),
    "the delivery limit is ignored": said_is_taken_for_release("RELEASE"),
    "locks never end": locks_never_end,
}
