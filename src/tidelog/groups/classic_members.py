"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup to a consumer group: its classic members (KIP-848).

To such a client the group looks like a classic one whose generation is its own member epoch. Nobody waits for
the others: JoinGroup reconciles the member and answers at once, SyncGroup hands out what it may read, and a
heartbeat says REBALANCE_IN_PROGRESS whenever the member has something to give up or to take. No member leads,
for the coordinator assigns.

A classic member with something to do has its rebalance timeout to rejoin and again to sync; both timers
remove it. An empty consumer group becomes a classic one with the first JoinGroup.
"""

from collections.abc import Callable

from tidelog.groups import responses
from tidelog.groups.classic_group import CONSUMER_PROTOCOL_TYPE
from tidelog.groups.commands import NO_MEMBER_ID, Heartbeat, JoinGroup, LeaveGroup, LeavingMember, SyncGroup
from tidelog.groups.consumer_draft import Draft
from tidelog.groups.consumer_group import ConsumerGroup
from tidelog.groups.consumer_protocol import read_subscription
from tidelog.groups.consumer_requests import JOIN, SYNC, ConsumerRequests
from tidelog.groups.consumer_schemas import ClassicMetadata, MemberMetadata, MemberState
from tidelog.groups.protocol_migration import assignment_bytes, partitions_by_id
from tidelog.groups.responses import Response
from tidelog.groups.settings import GroupSettings
from tidelog.model.errors import ErrorCode
from tidelog.model.outbox import Outbox
from tidelog.model.step_effects import coordinator_error
from tidelog.records.stored_fields import UnreadableRecord

JoinClassic = Callable[[JoinGroup, int], None]


class ClassicMembers:
    """Answers classic requests to consumer groups."""

    __slots__ = ("_consumers", "_join_classic", "_outbox")

    def __init__(self, consumers: ConsumerRequests, outbox: Outbox, join_classic: JoinClassic) -> None:
        self._consumers = consumers
        self._outbox = outbox
        self._join_classic = join_classic

    @property
    def _settings(self) -> GroupSettings:
        return self._consumers.settings

    # ------------------------------------------------------------ JoinGroup

    def join(self, group: ConsumerGroup, command: JoinGroup, now_ms: int) -> None:
        error = self._join_fault(group, command)
        if error is not ErrorCode.NONE:
            self._refuse_join(command, error)
            return
        if not group.members:
            self._replace_empty(group, command)
            return
        member_id = command.member_id
        if member_id == NO_MEMBER_ID:
            member_id = command.new_member_id
            if command.group_instance_id is None and command.requires_known_member_id:
                refused = responses.join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id)
                self._outbox.reply(command.token, refused)
                return
        draft = Draft(group)
        error = self._admit(draft, command, member_id)
        if error is not ErrorCode.NONE:
            self._refuse_join(command, error)
            return
        self._reconcile(draft, command, member_id, now_ms)

    def _refuse_join(self, command: JoinGroup, error: ErrorCode) -> None:
        self._outbox.reply(command.token, responses.join_error(error, command.member_id))

    def _join_fault(self, group: ConsumerGroup, command: JoinGroup) -> ErrorCode:
        settings = self._settings
        if not group.members:
            return ErrorCode.NONE
        if len(group.members) >= settings.consumer_max_size and command.member_id not in group.members:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        names = [name for name, _ in command.protocols]
        if command.protocol_type != CONSUMER_PROTOCOL_TYPE or not group.supports_classic(names):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        try:
            for _, metadata in command.protocols:
                read_subscription(metadata)
        except UnreadableRecord:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE

    def _replace_empty(self, group: ConsumerGroup, command: JoinGroup) -> None:
        """Nobody is left who speaks the consumer protocol: bury the group, and join a classic one."""
        draft = Draft(group)
        draft.bury()
        refused = False

        def taken_back() -> None:
            nonlocal refused
            refused = True

        def on_failed(error: ErrorCode, now_ms: int) -> None:
            if refused:
                self._refuse_join(command, coordinator_error(error))

        def on_written(now_ms: int) -> None:
            self._join_classic(command, now_ms)

        self._outbox.append(draft.records, undo=taken_back, on_failed=on_failed, on_written=on_written)

    def _admit(self, draft: Draft, command: JoinGroup, member_id: str) -> ErrorCode:
        instance_id = command.group_instance_id
        if instance_id is None:
            member = draft.group.members.get(member_id)
            is_static = member is not None and member.instance_id is not None
            return ErrorCode.UNKNOWN_MEMBER_ID if is_static else ErrorCode.NONE
        existing_id = draft.group.static_members.get(instance_id)
        if command.member_id != NO_MEMBER_ID:
            return _static_fault(existing_id, member_id)
        if existing_id is not None:
            draft.replace_member(existing_id, member_id)
            self._consumers.cancel_timers(draft.group.group_id, existing_id)
        return ErrorCode.NONE

    def _reconcile(self, draft: Draft, command: JoinGroup, member_id: str, now_ms: int) -> None:
        group_id, consumers = command.group_id, self._consumers
        protocol_name, metadata = command.protocols[0]
        subscription = read_subscription(metadata)
        updated = MemberMetadata(
            command.group_instance_id,
            subscription.rack_id,
            command.client_id,
            command.client_host,
            tuple(sorted(set(subscription.topics))),
            None,
            command.rebalance_timeout_ms,
            None,
            ClassicMetadata(command.session_timeout_ms, command.protocols),
        )
        resubscribed = consumers.update_member(draft, member_id, updated, now_ms)
        owned = partitions_by_id(subscription.owned, consumers.image)
        draft.reconcile(member_id, owned, resubscribed=resubscribed)
        consumers.cancel_timers(group_id, member_id)
        consumers.keep_session(group_id, member_id, updated, now_ms)
        self._outbox.set_timer((SYNC, group_id, member_id), now_ms + command.rebalance_timeout_ms)
        answer: Response = {
            **responses.join_error(ErrorCode.NONE, member_id),
            "generation_id": draft.group.current_of(member_id).epoch,
            "protocol_type": CONSUMER_PROTOCOL_TYPE,
            "protocol_name": protocol_name,
        }

        def failed(error: ErrorCode) -> Response:
            return responses.join_error(error, command.member_id)

        if draft.records:
            consumers.store(draft, answer=(command.token, answer), failed=failed, may_downgrade=True)
        else:
            self._outbox.read_reply(command.token, answer, failed(ErrorCode.COORDINATOR_NOT_AVAILABLE))

    # ------------------------------------------------------------ SyncGroup and Heartbeat

    def sync(self, group: ConsumerGroup, command: SyncGroup, now_ms: int) -> None:
        member_id = command.member_id
        error = self._member_fault(group, member_id, command.group_instance_id, command.generation)
        member = group.members.get(member_id)
        if error is ErrorCode.NONE and member is not None and member.classic is not None:
            protocol_name, subscription = member.classic.protocols[0]
            known_type = command.protocol_type in (None, CONSUMER_PROTOCOL_TYPE)
            if not known_type or command.protocol_name not in (None, protocol_name):
                error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            elif self._must_rejoin_to_sync(group, member_id):
                self._tell_to_rejoin(group, member_id, now_ms)
                error = ErrorCode.REBALANCE_IN_PROGRESS
            else:
                self._outbox.cancel_timer((SYNC, group.group_id, member_id))
                self._consumers.keep_session(group.group_id, member_id, member, now_ms)
                assigned = group.current_of(member_id).assigned
                answer = {
                    "error_code": ErrorCode.NONE,
                    "protocol_type": CONSUMER_PROTOCOL_TYPE,
                    "protocol_name": protocol_name,
                    "assignment": assignment_bytes(assigned, subscription, self._consumers.image),
                }
                otherwise = responses.sync_error(ErrorCode.COORDINATOR_NOT_AVAILABLE)
                self._outbox.read_reply(command.token, answer, otherwise)
                return
        self._outbox.reply(command.token, responses.sync_error(error))

    def _must_rejoin_to_sync(self, group: ConsumerGroup, member_id: str) -> bool:
        current = group.current_of(member_id)
        return group.epoch > current.epoch and current.state is not MemberState.UNREVOKED_PARTITIONS

    def heartbeat(self, group: ConsumerGroup, command: Heartbeat, now_ms: int) -> None:
        member_id = command.member_id
        error = self._member_fault(group, member_id, command.group_instance_id, command.generation)
        if error is ErrorCode.NONE:
            self._consumers.keep_session(group.group_id, member_id, group.members[member_id], now_ms)
            current = group.current_of(member_id)
            unreleased = current.state is MemberState.UNRELEASED_PARTITIONS
            if (
                current.epoch < group.epoch
                or current.state is MemberState.UNREVOKED_PARTITIONS
                or (unreleased and not group.is_waiting_for_others(member_id))
            ):
                self._tell_to_rejoin(group, member_id, now_ms)
                error = ErrorCode.REBALANCE_IN_PROGRESS
        self._outbox.reply(command.token, responses.heartbeat(error))

    def _tell_to_rejoin(self, group: ConsumerGroup, member_id: str, now_ms: int) -> None:
        key = (group.group_id, member_id)
        if key not in self._consumers.rejoining:
            self._consumers.rejoining[key] = None
            timeout_ms = group.members[member_id].rebalance_timeout_ms
            self._outbox.set_timer((JOIN, *key), now_ms + timeout_ms)

    def _member_fault(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        if instance_id is not None:
            error = _static_fault(group.static_members.get(instance_id), member_id)
            if error is not ErrorCode.NONE:
                return error
        member = group.members.get(member_id)
        if member is None or member.classic is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if generation != group.current_of(member_id).epoch:
            return ErrorCode.ILLEGAL_GENERATION
        return ErrorCode.NONE

    # ------------------------------------------------------------ LeaveGroup

    def leave(self, group: ConsumerGroup, command: LeaveGroup, now_ms: int) -> None:
        """Members of both protocols can be taken out: administrators have no other request for it."""
        leaving: list[str] = []
        results: list[Response] = []
        for one in command.members:
            member_id, error = self._leaving_member(group, one)
            if error is ErrorCode.NONE and member_id not in leaving:
                leaving.append(member_id)
            results.append(responses.left_member(one.member_id, one.group_instance_id, error))
        answer = (command.token, responses.leave(results))
        if leaving:
            self._consumers.remove(group, leaving, now_ms, answer=answer, failed=responses.leave_error)
        else:
            self._outbox.reply(*answer)

    def _leaving_member(self, group: ConsumerGroup, leaving: LeavingMember) -> tuple[str, ErrorCode]:
        member_id = leaving.member_id
        if leaving.group_instance_id is not None:
            existing_id = group.static_members.get(leaving.group_instance_id)
            # An administrator removes a static member by its instance id alone.
            error = _static_fault(existing_id, member_id or existing_id or "")
            if error is not ErrorCode.NONE:
                return member_id, error
            member_id = existing_id or ""
        return member_id, ErrorCode.NONE if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID


def _static_fault(existing_id: str | None, member_id: str) -> ErrorCode:
    if existing_id is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if existing_id == member_id else ErrorCode.FENCED_INSTANCE_ID
