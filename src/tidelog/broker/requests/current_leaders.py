"""Who leads instead, as this broker knows it: for the answer to one request that came to the wrong one."""

from uuid import UUID

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.replicas.replicas import Replicas
from tidelog.protocol.current_leaders import CurrentLeader, LeaderEndpoint

UNKNOWN = CurrentLeader(-1, -1)


class KnownLeaders:
    """The leaders of partitions, and where a client of one listener reaches them."""

    def __init__(self, metadata: Metadata, replicas: Replicas, listener_name: str) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._listener_name = listener_name
        self._told: set[int] = set()

    def of(self, topic: str | UUID, partition: int) -> CurrentLeader:
        """Who leads: as the replica here follows it, or else as the cluster has it."""
        leader = self._find(topic, partition)
        self._told.add(leader.leader_id)
        return leader

    def _find(self, topic: str | UUID, partition: int) -> CurrentLeader:
        image = self._metadata.image
        name = image.name_of(topic)
        if name is None:
            return UNKNOWN
        replica = self._replicas.replica(name, partition)
        if replica is not None:
            return CurrentLeader(replica.leader_id, replica.leader_epoch)
        state = image.partition(name, partition)
        return UNKNOWN if state is None else CurrentLeader(state.leader, state.leader_epoch)

    def endpoints(self) -> list[LeaderEndpoint]:
        """Where those are that were told; only brokers that are alive and have the listener."""
        found: list[LeaderEndpoint] = []
        for node_id in sorted(self._told):
            node = self._metadata.image.brokers.get(node_id)
            endpoint = None if node is None or not node.alive else node.endpoints.get(self._listener_name)
            if node is not None and endpoint is not None:
                found.append(LeaderEndpoint(node_id, endpoint.host, endpoint.port, node.rack))
        return found
