"""Incremental fetch sessions (KIP-227).

A client with a session names its partitions once; later fetches carry only what changed, and answers only
the partitions that have news. The broker keeps, per session, what it last told the client of each partition.

Epochs: 0 opens a session (closing the one named), -1 closes it, any other value must be the next one
expected. Partitions that gave data move to the end of the session, so that a small `fetch.max.bytes` serves
all in turn.

A session is memory that outlives its connection, so it holds only partitions that its client may read, nearly
all of which exist: a request that names others is answered without one (epoch 0), or ends the session that it
belongs to. All sessions together have at most `max.incremental.fetch.session.cache.slots` places and
`PARTITIONS_MAX` partitions. Room is made as in Kafka: one that was not used for two minutes goes, or one that
is older than that and smaller than the new one.
"""

from collections import OrderedDict
from random import Random
from typing import Any, Protocol
from uuid import UUID

from tidelog.model.errors import ErrorCode
from tidelog.protocol.fetch import FetchPartition, FetchRequest, PartitionFetched

NO_SESSION = 0
OPENING_EPOCH = 0
CLOSING_EPOCH = -1
INT32_MAX = 2**31 - 1
EVICTION_AGE_MS = 120_000
#: partitions in the sessions of consumers together; each takes about half a kilobyte
PARTITIONS_MAX = 100_000

PartitionKey = tuple[str | UUID, int]


class CachedPartition:
    """What a session knows of one partition."""

    __slots__ = ("high_watermark", "log_start_offset", "wanted")

    def __init__(self, wanted: FetchPartition) -> None:
        self.wanted = wanted
        self.high_watermark = -1
        self.log_start_offset = -1


class Feed(Protocol):
    """What a follower's session has besides: see follower_feeds."""

    def close(self) -> None: ...


class FetchSession:
    """One client's session."""

    __slots__ = (
        "counted",
        "created_ms",
        "epoch",
        "feed",
        "last_used_ms",
        "partitions",
        "privileged",
        "session_id",
        "uses_topic_ids",
    )

    def __init__(
        self, session_id: int, now_ms: int, uses_topic_ids: bool, *, privileged: bool = False
    ) -> None:
        self.session_id = session_id
        self.epoch = 1
        self.created_ms = self.last_used_ms = now_ms
        #: whether it is a follower's, and how many partitions of it count towards the limit
        self.privileged = privileged
        self.counted = 0
        self.uses_topic_ids = uses_topic_ids
        self.feed: Feed | None = None
        self.partitions: OrderedDict[PartitionKey, CachedPartition] = OrderedDict()

    def update(self, request: FetchRequest) -> None:
        """Take over what a request adds, changes and forgets.

        What a consumer names and forgets at once is forgotten. A follower begins anew with what it forgets
        and names.
        """
        if self.privileged:
            self._forget(request)
        self.take(request)
        if not self.privileged:
            self._forget(request)

    def take(self, request: FetchRequest) -> None:
        """Take over what a request names; that is all the request counts for that opens the session."""
        for topic, wanted_list in request.topics:
            for wanted in wanted_list:
                cached = self.partitions.get((topic, wanted.partition))
                if cached is None:
                    self.partitions[topic, wanted.partition] = CachedPartition(wanted)
                else:
                    cached.wanted = wanted

    def _forget(self, request: FetchRequest) -> None:
        for topic, indexes in request.forgotten:
            for index in indexes:
                self.partitions.pop((topic, index), None)

    def advance(self, now_ms: int) -> None:
        """Expect the next epoch; the count wraps to 1."""
        self.epoch = 1 if self.epoch == INT32_MAX else self.epoch + 1
        self.last_used_ms = now_ms

    def has_news(self, key: PartitionKey, fetched: "PartitionFetched[Any]") -> bool:
        """Whether an incremental answer must mention a partition; remembers what is told."""
        cached = self.partitions.get(key)
        if cached is None:
            return True
        news = (
            fetched.records is not None
            or fetched.error != ErrorCode.NONE
            or fetched.diverging_epoch is not None
            or fetched.high_watermark != cached.high_watermark
            or fetched.log_start_offset != cached.log_start_offset
        )
        if fetched.error == ErrorCode.NONE:
            cached.high_watermark = fetched.high_watermark
            cached.log_start_offset = fetched.log_start_offset
        else:
            cached.high_watermark = -1
        return news

    def served(self, keys: list[PartitionKey]) -> None:
        """Let partitions that gave data wait behind the others."""
        for key in keys:
            if key in self.partitions:
                self.partitions.move_to_end(key)

    def __repr__(self) -> str:
        return f"<FetchSession {self.session_id} epoch={self.epoch} partitions={len(self.partitions)}>"


class FetchSessions:
    """All sessions of a broker, at most `max.incremental.fetch.session.cache.slots`."""

    def __init__(self, slots_max: int, random: Random) -> None:
        self._slots_max = slots_max
        self._random = random
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._partition_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def resolve(
        self,
        request: FetchRequest,
        now_ms: int,
        uses_topic_ids: bool,
        *,
        privileged: bool = False,
        may_remember: bool = True,
    ) -> tuple[FetchSession | None, bool, ErrorCode]:
        """Find or open the session of a request: (session, whether it was just opened, error).

        A privileged one, a follower's, always finds room. `may_remember` says whether all that the request
        names may be kept.
        """
        session_id, epoch = request.session_id, request.session_epoch
        if epoch in (OPENING_EPOCH, CLOSING_EPOCH):
            if session_id != NO_SESSION:
                self.drop(session_id)
            if epoch == CLOSING_EPOCH or not may_remember:
                return None, False, ErrorCode.NONE
            return self._open(request, now_ms, uses_topic_ids, privileged), True, ErrorCode.NONE
        session = self._sessions.get(session_id)
        if session is None:
            return None, False, ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.uses_topic_ids != uses_topic_ids:
            return None, False, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        if epoch != session.epoch:
            return None, False, ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if not may_remember:
            self.drop(session_id)
            return None, False, ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        session.update(request)
        session.advance(now_ms)
        self._count(session)
        if self._partition_count > PARTITIONS_MAX and not session.privileged:
            self.drop(session_id)
            return None, False, ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if not session.partitions:
            self.drop(session_id)
            return None, False, ErrorCode.NONE
        self._sessions.move_to_end(session_id)
        return session, False, ErrorCode.NONE

    def drop(self, session_id: int) -> None:
        """End a session, if it exists."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        self._partition_count -= session.counted
        if session.feed is not None:
            session.feed.close()

    def _count(self, session: FetchSession) -> None:
        if not session.privileged:
            self._partition_count += len(session.partitions) - session.counted
            session.counted = len(session.partitions)

    def _open(
        self, request: FetchRequest, now_ms: int, uses_topic_ids: bool, privileged: bool
    ) -> FetchSession | None:
        """Open a session, or return None when there is no room and the client goes on without one."""
        size = sum(len(partitions) for _, partitions in request.topics)
        if not (size if privileged else self._make_room(size, now_ms)):
            return None
        session_id = self._random.randint(1, INT32_MAX)
        while session_id in self._sessions:
            session_id = self._random.randint(1, INT32_MAX)
        session = FetchSession(session_id, now_ms, uses_topic_ids, privileged=privileged)
        session.take(request)
        self._sessions[session_id] = session
        self._count(session)
        return session

    def _make_room(self, size: int, now_ms: int) -> bool:
        """Let sessions go until one of this size fits; False if there is none that may go."""
        if self._slots_max <= 0 or size > PARTITIONS_MAX:
            return False
        while len(self._sessions) >= self._slots_max or self._partition_count + size > PARTITIONS_MAX:
            evictable = self._find_evictable(size, now_ms)
            if evictable is None:
                return False
            self.drop(evictable.session_id)
        return True

    def _find_evictable(self, size: int, now_ms: int) -> FetchSession | None:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or now_ms - oldest.last_used_ms >= EVICTION_AGE_MS:
            return oldest
        settled = (
            session
            for session in self._sessions.values()
            if not session.privileged and now_ms - session.created_ms > EVICTION_AGE_MS
        )
        smallest = min(settled, key=lambda session: session.counted, default=None)
        return smallest if smallest is not None and smallest.counted < size else None
