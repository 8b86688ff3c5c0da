"""Share sessions: epochs, partitions, limits and connections."""

from uuid import UUID

from tidelog.model.errors import ErrorCode, Refused
from tidelog.shares.sessions import CLOSING_EPOCH, SessionKey, ShareSession, ShareSessions, next_epoch

KEY = SessionKey("g", "m")
TOPIC = UUID(int=1)
P0, P1 = (TOPIC, 0), (TOPIC, 1)


def opened(sessions: ShareSessions, key: SessionKey = KEY, connection: object = "c") -> ShareSession:
    session = sessions.fetched(key, 0, [P0, P1], [], connection, acknowledges=False)
    assert isinstance(session, ShareSession)
    return session


def code(outcome: ShareSession | Refused) -> ErrorCode:
    return outcome.code if isinstance(outcome, Refused) else ErrorCode.NONE


def test_epochs_grow_by_one_over_fetches_and_acknowledgements() -> None:
    sessions = ShareSessions(10)
    opened(sessions)
    assert code(sessions.fetched(KEY, 1, [], [], "c", acknowledges=True)) is ErrorCode.NONE
    assert code(sessions.acknowledged(KEY, 2)) is ErrorCode.NONE
    repeated = sessions.fetched(KEY, 2, [], [], "c", acknowledges=False)
    assert code(repeated) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert code(sessions.fetched(KEY, 3, [], [], "c", acknowledges=False)) is ErrorCode.NONE
    assert next_epoch(2**31 - 1) == 1


def test_who_has_no_session_is_told_so() -> None:
    sessions = ShareSessions(10)
    for epoch in (1, CLOSING_EPOCH):
        assert code(sessions.fetched(KEY, epoch, [], [], "c", acknowledges=False)) is (
            ErrorCode.SHARE_SESSION_NOT_FOUND
        )
        assert code(sessions.acknowledged(KEY, epoch)) is ErrorCode.SHARE_SESSION_NOT_FOUND


def test_a_session_does_not_begin_with_acknowledgements() -> None:
    sessions = ShareSessions(10)
    assert code(sessions.fetched(KEY, 0, [P0], [], "c", acknowledges=True)) is ErrorCode.INVALID_REQUEST
    assert code(sessions.acknowledged(KEY, 0)) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert len(sessions) == 0


def test_partitions_are_added_and_forgotten() -> None:
    sessions = ShareSessions(10)
    session = opened(sessions)
    sessions.fetched(KEY, 1, [(TOPIC, 2)], [P0], "c", acknowledges=False)
    assert list(session.partitions) == [P1, (TOPIC, 2)]
    assert sorted(session.in_turn()) == [P1, (TOPIC, 2)]


def test_each_partition_is_first_in_its_turn() -> None:
    sessions = ShareSessions(10)
    session = opened(sessions)
    first = []
    for epoch in (1, 2):
        first.append(next(session.in_turn()))
        sessions.fetched(KEY, epoch, [], [], "c", acknowledges=False)
    assert sorted(first) == [P0, P1]


def test_quiet_partitions_are_left_out_of_answers() -> None:
    session = opened(ShareSessions(10))
    assert session.answers(P0, has_records=False, has_error=False), "a new partition is named once"
    assert not session.answers(P0, has_records=False, has_error=False)
    assert session.answers(P0, has_records=False, has_error=True)
    assert session.answers(P0, has_records=False, has_error=False), "so that the error is known to be over"
    assert not session.answers(P0, has_records=False, has_error=False)
    assert session.answers(P0, has_records=True, has_error=False)


def test_there_are_no_more_sessions_than_allowed() -> None:
    sessions = ShareSessions(2)
    opened(sessions)
    opened(sessions, SessionKey("g", "n"))
    outcome = sessions.fetched(SessionKey("g", "o"), 0, [], [], "c", acknowledges=False)
    assert code(outcome) is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert opened(sessions).epoch == 1, "its own place is free for a member that begins again"


def test_sessions_end_with_their_connection() -> None:
    sessions = ShareSessions(10)
    old = opened(sessions)
    renewed = opened(sessions, connection="d")
    assert sessions.disconnected("c") == [], "the session of the old connection was closed before"
    assert sessions.get(KEY) is renewed is not old
    assert sessions.disconnected("d") == [renewed]
    assert sessions.evicted == 1
    assert not sessions.has_members("g")


def test_the_closing_epoch_leaves_the_session_until_it_is_closed() -> None:
    sessions = ShareSessions(10)
    session = opened(sessions)
    assert sessions.fetched(KEY, CLOSING_EPOCH, [], [], "c", acknowledges=True) is session
    assert sessions.close(KEY) is session
    assert sessions.close(KEY) is None
