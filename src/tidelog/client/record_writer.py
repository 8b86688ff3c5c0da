"""Writes record batches to many partitions, several requests under way, each batch once.

    writer = RecordWriter(cluster, transactional_id)
    writer.send(BatchToSend("orders", 3, data))         # may wait for answers to earlier ones
    writer.flush()                                      # every batch is on all replicas in sync

Batches carry the sequence numbers of an idempotent producer, so one that is sent again, because an answer was
lost or a leader moved, is written once. Where they came to lie is in `placed`. The batches of a partition go
in the order of `send`, one in each request. When one fails in a way that may pass, the writer first takes in
all answers that are under way, and then sends everything again that was not confirmed, in its order. What
cannot pass is raised as `Refusal`.
"""

import random
import struct
import time
from collections import deque
from typing import NamedTuple

from tidelog.client.cluster import Cluster
from tidelog.client.faults import MOVED, RETRIABLE, LinkFault, Refusal, known_code
from tidelog.client.link import Link
from tidelog.client.produce_requests import (
    VERSION_MAX,
    VERSION_MIN,
    BatchAnswer,
    BatchToSend,
    decode_response,
    encode_request,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import TopicPartition
from tidelog.protocol.apis import PRODUCE
from tidelog.protocol.primitives import MalformedRequest
from tidelog.records.batch import LAST_OFFSET_DELTA_POSITION

#: brokers remember the last five batches of a producer and partition
REQUESTS_IN_FLIGHT_MAX = 5
REQUEST_BYTES_MAX = 1 << 20
BUFFER_BYTES_MAX = 32 << 20
DELIVERY_TIMEOUT_MS = 120_000

#: the batch is in the log: an answer to an earlier try was lost
_WRITTEN = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})
#: what a broker grants itself to wait for replicas, we grant it and a little more
_ANSWER_GRACE_MS = 5_000
_LAST_OFFSET_DELTA = struct.Struct(">i")
#: the end of what is placed, when a broker confirmed a batch without saying where it is
UNKNOWN_OFFSET = -1


class _Lane:
    """The batches of one partition that are not confirmed; the first `sent` of them are under way."""

    __slots__ = ("batches", "sent")

    def __init__(self) -> None:
        self.batches: deque[BatchToSend] = deque()
        self.sent = 0


class _Request(NamedTuple):
    """A Produce request under way."""

    link: Link
    ticket: int
    version: int
    batches: tuple[BatchToSend, ...]


#: what went wrong first in each partition
_Wrong = dict[TopicPartition, LinkFault | Refusal]


class RecordWriter:
    """Sends the batches of one producer; belongs to one thread."""

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str | None,
        *,
        delivery_timeout_ms: int = DELIVERY_TIMEOUT_MS,
        in_flight_max: int = REQUESTS_IN_FLIGHT_MAX,
        request_bytes_max: int = REQUEST_BYTES_MAX,
        buffer_bytes_max: int = BUFFER_BYTES_MAX,
    ) -> None:
        assert 1 <= in_flight_max <= REQUESTS_IN_FLIGHT_MAX
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._delivery_timeout_ms = delivery_timeout_ms
        self._in_flight_max = in_flight_max
        self._request_bytes_max = request_bytes_max
        self._buffer_bytes_max = buffer_bytes_max
        self._lanes: dict[TopicPartition, _Lane] = {}
        self._unconfirmed_bytes = 0
        self._under_way: dict[int, deque[_Request]] = {}
        self._progress_at = time.monotonic()
        self._tries_in_vain = 0
        self.requests = 0
        self.retries = 0
        #: from the first confirmed batch of a partition to the end of the last
        self.placed: dict[TopicPartition, tuple[int, int]] = {}

    def __repr__(self) -> str:
        return f"<RecordWriter {self._transactional_id} unconfirmed={self._unconfirmed_bytes}B>"

    def send(self, batch: BatchToSend) -> None:
        """Queue a batch and put on the wire what there is room for; waits when too much is unconfirmed.

        Raises Refusal, LinkFault.
        """
        if not self._unconfirmed_bytes:
            self._progress_at = time.monotonic()
        lane = self._lanes.setdefault(TopicPartition(batch.topic, batch.partition), _Lane())
        lane.batches.append(batch)
        self._unconfirmed_bytes += len(batch.data)
        while self._unconfirmed_bytes >= self._buffer_bytes_max:
            self._step()

    def pump(self) -> None:
        """Put on the wire what there is room for, without waiting for answers."""
        try:
            self._fill()
        except (LinkFault, Refusal) as fault:
            self._recover({}, fault)

    def flush(self) -> None:
        """Wait until every batch is confirmed."""
        while self._unconfirmed_bytes:
            self._step()

    def abandon(self) -> None:
        """Forget what is not confirmed; links with answers outstanding are closed."""
        for requests in self._under_way.values():
            for request in requests:
                request.link.close("the writer gave up")
        self._under_way.clear()
        self._lanes.clear()
        self._unconfirmed_bytes = 0

    # Inside

    def _step(self) -> None:
        """Send what there is room for, then take one answer in."""
        wrong: _Wrong = {}
        try:
            self._fill()
        except (LinkFault, Refusal) as fault:
            self._recover(wrong, fault)
            return
        busy = [(len(requests), broker_id) for broker_id, requests in self._under_way.items() if requests]
        if busy:
            self._settle(self._under_way[max(busy)[1]].popleft(), wrong)
            if wrong:
                self._recover(wrong, None)

    def _fill(self) -> None:
        """One request after another for each broker, each with the next batch of each of its partitions."""
        by_leader: dict[int, list[_Lane]] = {}
        for place, lane in self._lanes.items():
            if len(lane.batches) > lane.sent:
                leader = self._cluster.leader_of(place.topic, place.partition)
                by_leader.setdefault(leader, []).append(lane)
        for broker_id, lanes in by_leader.items():
            requests = self._under_way.setdefault(broker_id, deque())
            while len(requests) < self._in_flight_max:
                taken = self._take(lanes)
                if not taken:
                    break
                requests.append(self._send(broker_id, taken))

    def _take(self, lanes: list[_Lane]) -> list[BatchToSend]:
        """The next batch of as many lanes as fit into a request; those left over come first next time."""
        taken: list[BatchToSend] = []
        size = 0
        left: list[_Lane] = []
        served: list[_Lane] = []
        for lane in lanes:
            if len(lane.batches) <= lane.sent:
                continue
            batch = lane.batches[lane.sent]
            if taken and size + len(batch.data) > self._request_bytes_max:
                left.append(lane)
                continue
            lane.sent += 1
            size += len(batch.data)
            taken.append(batch)
            served.append(lane)
        lanes[:] = left + served
        return taken

    def _send(self, broker_id: int, batches: list[BatchToSend]) -> _Request:
        link = self._cluster.link_to(broker_id)
        version = link.version_of(PRODUCE, VERSION_MIN, VERSION_MAX)
        timeout_ms = self._cluster.settings.request_timeout_ms
        ticket = link.send(PRODUCE, version, encode_request(batches, self._transactional_id, timeout_ms))
        self.requests += 1
        return _Request(link, ticket, version, tuple(batches))

    def _settle(self, request: _Request, wrong: _Wrong) -> None:
        """Take an answer in, or note that there is none; `wrong` keeps what came first in each partition.

        A batch behind one that failed is refused for its sequence number, which is no fault of its own.
        """
        try:
            answers = self._receive(request)
        except LinkFault as lost:
            for batch in request.batches:
                wrong.setdefault(TopicPartition(batch.topic, batch.partition), lost)
            return
        for batch in request.batches:
            place = TopicPartition(batch.topic, batch.partition)
            answer = answers.get(place)
            error = ErrorCode.UNKNOWN_SERVER_ERROR if answer is None else known_code(answer.error)
            if error in _WRITTEN:
                assert answer is not None
                self._note_place(place, batch, answer.base_offset)
                self._confirm(place, batch)
            else:
                message = None if answer is None else answer.message
                wrong.setdefault(place, Refusal(error, f"writing to {place}", message))

    def _receive(self, request: _Request) -> dict[TopicPartition, BatchAnswer]:
        timeout_ms = self._cluster.settings.request_timeout_ms + _ANSWER_GRACE_MS
        body = request.link.receive(request.ticket, timeout_ms)
        try:
            answers = decode_response(request.version, body)
        except MalformedRequest as fault:
            request.link.close("its answer to Produce could not be read")
            raise LinkFault(f"the answer to Produce cannot be read: {fault}") from fault
        return {TopicPartition(answer.topic, answer.partition): answer for answer in answers}

    def _note_place(self, place: TopicPartition, batch: BatchToSend, base_offset: int) -> None:
        """Batches of a partition lie in the order in which they are confirmed."""
        first = self.placed[place][0] if place in self.placed else max(base_offset, 0)
        end = UNKNOWN_OFFSET
        if base_offset >= 0:
            (last_delta,) = _LAST_OFFSET_DELTA.unpack_from(batch.data, LAST_OFFSET_DELTA_POSITION)
            end = base_offset + last_delta + 1
        self.placed[place] = (first, end)

    def _confirm(self, place: TopicPartition, batch: BatchToSend) -> None:
        lane = self._lanes[place]
        lane.batches.remove(batch)  # nearly always the first
        lane.sent -= 1
        self._unconfirmed_bytes -= len(batch.data)
        self._progress_at = time.monotonic()
        self._tries_in_vain = 0

    def _recover(self, wrong: _Wrong, fault: LinkFault | Refusal | None) -> None:
        """Take in every answer under way, so that nothing overtakes; then wait a little, or give up."""
        for requests in self._under_way.values():
            for request in requests:
                self._settle(request, wrong)
        self._under_way.clear()
        for lane in self._lanes.values():
            lane.sent = 0
        faults = [*wrong.values(), *([fault] if fault is not None else [])]
        for found in faults:
            if isinstance(found, Refusal) and found.code not in RETRIABLE:
                raise found
        if (time.monotonic() - self._progress_at) * 1000 > self._delivery_timeout_ms:
            raise faults[0]
        if any(isinstance(found, LinkFault) or found.code in MOVED for found in faults):
            self._cluster.forget_places()
        self.retries += 1
        self._tries_in_vain += 1
        settings = self._cluster.settings
        backoff_ms = settings.retry_backoff_ms * 2 ** min(self._tries_in_vain - 1, 6)
        time.sleep(min(settings.retry_backoff_max_ms, backoff_ms) / 1000 * random.uniform(0.8, 1.2))
