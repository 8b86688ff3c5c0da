"""What the gateway answers when it cannot do what it was asked: AMQP's reply codes.

A `ChannelFault` closes the channel, a `ConnectionFault` the connection (AMQP 0-9-1, section 1.2).
"""

from tidelog.client.faults import AuthenticationFailed, ClientFault, Refusal, UnsupportedVersion
from tidelog.model.errors import ErrorCode

CONTENT_TOO_LARGE = 311
NO_ROUTE = 312
CONNECTION_FORCED = 320
ACCESS_REFUSED = 403
NOT_FOUND = 404
RESOURCE_LOCKED = 405
PRECONDITION_FAILED = 406
FRAME_ERROR = 501
SYNTAX_ERROR = 502
COMMAND_INVALID = 503
CHANNEL_ERROR = 504
UNEXPECTED_FRAME = 505
RESOURCE_ERROR = 506
NOT_ALLOWED = 530
NOT_IMPLEMENTED = 540
INTERNAL_ERROR = 541

REPLY_NAMES = {
    CONTENT_TOO_LARGE: "CONTENT_TOO_LARGE",
    NO_ROUTE: "NO_ROUTE",
    CONNECTION_FORCED: "CONNECTION_FORCED",
    ACCESS_REFUSED: "ACCESS_REFUSED",
    NOT_FOUND: "NOT_FOUND",
    RESOURCE_LOCKED: "RESOURCE_LOCKED",
    PRECONDITION_FAILED: "PRECONDITION_FAILED",
    FRAME_ERROR: "FRAME_ERROR",
    SYNTAX_ERROR: "SYNTAX_ERROR",
    COMMAND_INVALID: "COMMAND_INVALID",
    CHANNEL_ERROR: "CHANNEL_ERROR",
    UNEXPECTED_FRAME: "UNEXPECTED_FRAME",
    RESOURCE_ERROR: "RESOURCE_ERROR",
    NOT_ALLOWED: "NOT_ALLOWED",
    NOT_IMPLEMENTED: "NOT_IMPLEMENTED",
    INTERNAL_ERROR: "INTERNAL_ERROR",
}
_TEXT_BYTES_MAX = 255

_REFUSED = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
)
_UNFIT = frozenset(
    {
        ErrorCode.INVALID_CONFIG,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    }
)


class AmqpFault(Exception):
    """Something for which AMQP has a reply code."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        self.text = f"{REPLY_NAMES[code]} - {text}".encode()[:_TEXT_BYTES_MAX].decode("utf-8", "ignore")
        super().__init__(self.text)


class ChannelFault(AmqpFault):
    """Ends the channel."""


class ConnectionFault(AmqpFault):
    """Ends the connection."""


def from_client_fault(fault: ClientFault) -> ChannelFault:
    """What the cluster refused, or why it could not be asked."""
    if isinstance(fault, Refusal):
        if fault.code in _REFUSED:
            return ChannelFault(ACCESS_REFUSED, str(fault))
        if fault.code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID):
            return ChannelFault(NOT_FOUND, str(fault))
        if fault.code in _UNFIT:
            return ChannelFault(PRECONDITION_FAILED, str(fault))
    if isinstance(fault, AuthenticationFailed):
        return ChannelFault(ACCESS_REFUSED, str(fault))
    if isinstance(fault, UnsupportedVersion):
        return ChannelFault(NOT_IMPLEMENTED, f"{fault}; share groups need Kafka 4.2 or later")
    return ChannelFault(RESOURCE_ERROR, str(fault))
