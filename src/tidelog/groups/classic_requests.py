"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup: who may do what in which state, and what they are told.

Kafka's rules, with two answers it leaves out: a parked request that is overtaken by another of the same
member is answered with REBALANCE_IN_PROGRESS, and a member removed while it waits for its assignment with
UNKNOWN_MEMBER_ID.
"""

from dataclasses import replace

from tidelog.groups import responses
from tidelog.groups.classic_draft import ClassicDraft, ClassicGroups
from tidelog.groups.classic_group import ClassicGroup, Member
from tidelog.groups.commands import NO_MEMBER_ID, Heartbeat, JoinGroup, LeaveGroup, LeavingMember, SyncGroup
from tidelog.groups.membership import Rebalances, session_timer
from tidelog.groups.states import GroupState
from tidelog.model.errors import ErrorCode
from tidelog.model.outbox import Outbox
from tidelog.model.step_effects import coordinator_error

NO_REASON = "no reason given"

_PREPARING = GroupState.PREPARING_REBALANCE
_COMPLETING = GroupState.COMPLETING_REBALANCE


class ClassicRequests:
    """Answers members. Groups are created by a first JoinGroup without a member id."""

    __slots__ = ("_groups", "_outbox", "_rebalances")

    def __init__(self, groups: ClassicGroups, outbox: Outbox, rebalances: Rebalances) -> None:
        self._groups = groups
        self._outbox = outbox
        self._rebalances = rebalances

    # ------------------------------------------------------------ JoinGroup

    def join(self, command: JoinGroup, now_ms: int) -> None:
        group = self._groups.get(command.group_id)
        if group is None:
            if command.member_id != NO_MEMBER_ID:
                self._refuse_join(command, ErrorCode.UNKNOWN_MEMBER_ID, command.member_id)
                return
            group = self._groups[command.group_id] = ClassicGroup(command.group_id, now_ms)
        if not self._has_room(group, command.member_id):
            draft = _joining(group, command)
            if command.member_id in group.members:
                self._rebalances.drop_member(draft, command.member_id)
            else:
                draft.group.remove(command.member_id)
            self._groups.commit(draft, self._outbox)
            self._refuse_join(command, ErrorCode.GROUP_MAX_SIZE_REACHED, NO_MEMBER_ID)
        elif group.is_in(GroupState.DEAD):
            self._refuse_join(command, ErrorCode.COORDINATOR_NOT_AVAILABLE, command.member_id)
        elif not group.supports(command.protocol_type, (name for name, _ in command.protocols)):
            self._refuse_join(command, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, command.member_id)
        elif command.member_id == NO_MEMBER_ID:
            self._join_new(group, command, now_ms)
        else:
            self._join_known(group, command, now_ms)

    def _refuse_join(self, command: JoinGroup, error: ErrorCode, member_id: str) -> None:
        self._outbox.reply(command.token, responses.join_error(error, member_id))

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        limit = self._rebalances.settings.group_max_size
        member = group.members.get(member_id)
        if group.is_in(_PREPARING):
            # Count those that wait, not the members: after a smaller limit the last to come back must go.
            return (
                member is not None and member.awaiting_join is not None
            ) or group.awaiting_join_count < limit
        if group.is_in(_COMPLETING, GroupState.STABLE):
            return member is not None or len(group.members) < limit
        return True

    def _join_new(self, group: ClassicGroup, command: JoinGroup, now_ms: int) -> None:
        instance_id = command.group_instance_id
        member_id = command.new_member_id
        if instance_id is not None and instance_id in group.static_members:
            self._join_returned_static(group, command, instance_id, member_id, now_ms)
        elif instance_id is None and command.requires_known_member_id:
            draft = _joining(group, command)
            draft.group.expect(member_id, command.session_timeout_ms)
            self._groups.commit(draft, self._outbox)
            self._outbox.set_timer(
                session_timer(group.group_id, member_id), now_ms + command.session_timeout_ms
            )
            self._refuse_join(command, ErrorCode.MEMBER_ID_REQUIRED, member_id)
        else:
            self._add(group, command, member_id, now_ms)

    def _add(self, group: ClassicGroup, command: JoinGroup, member_id: str, now_ms: int) -> None:
        draft = _joining(group, command)
        self._rebalances.add_member(draft, command, member_id, now_ms)
        self._groups.commit(draft, self._outbox)

    def _join_known(self, group: ClassicGroup, command: JoinGroup, now_ms: int) -> None:
        member_id = command.member_id
        if member_id in group.pending_join_members and command.group_instance_id is None:
            self._add(group, command, member_id, now_ms)
            return
        error = group.member_fault(member_id, command.group_instance_id)
        if error is ErrorCode.NONE and group.is_in(GroupState.EMPTY):
            error = ErrorCode.UNKNOWN_MEMBER_ID
        if error is not ErrorCode.NONE:
            self._refuse_join(command, error, member_id)
            return
        member = group.members[member_id]
        unchanged = member.protocols == command.protocols
        leads = group.leader_id == member_id
        # Unchanged metadata means that the client lost our answer; a stable group's leader asks for a
        # rebalance.
        if unchanged and (group.is_in(_COMPLETING) or (group.is_in(GroupState.STABLE) and not leads)):
            self._outbox.reply(command.token, responses.joined(group, member))
        else:
            draft = _joining(group, command)
            self._rebalances.update_member(draft, member, command, now_ms)
            self._groups.commit(draft, self._outbox)

    def _join_returned_static(
        self, group: ClassicGroup, command: JoinGroup, instance_id: str, new_member_id: str, now_ms: int
    ) -> None:
        """A static member came back without its id: it takes its place under a new one (KIP-345)."""
        rebalances, draft = self._rebalances, _joining(group, command)
        old_member_id = group.static_members[instance_id]
        rebalances.refuse_parked(group.members[old_member_id], ErrorCode.FENCED_INSTANCE_ID, old_member_id)
        draft.group.replace_static(instance_id, old_member_id, new_member_id)
        self._outbox.cancel_timer(session_timer(group.group_id, old_member_id))
        rebalances.park_join(draft, draft.group.members[new_member_id], command)
        rebalances.keep_session(group, draft.group.members[new_member_id], now_ms)
        if group.is_in(GroupState.STABLE) and draft.group.select_protocol() == group.protocol_name:
            self._store_returned_static(draft, new_member_id, command, group.leader_id)
        else:
            rebalances.rebalance_or_complete(draft, now_ms)
            self._groups.commit(draft, self._outbox)

    def _store_returned_static(
        self, draft: ClassicDraft, member_id: str, command: JoinGroup, old_leader_id: str | None
    ) -> None:
        """Nothing changes but the member's id: store it, and spare the group a rebalance."""
        draft.store({other.member_id: other.assignment for other in draft.group.members.values()})

        def waiting() -> tuple[ClassicGroup, Member] | None:
            group = self._groups.get(command.group_id)
            member = None if group is None else group.members.get(member_id)
            if group is None or member is None or member.awaiting_join != command.token:
                return None
            return group, member

        def wait_no_more(group: ClassicGroup, member: Member) -> None:
            answered = ClassicDraft(group, draft.cause)
            answered.group.put(replace(member, awaiting_join=None))
            self._groups.commit(answered, self._outbox)

        def on_appended(now_ms: int) -> None:
            found = waiting()
            if found is None or not found[0].is_in(GroupState.STABLE):
                return  # a rebalance began meanwhile, and will answer
            group, member = found
            if command.supports_skipping_assignment:
                leads = group.leader_id == member_id
                response = responses.joined(group, member, skip_assignment=leads)
            else:
                # Before v9 a leader would assign anew; told of the old leader id it behaves as a follower.
                response = {**responses.joined(group, member), "leader": old_leader_id or "", "members": ()}
            self._outbox.reply(command.token, response)
            wait_no_more(group, member)

        def on_failed(error: ErrorCode, now_ms: int, is_taken_back: bool) -> None:
            found = waiting()
            if found is not None:
                wait_no_more(*found)
            if found is not None or is_taken_back:
                self._refuse_join(command, coordinator_error(error), NO_MEMBER_ID)

        self._groups.commit(draft, self._outbox, on_appended=on_appended, on_failed=on_failed)

    # ------------------------------------------------------------ SyncGroup

    def sync(self, command: SyncGroup, now_ms: int) -> None:
        group = self._groups.get(command.group_id)
        error = self._sync_fault(group, command)
        if group is None or error is not ErrorCode.NONE:
            self._outbox.reply(command.token, responses.sync_error(error))
            return
        member = group.members[command.member_id]
        draft = ClassicDraft(group, f"{command.member_id} syncs")
        self._rebalances.member_synced(draft, member)
        if group.is_in(GroupState.STABLE):
            self._outbox.reply(command.token, responses.synced(group, member))
        else:
            if member.awaiting_sync is not None:
                overtaken = responses.sync_error(ErrorCode.REBALANCE_IN_PROGRESS)
                self._outbox.reply(member.awaiting_sync, overtaken)
            draft.group.put(replace(member, awaiting_sync=command.token, must_sync=False))
            if group.leader_id == command.member_id:
                self._rebalances.store_assignment(draft, dict(command.assignments))
        self._groups.commit(draft, self._outbox)

    def _sync_fault(self, group: ClassicGroup | None, command: SyncGroup) -> ErrorCode:
        if group is None or group.is_in(GroupState.EMPTY):
            return ErrorCode.UNKNOWN_MEMBER_ID
        if group.is_in(GroupState.DEAD):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = group.member_fault(command.member_id, command.group_instance_id)
        if error is not ErrorCode.NONE:
            return error
        if command.generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if _differs(command.protocol_type, group.protocol_type) or _differs(
            command.protocol_name, group.protocol_name
        ):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.REBALANCE_IN_PROGRESS if group.is_in(_PREPARING) else ErrorCode.NONE

    # ------------------------------------------------------------ Heartbeat

    def heartbeat(self, command: Heartbeat, now_ms: int) -> None:
        group = self._groups.get(command.group_id)
        error = ErrorCode.UNKNOWN_MEMBER_ID
        if group is not None:
            error = self._heartbeat_fault(group, command)
            if error is ErrorCode.NONE:
                self._rebalances.keep_session(group, group.members[command.member_id], now_ms)
                if group.is_in(_PREPARING):
                    error = ErrorCode.REBALANCE_IN_PROGRESS
        self._outbox.reply(command.token, responses.heartbeat(error))

    def _heartbeat_fault(self, group: ClassicGroup, command: Heartbeat) -> ErrorCode:
        if group.is_in(GroupState.DEAD):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = group.member_fault(command.member_id, command.group_instance_id)
        if error is ErrorCode.NONE and command.generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    # ------------------------------------------------------------ LeaveGroup

    def leave(self, command: LeaveGroup, now_ms: int) -> None:
        group = self._groups.get(command.group_id)
        if group is not None and group.is_in(GroupState.DEAD):
            self._outbox.reply(command.token, responses.leave_error(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        reasons = {leaving.reason or NO_REASON: None for leaving in command.members}
        cause = f"{len(command.members)} members leave: {', '.join(reasons)}"
        draft = ClassicDraft(group or ClassicGroup(command.group_id, now_ms), cause)
        results, somebody_left = [], False
        for leaving in command.members:
            error = self._leave_one(draft, leaving)
            somebody_left |= error is ErrorCode.NONE
            results.append(responses.left_member(leaving.member_id, leaving.group_instance_id, error))
        response = responses.leave(results)
        if somebody_left and not draft.group.is_in(GroupState.EMPTY):
            self._rebalances.rebalance_or_complete(draft, now_ms)

        def on_appended(now_ms: int) -> None:
            self._outbox.reply(command.token, response)

        def on_failed(error: ErrorCode, now_ms: int, is_taken_back: bool) -> None:
            self._outbox.reply(command.token, responses.leave_error(coordinator_error(error)))

        if somebody_left:
            self._groups.commit(draft, self._outbox, on_appended=on_appended, on_failed=on_failed)
        if not draft.records:
            self._outbox.reply(command.token, response)

    def _leave_one(self, draft: ClassicDraft, leaving: LeavingMember) -> ErrorCode:
        group, member_id = draft.group, leaving.member_id
        if member_id == NO_MEMBER_ID:
            # An administrator removes a static member by its instance id alone.
            static_id = group.static_members.get(leaving.group_instance_id or "")
            if leaving.group_instance_id is None or static_id is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member_id = static_id
        elif member_id in group.pending_join_members:
            self._rebalances.forget_pending(draft, member_id)
            return ErrorCode.NONE
        else:
            error = group.member_fault(member_id, leaving.group_instance_id)
            if error is not ErrorCode.NONE:
                return error
        self._rebalances.drop_member(draft, member_id)
        return ErrorCode.NONE


def _joining(group: ClassicGroup, command: JoinGroup) -> ClassicDraft:
    who = command.member_id or command.group_instance_id or command.client_id
    return ClassicDraft(group, f"{who} joins: {command.reason or NO_REASON}")


def _differs(asked: str | None, agreed: str | None) -> bool:
    return asked is not None and agreed is not None and asked != agreed
