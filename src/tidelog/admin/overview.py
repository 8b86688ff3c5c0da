"""What a look at a cluster sees first: its brokers, its topics, who controls it, where logs end."""

import time
from collections.abc import Iterable, Mapping

from tidelog.admin.cluster_admin import ClusterAdmin
from tidelog.admin.cluster_state import ask_metadata
from tidelog.admin.offsets import known_offsets
from tidelog.admin.snapshot import BrokerView, GroupView, Snapshot, TopicPartitionKey
from tidelog.admin.topics import views_of
from tidelog.client.cluster import LATEST, Cluster
from tidelog.client.faults import LinkFault


class Overview:
    """Looks at one cluster."""

    def __init__(self, admin: ClusterAdmin, what: str) -> None:
        """`what` is what went wrong where nobody answers."""
        self._admin = admin
        self._what = what

    def snapshot(self, groups: Mapping[str, GroupView]) -> Snapshot:
        """The cluster now, with the groups that are given: `Groups` asks for those apart.

        A broker that does not answer is not the cluster: another one is tried then.
        """
        try:
            return self._admin.once(lambda cluster: _look(cluster, groups))
        except LinkFault:
            return self._admin.asked_once(self._what, lambda cluster: _look(cluster, groups))

    def ends(self, partitions: Iterable[TopicPartitionKey]) -> dict[TopicPartitionKey, int]:
        """Where logs end, of the partitions that can be asked."""
        return known_offsets(self._admin, partitions, LATEST)


def _look(cluster: Cluster, groups: Mapping[str, GroupView]) -> Snapshot:
    metadata = ask_metadata(cluster.any_link())
    return Snapshot(
        metadata.cluster_id or "",
        int(metadata.controller_id),
        {
            int(row.node_id): BrokerView(int(row.node_id), str(row.host), int(row.port), row.rack)
            for row in sorted(metadata.brokers, key=lambda row: int(row.node_id))
        },
        views_of(metadata),
        dict(groups),
        time.time(),
    )
