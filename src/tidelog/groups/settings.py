"""The broker settings that groups obey, read once so that the machine knows no settings table."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tidelog.model.resource_settings import HEARTBEAT_INTERVAL, SESSION_TIMEOUT


class ConsumerTimes(NamedTuple):
    """What a member of a consumer group is held to."""

    session_timeout_ms: int
    heartbeat_interval_ms: int


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Kafka's broker settings of the same names, with Kafka's defaults."""

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = 2**31 - 1
    members_bytes_max: int = 128 << 20
    """What all members of all groups together may make the broker keep (`member_memory`)."""
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 60 * 60 * 1_000
    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_min_session_timeout_ms: int = 1
    consumer_max_session_timeout_ms: int = 2**31 - 1
    consumer_min_heartbeat_interval_ms: int = 1
    consumer_max_heartbeat_interval_ms: int = 2**31 - 1
    consumer_max_size: int = 2**31 - 1
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    """The assignors members may ask for; the first is for those that ask for none."""
    allows_upgrade: bool = True
    """May a classic group with members become a consumer group?"""
    allows_downgrade: bool = True
    share_session_timeout_ms: int = 45_000
    share_heartbeat_interval_ms: int = 5_000
    share_min_session_timeout_ms: int = 45_000
    share_max_session_timeout_ms: int = 60_000
    share_min_heartbeat_interval_ms: int = 5_000
    share_max_heartbeat_interval_ms: int = 15_000
    share_max_size: int = 200
    share_initialize_retry_ms: int = 30_000
    """When to ask share coordinators again that did not say they had begun; fixed here."""
    new_member_join_timeout_ms: int = 5 * 60 * 1_000
    """How long a parked JoinGroup keeps a member that never had an id; fixed in Kafka."""
    append_retry_ms: int = 500
    """When to try a timed step again whose records were refused."""

    def share_times_of(self, configs: Mapping[str, str]) -> ConsumerTimes:
        """What members of a share group are held to."""
        session_ms = _within(
            int(configs.get("share.session.timeout.ms", self.share_session_timeout_ms)),
            self.share_min_session_timeout_ms,
            self.share_max_session_timeout_ms,
        )
        heartbeat_ms = _within(
            int(configs.get("share.heartbeat.interval.ms", self.share_heartbeat_interval_ms)),
            self.share_min_heartbeat_interval_ms,
            self.share_max_heartbeat_interval_ms,
        )
        return ConsumerTimes(session_ms, heartbeat_ms)

    @property
    def consumer_times(self) -> ConsumerTimes:
        """What holds where nothing was set for a group."""
        return ConsumerTimes(self.consumer_session_timeout_ms, self.consumer_heartbeat_interval_ms)

    def times_of(self, configs: Mapping[str, str]) -> ConsumerTimes:
        """What holds for a group with settings of its own, within the bounds of the broker."""
        session_ms = _within(
            int(configs.get(SESSION_TIMEOUT, self.consumer_session_timeout_ms)),
            self.consumer_min_session_timeout_ms,
            self.consumer_max_session_timeout_ms,
        )
        heartbeat_ms = _within(
            int(configs.get(HEARTBEAT_INTERVAL, self.consumer_heartbeat_interval_ms)),
            self.consumer_min_heartbeat_interval_ms,
            self.consumer_max_heartbeat_interval_ms,
        )
        # The bounds, or the broker's own values, may have moved since it was set.
        return ConsumerTimes(session_ms, heartbeat_ms) if heartbeat_ms < session_ms else self.consumer_times


def _within(value: int, least: int, most: int) -> int:
    return max(least, min(value, most))
