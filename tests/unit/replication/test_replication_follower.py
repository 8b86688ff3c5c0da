"""A follower's session with a leader, and where it cuts its log."""

from random import Random
from uuid import UUID

import pytest

from tests.support.simulated_disk import SimulatedDisk
from tidelog.broker.replicas.fetch_sessions import FetchSessions
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import NO_EPOCH, NO_OFFSET
from tidelog.protocol.fetch import FetchPartition, FetchRequest
from tidelog.replication.follower import FollowerSession, ReplicaPosition, SessionRequest, truncation_offset
from tidelog.storage.leader_epochs import LeaderEpochs

TOPIC = UUID(int=1)


def at(offset: int) -> ReplicaPosition:
    return ReplicaPosition(3, offset, 2, 0)


def keys(request: SessionRequest) -> list[int]:
    return [index for (_, index), _ in request.wanted]


def test_a_session_names_only_what_changed() -> None:
    session = FollowerSession()
    for index in range(3):
        session.follow_anew((TOPIC, index), at(0))
    first = session.next_request()
    assert (first.session_id, first.session_epoch, keys(first)) == (0, 0, [0, 1, 2])
    assert not session.can_pipeline, "the session is not open yet"
    assert session.answered(first, 0, 77)
    second = session.next_request()
    assert (second.session_id, second.session_epoch, keys(second)) == (77, 1, [])
    session.follow((TOPIC, 1), at(5))
    session.leave((TOPIC, 2))
    session.follow((TOPIC, 0), at(0))
    third = session.next_request()
    assert (third.session_epoch, keys(third), third.forgotten) == (2, [1], [(TOPIC, 2)])
    assert not session.has_news


def test_a_partition_that_starts_anew_is_forgotten_first() -> None:
    session = FollowerSession()
    session.follow_anew((TOPIC, 0), at(0))
    session.answered(session.next_request(), 0, 77)
    session.follow_anew((TOPIC, 0), at(0))
    request = session.next_request()
    assert (keys(request), request.forgotten) == ([0], [(TOPIC, 0)])


@pytest.mark.parametrize(
    ("error", "next_id"),
    [
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0),
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 77),
        (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, 0),
    ],
)
def test_a_session_that_the_leader_does_not_know_starts_anew(error: ErrorCode, next_id: int) -> None:
    session = FollowerSession()
    session.follow_anew((TOPIC, 0), at(0))
    session.answered(session.next_request(), 0, 77)
    one, two = session.next_request(), session.next_request()
    assert not session.answered(one, error, 0)
    anew = session.next_request()
    assert (anew.session_id, anew.session_epoch, keys(anew)) == (next_id, 0, [0])
    # The answer to the other one of the old session changes nothing any more.
    assert not session.answered(two, error, 0)
    assert session.answered(anew, 0, 78)
    assert session.next_request()[:2] == (78, 1)


def test_a_lost_answer_starts_anew_and_closes_the_old_session() -> None:
    session = FollowerSession()
    session.follow_anew((TOPIC, 0), at(0))
    session.answered(session.next_request(), 0, 77)
    session.lost(session.next_request())
    assert session.next_request()[:2] == (77, 0)


def test_without_room_for_sessions_every_request_is_full() -> None:
    session = FollowerSession()
    session.follow_anew((TOPIC, 0), at(0))
    for _ in range(3):
        request = session.next_request()
        assert (request.session_epoch, keys(request)) == (0, [0])
        assert session.answered(request, 0, 0)


def test_both_sides_of_a_session_agree_whatever_happens() -> None:
    for seed in range(200):
        random = Random(seed)
        leader = FetchSessions(5, random)
        session = FollowerSession()
        positions: dict[tuple[UUID, int], ReplicaPosition] = {}
        for _ in range(40):
            key = (TOPIC, random.randrange(5))
            match random.randrange(4):
                case 0:
                    session.leave(key)
                    positions.pop(key, None)
                case 1 if key in positions:
                    positions[key] = at(random.randrange(3))
                    session.follow(key, positions[key])
                case 2:
                    positions[key] = at(random.randrange(3))
                    session.follow_anew(key, positions[key])
                case 3 if session.has_news or positions:
                    request = session.next_request()
                    fate = random.random()
                    if fate < 0.1:
                        session.lost(request)
                        continue
                    found, _, error = leader.resolve(_request(request), 0, True, privileged=True)
                    if fate < 0.2:
                        session.lost(request)
                        continue
                    ok = session.answered(request, error, 0 if found is None else found.session_id)
                    assert ok == (not error)
                    if ok:
                        known = {} if found is None else found.partitions
                        told = {key: ReplicaPosition(*cached.wanted[1:5]) for key, cached in known.items()}
                        assert told == positions, seed


def _request(request: SessionRequest) -> FetchRequest:
    wanted = [FetchPartition(index, *position, 1 << 20) for (_, index), position in request.wanted]
    topics = [(TOPIC, wanted)] if wanted else []
    forgotten = [(TOPIC, [index for _, index in request.forgotten])]
    return FetchRequest(
        2, 0, 1, 1, 0, request.session_id, request.session_epoch, list(topics), list(forgotten), ""
    )


def epochs(*rows: tuple[int, int]) -> LeaderEpochs:
    disk = SimulatedDisk(1)
    disk.make_directory("/d")
    found = LeaderEpochs(disk, "/d/leader-epoch-checkpoint")
    for epoch, start_offset in rows:
        found.assign(epoch, start_offset)
    return found


@pytest.mark.parametrize(
    ("own", "end_offset", "diverging", "cut"),
    [
        # KIP-101: the same epoch, the leader's part of it is shorter.
        (((0, 0), (1, 10)), 20, (1, 15), 15),
        # The leader never saw our last epoch: its largest one before it ended at 12.
        (((0, 0), (1, 10), (2, 15)), 20, (1, 12), 12),
        # KIP-279: we do not have the leader's epoch, only older ones; cut to the end of ours and ask again.
        (((0, 0), (3, 10)), 20, (2, 14), 10),
        # Ours of that epoch ended earlier than the leader's.
        (((0, 0), (1, 10), (3, 12)), 20, (1, 18), 12),
        # An epoch that we began as leader and never wrote in.
        (((0, 0), (4, 20)), 20, (0, 20), 20),
        # The leader knows nothing of where it ended.
        (((0, 0),), 20, (0, NO_OFFSET), 7),
        (((0, 0),), 20, (NO_EPOCH, 9), 9),
        # We have no epochs.
        ((), 20, (3, 11), 11),
    ],
)
def test_where_to_cut(
    own: tuple[tuple[int, int], ...], end_offset: int, diverging: tuple[int, int], cut: int
) -> None:
    known = epochs(*own)
    offset = truncation_offset(
        diverging,
        epoch_end_offset=lambda epoch: known.end_offset_for(epoch, end_offset),
        log_end_offset=end_offset,
        high_watermark=7,
    )
    assert offset == cut
