"""The settings one partition log obeys, resolved from topic overrides and broker defaults."""

from dataclasses import dataclass

UNLIMITED = -1
INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Effective topic settings; each field is Kafka's topic setting with dots as underscores."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 604_800_000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    retention_ms: int = 604_800_000
    retention_bytes: int = UNLIMITED
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    delete_retention_ms: int = 86_400_000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = INT64_MAX
    min_cleanable_dirty_ratio: float = 0.5
    file_delete_delay_ms: int = 60_000
    flush_messages: int = INT64_MAX
    flush_ms: int = INT64_MAX
    max_message_bytes: int = 1_048_588
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = INT64_MAX
    message_timestamp_after_max_ms: int = 3_600_000
    min_insync_replicas: int = 1
    unclean_leader_election_enable: bool = False
    leader_replication_throttled_replicas: tuple[str, ...] = ()
    follower_replication_throttled_replicas: tuple[str, ...] = ()
    errors_deadletterqueue_group_enable: bool = False
    tidelog_delay_target: str = ""
    tidelog_delay_ms: int = 0
    tidelog_delay_max_ms: int = 31_536_000_000
    tidelog_priority_ageing_ms: int = 10_000
    tidelog_priority_enable: bool = False
    tidelog_ttl_enable: bool = False
    tidelog_ttl_ms: int = UNLIMITED

    @property
    def compacted(self) -> bool:
        # Of a delay topic nothing goes that waits, whatever the default of brokers is.
        return "compact" in self.cleanup_policy and not self.tidelog_delay_target

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy
