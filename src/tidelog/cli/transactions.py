"""What `tidelog txn` asks of a cluster, spoken directly because confluent-kafka does not offer it.

Every broker lists the transactional ids it coordinates; a partition's leader describes the producers that
write to it and takes the marker that ends a transaction there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tidelog.cli.connection import Connection
from tidelog.cli.errors import CommandError, explained, hint_for
from tidelog.cli.wire import call
from tidelog.model.addresses import address_text

TRANSACTION_KEY_TYPE = 1
NOT_OPEN = -1


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    transactional_id: str
    state: str
    producer_id: int
    coordinator: int


@dataclass(frozen=True, slots=True)
class DescribedTransaction:
    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    coordinator: int
    timeout_ms: int
    start_ms: int | None
    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OpenProducer:
    """A producer with a transaction open in a partition."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp_ms: int


class TransactionsOfCluster:
    """The brokers of a cluster, by their addresses."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        with explained("the cluster cannot be described"):
            self._metadata = connection.admin().list_topics(timeout=connection.timeout_seconds)
        self.brokers = {
            broker.id: address_text(str(broker.host), broker.port)
            for broker in self._metadata.brokers.values()
        }

    def _call(self, broker: int, request: Any, response: type[Any]) -> Any:
        return call(self._connection, self.brokers[broker], request, response)

    def listed(self, states: tuple[str, ...]) -> list[ListedTransaction]:
        """The transactional ids of every broker, by name."""
        from kio.schema.list_transactions.v0.request import ListTransactionsRequest
        from kio.schema.list_transactions.v0.response import ListTransactionsResponse

        request = ListTransactionsRequest(state_filters=states, producer_id_filters=())
        found: list[ListedTransaction] = []
        for broker in self.brokers:
            answer = self._call(broker, request, ListTransactionsResponse)
            _check(answer.error_code, f"broker {broker} did not list its transactions")
            if answer.unknown_state_filters:
                raise CommandError(
                    f"there is no transaction state {answer.unknown_state_filters[0]!r}",
                    "for example Ongoing, PrepareCommit, CompleteAbort",
                )
            found += [
                ListedTransaction(item.transactional_id, item.transaction_state, item.producer_id, broker)
                for item in answer.transaction_states
            ]
        return sorted(found, key=lambda item: item.transactional_id)

    def describe(self, transactional_id: str) -> DescribedTransaction:
        from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
        from kio.schema.describe_transactions.v0.response import DescribeTransactionsResponse

        coordinator = self._coordinator(transactional_id)
        request = DescribeTransactionsRequest(transactional_ids=(transactional_id,))  # type: ignore[arg-type]
        (found,) = self._call(coordinator, request, DescribeTransactionsResponse).transaction_states
        _check(found.error_code, f"transaction {transactional_id!r} cannot be described")
        start = found.transaction_start_time
        return DescribedTransaction(
            transactional_id,
            found.transaction_state,
            found.producer_id,
            found.producer_epoch,
            coordinator,
            round(found.transaction_timeout.total_seconds() * 1000),
            None if start is None else round(start.timestamp() * 1000),
            tuple(f"{topic.topic}-{index}" for topic in found.topics for index in topic.partitions),
        )

    def _coordinator(self, transactional_id: str) -> int:
        from kio.schema.find_coordinator.v3.request import FindCoordinatorRequest
        from kio.schema.find_coordinator.v3.response import FindCoordinatorResponse

        request = FindCoordinatorRequest(key=transactional_id, key_type=TRANSACTION_KEY_TYPE)  # type: ignore[arg-type]
        answer = self._call(next(iter(self.brokers)), request, FindCoordinatorResponse)
        _check(answer.error_code, f"transaction {transactional_id!r} has no coordinator")
        return int(answer.node_id)

    def open_producers(self, topic: str, partition: int) -> list[OpenProducer]:
        """The producers with a transaction open in a partition, the oldest first."""
        from kio.schema.describe_producers.v0.request import DescribeProducersRequest, TopicRequest
        from kio.schema.describe_producers.v0.response import DescribeProducersResponse

        asked = TopicRequest(name=topic, partition_indexes=(partition,))  # type: ignore[arg-type]
        request = DescribeProducersRequest(topics=(asked,))
        answer = self._call(self._leader(topic, partition), request, DescribeProducersResponse)
        found = answer.topics[0].partitions[0]
        _check(found.error_code, f"the producers of {topic}-{partition} cannot be described")
        producers = [
            OpenProducer(
                item.producer_id,
                item.producer_epoch,
                item.coordinator_epoch,
                item.current_txn_start_offset,
                item.last_timestamp,
            )
            for item in found.active_producers
            if item.current_txn_start_offset != NOT_OPEN
        ]
        return sorted(producers, key=lambda producer: producer.start_offset)

    def abort(self, topic: str, partition: int, producer: OpenProducer) -> None:
        """Write the marker that aborts the producer's transaction in this one partition."""
        from kio.schema.write_txn_markers.v1.request import (
            WritableTxnMarker,
            WritableTxnMarkerTopic,
            WriteTxnMarkersRequest,
        )
        from kio.schema.write_txn_markers.v1.response import WriteTxnMarkersResponse

        fields: Mapping[str, Any] = {
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "transaction_result": False,
            "coordinator_epoch": max(0, producer.coordinator_epoch),
        }
        place = WritableTxnMarkerTopic(name=topic, partition_indexes=(partition,))  # type: ignore[arg-type]
        make: Callable[..., Any] = WritableTxnMarker
        request = WriteTxnMarkersRequest(markers=(make(topics=(place,), **fields),))
        answer = self._call(self._leader(topic, partition), request, WriteTxnMarkersResponse)
        error = answer.markers[0].topics[0].partitions[0].error_code
        _check(error, f"the transaction in {topic}-{partition} was not aborted")

    def _leader(self, topic: str, partition: int) -> int:
        known = self._metadata.topics.get(topic)
        if known is None or partition not in known.partitions:
            raise CommandError(f"there is no partition {topic}-{partition}", "see 'tidelog topic list'")
        leader = int(known.partitions[partition].leader)
        if leader not in self.brokers:
            raise CommandError(f"{topic}-{partition} has no leader", "check 'tidelog cluster status'")
        return leader


def _check(error: Any, failure: str) -> None:
    if error.value != 0:
        raise CommandError(f"{failure}: {error.name.upper()}", hint_for(error.name.upper()))
