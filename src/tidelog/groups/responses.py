"""The answers of the group machine as field mappings, under the names of the newest protocol version."""

from collections.abc import Iterable, Mapping

from tidelog.groups.classic_group import CLASSIC_GROUP_TYPE, ClassicGroup, Member
from tidelog.groups.commands import NO_GENERATION
from tidelog.groups.states import GroupState
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import NO_EPOCH, NO_OFFSET

Response = Mapping[str, object]


def join_error(error: ErrorCode, member_id: str) -> Response:
    return {
        "error_code": error,
        "generation_id": NO_GENERATION,
        "protocol_type": None,
        "protocol_name": None,
        "leader": "",
        "skip_assignment": False,
        "member_id": member_id,
        "members": (),
    }


def joined(group: ClassicGroup, member: Member, *, skip_assignment: bool = False) -> Response:
    """The group as of its current generation; only the leader is told who the others are."""
    members: tuple[Response, ...] = ()
    if group.leader_id == member.member_id:
        members = tuple(
            {
                "member_id": other.member_id,
                "group_instance_id": other.group_instance_id,
                "metadata": other.metadata(group.protocol_name),
            }
            for other in group.members.values()
        )
    return {
        "error_code": ErrorCode.NONE,
        "generation_id": group.generation,
        "protocol_type": group.protocol_type,
        "protocol_name": group.protocol_name,
        "leader": group.leader_id or "",
        "skip_assignment": skip_assignment,
        "member_id": member.member_id,
        "members": members,
    }


def sync_error(error: ErrorCode) -> Response:
    return {"error_code": error, "protocol_type": None, "protocol_name": None, "assignment": b""}


def synced(group: ClassicGroup, member: Member) -> Response:
    return {
        "error_code": ErrorCode.NONE,
        "protocol_type": group.protocol_type,
        "protocol_name": group.protocol_name,
        "assignment": member.assignment,
    }


def heartbeat(error: ErrorCode) -> Response:
    return {"error_code": error}


def leave(members: Iterable[Response]) -> Response:
    return {"error_code": ErrorCode.NONE, "members": tuple(members)}


def leave_error(error: ErrorCode) -> Response:
    return {"error_code": error, "members": ()}


def left_member(member_id: str, group_instance_id: str | None, error: ErrorCode) -> Response:
    return {"member_id": member_id, "group_instance_id": group_instance_id, "error_code": error}


def committed_partition(partition: int, error: ErrorCode) -> Response:
    return {"partition_index": partition, "error_code": error}


def fetched_partition(
    partition: int, offset: int, leader_epoch: int, metadata: str, error: ErrorCode = ErrorCode.NONE
) -> Response:
    return {
        "partition_index": partition,
        "committed_offset": offset,
        "committed_leader_epoch": leader_epoch,
        "metadata": metadata,
        "error_code": error,
    }


def no_offset(partition: int, error: ErrorCode = ErrorCode.NONE) -> Response:
    return fetched_partition(partition, NO_OFFSET, NO_EPOCH, "", error)


def topics(by_topic: Mapping[str, list[Response]]) -> tuple[Response, ...]:
    return tuple({"name": name, "partitions": tuple(parts)} for name, parts in by_topic.items())


def listed(group: ClassicGroup) -> Response:
    return {
        "group_id": group.group_id,
        "protocol_type": group.protocol_type or "",
        "group_state": str(group.state),
        "group_type": CLASSIC_GROUP_TYPE,
    }


def described(group: ClassicGroup) -> Response:
    """A group for DescribeGroups; subscriptions are shown only while there is an agreed protocol."""
    stable = group.state is GroupState.STABLE
    members = tuple(
        {
            "member_id": member.member_id,
            "group_instance_id": member.group_instance_id,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "member_metadata": member.metadata(group.protocol_name) if stable else b"",
            "member_assignment": member.assignment,
        }
        for member in group.members.values()
    )
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "group_id": group.group_id,
        "group_state": str(group.state),
        "protocol_type": group.protocol_type or "",
        "protocol_data": (group.protocol_name or "") if stable else "",
        "members": members,
    }


def described_missing(group_id: str, error: ErrorCode, message: str | None) -> Response:
    return {
        "error_code": error,
        "error_message": message,
        "group_id": group_id,
        "group_state": str(GroupState.DEAD)
        if error in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND)
        else "",
        "protocol_type": "",
        "protocol_data": "",
        "members": (),
    }
