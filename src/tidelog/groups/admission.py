"""May a member join, or say more of itself than before? Asked of each JoinGroup and ConsumerGroupHeartbeat.

A request that makes the group keep nothing more always passes: members that only show that they are alive, or
join again with what they said before, never meet the bound of `member_memory`.
"""

from tidelog.groups.classic_group import ClassicGroup, Member, pending_bytes
from tidelog.groups.commands import NO_MEMBER_ID, ConsumerHeartbeat, JoinGroup, ShareHeartbeat
from tidelog.groups.consumer_group import JOINING_EPOCH, ConsumerGroup, metadata_bytes
from tidelog.groups.durable import DurableGroups
from tidelog.groups.member_memory import GROUP_BYTES, MEMBER_BYTES, MemberMemory, protocols_bytes, text_bytes
from tidelog.groups.share_group import share_member_bytes
from tidelog.groups.share_schemas import ShareMemberMetadata

FULL_MESSAGE = "The group, or all groups of this broker, keep as much of their members as is allowed."


class Admission:
    """Says how much more a request would have a machine's groups keep, and whether that may be."""

    __slots__ = ("_durable", "_groups", "_memory")

    def __init__(
        self, groups: dict[str, ClassicGroup], durable: DurableGroups, memory: MemberMemory | None
    ) -> None:
        self._groups = groups
        self._durable = durable
        self._memory = MemberMemory(self.held_bytes) if memory is None else memory

    def held_bytes(self) -> int:
        """What the groups keep of their members."""
        kinds = (self._groups, self._durable.consumer_groups, self._durable.share_groups)
        return sum(group.held_bytes for kind in kinds for group in kind.values())

    def admits(
        self, command: JoinGroup | ConsumerHeartbeat | ShareHeartbeat, bytes_max: int, now_ms: int
    ) -> bool:
        if isinstance(command, ShareHeartbeat):
            return self._admits_sharing(command, bytes_max, now_ms)
        group = self._durable.consumer_groups.get(command.group_id) or self._groups.get(command.group_id)
        if isinstance(command, JoinGroup):
            more_bytes = _joining_bytes(command) - _classic_bytes(group, command)
        elif command.member_epoch < JOINING_EPOCH or (
            command.subscribed_topic_names is None and command.subscribed_topic_regex is None
        ):
            return True
        else:
            more_bytes = _heartbeat_bytes(command) - _consumer_bytes(group, command.member_id)
        if group is None:
            more_bytes += GROUP_BYTES + text_bytes(command.group_id)
        return self._memory.admits(more_bytes, 0 if group is None else group.held_bytes, bytes_max, now_ms)

    def _admits_sharing(self, command: ShareHeartbeat, bytes_max: int, now_ms: int) -> bool:
        group = self._durable.share_groups.get(command.group_id)
        if command.member_epoch < JOINING_EPOCH or command.subscribed_topic_names is None:
            return True
        said = ShareMemberMetadata(
            command.rack_id, command.client_id, command.client_host, command.subscribed_topic_names
        )
        member = None if group is None else group.members.get(command.member_id)
        more_bytes = share_member_bytes(command.member_id, said)
        more_bytes -= share_member_bytes(command.member_id, member)
        if group is None:
            more_bytes += GROUP_BYTES + text_bytes(command.group_id)
        return self._memory.admits(more_bytes, 0 if group is None else group.held_bytes, bytes_max, now_ms)


def _joining_bytes(command: JoinGroup) -> int:
    is_new = command.member_id == NO_MEMBER_ID
    member_id = command.new_member_id if is_new else command.member_id
    if is_new and command.group_instance_id is None and command.requires_known_member_id:
        return pending_bytes(member_id)
    said = text_bytes(member_id, command.group_instance_id, command.client_id)
    return MEMBER_BYTES + said + protocols_bytes(command.protocols)


def _classic_bytes(group: ClassicGroup | ConsumerGroup | None, command: JoinGroup) -> int:
    """What is kept already of the member that joins; a static one may come without its id."""
    if group is None:
        return 0
    member_id = command.member_id
    if command.group_instance_id is not None:
        member_id = group.static_members.get(command.group_instance_id, member_id)
    member = group.members.get(member_id)
    return member.held_bytes if isinstance(member, Member) else metadata_bytes(member_id, member)


def _heartbeat_bytes(command: ConsumerHeartbeat) -> int:
    member_id = command.member_id or command.new_member_id
    said = text_bytes(member_id, command.instance_id, command.rack_id, command.client_id)
    subscribed = text_bytes(*(command.subscribed_topic_names or ()), command.subscribed_topic_regex)
    return MEMBER_BYTES + said + subscribed


def _consumer_bytes(group: ClassicGroup | ConsumerGroup | None, member_id: str) -> int:
    return metadata_bytes(member_id, group.members.get(member_id)) if isinstance(group, ConsumerGroup) else 0
