"""Kafka's settings that are accepted here and change nothing: they tune what this broker does in another way.

A broker says at its start which of them were set. DescribeConfigs shows them as Kafka would. What would
promise more than the broker keeps is in `refused_settings` instead.
"""

from tidelog.model.setting_rows import INT32_MAX, INT64_MAX, Importance, Setting, SettingType, UpdateMode
from tidelog.model.setting_rows import noted_setting as _noted

_BOOLEAN, _DOUBLE, _INT, _LIST = SettingType.BOOLEAN, SettingType.DOUBLE, SettingType.INT, SettingType.LIST
_LONG, _SHORT, _STRING = SettingType.LONG, SettingType.SHORT, SettingType.STRING
_HIGH, _LOW, _MEDIUM = Importance.HIGH, Importance.LOW, Importance.MEDIUM
_CLUSTER_WIDE, _PER_BROKER = UpdateMode.CLUSTER_WIDE, UpdateMode.PER_BROKER

_THREADS = (
    _noted(
        "num.network.threads", _INT, 3, _HIGH,
        "Threads that read requests and send answers; here one event loop does.",
        minimum=1, update_mode=_CLUSTER_WIDE,
    ),
    _noted(
        "num.io.threads", _INT, 8, _HIGH,
        "Threads that serve requests; here one event loop does.", minimum=1, update_mode=_CLUSTER_WIDE,
    ),
    _noted(
        "num.replica.alter.log.dirs.threads", _INT, None, _HIGH,
        "Threads that move logs between data folders; here `background.threads` do.",
    ),
    _noted(
        "group.coordinator.threads", _INT, 4, _HIGH,
        "Threads of the group coordinator; here the event loop serves groups.", minimum=1,
    ),
    _noted(
        "group.coordinator.background.threads", _INT, 2, _HIGH,
        "Threads that compute assignments and expressions; here the event loop does.", minimum=1,
    ),
)  # fmt: skip

_COORDINATORS = (
    _noted(
        "group.coordinator.append.linger.ms", _INT, -1, _MEDIUM,
        "How long records of groups are gathered before they are written; here they are written at once.",
        minimum=-1,
    ),
    _noted(
        "group.coordinator.cached.buffer.max.bytes", _INT, 1_048_588, _MEDIUM,
        "The largest buffer for records of groups that is kept.",
        minimum=524_288, update_mode=_CLUSTER_WIDE,
    ),
    _noted(
        "group.consumer.assignment.interval.ms", _INT, 1_000, _MEDIUM,
        "How long to wait between two assignments of a group; here each change is assigned at once.",
        minimum=0, update_mode=_CLUSTER_WIDE,
    ),
    _noted(
        "group.consumer.min.assignment.interval.ms", _INT, 0, _MEDIUM,
        "The least `consumer.assignment.interval.ms` of a group.", minimum=0,
    ),
    _noted(
        "group.consumer.max.assignment.interval.ms", _INT, 15_000, _MEDIUM,
        "The most `consumer.assignment.interval.ms` of a group.", minimum=0,
    ),
    _noted(
        "offsets.load.buffer.size", _INT, 5_242_880, _HIGH,
        "How much of __consumer_offsets is read at once when a coordinator loads it.", minimum=1,
    ),
    _noted(
        "offsets.topic.compression.codec", _INT, 0, _HIGH,
        "How records of __consumer_offsets are compressed; here they are not.",
    ),
    _noted(
        "transaction.state.log.load.buffer.size", _INT, 5_242_880, _HIGH,
        "How much of __transaction_state is read at once when a coordinator loads it.", minimum=1,
    ),
)  # fmt: skip

_PURGATORIES = (
    _noted(
        "producer.purgatory.purge.interval.requests", _INT, 1_000, _MEDIUM,
        "After how many requests finished waits are forgotten; here at once.",
    ),
    _noted(
        "fetch.purgatory.purge.interval.requests", _INT, 1_000, _MEDIUM,
        "After how many requests finished waits are forgotten; here at once.",
    ),
    _noted(
        "delete.records.purgatory.purge.interval.requests", _INT, 1, _MEDIUM,
        "After how many requests finished waits are forgotten; here at once.",
    ),
    _noted(
        "share.fetch.purgatory.purge.interval.requests", _INT, 1_000, _MEDIUM,
        "After how many requests finished waits are forgotten; here at once.",
    ),
)  # fmt: skip

_REPLICATION = (
    _noted(
        "replica.socket.receive.buffer.bytes", _INT, 65_536, _HIGH,
        "The receive buffer of a follower's socket; here it is left to the system.",
    ),
    _noted(
        "replication.quota.window.num", _INT, 11, _LOW,
        "Over how many windows throttled replication is measured.", minimum=1,
    ),
    _noted(
        "replication.quota.window.size.seconds", _INT, 1, _LOW,
        "How long a window of throttled replication is.", minimum=1,
    ),
    _noted(
        "alter.log.dirs.replication.quota.window.num", _INT, 11, _LOW,
        "Over how many windows throttled moves between data folders are measured.", minimum=1,
    ),
    _noted(
        "alter.log.dirs.replication.quota.window.size.seconds", _INT, 1, _LOW,
        "How long a window of throttled moves between data folders is.", minimum=1,
    ),
    _noted(
        "log.cleaner.io.buffer.load.factor", _DOUBLE, 0.9, _MEDIUM,
        "How full the cleaner's table of keys may get.", update_mode=_CLUSTER_WIDE,
    ),
)  # fmt: skip

_CLUSTER = (
    _noted(
        "broker.heartbeat.interval.ms", _INT, 2_000, _MEDIUM,
        "How often a broker tells the controller that it lives; here the session in the store does.",
    ),
    _noted(
        "initial.broker.registration.timeout.ms", _INT, 60_000, _MEDIUM,
        "How long a broker tries to register when it starts.",
    ),
    _noted(
        "controller.socket.timeout.ms", _INT, 30_000, _MEDIUM,
        "How long a connection to the controller may be silent.",
    ),
    _noted(
        "socket.connection.setup.timeout.ms", _LONG, 10_000, _MEDIUM,
        "How long connecting to another broker may take at first.",
    ),
    _noted(
        "socket.connection.setup.timeout.max.ms", _LONG, 30_000, _MEDIUM,
        "How long connecting to another broker may take in the end.",
    ),
    _noted(
        "controller.quorum.append.linger.ms", _INT, 25, _MEDIUM,
        "How long the leader of the metadata log gathers records.", minimum=0,
    ),
    _noted(
        "controller.quorum.election.timeout.ms", _INT, 1_000, _HIGH,
        "How long a controller waits for a leader before it stands for election.", minimum=0,
    ),
    _noted(
        "controller.quorum.election.backoff.max.ms", _INT, 1_000, _HIGH,
        "How long a controller waits after a lost election.", minimum=0,
    ),
    _noted(
        "controller.quorum.fetch.timeout.ms", _INT, 2_000, _HIGH,
        "How long a controller waits for its leader.", minimum=0,
    ),
    _noted(
        "controller.quorum.fetch.max.bytes", _INT, 1_048_576, _LOW,
        "How much of the metadata log one fetch has.", minimum=1,
    ),
    _noted(
        "controller.quorum.fetch.snapshot.max.bytes", _INT, 1_048_576, _LOW,
        "How much of a snapshot of the metadata one fetch has.", minimum=1,
    ),
    _noted(
        "controller.quorum.request.timeout.ms", _INT, 2_000, _MEDIUM,
        "How long a request between controllers may take.", minimum=0,
    ),
    _noted(
        "controller.quorum.retry.backoff.ms", _INT, 20, _LOW,
        "How long a controller waits before it tries again.", minimum=0,
    ),
    _noted(
        "metadata.log.max.record.bytes.between.snapshots", _LONG, 20_971_520, _HIGH,
        "After how many bytes a snapshot of the metadata is written.", minimum=1,
    ),
    _noted(
        "metadata.log.max.snapshot.interval.ms", _LONG, 3_600_000, _HIGH,
        "After how long a snapshot of the metadata is written.", minimum=0,
    ),
    _noted(
        "metadata.log.segment.bytes", _INT, 1_073_741_824, _HIGH,
        "The segment size of the metadata log.", minimum=8_388_608,
    ),
    _noted(
        "metadata.log.segment.ms", _LONG, 604_800_000, _HIGH,
        "The segment age of the metadata log.",
    ),
    _noted(
        "metadata.max.idle.interval.ms", _INT, 500, _LOW,
        "How often an idle metadata log gets a record.", minimum=0,
    ),
    _noted(
        "metadata.max.retention.bytes", _LONG, 104_857_600, _HIGH,
        "How large the metadata log may grow.",
    ),
    _noted(
        "metadata.max.retention.ms", _LONG, 604_800_000, _HIGH,
        "How long the metadata log is kept.",
    ),
)  # fmt: skip

_METRICS = (
    _noted(
        "kafka.metrics.polling.interval.secs", _INT, 10, _LOW,
        "How often reporters of metrics are asked; there are none here.", minimum=1,
    ),
    _noted(
        "metrics.num.samples", _INT, 2, _LOW,
        "Over how many samples Kafka's metrics are computed.", minimum=1,
    ),
    _noted(
        "metrics.recording.level", _STRING, "INFO", _LOW,
        "Which of Kafka's metrics are recorded.", choices=("INFO", "DEBUG", "TRACE"),
    ),
    _noted(
        "metrics.sample.window.ms", _LONG, 30_000, _LOW,
        "How long a sample of Kafka's metrics is.", minimum=1,
    ),
    _noted(
        "telemetry.max.bytes", _INT, 1_048_576, _LOW,
        "The largest push of client metrics, which are not taken here.", minimum=1,
    ),
)  # fmt: skip

_LOGIN = (
    _noted(
        "sasl.kerberos.kinit.cmd", _STRING, "/usr/bin/kinit", _MEDIUM,
        "The kinit of Kerberos, which is not offered here.", update_mode=_PER_BROKER,
    ),
    _noted(
        "sasl.kerberos.min.time.before.relogin", _LONG, 60_000, _MEDIUM,
        "How often Kerberos tickets are looked at.", update_mode=_PER_BROKER,
    ),
    _noted(
        "sasl.kerberos.ticket.renew.jitter", _DOUBLE, 0.05, _MEDIUM,
        "How much chance is in the renewal of Kerberos tickets.", update_mode=_PER_BROKER,
    ),
    _noted(
        "sasl.kerberos.ticket.renew.window.factor", _DOUBLE, 0.8, _MEDIUM,
        "When Kerberos tickets are renewed.", update_mode=_PER_BROKER,
    ),
    _noted(
        "sasl.login.connect.timeout.ms", _INT, None, _LOW,
        "How long connecting to a server of tokens may take.",
    ),
    _noted(
        "sasl.login.read.timeout.ms", _INT, None, _LOW,
        "How long a server of tokens may take to answer.",
    ),
    _noted(
        "sasl.login.refresh.buffer.seconds", _SHORT, 300, _MEDIUM,
        "How long before its end a broker's own token is renewed.", update_mode=_PER_BROKER,
    ),
    _noted(
        "sasl.login.refresh.min.period.seconds", _SHORT, 60, _MEDIUM,
        "How long a broker's own token is kept at least.", update_mode=_PER_BROKER,
    ),
    _noted(
        "sasl.login.refresh.window.factor", _DOUBLE, 0.8, _MEDIUM,
        "After which part of its life a broker's own token is renewed.", update_mode=_PER_BROKER,
    ),
    _noted(
        "sasl.login.refresh.window.jitter", _DOUBLE, 0.05, _MEDIUM,
        "How much chance is in the renewal of a broker's own token.", update_mode=_PER_BROKER,
    ),
    _noted(
        "sasl.login.retry.backoff.ms", _LONG, 100, _LOW,
        "How long to wait at first before a server of tokens is asked again.",
    ),
    _noted(
        "sasl.login.retry.backoff.max.ms", _LONG, 10_000, _LOW,
        "How long to wait in the end before a server of tokens is asked again.",
    ),
    _noted(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", _LONG, 10_000, _LOW,
        "How long to wait in the end before the keys of tokens are asked for again.",
    ),
)  # fmt: skip

_SHARE_GROUPS = (
    _noted(
        "group.share.assignment.interval.ms", _INT, 1_000, _MEDIUM,
        "How long to wait between two assignments of a share group; here each change is assigned at once.",
        minimum=0, update_mode=_CLUSTER_WIDE,
    ),
    _noted(
        "group.share.assignors", _LIST, ("simple",), _MEDIUM,
        "Who assigns partitions to members of share groups; here the simple assignor does.",
    ),
    _noted(
        "group.share.max.assignment.interval.ms", _INT, 15_000, _MEDIUM,
        "The most `share.assignment.interval.ms` of a group.", minimum=0,
    ),
    _noted(
        "group.share.min.assignment.interval.ms", _INT, 0, _MEDIUM,
        "The least `share.assignment.interval.ms` of a group.", minimum=0,
    ),
    _noted(
        "share.coordinator.append.linger.ms", _INT, -1, _MEDIUM,
        "How long records of share groups are gathered before they are written; here they are "
        "written at once.",
        minimum=-1,
    ),
    _noted(
        "share.coordinator.cached.buffer.max.bytes", _INT, 1_048_588, _MEDIUM,
        "The largest buffer for records of share groups that is kept.",
        minimum=524_288, update_mode=_CLUSTER_WIDE,
    ),
    _noted(
        "share.coordinator.load.buffer.size", _INT, 5_242_880, _HIGH,
        "How much of __share_group_state is read at once when a share coordinator loads it.", minimum=1,
    ),
    _noted(
        "share.coordinator.state.topic.compression.codec", _INT, 0, _HIGH,
        "How records of share groups are compressed; here they are not.",
    ),
    _noted(
        "share.coordinator.threads", _INT, 1, _MEDIUM,
        "Threads of the share coordinator; here the event loop serves it.", minimum=1,
    ),
)  # fmt: skip

_STREAMS_GROUPS = (
    _noted(
        "group.streams.assignment.interval.ms", _INT, 1_000, _MEDIUM,
        "Streams groups, which there are none of here: assignment interval.",
        minimum=0, update_mode=_CLUSTER_WIDE,
    ),
    _noted(
        "group.streams.heartbeat.interval.ms", _INT, 5_000, _MEDIUM,
        "Streams groups, which there are none of here: heartbeat interval.", minimum=1,
    ),
    _noted(
        "group.streams.initial.rebalance.delay.ms", _INT, 3_000, _MEDIUM,
        "Streams groups, which there are none of here: initial rebalance delay.", minimum=0,
    ),
    _noted(
        "group.streams.max.assignment.interval.ms", _INT, 15_000, _MEDIUM,
        "Streams groups, which there are none of here: max assignment interval.", minimum=0,
    ),
    _noted(
        "group.streams.max.heartbeat.interval.ms", _INT, 15_000, _MEDIUM,
        "Streams groups, which there are none of here: max heartbeat interval.", minimum=1,
    ),
    _noted(
        "group.streams.max.session.timeout.ms", _INT, 60_000, _MEDIUM,
        "Streams groups, which there are none of here: max session timeout.", minimum=1,
    ),
    _noted(
        "group.streams.max.size", _INT, INT32_MAX, _MEDIUM,
        "Streams groups, which there are none of here: max size.", minimum=1,
    ),
    _noted(
        "group.streams.max.standby.replicas", _INT, 2, _MEDIUM,
        "Streams groups, which there are none of here: max standby replicas.", minimum=0,
    ),
    _noted(
        "group.streams.min.assignment.interval.ms", _INT, 0, _MEDIUM,
        "Streams groups, which there are none of here: min assignment interval.", minimum=0,
    ),
    _noted(
        "group.streams.min.heartbeat.interval.ms", _INT, 5_000, _MEDIUM,
        "Streams groups, which there are none of here: min heartbeat interval.", minimum=1,
    ),
    _noted(
        "group.streams.min.session.timeout.ms", _INT, 45_000, _MEDIUM,
        "Streams groups, which there are none of here: min session timeout.", minimum=1,
    ),
    _noted(
        "group.streams.num.standby.replicas", _INT, 0, _MEDIUM,
        "Streams groups, which there are none of here: num standby replicas.", minimum=0,
    ),
    _noted(
        "group.streams.session.timeout.ms", _INT, 45_000, _MEDIUM,
        "Streams groups, which there are none of here: session timeout.", minimum=1,
    ),
)  # fmt: skip

_REMOTE_STORAGE = (
    _noted(
        "remote.fetch.max.wait.ms", _INT, 500, _MEDIUM,
        "Remote storage, which there is none of here: fetch max wait.",
        minimum=1, update_mode=_CLUSTER_WIDE,
    ),
    _noted(
        "remote.list.offsets.request.timeout.ms", _LONG, 30_000, _MEDIUM,
        "Remote storage, which there is none of here: list offsets request timeout.",
        minimum=1, update_mode=_CLUSTER_WIDE,
    ),
    _noted(
        "remote.log.index.file.cache.total.size.bytes", _LONG, 1_073_741_824, _LOW,
        "Remote storage, which there is none of here: index file cache total size bytes.",
        minimum=1, update_mode=_CLUSTER_WIDE,
    ),
    _noted(
        "remote.log.manager.copier.thread.pool.size", _INT, 10, _MEDIUM,
        "Remote storage, which there is none of here: manager copier thread pool size.",
        minimum=1, update_mode=_CLUSTER_WIDE,
    ),
    _noted(
        "remote.log.manager.copy.max.bytes.per.second", _LONG, INT64_MAX, _MEDIUM,
        "Remote storage, which there is none of here: manager copy max bytes per second.",
        minimum=1, update_mode=_CLUSTER_WIDE,
    ),
    _noted(
        "remote.log.manager.copy.quota.window.num", _INT, 11, _MEDIUM,
        "Remote storage, which there is none of here: manager copy quota window num.", minimum=1,
    ),
    _noted(
        "remote.log.manager.copy.quota.window.size.seconds", _INT, 1, _MEDIUM,
        "Remote storage, which there is none of here: manager copy quota window size seconds.", minimum=1,
    ),
    _noted(
        "remote.log.manager.expiration.thread.pool.size", _INT, 10, _MEDIUM,
        "Remote storage, which there is none of here: manager expiration thread pool size.",
        minimum=1, update_mode=_CLUSTER_WIDE,
    ),
    _noted(
        "remote.log.manager.fetch.max.bytes.per.second", _LONG, INT64_MAX, _MEDIUM,
        "Remote storage, which there is none of here: manager fetch max bytes per second.",
        minimum=1, update_mode=_CLUSTER_WIDE,
    ),
    _noted(
        "remote.log.manager.fetch.quota.window.num", _INT, 11, _MEDIUM,
        "Remote storage, which there is none of here: manager fetch quota window num.", minimum=1,
    ),
    _noted(
        "remote.log.manager.fetch.quota.window.size.seconds", _INT, 1, _MEDIUM,
        "Remote storage, which there is none of here: manager fetch quota window size seconds.", minimum=1,
    ),
    _noted(
        "remote.log.manager.follower.thread.pool.size", _INT, 2, _MEDIUM,
        "Remote storage, which there is none of here: manager follower thread pool size.",
        minimum=1, update_mode=_CLUSTER_WIDE,
    ),
    _noted(
        "remote.log.manager.task.interval.ms", _LONG, 30_000, _LOW,
        "Remote storage, which there is none of here: manager task interval.", minimum=1,
    ),
    _noted(
        "remote.log.manager.thread.pool.size", _INT, 2, _MEDIUM,
        "Remote storage, which there is none of here: manager thread pool size.", minimum=1,
    ),
    _noted(
        "remote.log.metadata.custom.metadata.max.bytes", _INT, 128, _LOW,
        "Remote storage, which there is none of here: metadata custom metadata max bytes.", minimum=0,
    ),
    _noted(
        "remote.log.metadata.manager.class.name", _STRING,
        "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager",
        _MEDIUM,
        "Remote storage, which there is none of here: metadata manager class name.",
    ),
    _noted(
        "remote.log.metadata.manager.class.path", _STRING, None, _MEDIUM,
        "Remote storage, which there is none of here: metadata manager class path.",
    ),
    _noted(
        "remote.log.metadata.manager.impl.prefix", _STRING, "rlmm.config.", _MEDIUM,
        "Remote storage, which there is none of here: metadata manager impl prefix.",
    ),
    _noted(
        "remote.log.metadata.manager.listener.name", _STRING, None, _MEDIUM,
        "Remote storage, which there is none of here: metadata manager listener name.",
    ),
    _noted(
        "remote.log.reader.max.pending.tasks", _INT, 100, _MEDIUM,
        "Remote storage, which there is none of here: reader max pending tasks.", minimum=1,
    ),
    _noted(
        "remote.log.reader.threads", _INT, 10, _MEDIUM,
        "Remote storage, which there is none of here: reader threads.",
        minimum=1, update_mode=_CLUSTER_WIDE,
    ),
    _noted(
        "remote.log.storage.manager.class.name", _STRING, None, _MEDIUM,
        "Remote storage, which there is none of here: storage manager class name.",
    ),
    _noted(
        "remote.log.storage.manager.class.path", _STRING, None, _MEDIUM,
        "Remote storage, which there is none of here: storage manager class path.",
    ),
    _noted(
        "remote.log.storage.manager.impl.prefix", _STRING, "rsm.config.", _MEDIUM,
        "Remote storage, which there is none of here: storage manager impl prefix.",
    ),
    _noted(
        "log.local.retention.bytes", _LONG, -2, _MEDIUM,
        "How many bytes stay on local disk with remote storage, which there is none of here.",
        minimum=-2, update_mode=_CLUSTER_WIDE,
    ),
    _noted(
        "log.local.retention.ms", _LONG, -2, _MEDIUM,
        "How long records stay on local disk with remote storage, which there is none of here.",
        minimum=-2, update_mode=_CLUSTER_WIDE,
    ),
    _noted(
        "follower.fetch.last.tiered.offset.enable", _BOOLEAN, False, _MEDIUM,
        "Whether a new follower begins behind what remote storage has, which there is none of here.",
        update_mode=_CLUSTER_WIDE,
    ),
)  # fmt: skip

NOTED_SETTINGS: tuple[Setting, ...] = (
    *_THREADS,
    *_COORDINATORS,
    *_PURGATORIES,
    *_REPLICATION,
    *_CLUSTER,
    *_METRICS,
    *_LOGIN,
    *_SHARE_GROUPS,
    *_STREAMS_GROUPS,
    *_REMOTE_STORAGE,
)
