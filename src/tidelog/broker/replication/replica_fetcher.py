"""Fetches the partitions that one other broker leads, and appends what comes.

One long poll is under way at a time, for all partitions of the leader. Partitions that are new, or start
anew, do not wait for its end: a second request goes out behind it, and the leader answers the first at once.

An answer is carried out as it arrives, because its records are views of the receive buffer: batches are
appended, and logs that differ from the leader's are cut, all with one checkpoint (`followed_logs`). A
partition with an error rests for a while, longer each time, and is not fetched meanwhile; so does one whose
log cannot be written.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from uuid import UUID

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.replicas.partition import Partition
from tidelog.broker.replication.followed_logs import FollowedLogs
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.peers import FETCH_CHANNEL, PeerFault, Peers
from tidelog.broker.runtime.timers import Timers
from tidelog.model.errors import ErrorCode
from tidelog.protocol.apis import FETCH
from tidelog.protocol.fetch import READ_UNCOMMITTED, FetchPartition, FetchRequest
from tidelog.protocol.fetch_client import (
    FOLLOWER_VERSION,
    AnsweredPartition,
    FetchAnswer,
    decode_response,
    encode_request,
)
from tidelog.protocol.primitives import MalformedRequest
from tidelog.replication.follower import FollowerSession, PartitionKey, SessionRequest

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
#: what went wrong in a way nobody thought of waits as long as what went wrong so often
UNEXPECTED_RESTS = 10


class ReplicaFetcher:
    """The fetch loop of one leader."""

    def __init__(
        self,
        leader_id: int,
        logs: FollowedLogs,
        metadata: Metadata,
        settings: LiveSettings,
        peers: Peers,
        timers: Timers,
    ) -> None:
        self.leader_id = leader_id
        self._logs = logs
        self._metadata = metadata
        self._settings = settings
        self._peers = peers
        self._timers = timers
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

    def follow(self, partition: Partition) -> None:
        """Fetch a partition from where its log ends; or go on under another leader epoch."""
        key = (partition.topic_id, partition.index)
        self.partitions[key] = partition
        self._rests.pop(key, None)
        self._start_at_end(key, partition)
        self.go_soon()

    def _start_at_end(self, key: PartitionKey, partition: Partition) -> None:
        self._counts_from[key] = self._request_number + 1
        self._session.follow_anew(key, partition.position)

    def leave(self, partition: Partition) -> None:
        """Fetch a partition no more."""
        key = (partition.topic_id, partition.index)
        if self.partitions.pop(key, None) is not None:
            self._session.leave(key)
            self._counts_from.pop(key, None)
            self._rests.pop(key, None)
            self._timers.cancel(("replica fetch", self.leader_id, key))

    def stop(self) -> None:
        """Send nothing more and heed no answer."""
        self._stopped = True
        self._timers.cancel(("replica fetch", self.leader_id))
        for key in self.partitions:
            self._timers.cancel(("replica fetch", self.leader_id, key))

    # -- asking

    def go_soon(self, delay_ms: int = 0) -> None:
        """Send the next request in a later turn, so that many partitions go with it."""
        key = ("replica fetch", self.leader_id)
        if delay_ms or key not in self._timers:
            self._timers.set_after(key, delay_ms, self._go)

    def _go(self) -> None:
        session = self._session
        if self._stopped or not (len(session) or session.has_news):
            return
        if self._in_flight and not (
            self._in_flight < IN_FLIGHT_MAX and session.can_pipeline and session.has_news
        ):
            return
        settings, node_id = self._settings, self._metadata.node_id
        own = self._metadata.image.brokers.get(node_id)
        request = session.next_request()
        partition_max_bytes = settings.get_int("replica.fetch.max.bytes")
        topics: dict[str | UUID, list[FetchPartition]] = {}
        for (topic_id, index), position in request.wanted:
            topics.setdefault(topic_id, []).append(FetchPartition(index, *position, partition_max_bytes))
        forgotten: dict[str | UUID, list[int]] = {}
        for topic_id, index in request.forgotten:
            forgotten.setdefault(topic_id, []).append(index)
        asked = FetchRequest(
            node_id,
            settings.get_int("replica.fetch.wait.max.ms"),
            1,
            settings.get_int("replica.fetch.response.max.bytes"),
            READ_UNCOMMITTED,
            request.session_id,
            request.session_epoch,
            list(topics.items()),
            list(forgotten.items()),
            "",
            -1 if own is None else own.epoch,
        )
        self._in_flight += 1
        self._request_number += 1
        self._peers.request(
            self.leader_id,
            FETCH,
            FOLLOWER_VERSION,
            encode_request(FOLLOWER_VERSION, asked),
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
            decoded = decode_response(FOLLOWER_VERSION, answer)
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
        longest_ms = self._settings.get_int("replica.fetch.backoff.ms")
        return min(longest_ms, BACKOFF_MS_MIN << min(count, 10))

    def _carry_out(self, number: int, answer: FetchAnswer[UUID]) -> None:
        diverging: list[tuple[PartitionKey, Partition, int]] = []
        for answered in answer.partitions:
            key = (answered.topic, answered.partition)
            partition = self.partitions.get(key)
            if partition is None or key not in self._session or number < self._counts_from.get(key, 0):
                continue
            carried_out = False
            try:
                if answered.error:
                    self._heed_error(key, partition, answered)
                elif answered.diverging_epoch is not None:
                    offset = self._logs.divergence(partition, answered.diverging_epoch)
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

    def _append(self, key: PartitionKey, partition: Partition, answered: AnsweredPartition[UUID]) -> None:
        if not self._logs.append(partition, answered):
            self._rest(key, partition)
            return
        self._rests.pop(key, None)
        if partition.flushes and partition.unflushed_messages >= partition.config.flush_messages:
            self._session.leave(key)
            self._logs.when_flushed(partition, partial(self._resume, key, partition))
            return
        delay_ms = self._logs.throttle_ms(partition, answered) if len(answered.records) else 0
        if delay_ms:
            self._session.leave(key)
            self._resume_later(key, partition, delay_ms)
        else:
            self._session.follow(key, partition.position)

    def _refuses(self, key: PartitionKey, partition: Partition, offset: int) -> bool:
        """Whether committed records would go that must not; then the partition is fetched no more."""
        if not self._logs.refuses_cut(partition, offset):
            return False
        self._session.leave(key)
        return True

    def _resume_later(self, key: PartitionKey, partition: Partition, delay_ms: int) -> None:
        timer = ("replica fetch", self.leader_id, key)
        self._timers.set_after(timer, delay_ms, partial(self._resume, key, partition))

    def _resume(self, key: PartitionKey, partition: Partition) -> None:
        """Fetch again a partition that rested, if it is still followed here."""
        if self.partitions.get(key) is partition and not self._stopped:
            self._start_at_end(key, partition)
            self.go_soon()

    def _heed_error(self, key: PartitionKey, partition: Partition, answered: AnsweredPartition[UUID]) -> None:
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

    def _rest(self, key: PartitionKey, partition: Partition) -> None:
        """Leave a partition out for a while."""
        count = self._rests.get(key, 0)
        self._rests[key] = count + 1
        self._session.leave(key)
        self._resume_later(key, partition, self._backoff_ms(count))

    def _cut(self, cuts: Sequence[tuple[PartitionKey, Partition, int]], *, fully: bool = False) -> None:
        """Cut logs and go on from there; one that cannot be cut rests."""
        if not self._logs.cut([(partition, offset) for _, partition, offset in cuts], fully=fully):
            for key, partition, _ in cuts:
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


class ReplicaFetchers:
    """The fetch loops of one broker: one for each leader that it follows."""

    def __init__(self, logs: FollowedLogs, make: Callable[[int], ReplicaFetcher]) -> None:
        """`make` begins the fetch loop of a leader."""
        self._logs = logs
        self._make = make
        self._stopped = False
        self.by_leader: dict[int, ReplicaFetcher] = {}

    def __repr__(self) -> str:
        return f"<ReplicaFetchers from {sorted(self.by_leader)}>"

    def follow(self, partition: Partition) -> None:
        """Fetch a partition from the broker that leads it."""
        if self._stopped:
            return
        fetcher = self.by_leader.get(partition.leader_id)
        if fetcher is None:
            fetcher = self.by_leader[partition.leader_id] = self._make(partition.leader_id)
        fetcher.follow(partition)

    def leave(self, partition: Partition) -> None:
        """Fetch a partition no more."""
        self._logs.left(partition)
        fetcher = self.by_leader.get(partition.leader_id)
        if fetcher is not None:
            fetcher.leave(partition)
            if not fetcher.partitions:
                fetcher.stop()
                del self.by_leader[partition.leader_id]

    def stop(self) -> None:
        """Fetch nothing any more."""
        self._stopped = True
        for fetcher in self.by_leader.values():
            fetcher.stop()
        self.by_leader.clear()
