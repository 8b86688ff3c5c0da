"""The ends of transactions in partitions: markers written here, and sent to where the partitions are led.

`MarkerWriter` appends a marker to a partition led here and reports when it is replicated. The coordinator of
this node writes through it, and so does WriteTxnMarkers, which carries the same order from the coordinator
of another node or from an administrator. A marker for a partition of `__consumer_offsets` goes through the
group coordinator, so that the offsets of the transaction count from there on.

`MarkerSender` takes a coordinator's markers to the leaders of their partitions as the image names them. Each
broker gets a few requests at a time; what comes meanwhile goes together in the next. A marker that is on its
way to a leader is not sent there again. Whatever goes wrong on the way is reported as an error that the
coordinator's machine answers by sending again, to the leader of that moment.
"""

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tidelog.broker.coordinators.group_coordinator import GroupCoordinator
from tidelog.broker.coordinators.marker import Marker
from tidelog.broker.coordinators.replicated_appends import ReplicatedAppends
from tidelog.broker.maintenance.flusher import Flusher
from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.replicas.partition import Partition
from tidelog.broker.replicas.replicas import Replicas
from tidelog.broker.runtime.deferred import Deferred
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.peers import PeerFault, Peers
from tidelog.client.api_keys import WRITE_TXN_MARKERS
from tidelog.client.requests import MalformedAnswer, decode_response, encode_request
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import GROUP_METADATA_TOPIC, NO_LEADER, TopicPartition
from tidelog.model.ports import Clock

log = logging.getLogger(__name__)

WRITE_TXN_MARKERS_VERSION = 2
#: a marker waits for replicas, so it must not stand before requests that do not
MARKERS_CHANNEL = "markers"
REQUESTS_IN_FLIGHT_MAX = 4
MARKERS_PER_REQUEST_MAX = 1_000

Results = Mapping[TopicPartition, ErrorCode]


class MarkerWriter:
    """Writes markers to partitions led here."""

    def __init__(
        self,
        replicas: Replicas,
        metadata: Metadata,
        groups: Deferred[GroupCoordinator],
        flusher: Flusher,
        appends: ReplicatedAppends,
        settings: LiveSettings,
        clock: Clock,
    ) -> None:
        self._replicas = replicas
        self._metadata = metadata
        self._groups = groups
        self._flusher = flusher
        self._appends = appends
        self._settings = settings
        self._clock = clock
        #: called with every marker that is in the log of a partition led here
        self.on_written: list[Callable[[TopicPartition, Marker], None]] = []

    def write(self, place: TopicPartition, marker: Marker, then: Callable[[ErrorCode], None]) -> None:
        """Append a marker to a partition led here; `then`, perhaps at once, when it is replicated or refused.

        Readers that waited for the end of the transaction wake.
        """
        partition = self._replicas.leader(*place)
        if partition is None:
            known = self._metadata.image.partition(*place) is not None
            then(ErrorCode.NOT_LEADER_OR_FOLLOWER if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return
        error = self._append(place, partition, marker)
        if error:
            then(error)
            return
        for listener in self.on_written:
            listener(place, marker)
        if partition.flushes and partition.unflushed_messages >= partition.config.flush_messages:
            # Started, not waited for: the answer of EndTxn does not promise that markers are on the disk.
            self._flusher.request(partition)
        self._appends.appended(partition)
        timeout_ms = self._settings.get_int("request.timeout.ms")
        self._appends.wait(partition, partition.log.log_end_offset, timeout_ms, then)

    def _append(self, place: TopicPartition, partition: Partition, marker: Marker) -> ErrorCode:
        if place.topic == GROUP_METADATA_TOPIC:
            return self._groups.get().end_transaction(place.partition, marker)
        refused = partition.append_marker(**marker._asdict(), now_ms=self._clock.now_ms())
        return ErrorCode.NONE if refused is None else refused.code


class _Order(NamedTuple):
    """Markers of one transaction for partitions that one broker leads, and who waits for the results."""

    marker: Marker
    places: tuple[TopicPartition, ...]
    then: Callable[[Results], None]


class MarkerSender:
    """Takes markers to the leaders of their partitions."""

    def __init__(
        self, writer: MarkerWriter, metadata: Metadata, peers: Peers, settings: LiveSettings, node_id: int
    ) -> None:
        self._writer = writer
        self._metadata = metadata
        self._peers = peers
        self._settings = settings
        self._node_id = node_id
        self._queues: dict[int, list[_Order]] = {}
        self._requests: dict[int, int] = {}
        self._under_way: dict[tuple[TopicPartition, Marker], int] = {}

    def __repr__(self) -> str:
        return f"<MarkerSender under_way={len(self._under_way)} requests={sum(self._requests.values())}>"

    def send(
        self, marker: Marker, places: frozenset[TopicPartition], then: Callable[[Results], None]
    ) -> None:
        """Write a marker to each of `places`; `then` is called for every leader on its own, and for those
        without one, perhaps at once. Places to which the same marker is under way are left out.
        """
        here: list[TopicPartition] = []
        elsewhere: dict[int, list[TopicPartition]] = {}
        nowhere: dict[TopicPartition, ErrorCode] = {}
        for place in sorted(places):
            state = self._metadata.image.partition(*place)
            if state is None:
                nowhere[place] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif state.leader == NO_LEADER:
                nowhere[place] = ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif self._under_way.get((place, marker)) == state.leader:
                continue
            elif state.leader == self._node_id:
                here.append(place)
            else:
                elsewhere.setdefault(state.leader, []).append(place)
        for broker_id, led in elsewhere.items():
            for place in led:
                self._under_way[place, marker] = broker_id
            self._queues.setdefault(broker_id, []).append(_Order(marker, tuple(led), then))
            self._send_queued(broker_id)
        if here:
            self._write_here(marker, here, nowhere, then)
        elif nowhere:
            then(nowhere)

    def _write_here(
        self,
        marker: Marker,
        places: list[TopicPartition],
        results: dict[TopicPartition, ErrorCode],
        then: Callable[[Results], None],
    ) -> None:
        """Write to partitions led here; what is replicated at once is reported together."""
        node_id = self._node_id
        at_once = True

        def written(place: TopicPartition, error: ErrorCode) -> None:
            self._arrived(place, marker, node_id)
            if at_once:
                results[place] = error
            else:
                then({place: error})

        for place in places:
            self._under_way[place, marker] = node_id
            self._writer.write(place, marker, lambda error, place=place: written(place, error))  # type: ignore[misc]
        at_once = False
        if results:
            then(results)

    def _arrived(self, place: TopicPartition, marker: Marker, broker_id: int) -> None:
        if self._under_way.get((place, marker)) == broker_id:
            del self._under_way[place, marker]

    # ------------------------------------------------------------ to other brokers

    def _send_queued(self, broker_id: int) -> None:
        queue = self._queues.get(broker_id)
        if not queue or self._requests.get(broker_id, 0) >= REQUESTS_IN_FLIGHT_MAX:
            return
        orders, self._queues[broker_id] = queue[:MARKERS_PER_REQUEST_MAX], queue[MARKERS_PER_REQUEST_MAX:]
        self._requests[broker_id] = self._requests.get(broker_id, 0) + 1
        body = encode_request(
            WRITE_TXN_MARKERS,
            WRITE_TXN_MARKERS_VERSION,
            {"markers": [_marker_fields(each) for each in orders]},
        )
        timeout_ms = self._settings.get_int("request.timeout.ms")

        def answered(answer: memoryview | PeerFault) -> None:
            self._requests[broker_id] -= 1
            self._report(broker_id, orders, _results(answer, orders))
            self._send_queued(broker_id)

        self._peers.request(
            broker_id,
            WRITE_TXN_MARKERS,
            WRITE_TXN_MARKERS_VERSION,
            body,
            answered,
            timeout_ms=timeout_ms,
            channel=MARKERS_CHANNEL,
        )

    def _report(self, broker_id: int, orders: list[_Order], results: list[Results]) -> None:
        for order, found in zip(orders, results, strict=True):
            for place in order.places:
                self._arrived(place, order.marker, broker_id)
            order.then({place: self._judged(place, found.get(place)) for place in order.places})

    def _judged(self, place: TopicPartition, error: ErrorCode | None) -> ErrorCode:
        """A broker that does not know a partition yet must not make us believe that it is gone."""
        if error is None:
            return ErrorCode.NETWORK_EXCEPTION
        if (
            error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            and self._metadata.image.partition(*place) is not None
        ):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return error


def _marker_fields(order: _Order) -> Mapping[str, object]:
    marker = order.marker
    topics: dict[str, list[int]] = {}
    for topic, index in order.places:
        topics.setdefault(topic, []).append(index)
    return {
        "producer_id": marker.producer_id,
        "producer_epoch": marker.producer_epoch,
        "transaction_result": marker.committed,
        "topics": [{"name": name, "partition_indexes": indexes} for name, indexes in topics.items()],
        "coordinator_epoch": marker.coordinator_epoch,
        "transaction_version": marker.transaction_version,
    }


def _results(answer: memoryview | PeerFault, orders: list[_Order]) -> list[Results]:
    """What came back for each order; an empty mapping where nothing did.

    Answers name producers, not orders: two orders of one producer may be one row of the answer, or two.
    """
    if isinstance(answer, PeerFault):
        log.info("markers were not written: %s", answer.reason)
        return [{} for _ in orders]
    try:
        response = decode_response(WRITE_TXN_MARKERS, WRITE_TXN_MARKERS_VERSION, answer)
    except MalformedAnswer as fault:
        log.warning("an answer to WriteTxnMarkers could not be read: %s", fault)
        return [{} for _ in orders]
    by_producer: dict[int, dict[TopicPartition, ErrorCode]] = {}
    for row in response.markers:
        found = by_producer.setdefault(row.producer_id, {})
        for topic in row.topics:
            for one in topic.partitions:
                found[TopicPartition(topic.name, one.partition_index)] = ErrorCode(one.error_code.value)
    return [by_producer.get(order.marker.producer_id, {}) for order in orders]
