"""What carries sessions out: a campaign goes on behind a session that failed, a proxy loses one answer."""

import contextlib
import socket
import struct
import threading
from typing import Any, cast

import pytest

from tests.oracle.campaign import CRASHES_IN_A_ROW_MAX, Campaign
from tests.oracle.coverage import Coverage
from tests.oracle.differences import LESS, NEAR, Accepted
from tests.oracle.judge import Difference, differences, normalised
from tests.oracle.live import Pair
from tests.oracle.proxy import LossyProxy
from tests.oracle.rules import Normaliser
from tests.oracle.selection import covering, waits_ms
from tests.oracle.session import Session, Step
from tests.oracle.values import resolve

VERSIONS = {"Metadata": (0, 1)}


class OddPair:
    """Two systems of which one cannot carry out some sessions, and differs in others."""

    def __init__(self, failing: set[int], differing: set[int]) -> None:
        self.failing = failing
        self.differing = differing
        self.waits = {"the leader is killed": [(3.0, 1.0), (5.0, 2.0)]}

    def compare(self, session: Session) -> list[Difference]:
        if session.seed in self.failing:
            raise ConnectionError("gone")
        return [Difference(session.steps[0], "error_code", 0, 3)] if session.seed in self.differing else []

    compare_slowly = compare


def _session(seed: int) -> Session:
    return Session(seed, (Step("s1", "Metadata", seed % 2, {}),))


def _campaign(failing: set[int], differing: set[int]) -> Campaign:
    pair: Any = OddPair(failing, differing)
    return Campaign(cast(Pair, pair), Coverage(VERSIONS), shrink=False)


def test_a_session_that_fails_does_not_end_a_campaign() -> None:
    campaign = _campaign({2, 5}, {3, 4})
    campaign.run(range(1, 8), _session)
    assert (campaign.sessions, campaign.steps, len(campaign.crashed)) == (7, 5, 2)
    assert sum(campaign.kinds.values()) == 2
    summary = campaign.summary()
    assert "not carried out: seed 2: ConnectionError: gone" in summary
    assert "2 of 2 APIs and versions exercised" in summary
    assert "the leader is killed" in summary and "4.00   5.00" in summary
    assert campaign.found


def test_a_campaign_ends_when_a_system_is_gone() -> None:
    campaign = _campaign(set(range(3, 100)), set())
    campaign.run(range(1, 100), _session)
    assert campaign.sessions == 2 + CRASHES_IN_A_ROW_MAX


def test_no_session_begins_when_time_is_over() -> None:
    campaign = _campaign(set(), set())
    campaign.seconds_max = -1
    campaign.run(range(1, 100), _session)
    assert (campaign.sessions, campaign.found) == (0, False)


def test_aborted_transactions_behind_what_is_returned_are_left_out() -> None:
    aborted = [{"producer_id": 7, "first_offset": offset} for offset in (0, 4, 5)]
    batch = {"base_offset": 3, "last_offset_delta": 1, "attributes": 0}
    partition = {"aborted_transactions": aborted, "records": [batch]}
    answer = {"responses": [{"topic": "t0", "partitions": [partition]}]}
    kept = Normaliser("p").normalise("Fetch", answer)["responses"][0]["partitions"][0]
    assert [one["first_offset"] for one in kept["aborted_transactions"]] == [0, 4]


@pytest.mark.parametrize(
    ("kafka", "here", "value", "other", "covered"),
    [
        (LESS, None, 1, 2, True),
        (LESS, None, 2, 2, False),
        (None, LESS, 2, 1, True),
        (None, LESS, 1, 2, False),
        (None, NEAR, 129, 140, True),
        (None, NEAR, 129, 180, False),
    ],
)
def test_a_row_says_how_numbers_may_differ(
    kafka: Any, here: Any, value: int, other: int, covered: bool
) -> None:
    row = Accepted("Api", "field", kafka, here, "why")
    assert row.covers("Api", "", "field", value, other) is covered


def test_rows_of_a_topic_are_joined() -> None:
    rows = [
        {"topic": "t0", "partitions": [{"partition_index": 9}]},
        {"topic": "t1", "partitions": [{"partition_index": 0}]},
        {"topic": "t0", "partitions": [{"partition_index": 1}]},
    ]
    joined = Normaliser("o-").normalise("Fetch", {"responses": rows})["responses"]
    assert [(row["topic"], len(row["partitions"])) for row in joined] == [("t0", 2), ("t1", 1)]
    assert joined[0]["partitions"] == [{"partition_index": 1}, {"partition_index": 9}]


def _fetched(*acquired: tuple[int, int, int], ends: int = 0) -> dict[str, Any]:
    """The answer to a ShareFetch: acquired spans with their counts, a record for each offset up to an end."""
    rows = [
        {"first_offset": first, "last_offset": last, "delivery_count": count}
        for first, last, count in acquired
    ]
    records = [{"offset": offset} for offset in range(ends)]
    batch = {"base_offset": 0, "attributes": 0, "records": records}
    part = {
        "partition_index": 0,
        "error_code": 0,
        "acknowledge_error_code": 0,
        "records": [batch] if records else [],
        "acquired_records": rows,
    }
    return {"error_code": 0, "responses": [{"topic_id": {"$uuid": "1"}, "partitions": [part]}]}


def _acquired(answer: dict[str, Any]) -> list[list[tuple[int, int, int]]]:
    return [
        [(row["first_offset"], row["last_offset"], row["delivery_count"]) for row in part["acquired_records"]]
        for topic in answer["responses"]
        for part in topic["partitions"]
    ]


def test_offsets_without_records_and_rows_that_say_nothing_are_left_out() -> None:
    whole = Normaliser("p").normalise("ShareFetch", _fetched((0, 1, 1), (2, 9, 1), ends=5))
    assert _acquired(whole) == [[(0, 4, 1)]]
    other = Normaliser("p").normalise("ShareFetch", _fetched((0, 1, 2), (2, 2, 1), ends=3))
    assert _acquired(other) == [[(0, 1, 2), (2, 2, 1)]]
    assert Normaliser("p").normalise("ShareFetch", _fetched())["responses"] == []


def test_fetches_that_belong_together_are_compared_as_one() -> None:
    steps = tuple(Step(f"s{number}", "ShareFetch", 1, {}, together="x") for number in range(3))
    session = Session(0, steps)
    once = [_fetched((0, 2, 1), ends=3), _fetched(), _fetched()]
    slowly = [_fetched((0, 0, 1), ends=3), _fetched((1, 2, 1), ends=3), _fetched()]
    twice = [_fetched((0, 2, 1), ends=3), _fetched((0, 0, 2), ends=3), _fetched()]
    first, second, third = (
        normalised(session, "p", list(zip(("s0", "s1", "s2"), answers, strict=True)))
        for answers in (once, slowly, twice)
    )
    assert differences(session, first, second) == []
    assert [found.step.label for found in differences(session, first, third)] == ["s2"]


def test_what_is_said_of_acquired_records_names_those_that_were_given() -> None:
    answers = {"s1": _fetched((5, 7, 1), (9, 9, 1)), "s2": _fetched((2, 3, 2)), "s3": {"error_code": 6}}

    def said(labels: list[str], which: str) -> list[tuple[int, int]]:
        rows = resolve({"$acquired": [labels, 0, which, 2]}, "p", answers)
        assert all(row["acknowledge_types"] == [2] for row in rows)
        return [(row["first_offset"], row["last_offset"]) for row in rows]

    assert said(["s1", "s2"], "all") == [(2, 3), (5, 7), (9, 9)]
    assert said(["s1"], "first") == [(5, 5)]
    assert said(["s1"], "rest") == [(6, 7), (9, 9)]
    assert said(["s3"], "all") == [(0, 0)]


def test_the_key_of_a_share_partition_is_compared_without_its_topic_id() -> None:
    normaliser = Normaliser("p-")
    key = resolve({"$share": ["s0", {"$uuid": "00000000-0000-0000-0000-000000000007"}, 1]}, "p-", {})
    row = normaliser.normalise("FindCoordinator", {"coordinators": [{"key": key}, {"key": "p-a:b:c"}]})
    assert [one["key"] for one in row["coordinators"]] == ["p-a:b:c", "p-s0:topic id 1:1"]


def _frame(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


@pytest.mark.parametrize("when", ["early", "late"])
def test_a_lost_answer_was_asked_for(when: str) -> None:
    got: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            broker, _ = listener.accept()
            # whoever was cut off does not take the answer
            with broker, broker.makefile("rb") as stream, contextlib.suppress(OSError):
                while size := stream.read(4):
                    got.append(stream.read(struct.unpack(">i", size)[0]))
                    broker.sendall(_frame(b"answer to " + got[-1]))

        thread = threading.Thread(target=serve)
        thread.start()
        with (
            LossyProxy(listener.getsockname()[1]) as proxy,
            socket.create_connection(("127.0.0.1", proxy.port), 10) as client,
        ):
            client.sendall(_frame(b"one"))
            assert client.recv(100) == _frame(b"answer to one")
            proxy.lose(when)
            client.sendall(_frame(b"two"))
            assert client.recv(100) == b""
            thread.join(10)
    assert got == [b"one", b"two"]


def test_sessions_that_show_much_in_little_time_are_recorded_first() -> None:
    def asking(seed: int, *versions: int, wait_ms: int = 0) -> Session:
        steps = [Step(f"s{one}", "Metadata", one, {"max_wait": wait_ms}) for one in versions]
        return Session(seed, tuple(steps))

    sessions = [asking(1, 0), asking(2, 0, 1, wait_ms=5000), asking(3, 1), asking(4, 0, 1), asking(5, 2)]
    covered = Coverage({"Metadata": (0, 2)})
    chosen = []
    for session in covering(sessions, covered):
        covered.note([session])
        chosen.append(session.seed)
    assert chosen == [4, 5]
    assert [waits_ms(session) for session in sessions[:3]] == [0, 10_000, 0]
