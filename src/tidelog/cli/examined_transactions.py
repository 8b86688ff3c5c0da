"""What `tidelog doctor` asks about transactions: what coordinators know, and what is open in partitions.

A transaction hangs (KIP-664) if a partition has it open while no coordinator knows it. Both sides are looked
at twice, so that one which ends or begins meanwhile is not taken for one.
"""

from collections.abc import Iterable
from typing import Any

from tidelog.cli.broker_links import BrokerLinks
from tidelog.cli.diagnosis import Examination, Partition, SeenOpenProducer, SeenTransaction
from tidelog.client.faults import known_code
from tidelog.model.errors import ErrorCode

DESCRIBE_PRODUCERS = 61
DESCRIBE_TRANSACTIONS = 65
LIST_TRANSACTIONS = 66
TRANSACTIONS_PER_REQUEST = 200
NOT_OPEN = -1


class TransactionQuestions:
    """Asks coordinators and leaders."""

    def __init__(self, brokers: BrokerLinks) -> None:
        self._brokers = brokers
        self._leaders: dict[Partition, int] = {}

    def open_transactions(self) -> tuple[SeenTransaction, ...]:
        """Every transaction that a coordinator knows and that has not ended."""
        found: list[SeenTransaction] = []
        for broker in self._brokers.links:
            if not self._brokers.offers(broker, LIST_TRANSACTIONS):
                continue
            fields = {"state_filters": (), "producer_id_filters": ()}
            answer = self._brokers.ask(broker, LIST_TRANSACTIONS, fields, "transactions", highest=0)
            ids = [
                str(row.transactional_id)
                for row in (() if answer is None else answer.transaction_states)
                if not str(row.transaction_state).startswith(("Complete", "Empty", "Dead"))
            ]
            for start in range(0, len(ids), TRANSACTIONS_PER_REQUEST):
                part = tuple(ids[start : start + TRANSACTIONS_PER_REQUEST])
                answer = self._brokers.ask(
                    broker, DESCRIBE_TRANSACTIONS, {"transactional_ids": part}, "transactions", highest=0
                )
                found += [
                    _transaction(row)
                    for row in (() if answer is None else answer.transaction_states)
                    if known_code(row.error_code) is ErrorCode.NONE
                ]
        return tuple(sorted(found, key=lambda transaction: transaction.transactional_id))

    def unknown_to_coordinators(self, seen: Examination) -> tuple[SeenOpenProducer, ...]:
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

    def still_open(self, suspects: tuple[SeenOpenProducer, ...]) -> tuple[SeenOpenProducer, ...]:
        """Those of the suspects that are open at this look too, since the same offset."""
        places = sorted({(producer.topic, producer.partition) for producer in suspects})
        now = {_identity(producer) for producer in self._open_producers(places)}
        return tuple(producer for producer in suspects if _identity(producer) in now)

    def _open_producers(self, partitions: Iterable[Partition]) -> list[SeenOpenProducer]:
        by_leader: dict[int, dict[str, list[int]]] = {}
        for topic, partition in partitions:
            leader = self._leaders[topic, partition]
            by_leader.setdefault(leader, {}).setdefault(topic, []).append(partition)
        found: list[SeenOpenProducer] = []
        for leader, topics in by_leader.items():
            if not self._brokers.offers(leader, DESCRIBE_PRODUCERS):
                continue
            rows = [{"name": topic, "partition_indexes": numbers} for topic, numbers in topics.items()]
            answer = self._brokers.ask(leader, DESCRIBE_PRODUCERS, {"topics": rows}, "producers", highest=0)
            for topic_row in () if answer is None else answer.topics:
                for row in topic_row.partitions:
                    if self._brokers.allowed(row.error_code, f"producers of topic {topic_row.name}"):
                        found += _open(str(topic_row.name), row)
        return found


def _identity(producer: SeenOpenProducer) -> tuple[str, int, int, int]:
    return producer.topic, producer.partition, producer.producer_id, producer.start_offset


def _open(topic: str, row: Any) -> list[SeenOpenProducer]:
    return [
        SeenOpenProducer(
            topic,
            int(row.partition_index),
            int(producer.producer_id),
            int(producer.current_txn_start_offset),
            int(producer.last_timestamp),
        )
        for producer in row.active_producers
        if producer.current_txn_start_offset != NOT_OPEN
    ]


def _transaction(row: Any) -> SeenTransaction:
    start = row.transaction_start_time
    return SeenTransaction(
        str(row.transactional_id),
        str(row.transaction_state),
        int(row.producer_id),
        round(row.transaction_timeout.total_seconds() * 1000),
        None if start is None else round(start.timestamp() * 1000),
        tuple(f"{topic.topic}-{index}" for topic in row.topics for index in topic.partitions),
    )
