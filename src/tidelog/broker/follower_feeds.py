"""The leader's side of replication: answers the fetches of followers.

A follower's fetch session has a feed here, which stands among the waiters of every partition of the session.
Each time a partition moves on (an append, a higher watermark, a later log start) the feed notes it if that is
news for the follower, so a fetch looks only at partitions with news: an idle follower of a thousand
partitions costs as much as one of a single one. A fetch that finds no news waits for them; a watermark that
the follower does not know yet is news too, so followers learn of commits at once.

A partition whose answer had records, or an error, is looked at again at the next fetch even if the follower
does not name it: perhaps it could not use them.
"""

import logging
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tidelog.broker.fetch_sessions import CachedPartition, FetchSession, PartitionKey
from tidelog.broker.parking import Waiter, Watched
from tidelog.broker.partition import Partition
from tidelog.model.errors import ErrorCode
from tidelog.protocol.fetch import FetchPartition, FetchRequest, PartitionFetched, encode_response
from tidelog.replication.leader import Contact
from tidelog.replication.throttle import Throttle, is_throttled
from tidelog.storage.readable_log import LogSlice

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

logger = logging.getLogger(__name__)

Chunks = list[bytes | LogSlice]
Row = tuple[PartitionKey, "PartitionFetched[LogSlice]"]


class FeedWait(Waiter):
    """A follower's fetch that waits for news; its feed watches the partitions for it."""

    __slots__ = ("correlation_id", "feed", "max_bytes", "version")

    def __init__(self, feed: "FollowerFeed", version: int, correlation_id: int, max_bytes: int) -> None:
        super().__init__()
        self.feed = feed
        self.version = version
        self.correlation_id = correlation_id
        self.max_bytes = max_bytes

    def ready(self, progressed: Watched) -> bool:
        return False  # it watches nothing: the feed ends it

    def complete(self, *, expired: bool) -> Any:
        return self.feed.answer_wait(self)


class FollowerFeed(Waiter):
    """What one follower is to be told next; registered with its partitions for as long as the session."""

    __slots__ = ("_broker", "_changed", "_partitions", "contact", "follower_id", "session", "waiting")

    def __init__(self, broker: "Broker", session: FetchSession, follower_id: int, monotonic_ms: int) -> None:
        super().__init__()
        self._broker = broker
        self.session = session
        self.follower_id = follower_id
        self.contact = Contact(monotonic_ms)
        #: partitions to look at, those waited for longest first
        self._changed: dict[PartitionKey, None] = {}
        self._partitions: dict[PartitionKey, Partition] = {}
        self.waiting: FeedWait | None = None

    # -- news

    def ready(self, progressed: Watched) -> bool:
        """Take note of a partition that moved on; the feed itself is never done waiting."""
        assert isinstance(progressed, Partition)
        key = (progressed.topic_id, progressed.index)
        cached = self.session.partitions.get(key)
        if cached is not None and _has_news(progressed, cached):
            self.note(key)
        return False

    def complete(self, *, expired: bool) -> Any:
        raise AssertionError("a feed is not a request")

    def note(self, key: PartitionKey) -> None:
        """Look at a partition with the next answer, which is due now."""
        self._changed[key] = None
        if self.waiting is not None:
            self._broker.replication.feeds.due[self] = None

    def lost(self, partition: Partition) -> None:
        """A partition is not led here any more."""
        key = (partition.topic_id, partition.index)
        if self._partitions.pop(key, None) is not None:
            partition.waiters.pop(self, None)
            self.note(key)

    def close(self) -> None:
        """The session is over."""
        for key, partition in self._partitions.items():
            partition.waiters.pop(self, None)
            if partition.replicas is not None:
                follower = partition.replicas.followers.get(self.follower_id)
                if follower is not None and follower.contact is self.contact:
                    follower.contact = None
            self._changed.pop(key, None)
        self._partitions.clear()
        if self.waiting is not None:
            self._broker.parking.finish(self.waiting, expired=True)

    # -- requests

    def receive(self, request: FetchRequest, monotonic_ms: int, *, opened: bool) -> None:
        """Take in a request: where the follower stands in the partitions that it names."""
        self.contact.last_fetch_ms = monotonic_ms
        if self.waiting is not None:
            # A later request of the same session: the follower has more to say than to wait for.
            self._broker.parking.finish(self.waiting, expired=True)
            self.waiting = None
        for topic, indexes in request.forgotten:
            for index in indexes:
                self._forget((topic, index))
        for topic, wanted_list in request.topics:
            for wanted in wanted_list:
                self._stands(request, (topic, wanted.partition), wanted, monotonic_ms)
        if opened:
            self._changed = dict.fromkeys(self.session.partitions)

    def _forget(self, key: PartitionKey) -> None:
        self._changed.pop(key, None)
        partition = self._partitions.pop(key, None)
        if partition is not None:
            partition.waiters.pop(self, None)

    def _stands(
        self, request: FetchRequest, key: PartitionKey, wanted: FetchPartition, monotonic_ms: int
    ) -> None:
        self._changed[key] = None
        partition, _ = self._broker.find_partition(*key)
        if partition is not None and self._partitions.get(key) is not partition:
            self._partitions[key] = partition
            partition.waiters[self] = None
        if partition is not None:
            note_fetch(self._broker, partition, request, wanted, monotonic_ms, self.contact)

    # -- answers

    def collect(self, max_bytes: int) -> list[Row]:
        """The partitions with news, as far as the byte limit goes."""
        session = self.session
        rows: list[Row] = []
        remaining = min(max_bytes, self._broker.fetch_bytes_max)
        sent_bytes = 0
        for key in list(self._changed):
            cached = session.partitions.get(key)
            if cached is None:
                del self._changed[key]
                continue
            fetched = self._fetch(key, cached.wanted, remaining, at_least_one=sent_bytes == 0)
            if session.has_news(key, fetched):
                rows.append((key, fetched))
            del self._changed[key]
            if fetched.records is not None:
                sent_bytes += fetched.records.size_bytes
                remaining -= fetched.records.size_bytes
                self._changed[key] = None
            elif fetched.error or fetched.diverging_epoch is not None or self._has_more(key, cached):
                self._changed[key] = None
        return rows

    def _fetch(
        self, key: PartitionKey, wanted: FetchPartition, remaining: int, *, at_least_one: bool
    ) -> "PartitionFetched[LogSlice]":
        partition, error = self._broker.find_partition(*key)
        if partition is None:
            return PartitionFetched(wanted.partition, error)
        throttled = self._is_throttled(partition)
        if throttled and self._broker.replication.feeds.throttle_delay_ms() > 0:
            # Nothing of it now, not even a first batch; the next fetch looks again.
            remaining, at_least_one = 0, False
        fetched = fetch_for_follower(
            partition, self.follower_id, wanted, remaining, at_least_one=at_least_one
        )
        if fetched.records is not None:
            size_bytes = fetched.records.size_bytes
            self._broker.metrics.traffic.replication_bytes_out += size_bytes
            if throttled:
                self._broker.replication.feeds.throttle.spend(size_bytes)
        return fetched

    def _is_throttled(self, partition: Partition) -> bool:
        entries = partition.config.leader_replication_throttled_replicas
        return (
            bool(entries)
            and partition.replicas is not None
            and self.follower_id not in partition.replicas.isr
            and is_throttled(entries, partition.index, self._broker.node_id)
        )

    def _has_more(self, key: PartitionKey, cached: CachedPartition) -> bool:
        """Whether records were held back by the byte limit."""
        partition = self._partitions.get(key)
        return partition is not None and cached.wanted.fetch_offset < partition.log.log_end_offset

    def answer_wait(self, wait: FeedWait) -> Chunks:
        """The answer of a fetch that waited."""
        self.waiting = None
        return self.encode(self.collect(wait.max_bytes), wait.version, wait.correlation_id)

    def encode(self, rows: list[Row], version: int, correlation_id: int) -> Chunks:
        topics: dict[str | UUID, list[PartitionFetched[LogSlice]]] = {}
        for (topic, _), fetched in rows:
            topics.setdefault(topic, []).append(fetched)
        return encode_response(
            list(topics.items()), version, correlation_id, session_id=self.session.session_id
        )

    def __repr__(self) -> str:
        return f"<FollowerFeed of {self.follower_id} partitions={len(self._partitions)}>"


class FollowerFeeds:
    """The feeds of all followers, one each: a new session of a follower ends its last one."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._feeds: dict[int, FollowerFeed] = {}
        #: what followers that catch up may be sent, where a topic says so
        self.throttle = Throttle()
        #: feeds with news for a fetch that waits; answered at the end of the turn
        self.due: dict[FollowerFeed, None] = {}

    def throttle_delay_ms(self) -> int:
        rate = self._broker.settings.get_int("leader.replication.throttled.rate")
        return self.throttle.delay_ms(rate, self._broker.clock.now_ms())

    def answer_due(self) -> None:
        """Answer the fetches that have news now."""
        due, self.due = self.due, {}
        for feed in due:
            if feed.waiting is not None:
                self._broker.parking.finish(feed.waiting, expired=False)

    def forget(self, follower_id: int) -> None:
        """A follower is gone, or begins another life."""
        feed = self._feeds.pop(follower_id, None)
        if feed is not None:
            self._broker.fetch_sessions.drop(feed.session.session_id)
            feed.close()

    def handle(self, request: FetchRequest, version: int, correlation_id: int, now_ms: int) -> Any:
        """Answer a follower's fetch that has a session, or let it wait; None if it has none."""
        broker = self._broker
        life = broker.image.alive_brokers.get(request.replica_id)
        if life is not None and 0 <= request.replica_epoch < life.epoch:
            # An earlier life of the follower, or this one before it has heard of its new epoch: where it
            # stands does not count, so it has to say so again.
            code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            return encode_response([], version, correlation_id, error=code)
        session, opened, error = broker.fetch_sessions.resolve(request, now_ms, True, privileged=True)
        if error:
            return encode_response([], version, correlation_id, error=error)
        if session is None:
            return None
        feed = session.feed
        monotonic_ms = broker.clock.monotonic_ms()
        if feed is None:
            self.forget(request.replica_id)
            feed = session.feed = self._feeds[request.replica_id] = FollowerFeed(
                broker, session, request.replica_id, monotonic_ms
            )
        assert isinstance(feed, FollowerFeed)
        feed.receive(request, monotonic_ms, opened=opened)
        rows = feed.collect(request.max_bytes)
        if rows or opened or request.max_wait_ms <= 0 or broker.parking.full:
            return feed.encode(rows, version, correlation_id)
        feed.waiting = wait = FeedWait(feed, version, correlation_id, request.max_bytes)
        broker.parking.park(wait, (), now_ms + request.max_wait_ms)
        return wait


def _has_news(partition: Partition, cached: CachedPartition) -> bool:
    return (
        partition.log.log_end_offset > cached.wanted.fetch_offset
        or partition.high_watermark != cached.high_watermark
        or partition.log.log_start_offset != cached.log_start_offset
    )


def note_fetch(
    broker: "Broker",
    partition: Partition,
    request: FetchRequest,
    wanted: FetchPartition,
    monotonic_ms: int,
    contact: Contact | None = None,
) -> None:
    """Take note of where a follower stands, if that can be believed; the watermark and the ISR may move."""
    replicas = partition.replicas
    if replicas is None or wanted.current_leader_epoch not in (-1, partition.leader_epoch):
        return
    log = partition.log
    offset = wanted.fetch_offset
    if not log.log_start_offset <= offset <= log.log_end_offset or _diverges(partition, wanted):
        return
    follower_id = request.replica_id
    known = replicas.followers.get(follower_id)
    start_before = -1 if known is None else known.log_start_offset
    if not replicas.fetched(
        follower_id,
        request.replica_epoch,
        offset,
        wanted.log_start_offset,
        end_offset=log.log_end_offset,
        now_ms=monotonic_ms,
        contact=contact,
    ):
        return
    broker.replication.isr_changes.consider(partition, follower_id)
    moved = partition.advance_high_watermark()
    if (moved or wanted.log_start_offset != start_before) and partition.awaited and not partition.progressing:
        broker.note_progress(partition)


def _diverges(partition: Partition, wanted: FetchPartition) -> tuple[int, int] | None:
    """Where the two logs part; None if the follower's is a beginning of the leader's."""
    if wanted.last_fetched_epoch < 0:
        return None
    epoch, end_offset = partition.log.epoch_end_offset(wanted.last_fetched_epoch)
    if epoch < wanted.last_fetched_epoch or end_offset < wanted.fetch_offset:
        return epoch, end_offset
    return None


def fetch_for_follower(
    partition: Partition,
    follower_id: int,
    wanted: FetchPartition,
    remaining_bytes: int,
    *,
    at_least_one: bool,
) -> "PartitionFetched[LogSlice]":
    """Read one partition for a follower: up to the end of the log."""
    index = wanted.partition
    if wanted.current_leader_epoch >= 0 and wanted.current_leader_epoch != partition.leader_epoch:
        older = wanted.current_leader_epoch < partition.leader_epoch
        error = ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH
        return PartitionFetched(index, error)
    if partition.replicas is None or follower_id not in partition.replicas.followers:
        # It knows of an assignment that we have not heard of yet, or the other way round.
        return PartitionFetched(index, ErrorCode.UNKNOWN_LEADER_EPOCH)
    log = partition.log
    log_start_offset = log.log_start_offset
    high_watermark = partition.high_watermark
    diverging = _diverges(partition, wanted)
    if diverging is not None:
        if diverging[0] < 0:
            return PartitionFetched(index, ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=log_start_offset)
        return PartitionFetched(
            index,
            high_watermark=high_watermark,
            log_start_offset=log_start_offset,
            diverging_epoch=diverging,
        )
    offset = wanted.fetch_offset
    if not log_start_offset <= offset <= log.log_end_offset:
        return PartitionFetched(index, ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=log_start_offset)
    records: LogSlice | None = None
    max_bytes = min(wanted.max_bytes, remaining_bytes)
    if offset < log.log_end_offset and (max_bytes > 0 or at_least_one):
        try:
            records = log.read(offset, max(max_bytes, 0), log.log_end_offset, at_least_one=at_least_one)
        except OSError as fault:
            logger.error("%s could not be read at offset %d: %s", partition, offset, fault)
            partition.on_fault(fault, partition)
            return PartitionFetched(index, ErrorCode.KAFKA_STORAGE_ERROR)
        if records is not None and records.size_bytes == 0:
            records = None
    # Followers know the last stable offset from their own logs.
    return PartitionFetched(index, 0, high_watermark, -1, log_start_offset, None, -1, records)
