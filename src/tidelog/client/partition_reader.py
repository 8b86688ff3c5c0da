"""Reads a range of one partition's offsets as raw record batches, one fetch ahead of its reader.

`slices` yields what each Fetch brought, undecoded, in order, until the end of the range. The next Fetch is on
its way before a slice is handed out, so the broker works while the caller decodes. Leaders that move, links
that break and brokers that are away are lived through (`Cluster.persist`). What only the caller can judge is
raised: Refusal(OFFSET_OUT_OF_RANGE) when the log does not hold the offset, NothingArrived when the log ends
before the range does.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tidelog.client.cluster import Cluster
from tidelog.client.faults import ClientFault, LinkFault, Refusal
from tidelog.client.link import Link
from tidelog.model.identifiers import TopicPartition
from tidelog.protocol import fetch_client
from tidelog.protocol.apis import FETCH
from tidelog.protocol.fetch_client import AnsweredPartition
from tidelog.protocol.primitives import MalformedRequest
from tidelog.records.batch import MAGIC, iterate_headers

#: what a record takes before any was seen
RECORD_BYTES_GUESS = 1_100
FETCH_BYTES_MIN = 256 << 10
#: room for the batches at the ends of a range, which hold records outside it
ESTIMATE_MARGIN = 1.25
_NO_REPLICA = -1
MAGIC_POSITION = 16


class NothingArrived(ClientFault):
    """The range goes on, but for a long time no more records came."""

    def __init__(self, where: TopicPartition, offset: int, end_offset: int, readable_end: int) -> None:
        self.where = where
        self.offset = offset
        self.end_offset = end_offset
        #: the offset up to which the broker would have served
        self.readable_end = readable_end
        super().__init__(f"{where}: nothing at offset {offset} on the way to {end_offset}")


class Slice(NamedTuple):
    """What one Fetch brought."""

    records: memoryview
    #: (producer id, first offset) of the aborted transactions in it; None for read_uncommitted
    aborted: list[tuple[int, int]] | None
    next_offset: int


class _UnderWay(NamedTuple):
    """A Fetch that was sent."""

    link: Link
    ticket: int
    version: int
    offset: int


class PartitionReader:
    """Reads ranges of one partition, one at a time."""

    def __init__(self, cluster: Cluster, where: TopicPartition) -> None:
        self.cluster = cluster
        self.where = where
        self._under_way: _UnderWay | None = None
        #: a follower that the leader sent us to (KIP-392)
        self._read_replica = _NO_REPLICA

    def __repr__(self) -> str:
        return f"<PartitionReader {self.where}>"

    def slices(self, start_offset: int, end_offset: int, patience_ms: int) -> Iterator[Slice]:
        """What the log holds from `start_offset` up to `end_offset` and a little more."""
        offset = start_offset
        record_bytes: float = RECORD_BYTES_GUESS
        waited_ms = 0
        try:
            while offset < end_offset:
                max_bytes = self._max_bytes(end_offset - offset, record_bytes)
                answered = self._fetch(offset, max_bytes)
                next_offset = _next_offset(answered.records, offset)
                if next_offset == offset:
                    waited_ms += self.cluster.settings.fetch_max_wait_ms
                    if waited_ms >= patience_ms:
                        end = self._readable_end(answered)
                        raise NothingArrived(self.where, offset, end_offset, end)
                    continue
                waited_ms = 0
                record_bytes = len(answered.records) / (next_offset - offset)
                offset = next_offset
                if offset < end_offset:
                    self._send_ahead(offset, self._max_bytes(end_offset - offset, record_bytes))
                yield Slice(answered.records, answered.aborted, offset)
        finally:
            self._abandon()

    def _max_bytes(self, records_left: int, record_bytes: float) -> int:
        """Not much more than the range needs, for the rest would be thrown away."""
        estimate = int(records_left * record_bytes * ESTIMATE_MARGIN)
        return min(self.cluster.settings.partition_fetch_bytes, max(FETCH_BYTES_MIN, estimate))

    def _readable_end(self, answered: AnsweredPartition[str]) -> int:
        return answered.last_stable_offset if answered.aborted is not None else answered.high_watermark

    def _fetch(self, offset: int, max_bytes: int) -> AnsweredPartition[str]:
        return self.cluster.persist(lambda: self._fetch_once(offset, max_bytes))

    def _fetch_once(self, offset: int, max_bytes: int) -> AnsweredPartition[str]:
        try:
            if self._under_way is None:
                self._send(offset, max_bytes)
            answered = self._receive(offset)
            if answered.error:
                raise Refusal(answered.error, f"reading {self.where} at offset {offset}")
        except (LinkFault, Refusal):
            self._read_replica = _NO_REPLICA
            raise
        if answered.preferred_read_replica not in (_NO_REPLICA, self._read_replica):
            self._read_replica = answered.preferred_read_replica
            return self._fetch_once(offset, max_bytes)
        return answered

    def _send(self, offset: int, max_bytes: int) -> None:
        settings = self.cluster.settings
        broker_id = self._read_replica
        if broker_id == _NO_REPLICA:
            broker_id = self.cluster.leader_of(self.where.topic, self.where.partition)
        link = self.cluster.link_to(broker_id)
        version = link.version_of(FETCH, fetch_client.CONSUMER_VERSION_MIN, fetch_client.CONSUMER_VERSION_MAX)
        request = fetch_client.consumer_request(
            self.where.topic,
            self.where.partition,
            offset,
            max_bytes,
            max_wait_ms=settings.fetch_max_wait_ms,
            min_bytes=settings.fetch_min_bytes,
            max_bytes=max(max_bytes, settings.fetch_max_bytes),
            isolation=settings.isolation_level,
            rack_id=settings.client_rack,
        )
        body = fetch_client.encode_request(version, request)
        self._under_way = _UnderWay(link, link.send(FETCH, version, body), version, offset)

    def _send_ahead(self, offset: int, max_bytes: int) -> None:
        try:
            self._send(offset, max_bytes)
        except (LinkFault, Refusal):
            # The fetch that is waited for will meet the same trouble, and has the patience for it.
            self._under_way = None

    def _receive(self, offset: int) -> AnsweredPartition[str]:
        sent, self._under_way = self._under_way, None
        assert sent is not None and sent.offset == offset
        body = sent.link.receive(sent.ticket)
        try:
            answer = fetch_client.decode_response(sent.version, body)
        except MalformedRequest as fault:
            sent.link.close("its answer to Fetch could not be read")
            raise LinkFault(f"{self.where}: the answer to Fetch cannot be read: {fault}") from fault
        if answer.error or not answer.partitions:
            raise Refusal(answer.error or -1, f"reading {self.where}")
        return answer.partitions[0]

    def _abandon(self) -> None:
        if self._under_way is not None:
            self._under_way.link.forget(self._under_way.ticket)
            self._under_way = None


def _next_offset(records: memoryview, offset: int) -> int:
    """The offset after the last whole batch; `offset` if there is none."""
    if len(records) > MAGIC_POSITION and records[MAGIC_POSITION] != MAGIC:
        raise ClientFault(
            f"message format {records[MAGIC_POSITION]} is that of Kafka before 0.11 and is not read here;"
            " copy the topic with a producer of today"
        )
    for _, header in iterate_headers(records):
        offset = max(offset, header.next_offset)
    return offset
