"""Share sessions: which partitions a member fetches, kept at the broker from request to request.

A session is opened by a ShareFetch with epoch 0 and all its partitions, goes on with requests whose epochs
grow by one (after 2,147,483,647 comes 1), and ends with epoch -1 or with the member's connection. What a
member had acquired when its session ends, whoever asked is told to release.

Answers go out only for partitions that have something to say: records, an error, or news after an error.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple
from uuid import UUID

from tidelog.model.errors import ErrorCode, Refused

OPENING_EPOCH = 0
CLOSING_EPOCH = -1
_EPOCH_MAX = 2**31 - 1

SessionPartition = tuple[UUID, int]
"""A partition by topic id and index."""


class SessionKey(NamedTuple):
    group_id: str
    member_id: str


def next_epoch(epoch: int) -> int:
    return 1 if epoch == _EPOCH_MAX else epoch + 1


class ShareSession:
    """One member's session. The order of the partitions is that in which they are served: who had records
    goes last.
    """

    __slots__ = ("_must_answer", "connection_id", "epoch", "key", "partitions")

    def __init__(
        self, key: SessionKey, connection_id: object, partitions: Iterable[SessionPartition]
    ) -> None:
        self.key = key
        self.connection_id = connection_id
        self.epoch = next_epoch(OPENING_EPOCH)
        """The epoch that the next request must name."""
        self.partitions: dict[SessionPartition, None] = dict.fromkeys(partitions)
        self._must_answer: set[SessionPartition] = set(self.partitions)

    def __repr__(self) -> str:
        return f"<ShareSession {self.key.group_id}/{self.key.member_id} epoch={self.epoch}>"

    def change(self, added: Iterable[SessionPartition], forgotten: Iterable[SessionPartition]) -> None:
        for partition in added:
            if partition not in self.partitions:
                self.partitions[partition] = None
                self._must_answer.add(partition)
        for partition in forgotten:
            self.partitions.pop(partition, None)
            self._must_answer.discard(partition)

    def in_turn(self) -> Iterator[SessionPartition]:
        """The partitions, each of them first in one of the requests."""
        partitions = list(self.partitions)
        begin = self.epoch % len(partitions) if partitions else 0
        yield from partitions[begin:]
        yield from partitions[:begin]

    def answers(self, partition: SessionPartition, *, has_records: bool, has_error: bool) -> bool:
        """Does the answer name this partition? To be asked once for each, as the answer is made."""
        is_due = partition in self._must_answer
        self._must_answer.discard(partition)
        if has_error and partition in self.partitions:
            self._must_answer.add(partition)
        return is_due or has_records or has_error


class ShareSessions:
    """The sessions of one broker."""

    def __init__(self, sessions_max: int) -> None:
        self.sessions_max = sessions_max
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._by_connection: dict[object, dict[SessionKey, None]] = {}
        self.evicted = 0
        """How many sessions ended with their connections."""

    def __repr__(self) -> str:
        return f"<ShareSessions {len(self._sessions)}>"

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[ShareSession]:
        return iter(self._sessions.values())

    def get(self, key: SessionKey) -> ShareSession | None:
        return self._sessions.get(key)

    def has_members(self, group_id: str) -> bool:
        return any(key.group_id == group_id for key in self._sessions)

    def fetched(
        self,
        key: SessionKey,
        epoch: int,
        added: Iterable[SessionPartition],
        forgotten: Iterable[SessionPartition],
        connection_id: object,
        *,
        acknowledges: bool,
    ) -> ShareSession | Refused:
        """A ShareFetch: the session it belongs to. With the closing epoch it is still there; whoever has
        answered says `close`.
        """
        if epoch == OPENING_EPOCH:
            if acknowledges:
                return Refused(ErrorCode.INVALID_REQUEST, "A session does not begin with acknowledgements.")
            return self._open(key, added, connection_id)
        session = self._current(key, epoch)
        if isinstance(session, ShareSession) and epoch != CLOSING_EPOCH:
            session.change(added, forgotten)
            session.epoch = next_epoch(epoch)
        return session

    def acknowledged(self, key: SessionKey, epoch: int) -> ShareSession | Refused:
        """A ShareAcknowledge: it opens no session."""
        if epoch == OPENING_EPOCH:
            message = "Only a ShareFetch begins a session."
            return Refused(ErrorCode.INVALID_SHARE_SESSION_EPOCH, message)
        session = self._current(key, epoch)
        if isinstance(session, ShareSession) and epoch != CLOSING_EPOCH:
            session.epoch = next_epoch(epoch)
        return session

    def _open(
        self, key: SessionKey, partitions: Iterable[SessionPartition], connection_id: object
    ) -> ShareSession | Refused:
        # What a member had acquired in an older session stays its own.
        self.close(key)
        if len(self._sessions) >= self.sessions_max:
            message = "This broker has as many share sessions as it may have."
            return Refused(ErrorCode.SHARE_SESSION_LIMIT_REACHED, message)
        session = self._sessions[key] = ShareSession(key, connection_id, partitions)
        self._by_connection.setdefault(connection_id, {})[key] = None
        return session

    def _current(self, key: SessionKey, epoch: int) -> ShareSession | Refused:
        session = self._sessions.get(key)
        if session is None:
            return Refused(ErrorCode.SHARE_SESSION_NOT_FOUND, "The share session was not found.")
        if epoch not in (CLOSING_EPOCH, session.epoch):
            message = f"The share session's epoch is {session.epoch}, not {epoch}."
            return Refused(ErrorCode.INVALID_SHARE_SESSION_EPOCH, message)
        return session

    def close(self, key: SessionKey) -> ShareSession | None:
        """The session is over; it is returned so that its member's records can be released."""
        session = self._sessions.pop(key, None)
        if session is not None:
            keys = self._by_connection[session.connection_id]
            del keys[key]
            if not keys:
                del self._by_connection[session.connection_id]
        return session

    def disconnected(self, connection_id: object) -> list[ShareSession]:
        """A connection is gone, and with it the sessions that were opened on it."""
        ended = [self.close(key) for key in list(self._by_connection.get(connection_id, ()))]
        self.evicted += len(ended)
        return [session for session in ended if session is not None]

    def close_all(self) -> None:
        self._sessions.clear()
        self._by_connection.clear()
