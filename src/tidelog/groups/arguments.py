"""What is wrong with a request to a group coordinator, whoever coordinates the group.

As in Kafka this is looked at first: a broker that does not coordinate the group says what is wrong with the
request rather than NOT_COORDINATOR, after which a client would look for another broker and ask in vain.
"""

from tidelog.groups import consumer_responses, responses, share_responses
from tidelog.groups.commands import (
    SHARE_MEMBER_ID_CHARACTERS_MAX,
    UNCHANGED_MS,
    AlterShareOffsets,
    Command,
    ConsumerHeartbeat,
    DeleteOffsets,
    DeleteShareOffsets,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    ShareHeartbeat,
    SyncGroup,
)
from tidelog.groups.consumer_group import JOINING_EPOCH, LEAVING_EPOCH, STATIC_LEAVING_EPOCH
from tidelog.groups.settings import GroupSettings
from tidelog.model.effects import Reply
from tidelog.model.errors import ErrorCode, Refused


def refusal(command: Command, settings: GroupSettings) -> Reply | None:
    """The answer to a request whose arguments can not be taken; None if they can."""
    match command:
        case ConsumerHeartbeat():
            fault = _heartbeat_fault(command, settings)
            if fault is not None:
                return Reply(command.token, consumer_responses.heartbeat_error(fault.code, fault.message))
        case ShareHeartbeat():
            message = _share_heartbeat_fault(command)
            if message is not None:
                fault = Refused(ErrorCode.INVALID_REQUEST, message)
                return Reply(command.token, share_responses.heartbeat_error(fault))
        case AlterShareOffsets() | DeleteShareOffsets() if not command.group_id:
            fault = Refused(ErrorCode.INVALID_GROUP_ID, "The group id is empty.")
            return Reply(command.token, share_responses.offsets_error(fault))
        case Heartbeat() if not command.group_id:
            return Reply(command.token, responses.heartbeat(ErrorCode.INVALID_GROUP_ID))
        case JoinGroup():
            error = _join_fault(command, settings)
            if error is not ErrorCode.NONE:
                return Reply(command.token, responses.join_error(error, command.member_id))
        case SyncGroup() if not command.group_id:
            return Reply(command.token, responses.sync_error(ErrorCode.INVALID_GROUP_ID))
        case LeaveGroup() if not command.group_id:
            return Reply(command.token, responses.leave_error(ErrorCode.INVALID_GROUP_ID))
        case DeleteOffsets() if not command.group_id:
            return Reply(command.token, {"error_code": ErrorCode.INVALID_GROUP_ID, "topics": ()})
    return None


def _join_fault(command: JoinGroup, settings: GroupSettings) -> ErrorCode:
    if not command.group_id:
        return ErrorCode.INVALID_GROUP_ID
    shortest, longest = settings.group_min_session_timeout_ms, settings.group_max_session_timeout_ms
    if not shortest <= command.session_timeout_ms <= longest:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    return ErrorCode.NONE


def _share_heartbeat_fault(command: ShareHeartbeat) -> str | None:
    if not command.member_id.strip():
        return "MemberId can't be empty."
    if len(command.member_id) > SHARE_MEMBER_ID_CHARACTERS_MAX:
        return f"MemberId has more than {SHARE_MEMBER_ID_CHARACTERS_MAX} characters."
    if not command.group_id.strip():
        return "GroupId can't be empty."
    if command.rack_id is not None and not command.rack_id.strip():
        return "RackId can't be empty."
    if command.member_epoch == JOINING_EPOCH and not command.subscribed_topic_names:
        return "SubscribedTopicNames must be set in first request."
    return "MemberEpoch is invalid." if command.member_epoch < LEAVING_EPOCH else None


def _heartbeat_fault(command: ConsumerHeartbeat, settings: GroupSettings) -> Refused | None:
    def invalid(message: str) -> Refused:
        return Refused(ErrorCode.INVALID_REQUEST, message)

    if not command.group_id.strip():
        return invalid("GroupId can't be empty.")
    if command.instance_id is not None and not command.instance_id.strip():
        return invalid("InstanceId can't be empty.")
    if command.rack_id is not None and not command.rack_id.strip():
        return invalid("RackId can't be empty.")
    if not command.member_id.strip() and not (
        command.member_epoch == JOINING_EPOCH and command.new_member_id
    ):
        return invalid("MemberId can't be empty.")
    if command.member_epoch == JOINING_EPOCH:
        if command.rebalance_timeout_ms == UNCHANGED_MS:
            return invalid("RebalanceTimeoutMs must be provided in first request.")
        if command.owned is None or command.owned:
            return invalid("TopicPartitions must be empty when (re-)joining.")
        if command.subscribed_topic_names is None and command.subscribed_topic_regex is None:
            return invalid(
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when joining."
            )
    elif command.member_epoch == STATIC_LEAVING_EPOCH and command.instance_id is None:
        return invalid("InstanceId can't be null.")
    elif command.member_epoch < STATIC_LEAVING_EPOCH:
        return invalid("MemberEpoch is invalid.")
    known = settings.consumer_assignors
    if command.server_assignor is not None and command.server_assignor not in known:
        supported = ", ".join(known)
        message = f"ServerAssignor {command.server_assignor} is not supported. Supported: {supported}."
        return Refused(ErrorCode.UNSUPPORTED_ASSIGNOR, message)
    return None
