"""The history checkers: a clean history with every legal surprise passes, each planted anomaly is caught."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.history import (
    ABORTED,
    ACKNOWLEDGED,
    COMMITTED,
    FAILED,
    NO_OFFSET,
    UNKNOWN,
    Assigned,
    Copies,
    Event,
    Follows,
    History,
    Poll,
    Recorder,
    Send,
    Transaction,
    collect,
    load,
)
from tests.chaos.history_checks import CHECKERS, check
from tests.chaos.history_faults import PLANTS, unnoticed

INF = float("inf")


class Model:
    """A log as Kafka keeps it, and clients that behave; `history` is what they recorded."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.events: list[Event] = [Follows("readers", "input"), Copies("input", "output")]
        self.logs: dict[tuple[str, int], list[tuple[int, str, str]]] = {}
        """Offset, value, and the transaction of each record."""
        self.ends: dict[tuple[str, int], int] = {}
        self.now = 0.0
        self.number = 0
        self.outcomes: dict[str, str] = {}

    def tick(self) -> float:
        self.now += 1.0
        return self.now

    def append(self, topic: str, partition: int, value: str, transaction: str = "") -> int:
        place = (topic, partition)
        offset = self.ends.get(place, 0)
        self.logs.setdefault(place, []).append((offset, value, transaction))
        self.ends[place] = offset + 1
        return offset

    def send(
        self, producer: str, topic: str, partition: int, *, source: str = "", transaction: str = ""
    ) -> str:
        self.number += 1
        value = f"{producer}/{self.number}"
        begun = self.tick()
        offset = self.append(topic, partition, value, transaction)
        self.events.append(
            Send(
                producer,
                self.number,
                topic,
                partition,
                value,
                ACKNOWLEDGED,
                offset,
                begun,
                self.tick(),
                transaction=transaction,
                source=source,
            )
        )
        return value

    def surprise(self, producer: str, partition: int) -> None:
        """A send without a known outcome, there or not; one that failed; an acks=1 write that was cut off."""
        for outcome, there, acks in (
            (UNKNOWN, True, "all"),
            (UNKNOWN, False, "all"),
            (FAILED, False, "all"),
            (ACKNOWLEDGED, False, "1"),
        ):
            self.number += 1
            value = f"{producer}/{self.number}"
            offset = self.ends.get(("input", partition), 0)
            if there:
                self.append("input", partition, value)
            told = offset if outcome == ACKNOWLEDGED else NO_OFFSET
            self.events.append(
                Send(
                    producer,
                    self.number,
                    "input",
                    partition,
                    value,
                    outcome,
                    told,
                    self.tick(),
                    self.tick(),
                    acks,
                )
            )

    def repeat(self, partition: int) -> None:
        """A producer without idempotence wrote one value twice."""
        self.number += 1
        value = f"plain/{self.number}"
        self.append("input", partition, value)
        offset = self.append("input", partition, value)
        self.events.append(
            Send(
                "plain",
                self.number,
                "input",
                partition,
                value,
                ACKNOWLEDGED,
                offset,
                self.tick(),
                self.tick(),
                idempotent=False,
            )
        )

    def copy(self, tag: str, sources: list[str], outcome: str, *, visible: bool) -> None:
        begun = self.tick()
        for number, source in enumerate(sources):
            self.send("worker", "output", number % 2, source=source, transaction=tag)
        commit_begun = INF if outcome == ABORTED else self.tick()
        self.outcomes[tag] = COMMITTED if visible else ABORTED
        for partition in range(2):
            if ("output", partition) in self.ends:
                self.ends["output", partition] += 1  # the marker
        self.events.append(Transaction(tag, outcome, begun, commit_begun, self.tick()))

    def read(
        self, consumer: str, group: str, place: tuple[str, int], start: int, stop: int, *, final: bool
    ) -> None:
        """Poll committed records of a range, a few at a time."""
        records = [
            (offset, value)
            for offset, value, tag in self.logs.get(place, [])
            if start <= offset < stop and (not tag or self.outcomes[tag] == COMMITTED)
        ]
        while records:
            count = self.random.randint(3, 6)
            poll = Poll(consumer, group, *place, tuple(records[:count]), self.tick(), final=final)
            self.events.append(poll)
            records = records[count:]

    def history(self) -> History:
        for _ in range(20):
            for producer in ("p1", "p2"):
                self.send(producer, "input", self.random.randint(0, 1))
        self.surprise("p1", 0)
        self.surprise("p2", 1)
        self.repeat(0)
        for partition in range(2):
            self.send("p1", "input", partition)
        there = [value for partition in range(2) for _, value, _ in self.logs["input", partition]]
        there = list(dict.fromkeys(there))
        self.copy("t1", there[:7], COMMITTED, visible=True)
        self.copy("t2", there[7:15], ABORTED, visible=False)
        self.copy("t3", there[7:15], UNKNOWN, visible=True)
        self.copy("t4", there[15:], UNKNOWN, visible=False)
        self.copy("t5", there[15:], COMMITTED, visible=True)
        # Two members; the second takes everything over and reads what the first had not committed again.
        self.events.append(Assigned("c1", self.tick(), (("input", 0),)))
        self.read("c1", "readers", ("input", 0), 0, 15, final=False)
        self.events.append(Assigned("c2", self.tick(), (("input", 1),)))
        self.read("c2", "readers", ("input", 1), 0, 10, final=False)
        self.events.append(Assigned("c2", self.tick(), (("input", 0), ("input", 1))))
        self.read("c2", "readers", ("input", 1), 7, 1000, final=False)
        self.read("c2", "readers", ("input", 0), 9, 1000, final=False)
        self.read("c3", "", ("output", 0), 0, 1000, final=False)
        for place in sorted(self.logs):
            self.read("final", "", place, 0, 1000, final=True)
        return collect(self.events)


@pytest.fixture(params=range(5))
def history(request: pytest.FixtureRequest) -> History:
    return Model(request.param).history()


def test_legal_surprises_pass(history: History) -> None:
    assert check(history) == {}


def test_every_checker_has_a_plant() -> None:
    assert PLANTS.keys() == CHECKERS.keys()


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_anomaly_is_caught(history: History, name: str) -> None:
    assert check(PLANTS[name](history))[name]


@pytest.mark.parametrize("name", ["unseen", "precommitted read", "out of order"])
def test_an_anomaly_is_not_mistaken_for_another(history: History, name: str) -> None:
    assert check(PLANTS[name](history)).keys() == {name}


def test_no_plant_goes_unnoticed(history: History) -> None:
    assert unnoticed(history, CHECKERS) == {"unnoticed": [], "unplantable": []}


def test_a_failed_send_must_not_appear(history: History) -> None:
    spoiled = replace(
        history,
        sends=[
            send._replace(outcome=FAILED, offset=NO_OFFSET) if send.value == "p1/1" else send
            for send in history.sends
        ],
    )
    assert check(spoiled).keys() == {"aborted read"}


def test_an_unknown_send_must_not_appear_twice(history: History) -> None:
    """Idempotence is for exactly this: the retry of a send whose answer was lost."""
    place, value = next(
        (send.place, send.value)
        for send in history.sends
        if send.outcome == UNKNOWN
        and any(send.value in dict(map(reversed, p.records)) for p in history.polls)  # type: ignore[arg-type]
    )
    end = 1 + max(offset for poll in history.polls if poll.place == place for offset, _ in poll.records)
    again = Poll("late", "", *place, ((end, value),), 1e9, final=True)
    assert "duplicate" in check(replace(history, reads=[*history.reads, again]))


def test_an_unknown_transaction_must_be_whole(history: History) -> None:
    part = next(send.value for send in history.sends if send.transaction == "t3")
    spoiled = replace(
        history,
        reads=[
            event._replace(records=tuple(r for r in event.records if r[1] != part))
            if isinstance(event, Poll)
            else event
            for event in history.reads
        ],
    )
    assert "fractured transaction" in check(spoiled)


@pytest.mark.parametrize(
    ("second", "caught"),
    [(True, set()), (False, {"non-monotonic poll"})],
    ids=["assigned anew", "same assignment"],
)
def test_going_back_needs_a_new_assignment(second: bool, caught: set[str]) -> None:
    def records(start: int, stop: int) -> tuple[tuple[int, str], ...]:
        return tuple((offset, f"p/{offset}") for offset in range(start, stop))

    history = History(
        sends=[Send("p", n, "t", 0, f"p/{n}", ACKNOWLEDGED, n, 0.0, 1.0) for n in range(10)],
        reads=[
            Assigned("c", 1.0, (("t", 0),)),
            Poll("c", "", "t", 0, records(0, 6), 2.0),
            *([Assigned("c", 3.0, (("t", 0),))] if second else []),
            Poll("c", "", "t", 0, records(4, 10), 4.0),
            Poll("final", "", "t", 0, records(0, 10), 5.0, final=True),
        ],
    )
    assert check(history).keys() == caught


def test_uncommitted_readers_may_see_aborted_records(history: History) -> None:
    aborted = next(send for send in history.sends if send.transaction == "t2")
    glimpse = Poll("u", "", *aborted.place, ((aborted.offset, aborted.value),), 1e6, committed=False)
    assert check(replace(history, reads=[*history.reads, glimpse])) == {}


def test_uncommitted_readers_must_not_see_what_goes(history: History) -> None:
    """A record above the high watermark was shown, and another leader never had it."""
    send = next(send for send in history.sends if send.value == "p1/1")
    seen = Poll("u", "", *send.place, ((send.offset, send.value), (500, "p1/2")), 1e6, committed=False)
    final = Poll("f", "", *send.place, ((send.offset, send.value),), 1e7, committed=False, final=True)
    assert "vanished" in check(replace(history, reads=[*history.reads, seen, final]))


def test_a_history_survives_its_file(history: History, tmp_path: Path) -> None:
    write: Callable[[Event], None]
    recorder = Recorder(tmp_path / "all.jsonl")
    write = recorder.write
    for event in (*history.sends, *history.reads, *history.transactions, *history.copies, *history.follows):
        write(event)
    recorder.close()
    with (tmp_path / "all.jsonl").open("a") as file:
        file.write('["Send", "torn')
    assert load(tmp_path) == history


def test_of_several_words_about_a_send_the_last_counts(history: History, tmp_path: Path) -> None:
    """A worker that may be killed says what it is about to do first."""
    recorder = Recorder(tmp_path / "all.jsonl", immediate=True)
    for send in history.sends:
        recorder.write(send._replace(outcome=UNKNOWN, offset=NO_OFFSET))
    for transaction in history.transactions:
        recorder.write(transaction._replace(outcome=UNKNOWN, commit_begun=INF))
    for event in (*history.sends, *history.transactions):
        recorder.write(event)  # type: ignore[arg-type]
    found = load(tmp_path)  # the recorder is still open: a killed one is never closed
    assert (found.sends, found.transactions) == (history.sends, history.transactions)
    recorder.close()


def test_a_worker_killed_before_it_asked_for_a_commit_leaves_nothing(history: History) -> None:
    tag = next(each.tag for each in history.transactions if each.outcome == COMMITTED)
    killed = [
        each._replace(outcome=UNKNOWN, commit_begun=INF) if each.tag == tag else each
        for each in history.transactions
    ]
    assert "precommitted read" in check(replace(history, transactions=killed))
