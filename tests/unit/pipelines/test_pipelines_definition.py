"""Definitions and plans: what a file says, what is refused in which words, and the plan in words."""

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tidelog.client.faults import BadOption
from tidelog.client.pipeline_places import STATE_VARIABLE
from tidelog.pipelines.definition import Definition, Overrides, load_definition, read_definition
from tidelog.pipelines.flow import is_stateful, share_functions
from tidelog.pipelines.planning import make_plan
from tidelog.pipelines.ready import READY, ready_pipeline
from tidelog.pipelines.run_settings import Trigger, TriggerKind

FLOW: dict[str, Any] = {
    "bootstrap": "localhost:9092",
    "sources": {"orders": {"topic": "orders", "decode": "json", "schema": "customer STRING, amount DOUBLE"}},
    "steps": [{"name": "big", "sql": "SELECT customer, amount FROM orders WHERE amount > 100"}],
    "sinks": [{"from": "big", "topic": "big-orders", "key": "customer"}],
}
ARCHIVE: dict[str, Any] = {
    "kind": "archive",
    "bootstrap": "localhost:9092",
    "options": {"topic": "orders", "path": "/data/orders"},
}


def read(content: dict[str, Any], **changes: Any) -> Definition:
    return read_definition({**content, **changes}, stem="orders")


def test_a_yaml_file_with_a_ready_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "state"))
    file = tmp_path / "keep-orders.yaml"
    file.write_text(
        textwrap.dedent(
            """
            kind: archive
            kafka: {bootstrap.servers: "a:1,b:2", security.protocol: SSL}
            trigger: 10 seconds
            dead-letters: orders-dead
            master: local[2]
            spark: {spark.ui.enabled: true}
            options: {topic: orders, path: /data/orders, compact-files: 3}
            """
        )
    )
    definition = load_definition(file)
    run = definition.run
    assert run.name == "keep-orders" and run.master == "local[2]" and run.dead_letters == "orders-dead"
    assert run.kafka == {"kafka.bootstrap.servers": "a:1,b:2", "kafka.security.protocol": "SSL"}
    assert run.trigger == Trigger(TriggerKind.INTERVAL, "10 seconds")
    assert run.spark == {"spark.ui.enabled": "true"}
    assert run.checkpoint_of("archive") == str(tmp_path / "state/keep-orders/checkpoint/archive")
    plan = make_plan(definition)
    assert plan.options["compact_files"] == 3 and plan.options["compression"] == "zstd"
    assert plan.explain().splitlines()[:2] == [
        "pipeline keep-orders (archive)",
        "  cluster       a:1,b:2",
    ]
    json.dumps(plan.as_json())


def test_a_python_file_may_have_its_functions_in_it(tmp_path: Path) -> None:
    file = tmp_path / "scores.py"
    file.write_text(
        textwrap.dedent(
            """
            def score(record):
                return {"n": 1}

            pipeline = {
                "bootstrap": "x:1",
                "sources": {"orders": {"topic": "orders"}},
                "steps": [{"name": "scored", "each": score, "schema": "n INT"}],
                "sinks": [{"topic": "scores"}],
            }
            """
        )
    )
    definition = load_definition(file)
    (step,) = definition.steps
    assert step.each is not None and step.each.load()({}) == {"n": 1}
    assert step.reads == "orders" and definition.sinks[0].reads == "scored"


def test_functions_of_a_yaml_file_are_in_files_beside_it(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text("def clean(frame):\n    return frame\n")
    step = {"name": "cleaned", "python": "steps.py:clean"}
    content = {**FLOW, "steps": [step], "sinks": [{"topic": "out"}]}
    file = tmp_path / "flow.yaml"
    file.write_text(json.dumps(content))
    assert "then        cleaned: steps.py:clean(orders)" in make_plan(load_definition(file)).explain()
    file.write_text(json.dumps({**content, "steps": [{**step, "python": "steps.py:missing"}]}))
    with pytest.raises(BadOption, match="no function missing"):
        make_plan(load_definition(file))


def test_the_plan_of_a_flow_in_words(tmp_path: Path) -> None:
    plan = make_plan(read(FLOW, checkpoint=str(tmp_path), dead_letters="dead", trigger="available_now"))
    assert plan.explain() == textwrap.dedent(
        f"""\
        pipeline orders (flow)
          cluster       localhost:9092
          trigger       what is there now, then it ends
          dead letters  dead
          Spark         local[*]
          query flow
            reads       topic orders as orders, values are JSON: customer STRING, amount DOUBLE
            then        big: SELECT customer, amount FROM orders WHERE amount > 100
            writes      topic big-orders from big
            delivery    exactly once
            checkpoint  {tmp_path}/flow"""
    )


def test_state_makes_queries_of_their_own_for_sinks_and_dead_letters() -> None:
    step = {"name": "big", "sql": "SELECT customer, sum(amount) AS total FROM orders GROUP BY customer"}
    definition = read(FLOW, steps=[step], dead_letters="dead")
    assert is_stateful(definition)
    assert [query.name for query in make_plan(definition).queries] == ["big-orders", "orders-dead"]
    assert not is_stateful(read(FLOW, steps=[{**step, "stateful": False}]))
    sinks = [{**FLOW["sinks"][0], "name": "orders-dead"}]
    with pytest.raises(BadOption, match="two queries are called orders-dead"):
        make_plan(read(FLOW, steps=[step], sinks=sinks, dead_letters="dead"))


def test_the_command_line_goes_before_the_file() -> None:
    over = Overrides(
        name="other",
        kafka={"bootstrap.servers": "z:9"},
        bootstrap_default="never:1",
        trigger="continuous",
        options={"path": "/elsewhere"},
    )
    definition = read_definition({**ARCHIVE, "trigger": "5 seconds"}, over, stem="x")
    assert definition.run.name == "other" and definition.run.bootstrap == "z:9"
    assert definition.run.trigger.kind is TriggerKind.CONTINUOUS
    assert make_plan(definition).options["path"] == "/elsewhere"
    kept = read_definition(ARCHIVE, Overrides(bootstrap_default="never:1"), stem="x")
    assert kept.run.bootstrap == "localhost:9092"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "archiv"}, "did you mean archive"),
        ({"kind": "archive", "sinks": []}, "its own sinks"),
        ({"optoins": {}}, "did you mean options"),
        ({"options": {"topic": "t"}}, "needs the option path"),
        ({"options": {"topic": "t", "path": "p", "compresion": "x"}}, "did you mean compression"),
        ({"options": {"topic": "t", "path": "p", "compression": "rar"}}, "one of none, snappy"),
        ({"options": {"topic": "t", "path": "p", "compact_files": "many"}}, "type integer"),
        ({"trigger": "sometimes"}, "available_now, continuous or an interval"),
        ({"name": "../up"}, "letters, digits"),
        ({"kafka": {"group.id": "mine"}}, "a group of its own"),
        ({"bootstrap": None}, "which cluster"),
    ],
)
def test_mistakes_of_ready_pipelines(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BadOption, match=words):
        make_plan(read(ARCHIVE, **changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sources": {}}, "sources is empty"),
        ({"sources": {"a b": {"topic": "t"}}}, "a name for SQL"),
        ({"sources": {"orders": {"topic": "t", "decode": "json"}}}, "go together"),
        ({"sources": {"orders": {"topik": "t"}}}, "did you mean topic"),
        ({"sources": {"orders": {"topic": "t", "watermark": "at"}}}, "a column and a time"),
        ({"steps": [{"name": "big"}]}, "exactly one of sql, python and each"),
        ({"steps": [{"name": "orders", "sql": "SELECT 1"}]}, "already a table orders"),
        ({"steps": [{"name": "big", "each": "nofile.py:f", "schema": "n INT"}]}, "no file"),
        ({"steps": [{"name": "big", "python": "steps"}]}, "'file.py:name'"),
        ({"sinks": [{"from": "huge", "topic": "t"}]}, "not a table"),
        ({"sinks": [{"from": "big", "format": "parquet"}]}, "a path"),
        ({"sinks": [{"topic": "a"}, {"topic": "a"}]}, "two sinks are called a"),
        ({"options": {"a": 1}}, "options are for ready pipelines"),
    ],
)
def test_mistakes_of_flows(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BadOption, match=words):
        make_plan(read(FLOW, **changes))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("/data/big", "/data/big"),
        ("/data/big", "/data//other/../big/"),
        ("/data/big", "file:/data/big"),
        ("/data/big", "file:///data/big"),
        ("big", "./big/"),
        ("s3a://bucket/big", "s3a://bucket/big/"),
    ],
)
def test_two_sinks_do_not_write_to_one_folder(first: str, second: str) -> None:
    def sinks(*paths: str) -> list[dict[str, str]]:
        return [
            {"name": f"sink{n}", "from": "big", "format": "parquet", "path": p} for n, p in enumerate(paths)
        ]

    with pytest.raises(BadOption, match="sink0 and sink1 write to one folder"):
        read(FLOW, sinks=sinks(first, second))
    assert len(read(FLOW, sinks=sinks(first, f"{second}2", "s3a://other/data/big")).sinks) == 3


def test_a_fault_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text("kind: [archive")
    with pytest.raises(BadOption, match=r"broken\.yaml: this is not YAML"):
        load_definition(file)
    with pytest.raises(BadOption, match="there is no file"):
        load_definition(tmp_path / "nothing.yaml")


@pytest.mark.parametrize("kind", ["archive", "replay", "mirror", "table"])
def test_ready_pipelines_say_what_they_are(kind: str) -> None:
    pipeline = ready_pipeline(kind)
    assert (pipeline.name, pipeline.summary) == (kind, READY[kind])
    assert all(option.sentence.endswith(".") for option in pipeline.options)


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("mirror", {"topic": "a"}, "copied to itself"),
        ("mirror", {"topic": "a,b", "to": "c"}, "prefix"),
        ("replay", {"to": "a"}, "needs a path"),
        ("replay", {"topic": "a", "to": "a"}, "into itself"),
        ("replay", {"topic": "a", "to": "b", "since": "soon"}, "a time is"),
        ("table", {"topic": "a", "path": "p", "buckets": 0}, "at least 1"),
    ],
)
def test_plans_that_cannot_work(kind: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadOption, match=words):
        make_plan(read({"kind": kind, "bootstrap": "x:1", "options": options}))


def test_functions_of_the_file_travel_by_value_and_those_of_python_by_name(tmp_path: Path) -> None:
    cloudpickle = pytest.importorskip("pyspark.cloudpickle")
    (tmp_path / "steps.py").write_text("def double(row):\n    return {'n': 2 * row.n}\n")
    for function in (dict, "steps.py:double"):
        step = {"name": "big", "from": "orders", "each": function, "schema": "n INT"}
        definition = read_definition({**FLOW, "steps": [step]}, stem="orders", origin=tmp_path / "flow.yaml")
        share_functions(definition)
    assert "builtins" not in cloudpickle.list_registry_pickle_by_value()
    assert len(cloudpickle.list_registry_pickle_by_value()) == 1
    assert definition.steps[0].each is not None
    assert b"double" in cloudpickle.dumps(definition.steps[0].each.load())


#: of a pipeline of which a page shows a part
REST = "kind: archive\nbootstrap: localhost:9092\noptions: {topic: t, path: /tmp/t}\n"
PAGES = Path(__file__).parents[3] / "docs"
EXAMPLES = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in sorted(PAGES.glob("pipelines-*.md"))
    for number, block in enumerate(re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL), 1)
]


@pytest.mark.parametrize("block", EXAMPLES)
def test_every_pipeline_of_the_pages_is_one(block: str, tmp_path: Path) -> None:
    file = tmp_path / "example.yaml"
    is_whole = "kind:" in block or "sources:" in block
    file.write_text(block if is_whole else REST + block)
    plan = make_plan(load_definition(file))
    assert plan.explain()


def test_words_of_a_yaml_file_mean_what_is_written(tmp_path: Path) -> None:
    """Only true and false are booleans (YAML 1.2): `on` is the name of an option, `no` is a country."""
    file = tmp_path / "words.yaml"
    file.write_text("kind: join\noptions: {on: order, left: no, right: 'yes', to: 010, type: 1:30}\nname: y")
    definition = load_definition(file)
    assert (definition.kind, definition.run.name) == ("join", "y")
    assert definition.options == {"on": "order", "left": "no", "right": "yes", "to": 10, "type": "1:30"}
    file.write_text("kind: archive\nkind: join")
    with pytest.raises(BadOption, match=r"this is not YAML.*duplicate key"):
        load_definition(file)


def test_spark_connect_is_refused_in_words() -> None:
    content = {
        "bootstrap": "localhost:9092",
        "master": "sc://spark.example.com:15002",
        "sources": {"orders": {"topic": "orders"}},
        "sinks": [{"topic": "out"}],
    }
    with pytest.raises(BadOption, match="is Spark Connect, and a pipeline is its own driver"):
        make_plan(read_definition(content, stem="x"))
