"""Dead letters without Spark: headers, functions of a record, the search for poison, chunks of a replay."""

import pyarrow as pa
import pytest

from tidelog.admin import dead_letter_headers as names
from tidelog.admin.dead_letter_headers import read_headers
from tidelog.model.identifiers import TopicPartition
from tidelog.pipelines.poison import POISON_MAX, SMALL_BATCH, Place, TooMuchPoison, condition, halve
from tidelog.pipelines.ready.replay import chunk_size, cut, parse_time_ms
from tidelog.pipelines.record_functions import run_function

SCHEMA = pa.schema(
    [("n", pa.int32()), ("_origin", pa.int64()), ("_reason", pa.string()), ("_stack", pa.string())]
)


def test_headers_of_a_letter_and_those_of_the_record() -> None:
    failure = read_headers(
        [
            ("trace", b"1"),
            (names.REASON, "zu früh".encode()),
            (names.TOPIC, b"orders"),
            (names.PARTITION, b"2"),
            (names.OFFSET, b"17"),
            (names.ATTEMPTS, b"3"),
            ("empty", None),
        ]
    )
    assert failure.reason == "zu früh" and failure.origin == "orders-2@17" and failure.attempts == 3
    assert failure.headers == (("trace", b"1"), ("empty", None)) and failure.stack is None


def test_headers_of_kafka_connect() -> None:
    failure = read_headers(
        [
            ("__connect.errors.topic", b"orders"),
            ("__connect.errors.partition", b"0"),
            ("__connect.errors.offset", b"5"),
            ("__connect.errors.exception.message", b"bad"),
            ("__connect.errors.task.id", b"0"),
            ("own", b"x"),
        ]
    )
    assert (failure.origin, failure.reason, failure.headers) == ("orders-0@5", "bad", (("own", b"x"),))


def test_a_function_fails_for_a_record_and_not_for_the_others() -> None:
    def function(row: dict[str, int]) -> object:
        return {0: None, 1: {"n": 1}, 2: [{"n": 2}, {"n": 3}], 3: "text", 4: {"m": 1}, 5: {"n": "x"}}[
            row["k"]
        ]

    batch = run_function(
        function,  # type: ignore[arg-type]
        [{"k": k} for k in range(7)],
        list(range(7)),
        SCHEMA,
        origin="_origin",
        reason="_reason",
        stack="_stack",
    )
    rows = batch.to_pylist()
    good = [(row["n"], row["_origin"]) for row in rows if row["_reason"] is None]
    assert good == [(1, 1), (2, 2), (3, 2)]
    dead = {row["_origin"]: row for row in rows if row["_reason"] is not None}
    assert set(dead) == {3, 4, 5, 6}
    assert "a row is a dict" in dead[3]["_reason"] and "has no m" in dead[4]["_reason"]
    assert dead[6]["_reason"] == "KeyError: 6" and "in function" in dead[6]["_stack"]


@pytest.mark.parametrize(
    ("bad", "runs_max"),
    [(set(), 1), ({0}, 21), ({999}, 12), ({3, 4, 500}, 46), (set(range(0, 1000, 100)), 170)],
)
def test_halving_finds_what_fails_in_few_runs(bad: set[int], runs_max: int) -> None:
    places = [Place("t", n % 2, n) for n in range(1000)]
    runs = 0

    def fault_of(some: object) -> ValueError | None:
        nonlocal runs
        runs += 1
        assert isinstance(some, list)
        return ValueError("poison") if any(place.offset in bad for place in some) else None

    found = halve(places, fault_of)
    assert {poison.place.offset for poison in found} == bad
    assert all(poison.reason == "ValueError: poison" for poison in found)
    assert runs <= runs_max


def test_when_everything_fails_it_is_not_the_records() -> None:
    places = [Place("t", 0, n) for n in range(POISON_MAX + 50)]
    with pytest.raises(TooMuchPoison, match="more than 100"):
        halve(places, lambda some: ValueError("wrong step"))
    with pytest.raises(TooMuchPoison, match="every one of 21 records"):
        halve(places[: SMALL_BATCH + 1], lambda some: ValueError("wrong step"))


@pytest.mark.parametrize("count", [1, 2, 3, SMALL_BATCH])
def test_a_small_batch_may_be_nothing_but_poison(count: int) -> None:
    places = [Place("t", 0, n) for n in range(count)]
    found = halve(places, lambda some: ValueError("poison"))
    assert sorted(poison.place for poison in found) == places


def test_the_condition_for_a_run_of_places() -> None:
    places = [Place("a", 0, 5), Place("a", 0, 9), Place("b", 1, 2)]
    assert condition(places) == (
        "(topic = 'a' AND partition = 0 AND offset BETWEEN 5 AND 9)"
        " OR (topic = 'b' AND partition = 1 AND offset BETWEEN 2 AND 2)"
    )


def test_chunks_cover_every_offset_once_and_in_order() -> None:
    ranges = {
        TopicPartition("a", 0): (10, 1010),
        TopicPartition("a", 1): (0, 3),
        TopicPartition("b", 0): (5, 5),
    }
    chunks = cut(ranges, 100)
    assert len(chunks) == 11 and sum(map(chunk_size, chunks)) == 1003
    assert max(map(chunk_size, chunks)) <= 100
    for place, (first, end) in ranges.items():
        seen = [
            offset
            for chunk in chunks
            for offset in range(*chunk.get(place.topic, {}).get(str(place.partition), [0, 0]))
        ]
        assert seen == list(range(first, end))
    assert cut({}, 100) == []


def test_times() -> None:
    assert parse_time_ms("1700000000000") == 1_700_000_000_000
    assert parse_time_ms("2023-11-14T22:13:20Z") == parse_time_ms("2023-11-14T22:13:20") == 1_700_000_000_000
