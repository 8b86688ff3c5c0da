"""The forwarders of delayed records on one broker: one for each partition of delay topics that it leads."""

from dataclasses import dataclass

from tidelog.broker.coordinators.delay_forwarder import DelayForwarder, Surroundings
from tidelog.broker.replicas.partition import Partition


@dataclass(slots=True)
class Figures:
    """What is known of a delay topic here."""

    waiting: int = 0
    due: int = 0
    late_ms: int = 0
    forwarded: int = 0
    cancelled: int = 0


class Delays:
    """Begins and ends forwarders, as roles and settings change."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings
        self.forwarders: dict[Partition, DelayForwarder] = {}
        #: what forwarders did that are no more: forwarded and cancelled, by topic
        self._done: dict[str, tuple[int, int]] = {}

    def __repr__(self) -> str:
        return f"<Delays partitions={len(self.forwarders)}>"

    def consider(self, partition: Partition) -> None:
        """A partition is led here from now on, or has other settings."""
        delays = partition.leads and bool(partition.config.tidelog_delay_target)
        if delays and partition not in self.forwarders:
            forwarder = self.forwarders[partition] = DelayForwarder(partition, self._surroundings)
            forwarder.start()
        elif not delays:
            self.leads_no_more(partition)

    def leads_no_more(self, partition: Partition) -> None:
        """Another broker forwards its records, or nobody does."""
        forwarder = self.forwarders.pop(partition, None)
        if forwarder is not None:
            forwarder.stop()
            if forwarder.forwarded_count or forwarder.cancelled_count:
                forwarded, cancelled = self._done.get(partition.topic, (0, 0))
                self._done[partition.topic] = (
                    forwarded + forwarder.forwarded_count,
                    cancelled + forwarder.cancelled_count,
                )

    def topic_deleted(self, topic: str) -> None:
        self._done.pop(topic, None)

    def figures(self) -> dict[str, Figures]:
        """What waits in the topics that have partitions here."""
        found: dict[str, Figures] = {}
        for partition, forwarder in self.forwarders.items():
            figures = found.get(partition.topic)
            if figures is None:
                figures = found[partition.topic] = Figures()
                figures.forwarded, figures.cancelled = self._done.get(partition.topic, (0, 0))
            forwarder.look(figures)
        return found
