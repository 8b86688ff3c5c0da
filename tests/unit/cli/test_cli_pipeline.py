"""`tidelog pipeline`: faults of every kind are one clear error, without a traceback and passwords."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tidelog.cli.main import tidelog
from tidelog.client.faults import ClientFault
from tidelog.client.pipeline_places import STATE_VARIABLE
from tidelog.pipelines import session
from tidelog.pipelines.begun_with import OtherOptions
from tidelog.pipelines.planning import CannotStart
from tidelog.pipelines.postgres import DatabaseFault
from tidelog.pipelines.ready.jdbc_sink import BadTable
from tidelog.pipelines.runner import Runner

SINK = ["jdbc-sink", "-o", "topic=orders", "-o", "url=postgresql://u:sesame@db/shop", "-o", "table=t"]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(tidelog, ["pipeline", *arguments])


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (BadTable("there is no table t: create it first"), "create it first"),
        (DatabaseFault("postgresql://u@db/shop: permission denied, sesame"), "permission denied, *****"),
        (CannotStart("Spark cannot run this: [PARSE_SYNTAX_ERROR]"), "[PARSE_SYNTAX_ERROR]"),
        (OtherOptions("pipeline x was begun with another to"), "with the options of before it goes on"),
    ],
)
def test_what_keeps_a_pipeline_from_starting_is_one_error(
    monkeypatch: pytest.MonkeyPatch, fault: ClientFault, said: str
) -> None:
    def fail(*_: Any) -> None:
        raise fault

    monkeypatch.setattr(session, "check_environment", lambda: None)
    monkeypatch.setattr(Runner, "run", fail)
    result = run("run", *SINK, "--no-check")
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
    assert said in result.output and "sesame" not in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*SINK, "--trigger", "10 bananas"], "an interval like '10 seconds', not '10 bananas'"),
        (["jdbc-sink", "-o", "topic=a,b", *SINK[3:]], "jdbc-sink reads one topic"),
        (["dedupe", "-o", "topic=a", "-o", "to=b", "-o", "within=10 bananas"], "within is of type duration"),
        ([*SINK, "-o", "source=sesame"], "source is of type map"),
    ],
)
def test_a_plan_refuses_what_could_not_run(arguments: list[str], said: str) -> None:
    result = run("plan", *arguments)
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
    assert said in result.output and "sesame" not in result.output
