"""What one gateway takes from its clients, and how it is set up."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds, each checked before anything is allocated or remembered for it."""

    connections: int = 2_000
    channels: int = 255
    frame_bytes: int = 131_072
    #: a message with its properties must fit a record of the topic
    message_bytes: int = 1_000_000
    #: published on a connection and not yet on all replicas: above it nothing more is read
    unconfirmed_bytes: int = 8 << 20
    #: deliveries that a consumer without a prefetch count may hold
    unlimited_prefetch: int = 500
    #: bodies of one queue that one user holds here: above it no more are taken
    held_bytes: int = 32 << 20
    #: bodies of a connection that are not whole yet, as they were announced
    incomplete_bytes: int = 8 << 20
    consumers_per_channel: int = 256
    unacknowledged_per_channel: int = 20_000
    #: methods that wait for an earlier one of their channel
    waiting_frames: int = 4_096
    heartbeat_seconds: int = 60
    login_seconds: float = 20.0
    #: written to a client that does not read: above it deliveries to it pause
    output_bytes: int = 1 << 20
    queues: int = 20_000
    exchanges: int = 5_000
    bindings_per_exchange: int = 20_000


@dataclass(frozen=True, slots=True)
class QueueDefaults:
    """What a topic made for a queue gets when the declaration says nothing."""

    partitions: int = 1


DEFINITIONS_TOPIC = "__amqp_definitions"
