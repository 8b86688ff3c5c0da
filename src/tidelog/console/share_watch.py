"""Share groups over time: lag, records that members have, deliveries; sampled at each look of the watcher.

Start offsets and lag are asked with Kafka's requests; what is in flight is told by our brokers alone, to one
who may describe the cluster.
"""

from collections.abc import Mapping, Sequence

from tidelog.admin.cluster_admin import ClusterAdmin
from tidelog.admin.groups import Groups
from tidelog.admin.share_groups import ShareGroups, Starts
from tidelog.admin.shares_in_flight import SharesInFlight, all_in_flight
from tidelog.admin.snapshot import Snapshot, TopicPartitionKey
from tidelog.console.history import History, Rates


class ShareWatch:
    """The past of share groups, in memory and bounded."""

    def __init__(self, wire: ClusterAdmin, groups: Groups) -> None:
        self._wire = wire
        self._groups = groups
        self._shares = ShareGroups(wire)
        self._delivered = Rates()
        self._delivered_again = Rates()
        #: records that members have, and that they may have
        self.acquired_history = History()
        self.available_history = History()
        #: records per second that are delivered for the first time, and once more
        self.first_history = History()
        self.again_history = History()

    def sample(
        self,
        at: float,
        snapshot: Snapshot,
        group_ids: Sequence[str],
        ends: Mapping[TopicPartitionKey, int],
    ) -> dict[str, Starts]:
        """Start offset and lag of each partition of these share groups; the rest is kept here.

        A start that nobody has stored yet is the leader's.
        """
        if not group_ids:
            return {}
        starts = self._shares.starts_of_many(self._groups, group_ids)
        told = all_in_flight(self._wire, snapshot.brokers, group_ids[0])
        if told is not None:
            self._keep(at, told, group_ids)
            for found in told.partitions.values():
                key = found.topic, found.partition
                rows = starts.get(found.group, {})
                if key in rows and key in ends and rows[key][0] is None:
                    rows[key] = found.start, found.lag(ends[key])
        return starts

    def _keep(self, at: float, told: SharesInFlight, group_ids: Sequence[str]) -> None:
        acquired = dict.fromkeys(group_ids, 0)
        available = dict.fromkeys(group_ids, 0)
        for found in told.partitions.values():
            if found.group in acquired:
                acquired[found.group] += found.acquired
                available[found.group] += found.available
        for name in group_ids:
            self.acquired_history.add(name, at, acquired[name])
            self.available_history.add(name, at, available[name])
            counts = told.groups.get(name)
            deliveries = {} if counts is None else counts.deliveries
            first = deliveries.get(1, 0)
            for rates, history, count in (
                (self._delivered, self.first_history, first),
                (self._delivered_again, self.again_history, sum(deliveries.values()) - first),
            ):
                rate = rates.rate(name, at, count)
                if rate is not None:
                    history.add(name, at, rate)

    def keep_only(self, names: set[str]) -> None:
        """Forget counters of groups that are gone."""
        self._delivered.keep_only(names)
        self._delivered_again.keep_only(names)
