"""Which replica a consumer reads from (KIP-392).

With `replica.selector.class` set to the rack-aware selector, a leader sends a consumer that names its rack to
an in-sync follower in that rack which has the wanted offset; the one that has most, if there are several. The
consumer asks the leader again from time to time, so a follower that falls out of sync loses its readers.
"""

from collections.abc import Mapping

from tidelog.broker.replicas.partition import Partition
from tidelog.model.image import BrokerImage

NO_PREFERENCE = -1


def preferred_read_replica(
    partition: Partition, rack: str, offset: int, brokers: Mapping[int, BrokerImage]
) -> int:
    """The follower that a consumer in this rack should read from, or NO_PREFERENCE for the leader."""
    replicas = partition.replicas
    leader = brokers.get(partition.leader_id)
    if replicas is None or not rack or (leader is not None and leader.rack == rack):
        return NO_PREFERENCE
    best, best_end_offset = NO_PREFERENCE, -1
    for broker_id, follower in replicas.followers.items():
        found = brokers.get(broker_id)
        if (
            found is not None
            and found.rack == rack
            and broker_id in replicas.isr
            and 0 <= follower.log_start_offset <= offset <= follower.log_end_offset
            and follower.log_end_offset > best_end_offset
        ):
            best, best_end_offset = broker_id, follower.log_end_offset
    return best
