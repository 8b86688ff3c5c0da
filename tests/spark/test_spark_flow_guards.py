"""Flows with a function that is moody and a query that stands: each record is in one place, lag is true."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.ready_runs import committed
from tests.spark.test_spark_flows import SECONDS_MAX, make_out, order, produce, records
from tidelog.pipelines.definition import read_definition
from tidelog.pipelines.planning import make_plan
from tidelog.pipelines.planning import start as start_plan
from tidelog.pipelines.runner import wait_for_all

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(500)


def moody(folder: Path) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A function that fails for every seventh record when it is called first, and notes each call."""

    def function(record: dict[str, Any]) -> dict[str, Any]:
        calls = folder / f"{record['amount']}"
        with calls.open("a") as file:
            file.write("x")
        if record["amount"] % 7 == 0 and calls.stat().st_size == 1:
            raise TimeoutError("the service did not answer")
        return {"code": record["code"]}

    return function


def as_it_is(record: dict[str, Any]) -> dict[str, Any]:
    """A second function, behind the moody one."""
    return record


def flow(bootstrap: str, topic: str, folder: Path, dead: str | None) -> dict[str, Any]:
    return {
        "name": f"guards-{topic}",
        "bootstrap": bootstrap,
        "trigger": "available_now",
        "checkpoint": str(folder / "checkpoint"),
        "dead_letters": dead,
        "sources": {
            "orders": {"topic": topic, "decode": "json", "schema": "customer STRING, amount INT, code STRING"}
        },
    }


def test_a_function_that_fails_once_takes_no_record_out_of_both_places(
    spark: "SparkSession", bootstrap: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic, dead = make_topic(2), make_topic(1)
    make_out(bootstrap, f"{topic}-out")
    calls = tmp_path / "calls"
    calls.mkdir()
    content = flow(bootstrap, topic, tmp_path, dead)
    content["sources"]["orders"]["expect"] = {"known": "CAST(customer AS INT) IS NOT NULL"}
    content["steps"] = [
        {"name": "answered", "each": moody(calls), "schema": "code STRING"},
        {"name": "same", "each": as_it_is, "schema": "code STRING"},
        {"name": "coded", "sql": "SELECT CAST(code AS INT) AS code FROM same"},
    ]
    content["sinks"] = [{"from": "coded", "topic": f"{topic}-out"}]
    values: list[bytes | None] = [order(number, customer="1") for number in range(8)]
    # Of these only Spark knows which they are: one fails in the SQL, one in the rule.
    values[3], values[5] = order(3, customer="1", code="x"), order(5, customer="y")
    produce(bootstrap, topic, values)
    wait_for_all(start_plan(spark, make_plan(read_definition(content, stem="x"))), SECONDS_MAX)
    written = Counter(json.loads(row[1])["code"] for row in records(bootstrap, f"{topic}-out"))
    letters = Counter(int(row[0].removeprefix(b"key ")) for row in records(bootstrap, dead))
    failed = {0, 7, 3, 5}
    assert letters == Counter(failed)
    assert written == Counter(set(range(8)) - failed)
    assert {path.name for path in calls.iterdir() if path.stat().st_size > 1} == set()

    lone = make_topic(1)
    produce(bootstrap, lone, [order(number, customer="1") for number in (101, 105)])
    content = {**content, **flow(bootstrap, lone, tmp_path / "lone", None)}
    with pytest.raises(RuntimeError, match="the service did not answer; set dead_letters"):
        wait_for_all(start_plan(spark, make_plan(read_definition(content, stem="x"))), SECONDS_MAX)


def test_each_query_of_a_flow_with_state_shows_its_own_lag(
    spark: "SparkSession", bootstrap: str, admin: Any, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic, dead = make_topic(1), make_topic(1)
    for name in ("sums", "counts"):
        make_out(bootstrap, f"{topic}-{name}")
    content = flow(bootstrap, topic, tmp_path, dead)
    content["steps"] = [
        {"name": "sums", "sql": "SELECT customer, sum(CAST(code AS INT)) AS n FROM orders GROUP BY customer"},
        {"name": "counts", "sql": "SELECT customer, count(*) AS n FROM orders GROUP BY customer"},
    ]
    content["sinks"] = [
        {"name": name, "from": name, "topic": f"{topic}-{name}", "key": "customer", "output_mode": "update"}
        for name in ("sums", "counts")
    ]
    # The sums cannot be made: their query stands at the beginning while the others go to the end.
    produce(bootstrap, topic, [order(1), b"broken", order(2, code="x")])
    works = start_plan(spark, make_plan(read_definition(content, stem="x")))
    with pytest.raises(RuntimeError, match="CAST_INVALID_INPUT"):
        wait_for_all([work for work in works if work.name == "sums"], SECONDS_MAX)
    wait_for_all([work for work in works if work.name != "sums"], SECONDS_MAX)
    assert len(records(bootstrap, dead)) == 1 and len(records(bootstrap, f"{topic}-counts")) == 2

    def group(query: str) -> list[int]:
        return committed(admin, f"tidelog-pipeline-guards-{topic}-{query}", topic, 1)

    assert (group("counts-orders"), group("orders-dead")) == ([3], [3])
    assert group("sums-orders")[0] <= 0

    # Without a place for it, what cannot be decoded stops a flow with state as it does any other.
    content = {**content, **flow(bootstrap, topic, tmp_path / "strict", None), "sinks": content["sinks"][1:]}
    with pytest.raises(RuntimeError, match=f"record {topic}-0-1 the value is not JSON"):
        wait_for_all(start_plan(spark, make_plan(read_definition(content, stem="x"))), SECONDS_MAX)


def test_all_queries_of_a_flow_begin_at_the_end_that_its_first_start_found(
    spark: "SparkSession", bootstrap: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic, dead = make_topic(2), make_topic(1)
    make_out(bootstrap, f"{topic}-out")
    content = flow(bootstrap, topic, tmp_path, dead)
    content["sources"]["orders"]["options"] = {"startingOffsets": "latest"}
    content["steps"] = [{"name": "n", "sql": "SELECT customer, count(*) AS n FROM orders GROUP BY customer"}]
    content["sinks"] = [{"from": "n", "topic": f"{topic}-out", "key": "customer", "output_mode": "update"}]

    def run() -> None:
        wait_for_all(start_plan(spark, make_plan(read_definition(content, stem="x"))), SECONDS_MAX)

    produce(bootstrap, topic, [order(1), b"old and broken"])
    run()
    produce(bootstrap, topic, [order(2), b"broken", order(3)])
    # As after a kill before Spark had noted anything: it asks where the queries begin.
    for query in (tmp_path / "checkpoint").glob("*/offsets"):
        shutil.rmtree(query.parent)
    run()
    run()
    assert sorted(row[0] for row in records(bootstrap, f"{topic}-out")) == [b"c2", b"c3"]
    assert [row[1] for row in records(bootstrap, dead)] == [b"broken"]
