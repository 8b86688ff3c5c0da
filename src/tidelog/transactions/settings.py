"""The broker settings that transactions obey, read once so that the machine knows no settings table."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Kafka's broker settings of the same names, with Kafka's defaults."""

    transaction_max_timeout_ms: int = 15 * 60 * 1_000
    two_phase_commit_enable: bool = False
    transactional_id_expiration_ms: int = 7 * 24 * 60 * 60 * 1_000
    transaction_version: int = 2
    """The level of the feature `transaction.version` in force."""
    marker_retry_ms: int = 200
    """When to try again what a partition or our own log refused."""
    add_partitions_wait_ms: int = 20
    """How long adding partitions waits for the step under way before it is refused; 0: not at all."""
    tombstones_per_batch_max: int = 1_000
