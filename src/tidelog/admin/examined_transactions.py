"""What `tidelog doctor` asks about transactions: what coordinators know, and what is open in partitions.

A transaction hangs (KIP-664) if a partition has it open while no coordinator knows it. Both sides are looked
at twice, so that one which ends or begins meanwhile is not taken for one.
"""

from collections.abc import Iterable

from tidelog.admin.broker_links import BrokerLinks
from tidelog.admin.diagnosis import Examination, Partition
from tidelog.admin.transactions import (
    OpenProducer,
    TransactionView,
    describe_at,
    list_at,
    open_producers_at,
)
from tidelog.client.api_keys import DESCRIBE_PRODUCERS, LIST_TRANSACTIONS
from tidelog.client.faults import Refusal
from tidelog.client.link import Link
from tidelog.client.transaction_states import is_open


class TransactionQuestions:
    """Asks coordinators and leaders."""

    def __init__(self, brokers: BrokerLinks) -> None:
        self._brokers = brokers
        self._leaders: dict[Partition, int] = {}

    def open_transactions(self) -> tuple[TransactionView, ...]:
        """Every transaction that a coordinator knows and that has not ended."""
        found: list[TransactionView] = []
        for broker in self._brokers.links:
            if self._brokers.offers(broker, LIST_TRANSACTIONS):

                def ask(link: Link, broker: int = broker) -> list[TransactionView]:
                    listed = [view for view in list_at(link, broker) if is_open(view.state)]
                    return describe_at(link, broker, (view.transactional_id for view in listed))[0]

                found += self._brokers.attempt(broker, "transactions", ask) or ()
        return tuple(sorted(found, key=lambda transaction: transaction.transactional_id))

    def unknown_to_coordinators(self, seen: Examination) -> tuple[OpenProducer, ...]:
        """Transactions that hold partitions up and that no coordinator knows, at this look."""
        self._leaders = {
            (partition.topic, partition.partition): partition.leader for partition in seen.partitions
        }
        held_up = [partition for partition, log in seen.logs.items() if log.last_stable < log.end]
        if not held_up:
            return ()
        producers = self._open_producers(held_up)
        known = {
            (transaction.producer_id, place)
            for transaction in self.open_transactions()
            for place in transaction.partitions
        }
        return tuple(
            producer
            for producer in producers
            if (producer.producer_id, f"{producer.topic}-{producer.partition}") not in known
        )

    def still_open(self, suspects: tuple[OpenProducer, ...]) -> tuple[OpenProducer, ...]:
        """Those of the suspects that are open at this look too, since the same offset."""
        places = sorted({(producer.topic, producer.partition) for producer in suspects})
        now = {_identity(producer) for producer in self._open_producers(places)}
        return tuple(producer for producer in suspects if _identity(producer) in now)

    def _open_producers(self, partitions: Iterable[Partition]) -> list[OpenProducer]:
        by_leader: dict[int, dict[str, list[int]]] = {}
        for topic, partition in partitions:
            leader = self._leaders[topic, partition]
            by_leader.setdefault(leader, {}).setdefault(topic, []).append(partition)
        found: list[OpenProducer] = []
        for leader, topics in by_leader.items():
            if not self._brokers.offers(leader, DESCRIBE_PRODUCERS):
                continue

            def ask(
                link: Link, topics: dict[str, list[int]] = topics
            ) -> tuple[list[OpenProducer], list[Refusal]]:
                return open_producers_at(link, topics)

            producers, refusals = self._brokers.attempt(leader, "producers", ask) or ([], [])
            found += producers
            for refusal in refusals:
                self._brokers.refused(refusal)
        return found


def _identity(producer: OpenProducer) -> tuple[str, int, int, int]:
    return producer.topic, producer.partition, producer.producer_id, producer.start_offset
