"""What one gateway allows."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Numbers and sizes; each is checked before anything is kept."""

    connections: int = 10_000
    #: the largest packet of a client
    packet_bytes: int = 1 << 20
    #: messages of QoS 1 and 2 that a client may have under way
    receive_maximum: int = 256
    #: the same towards a client, whatever it allows
    in_flight: int = 500
    #: how long a session may outlive its connection
    session_expiry_seconds: int = 7 * 24 * 3600
    sessions: int = 100_000
    subscriptions: int = 1_000
    keep_alive_seconds: int = 0
    topic_aliases: int = 32
    retained_messages: int = 100_000
    retained_bytes: int = 64 << 20
    #: from accepting a connection to CONNECT
    connect_seconds: float = 10.0
    client_id_bytes: int = 512
    #: the first packet, with its will, which is kept with the session
    connect_bytes: int = 256 << 10
    #: the filters of a session together
    filter_bytes: int = 256 << 10
    #: what a connection may have waiting to be written, before messages of QoS 0 are left out and others wait
    write_bytes: int = 256 << 10
