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
from tests.oracle.judge import Difference
from tests.oracle.live import Pair
from tests.oracle.proxy import LossyProxy
from tests.oracle.rules import Normaliser
from tests.oracle.session import Session, Step

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
