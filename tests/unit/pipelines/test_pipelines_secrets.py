"""No password in anything that shows a pipeline, and nobody else reads its files."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")  # Spark is an extra

from tidelog.client.faults import BadOption
from tidelog.client.pipeline_places import LOCK_FILE, STATE_VARIABLE, STATUS_FILE, STOP_FILE
from tidelog.pipelines import runner as runner_module
from tidelog.pipelines.definition import Overrides, read_definition
from tidelog.pipelines.plan import Plan
from tidelog.pipelines.planning import make_plan
from tidelog.pipelines.runner import Runner
from tidelog.pipelines.running import Place, Status

PASSWORD = "hunter2secret"
JAAS = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="{PASSWORD}";'
KAFKA = {"bootstrap.servers": "h:1", "sasl.password": PASSWORD, "sasl.jaas.config": JAAS}
OPTIONS = {
    "kafka.sasl.password": PASSWORD,
    "kafka.sasl.jaas.config": JAAS,
    "schema.registry.basic.auth.user.info": f"ann:{PASSWORD}",
}
CONTENTS: list[dict[str, Any]] = [
    {
        "kind": "jdbc-sink",
        "options": {"topic": "orders", "url": f"postgresql://u:{PASSWORD}@db:5432/shop", "table": "orders"},
    },
    {"kind": "mirror", "options": {"topic": "a", "to": "b", "to_kafka": KAFKA, "sink": OPTIONS}},
    {"kind": "mirror", "options": {"topic": "a", "to": "b", "sink": f"kafka.sasl.password={PASSWORD}"}},
    {
        "sources": {"orders": {"topic": "orders", "options": OPTIONS}},
        "sinks": [
            {"from": "orders", "format": "json", "path": f"s3a://k:{PASSWORD}@b/x", "options": OPTIONS}
        ],
    },
]


def plan_of(content: dict[str, Any]) -> Plan:
    spark = {"spark.hadoop.fs.s3a.secret.key": PASSWORD}
    return make_plan(read_definition({"kafka": KAFKA, "spark": spark, **content}, stem="shop"))


@pytest.mark.parametrize("content", CONTENTS, ids=["jdbc", "mirror", "mirror by text", "flow"])
def test_nothing_that_shows_a_plan_has_a_password(content: dict[str, Any]) -> None:
    plan = plan_of(content)
    shown = [json.dumps(plan.as_json()), plan.explain(), repr(plan), repr(plan.options), repr(plan.run)]
    assert not [text for text in shown if PASSWORD in text]
    assert PASSWORD in plan.secrets()


def test_user_and_host_stay() -> None:
    assert plan_of(CONTENTS[0]).as_json()["options"]["url"] == "postgresql://u:*****@db:5432/shop"
    mirror = plan_of(CONTENTS[1])
    assert mirror.as_json()["options"]["to_kafka"]["bootstrap.servers"] == "h:1"
    assert mirror.options["to_kafka"]["sasl.password"] == PASSWORD, "whoever connects needs it"


def test_other_values_hide_them_too() -> None:
    definition = read_definition({"kafka": KAFKA, **CONTENTS[3]}, stem="shop")
    over = Overrides(kafka=KAFKA, options=OPTIONS)
    parts = [definition, *definition.sources, *definition.sinks, over]
    assert PASSWORD not in repr(parts)


@pytest.mark.parametrize("wrong", [f"kafka.sasl.password={PASSWORD},and", [PASSWORD]])
def test_a_wrong_map_is_not_repeated(wrong: object) -> None:
    with pytest.raises(BadOption, match="sink is of type map") as refused:
        plan_of({"kind": "mirror", "options": {"topic": "a", "to": "b", "sink": wrong}})
    assert PASSWORD not in str(refused.value)


def test_a_failure_that_repeats_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(settings: object) -> None:
        raise OSError(f"no way with [{PASSWORD}]")

    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "state"))
    monkeypatch.setattr(runner_module, "open_session", fails)
    with pytest.raises(OSError):
        Runner(plan_of(CONTENTS[1]), None, threading.Event()).run(lambda _: None, 1.0, lambda: None)
    text = (tmp_path / "state" / "shop" / STATUS_FILE).read_text()
    assert "no way with [*****]" in text and PASSWORD not in text


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_nobody_else_reads_the_files(tmp_path: Path) -> None:
    root = tmp_path / "state"
    with Place("orders", root) as place:
        place.tell(Status("orders", "archive", "running", 1, 2, 3))
        place.ask_to_stop(0.0)
        files = [place.folder / name for name in (LOCK_FILE, STATUS_FILE, STOP_FILE)]
        assert [oct(mode_of(path)) for path in (root, place.folder)] == ["0o700"] * 2
        assert [oct(mode_of(path)) for path in files] == ["0o600"] * 3


def test_what_was_open_before_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "orders"
    folder.mkdir(mode=0o755)
    for name in (f"{STATUS_FILE}.new", STATUS_FILE):
        (folder / name).write_text("{}")
    with Place("orders", tmp_path) as place:
        place.tell(Status("orders", "archive", "running", 1, 2, 3))
    assert (mode_of(folder), mode_of(folder / STATUS_FILE)) == (0o700, 0o600)


def test_a_file_of_before_is_shown_without_its_secrets(tmp_path: Path) -> None:
    plan = {"options": {"url": f"postgresql://u:{PASSWORD}@db/shop"}}
    status = Status("orders", "archive", "ended", 1, 2, 3, plan=plan)
    read = Status.read(json.dumps(status.as_json()))
    assert PASSWORD not in json.dumps(read.as_json())
