"""What the lives of the other brokers mean for what is led here: who follows, and who may be in an ISR."""

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.replicas.replicas import Replicas
from tidelog.broker.replication.follower_feeds import FollowerFeeds
from tidelog.broker.replication.isr_changes import IsrChanges
from tidelog.broker.runtime.peers import Peers
from tidelog.model.image import ClusterImage


class OtherBrokers:
    """The other brokers, as one broker sees them."""

    def __init__(
        self,
        metadata: Metadata,
        replicas: Replicas,
        feeds: FollowerFeeds,
        isr_changes: IsrChanges,
        peers: Peers,
    ) -> None:
        self._node_id = metadata.node_id
        self._replicas = replicas
        self._feeds = feeds
        self._isr_changes = isr_changes
        self._peers = peers

    def image_changed(self, old: ClusterImage, new: ClusterImage) -> None:
        """Forget those that are gone or begin another life; others may be eligible now."""
        if old.brokers is new.brokers:
            return
        for broker_id, before in old.brokers.items():
            if broker_id == self._node_id:
                continue
            now = new.brokers.get(broker_id)
            if now is None or not now.alive or now.incarnation != before.incarnation:
                self._feeds.forget(broker_id)
                self._peers.forget(broker_id)
        for partition in self._replicas.led.values():
            self._isr_changes.consider_all(partition)

    def __repr__(self) -> str:
        return f"<OtherBrokers of {self._node_id}>"
