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
from dataclasses import replace

from tidelog.groups import responses
from tidelog.groups.classic_draft import ClassicDraft, ClassicGroups, TimerKey
from tidelog.groups.classic_group import ClassicGroup, Member
from tidelog.groups.commands import JoinGroup
from tidelog.groups.schemas import group_metadata_key, group_metadata_value
from tidelog.groups.settings import GroupSettings
from tidelog.groups.states import GroupState
from tidelog.model.errors import ErrorCode
from tidelog.model.outbox import Outbox
from tidelog.model.step_effects import coordinator_error

EMPTY_ASSIGNMENT = b""


def session_timer(group_id: str, member_id: str) -> TimerKey:
    return ("session", group_id, member_id)


def join_timer(group_id: str) -> TimerKey:
    return ("join", group_id, "")


def sync_timer(group_id: str) -> TimerKey:
    return ("sync", group_id, "")


class Rebalances:
    """Moves one group at a time from state to state; the caller gives it the group and the time."""

    __slots__ = ("_groups", "_outbox", "settings")

    def __init__(self, groups: ClassicGroups, outbox: Outbox, settings: GroupSettings) -> None:
        self._groups = groups
        self._outbox = outbox
        self.settings = settings

    def _tell(self, kind: str, draft: ClassicDraft) -> None:
        group = draft.group
        fields = {"group": group.group_id, "generation": group.generation, "members": len(group.members)}
        self._outbox.event(kind, fields, draft.cause)

    def _commit_timed(self, draft: ClassicDraft, timer: TimerKey) -> None:
        """End a step that a timer began; if it cannot be stored the timer fires again soon."""

        def on_failed(error: ErrorCode, now_ms: int, is_taken_back: bool) -> None:
            if is_taken_back:
                self._outbox.set_timer(timer, now_ms + self.settings.append_retry_ms)

        self._groups.commit(draft, self._outbox, on_failed=on_failed)

    # ------------------------------------------------------------ members come

    def add_member(self, draft: ClassicDraft, command: JoinGroup, member_id: str, now_ms: int) -> None:
        group = draft.group
        if group.is_in(GroupState.PREPARING_REBALANCE) and group.previous_state is GroupState.EMPTY:
            group.new_member_added = True
        member = Member(
            member_id,
            command.group_instance_id,
            command.client_id,
            command.client_host,
            command.rebalance_timeout_ms,
            command.session_timeout_ms,
            command.protocols,
            awaiting_join=command.token,
            is_new=True,
        )
        group.add(member, command.protocol_type)
        # A new member cannot heartbeat while its JoinGroup is parked, and its connection may be gone
        # without our knowing: it gets a long but bounded time.
        self._outbox.set_timer(
            session_timer(group.group_id, member_id), now_ms + self.settings.new_member_join_timeout_ms
        )
        self.rebalance_or_complete(draft, now_ms)

    def update_member(self, draft: ClassicDraft, member: Member, command: JoinGroup, now_ms: int) -> None:
        self.park_join(draft, member, command)
        self.rebalance_or_complete(draft, now_ms)

    def park_join(self, draft: ClassicDraft, member: Member, command: JoinGroup) -> None:
        if member.awaiting_join is not None:
            # The client asked again on a new connection; the old request will not be read, but must be
            # answered.
            self._outbox.reply(
                member.awaiting_join, responses.join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
            )
        draft.group.put(
            replace(
                member,
                protocols=command.protocols,
                rebalance_timeout_ms=command.rebalance_timeout_ms,
                session_timeout_ms=command.session_timeout_ms,
                awaiting_join=command.token,
            )
        )

    # ------------------------------------------------------------ members go

    def refuse_parked(self, member: Member, error: ErrorCode, member_id: str) -> None:
        """Answer whatever the member waits for."""
        if member.awaiting_join is not None:
            self._outbox.reply(member.awaiting_join, responses.join_error(error, member_id))
        if member.awaiting_sync is not None:
            self._outbox.reply(member.awaiting_sync, responses.sync_error(error))

    def drop_member(self, draft: ClassicDraft, member_id: str) -> None:
        """Forget a member. UNKNOWN_MEMBER_ID makes its client, if it is still there, join anew."""
        self.refuse_parked(draft.group.members[member_id], ErrorCode.UNKNOWN_MEMBER_ID, "")
        self.forget_pending(draft, member_id)

    def forget_pending(self, draft: ClassicDraft, member_id: str) -> None:
        """Take a handed-out member id back."""
        draft.group.remove(member_id)
        self._outbox.cancel_timer(session_timer(draft.group.group_id, member_id))

    def close(self, group: ClassicGroup, now_ms: int) -> None:
        """Another node coordinates the group: whoever waits here is told to ask there."""
        draft = ClassicDraft(group, "the coordinator moved")
        for member in group.members.values():
            self.refuse_parked(member, ErrorCode.NOT_COORDINATOR, member.member_id)
            draft.group.put(replace(member, awaiting_join=None, awaiting_sync=None))
        if not group.is_in(GroupState.DEAD):
            draft.group.transition_to(GroupState.DEAD, now_ms)
        self._groups[group.group_id] = draft.group

    # ------------------------------------------------------------ the join phase

    def rebalance(self, group: ClassicGroup, cause: str, now_ms: int) -> None:
        """A step of its own: begin to rebalance, whoever is there."""
        draft = ClassicDraft(group, cause)
        self.prepare_rebalance(draft, now_ms)
        self._groups.commit(draft, self._outbox)

    def rebalance_or_complete(self, draft: ClassicDraft, now_ms: int) -> None:
        group = draft.group
        if group.can_rebalance:
            self.prepare_rebalance(draft, now_ms)
        elif (
            group.is_in(GroupState.PREPARING_REBALANCE)
            and group.previous_state is not GroupState.EMPTY
            and group.all_members_joined
        ):
            self.complete_join(draft, now_ms)

    def prepare_rebalance(self, draft: ClassicDraft, now_ms: int) -> None:
        group = draft.group
        if group.is_in(GroupState.COMPLETING_REBALANCE):
            self.fail_syncs(draft, ErrorCode.REBALANCE_IN_PROGRESS, now_ms)
        for member in [each for each in group.members.values() if each.must_sync]:
            group.put(replace(member, must_sync=False))
        self._outbox.cancel_timer(sync_timer(group.group_id))
        initial = group.is_in(GroupState.EMPTY)
        self._tell("group rebalances", draft)
        group.transition_to(GroupState.PREPARING_REBALANCE, now_ms)
        if initial:
            delay_ms = self.settings.group_initial_rebalance_delay_ms
            group.initial_delay_remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            group.new_member_added = False
            self._outbox.set_timer(join_timer(group.group_id), now_ms + delay_ms)
        elif group.all_members_joined:
            self.complete_join(draft, now_ms)
        else:
            self._await_joins(group, now_ms)

    def _await_joins(self, group: ClassicGroup, now_ms: int) -> None:
        self._outbox.set_timer(join_timer(group.group_id), now_ms + group.rebalance_timeout_ms)

    def join_timer_fired(self, group: ClassicGroup, now_ms: int) -> None:
        if not group.is_in(GroupState.PREPARING_REBALANCE):
            return
        draft, timer = ClassicDraft(group, "the join phase is over"), join_timer(group.group_id)
        remaining_ms = group.initial_delay_remaining_ms
        if remaining_ms and group.new_member_added:
            draft.group.new_member_added = False
            delay_ms = min(self.settings.group_initial_rebalance_delay_ms, remaining_ms)
            draft.group.initial_delay_remaining_ms = remaining_ms - delay_ms
            self._outbox.set_timer(timer, now_ms + delay_ms)
        else:
            self.complete_join(draft, now_ms)
        self._commit_timed(draft, timer)

    def complete_join(self, draft: ClassicDraft, now_ms: int) -> None:
        """End the join phase: dynamic members that did not come are out, the others form the next
        generation. If nobody is left that is stored.
        """
        group = draft.group
        self._outbox.cancel_timer(join_timer(group.group_id))
        for member in group.not_yet_rejoined():
            if member.group_instance_id is None:
                self.drop_member(draft, member.member_id)
        if group.members and not group.elect_joined_leader():
            # Only silent static members are left. Wait until one comes or their sessions end.
            self._await_joins(group, now_ms)
            return
        group.initial_delay_remaining_ms = None
        group.next_generation(now_ms)
        self._tell("group has a new generation", draft)
        if not group.members:
            draft.store({})
            return
        for member in list(group.members.values()):
            if member.awaiting_join is not None:
                self._outbox.reply(member.awaiting_join, responses.joined(group, member))
            group.put(replace(member, awaiting_join=None, is_new=False, must_sync=True))
            self.keep_session(group, member, now_ms)
        self._outbox.set_timer(sync_timer(group.group_id), now_ms + group.rebalance_timeout_ms)

    # ------------------------------------------------------------ the sync phase

    def store_assignment(self, draft: ClassicDraft, assignments: Mapping[str, bytes]) -> None:
        """The leader's SyncGroup: write the generation, and only then tell the members.

        That the leader asked counts whatever becomes of the record: a refusal is a step of its own, which
        tells everybody who waits.
        """
        group = draft.group
        if group.storing is not None:
            return  # the leader asked twice; one assignment per generation
        complete = {member_id: assignments.get(member_id, EMPTY_ASSIGNMENT) for member_id in group.members}
        group.storing = complete
        record = (group_metadata_key(group.group_id), group_metadata_value(group.to_metadata(complete)))

        def still_waiting() -> ClassicGroup | None:
            now = self._groups.get(group.group_id)
            if now is None or now.storing is not complete:
                return None  # another generation, or another group of that name
            return now if now.is_in(GroupState.COMPLETING_REBALANCE) else None

        def on_appended(now_ms: int) -> None:
            waiting = still_waiting()
            if waiting is not None:
                self._assign(waiting, complete, now_ms)

        def on_failed(error: ErrorCode, now_ms: int) -> None:
            waiting = still_waiting()
            if waiting is not None:
                failed = ClassicDraft(waiting, f"the assignment could not be stored: {error.name}")
                failed.group.storing = None
                self.fail_syncs(failed, coordinator_error(error), now_ms)
                self.prepare_rebalance(failed, now_ms)
                self._groups.commit(failed, self._outbox)

        self._outbox.append([record], on_appended=on_appended, on_failed=on_failed)

    def _assign(self, group: ClassicGroup, assignments: Mapping[str, bytes], now_ms: int) -> None:
        """The generation is stored: its members may have their assignments."""
        draft = ClassicDraft(group, "the assignment is stored")
        draft.group.transition_to(GroupState.STABLE, now_ms)
        self._tell("group is stable", draft)
        for member in group.members.values():
            assigned = replace(
                member,
                assignment=assignments.get(member.member_id, EMPTY_ASSIGNMENT),
                awaiting_sync=None,
            )
            draft.group.put(assigned)
            if member.awaiting_sync is not None:
                self._outbox.reply(member.awaiting_sync, responses.synced(draft.group, assigned))
                self.keep_session(group, member, now_ms)
        self._groups.commit(draft, self._outbox)

    def fail_syncs(self, draft: ClassicDraft, error: ErrorCode, now_ms: int) -> None:
        """This generation will have no assignment: tell everyone who waits for one."""
        group = draft.group
        for member in list(group.members.values()):
            group.put(replace(member, assignment=EMPTY_ASSIGNMENT, awaiting_sync=None))
            if member.awaiting_sync is not None:
                self._outbox.reply(member.awaiting_sync, responses.sync_error(error))
                self.keep_session(group, member, now_ms)

    def member_synced(self, draft: ClassicDraft, member: Member) -> None:
        draft.group.put(replace(member, must_sync=False))
        if not draft.group.must_sync_count:
            self._outbox.cancel_timer(sync_timer(draft.group.group_id))

    def sync_timer_fired(self, group: ClassicGroup, now_ms: int) -> None:
        waiting = group.is_in(GroupState.COMPLETING_REBALANCE, GroupState.STABLE)
        if not waiting or not group.must_sync_count:
            return
        draft = ClassicDraft(group, f"{group.must_sync_count} members did not sync in time")
        for member in group.members.values():
            if member.must_sync:
                self.drop_member(draft, member.member_id)
        self.prepare_rebalance(draft, now_ms)
        self._commit_timed(draft, sync_timer(group.group_id))

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
        draft = ClassicDraft(group, f"member {member_id} was silent too long")
        if member is None:
            draft.group.remove(member_id)
        else:
            self.drop_member(draft, member_id)
        if group.is_in(GroupState.PREPARING_REBALANCE):
            if draft.group.all_members_joined:
                self.complete_join(draft, now_ms)
        elif member is not None:
            self.rebalance_or_complete(draft, now_ms)
        self._commit_timed(draft, session_timer(group.group_id, member_id))
