"""Transactions as a client asks for them: producers, partitions, ends, and who is open.

A transaction may be ended by somebody else than who wrote it: EndTxn takes nothing but the transactional id,
the producer id and the epoch. So `end_transactions` serves many at once, on behalf of their writers; it asks
all coordinators at a time and tries again until each has an answer that is final.

Spoken are the versions before transactions v2 (EndTxn up to 4, explicit AddPartitionsToTxn), which every
broker since 0.11 knows: an id that is used for one transaction has no use for an epoch per transaction.
Ending a transaction a second time in the same way is answered as the first time.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from tidelog.client.api_keys import (
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
)
from tidelog.client.cluster import Cluster, CoordinatorKind
from tidelog.client.faults import LinkFault, Refusal, UnsupportedVersion, known_code
from tidelog.client.link import Link
from tidelog.client.produce_requests import BatchToSend
from tidelog.client.record_writer import RecordWriter
from tidelog.client.requests import encode_request
from tidelog.client.transaction_states import ONGOING, is_undecided
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import TopicPartition
from tidelog.protocol.apis import METADATA

_FIRST_TWO_PHASE = 6
_FIRST_MANY_COORDINATORS = 4
_END_TXN_HIGHEST = 4
_ADD_PARTITIONS_HIGHEST = 3
#: requests under way on one link while many transactions are ended
_WINDOW = 32
#: the coordinator is still writing the markers of the transaction before
_BUSY_PAUSE_SECONDS = 0.005
_BUSY_PAUSE_SECONDS_MAX = 0.1

Result = TypeVar("Result")


class Producer(NamedTuple):
    """Who writes; without a transactional id it is an idempotent producer."""

    transactional_id: str | None
    producer_id: int
    producer_epoch: int
    #: the transaction stays open until it is ended, however long that takes (KIP-939)
    two_phase: bool = False


class DescribedTransaction(NamedTuple):
    """What a coordinator knows of a transactional id."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str


def init_producer(
    cluster: Cluster, transactional_id: str | None, timeout_ms: int = 60_000, *, two_phase: bool = False
) -> Producer:
    """A producer id and epoch; whoever had the transactional id is fenced, and what it left open aborted.

    `two_phase` asks for a transaction without a timeout where the broker can; the answer says whether it has
    one.
    """

    def ask(wants_two_phase: bool) -> Producer:
        if transactional_id is None:
            link = cluster.any_link()
        else:
            link = cluster.coordinator_link(CoordinatorKind.TRANSACTION, transactional_id)
        offered = link.offers(INIT_PRODUCER_ID)
        granted = wants_two_phase and offered is not None and offered[1] >= _FIRST_TWO_PHASE
        fields: dict[str, Any] = {"transactional_id": transactional_id, "transaction_timeout": timeout_ms}
        if granted:
            fields["enable2_pc"] = True
        answer = link.request(
            INIT_PRODUCER_ID, fields, highest=_FIRST_TWO_PHASE if granted else _FIRST_TWO_PHASE - 1
        )
        if answer.error_code:
            raise Refusal(answer.error_code, f"a producer id for {transactional_id!r}")
        return Producer(transactional_id, int(answer.producer_id), int(answer.producer_epoch), granted)

    if two_phase:
        try:
            return _persist(cluster, lambda: ask(True))
        except Refusal as refusal:
            # The broker's transaction.two.phase.commit.enable is off.
            if refusal.code is not ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
                raise
    return _persist(cluster, lambda: ask(False))


def _persist(cluster: Cluster, operation: Callable[[], Result]) -> Result:
    """`Cluster.persist`, with short pauses while a coordinator ends the transaction before."""
    deadline = time.monotonic() + cluster.settings.api_timeout_ms / 1000
    pause_seconds = _BUSY_PAUSE_SECONDS

    def patiently() -> Result:
        nonlocal pause_seconds
        while True:
            try:
                return operation()
            except Refusal as refusal:
                if refusal.code is not ErrorCode.CONCURRENT_TRANSACTIONS or time.monotonic() > deadline:
                    raise
            time.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _BUSY_PAUSE_SECONDS_MAX)

    return cluster.persist(patiently)


# ---------------------------------------------------------------- many transactions at once


def _coordinators(cluster: Cluster, transactional_ids: Sequence[str]) -> dict[str, Link]:
    """The link to the coordinator of each id. One try."""
    link = cluster.any_link()
    offered = link.offers(FIND_COORDINATOR)
    if offered is None or offered[1] < _FIRST_MANY_COORDINATORS:
        return {
            name: cluster.coordinator_link(CoordinatorKind.TRANSACTION, name) for name in transactional_ids
        }
    fields = {"key_type": int(CoordinatorKind.TRANSACTION), "coordinator_keys": list(transactional_ids)}
    answer = link.request(
        FIND_COORDINATOR, fields, lowest=_FIRST_MANY_COORDINATORS, highest=_FIRST_MANY_COORDINATORS
    )
    found: dict[str, Link] = {}
    for row in answer.coordinators:
        if row.error_code:
            raise Refusal(row.error_code, f"coordinator of transaction {row.key!r}", row.error_message)
        found[row.key] = cluster.link_to(int(row.node_id))
    return found


def end_transactions(
    cluster: Cluster, producers: Iterable[Producer], *, committed: bool
) -> dict[str, ErrorCode]:
    """EndTxn of each; the final answer by transactional id. Raises when some stay without one too long."""
    missing = {_name(producer): producer for producer in producers}
    outcomes: dict[str, ErrorCode] = {}

    def end_missing() -> None:
        links = _coordinators(cluster, list(missing))
        by_link: dict[int, tuple[Link, list[Producer]]] = {}
        for name, link in links.items():
            by_link.setdefault(id(link), (link, []))[1].append(missing[name])
        trouble: Refusal | LinkFault | None = None
        for link, group in by_link.values():
            for start in range(0, len(group), _WINDOW):
                try:
                    answers = _end_some(link, group[start : start + _WINDOW], committed)
                except LinkFault as fault:
                    trouble = fault
                    break
                for name, error in answers.items():
                    refusal = Refusal(error, f"ending the transaction of {name!r}")
                    if error and refusal.retriable:
                        trouble = trouble or refusal
                    else:
                        outcomes[name] = error
                        del missing[name]
        if trouble is not None:
            raise trouble

    if missing:
        _persist(cluster, end_missing)
    return outcomes


def _end_some(link: Link, producers: Sequence[Producer], committed: bool) -> dict[str, ErrorCode]:
    version = link.version_of(END_TXN, 0, _END_TXN_HIGHEST)
    tickets: list[tuple[str, int]] = []
    for producer in producers:
        fields = {
            "transactional_id": producer.transactional_id,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "committed": committed,
        }
        tickets.append(
            (_name(producer), link.send(END_TXN, version, encode_request(END_TXN, version, fields)))
        )
    return {
        name: known_code(link.receive_decoded(ticket, END_TXN, version).error_code)
        for name, ticket in tickets
    }


def _name(producer: Producer) -> str:
    assert producer.transactional_id is not None, "this producer has no transactions"
    return producer.transactional_id


def describe_transactions(
    cluster: Cluster, transactional_ids: Sequence[str]
) -> dict[str, DescribedTransaction] | None:
    """What coordinators know of these ids; unknown ones are left out. None from brokers before 3.0."""

    def describe() -> dict[str, DescribedTransaction]:
        found: dict[str, DescribedTransaction] = {}
        by_link: dict[int, tuple[Link, list[str]]] = {}
        for name, link in _coordinators(cluster, transactional_ids).items():
            by_link.setdefault(id(link), (link, []))[1].append(name)
        for link, names in by_link.values():
            answer = link.request(DESCRIBE_TRANSACTIONS, {"transactional_ids": names}, highest=0)
            for row in answer.transaction_states:
                if known_code(row.error_code) is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                    continue
                if row.error_code:
                    raise Refusal(row.error_code, f"looking at the transaction of {row.transactional_id!r}")
                found[row.transactional_id] = DescribedTransaction(
                    row.transactional_id, int(row.producer_id), int(row.producer_epoch), row.transaction_state
                )
        return found

    if not transactional_ids:
        return {}
    try:
        return _persist(cluster, describe)
    except UnsupportedVersion:
        return None


def open_transactions(cluster: Cluster, prefix: str) -> list[Producer]:
    """The producers of undecided transactions whose id begins so; none from brokers before 3.0."""

    def list_names() -> list[str]:
        names: list[str] = []
        fields = {"state_filters": [ONGOING], "producer_id_filters": []}
        everyone = cluster.any_link().request(METADATA, {"topics": []}, lowest=4, highest=12).brokers
        for broker_id in sorted(int(row.node_id) for row in everyone):
            answer = cluster.link_to(broker_id).request(LIST_TRANSACTIONS, fields, highest=0)
            if answer.error_code:
                raise Refusal(answer.error_code, "listing transactions")
            names += [row.transactional_id for row in answer.transaction_states]
        return [name for name in names if name.startswith(prefix)]

    try:
        names = _persist(cluster, list_names)
    except UnsupportedVersion:
        return []
    described = describe_transactions(cluster, names) or {}
    return [
        Producer(found.transactional_id, found.producer_id, found.producer_epoch)
        for found in described.values()
        if is_undecided(found.state)
    ]


# ---------------------------------------------------------------- one transaction


class TransactionalWriter:
    """Writes batches inside one transaction, or as an idempotent producer when it has no transactional id."""

    def __init__(self, cluster: Cluster, producer: Producer, *, delivery_timeout_ms: int = 120_000) -> None:
        self.producer = producer
        self._cluster = cluster
        self._records = RecordWriter(
            cluster, producer.transactional_id, delivery_timeout_ms=delivery_timeout_ms
        )
        self._added: set[TopicPartition] = set()

    def __repr__(self) -> str:
        return f"<TransactionalWriter {self.producer} partitions={len(self._added)}>"

    @property
    def is_open(self) -> bool:
        """Whether there is a transaction to end."""
        return bool(self._added)

    @property
    def retries(self) -> int:
        """How often something had to be sent again."""
        return self._records.retries

    @property
    def placed(self) -> dict[TopicPartition, tuple[int, int]]:
        """Where confirmed batches lie; see `RecordWriter.placed`."""
        return self._records.placed

    def send(self, batches: Sequence[BatchToSend]) -> None:
        """Queue batches and begin to send them; raises Refusal, LinkFault."""
        if self.producer.transactional_id is not None:
            places = {TopicPartition(batch.topic, batch.partition) for batch in batches}
            self._add_partitions(places - self._added)
        for batch in batches:
            self._records.send(batch)
        self._records.pump()

    def flush(self) -> None:
        """Wait until everything sent is on all replicas in sync."""
        self._records.flush()

    def end(self, *, committed: bool) -> None:
        """Commit what was flushed, or abort; raises Refusal. What is sent then is another transaction."""
        if committed:
            self._records.flush()
        else:
            self._records.abandon()
        if not self._added:
            return
        outcomes = end_transactions(self._cluster, [self.producer], committed=committed)
        for name, error in outcomes.items():
            if error:
                raise Refusal(error, f"ending the transaction of {name!r}")
        self._added.clear()

    def _add_partitions(self, places: set[TopicPartition]) -> None:
        if not places:
            return
        topics: dict[str, list[int]] = {}
        for place in sorted(places):
            topics.setdefault(place.topic, []).append(place.partition)
        transactional_id = _name(self.producer)
        fields = {
            "v3_and_below_transactional_id": transactional_id,
            "v3_and_below_producer_id": self.producer.producer_id,
            "v3_and_below_producer_epoch": self.producer.producer_epoch,
            "v3_and_below_topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
        }

        def add() -> None:
            link = self._cluster.coordinator_link(CoordinatorKind.TRANSACTION, transactional_id)
            answer = link.request(ADD_PARTITIONS_TO_TXN, fields, highest=_ADD_PARTITIONS_HIGHEST)
            for topic in answer.results_by_topic_v3_and_below:
                for row in topic.results_by_partition:
                    if row.partition_error_code:
                        where = (
                            f"{topic.name}-{row.partition_index} into the transaction of {transactional_id!r}"
                        )
                        raise Refusal(row.partition_error_code, where)

        _persist(self._cluster, add)
        self._added |= places
