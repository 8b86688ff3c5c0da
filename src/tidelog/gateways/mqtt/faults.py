"""What goes wrong with a client, as the reason codes of MQTT 5; 3.1.1 knows few of them."""

from enum import IntEnum


class Reason(IntEnum):
    """Reason codes (MQTT 5, section 2.4)."""

    SUCCESS = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BAD_AUTHENTICATION_METHOD = 0x8C
    SERVER_SHUTTING_DOWN = 0x8B
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    QUOTA_EXCEEDED = 0x97
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E


class PacketFault(Exception):
    """A packet that ends the connection."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Malformed(PacketFault):
    """Bytes that are no packet of MQTT."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.MALFORMED_PACKET, message)


class ProtocolViolation(PacketFault):
    """A packet that may not be sent, or not now."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.PROTOCOL_ERROR, message)


class BadMap(ValueError):
    """A file of mapping rules that cannot be used; the text says why."""
