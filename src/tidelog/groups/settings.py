"""The broker settings that groups obey, read once so that the machine knows no settings table."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Kafka's broker settings of the same names, with Kafka's defaults."""

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = 2**31 - 1
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 60 * 60 * 1_000
    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_max_size: int = 2**31 - 1
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    """The assignors members may ask for; the first is for those that ask for none."""
    allows_upgrade: bool = True
    """May a classic group with members become a consumer group?"""
    allows_downgrade: bool = True
    new_member_join_timeout_ms: int = 5 * 60 * 1_000
    """How long a parked JoinGroup keeps a member that never had an id; fixed in Kafka."""
    append_retry_ms: int = 500
    """When to try a timed step again whose records were refused."""
