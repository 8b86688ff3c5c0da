"""The group coordinator of one partition of `__consumer_offsets`: a pure machine.

    effects = machine.handle(command, now_ms)         decide
    machine.wrote(token, base_offset, now_ms)         the append is in the log: apply its records
    machine.appended(token, now_ms)                   it is replicated: tell those who wait for that
    machine.append_refused(token, code, now_ms)       it is not in the log (or not replicated in time)

Each returns further effects. The verdict on an Append (wrote or append_refused) must come before the next
command; `appended` may come later. A refusal before `wrote` takes the step back as if it had never been;
after `wrote` it only changes the answer, for the record may still get through.

Loading is `apply` for every record in order, then `loaded`; `resign` ends it.
"""

from collections.abc import Sequence

from tidelog.groups import arguments, consumer_responses, responses, share_responses
from tidelog.groups.admission import FULL_MESSAGE, Admission
from tidelog.groups.classic_draft import ClassicGroups
from tidelog.groups.classic_group import CLASSIC_GROUP_TYPE, ClassicGroup
from tidelog.groups.classic_members import ClassicMembers
from tidelog.groups.classic_requests import ClassicRequests
from tidelog.groups.commands import (
    AlterShareOffsets,
    Command,
    CommitOffsets,
    ConsumerHeartbeat,
    DeleteGroup,
    DeleteOffsets,
    DeleteShareOffsets,
    ExpireOffsets,
    FetchOffsets,
    ForgetTopic,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    ShareHeartbeat,
    ShareStateAnswered,
    SyncGroup,
    TimerFired,
)
from tidelog.groups.consumer_group import CONSUMER_GROUP_TYPE
from tidelog.groups.consumer_requests import ConsumerRequests, is_consumer_timer
from tidelog.groups.consumer_schemas import NOTHING, Partitions
from tidelog.groups.durable import DurableGroups
from tidelog.groups.member_memory import MemberMemory
from tidelog.groups.membership import Rebalances
from tidelog.groups.offset_requests import OffsetCommit, OffsetRequests, commit_answer
from tidelog.groups.responses import Response
from tidelog.groups.settings import GroupSettings
from tidelog.groups.share_group import SHARE_GROUP_TYPE
from tidelog.groups.share_offset_requests import ShareOffsetRequests
from tidelog.groups.share_requests import SHARE_SESSION, ShareRequests
from tidelog.groups.share_states import ShareStates
from tidelog.groups.states import GroupState
from tidelog.groups.topic_regex import Expressions, ImmediateExpressions
from tidelog.model.effects import Effect
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.identifiers import NO_PRODUCER_ID
from tidelog.model.image import ClusterImage
from tidelog.model.outbox import Outbox


class GroupMachine:
    """All groups whose id hashes to one partition."""

    def __init__(
        self,
        partition: int,
        settings: GroupSettings,
        expressions: Expressions | None = None,
        memory: MemberMemory | None = None,
    ) -> None:
        """`memory` is what several machines of a broker share."""
        self.partition = partition
        self.durable = DurableGroups()
        self.groups = ClassicGroups(self.durable)
        self._live = False
        self._admission = Admission(self.groups, self.durable, memory)
        self._outbox = Outbox(partition)
        self._rebalances = Rebalances(self.groups, self._outbox, settings)
        self._members = ClassicRequests(self.groups, self._outbox, self._rebalances)
        self._offsets = OffsetRequests(self.groups, self.durable, self._outbox, self._rebalances)
        expressions = expressions or ImmediateExpressions()
        self._consumers = ConsumerRequests(
            self.groups, self.durable, self._outbox, self._rebalances, expressions
        )
        self._share_states = ShareStates(self.durable, self._outbox)
        self._shares = ShareRequests(
            self.groups, self.durable, self._outbox, self._rebalances, self._share_states
        )
        self._share_offsets = ShareOffsetRequests(self.groups, self.durable, self._outbox, self._share_states)
        self._classic_members = ClassicMembers(self._consumers, self._outbox, self._members.join)

    def __repr__(self) -> str:
        return f"<GroupMachine partition={self.partition} groups={len(self.groups)}>"

    def observe(self, image: ClusterImage) -> None:
        """The metadata that subscriptions are held against from here on."""
        self._consumers.image = self._share_states.image = image

    def reconfigure(self, settings: GroupSettings) -> None:
        self._rebalances.settings = settings

    # ------------------------------------------------------------ deciding

    def handle(self, command: Command, now_ms: int) -> list[Effect]:
        refusal = arguments.refusal(command, self._rebalances.settings)
        if refusal is not None:
            return [refusal]
        self._take(command, now_ms)
        return self._outbox.take()

    def _take(self, command: Command, now_ms: int) -> None:
        if self._takes_sharing(command, now_ms):
            return
        match command:
            case Heartbeat():
                self._classic_request(command, now_ms)
            case CommitOffsets():
                self._offsets.commit(command, now_ms)
            case FetchOffsets():
                self._offsets.fetch(command)
            case ConsumerHeartbeat():
                if self._admits(command, now_ms):
                    self._consumers.heartbeat(command, now_ms)
            case TimerFired():
                self._timer_fired(command, now_ms)
            case JoinGroup():
                if self._admits(command, now_ms):
                    self._classic_request(command, now_ms)
            case SyncGroup() | LeaveGroup():
                self._classic_request(command, now_ms)
            case DeleteOffsets():
                self._offsets.delete_offsets(command)
            case DeleteGroup():
                self._offsets.delete_group(command, now_ms)
            case ExpireOffsets():
                self._offsets.expire(now_ms)
            case ForgetTopic():
                self._offsets.forget_topic(command)
                self._share_offsets.forget_topic(command.topic)

    def _takes_sharing(self, command: Command, now_ms: int) -> bool:
        """Was this of share groups, or to one?"""
        match command:
            case ShareHeartbeat():
                if self._admits(command, now_ms):
                    self._shares.heartbeat(command, now_ms)
            case ShareStateAnswered():
                self._share_states.answered(command, now_ms)
            case AlterShareOffsets():
                self._share_offsets.alter(command)
            case DeleteShareOffsets():
                self._share_offsets.delete_offsets(command)
            case ExpireOffsets() | ForgetTopic() | TimerFired():
                return False
            case _:
                return self._refuses_share_group(command)
        return True

    def _refuses_share_group(self, command: "GroupCommand") -> bool:
        """A request of the other protocols to a share group, which knows only DeleteGroups of them."""
        group = self.durable.share_groups.get(command.group_id)
        if group is None:
            return False
        not_found = ErrorCode.GROUP_ID_NOT_FOUND
        message = f"Group {command.group_id} is not a consumer group."
        match command:
            case DeleteGroup():
                self._share_offsets.delete_group(command, group)
            case ConsumerHeartbeat():
                self._outbox.reply(command.token, consumer_responses.heartbeat_error(not_found, message))
            case JoinGroup():
                error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
                self._outbox.reply(command.token, responses.join_error(error, command.member_id))
            case CommitOffsets():
                self._outbox.reply(command.token, commit_answer(command, not_found))
            case DeleteOffsets():
                self._outbox.reply(command.token, {"error_code": not_found, "topics": ()})
            case _:
                return False
        return True

    def _admits(self, command: JoinGroup | ConsumerHeartbeat | ShareHeartbeat, now_ms: int) -> bool:
        """Whether there is room for what a member says of itself; if not it is told so."""
        if self._admission.admits(command, self._rebalances.settings.members_bytes_max, now_ms):
            return True
        full = ErrorCode.GROUP_MAX_SIZE_REACHED
        if isinstance(command, JoinGroup):
            refusal = responses.join_error(full, command.member_id)
        elif isinstance(command, ShareHeartbeat):
            refusal = share_responses.heartbeat_error(Refused(full, FULL_MESSAGE))
        else:
            refusal = consumer_responses.heartbeat_error(full, FULL_MESSAGE)
        self._outbox.reply(command.token, refusal)
        return False

    def _classic_request(self, command: JoinGroup | SyncGroup | Heartbeat | LeaveGroup, now_ms: int) -> None:
        """A request of the classic protocol, to a group of either type."""
        group = self.durable.consumer_groups.get(command.group_id)
        match command:
            case Heartbeat():
                if group is None:
                    self._members.heartbeat(command, now_ms)
                else:
                    self._classic_members.heartbeat(group, command, now_ms)
            case JoinGroup():
                if group is None:
                    self._members.join(command, now_ms)
                else:
                    self._classic_members.join(group, command, now_ms)
            case SyncGroup():
                if group is None:
                    self._members.sync(command, now_ms)
                else:
                    self._classic_members.sync(group, command, now_ms)
            case LeaveGroup():
                if group is None:
                    self._members.leave(command, now_ms)
                else:
                    self._classic_members.leave(group, command, now_ms)

    def _timer_fired(self, command: TimerFired, now_ms: int) -> None:
        assert isinstance(command.key, tuple)
        kind, group_id, member_id = command.key
        if kind == SHARE_SESSION:
            self._shares.timer_fired(group_id, member_id, now_ms)
            return
        if is_consumer_timer(kind):
            self._consumers.timer_fired(kind, group_id, member_id, now_ms)
            return
        group = self.groups.get(group_id)
        if group is None or group.is_in(GroupState.DEAD):
            return
        if kind == "session":
            self._rebalances.session_timer_fired(group, member_id, now_ms)
        elif kind == "join":
            self._rebalances.join_timer_fired(group, now_ms)
        else:
            assert kind == "sync"
            self._rebalances.sync_timer_fired(group, now_ms)

    # ------------------------------------------------------------ verdicts on appends

    def wrote(self, token: int, base_offset: int, now_ms: int) -> list[Effect]:
        """The records are in our log from `base_offset` on: they are the state now, and the step's
        effects happen.
        """
        pending = self._outbox.pending[token]
        pending.written = True
        if pending.contents is None:
            for index, (key, value) in enumerate(pending.records):
                self.apply(key, value, base_offset + index, pending.producer_id)
        else:
            self._apply_commit(pending.contents, base_offset, pending.producer_id)
        self._outbox.emit(pending.held)
        effects = self._outbox.take()
        if pending.on_written is not None:
            # A step of its own: if its records are refused, what has been written still counts.
            pending.on_written(now_ms)
            effects += self._outbox.take()
        return effects

    def appended(self, token: int, now_ms: int) -> list[Effect]:
        """The records survive us: answer those who were to wait for that."""
        return self._outbox.appended(token, now_ms)

    def append_refused(self, token: int, error: ErrorCode, now_ms: int) -> list[Effect]:
        """Not in the log: take the step back. Written but not replicated in time: tell those who wait."""
        return self._outbox.refused(token, error, now_ms)

    # ------------------------------------------------------------ state from records

    def apply(
        self, key: bytes, value: bytes | None, record_offset: int, producer_id: int = NO_PRODUCER_ID
    ) -> None:
        """Take one record of the log in; raises `schemas.UnreadableRecord` for bytes no Kafka of our time
        wrote.
        """
        group_id = self.durable.apply(key, value, record_offset, producer_id)
        if group_id is not None and self._live:
            self._applied_to(group_id)

    def _apply_commit(self, contents: Sequence[OffsetCommit], base_offset: int, producer_id: int) -> None:
        """Do what `apply` of each record of a group's commit would do, by what the commit wrote into them."""
        offsets = self.durable.offsets
        for record_offset, (key, value) in enumerate(contents, base_offset):
            offsets.apply(key, value, record_offset, producer_id)
        if self._live:
            self._applied_to(contents[0][0].group_id)

    def _applied_to(self, group_id: str) -> None:
        """Records of a group have been applied: it is what they say."""
        group = self.groups.get(group_id)
        if group_id in self.durable.consumer_groups:
            if group is not None:
                # It is a consumer group now; whoever waited for the classic one has been told.
                del self.groups[group_id]
        elif group is None:
            self._found(group_id)
        elif group.is_in(GroupState.DEAD):
            self.groups.adopt(group)

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """Apply a transaction's marker: its offsets count from here, or are forgotten."""
        for group_id in self.durable.offsets.end_transaction(producer_id, committed):
            known = group_id in self.groups or group_id in self.durable.consumer_groups
            if self._live and not known:
                self._found(group_id)

    def _found(self, group_id: str) -> None:
        """A group that the records know and we do not: with metadata as it was, else a simple one with
        offsets.
        """
        metadata = self.durable.groups.get(group_id)
        if metadata is not None:
            self.groups[group_id] = ClassicGroup.from_metadata(group_id, metadata)
        elif self.durable.offsets.has_any(group_id):
            self.groups[group_id] = ClassicGroup(group_id, 0)

    def loaded(self, now_ms: int) -> list[Effect]:
        """All records are applied: the groups live from here, and each member has a whole session to show
        itself.
        """
        self._live = True
        for group_id in [*self.durable.groups, *self.durable.offsets.known_groups()]:
            if group_id not in self.groups and group_id not in self.durable.consumer_groups:
                self._found(group_id)
        self._consumers.loaded(now_ms)
        self._shares.loaded(now_ms)
        limit = self._rebalances.settings.group_max_size
        for group in list(self.groups.values()):
            for member in group.members.values():
                self._rebalances.keep_session(group, member, now_ms)
            if len(group.members) > limit:
                cause = f"the loaded group has more than {limit} members"
                self._rebalances.rebalance(group, cause, now_ms)
        return self._outbox.take()

    def hold_reads(self) -> int:
        """What was loaded may still be lost: reads wait for `appended` of the token returned."""
        return self._outbox.hold_reads()

    def resign(self, now_ms: int) -> list[Effect]:
        """Leadership is gone: everyone who waits here must ask elsewhere. Nothing is written any more."""
        self._live = False
        effects = self._outbox.resign(now_ms)
        self._share_states.resign()
        for group in list(self.groups.values()):
            self._rebalances.close(group, now_ms)
        return effects + self._outbox.take()

    # ------------------------------------------------------------ looking

    def held_bytes(self) -> int:
        """What the groups keep of their members."""
        return self._admission.held_bytes()

    def list_groups(self, states: frozenset[str], types: frozenset[str]) -> list[Response]:
        """Groups in any of `states` and of any of `types`, both in lower case; an empty filter lets all
        through.
        """
        found: list[Response] = []
        if not types or CLASSIC_GROUP_TYPE in types:
            found += (responses.listed(group) for group in self.groups.values())
        if not types or CONSUMER_GROUP_TYPE in types:
            groups = self.durable.consumer_groups.values()
            found += (consumer_responses.listed(group) for group in groups)
        if not types or SHARE_GROUP_TYPE in types:
            found += (share_responses.listed(group) for group in self.durable.share_groups.values())
        return [group for group in found if not states or str(group["group_state"]).lower() in states]

    def describe_group(self, group_id: str, *, missing_is_error: bool) -> Response:
        """DescribeGroups; a group that does not exist is Dead, and since v6 also an error (KIP-1043)."""
        group = self.groups.get(group_id)
        if group is not None:
            return responses.described(group)
        if group_id in self.durable.consumer_groups and missing_is_error:
            message = f"Group {group_id} is not a classic group."
            return responses.described_missing(group_id, ErrorCode.GROUP_ID_NOT_FOUND, message)
        if missing_is_error:
            message = f"Group {group_id} not found."
            return responses.described_missing(group_id, ErrorCode.GROUP_ID_NOT_FOUND, message)
        return responses.described_missing(group_id, ErrorCode.NONE, None)

    def describe_consumer_group(self, group_id: str) -> Response:
        """ConsumerGroupDescribe; a classic group is as unknown here as one that does not exist."""
        group = self.durable.consumer_groups.get(group_id)
        if group is not None:
            default_assignor = self._rebalances.settings.consumer_assignors[0]
            names = self._consumers.image.topic_names_by_id
            return consumer_responses.described(group, default_assignor, names)
        message = f"Group {group_id} not found."
        if group_id in self.groups:
            message = f"Group {group_id} is not a consumer group."
        return consumer_responses.described_missing(group_id, ErrorCode.GROUP_ID_NOT_FOUND, message)

    def describe_share_group(self, group_id: str) -> Response:
        """ShareGroupDescribe; a group of another kind is as unknown here as one that does not exist."""
        group = self.durable.share_groups.get(group_id)
        if group is not None:
            return share_responses.described(group, self._consumers.image.topic_names_by_id)
        message = f"Share group {group_id} not found."
        if group_id in self.groups or group_id in self.durable.consumer_groups:
            message = f"Group {group_id} is not a share group."
        return consumer_responses.described_missing(group_id, ErrorCode.GROUP_ID_NOT_FOUND, message)

    def share_partitions(self, group_id: str) -> Partitions:
        """The partitions whose share coordinators can be asked for offsets (DescribeShareGroupOffsets)."""
        group = self.durable.share_groups.get(group_id)
        return NOTHING if group is None else group.states.assignable


GroupCommand = (
    JoinGroup
    | SyncGroup
    | Heartbeat
    | LeaveGroup
    | ConsumerHeartbeat
    | CommitOffsets
    | FetchOffsets
    | DeleteOffsets
    | DeleteGroup
)
