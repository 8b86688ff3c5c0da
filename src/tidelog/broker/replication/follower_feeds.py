"""The leader's side of replication: answers the fetches of followers.

A follower's fetch session has a feed here, which stands among the waiters of every partition of the session.
Each time a partition moves on (an append, a higher watermark, a later log start) the feed notes it if that is
news for the follower, so a fetch looks only at partitions with news: an idle follower of a thousand
partitions costs as much as one of a single one. A fetch that finds no news waits for them; a watermark that
the follower does not know yet is news too, so followers learn of commits at once.

A partition whose answer had records, or an error, is looked at again at the next fetch even if the follower
does not name it: perhaps it could not use them.

Where followers stand may change the ISR (`isr_changes`), which is told, not asked. A feed learns from the
waiters of a partition that it is led elsewhere now (`roles`).
"""

from typing import Any
from uuid import UUID

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.replicas import reading
from tidelog.broker.replicas.fetch_sessions import CachedPartition, FetchSession, FetchSessions, PartitionKey
from tidelog.broker.replicas.partition import Partition
from tidelog.broker.replicas.replicas import Replicas
from tidelog.broker.replication.isr_changes import IsrChanges
from tidelog.broker.replication.throttling import ReplicationThrottle
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.purgatory import DelayedOperation, Purgatory, Watched
from tidelog.broker.runtime.topic_traffic import TopicTraffic
from tidelog.broker.runtime.turn import Turn
from tidelog.model.errors import ErrorCode
from tidelog.model.ports import Clock
from tidelog.protocol.fetch import (
    FIRST_TOPIC_ID,
    FetchPartition,
    FetchRequest,
    PartitionFetched,
    encode_response,
)
from tidelog.replication.leader import Contact
from tidelog.storage.readable_log import LogSlice

Chunks = list[bytes | LogSlice]
Row = tuple[PartitionKey, "PartitionFetched[LogSlice]"]


class FeedWait(DelayedOperation):
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


class FollowerFeed(DelayedOperation):
    """What one follower is to be told next; registered with its partitions for as long as the session."""

    __slots__ = ("_changed", "_feeds", "_partitions", "contact", "follower_id", "session", "waiting")

    def __init__(
        self, feeds: "FollowerFeeds", session: FetchSession, follower_id: int, monotonic_ms: int
    ) -> None:
        super().__init__()
        self._feeds = feeds
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
            self._feeds.due[self] = None

    def lost(self, watched: Watched) -> None:
        """A partition is not led here any more: the follower is told, and the feed goes on without it."""
        assert isinstance(watched, Partition)
        key = (watched.topic_id, watched.index)
        if self._partitions.pop(key, None) is not None:
            watched.waiters.pop(self, None)
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
            self._feeds.purgatory.finish(self.waiting, expired=True)

    # -- requests

    def receive(self, request: FetchRequest, monotonic_ms: int, *, opened: bool) -> None:
        """Take in a request: where the follower stands in the partitions that it names."""
        self.contact.last_fetch_ms = monotonic_ms
        if self.waiting is not None:
            # A later request of the same session: the follower has more to say than to wait for.
            self._feeds.purgatory.finish(self.waiting, expired=True)
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
        partition, _ = self._feeds.replicas.find(*key)
        if partition is not None and self._partitions.get(key) is not partition:
            self._partitions[key] = partition
            partition.waiters[self] = None
        if partition is not None:
            self._feeds.note_fetch(partition, request, wanted, monotonic_ms, self.contact)

    # -- answers

    def collect(self, max_bytes: int) -> list[Row]:
        """The partitions with news, as far as the byte limit goes."""
        session = self.session
        rows: list[Row] = []
        remaining = min(max_bytes, self._feeds.settings.fetch_bytes_max)
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
        feeds = self._feeds
        partition, error = feeds.replicas.find(*key)
        if partition is None:
            return PartitionFetched(wanted.partition, error)
        throttled = self._is_throttled(partition)
        if throttled and feeds.throttle.delay_ms() > 0:
            # Nothing of it now, not even a first batch; the next fetch looks again.
            remaining, at_least_one = 0, False
        fetched = reading.read_for_follower(
            partition, self.follower_id, wanted, remaining, at_least_one=at_least_one
        )
        if fetched.records is not None:
            size_bytes = fetched.records.size_bytes
            feeds.traffic.replication_bytes_out += size_bytes
            if throttled:
                feeds.throttle.spend(size_bytes)
        return fetched

    def _is_throttled(self, partition: Partition) -> bool:
        entries = partition.config.leader_replication_throttled_replicas
        return (
            bool(entries)
            and partition.replicas is not None
            and self.follower_id not in partition.replicas.isr
            and self._feeds.throttle.holds(entries, partition.index)
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

    def __init__(
        self,
        metadata: Metadata,
        replicas: Replicas,
        sessions: FetchSessions,
        isr_changes: IsrChanges,
        throttle: ReplicationThrottle,
        settings: LiveSettings,
        clock: Clock,
        turn: Turn,
        purgatory: Purgatory,
        traffic: TopicTraffic,
    ) -> None:
        """`throttle` is for what followers that catch up are sent."""
        self._metadata = metadata
        self._sessions = sessions
        self._isr_changes = isr_changes
        self._clock = clock
        self._turn = turn
        # What the feeds use.
        self.replicas = replicas
        self.settings = settings
        self.throttle = throttle
        self.purgatory = purgatory
        self.traffic = traffic
        self._feeds: dict[int, FollowerFeed] = {}
        #: feeds with news for a fetch that waits; answered at the end of the turn
        self.due: dict[FollowerFeed, None] = {}

    def answer_due(self) -> None:
        """Answer the fetches that have news now."""
        due, self.due = self.due, {}
        for feed in due:
            if feed.waiting is not None:
                self.purgatory.finish(feed.waiting, expired=False)

    def forget(self, follower_id: int) -> None:
        """A follower is gone, or begins another life."""
        feed = self._feeds.pop(follower_id, None)
        if feed is not None:
            self._sessions.drop(feed.session.session_id)
            feed.close()

    def handle(self, request: FetchRequest, version: int, correlation_id: int, now_ms: int) -> Any:
        """Answer a follower's fetch, or let it wait; one without a session gets what there is at once."""
        if version < FIRST_TOPIC_ID or (not request.session_id and request.session_epoch < 0):
            return self._answer_once(request, version, correlation_id)
        life = self._metadata.image.alive_brokers.get(request.replica_id)
        if life is not None and 0 <= request.replica_epoch < life.epoch:
            # An earlier life of the follower, or this one before it has heard of its new epoch: where it
            # stands does not count, so it has to say so again.
            code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            return encode_response([], version, correlation_id, error=code)
        session, opened, error = self._sessions.resolve(request, now_ms, True, privileged=True)
        if error:
            return encode_response([], version, correlation_id, error=error)
        if session is None:
            return self._answer_once(request, version, correlation_id)
        feed = session.feed
        monotonic_ms = self._clock.monotonic_ms()
        if feed is None:
            self.forget(request.replica_id)
            feed = session.feed = self._feeds[request.replica_id] = FollowerFeed(
                self, session, request.replica_id, monotonic_ms
            )
        assert isinstance(feed, FollowerFeed)
        feed.receive(request, monotonic_ms, opened=opened)
        rows = feed.collect(request.max_bytes)
        if rows or opened or request.max_wait_ms <= 0 or self.purgatory.full:
            return feed.encode(rows, version, correlation_id)
        feed.waiting = wait = FeedWait(feed, version, correlation_id, request.max_bytes)
        self.purgatory.park(wait, (), now_ms + request.max_wait_ms)
        return wait

    def _answer_once(self, request: FetchRequest, version: int, correlation_id: int) -> Chunks:
        remaining = min(request.max_bytes, self.settings.fetch_bytes_max)
        sent_bytes = 0
        topics: list[tuple[str | UUID, list[PartitionFetched[LogSlice]]]] = []
        for topic, wanted_list in request.topics:
            rows: list[PartitionFetched[LogSlice]] = []
            for wanted in wanted_list:
                partition, error = self.replicas.find(topic, wanted.partition)
                if partition is None:
                    rows.append(PartitionFetched(wanted.partition, error))
                    continue
                self.note_fetch(partition, request, wanted, self._clock.monotonic_ms())
                fetched = reading.read_for_follower(
                    partition,
                    request.replica_id,
                    wanted,
                    remaining - sent_bytes,
                    at_least_one=sent_bytes == 0,
                )
                sent_bytes += 0 if fetched.records is None else fetched.records.size_bytes
                rows.append(fetched)
            topics.append((topic, rows))
        self.traffic.replication_bytes_out += sent_bytes
        return encode_response(topics, version, correlation_id)

    def note_fetch(
        self,
        partition: Partition,
        request: FetchRequest,
        wanted: FetchPartition,
        monotonic_ms: int,
        contact: Contact | None = None,
    ) -> None:
        """Take note of where a follower stands, if that can be believed.

        The watermark and the ISR may move.
        """
        replicas = partition.replicas
        if replicas is None or wanted.current_leader_epoch not in (-1, partition.leader_epoch):
            return
        log = partition.log
        offset = wanted.fetch_offset
        if (
            not log.log_start_offset <= offset <= log.log_end_offset
            or reading.divergence(partition, wanted) is not None
        ):
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
        self._isr_changes.consider(partition, follower_id)
        moved = partition.advance_high_watermark()
        if moved or wanted.log_start_offset != start_before:
            self._turn.note_progress(partition)


def _has_news(partition: Partition, cached: CachedPartition) -> bool:
    return (
        partition.log.log_end_offset > cached.wanted.fetch_offset
        or partition.high_watermark != cached.high_watermark
        or partition.log.log_start_offset != cached.log_start_offset
    )
