"""The one table of settings: every name Tidelog honours, with type, default, valid values and a sentence.

Names, types and defaults are Kafka's; Tidelog's own live under `tidelog.`. A row marked `inert` is a Kafka
setting that has no effect here: it is listed so that clients can read it. Most only tune what is done in
another way here, so any value is taken and noted; where that would promise something untrue, `refused` says
why any value but the default is refused. `docs/settings.md` is generated from this table.

Deliberate difference: `segment.bytes` may be as small as in Kafka before 4.0 (14 bytes, not 1 MiB), so that
small segments can be tried out and tested without a hidden setting.
"""

from tidelog.model.access_settings import ACCESS_SETTINGS
from tidelog.model.coordination_settings import COORDINATION_SETTINGS
from tidelog.model.delivery_settings import DELIVERY_SETTINGS
from tidelog.model.metrics_settings import METRICS_SETTINGS
from tidelog.model.noted_settings import NOTED_SETTINGS
from tidelog.model.refused_settings import REFUSED_SETTINGS
from tidelog.model.replication_settings import REPLICATION_SETTINGS
from tidelog.model.security_settings import SECURITY_PROTOCOLS, SECURITY_SETTINGS
from tidelog.model.setting_rows import (
    DAY_MS,
    HOUR_MS,
    INT32_MAX,
    INT64_MAX,
    MINUTE_MS,
    SECOND_MS,
    Importance,
    Scope,
    Setting,
    SettingType,
    SettingValue,
    Synonym,
    UpdateMode,
)
from tidelog.model.setting_rows import broker_setting as _broker
from tidelog.model.setting_rows import topic_setting as _topic
from tidelog.model.share_settings import SHARE_SETTINGS

__all__ = [
    "BROKER_SETTINGS",
    "INT32_MAX",
    "INT64_MAX",
    "TOPIC_SETTINGS",
    "Scope",
    "Setting",
    "SettingType",
    "SettingValue",
    "Synonym",
    "UpdateMode",
]

_BOOLEAN, _STRING, _INT, _SHORT = SettingType.BOOLEAN, SettingType.STRING, SettingType.INT, SettingType.SHORT
_LONG, _DOUBLE, _LIST = SettingType.LONG, SettingType.DOUBLE, SettingType.LIST
_HIGH, _MEDIUM, _LOW = Importance.HIGH, Importance.MEDIUM, Importance.LOW
_COMPRESSION_TYPES = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
_GZIP_LEVELS = (-1, 1, 2, 3, 4, 5, 6, 7, 8, 9)
_CLUSTER = UpdateMode.CLUSTER_WIDE

_NODE = (
    _broker("node.id", _INT, 1, _HIGH, "The number of this broker, unique in the cluster.", minimum=0),
    _broker(
        "broker.id", _INT, None, _HIGH, "An older name of node.id; when both are set they must agree.",
        minimum=0
    ),
    _broker(
        "broker.rack", _STRING, None, _MEDIUM,
        "The rack of this broker; replicas of a partition are spread over racks.",
    ),
    _broker(
        "log.dir", _STRING,
        "tidelog-data", _HIGH, "The folder that keeps the data when log.dirs is not set.",
    ),
    _broker(
        "log.dirs", _LIST, None, _HIGH,
        "The folders that keep the data, separated by commas; the first also keeps the metadata.",
    ),
    _broker(
        "num.partitions", _INT, 1, _MEDIUM,
        "How many partitions a topic gets when nobody says.", minimum=1,
    ),
    _broker(
        "default.replication.factor", _INT, 1, _MEDIUM,
        "How many replicas a partition gets when nobody says.", minimum=1,
    ),
    _broker(
        "auto.create.topics.enable", _BOOLEAN, True, _HIGH,
        "Whether a topic is created when a client first asks for its metadata.",
    ),
    _broker("delete.topic.enable", _BOOLEAN, True, _HIGH, "Whether topics may be deleted."),
    _broker(
        "num.recovery.threads.per.data.dir", _INT, 2, _HIGH,
        "How many threads per data folder recover logs at start and flush them at shutdown; here one does.",
        minimum=1, update_mode=_CLUSTER, inert=True,
    ),
    _broker(
        "background.threads", _INT, 2, _HIGH,
        "How many worker threads flush, compact and delete files.", minimum=2,
    ),
)  # fmt: skip

_NETWORK = (
    _broker(
        "listeners", _LIST, ("PLAINTEXT://:9092",), _HIGH,
        "The addresses to listen on, as NAME://host:port; no host means every interface, port 0 a free one.",
    ),
    _broker(
        "advertised.listeners", _LIST, None, _HIGH,
        "The addresses clients are told to use, when they differ from listeners.",
    ),
    _broker(
        "listener.security.protocol.map", _LIST,
        tuple(f"{protocol}:{protocol}" for protocol in SECURITY_PROTOCOLS), _LOW,
        "Which security protocol each listener name speaks, as NAME:PROTOCOL.",
    ),
    _broker(
        "inter.broker.listener.name", _STRING, None, _MEDIUM,
        "The listener that brokers reach each other by; the first of `listeners` where it is not set.",
    ),
    _broker(
        "socket.request.max.bytes", _INT, 100 << 20, _HIGH,
        "The largest request accepted; a connection that announces more is closed.", minimum=1,
    ),
    _broker(
        "socket.send.buffer.bytes", _INT, -1, _HIGH,
        "The send buffer of a client socket; -1 leaves it to the system, faster than Kafka's 100 KiB.",
        minimum=-1,
    ),
    _broker(
        "socket.receive.buffer.bytes", _INT, -1, _HIGH,
        "The receive buffer of a client socket; -1 leaves it to the system, faster than Kafka's 100 KiB.",
        minimum=-1,
    ),
    _broker(
        "socket.listen.backlog.size", _INT, 1024, _MEDIUM,
        "How many connections may wait to be accepted.", minimum=1,
    ),
    _broker(
        "max.connections", _INT, INT32_MAX, _MEDIUM,
        "How many connections the broker accepts at once.", minimum=0, update_mode=_CLUSTER,
    ),
    _broker(
        "max.connections.per.ip", _INT, INT32_MAX, _MEDIUM,
        "How many connections one address may have at once.", minimum=0, update_mode=_CLUSTER,
    ),
    _broker(
        "connections.max.idle.ms", _LONG, 10 * MINUTE_MS, _MEDIUM,
        "A connection without requests for this long is closed; -1 keeps it open.", minimum=-1,
    ),
    _broker(
        "queued.max.requests", _INT, 500, _HIGH,
        "How many requests may wait to be served; here each is served as it is read.", minimum=1, inert=True,
    ),
    _broker(
        "queued.max.request.bytes", _LONG, -1, _MEDIUM,
        "How much memory requests that have not arrived whole may take together; a connection that would "
        "need more is closed. 0 and -1 stand for 1 GiB. Else at least `socket.request.max.bytes`: one "
        "request of that size always has room.",
        minimum=-1,
    ),
    _broker(
        "request.timeout.ms", _INT, 30_000, _HIGH,
        "How long a request between brokers may take.", minimum=1,
    ),
)  # fmt: skip

_DATA = (
    _broker(
        "message.max.bytes", _INT, 1_048_588, _HIGH,
        "The largest record batch accepted, after compression.", minimum=0, update_mode=_CLUSTER,
    ),
    _broker(
        "fetch.max.bytes", _INT, 55 << 20, _MEDIUM,
        "The most bytes one fetch answer carries; one batch is always sent, even above it.", minimum=1024,
    ),
    _broker(
        "max.incremental.fetch.session.cache.slots", _INT, 1000, _MEDIUM,
        "How many fetch sessions are remembered.", minimum=0,
    ),
    _broker(
        "max.request.partition.size.limit", _INT, 2000, _MEDIUM,
        "The most partitions one DescribeTopicPartitions answer carries.", minimum=1,
    ),
    _broker(
        "compression.type", _STRING, "producer", _HIGH,
        "How batches are compressed on disk: a codec, uncompressed, or producer to keep what was sent.",
        choices=_COMPRESSION_TYPES, update_mode=_CLUSTER,
    ),
    _broker(
        "compression.gzip.level", _INT, -1, _MEDIUM, "The gzip level used when the broker compresses.",
        choices=_GZIP_LEVELS, update_mode=_CLUSTER,
    ),
    _broker(
        "compression.lz4.level", _INT, 9, _MEDIUM, "The lz4 level used when the broker compresses.",
        minimum=1, maximum=17, update_mode=_CLUSTER,
    ),
    _broker(
        "compression.zstd.level", _INT, 3, _MEDIUM, "The zstd level used when the broker compresses.",
        minimum=-131_072, maximum=22, update_mode=_CLUSTER,
    ),
    _broker(
        "min.insync.replicas", _INT, 1, _HIGH,
        "How many in-sync replicas a write with acks=all needs.", minimum=1, update_mode=_CLUSTER,
    ),
    _broker(
        "unclean.leader.election.enable", _BOOLEAN, False, _HIGH,
        "Whether a replica outside the in-sync set may lead, losing records.", update_mode=_CLUSTER,
    ),
    _broker(
        "log.dir.failure.timeout.ms", _LONG, 30_000, _LOW,
        "How long the controller may not hear of a failed data folder before the broker stops.", minimum=1,
    ),
    _broker(
        "unclean.recovery.timeout.ms", _INT, 5_000, _MEDIUM,
        "How long an unclean election that the settings allow waits for more replicas to return, and one by"
        " request for the word of those that are there.", minimum=0,
    ),
    _broker(
        "auto.leader.rebalance.enable", _BOOLEAN, True, _HIGH,
        "Give leadership back to the preferred replicas from time to time.",
    ),
    _broker(
        "leader.imbalance.check.interval.seconds", _INT, 300, _HIGH,
        "How often the controller looks whether leadership should go back to preferred replicas.", minimum=1,
    ),
    _broker(
        "controlled.shutdown.enable", _BOOLEAN, True, _MEDIUM,
        "Move leadership to other brokers before this one stops.",
    ),
    _broker(
        "leader.imbalance.per.broker.percentage", _INT, 10, _LOW,
        "How many percent of a broker's preferred partitions others may lead.", minimum=0,
    ),
    _broker(
        "producer.id.expiration.ms", _INT, DAY_MS, _LOW,
        "How long an idle producer id is remembered.", minimum=1, update_mode=_CLUSTER,
    ),
    _broker(
        "producer.id.expiration.check.interval.ms", _INT, 10 * MINUTE_MS, _LOW,
        "How often idle producer ids are looked for.", minimum=1,
    ),
)  # fmt: skip

_LOG = (
    _broker(
        "log.segment.bytes", _INT, 1 << 30, _HIGH,
        "The size at which a new segment begins.", minimum=14, update_mode=_CLUSTER,
    ),
    _broker(
        "log.roll.ms", _LONG, None, _HIGH,
        "The age at which a new segment begins; log.roll.hours counts when not set.",
        minimum=1, update_mode=_CLUSTER,
    ),
    _broker(
        "log.roll.hours", _INT, 168, _HIGH,
        "The age at which a new segment begins, in hours.", minimum=1,
    ),
    _broker(
        "log.roll.jitter.ms", _LONG, None, _HIGH,
        "The most by which the age is shortened at random; log.roll.jitter.hours counts when not set.",
        minimum=0, update_mode=_CLUSTER,
    ),
    _broker(
        "log.roll.jitter.hours", _INT, 0, _HIGH,
        "The most by which the age is shortened at random, in hours.", minimum=0,
    ),
    _broker(
        "log.retention.ms", _LONG, None, _HIGH,
        "How long records are kept; -1 is for ever; log.retention.minutes counts when not set.",
        minimum=-1, update_mode=_CLUSTER,
    ),
    _broker(
        "log.retention.minutes", _INT, None, _HIGH,
        "How long records are kept, in minutes; log.retention.hours counts when not set.", minimum=-1,
    ),
    _broker("log.retention.hours", _INT, 168, _HIGH, "How long records are kept, in hours.", minimum=-1),
    _broker(
        "log.retention.bytes", _LONG, -1, _HIGH,
        "How large a partition may grow before its oldest segments go; -1 sets no limit.",
        update_mode=_CLUSTER,
    ),
    _broker(
        "log.retention.check.interval.ms", _LONG, 5 * MINUTE_MS, _MEDIUM,
        "How often the broker looks for segments to delete.", minimum=1,
    ),
    _broker(
        "log.cleanup.policy", _LIST, ("delete",), _MEDIUM,
        "What happens to old records: delete by age and size, compact to the last of each key, or both.",
        choices=("compact", "delete"), update_mode=_CLUSTER,
    ),
    _broker(
        "log.index.size.max.bytes", _INT, 10 << 20, _MEDIUM,
        "The largest an offset index grows before a new segment begins.", minimum=4, update_mode=_CLUSTER,
    ),
    _broker(
        "log.index.interval.bytes", _INT, 4096, _MEDIUM,
        "How many bytes of records lie between two entries of the offset index.",
        minimum=0, update_mode=_CLUSTER,
    ),
    _broker(
        "log.flush.interval.messages", _LONG, INT64_MAX, _HIGH,
        "After how many records a partition is forced to disk.", minimum=1, update_mode=_CLUSTER,
    ),
    _broker(
        "log.flush.interval.ms", _LONG, None, _HIGH,
        "After how long a record is forced to disk; log.flush.scheduler.interval.ms counts when not set.",
        minimum=0, update_mode=_CLUSTER,
    ),
    _broker(
        "log.flush.scheduler.interval.ms", _LONG, INT64_MAX, _HIGH,
        "How often the broker looks for records to force to disk.", minimum=1,
    ),
    _broker(
        "log.flush.offset.checkpoint.interval.ms", _INT, MINUTE_MS, _HIGH,
        "How often the offsets known to be on disk are written down.", minimum=0,
    ),
    _broker(
        "log.flush.start.offset.checkpoint.interval.ms", _INT, MINUTE_MS, _HIGH,
        "How often the first offsets of the logs are written down; here with those that are on disk.",
        minimum=0, inert=True,
    ),
    _broker(
        "log.segment.delete.delay.ms", _LONG, MINUTE_MS, _HIGH,
        "How long a deleted file stays on disk, for readers that still use it.",
        minimum=0, update_mode=_CLUSTER,
    ),
    _broker(
        "log.message.timestamp.type", _STRING, "CreateTime", _MEDIUM,
        "Whether a record carries the time its producer set or the time it was appended.",
        choices=("CreateTime", "LogAppendTime"), update_mode=_CLUSTER,
    ),
    _broker(
        "log.message.timestamp.before.max.ms", _LONG, INT64_MAX, _MEDIUM,
        "How far in the past the time of a record may lie.", minimum=0, update_mode=_CLUSTER,
    ),
    _broker(
        "log.message.timestamp.after.max.ms", _LONG, HOUR_MS, _MEDIUM,
        "How far in the future the time of a record may lie.", minimum=0, update_mode=_CLUSTER,
    ),
    _broker(
        "log.preallocate", _BOOLEAN, False, _MEDIUM,
        "Whether segments are allocated in full when they begin; here they grow.",
        update_mode=_CLUSTER, inert=True,
    ),
)  # fmt: skip

_CLEANER = (
    _broker("log.cleaner.enable", _BOOLEAN, True, _MEDIUM, "Whether compaction runs."),
    _broker(
        "log.cleaner.threads", _INT, 1, _MEDIUM,
        "How many partitions are compacted at the same time; here it is one.",
        minimum=0, update_mode=_CLUSTER, inert=True,
    ),
    _broker(
        "log.cleaner.backoff.ms", _LONG, 15 * SECOND_MS, _MEDIUM,
        "How long the cleaner rests when there was nothing to compact.", minimum=0, update_mode=_CLUSTER,
    ),
    _broker(
        "log.cleaner.dedupe.buffer.size", _LONG, 128 << 20, _MEDIUM,
        "How much memory the map of keys may use during compaction.", minimum=1 << 20, update_mode=_CLUSTER,
    ),
    _broker(
        "log.cleaner.io.buffer.size", _INT, 512 << 10, _MEDIUM,
        "How many bytes the cleaner reads at a time; here whole batches.",
        minimum=0, update_mode=_CLUSTER, inert=True,
    ),
    _broker(
        "log.cleaner.io.max.bytes.per.second", _DOUBLE, 1.7976931348623157e308, _MEDIUM,
        "How many bytes a second the cleaner reads and writes at most.", minimum=0, update_mode=_CLUSTER,
        refused="the cleaner works in a process of its own, as fast as it can",
    ),
    _broker(
        "log.cleaner.min.cleanable.ratio", _DOUBLE, 0.5, _MEDIUM,
        "How much of a log must be uncompacted before it is compacted.",
        minimum=0, maximum=1, update_mode=_CLUSTER,
    ),
    _broker(
        "log.cleaner.delete.retention.ms", _LONG, DAY_MS, _MEDIUM,
        "How long a delete marker stays readable after compaction.", minimum=0, update_mode=_CLUSTER,
    ),
    _broker(
        "log.cleaner.min.compaction.lag.ms", _LONG, 0, _MEDIUM,
        "How old a record must be before it may be compacted away.", minimum=0, update_mode=_CLUSTER,
    ),
    _broker(
        "log.cleaner.max.compaction.lag.ms", _LONG, INT64_MAX, _MEDIUM,
        "How old a record may become before its log is compacted in any case.",
        minimum=1, update_mode=_CLUSTER,
    ),
)  # fmt: skip

_GROUPS = (
    _broker(
        "group.min.session.timeout.ms", _INT, 6000, _MEDIUM,
        "The shortest session timeout a classic member may ask for.", minimum=0,
    ),
    _broker(
        "group.max.session.timeout.ms", _INT, 30 * MINUTE_MS, _MEDIUM,
        "The longest session timeout a classic member may ask for.", minimum=0,
    ),
    _broker(
        "group.initial.rebalance.delay.ms", _INT, 3000, _MEDIUM,
        "How long an empty group waits for more members before its first rebalance.", minimum=0,
    ),
    _broker(
        "group.max.size", _INT, INT32_MAX, _MEDIUM,
        "How many members a classic group may have.", minimum=1,
    ),
    _broker(
        "tidelog.group.members.bytes.max", _INT, 128 << 20, _MEDIUM,
        "What the members of all groups of a broker may take in memory; those of one group take half of it.",
        minimum=1 << 20,
    ),
    _broker(
        "group.coordinator.rebalance.protocols", _LIST, ("classic", "consumer"), _MEDIUM,
        "Which group protocols the broker speaks.", choices=("classic", "consumer"),
    ),
    _broker(
        "group.consumer.session.timeout.ms", _INT, 45_000, _MEDIUM,
        "The session timeout of consumer groups.", minimum=1,
    ),
    _broker(
        "group.consumer.min.session.timeout.ms", _INT, 45_000, _MEDIUM,
        "The shortest session timeout a consumer group may be given.", minimum=1,
    ),
    _broker(
        "group.consumer.max.session.timeout.ms", _INT, 60_000, _MEDIUM,
        "The longest session timeout a consumer group may be given.", minimum=1,
    ),
    _broker(
        "group.consumer.heartbeat.interval.ms", _INT, 5000, _MEDIUM,
        "How often members of consumer groups send heartbeats.", minimum=1,
    ),
    _broker(
        "group.consumer.min.heartbeat.interval.ms", _INT, 5000, _MEDIUM,
        "The shortest heartbeat interval a consumer group may be given.", minimum=1,
    ),
    _broker(
        "group.consumer.max.heartbeat.interval.ms", _INT, 15_000, _MEDIUM,
        "The longest heartbeat interval a consumer group may be given.", minimum=1,
    ),
    _broker(
        "group.consumer.max.size", _INT, INT32_MAX, _MEDIUM,
        "How many members a consumer group may have.", minimum=1,
    ),
    _broker(
        "group.consumer.assignors", _LIST, ("uniform", "range"), _MEDIUM,
        "The server-side assignors of consumer groups; the first is the default.", choices=("uniform",
        "range"),
    ),
    _broker(
        "group.consumer.migration.policy", _STRING, "bidirectional", _MEDIUM,
        "Whether groups may move between the classic and the consumer protocol.",
        choices=("disabled", "upgrade", "downgrade", "bidirectional"),
    ),
    _broker(
        "offsets.topic.num.partitions", _INT, 50, _HIGH,
        "How many partitions __consumer_offsets is created with.", minimum=1,
    ),
    _broker(
        "offsets.topic.replication.factor", _SHORT, 3, _HIGH,
        "How many replicas __consumer_offsets is created with, or every broker when there are fewer.",
        minimum=1,
    ),
    _broker(
        "offsets.topic.segment.bytes", _INT, 100 << 20, _HIGH,
        "The segment size of __consumer_offsets.", minimum=14,
    ),
    _broker(
        "offsets.retention.minutes", _INT, 7 * 24 * 60, _HIGH,
        "How long the offsets of an empty group are kept.", minimum=1,
    ),
    _broker(
        "offsets.retention.check.interval.ms", _LONG, 10 * MINUTE_MS, _HIGH,
        "How often old offsets are looked for.", minimum=1,
    ),
    _broker(
        "offsets.commit.timeout.ms", _INT, 5000, _HIGH,
        "How long a commit waits for the replicas of __consumer_offsets.", minimum=1,
    ),
    _broker(
        "offset.metadata.max.bytes", _INT, 4096, _HIGH,
        "The longest text a committed offset may carry.", minimum=0,
    ),
)  # fmt: skip

_TRANSACTIONS = (
    _broker(
        "transaction.max.timeout.ms", _INT, 15 * MINUTE_MS, _HIGH,
        "The longest transaction timeout a producer may ask for.", minimum=1,
    ),
    _broker(
        "transaction.two.phase.commit.enable", _BOOLEAN, False, _LOW,
        "Whether a producer may have transactions without a timeout, which somebody else decides (KIP-939).",
    ),
    _broker(
        "transactional.id.expiration.ms", _INT, 7 * DAY_MS, _HIGH,
        "How long an unused transactional id is remembered.", minimum=1,
    ),
    _broker(
        "transaction.state.log.num.partitions", _INT, 50, _HIGH,
        "How many partitions __transaction_state is created with.", minimum=1,
    ),
    _broker(
        "transaction.state.log.replication.factor", _SHORT, 3, _HIGH,
        "How many replicas __transaction_state is created with, or every broker when there are fewer.",
        minimum=1,
    ),
    _broker(
        "transaction.state.log.min.isr", _INT, 2, _HIGH,
        "The min.insync.replicas of __transaction_state, or its replicas when there are fewer.", minimum=1,
    ),
    _broker(
        "transaction.state.log.segment.bytes", _INT, 100 << 20, _HIGH,
        "The segment size of __transaction_state.", minimum=14,
    ),
    _broker(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms", _INT, 10 * SECOND_MS, _LOW,
        "How often transactions that took too long are looked for.", minimum=1,
    ),
    _broker(
        "transaction.remove.expired.transaction.cleanup.interval.ms", _INT, HOUR_MS, _LOW,
        "How often unused transactional ids are looked for.", minimum=1,
    ),
    _broker(
        "add.partitions.to.txn.retry.backoff.ms", _INT, 20, _HIGH,
        "How long adding a partition waits for a busy coordinator, and a leader before it asks again.",
        minimum=1,
    ),
    _broker(
        "add.partitions.to.txn.retry.backoff.max.ms", _INT, 100, _HIGH,
        "For how long a leader does so before the producer is told; at most `request.timeout.ms`.", minimum=0,
    ),
    _broker(
        "transaction.partition.verification.enable", _BOOLEAN, True, _LOW,
        "Whether a partition checks that it belongs to the transaction before it takes a record.",
        update_mode=_CLUSTER,
    ),
)  # fmt: skip

_OWN = (
    _broker(
        "tidelog.validate.records", _STRING, "needed", _MEDIUM,
        "Whether the broker reads every record (always) or only where a topic's settings need it (needed).",
        choices=("needed", "always"),
    ),
    _broker(
        "tidelog.lost.directories", _LIST, (), _MEDIUM,
        "Ids of log directories of this broker that are lost for good: an empty one may take their place and "
        "their replicas are copied from other brokers.",
    ),
    _broker(
        "tidelog.parked.requests.max", _INT, 20_000, _MEDIUM,
        "How many requests may wait (long polls, acks=all, joins) before new ones are answered at once.",
        minimum=1,
    ),
    _broker(
        "tidelog.connection.requests.max", _INT, 64, _MEDIUM,
        "How many requests of one connection may be in flight before the broker stops reading from it.",
        minimum=1,
    ),
    _broker(
        "tidelog.request.elements.max", _INT, 50_000, _MEDIUM,
        "How many topics, partitions and other elements one request may name, but for Produce and Fetch; "
        "50,000 take half a second, in slices.", minimum=1_000,
    ),
    _broker(
        "tidelog.decompressed.bytes.max", _INT, 128 << 20, _MEDIUM,
        "The largest a batch may become when it is decompressed.", minimum=1 << 20,
    ),
    _broker(
        "tidelog.partitions.max", _INT, 200_000, _MEDIUM,
        "How many partitions the cluster may hold.", minimum=1,
    ),
)  # fmt: skip

BROKER_SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for group in (
        *(_NODE, _NETWORK, SECURITY_SETTINGS, ACCESS_SETTINGS, _DATA, COORDINATION_SETTINGS),
        *(REPLICATION_SETTINGS, _LOG, _CLEANER, _GROUPS, SHARE_SETTINGS, _TRANSACTIONS),
        *(METRICS_SETTINGS, _OWN, NOTED_SETTINGS, REFUSED_SETTINGS),
    )
    for setting in group
}

_TOPIC_ROWS = (
    _topic(
        "cleanup.policy", _LIST, ("delete",),
        "What happens to old records: delete by age and size, compact to the last of each key, or both.",
        Synonym("log.cleanup.policy"), choices=("compact", "delete"),
    ),
    _topic(
        "compression.type", _STRING, "producer",
        "How batches are compressed on disk: a codec, uncompressed, or producer to keep what was sent.",
        Synonym("compression.type"), choices=_COMPRESSION_TYPES,
    ),
    _topic(
        "compression.gzip.level", _INT, -1, "The gzip level used when the broker compresses.",
        Synonym("compression.gzip.level"), choices=_GZIP_LEVELS,
    ),
    _topic(
        "compression.lz4.level", _INT, 9, "The lz4 level used when the broker compresses.",
        Synonym("compression.lz4.level"), minimum=1, maximum=17,
    ),
    _topic(
        "compression.zstd.level", _INT, 3, "The zstd level used when the broker compresses.",
        Synonym("compression.zstd.level"), minimum=-131_072, maximum=22,
    ),
    _topic(
        "delete.retention.ms", _LONG, DAY_MS, "How long a delete marker stays readable after compaction.",
        Synonym("log.cleaner.delete.retention.ms"), minimum=0,
    ),
    _topic(
        "file.delete.delay.ms", _LONG, MINUTE_MS,
        "How long a deleted file stays on disk, for readers that still use it.",
        Synonym("log.segment.delete.delay.ms"), minimum=0,
    ),
    _topic(
        "flush.messages", _LONG, INT64_MAX, "After how many records a partition is forced to disk.",
        Synonym("log.flush.interval.messages"), minimum=1,
    ),
    _topic(
        "flush.ms", _LONG, INT64_MAX, "After how long a record is forced to disk.",
        Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms"), minimum=0,
    ),
    _topic(
        "follower.replication.throttled.replicas", _LIST, (),
        "The replicas (<partition>:<broker>, or *) that fetch at follower.replication.throttled.rate.",
    ),
    _topic(
        "index.interval.bytes", _INT, 4096,
        "How many bytes of records lie between two entries of the offset index.",
        Synonym("log.index.interval.bytes"), minimum=0,
    ),
    _topic(
        "leader.replication.throttled.replicas", _LIST, (),
        "The leaders (<partition>:<broker>, or *) that send at leader.replication.throttled.rate.",
    ),
    _topic(
        "local.retention.bytes", _LONG, -2,
        "How many bytes stay on local disk with remote storage, which there is none of here.",
        Synonym("log.local.retention.bytes"), minimum=-2, inert=True,
    ),
    _topic(
        "local.retention.ms", _LONG, -2,
        "How long records stay on local disk with remote storage, which there is none of here.",
        Synonym("log.local.retention.ms"), minimum=-2, inert=True,
    ),
    _topic(
        "max.compaction.lag.ms", _LONG, INT64_MAX,
        "How old a record may become before its log is compacted in any case.",
        Synonym("log.cleaner.max.compaction.lag.ms"), minimum=1,
    ),
    _topic(
        "max.message.bytes", _INT, 1_048_588, "The largest record batch accepted, after compression.",
        Synonym("message.max.bytes"), minimum=0,
    ),
    _topic(
        "message.timestamp.after.max.ms",
        _LONG, HOUR_MS, "How far in the future the time of a record may lie.",
        Synonym("log.message.timestamp.after.max.ms"), minimum=0,
    ),
    _topic(
        "message.timestamp.before.max.ms",
        _LONG, INT64_MAX, "How far in the past the time of a record may lie.",
        Synonym("log.message.timestamp.before.max.ms"), minimum=0,
    ),
    _topic(
        "message.timestamp.type", _STRING, "CreateTime",
        "Whether a record carries the time its producer set or the time it was appended.",
        Synonym("log.message.timestamp.type"), choices=("CreateTime", "LogAppendTime"),
    ),
    _topic(
        "min.cleanable.dirty.ratio", _DOUBLE, 0.5,
        "How much of a log must be uncompacted before it is compacted.",
        Synonym("log.cleaner.min.cleanable.ratio"), minimum=0, maximum=1,
    ),
    _topic(
        "min.compaction.lag.ms", _LONG, 0, "How old a record must be before it may be compacted away.",
        Synonym("log.cleaner.min.compaction.lag.ms"), minimum=0,
    ),
    _topic(
        "min.insync.replicas", _INT, 1, "How many in-sync replicas a write with acks=all needs.",
        Synonym("min.insync.replicas"), minimum=1,
    ),
    _topic(
        "preallocate", _BOOLEAN, False,
        "Whether segments are allocated in full when they begin; here they grow.",
        Synonym("log.preallocate"), inert=True,
    ),
    _topic(
        "remote.log.copy.disable", _BOOLEAN, False,
        "Whether copying to remote storage, which there is none of here, is stopped.", inert=True,
    ),
    _topic(
        "remote.log.delete.on.disable", _BOOLEAN, False,
        "Whether remote data goes when remote storage, which there is none of here, is switched off.",
        inert=True,
    ),
    _topic(
        "remote.storage.enable", _BOOLEAN, False, "Whether old segments move to remote storage.",
        refused="there is no remote storage",
    ),
    _topic(
        "retention.bytes", _LONG, -1,
        "How large a partition may grow before its oldest segments go; -1 sets no limit.",
        Synonym("log.retention.bytes"),
    ),
    _topic(
        "retention.ms", _LONG, 7 * DAY_MS, "How long records are kept; -1 is for ever.",
        Synonym("log.retention.ms"), Synonym("log.retention.minutes", MINUTE_MS),
        Synonym("log.retention.hours", HOUR_MS), minimum=-1,
    ),
    _topic(
        "segment.bytes", _INT, 1 << 30, "The size at which a new segment begins.",
        Synonym("log.segment.bytes"), minimum=14,
    ),
    _topic(
        "segment.index.bytes",
        _INT, 10 << 20, "The largest an offset index grows before a new segment begins.",
        Synonym("log.index.size.max.bytes"), minimum=4,
    ),
    _topic(
        "segment.jitter.ms", _LONG, 0, "The most by which segment.ms is shortened at random.",
        Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", HOUR_MS), minimum=0,
    ),
    _topic(
        "segment.ms", _LONG, 7 * DAY_MS, "The age at which a new segment begins.",
        Synonym("log.roll.ms"), Synonym("log.roll.hours", HOUR_MS), minimum=1,
    ),
    _topic(
        "unclean.leader.election.enable", _BOOLEAN, False,
        "Whether a replica outside the in-sync set may lead, losing records.",
        Synonym("unclean.leader.election.enable"),
    ),
    _topic(
        "errors.deadletterqueue.group.enable", _BOOLEAN, False,
        "Whether share groups may write their dead letters to the topic (KIP-1191).",
    ),
    *DELIVERY_SETTINGS,
)  # fmt: skip

TOPIC_SETTINGS: dict[str, Setting] = {setting.name: setting for setting in _TOPIC_ROWS}
