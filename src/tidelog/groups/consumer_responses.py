"""The answers about consumer groups as field mappings, under the names of the newest protocol version."""

from collections.abc import Mapping
from uuid import UUID

from tidelog.groups.consumer_group import CONSUMER_GROUP_TYPE, ConsumerGroup
from tidelog.groups.consumer_schemas import CurrentAssignment, Partitions, by_topic
from tidelog.groups.responses import Response
from tidelog.model.errors import ErrorCode

CLASSIC_MEMBER = 0
CONSUMER_MEMBER = 1


def heartbeat_error(error: ErrorCode, message: str | None) -> Response:
    return {
        "error_code": error,
        "error_message": message,
        "member_id": None,
        "member_epoch": 0,
        "heartbeat_interval": 0,
        "assignment": None,
    }


def heartbeat(member_id: str, epoch: int, interval_ms: int, assigned: Partitions | None) -> Response:
    """`assigned` is None where the member knows it already."""
    assignment = None
    if assigned is not None:
        assignment = {
            "topic_partitions": [
                {"topic_id": topic_id, "partitions": indexes} for topic_id, indexes in by_topic(assigned)
            ]
        }
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "member_id": member_id,
        "member_epoch": epoch,
        "heartbeat_interval": interval_ms,
        "assignment": assignment,
    }


def left(member_id: str, epoch: int) -> Response:
    return heartbeat(member_id, epoch, 0, None)


def listed(group: ConsumerGroup) -> Response:
    return {
        "group_id": group.group_id,
        "protocol_type": "consumer",
        "group_state": str(group.state),
        "group_type": CONSUMER_GROUP_TYPE,
    }


def described(group: ConsumerGroup, default_assignor: str, names: Mapping[UUID, str]) -> Response:
    """A consumer group; `names` are those of the topics that there are."""

    def assignment(partitions: Partitions) -> Response:
        # A topic that is gone has no name any more, though the group may not have heard of it yet.
        topics = [
            {"topic_id": topic_id, "topic_name": names[topic_id], "partitions": indexes}
            for topic_id, indexes in by_topic(partitions)
            if topic_id in names
        ]
        return {"topic_partitions": topics}

    def member(member_id: str) -> Response:
        metadata = group.members[member_id]
        current: CurrentAssignment = group.current_of(member_id)
        return {
            "member_id": member_id,
            "instance_id": metadata.instance_id,
            "rack_id": metadata.rack_id,
            "member_epoch": current.epoch,
            "client_id": metadata.client_id,
            "client_host": metadata.client_host,
            "subscribed_topic_names": metadata.subscribed_topic_names,
            "subscribed_topic_regex": metadata.subscribed_topic_regex or "",
            # until a member says that it gave a partition up, it has it
            "assignment": assignment(current.assigned | current.pending_revocation),
            "target_assignment": assignment(group.target_of(member_id)),
            "member_type": CONSUMER_MEMBER if metadata.classic is None else CLASSIC_MEMBER,
        }

    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "group_id": group.group_id,
        "group_state": str(group.state),
        "group_epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.preferred_assignor(default_assignor),
        "members": [member(member_id) for member_id in group.members],
    }


def described_missing(group_id: str, error: ErrorCode, message: str | None) -> Response:
    return {
        "error_code": error,
        "error_message": message,
        "group_id": group_id,
        "group_state": "",
        "group_epoch": 0,
        "assignment_epoch": 0,
        "assignor_name": "",
        "members": (),
    }
