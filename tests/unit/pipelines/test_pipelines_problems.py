"""What is wrong with a pipeline in one sentence, and the line of its file; causes out of Spark's texts."""

from pathlib import Path

import pytest

from tidelog.client.faults import BadOption
from tidelog.pipelines.definition import load_definition, read_definition
from tidelog.pipelines.failure_causes import cause_of
from tidelog.pipelines.planning import make_plan
from tidelog.pipelines.problems import Problem, Where, line_of
from tidelog.pipelines.spark_analyser import spark_sentence

YAML = """\
bootstrap: localhost:9092
dead-letters: dead
sources:
  orders: {topic: orders, decode: json, schema: customer STRING}
steps:
  - name: big
    sql: |
      SELECT customer
      FROM orders
sinks:
  - topic: out
    key: customer
"""
PYTHON = """\
def score(record):
    return record


pipeline = {
    "bootstrap": "localhost:9092",
    "sources": {"orders": {"topic": "orders"}},
    "steps": [
        {"name": "scored", "each": score, "schema": "x INT"},
    ],
    "sinks": [{"topic": "out"}],
}
"""


@pytest.mark.parametrize(
    ("where", "line"),
    [
        (("bootstrap",), 1),
        (("dead_letters",), 2),
        (("sources", "orders", "topic"), 4),
        (("steps", 0, "sql"), 7),
        (("steps", 0, "schema"), 6),
        (("sinks", 0, "key"), 12),
        (("options", "topic"), None),
    ],
)
def test_the_line_of_a_yaml_file(tmp_path: Path, where: Where, line: int | None) -> None:
    path = tmp_path / "big.yaml"
    path.write_text(YAML)
    definition = load_definition(path)
    assert line_of(where, definition.lines) == line
    words = Problem(where, "it is not there").words(definition.origin, definition.lines)
    assert words == (f"big.yaml:{line}: it is not there" if line else "topic: it is not there")


@pytest.mark.parametrize(
    ("where", "line"), [(("sources", "orders", "topic"), 7), (("steps", 0, "schema"), 9), (("sinks", 0), 11)]
)
def test_the_line_of_a_python_file(tmp_path: Path, where: Where, line: int) -> None:
    path = tmp_path / "scored.py"
    path.write_text(PYTHON)
    assert line_of(where, load_definition(path).lines) == line


READY = """\
bootstrap: localhost:9092
trigger: 10 seconds
kind: join
options:
  left: orders
  right: payments
  to: paid
  left-schema: order BIGINT
  right_schema: order BIGINT
  on: order
  within: 1 hour
"""


@pytest.mark.parametrize(
    ("text", "old", "new", "words"),
    [
        (YAML, "bootstrap:", "bootstrp:", "big.yaml:1: a pipeline has no bootstrp; did you mean bootstrap?"),
        (YAML, "decode: json", "decode: jsn", "big.yaml:4: source orders: decode is one of"),
        (YAML, "    sql:", "    sq:", "big.yaml:7: a step has no sq; did you mean sql?"),
        (YAML, "topic: out", "from: bgi\n    topic: out", "big.yaml:11: a sink writes bgi, which is not"),
        (YAML, "    key: c", "    kye: c", "big.yaml:12: a sink has no kye; did you mean key?"),
        (YAML, "sinks:", "sinks: {", "big.yaml: this is not YAML: "),
        (YAML, "name: big", "name: orders", "big.yaml:6: step orders: there is already a table orders"),
        (READY, "10 seconds", "10 secnds", "big.yaml:2: trigger is available_now, continuous or"),
        (READY, "kind: join", "kind: jion", "big.yaml:3: there is no ready pipeline 'jion'"),
        (READY, "within: 1 hour", "within: 1 huor", "big.yaml:11: within is of type duration (like '10 sec"),
        (READY, "left-schema: ", "left-shema: ", "big.yaml:8: join has no option left_shema"),
        (READY, "  on: order\n", "", "big.yaml:4: join needs the option on: "),
        (READY, "within:", "with: table\n  type: full\n  within:", "big.yaml:4: join: with a table the type"),
        (READY, "kind:", "master: sc://here\nkind:", "big.yaml:3: master sc://here is Spark Connect"),
    ],
)
def test_a_mistake_in_a_file_has_its_line(tmp_path: Path, text: str, old: str, new: str, words: str) -> None:
    path = tmp_path / "big.yaml"
    path.write_text(text)
    make_plan(load_definition(path))
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(BadOption) as caught:
        make_plan(load_definition(path))
    assert str(caught.value).startswith(words)


def test_a_mistake_without_a_file_has_no_place() -> None:
    with pytest.raises(BadOption) as caught:
        make_plan(read_definition({"kind": "mirror", "bootstrap": "x:1", "options": {"topc": "a"}}, stem="x"))
    assert str(caught.value).startswith("mirror has no option topc")


def test_a_comma_between_braces_is_not_passed_over(tmp_path: Path) -> None:
    """YAML reads {sql: SELECT a, b FROM t} as two names, and half a query would run."""
    path = tmp_path / "cut.yaml"
    path.write_text(
        "sources: {orders: {topic: orders}}\nsinks: [{topic: out}]\n"
        "steps: [{name: big, sql: SELECT key, value FROM orders}]\n"
    )
    with pytest.raises(BadOption, match="a text with a comma between braces needs quotes"):
        load_definition(path)


STREAM = (
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted due to stage failure: "
    "Task 0 in stage 1.0 failed 1 times, most recent failure: Lost task 0.0 in stage 1.0 (TID 1) (host "
    "executor driver): org.apache.spark.SparkNumberFormatException: [CAST_INVALID_INPUT] "
    "The value 'x' is bad. SQLSTATE: 22018\n"
    "== SQL (line 1, position 18) ==\nSELECT CAST(amount AS INT) FROM orders\n       ^^^^^^^^\n\n"
    "\tat org.apache.spark.sql.errors.QueryExecutionErrors$.invalidInput(Errors.scala:1)\n"
)
PROXY = """An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "/x/py4j/clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
                   ^^^^^^^^^^^^^^^^^^
  File "/x/tidelog/pipelines/flow_batches.py", line 207, in _refuse_dead
    raise ValueError(text)
ValueError: scored: record orders-0 at offset 0: KeyError: 'customr'; set dead_letters to go on

=== Streaming Query ===
Identifier: score-flow [id = fc83, runId = 4a8d]
"""
WORKER = """pyspark.errors.exceptions.captured.PythonException:
An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/x/score.py", line 2, in score
    return 1 / record["n"]
ZeroDivisionError: division by zero

	at org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handle(Runner.scala:5)
"""
CAPTURED = """Traceback (most recent call last):
  File "/x/captured.py", line 262, in deco
    raise converted from None
pyspark.errors.exceptions.captured.NumberFormatException: [CAST_INVALID_INPUT] It is bad. SQLSTATE: 22018
== SQL (line 1, position 18) ==
"""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (STREAM, "The value 'x' is bad"),
        (
            PROXY,
            "scored: record orders-0 at offset 0: KeyError: 'customr'; set dead_letters to go on",
        ),
        (WORKER, "ZeroDivisionError: division by zero"),
        (CAPTURED, "It is bad"),
        ("the cluster is away\nand more", "the cluster is away"),
        ("", "there is no reason given"),
    ],
)
def test_the_cause_of_a_failure_is_one_sentence(text: str, cause: str) -> None:
    assert cause_of(text) == cause


def test_a_sentence_of_spark_without_its_plan() -> None:
    text = (
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `amout` cannot be resolved. "
        "Did you mean one of the following? [`amount`]. SQLSTATE: 42703; line 3 pos 7;\n"
        "'Project ['amout]\n+- OneRowRelation\n"
    )
    sentence, condition = spark_sentence(text, lines_before=1)
    assert condition == "UNRESOLVED_COLUMN.WITH_SUGGESTION"
    assert sentence == (
        "A column with name `amout` cannot be resolved. Did you mean one of the following? [`amount`] "
        "(line 2 of the SQL)"
    )
