"""Tells the coordinators which partitions of their topics are led here, and which topics are gone."""

from typing import TYPE_CHECKING

from tidelog.broker.replicas.partition import Partition
from tidelog.broker.runtime.deferred import Deferred
from tidelog.model.identifiers import (
    GROUP_METADATA_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
)

if TYPE_CHECKING:
    from tidelog.broker.coordinators.delays import Delays
    from tidelog.broker.coordinators.group_coordinator import GroupCoordinator
    from tidelog.broker.coordinators.sharing import Sharing
    from tidelog.broker.coordinators.transactions import Transactions


class CoordinatedPartitions:
    """The listener of `replication.roles`; the coordinators are made for the first partition of theirs."""

    def __init__(
        self,
        groups: "Deferred[GroupCoordinator]",
        transactions: "Deferred[Transactions]",
        shares: "Deferred[Sharing]",
        delays: "Deferred[Delays]",
    ) -> None:
        self._groups = groups
        self._transactions = transactions
        self._shares = shares
        self._delays = delays

    def leads(self, partition: Partition) -> None:
        """Load what the partition's log says, or forward its delayed records."""
        if partition.topic == GROUP_METADATA_TOPIC:
            self._groups.get().load(partition.index)
        elif partition.topic == TRANSACTION_STATE_TOPIC:
            self._transactions.get().coordinator.load(partition.index)
        elif partition.topic == SHARE_GROUP_STATE_TOPIC:
            self._shares.get().coordinator.load(partition.index)
        elif partition.config.tidelog_delay_target:
            self._delays.get().consider(partition)

    def reconfigured(self, partition: Partition) -> None:
        """Begin or end to forward the records of a topic."""
        if partition.config.tidelog_delay_target or self._delays.made is not None:
            self._delays.get().consider(partition)

    def leads_no_more(self, partition: Partition) -> None:
        """Another broker coordinates what is in this partition, and delivers its records to share groups."""
        groups, transactions, shares = self._groups.made, self._transactions.made, self._shares.made
        if self._delays.made is not None:
            self._delays.made.leads_no_more(partition)
        if shares is not None:
            shares.partitions.leads_no_more(partition)
            if partition.topic == SHARE_GROUP_STATE_TOPIC:
                shares.coordinator.unload(partition.index)
        if partition.topic == GROUP_METADATA_TOPIC and groups is not None:
            groups.unload(partition.index)
        elif partition.topic == TRANSACTION_STATE_TOPIC and transactions is not None:
            transactions.coordinator.unload(partition.index)

    def topic_deleted(self, topic: str) -> None:
        """Forget the offsets that groups committed for it."""
        if self._groups.made is not None:
            self._groups.made.topic_deleted(topic)
        if self._delays.made is not None:
            self._delays.made.topic_deleted(topic)

    def __repr__(self) -> str:
        parts = (self._groups, self._transactions, self._shares, self._delays)
        return f"<CoordinatedPartitions {' '.join(map(repr, parts))}>"
