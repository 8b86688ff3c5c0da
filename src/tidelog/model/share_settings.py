"""The settings of share groups and their coordinators: rows of the one table (see settings_table)."""

from tidelog.model.setting_rows import Importance, SettingType
from tidelog.model.setting_rows import broker_setting as _broker

_BOOLEAN, _INT, _SHORT, _STRING = SettingType.BOOLEAN, SettingType.INT, SettingType.SHORT, SettingType.STRING
_HIGH, _MEDIUM = Importance.HIGH, Importance.MEDIUM

SHARE_SETTINGS = (
    _broker(
        "errors.deadletterqueue.auto.create.topics.enable", _BOOLEAN, False, _MEDIUM,
        "Whether a topic for the dead letters of share groups is created when it is missing (KIP-1191).",
    ),
    _broker(
        "errors.deadletterqueue.topic.name.prefix", _STRING, "dlq.", _MEDIUM,
        "What the names of topics for the dead letters of share groups begin with (KIP-1191).",
    ),
    _broker(
        "group.share.delivery.count.limit", _INT, 5, _MEDIUM,
        "How often a share group delivers a record before it is given up.", minimum=2, maximum=10,
    ),
    _broker(
        "group.share.heartbeat.interval.ms", _INT, 5_000, _MEDIUM,
        "How often members of share groups send a heartbeat.", minimum=1,
    ),
    _broker(
        "group.share.max.delivery.count.limit", _INT, 10, _MEDIUM,
        "The most `share.delivery.count.limit` of a group.", minimum=5, maximum=25,
    ),
    _broker(
        "group.share.max.heartbeat.interval.ms", _INT, 15_000, _MEDIUM,
        "The most `share.heartbeat.interval.ms` of a group.", minimum=1,
    ),
    _broker(
        "group.share.max.partition.max.record.locks", _INT, 4_000, _MEDIUM,
        "The most `share.partition.max.record.locks` of a group.", minimum=2_000, maximum=10_000,
    ),
    _broker(
        "group.share.max.record.lock.duration.ms", _INT, 60_000, _MEDIUM,
        "The most `share.record.lock.duration.ms` of a group.", minimum=30_000, maximum=3_600_000,
    ),
    _broker(
        "group.share.max.session.timeout.ms", _INT, 60_000, _MEDIUM,
        "The most `share.session.timeout.ms` of a group.", minimum=1,
    ),
    _broker(
        "group.share.max.share.sessions", _INT, 2_000, _MEDIUM,
        "How many share sessions a broker keeps: one for each member that fetches from it.", minimum=1,
    ),
    _broker(
        "group.share.max.size", _INT, 200, _MEDIUM,
        "How many members a share group may have.", minimum=1, maximum=1_000,
    ),
    _broker(
        "group.share.min.delivery.count.limit", _INT, 2, _MEDIUM,
        "The least `share.delivery.count.limit` of a group.", minimum=2, maximum=5,
    ),
    _broker(
        "group.share.min.heartbeat.interval.ms", _INT, 5_000, _MEDIUM,
        "The least `share.heartbeat.interval.ms` of a group.", minimum=1,
    ),
    _broker(
        "group.share.min.partition.max.record.locks", _INT, 100, _MEDIUM,
        "The least `share.partition.max.record.locks` of a group.", minimum=100, maximum=2_000,
    ),
    _broker(
        "group.share.min.record.lock.duration.ms", _INT, 15_000, _MEDIUM,
        "The least `share.record.lock.duration.ms` of a group.", minimum=1_000, maximum=30_000,
    ),
    _broker(
        "group.share.min.session.timeout.ms", _INT, 45_000, _MEDIUM,
        "The least `share.session.timeout.ms` of a group.", minimum=1,
    ),
    _broker(
        "group.share.partition.max.record.locks", _INT, 2_000, _MEDIUM,
        "How many records of a partition a share group may have in flight.", minimum=100, maximum=10_000,
    ),
    _broker(
        "group.share.record.lock.duration.ms", _INT, 30_000, _MEDIUM,
        "How long a member of a share group has a record for itself.", minimum=1_000, maximum=3_600_000,
    ),
    _broker(
        "group.share.session.timeout.ms", _INT, 45_000, _MEDIUM,
        "After how long without a heartbeat a member leaves its share group.", minimum=1,
    ),
    _broker(
        "share.coordinator.snapshot.update.records.per.snapshot", _INT, 500, _MEDIUM,
        "After how many updates of a share partition all of its state is written anew.",
        minimum=0, maximum=500,
    ),
    _broker(
        "share.coordinator.state.topic.min.isr", _SHORT, 2, _HIGH,
        "The min.insync.replicas of __share_group_state, or its replicas when there are fewer.", minimum=1,
    ),
    _broker(
        "share.coordinator.state.topic.num.partitions", _INT, 50, _HIGH,
        "How many partitions __share_group_state is created with.", minimum=1,
    ),
    _broker(
        "share.coordinator.state.topic.replication.factor", _SHORT, 3, _HIGH,
        "How many replicas __share_group_state is created with, or every broker when there are fewer.",
        minimum=1,
    ),
    _broker(
        "share.coordinator.state.topic.segment.bytes", _INT, 104_857_600, _HIGH,
        "The segment size of __share_group_state.", minimum=1,
    ),
    _broker(
        "share.coordinator.write.timeout.ms", _INT, 5_000, _HIGH,
        "How long a share coordinator may take to store or read the state of a share partition.", minimum=1,
    ),
)  # fmt: skip
