"""How a classic group rebalances: the join phase, the sync phase, and the timers that bound both.

`Rebalances` moves groups through the states of `states.TRANSITIONS` and reacts to the three kinds of timer:

    ("session", group, member)  a member (or a handed-out member id) was silent too long
    ("join", group, "")         the join phase has waited long enough
    ("sync", group, "")         some members never asked for their assignment

Every member always has its session timer armed. The join timer runs in PreparingRebalance, the sync timer
while a member of the current generation has not synced. A group is stored when its assignment is (SyncGroup
from the leader), when a static member comes back under a new id, and when it becomes empty.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tidelog.groups import responses
from tidelog.groups.classic_group import ClassicGroup, Member
from tidelog.groups.commands import JoinGroup
from tidelog.groups.outbox import Outbox
from tidelog.groups.schemas import group_metadata_key, group_metadata_value
from tidelog.groups.settings import GroupSettings
from tidelog.groups.states import GroupState
from tidelog.model.errors import ErrorCode
from tidelog.model.step_effects import coordinator_error

EMPTY_ASSIGNMENT = b""

TimerKey = tuple[str, str, str]


def session_timer(group_id: str, member_id: str) -> TimerKey:
    return ("session", group_id, member_id)


def join_timer(group_id: str) -> TimerKey:
    return ("join", group_id, "")


def sync_timer(group_id: str) -> TimerKey:
    return ("sync", group_id, "")


@dataclass(slots=True)
class Undo:
    """How to take a step back whose last member went, should the empty group not be storable."""

    snapshot: ClassicGroup
    retry_timer: TimerKey | None = None
    """The timer that caused the step; it fires again soon after a refusal."""
    answer: tuple[int, responses.Response] | None = None
    """The LeaveGroup that caused the step; it is answered when the empty group is stored."""
    storing: bool = False


class Rebalances:
    """Moves one group at a time from state to state; the caller gives it the group and the time."""

    __slots__ = ("_outbox", "cause", "settings")

    def __init__(self, outbox: Outbox, settings: GroupSettings) -> None:
        self._outbox = outbox
        self.settings = settings
        self.cause = ""
        """Why the running step happens, in words: whoever starts a step says so, and events carry it."""

    def _tell(self, kind: str, group: ClassicGroup) -> None:
        fields = {"group": group.group_id, "generation": group.generation, "members": len(group.members)}
        self._outbox.event(kind, fields, self.cause)

    # ------------------------------------------------------------ members come

    def add_member(self, group: ClassicGroup, command: JoinGroup, member_id: str, now_ms: int) -> None:
        member = Member(
            member_id,
            command.group_instance_id,
            command.client_id,
            command.client_host,
            command.rebalance_timeout_ms,
            command.session_timeout_ms,
            command.protocols,
        )
        member.is_new = True
        if group.is_in(GroupState.PREPARING_REBALANCE) and group.previous_state is GroupState.EMPTY:
            group.new_member_added = True
        group.add(member, command.protocol_type, command.token)
        # A new member cannot heartbeat while its JoinGroup is parked, and its connection may be gone
        # without our knowing: it gets a long but bounded time.
        self._outbox.set_timer(
            session_timer(group.group_id, member_id), now_ms + self.settings.new_member_join_timeout_ms
        )
        self.rebalance_or_complete(group, now_ms)

    def update_member(self, group: ClassicGroup, member: Member, command: JoinGroup, now_ms: int) -> None:
        self.park_join(group, member, command)
        self.rebalance_or_complete(group, now_ms)

    def park_join(self, group: ClassicGroup, member: Member, command: JoinGroup) -> None:
        group.update(member, command.protocols, command.rebalance_timeout_ms, command.session_timeout_ms)
        if member.awaiting_join is not None:
            # The client asked again on a new connection; the old request will not be read, but must be
            # answered.
            self._outbox.reply(
                member.awaiting_join, responses.join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
            )
        group.await_join(member, command.token)

    # ------------------------------------------------------------ members go

    def refuse_parked(self, group: ClassicGroup, member: Member, error: ErrorCode, member_id: str) -> None:
        """Answer whatever the member waits for."""
        if member.awaiting_join is not None:
            self._outbox.reply(member.awaiting_join, responses.join_error(error, member_id))
            group.await_join(member, None)
        if member.awaiting_sync is not None:
            self._outbox.reply(member.awaiting_sync, responses.sync_error(error))
            member.awaiting_sync = None

    def drop_member(self, group: ClassicGroup, member_id: str) -> None:
        """Forget a member. UNKNOWN_MEMBER_ID makes its client, if it is still there, join anew."""
        self.refuse_parked(group, group.members[member_id], ErrorCode.UNKNOWN_MEMBER_ID, "")
        group.remove(member_id)
        self._outbox.cancel_timer(session_timer(group.group_id, member_id))

    def forget_pending(self, group: ClassicGroup, member_id: str) -> None:
        """Take a handed-out member id back."""
        group.remove(member_id)
        self._outbox.cancel_timer(session_timer(group.group_id, member_id))

    # ------------------------------------------------------------ the join phase

    def rebalance_or_complete(self, group: ClassicGroup, now_ms: int, undo: Undo | None = None) -> None:
        if group.can_rebalance:
            self.prepare_rebalance(group, now_ms, undo)
        elif (
            group.is_in(GroupState.PREPARING_REBALANCE)
            and group.previous_state is not GroupState.EMPTY
            and group.all_members_joined
        ):
            self.complete_join(group, now_ms, undo)

    def prepare_rebalance(self, group: ClassicGroup, now_ms: int, undo: Undo | None = None) -> None:
        if group.is_in(GroupState.COMPLETING_REBALANCE):
            self.fail_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS, now_ms)
        group.pending_sync_members.clear()
        self._outbox.cancel_timer(sync_timer(group.group_id))
        initial = group.is_in(GroupState.EMPTY)
        self._tell("group rebalances", group)
        group.transition_to(GroupState.PREPARING_REBALANCE, now_ms)
        if initial:
            delay_ms = self.settings.group_initial_rebalance_delay_ms
            group.initial_delay_remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            group.new_member_added = False
            self._outbox.set_timer(join_timer(group.group_id), now_ms + delay_ms)
        elif group.all_members_joined:
            self.complete_join(group, now_ms, undo)
        else:
            self._await_joins(group, now_ms)

    def _await_joins(self, group: ClassicGroup, now_ms: int) -> None:
        self._outbox.set_timer(join_timer(group.group_id), now_ms + group.rebalance_timeout_ms)

    def join_timer_fired(self, group: ClassicGroup, now_ms: int) -> None:
        if not group.is_in(GroupState.PREPARING_REBALANCE):
            return
        remaining_ms = group.initial_delay_remaining_ms
        if remaining_ms and group.new_member_added:
            group.new_member_added = False
            delay_ms = min(self.settings.group_initial_rebalance_delay_ms, remaining_ms)
            group.initial_delay_remaining_ms = remaining_ms - delay_ms
            self._outbox.set_timer(join_timer(group.group_id), now_ms + delay_ms)
            return
        self.cause = "the join phase is over"
        self.complete_join(group, now_ms, Undo(group.snapshot(), join_timer(group.group_id)))

    def complete_join(self, group: ClassicGroup, now_ms: int, undo: Undo | None = None) -> None:
        """End the join phase: dynamic members that did not come are out, the others form the next
        generation.
        """
        self._outbox.cancel_timer(join_timer(group.group_id))
        for member in group.not_yet_rejoined():
            if member.group_instance_id is None:
                self.drop_member(group, member.member_id)
        if group.members and not group.elect_joined_leader():
            # Only silent static members are left. Wait until one comes or their sessions end.
            self._await_joins(group, now_ms)
            return
        group.initial_delay_remaining_ms = None
        group.next_generation(now_ms)
        self._tell("group has a new generation", group)
        if not group.members:
            assert undo is not None, "a group loses its last member only in steps that can be undone"
            self._store_empty(group, undo)
            return
        for member in group.members.values():
            if member.awaiting_join is not None:
                self._outbox.reply(member.awaiting_join, responses.joined(group, member))
                group.await_join(member, None)
            member.is_new = False
            self.keep_session(group, member, now_ms)
            group.pending_sync_members[member.member_id] = None
        self._outbox.set_timer(sync_timer(group.group_id), now_ms + group.rebalance_timeout_ms)

    def _store_empty(self, group: ClassicGroup, undo: Undo) -> None:
        record = (group_metadata_key(group.group_id), group_metadata_value(group.to_metadata({})))
        outbox = self._outbox
        undo.storing = True
        taken_back = False

        def take_back() -> None:
            nonlocal taken_back
            taken_back = True
            group.restore(undo.snapshot)

        def on_appended(now_ms: int) -> None:
            if undo.answer is not None:
                outbox.reply(*undo.answer)

        def on_failed(error: ErrorCode, now_ms: int) -> None:
            if undo.answer is not None:
                outbox.reply(undo.answer[0], responses.leave_error(coordinator_error(error)))
            if taken_back and undo.retry_timer is not None:
                outbox.set_timer(undo.retry_timer, now_ms + self.settings.append_retry_ms)

        outbox.append([record], undo=take_back, on_appended=on_appended, on_failed=on_failed)

    # ------------------------------------------------------------ the sync phase

    def store_assignment(self, group: ClassicGroup, assignments: Mapping[str, bytes], now_ms: int) -> None:
        """The leader's SyncGroup: write the generation, and only then tell the members."""
        if group.storing_generation == group.generation:
            return  # the leader asked twice; one assignment per generation
        group.storing_generation = group.generation
        complete = {member_id: assignments.get(member_id, EMPTY_ASSIGNMENT) for member_id in group.members}
        generation = group.generation
        value = group.to_metadata(complete)
        record = (group_metadata_key(group.group_id), group_metadata_value(value))

        def still_waiting() -> bool:
            return group.is_in(GroupState.COMPLETING_REBALANCE) and group.generation == generation

        def on_appended(now_ms: int) -> None:
            if not still_waiting():
                return
            group.transition_to(GroupState.STABLE, now_ms)
            self.cause = "the assignment is stored"
            self._tell("group is stable", group)
            for member in group.members.values():
                member.assignment = complete.get(member.member_id, EMPTY_ASSIGNMENT)
                if member.awaiting_sync is not None:
                    self._outbox.reply(member.awaiting_sync, responses.synced(group, member))
                    member.awaiting_sync = None
                    self.keep_session(group, member, now_ms)

        def on_failed(error: ErrorCode, now_ms: int) -> None:
            group.storing_generation = None
            if still_waiting():
                self.cause = f"the assignment could not be stored: {error.name}"
                self.fail_syncs(group, coordinator_error(error), now_ms)
                self.prepare_rebalance(group, now_ms)

        self._outbox.append([record], on_appended=on_appended, on_failed=on_failed)

    def fail_syncs(self, group: ClassicGroup, error: ErrorCode, now_ms: int) -> None:
        """This generation will have no assignment: tell everyone who waits for one."""
        for member in group.members.values():
            member.assignment = EMPTY_ASSIGNMENT
            if member.awaiting_sync is not None:
                self._outbox.reply(member.awaiting_sync, responses.sync_error(error))
                member.awaiting_sync = None
                self.keep_session(group, member, now_ms)

    def member_synced(self, group: ClassicGroup, member_id: str) -> None:
        group.pending_sync_members.pop(member_id, None)
        if not group.pending_sync_members:
            self._outbox.cancel_timer(sync_timer(group.group_id))

    def sync_timer_fired(self, group: ClassicGroup, now_ms: int) -> None:
        waiting = group.is_in(GroupState.COMPLETING_REBALANCE, GroupState.STABLE)
        if not waiting or not group.pending_sync_members:
            return
        undo = Undo(group.snapshot(), sync_timer(group.group_id))
        self.cause = f"{len(group.pending_sync_members)} members did not sync in time"
        for member_id in list(group.pending_sync_members):
            self.drop_member(group, member_id)
        self.prepare_rebalance(group, now_ms, undo)

    # ------------------------------------------------------------ sessions

    def keep_session(self, group: ClassicGroup, member: Member, now_ms: int) -> None:
        self._outbox.set_timer(
            session_timer(group.group_id, member.member_id), now_ms + member.session_timeout_ms
        )

    def session_timer_fired(self, group: ClassicGroup, member_id: str, now_ms: int) -> None:
        member = group.members.get(member_id)
        if member is None and member_id not in group.pending_join_members:
            return
        if member is not None and member.heartbeat_satisfied:
            self.keep_session(group, member, now_ms)
            return
        undo = Undo(group.snapshot(), session_timer(group.group_id, member_id))
        self.cause = f"member {member_id} was silent too long"
        if member is None:
            group.remove(member_id)
        else:
            self.drop_member(group, member_id)
        if group.is_in(GroupState.PREPARING_REBALANCE):
            if group.all_members_joined:
                self.complete_join(group, now_ms, undo)
        elif member is not None:
            self.rebalance_or_complete(group, now_ms, undo)
