"""Transactions: what coordinators know, what is open in partitions, and the end of one that hangs.

Every broker lists the transactional ids it coordinates; a partition's leader describes the producers that
write to it and takes the marker that ends a transaction there. A transaction is open for its coordinator
until it has written the end of it (`transaction_states.is_open`), and in a partition until the marker is
there (`OpenProducer`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidelog.admin.cluster_admin import ClusterAdmin, check
from tidelog.client.api_keys import (
    DESCRIBE_PRODUCERS,
    DESCRIBE_TRANSACTIONS,
    LIST_TRANSACTIONS,
    WRITE_TXN_MARKERS,
)
from tidelog.client.cluster import Cluster, CoordinatorKind
from tidelog.client.faults import Refusal
from tidelog.client.link import Link
from tidelog.client.transaction_states import is_open

TRANSACTIONS_PER_REQUEST = 200
_NOT_OPEN = -1


@dataclass(frozen=True, slots=True)
class TransactionView:
    """A transactional id; epoch, timeout, start and partitions are known once it was described."""

    transactional_id: str
    state: str
    producer_id: int
    coordinator: int
    producer_epoch: int | None = None
    timeout_ms: int | None = None
    start_ms: int | None = None
    partitions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OpenProducer:
    """A producer with a transaction open in a partition."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp_ms: int


class UnknownState(ValueError):
    """There is no such state of transactions."""


# One broker's answers


def list_at(link: Link, broker: int, states: Sequence[str] = ()) -> list[TransactionView]:
    """The transactional ids that a broker coordinates, in these states or in all."""
    fields = {"state_filters": tuple(states), "producer_id_filters": ()}
    answer = link.request(LIST_TRANSACTIONS, fields, highest=0)
    check(answer, "listing transactions")
    if answer.unknown_state_filters:
        raise UnknownState(str(answer.unknown_state_filters[0]))
    return [
        TransactionView(str(row.transactional_id), str(row.transaction_state), int(row.producer_id), broker)
        for row in answer.transaction_states
    ]


def describe_at(link: Link, broker: int, ids: Iterable[str]) -> tuple[list[TransactionView], list[Refusal]]:
    """What their coordinator knows of these ids, and what it refuses to tell."""
    wanted = list(ids)
    found: list[TransactionView] = []
    refusals: list[Refusal] = []
    for start in range(0, len(wanted), TRANSACTIONS_PER_REQUEST):
        part = tuple(wanted[start : start + TRANSACTIONS_PER_REQUEST])
        answer = link.request(DESCRIBE_TRANSACTIONS, {"transactional_ids": part}, highest=0)
        for row in answer.transaction_states:
            if row.error_code:
                refusals.append(Refusal(row.error_code, f"transaction {str(row.transactional_id)!r}"))
            else:
                found.append(_described(row, broker))
    return found, refusals


def _described(row: Any, broker: int) -> TransactionView:
    start = row.transaction_start_time
    return TransactionView(
        str(row.transactional_id),
        str(row.transaction_state),
        int(row.producer_id),
        broker,
        int(row.producer_epoch),
        round(row.transaction_timeout.total_seconds() * 1000),
        None if start is None else round(start.timestamp() * 1000),
        tuple(f"{topic.topic}-{index}" for topic in row.topics for index in topic.partitions),
    )


def open_producers_at(
    link: Link, topics: Mapping[str, Sequence[int]]
) -> tuple[list[OpenProducer], list[Refusal]]:
    """Who has a transaction open in partitions that a broker leads, and what it refuses to tell."""
    rows = [{"name": topic, "partition_indexes": tuple(numbers)} for topic, numbers in topics.items()]
    answer = link.request(DESCRIBE_PRODUCERS, {"topics": rows}, highest=0)
    found: list[OpenProducer] = []
    refusals: list[Refusal] = []
    for topic in answer.topics:
        for row in topic.partitions:
            if row.error_code:
                refusals.append(Refusal(row.error_code, f"producers of topic {topic.name}"))
                continue
            found += [
                OpenProducer(
                    str(topic.name),
                    int(row.partition_index),
                    int(one.producer_id),
                    int(one.producer_epoch),
                    int(one.coordinator_epoch),
                    int(one.current_txn_start_offset),
                    int(one.last_timestamp),
                )
                for one in row.active_producers
                if one.current_txn_start_offset != _NOT_OPEN
            ]
    return found, refusals


# The cluster's


def list_transactions(admin: ClusterAdmin, states: Sequence[str] = ()) -> list[TransactionView]:
    """The transactional ids of every broker, by name; raises UnknownState."""
    found: list[TransactionView] = []
    for broker in admin.asked("the brokers cannot be listed", Cluster.broker_ids):

        def ask(cluster: Cluster, broker: int = broker) -> list[TransactionView]:
            return list_at(cluster.link_to(broker), broker, states)

        found += admin.asked(f"broker {broker} did not list its transactions", ask)
    return sorted(found, key=lambda view: view.transactional_id)


def describe_open(admin: ClusterAdmin) -> list[TransactionView]:
    """Every transactional id, those with open transactions described and first."""
    found: list[TransactionView] = []
    for listed in _by_coordinator(list_transactions(admin)).values():
        broker = listed[0].coordinator
        ids = [view.transactional_id for view in listed if is_open(view.state)]
        if ids:

            def ask(cluster: Cluster, broker: int = broker, ids: list[str] = ids) -> list[TransactionView]:
                return describe_at(cluster.link_to(broker), broker, ids[:TRANSACTIONS_PER_REQUEST])[0]

            described = admin.asked(f"broker {broker} did not describe its transactions", ask)
            known = {view.transactional_id: view for view in described}
            listed = [known.get(view.transactional_id, view) for view in listed]
        found += listed
    return sorted(found, key=lambda view: (view.start_ms is None, view.start_ms, view.transactional_id))


def _by_coordinator(views: Iterable[TransactionView]) -> dict[int, list[TransactionView]]:
    found: dict[int, list[TransactionView]] = {}
    for view in views:
        found.setdefault(view.coordinator, []).append(view)
    return found


def describe_transaction(admin: ClusterAdmin, transactional_id: str) -> TransactionView:
    """One transactional id."""

    def ask(cluster: Cluster) -> TransactionView:
        link = cluster.coordinator_link(CoordinatorKind.TRANSACTION, transactional_id)
        broker = cluster.coordinator_of(CoordinatorKind.TRANSACTION, transactional_id)
        found, refusals = describe_at(link, broker, [transactional_id])
        if refusals:
            raise refusals[0]
        return found[0]

    return admin.asked(f"transaction {transactional_id!r} cannot be described", ask)


def open_producers(admin: ClusterAdmin, topic: str, partition: int) -> list[OpenProducer]:
    """The producers with a transaction open in a partition, the oldest first."""

    def ask(cluster: Cluster) -> list[OpenProducer]:
        link = cluster.link_to(cluster.leader_of(topic, partition))
        found, refusals = open_producers_at(link, {topic: [partition]})
        if refusals:
            raise refusals[0]
        return sorted(found, key=lambda producer: producer.start_offset)

    return admin.asked(f"the producers of {topic}-{partition} cannot be described", ask)


def abort(admin: ClusterAdmin, producer: OpenProducer) -> None:
    """Write the marker that aborts a producer's transaction in the one partition where it was found."""
    topic, partition = producer.topic, producer.partition
    what = f"the transaction in {topic}-{partition} was not aborted"
    marker = {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "transaction_result": False,
        "coordinator_epoch": max(0, producer.coordinator_epoch),
        "topics": [{"name": topic, "partition_indexes": (partition,)}],
    }

    def ask(cluster: Cluster) -> None:
        link = cluster.link_to(cluster.leader_of(topic, partition))
        answer = link.request(WRITE_TXN_MARKERS, {"markers": [marker]}, lowest=1, highest=1)
        check(answer.markers[0].topics[0].partitions[0], what)

    admin.asked(what, ask)
