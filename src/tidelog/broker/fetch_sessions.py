"""Incremental fetch sessions (KIP-227).

A client with a session names its partitions once; later fetches carry only what changed, and answers only
the partitions that have news. The broker keeps, per session, what it last told the client of each partition.

Epochs: 0 opens a session (closing the one named), -1 closes it, any other value must be the next one
expected. Partitions that gave data move to the end of the session, so that a small `fetch.max.bytes` serves
all in turn.
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

    __slots__ = ("epoch", "feed", "last_used_ms", "partitions", "session_id", "uses_topic_ids")

    def __init__(self, session_id: int, now_ms: int, uses_topic_ids: bool) -> None:
        self.session_id = session_id
        self.epoch = 1
        self.last_used_ms = now_ms
        self.uses_topic_ids = uses_topic_ids
        self.feed: Feed | None = None
        self.partitions: OrderedDict[PartitionKey, CachedPartition] = OrderedDict()

    def update(self, request: FetchRequest) -> None:
        """Take over what a request adds, changes and forgets."""
        for topic, indexes in request.forgotten:
            for index in indexes:
                self.partitions.pop((topic, index), None)
        for topic, wanted_list in request.topics:
            for wanted in wanted_list:
                cached = self.partitions.get((topic, wanted.partition))
                if cached is None:
                    self.partitions[topic, wanted.partition] = CachedPartition(wanted)
                else:
                    cached.wanted = wanted

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

    def __len__(self) -> int:
        return len(self._sessions)

    def resolve(
        self, request: FetchRequest, now_ms: int, uses_topic_ids: bool, *, privileged: bool = False
    ) -> tuple[FetchSession | None, bool, ErrorCode]:
        """Find or open the session of a request: (session, whether it was just opened, error).

        A privileged one, a follower's, always finds room.
        """
        session_id, epoch = request.session_id, request.session_epoch
        if epoch in (OPENING_EPOCH, CLOSING_EPOCH):
            if session_id != NO_SESSION:
                self.drop(session_id)
            if epoch == CLOSING_EPOCH:
                return None, False, ErrorCode.NONE
            return self._open(request, now_ms, uses_topic_ids, privileged), True, ErrorCode.NONE
        session = self._sessions.get(session_id)
        if session is None:
            return None, False, ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.uses_topic_ids != uses_topic_ids:
            return None, False, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        if epoch != session.epoch:
            return None, False, ErrorCode.INVALID_FETCH_SESSION_EPOCH
        session.update(request)
        session.advance(now_ms)
        if not session.partitions:
            self.drop(session_id)
            return None, False, ErrorCode.NONE
        self._sessions.move_to_end(session_id)
        return session, False, ErrorCode.NONE

    def drop(self, session_id: int) -> None:
        """End a session, if it exists."""
        session = self._sessions.pop(session_id, None)
        if session is not None and session.feed is not None:
            session.feed.close()

    def _open(
        self, request: FetchRequest, now_ms: int, uses_topic_ids: bool, privileged: bool
    ) -> FetchSession | None:
        """Open a session, or return None when there is no room and the client goes on without one."""
        if not any(partitions for _, partitions in request.topics):
            return None
        if not privileged and not self._make_room(now_ms):
            return None
        session_id = self._random.randint(1, INT32_MAX)
        while session_id in self._sessions:
            session_id = self._random.randint(1, INT32_MAX)
        session = FetchSession(session_id, now_ms, uses_topic_ids)
        session.update(request)
        self._sessions[session_id] = session
        return session

    def _make_room(self, now_ms: int) -> bool:
        if len(self._sessions) < self._slots_max:
            return True
        if self._slots_max <= 0:
            return False
        oldest_id, oldest = next(iter(self._sessions.items()))
        if now_ms - oldest.last_used_ms < EVICTION_AGE_MS:
            return False
        self.drop(oldest_id)
        return True
