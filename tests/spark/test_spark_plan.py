"""What `plan` finds wrong with SQL, columns and types is what Spark finds when it runs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.test_spark_flows import SECONDS_MAX, make_out
from tidelog.client.faults import ClientFault
from tidelog.pipelines import planning
from tidelog.pipelines.checking import check_plan
from tidelog.pipelines.definition import load_definition
from tidelog.pipelines.planning import make_plan
from tidelog.pipelines.problems import Findings
from tidelog.pipelines.run_settings import RunSettings
from tidelog.pipelines.runner import wait_for_all
from tidelog.pipelines.table_checks import RECORD, RECORD_OWN, Statement, check_statements, expression

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)

RUN = RunSettings("plan", kafka={})
ORDERS = Statement(
    ("sources", "orders"), "orders", "orders", "customer STRING, amount DOUBLE, at TIMESTAMP", RECORD_OWN
)


def sql(text: str, table: str | None = None) -> Statement:
    return Statement(("steps", 0, "sql"), "step", table, sql=text)


def sentences(*statements: Statement, run: RunSettings = RUN) -> list[str]:
    return [one.sentence for one in check_statements(run, statements).problems]


def test_what_is_right_is_not_refused() -> None:
    """A check that refuses what would run is worse than none."""
    right = (
        "WITH big AS (SELECT * FROM orders) SELECT customer, count(*) n FROM big GROUP BY ALL",
        "SELECT customer, window.start AS start, sum(amount) AS total FROM orders "
        "GROUP BY customer, window(at, '5 minutes')",
        "SELECT session_window.end, customer FROM orders GROUP BY session_window(at, '5 minutes'), customer",
        "SELECT amount * 2 AS double, double + 1 AS more FROM orders -- a lateral alias",
        "SELECT transform(array(1, 2), x -> x + amount) AS xs, element_at(_headers, 1).key FROM orders",
        "SELECT c, n FROM orders JOIN VALUES ('a') AS v(c) LATERAL VIEW explode(array(1, 2)) t AS n",
        "FROM orders |> WHERE amount > 1 |> AGGREGATE sum(amount) AS total GROUP BY customer",
        "SELECT a.customer FROM orders a JOIN orders b ON a.customer = b.customer "
        "AND a.at > b.at - INTERVAL 1 HOUR",
        "SELECT get_json_object(CAST(_key AS STRING), '$.a') AS a, to_json(struct(*)) AS j FROM orders",
        "SELECT `customer` FROM orders UNION ALL SELECT CAST(_offset AS STRING) FROM orders",
        "SELECT TRY_CAST('x' AS INT) AS n, from_json('{}', 'a INT').a, variant_get(parse_json('1'), '$')",
    )
    assert sentences(ORDERS, *map(sql, right)) == []


def test_what_is_wrong_is_one_sentence() -> None:
    wrong = {
        "SELECT custmer FROM orders": "step: there is no column custmer; did you mean customer?",
        "SELECT *\nFROM orders\nWHERE amout > 1": "step: there is no column amout; did you mean amount?",
        "SELECT customer FROM order_s": "step: there is no table order_s; before it there are orders",
        "SELECT nothing_of_the_kind(customer) FROM orders": "step: it calls a function",
        "SELECT customer, count(*) FROM orders": "step: The query does not include a GROUP BY clause.",
        "SELECT customer FRM orders WHERE": "step: Syntax error at or near",
        "SELECT date_add(amount, 1) FROM orders": "step: Cannot resolve",
        "SELECT o.amunt FROM orders o": "step: there is no column o.amunt; did you mean o.amount?",
    }
    found = sentences(ORDERS, *map(sql, wrong))
    assert [sentence.startswith(said) for sentence, said in zip(found, wrong.values(), strict=True)] == [
        True
    ] * len(wrong), found
    assert all("\n" not in one and "'Project" not in one and "SQLSTATE" not in one for one in found)


def test_types_and_schemas() -> None:
    rule = expression(
        ("sources", "orders", "expect", "positive"), "rule positive", "amount + 1", "orders", ("BOOLEAN",)
    )
    assert sentences(ORDERS, rule) == ["rule positive is DOUBLE; it must be BOOLEAN"]
    (said,) = sentences(Statement(("x",), "schema", "t", "customer STRNG"))
    assert "STRNG" in said
    key = expression(("options", "event_time"), "event_time", "timestamp", "record", ("TIMESTAMP",))
    assert sentences(Statement(("x",), "record", "record", columns=RECORD), key) == []


def test_what_nobody_can_know_is_a_note_and_not_a_refusal() -> None:
    python = Statement(("steps", 0), "step scored", "scored", unknown=True)
    after = Statement(("steps", 1), "step after", "after", sql="SELECT anything FROM scored")
    last = Statement(("steps", 2), "step last", sql="SELECT more FROM after JOIN orders")
    files = Statement(("steps", 3), "step files", sql="SELECT * FROM parquet.`/data/x`")
    found = check_statements(RUN, (ORDERS, python, after, last, files))
    assert found == Findings(notes=("only Spark can check step after, step last, step files",))
    adding = RunSettings("plan", spark={"spark.sql.extensions": "com.example.More"})
    assert check_statements(adding, (ORDERS, sql("SELECT f() FROM x"))).problems == ()
    for package, told in (("org.apache.hadoop:hadoop-aws:3.5.0", 1), ("com.example:more:1", 0)):
        store = RunSettings("plan", spark={"spark.jars.packages": package})
        assert len(check_statements(store, (ORDERS, sql("SELECT f() FROM x"))).problems) == told
    strict = RunSettings("plan", spark={"spark.sql.ansi.enabled": "false"})
    wanted = sql("SELECT concat(1, true) + DATE'2020-01-01' FROM orders")
    assert len(sentences(ORDERS, wanted)) == 1 and len(sentences(ORDERS, wanted, run=strict)) == 1


def test_plan_and_spark_say_the_same(
    spark: "SparkSession", bootstrap: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = make_topic(1)
    make_out(bootstrap, f"{topic}-out")
    content = {
        "bootstrap": bootstrap,
        "trigger": "available_now",
        "checkpoint": str(tmp_path / "checkpoint"),
        "sources": {"orders": {"topic": topic, "decode": "json", "schema": "customer STRING"}},
        "steps": [{"name": "big", "sql": "SELECT custmer FROM orders"}],
        "sinks": [{"topic": f"{topic}-out", "key": "customer"}],
    }
    path = tmp_path / "big.yaml"
    path.write_text(json.dumps(content, indent=1))
    definition = load_definition(path)
    plan = make_plan(definition)
    found = check_plan(plan)
    assert [one.words(definition.origin, definition.lines) for one in found.problems] == [
        "big.yaml:15: step big: there is no column custmer; did you mean customer?"
    ]
    with pytest.raises((ClientFault, RuntimeError), match="custmer"):
        wait_for_all(planning.start(spark, plan), SECONDS_MAX)
    path.write_text(json.dumps(content, indent=1).replace("custmer", "customer"))
    plan = make_plan(load_definition(path))
    assert check_plan(plan) == Findings()
    wait_for_all(planning.start(spark, plan), SECONDS_MAX)
