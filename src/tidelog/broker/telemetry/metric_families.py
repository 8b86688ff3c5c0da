"""Every metric a broker exports, as data: name, kind, meaning, labels.

`docs/metrics.md` lists them, the Grafana dashboard uses them, and tests hold all three against each other. A
sample of a family that is not in the table cannot be written (see `exposition`).
"""

from enum import Enum
from typing import NamedTuple


class Kind(Enum):
    """Prometheus' kinds of metrics."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class MetricFamily(NamedTuple):
    """A metric, with all its labels."""

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()


_COUNTER, _GAUGE, _HISTOGRAM = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

_ROWS = (
    # requests
    MetricFamily("tidelog_request_seconds", _HISTOGRAM,
        "From the arrival of a request to its answer, waiting for data or replicas included.", ("api",)),
    MetricFamily("tidelog_request_errors_total", _COUNTER,
        "Error codes in answers; one answer may carry several.", ("api", "error")),
    MetricFamily("tidelog_parked_requests", _GAUGE, "Requests that wait for data, the disk or replicas."),
    MetricFamily("tidelog_fetch_sessions", _GAUGE, "Incremental fetch sessions that are kept."),
    # topics
    MetricFamily("tidelog_topic_bytes_in_total", _COUNTER,
        "Bytes of batches appended by the leaders here.", ("topic",)),
    MetricFamily("tidelog_topic_messages_in_total", _COUNTER,
        "Messages appended by the leaders here, control records included.", ("topic",)),
    MetricFamily("tidelog_topic_bytes_out_total", _COUNTER,
        "Bytes of batches sent to consumers.", ("topic",)),
    MetricFamily("tidelog_topic_messages_out_total", _COUNTER,
        "Offsets that answers to consumers passed over.", ("topic",)),
    MetricFamily("tidelog_topic_log_size_bytes", _GAUGE,
        "Bytes of all segments of the replicas here, led or followed.", ("topic",)),
    MetricFamily("tidelog_topic_segments", _GAUGE, "Segments of the replicas here.", ("topic",)),
    MetricFamily("tidelog_topic_segment_rolls_total", _COUNTER, "Segments begun, found once a second.",
        ("topic",)),
    MetricFamily("tidelog_topics_left_out", _GAUGE,
        "Topics without series of their own because of tidelog.metrics.topics.max."),
    # replicas
    MetricFamily("tidelog_partitions_led", _GAUGE, "Partitions that this broker leads."),
    MetricFamily("tidelog_partitions_followed", _GAUGE, "Partitions that this broker follows."),
    MetricFamily("tidelog_under_replicated_partitions", _GAUGE,
        "Partitions led here with fewer replicas in sync than replicas."),
    MetricFamily("tidelog_under_min_isr_partitions", _GAUGE,
        "Partitions led here with fewer replicas in sync than min.insync.replicas."),
    MetricFamily("tidelog_offline_replicas", _GAUGE,
        "Replicas whose log directory is not there or has failed (Kafka's OfflineReplicaCount)."),
    MetricFamily("tidelog_refused_cuts", _GAUGE,
        "Replicas here that do not follow their leader, because it lacks committed records."),
    MetricFamily("tidelog_committed_cuts_total", _COUNTER,
        "Times a replica here lost committed records, after an unclean election."),
    MetricFamily("tidelog_unopened_topics", _GAUGE, "Topics with a log that the disk would not let us open."),
    MetricFamily("tidelog_isr_shrinks_total", _COUNTER,
        "Times a replica left the ISR of a partition led here."),
    MetricFamily("tidelog_isr_expands_total", _COUNTER,
        "Times a replica joined the ISR of a partition led here."),
    MetricFamily("tidelog_replication_bytes_in_total", _COUNTER, "Bytes that the followers here appended."),
    MetricFamily("tidelog_replication_bytes_out_total", _COUNTER, "Bytes read for followers elsewhere."),
    # the cluster
    MetricFamily("tidelog_active_controller", _GAUGE, "1 where this broker is the controller."),
    MetricFamily("tidelog_controller_epoch", _GAUGE,
        "The epoch of the controller; exported by the controller."),
    MetricFamily("tidelog_offline_partitions", _GAUGE,
        "Partitions of the cluster without a leader; exported by the controller."),
    MetricFamily("tidelog_cluster_partitions", _GAUGE,
        "Partitions of the cluster; exported by the controller."),
    MetricFamily("tidelog_cluster_topics", _GAUGE, "Topics of the cluster; exported by the controller."),
    MetricFamily("tidelog_alive_brokers", _GAUGE, "Brokers that are alive, as this broker knows."),
    MetricFamily("tidelog_leader_elections_total", _COUNTER,
        "Leaders elected while this broker was the controller.", ("clean",)),
    MetricFamily("tidelog_metadata_sequence", _GAUGE,
        "The number of the last metadata change that this broker knows; the differences between brokers "
        "are their lag."),
    MetricFamily("tidelog_broker_registered", _GAUGE, "1 while the cluster knows this life of the broker."),
    MetricFamily("tidelog_stalls_total", _COUNTER,
        "Sessions that this broker gave up because its event loop, or a disk, made no progress.", ("cause",)),
    MetricFamily("tidelog_disk_silent_seconds", _GAUGE,
        "For how long a disk of a log directory has not answered; 0 while all do."),
    MetricFamily("tidelog_session_losses_total", _COUNTER,
        "Sessions with the coordination store that were lost."),
    # the disk
    MetricFamily("tidelog_offline_directories", _GAUGE,
        "Log directories that are not used (Kafka's OfflineLogDirectoryCount)."),
    MetricFamily("tidelog_flush_seconds", _HISTOGRAM,
        "From the request of a sync to its end, waiting for a thread included."),
    MetricFamily("tidelog_flush_failures_total", _COUNTER, "Syncs that failed."),
    MetricFamily("tidelog_cleaner_rounds_total", _COUNTER, "Logs compacted."),
    MetricFamily("tidelog_cleaner_failures_total", _COUNTER, "Compactions that failed."),
    MetricFamily("tidelog_cleaner_records_read_total", _COUNTER, "Records that compaction read."),
    MetricFamily("tidelog_cleaner_records_kept_total", _COUNTER, "Records that compaction kept."),
    MetricFamily("tidelog_cleaner_bytes_read_total", _COUNTER, "Bytes that compaction read."),
    MetricFamily("tidelog_cleaner_bytes_written_total", _COUNTER, "Bytes that compaction wrote."),
    MetricFamily("tidelog_cleaner_uncleanable_partitions", _GAUGE,
        "Logs whose last compaction failed; the others are compacted (Kafka's uncleanable-partitions-count).",
        ("log_dir",)),
    MetricFamily("tidelog_cleaner_uncleanable_bytes", _GAUGE,
        "Bytes of those logs (Kafka's uncleanable-bytes).", ("log_dir",)),
    MetricFamily("tidelog_cleaner_seconds_since_last_run", _GAUGE,
        "Since the cleaner last compacted a log, or found none that needs it (Kafka's time-since-last-run)."),
    MetricFamily("tidelog_cleaner_dead_threads", _GAUGE,
        "1 while the cleaner fails; it is tried again (Kafka's DeadThreadCount)."),
    # background jobs
    MetricFamily("tidelog_background_runs_total", _COUNTER, "Times a background job went well.", ("job",)),
    MetricFamily("tidelog_background_failures_total", _COUNTER,
        "Times a background job failed, for one log or as a whole.", ("job",)),
    MetricFamily("tidelog_background_failing", _GAUGE,
        "Failures of a background job since it last went well; 0 where all is well.", ("job",)),
    MetricFamily("tidelog_background_seconds_since_last_run", _GAUGE,
        "Since a background job last went well.", ("job",)),
    MetricFamily("tidelog_unexpected_errors_total", _COUNTER,
        "Errors in the broker's own code that the event loop caught; the log has them."),
    # groups
    MetricFamily("tidelog_groups", _GAUGE, "Groups coordinated here.", ("type", "state")),
    MetricFamily("tidelog_group_members", _GAUGE, "Members of a group coordinated here.", ("group",)),
    MetricFamily("tidelog_group_lag", _GAUGE,
        "Messages between a group's committed offsets and the high watermarks, all partitions together.",
        ("group",)),
    MetricFamily("tidelog_group_partition_lag", _GAUGE,
        "Messages between a group's committed offset and the high watermark of a partition.",
        ("group", "topic", "partition")),
    MetricFamily("tidelog_group_partitions_without_lag", _GAUGE,
        "Partitions of a group whose high watermark is not known here yet.", ("group",)),
    MetricFamily("tidelog_groups_left_out", _GAUGE,
        "Groups without series of their own because of tidelog.metrics.groups.max."),
    MetricFamily("tidelog_group_partitions_left_out", _GAUGE,
        "Partitions of groups without a series because of tidelog.metrics.group.partitions.max."),
    # share groups
    MetricFamily("tidelog_share_group_members", _GAUGE,
        "Members of a share group coordinated here.", ("group",)),
    MetricFamily("tidelog_share_group_lag", _GAUGE,
        "Records that a share group has still to deal with (KIP-1226), where their state is kept.",
        ("group",)),
    MetricFamily("tidelog_share_group_partitions_without_lag", _GAUGE,
        "Partitions of a share group whose high watermark is not known here yet.", ("group",)),
    MetricFamily("tidelog_share_group_records", _GAUGE,
        "Records in flight in partitions led here, while members fetch.", ("group", "state")),
    MetricFamily("tidelog_share_group_deliveries_total", _COUNTER,
        "Records delivered to members, by the number of the delivery; 1 is a record's first.",
        ("group", "delivery")),
    MetricFamily("tidelog_share_group_acknowledgements_total", _COUNTER,
        "Records that members said something of, once that was stored.", ("group", "type")),
    MetricFamily("tidelog_share_group_lock_expiries_total", _COUNTER,
        "Records whose lock ended before anything was said of them.", ("group",)),
    MetricFamily("tidelog_share_group_dead_letters_total", _COUNTER,
        "Dead letters that were written, and those that were given up.", ("group", "outcome")),
    MetricFamily("tidelog_share_groups_left_out", _GAUGE,
        "Share groups without series of their own because of tidelog.metrics.groups.max."),
    # producers and transactions
    MetricFamily("tidelog_producers", _GAUGE, "Producer ids that the partitions led here remember."),
    MetricFamily("tidelog_transactions", _GAUGE, "Transactional ids coordinated here.", ("state",)),
    MetricFamily("tidelog_transactions_decided_total", _COUNTER,
        "Transactions that coordinators here committed or aborted; one that is taken up again counts again.",
        ("outcome",)),
    # delayed records
    MetricFamily("tidelog_delay_waiting", _GAUGE,
        "Delayed records that wait in partitions led here; cancelled ones until they would have been due.",
        ("topic",)),
    MetricFamily("tidelog_delay_due", _GAUGE,
        "Delayed records that are due and not forwarded yet, up to 100,000 for each partition.", ("topic",)),
    MetricFamily("tidelog_delay_late_seconds", _GAUGE,
        "For how long the first delayed record has been due, of all partitions led here.", ("topic",)),
    MetricFamily("tidelog_delay_forwarded_total", _COUNTER, "Delayed records forwarded to their target.",
        ("topic",)),
    MetricFamily("tidelog_delay_cancelled_total", _COUNTER,
        "Delayed records that were cancelled, found when they were due.", ("topic",)),
    # limits
    MetricFamily("tidelog_throttled_total", _COUNTER, "Answers that a quota held back.", ("quota",)),
    MetricFamily("tidelog_throttle_seconds_total", _COUNTER, "For how long quotas held back.", ("quota",)),
    MetricFamily("tidelog_connections", _GAUGE, "Connections that are open.", ("listener",)),
    MetricFamily("tidelog_connections_accepted_total", _COUNTER, "Connections taken in."),
    MetricFamily("tidelog_connections_refused_total", _COUNTER,
        "Connections refused, or closed because of what the peer did."),
    MetricFamily("tidelog_receive_buffer_bytes", _GAUGE, "Memory of requests that have not arrived whole."),
    # the process
    MetricFamily("tidelog_events_total", _COUNTER, "Domain events.", ("kind",)),
    MetricFamily("tidelog_event_loop_delay_seconds", _HISTOGRAM,
        "How late the event loop wakes up, measured ten times a second."),
    MetricFamily("tidelog_build_info", _GAUGE, "1, with the versions in its labels.", ("version", "python")),
    MetricFamily("tidelog_broker_info", _GAUGE,
        "1, with who this is in its labels.", ("broker", "cluster", "rack")),
    MetricFamily("tidelog_scrape_seconds", _GAUGE, "Time on the event loop that the last scrape took."),
    MetricFamily("process_cpu_seconds_total", _COUNTER, "User and system time of the process."),
    MetricFamily("process_resident_memory_bytes", _GAUGE, "Memory of the process that is in RAM."),
    MetricFamily("process_virtual_memory_bytes", _GAUGE, "Address space of the process."),
    MetricFamily("process_open_fds", _GAUGE, "Open file descriptors."),
    MetricFamily("process_max_fds", _GAUGE, "How many file descriptors may be open."),
    MetricFamily("process_threads", _GAUGE, "Threads of the process."),
    MetricFamily("process_start_time_seconds", _GAUGE, "When the process started, in seconds since 1970."),
)  # fmt: skip

FAMILIES: dict[str, MetricFamily] = {row.name: row for row in _ROWS}
