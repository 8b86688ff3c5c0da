"""Fetches the partitions that one other broker leads, and appends what comes.

One long poll is under way at a time, for all partitions of the leader. Partitions that are new, or start
anew, do not wait for its end: a second request goes out behind it, and the leader answers the first at once.

An answer is carried out as it arrives, because its records are views of the receive buffer: logs that differ
from the leader's are cut first (all with one checkpoint), batches are appended, the watermark and the start
of the log follow the leader's. A partition with an error rests for a while, longer each time, and is not
fetched meanwhile; so does one whose log cannot be written. With `flush.messages` an offset is fetched, and so
acknowledged, only when what lies before it is on the disk.

A log is never cut below its high watermark unless a leader was elected uncleanly since it was written: what
is committed there may be on no other disk. Such a partition is not fetched any more from this leader in this
epoch (`Replication.refuse_cut`).
"""

import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tidelog.broker.parking import Waiter, Watched
from tidelog.broker.peers import FETCH_CHANNEL, PeerFault
from tidelog.model.errors import ErrorCode
from tidelog.protocol.apis import FETCH
from tidelog.protocol.primitives import MalformedRequest
from tidelog.protocol.replica_fetch import (
    FETCH_VERSION,
    AnsweredPartition,
    FetchAnswer,
    WantedPartition,
    decode_response,
    encode_request,
)
from tidelog.replication.follower import FollowerSession, PartitionKey, SessionRequest, truncation_offset
from tidelog.replication.throttle import is_throttled

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.partition import Partition

log = logging.getLogger(__name__)

BACKOFF_MS_MIN = 20
IN_FLIGHT_MAX = 2
#: these pass as soon as both sides have the same image
EXPECTED_ERRORS = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
FLUSH_WAIT_MS = 60_000
#: what went wrong in a way nobody thought of waits as long as what went wrong so often
UNEXPECTED_RESTS = 10


class _FlushWait(Waiter):
    """Waits until a followed log is on the disk up to an offset, then goes on fetching it."""

    __slots__ = ("_fetcher", "_key", "_partition", "_to_offset")

    def __init__(self, fetcher: "ReplicaFetcher", key: PartitionKey, partition: "Partition") -> None:
        super().__init__()
        self._fetcher = fetcher
        self._key = key
        self._partition = partition
        self._to_offset = partition.log.log_end_offset

    def ready(self, progressed: Watched) -> bool:
        return self._partition.log.recovery_point >= self._to_offset

    def complete(self, *, expired: bool) -> Any:
        self._fetcher.resume(self._key, self._partition)


class ReplicaFetcher:
    """The fetch loop of one leader."""

    def __init__(self, broker: "Broker", leader_id: int) -> None:
        self._broker = broker
        self.leader_id = leader_id
        self.partitions: dict[PartitionKey, Partition] = {}
        self._session = FollowerSession()
        #: how often in a row a partition had to rest
        self._rests: dict[PartitionKey, int] = {}
        #: the first request whose answer counts for a partition: earlier ones asked for something else
        self._counts_from: dict[PartitionKey, int] = {}
        self._request_number = 0
        self._in_flight = 0
        self._faults = 0
        self._stopped = False

    def follow(self, partition: "Partition") -> None:
        """Fetch a partition from where its log ends; or go on under another leader epoch."""
        key = (partition.topic_id, partition.index)
        self.partitions[key] = partition
        self._rests.pop(key, None)
        self._start_at_end(key, partition)
        self.go_soon()

    def _start_at_end(self, key: PartitionKey, partition: "Partition") -> None:
        self._counts_from[key] = self._request_number + 1
        self._session.follow_anew(key, partition.position)

    def leave(self, partition: "Partition") -> None:
        """Fetch a partition no more."""
        key = (partition.topic_id, partition.index)
        if self.partitions.pop(key, None) is not None:
            self._session.leave(key)
            self._counts_from.pop(key, None)
            self._rests.pop(key, None)
            self._broker.timers.cancel(("replica fetch", self.leader_id, key))

    def stop(self) -> None:
        """Send nothing more and heed no answer."""
        self._stopped = True
        self._broker.timers.cancel(("replica fetch", self.leader_id))
        for key in self.partitions:
            self._broker.timers.cancel(("replica fetch", self.leader_id, key))

    # -- asking

    def go_soon(self, delay_ms: int = 0) -> None:
        """Send the next request in a later turn, so that many partitions go with it."""
        timers = self._broker.timers
        key = ("replica fetch", self.leader_id)
        if delay_ms or key not in timers:
            timers.set(key, self._broker.clock.now_ms() + delay_ms, self._go)

    def _go(self) -> None:
        session = self._session
        if self._stopped or not (len(session) or session.has_news):
            return
        if self._in_flight and not (
            self._in_flight < IN_FLIGHT_MAX and session.can_pipeline and session.has_news
        ):
            return
        settings = self._broker.settings
        own = self._broker.image.brokers.get(self._broker.node_id)
        request = session.next_request()
        topics: dict[UUID, list[WantedPartition]] = {}
        for (topic_id, index), position in request.wanted:
            topics.setdefault(topic_id, []).append(WantedPartition(index, *position))
        forgotten: dict[UUID, list[int]] = {}
        for topic_id, index in request.forgotten:
            forgotten.setdefault(topic_id, []).append(index)
        body = encode_request(
            replica_id=self._broker.node_id,
            replica_epoch=-1 if own is None else own.epoch,
            max_wait_ms=settings.get_int("replica.fetch.wait.max.ms"),
            min_bytes=1,
            max_bytes=settings.get_int("replica.fetch.response.max.bytes"),
            partition_max_bytes=settings.get_int("replica.fetch.max.bytes"),
            session_id=request.session_id,
            session_epoch=request.session_epoch,
            topics=list(topics.items()),
            forgotten=list(forgotten.items()),
        )
        self._in_flight += 1
        self._request_number += 1
        self._broker.peers.request(
            self.leader_id,
            FETCH,
            FETCH_VERSION,
            body,
            partial(self._answered, self._request_number, request),
            timeout_ms=settings.get_int("replica.socket.timeout.ms"),
            channel=FETCH_CHANNEL,
        )

    # -- answers

    def _answered(self, number: int, request: SessionRequest, answer: memoryview | PeerFault) -> None:
        self._in_flight -= 1
        if self._stopped:
            return
        taken_in = False
        try:
            self._take_in(number, request, answer)
            taken_in = True
        finally:
            if not taken_in:
                # A fault of ours, which the loop logs. Whatever it was, fetching goes on, from the start of a
                # session: it is not known which partitions of the answer were served.
                self._session.lost(request)
                self.go_soon(self._backoff_ms(UNEXPECTED_RESTS))

    def _take_in(self, number: int, request: SessionRequest, answer: memoryview | PeerFault) -> None:
        """Carry an answer out, and ask again, now or after a while."""
        if isinstance(answer, PeerFault):
            self._failed(request, answer.reason)
            return
        try:
            decoded = decode_response(answer)
        except MalformedRequest as fault:
            self._failed(request, f"an answer that is no Fetch response: {fault}")
            return
        if self._session.answered(request, decoded.error, decoded.session_id):
            self._faults = 0
            self._carry_out(number, decoded)
            self._go()
        else:
            self.go_soon(self._backoff_ms(self._faults))
            self._faults += 1

    def _failed(self, request: SessionRequest, reason: str) -> None:
        self._session.lost(request)
        if not self._faults:
            log.info("fetching from broker %d failed: %s", self.leader_id, reason)
        self.go_soon(self._backoff_ms(self._faults))
        self._faults += 1

    def _backoff_ms(self, count: int) -> int:
        longest_ms = self._broker.settings.get_int("replica.fetch.backoff.ms")
        return min(longest_ms, BACKOFF_MS_MIN << min(count, 10))

    def _carry_out(self, number: int, answer: FetchAnswer) -> None:
        diverging: list[tuple[PartitionKey, Partition, int]] = []
        for answered in answer.partitions:
            key = (answered.topic_id, answered.partition)
            partition = self.partitions.get(key)
            if partition is None or key not in self._session or number < self._counts_from.get(key, 0):
                continue
            carried_out = False
            try:
                if answered.error:
                    self._heed_error(key, partition, answered)
                elif answered.diverging_epoch is not None:
                    offset = self._divergence(partition, answered.diverging_epoch)
                    if not self._refuses(key, partition, offset):
                        diverging.append((key, partition, offset))
                else:
                    self._append(key, partition, answered)
                carried_out = True
            finally:
                if not carried_out:
                    # Without it the next answers reach the partitions behind it.
                    self._rest(key, partition)
        if diverging:
            self._cut(diverging)

    @staticmethod
    def _divergence(partition: "Partition", diverging_epoch: tuple[int, int]) -> int:
        """Where to cut a log that the leader says is not like its own."""
        log.info("%s diverges from its leader: %s", partition, diverging_epoch)
        return truncation_offset(
            diverging_epoch,
            epoch_end_offset=partition.log.epoch_end_offset,
            log_end_offset=partition.log.log_end_offset,
            high_watermark=partition.high_watermark,
        )

    def _refuses(self, key: PartitionKey, partition: "Partition", offset: int) -> bool:
        """Whether committed records would go that must not; then the partition is fetched no more."""
        if offset >= partition.high_watermark or partition.may_lose_committed:
            return False
        self._session.leave(key)
        self._broker.replication.refuse_cut(partition, offset)
        return True

    def _append(self, key: PartitionKey, partition: "Partition", answered: AnsweredPartition) -> None:
        broker = self._broker
        if len(answered.records):
            refused = partition.append_fetched(answered.records, broker.clock.now_ms())
            if refused is not None:
                log.error("%s cannot follow: %s", partition, refused.message)
                self._rest(key, partition)
                return
        self._rests.pop(key, None)
        moved = partition.learn_high_watermark(answered.high_watermark)
        start_offset = min(answered.log_start_offset, partition.high_watermark)
        if start_offset > partition.log.log_start_offset:
            try:
                broker.advance_log_start(partition, start_offset)
            except OSError as fault:
                log.error("%s cannot follow its leader's log start: %s", partition, fault)
                partition.on_fault(fault, partition)
                self._rest(key, partition)
                return
        if moved and partition.waiters and not partition.progressing:
            broker.note_progress(partition)
        if partition.flushes and partition.unflushed_messages >= partition.config.flush_messages:
            self._fetch_after_flush(key, partition)
        elif len(answered.records) and self._is_throttled(partition, answered):
            self._fetch_when_allowed(key, partition, len(answered.records))
        else:
            self._session.follow(key, partition.position)

    def _fetch_after_flush(self, key: PartitionKey, partition: "Partition") -> None:
        broker = self._broker
        self._session.leave(key)
        waiter = _FlushWait(self, key, partition)
        broker.parking.park(waiter, (partition,), broker.clock.now_ms() + FLUSH_WAIT_MS)
        broker.flusher.request(partition)

    def _is_throttled(self, partition: "Partition", answered: AnsweredPartition) -> bool:
        entries = partition.config.follower_replication_throttled_replicas
        return (
            bool(entries)
            and partition.log.log_end_offset < answered.high_watermark
            and is_throttled(entries, partition.index, self._broker.node_id)
        )

    def _fetch_when_allowed(self, key: PartitionKey, partition: "Partition", size_bytes: int) -> None:
        broker = self._broker
        throttle = broker.replication.throttle
        throttle.spend(size_bytes)
        now_ms = broker.clock.now_ms()
        delay_ms = throttle.delay_ms(broker.settings.get_int("follower.replication.throttled.rate"), now_ms)
        if not delay_ms:
            self._session.follow(key, partition.position)
            return
        self._session.leave(key)
        timer = ("replica fetch", self.leader_id, key)
        broker.timers.set(timer, now_ms + delay_ms, partial(self.resume, key, partition))

    def resume(self, key: PartitionKey, partition: "Partition") -> None:
        """Fetch again a partition that rested, if it is still followed here."""
        if self.partitions.get(key) is partition and not self._stopped:
            self._start_at_end(key, partition)
            self.go_soon()

    def _heed_error(self, key: PartitionKey, partition: "Partition", answered: AnsweredPartition) -> None:
        if answered.error == ErrorCode.OFFSET_OUT_OF_RANGE and answered.log_start_offset >= 0:
            # Records before the start of the leader's log were deleted; those behind it were not.
            within = answered.log_start_offset < partition.log.log_end_offset
            if within and self._refuses(key, partition, answered.log_start_offset):
                return
            log.warning(
                "%s is out of the leader's range and starts anew at %d", partition, answered.log_start_offset
            )
            self._cut([(key, partition, answered.log_start_offset)], fully=True)
            return
        if answered.error not in EXPECTED_ERRORS:
            name = ErrorCode(answered.error).name
            log.warning("fetching %s from broker %d failed: %s", partition, self.leader_id, name)
        self._rest(key, partition)

    def _rest(self, key: PartitionKey, partition: "Partition") -> None:
        """Leave a partition out for a while."""
        count = self._rests.get(key, 0)
        self._rests[key] = count + 1
        self._session.leave(key)
        broker = self._broker
        broker.timers.set(
            ("replica fetch", self.leader_id, key),
            broker.clock.now_ms() + self._backoff_ms(count),
            partial(self.resume, key, partition),
        )

    def _cut(self, cuts: "Sequence[tuple[PartitionKey, Partition, int]]", *, fully: bool = False) -> None:
        """Cut logs and go on from there; one that cannot be cut rests."""
        broker = self._broker
        try:
            broker.replication.truncate([(partition, offset) for _, partition, offset in cuts], fully=fully)
        except OSError as fault:
            for key, partition, _ in cuts:
                log.error("%s could not be cut: %s", partition, fault)
                broker.directory_failures.noticed(fault)
                self._rest(key, partition)
            return
        for key, partition, _ in cuts:
            if self._session.position(key) == partition.position:
                # Asking the same again would be answered the same.
                log.error("%s diverges from its leader and cannot tell where", partition)
                self._rest(key, partition)
            else:
                self._start_at_end(key, partition)

    def __repr__(self) -> str:
        return f"<ReplicaFetcher from {self.leader_id} partitions={len(self.partitions)}>"
