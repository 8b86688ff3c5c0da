"""A checkpoint is for the options it was begun with: what differs is named, what may differ goes on."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")  # Spark is an extra

from pyspark.errors import AnalysisException

from tidelog.client.faults import ClientFault
from tidelog.pipelines import planning
from tidelog.pipelines.begun_with import OtherOptions, begun, identity_of
from tidelog.pipelines.definition import read_definition
from tidelog.pipelines.file_store import LocalFiles
from tidelog.pipelines.plan import Plan
from tidelog.pipelines.planning import make_plan
from tidelog.pipelines.ready import READY, ready_pipeline

CLUSTERS = {"a:1": "cluster-a", "a:2": "cluster-a", "b:1": "cluster-b"}


def planned(folder: Path, kind: str, options: dict[str, Any], **more: Any) -> Plan:
    given = {"kind": kind, "bootstrap": "a:1", "checkpoint": str(folder), "options": options, **more}
    return make_plan(read_definition(given, stem="copy"))


def begin(plan: Plan) -> None:
    table = () if plan.kind == "flow" else ready_pipeline(plan.kind).options
    identity = identity_of(plan, table, lambda kafka: CLUSTERS[kafka["kafka.bootstrap.servers"]])
    with begun(LocalFiles(), plan, identity):
        pass


MIRROR = {"topic": "orders", "to": "copy-a"}


def test_the_same_again_and_harmless_changes_go_on(tmp_path: Path) -> None:
    begin(planned(tmp_path, "mirror", MIRROR))
    begin(planned(tmp_path, "mirror", MIRROR))
    limits = {**MIRROR, "batch_records": 7, "sink": {"delivery": "at_least_once"}, "create": False}
    begin(planned(tmp_path, "mirror", limits, trigger="10 seconds", master="local[2]", dead_letters="dead"))
    # another broker of the same cluster
    begin(planned(tmp_path, "mirror", MIRROR, bootstrap="a:2"))
    begin(planned(tmp_path, "mirror", {**MIRROR, "to_bootstrap": "a:2"}))


@pytest.mark.parametrize(
    ("changes", "more", "named"),
    [
        ({"to": "copy-b"}, {}, "another to, "),
        ({"topic": "payments", "to": "copy-b"}, {}, "another to and another topic, "),
        ({"to_bootstrap": "b:1"}, {}, "another to_bootstrap, "),
        ({}, {"bootstrap": "b:1"}, "another bootstrap and another to_bootstrap, "),
    ],
)
def test_another_source_or_target_is_refused(
    tmp_path: Path, changes: dict[str, Any], more: dict[str, Any], named: str
) -> None:
    begin(planned(tmp_path, "mirror", MIRROR))
    with pytest.raises(OtherOptions) as refused:
        begin(planned(tmp_path, "mirror", {**MIRROR, **changes}, **more))
    assert f"pipeline copy was begun with {named}" in str(refused.value)
    assert "another --name or another --checkpoint" in str(refused.value)
    begin(planned(tmp_path, "mirror", MIRROR))
    begin(planned(tmp_path / "other", "mirror", {**MIRROR, **changes}, **more))
    # the way out that the message names
    (tmp_path / "begun-with-mirror.json").unlink()
    begin(planned(tmp_path, "mirror", {**MIRROR, **changes}, **more))


def test_a_second_replay_is_not_taken_for_the_first(tmp_path: Path) -> None:
    first = {"path": "/data/a", "to": "x"}
    begin(planned(tmp_path, "replay", first))
    begin(planned(tmp_path, "replay", {**first, "chunk_records": 10}))
    with pytest.raises(OtherOptions, match="another path and another to,"):
        begin(planned(tmp_path, "replay", {"path": "/data/b", "to": "y"}))
    with pytest.raises(OtherOptions, match="another since,"):
        begin(planned(tmp_path, "replay", {**first, "since": "2026-01-01"}))


def test_a_password_is_neither_kept_nor_part_of_it(tmp_path: Path) -> None:
    options = {"url": "postgresql://u:sesame@db:5432/shop", "table": "t", "cursor": "id", "to": "x"}
    begin(planned(tmp_path, "jdbc-source", options))
    (kept,) = tmp_path.iterdir()
    assert "sesame" not in kept.read_text() and "db:5432" not in kept.read_text()
    for url in ("postgresql://u@db:5432/shop", "jdbc:postgresql://u:other@db:5432/shop?sslmode=require"):
        begin(planned(tmp_path, "jdbc-source", {**options, "url": url}))
    with pytest.raises(OtherOptions, match="another url,") as refused:
        begin(planned(tmp_path, "jdbc-source", {**options, "url": "postgresql://u:sesame@db:5432/other"}))
    assert "sesame" not in str(refused.value)


def test_a_flow_is_its_sources(tmp_path: Path) -> None:
    def flow(topic: str, sink: str) -> Plan:
        given = {
            "bootstrap": "a:1",
            "checkpoint": str(tmp_path),
            "sources": {"orders": {"topic": topic}},
            "steps": [{"name": "all", "sql": f"SELECT value, '{sink}' AS key FROM orders"}],
            "sinks": [{"topic": sink}],
        }
        return make_plan(read_definition(given, stem="copy"))

    begin(flow("orders", "out"))
    begin(flow("orders", "elsewhere"))
    with pytest.raises(OtherOptions, match=r"another sources\.orders\.topic,"):
        begin(flow("payments", "out"))


def test_a_name_that_one_side_lacks_is_no_difference(tmp_path: Path) -> None:
    plan = planned(tmp_path, "mirror", MIRROR)
    (tmp_path / "begun-with-mirror.json").write_text('{"gone": "1"}')
    begin(plan)
    with pytest.raises(OtherOptions, match="another to,"):
        begin(planned(tmp_path, "mirror", {**MIRROR, "to": "copy-b"}))


def test_a_job_without_a_checkpoint_may_be_anything(tmp_path: Path) -> None:
    begin(planned(tmp_path, "table", {"topic": "a", "path": "/x", "snapshot": True}))
    begin(planned(tmp_path, "table", {"topic": "b", "path": "/y", "snapshot": True}))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", READY)
def test_every_ready_pipeline_says_what_it_reads_and_writes(kind: str) -> None:
    named = {option.name for option in ready_pipeline(kind).options if option.identity}
    assert named & {"topic", "left", "path", "url"} and named & {"to", "path", "table"}
    assert not named & {"source", "sink", "batch_records", "rows_per_batch", "files_per_batch", "create"}


def test_what_spark_refuses_begins_nothing_and_is_told_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "HadoopFiles", lambda spark, root: LocalFiles())
    monkeypatch.setattr(planning, "identity_of", lambda plan, table: {"to": plan.options["to"]})
    pipeline = ready_pipeline("mirror")
    plan = planned(tmp_path, "mirror", MIRROR)

    def refuse(spark: Any, plan: Plan) -> Any:
        raise AnalysisException("[UNRESOLVED_COLUMN] no column x\n\nJVM stacktrace:\njava.lang…")

    monkeypatch.setattr(type(pipeline), "start", lambda self, spark, plan: refuse(spark, plan))
    with pytest.raises(ClientFault, match=r"Spark cannot run this: no column x$"):
        planning.start(None, plan)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(type(pipeline), "start", lambda self, spark, plan: [])
    assert planning.start(None, plan) == []
    with pytest.raises(OtherOptions):
        planning.start(None, planned(tmp_path, "mirror", {**MIRROR, "to": "copy-b"}))
