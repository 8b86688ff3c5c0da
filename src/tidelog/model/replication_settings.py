"""The settings of replication: rows of the one table (see settings_table)."""

from tidelog.model.setting_rows import INT64_MAX, Importance, SettingType, UpdateMode
from tidelog.model.setting_rows import broker_setting as _broker

_INT, _LONG, _STRING = SettingType.INT, SettingType.LONG, SettingType.STRING
_HIGH, _MEDIUM, _LOW = Importance.HIGH, Importance.MEDIUM, Importance.LOW

RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
LEADER_SELECTOR = "org.apache.kafka.common.replica.LeaderSelector"

REPLICATION_SETTINGS = (
    _broker(
        "replica.lag.time.max.ms", _LONG, 30_000, _HIGH,
        "How long a follower may be behind its leader before it leaves the in-sync set.", minimum=1,
    ),
    _broker(
        "replica.fetch.wait.max.ms", _INT, 500, _HIGH,
        "How long a follower's fetch waits at the leader for something new.", minimum=1,
    ),
    _broker(
        "replica.fetch.min.bytes", _INT, 1, _HIGH,
        "How many bytes a follower's fetch waits for; a leader answers as soon as it has any.",
        minimum=1, inert=True,
    ),
    _broker(
        "replica.fetch.max.bytes", _INT, 1 << 20, _MEDIUM,
        "How many bytes of one partition a follower fetches at a time; a larger batch still comes whole.",
        minimum=0,
    ),
    _broker(
        "replica.fetch.response.max.bytes", _INT, 10 << 20, _MEDIUM,
        "How many bytes a follower fetches at a time.", minimum=0,
    ),
    _broker(
        "replica.fetch.backoff.ms", _INT, 1_000, _MEDIUM,
        "How long at most a follower waits before it fetches again after an error; it begins with less.",
        minimum=0,
    ),
    _broker(
        "replica.socket.timeout.ms", _INT, 30_000, _HIGH,
        "How long a fetch from another broker may take.", minimum=1,
    ),
    _broker(
        "replica.high.watermark.checkpoint.interval.ms", _LONG, 5_000, _HIGH,
        "How often the high watermarks are written down.", minimum=1,
    ),
    _broker(
        "num.replica.fetchers", _INT, 1, _HIGH,
        "How many connections fetch from each leader; here one carries everything.",
        update_mode=UpdateMode.CLUSTER_WIDE, inert=True,
    ),
    _broker(
        "replica.selector.class", _STRING, None, _MEDIUM,
        "Which replica a consumer reads from: its leader, or one in the consumer's rack.",
        choices=(RACK_AWARE_SELECTOR, LEADER_SELECTOR),
    ),
    _broker(
        "replica.alter.log.dirs.io.max.bytes.per.second", _LONG, INT64_MAX, _MEDIUM,
        "How many bytes a second are copied between log directories (AlterReplicaLogDirs).",
        minimum=1, update_mode=UpdateMode.CLUSTER_WIDE,
    ),
    _broker(
        "leader.replication.throttled.rate", _LONG, INT64_MAX, _MEDIUM,
        "How many bytes a second go out to throttled replicas (leader.replication.throttled.replicas).",
        minimum=0, update_mode=UpdateMode.PER_BROKER,
    ),
    _broker(
        "follower.replication.throttled.rate", _LONG, INT64_MAX, _MEDIUM,
        "How many bytes a second throttled replicas fetch (follower.replication.throttled.replicas).",
        minimum=0, update_mode=UpdateMode.PER_BROKER,
    ),
)  # fmt: skip
