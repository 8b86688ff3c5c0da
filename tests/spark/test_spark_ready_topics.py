"""aggregate, join, dedupe and order on a real Spark, by content."""

import json
import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.spark.ready_runs import definition, join_options, received, run_ready, send, values

MakeTopic = Callable[..., str]
ORDERS: dict[str, Any] = {
    "schema": "country STRING, cents BIGINT, at TIMESTAMP",
    "event_time": "at",
    "key": "country",
}
START_MS = 1_750_000_000_000 // 300_000 * 300_000

pytestmark = pytest.mark.timeout(300)


def test_aggregate(spark: Any, bootstrap: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    source, target, dead = make_topic(3), make_topic(2), make_topic(1)
    given = definition(
        bootstrap,
        tmp_path,
        "aggregate",
        dead,
        **ORDERS,
        topic=source,
        to=target,
        watermark="1 minute",
        sql="SELECT unix_seconds(window.start) AS start, country, count(*) AS orders, sum(cents) AS cents"
        " FROM records GROUP BY window(at, '5 minutes'), country",
    )
    choose = random.Random(5)
    truth: Counter[tuple[int, str]] = Counter()
    records: list[dict[str, Any]] = []
    for number in range(2_000):
        at_ms = START_MS + number * 900 - choose.randrange(40_000) * (number > 100)
        country = choose.choice(("DE", "FR", "IT"))
        records.append(order_record(country, number, at_ms))
        truth[at_ms // 300_000 * 300, country] += number
    # Hours later: everything before is complete.
    records += [order_record("DE", 1, START_MS + 36_000_000), {"value": "no JSON"}]
    send(bootstrap, source, records)
    run_ready(spark, given)
    found = values(bootstrap, target)
    assert {(row["start"], row["country"]): row["cents"] for row in found} == truth
    assert len(found) == len(truth)
    assert sum(row["orders"] for row in found) == 2_000
    (letter,) = received(bootstrap, dead)
    assert letter.value() == b"no JSON"
    # Windows are written once: what comes for a closed one is too late.
    send(bootstrap, source, [order_record("FR", 1_000_000, START_MS)])
    run_ready(spark, given)
    assert values(bootstrap, target) == found


def test_aggregate_that_updates(spark: Any, bootstrap: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    source, target = make_topic(1), make_topic(2)
    given = definition(
        bootstrap,
        tmp_path,
        "aggregate",
        **ORDERS,
        topic=source,
        to=target,
        output="update",
        sql="SELECT country, sum(cents) AS cents FROM records GROUP BY window(at, '5 minutes'), country",
    )
    for cents in (1, 10, 100):
        send(bootstrap, source, [order_record(country, cents, START_MS) for country in ("DE", "FR")])
        run_ready(spark, given)
    found = values(bootstrap, target)
    for country in ("DE", "FR"):
        assert [row["cents"] for row in found if row["country"] == country] == [1, 11, 111]


def order_record(country: str, cents: int, at_ms: int) -> dict[str, Any]:
    at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return {"key": country, "value": {"country": country, "cents": cents, "at": at}}


def test_a_record_that_cannot_be_decoded_stops_it_without_a_dead_letter_topic(
    spark: Any, bootstrap: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    source, target = make_topic(1), make_topic(1)
    send(bootstrap, source, [{"value": "no JSON"}])
    sql = "SELECT count(*) AS n FROM records GROUP BY window(_timestamp, '1 minute')"
    given = definition(bootstrap, tmp_path, "aggregate", topic=source, to=target, schema="n INT", sql=sql)
    with pytest.raises(RuntimeError, match="MALFORMED_RECORD_IN_PARSING"):
        run_ready(spark, given)
    assert values(bootstrap, target) == []


def test_join_of_streams(spark: Any, bootstrap: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    orders, payments, target = make_topic(2), make_topic(2), make_topic(2)
    sides = (orders, "order INT, country STRING"), (payments, "order INT, cents INT")
    times: dict[str, Any] = {"within": "10 minutes", "watermark": "1 minute"}
    options = join_options(*sides, "order", to=target, type="left", **times)
    given = definition(bootstrap, tmp_path, "join", **options)
    minute = 60_000
    send(
        bootstrap,
        orders,
        [timed(n, START_MS + n * 1_000, order=n, country="DE") for n in range(100)]
        + [timed(9_999, START_MS + 300 * minute, order=9_999, country="DE")],
    )
    # Even ones are paid in time, those that end in 1 too late, the others never.
    paid = [timed(n, START_MS + n * 1_000 + 5 * minute, order=n, cents=n) for n in range(0, 100, 2)]
    late = [timed(n, START_MS + n * 1_000 + 11 * minute, order=n, cents=n) for n in range(1, 100, 10)]
    send(bootstrap, payments, [*paid, *late, timed(8_888, START_MS + 300 * minute, order=8_888, cents=1)])
    run_ready(spark, given)
    found = received(bootstrap, target)
    rows = {int(message.key()): json.loads(message.value()) for message in found}
    assert len(found) == len(rows) == 100
    for number in range(100):
        expected: dict[str, Any] = {"left": {"order": number, "country": "DE"}}
        if number % 2 == 0:
            expected["right"] = {"order": number, "cents": number}
        assert rows[number] == expected


def timed(key: int, at_ms: int, **value: Any) -> dict[str, Any]:
    return {"key": str(key), "value": value, "timestamp": at_ms}


def test_join_with_a_table(spark: Any, bootstrap: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    orders, customers, target = make_topic(2), make_topic(3), make_topic(1)
    sides = (orders, "order INT, customer STRING"), (customers, "name STRING")
    table: dict[str, Any] = {
        "with": "table",
        "type": "inner",
        "select": ["l.order AS order", "r.name AS name"],
    }
    given = definition(bootstrap, tmp_path, "join", **join_options(*sides, "customer", to=target, **table))
    for name in ("old", "new"):
        send(bootstrap, customers, [{"key": f"c{n}", "value": {"name": f"{name}-{n}"}} for n in range(10)])
    send(bootstrap, customers, [{"key": "c3", "value": None}])
    send(bootstrap, orders, [{"value": {"order": n, "customer": f"c{n % 12}"}} for n in range(120)])
    run_ready(spark, given)
    expected = {n: f"new-{n % 12}" for n in range(120) if n % 12 not in (3, 10, 11)}
    found = values(bootstrap, target)
    assert {row["order"]: row["name"] for row in found} == expected
    assert len(found) == len(expected)
    # The table of the next batch is as it is then.
    send(bootstrap, customers, [{"key": "c3", "value": {"name": "again"}}])
    send(bootstrap, orders, [{"value": {"order": 1_000, "customer": "c3"}}])
    run_ready(spark, given)
    assert values(bootstrap, target)[len(found) :] == [{"order": 1_000, "name": "again"}]


@pytest.mark.parametrize("by", ["key", "id"])
def test_dedupe(spark: Any, bootstrap: str, make_topic: MakeTopic, tmp_path: Path, by: str) -> None:
    source, target = make_topic(3), make_topic(2)
    given = definition(bootstrap, tmp_path, "dedupe", topic=source, to=target, by=by)
    records = [
        {"key": f"k{n}", "value": {"id": n}, "timestamp": START_MS - n * 10_000_000} for n in range(300)
    ]
    send(bootstrap, source, [*records, *records[:100]])
    run_ready(spark, given)
    # Across batches and restarts, however old the timestamps are.
    more = [{"key": f"k{n}", "value": {"id": n}, "timestamp": 1_000_000_000_000} for n in range(250, 400)]
    send(bootstrap, source, more)
    run_ready(spark, given)
    found = received(bootstrap, target)
    assert sorted(json.loads(message.value())["id"] for message in found) == list(range(400))
    first = next(message for message in found if message.key() == b"k7")
    assert first.timestamp()[1] == START_MS - 70_000_000


def test_order(spark: Any, bootstrap: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    source, target, late = make_topic(4), make_topic(1), make_topic(1)
    given = definition(
        bootstrap,
        tmp_path,
        "order",
        topic=source,
        to=target,
        event_time="timestamp_millis(CAST(get_json_object(CAST(value AS STRING), '$.at') AS BIGINT))",
        lateness="10 seconds",
        late_to=late,
        source={"maxOffsetsPerTrigger": "700"},
    )
    choose = random.Random(3)
    times = [START_MS + number * 10 - choose.randrange(6_000) for number in range(3_000)]
    send(
        bootstrap,
        source,
        ({"value": {"at": at_ms, "n": n}, "partition": n % 4} for n, at_ms in enumerate(times)),
    )
    run_ready(spark, given)
    found = values(bootstrap, target)
    written = [row["at"] for row in found]
    assert written == sorted(written)
    bound = max(times) - 10_000
    assert sorted(written) == sorted(at_ms for at_ms in times if at_ms <= bound)
    # A much newer one lets all go; one from before has no place any more.
    send(
        bootstrap,
        source,
        [{"value": {"at": START_MS + 10_000_000, "n": -1}}, {"value": {"at": START_MS, "n": -2}}],
    )
    run_ready(spark, given)
    found = values(bootstrap, target)
    assert [row["at"] for row in found] == sorted(times)
    assert sorted(row["n"] for row in found) == list(range(3_000))
    (message,) = received(bootstrap, late)
    assert json.loads(message.value())["n"] == -2
    assert b"10 seconds late" in dict(message.headers())["tidelog.dlq.reason"]
