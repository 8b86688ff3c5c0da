"""The answers about share groups as field mappings, under the names of the newest protocol version."""

from collections.abc import Iterable, Mapping
from uuid import UUID

from tidelog.groups.consumer_schemas import Partitions, by_topic
from tidelog.groups.responses import Response
from tidelog.groups.share_group import ASSIGNOR_NAME, SHARE_GROUP_TYPE, ShareGroup
from tidelog.model.errors import ErrorCode, Refused

#: of topics that do not exist
NO_TOPIC_ID = UUID(int=0)


def heartbeat_error(refused: Refused) -> Response:
    return {
        "error_code": refused.code,
        "error_message": refused.message,
        "member_id": None,
        "member_epoch": 0,
        "heartbeat_interval": 0,
        "assignment": None,
    }


def heartbeat(member_id: str, epoch: int, interval_ms: int, assigned: Partitions | None) -> Response:
    """`assigned` is None where the member knows it already."""
    assignment = None
    if assigned is not None:
        topics = [{"topic_id": topic_id, "partitions": indexes} for topic_id, indexes in by_topic(assigned)]
        assignment = {"topic_partitions": topics}
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "member_id": member_id,
        "member_epoch": epoch,
        "heartbeat_interval": interval_ms,
        "assignment": assignment,
    }


def listed(group: ShareGroup) -> Response:
    return {
        "group_id": group.group_id,
        "protocol_type": "share",
        "group_state": group.state,
        "group_type": SHARE_GROUP_TYPE,
    }


def described(group: ShareGroup, names: Mapping[UUID, str]) -> Response:
    """ShareGroupDescribe; `names` are those of the topics that there are."""

    def assignment(partitions: Partitions) -> Response:
        topics = [
            {"topic_id": topic_id, "topic_name": names[topic_id], "partitions": indexes}
            for topic_id, indexes in by_topic(partitions)
            if topic_id in names
        ]
        return {"topic_partitions": topics}

    members = [
        {
            "member_id": member_id,
            "rack_id": member.rack_id,
            "member_epoch": group.current_of(member_id).epoch,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "subscribed_topic_names": member.subscribed_topic_names,
            "assignment": assignment(group.current_of(member_id).assigned),
        }
        for member_id, member in group.members.items()
    ]
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "group_id": group.group_id,
        "group_state": group.state,
        "group_epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": ASSIGNOR_NAME,
        "members": members,
    }


def offsets_error(refused: Refused) -> Response:
    """AlterShareGroupOffsets and DeleteShareGroupOffsets, where all of it is refused."""
    return {"error_code": refused.code, "error_message": refused.message, "responses": ()}


def offsets(topics: Iterable[Response]) -> Response:
    return {"error_code": ErrorCode.NONE, "error_message": None, "responses": tuple(topics)}


def altered_topic(name: str, topic_id: UUID, partitions: Mapping[int, ErrorCode]) -> Response:
    results = tuple(
        {"partition_index": index, "error_code": error, "error_message": _message(error)}
        for index, error in partitions.items()
    )
    return {"topic_name": name, "topic_id": topic_id, "partitions": results}


def deleted_topic(name: str, topic_id: UUID, error: ErrorCode, message: str | None = None) -> Response:
    return {
        "topic_name": name,
        "topic_id": topic_id,
        "error_code": error,
        "error_message": message or _message(error),
    }


def _message(error: ErrorCode) -> str | None:
    return None if error is ErrorCode.NONE else error.name
