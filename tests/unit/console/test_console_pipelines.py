"""The files of pipelines: running, ended, died, and those that are no such files."""

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tidelog.console.pipeline_files import PIPELINES_MAX, read_pipelines

STATUS: dict[str, Any] = {
    "name": "clean-orders",
    "kind": "clean",
    "state": "running",
    "pid": 1,
    "started_ms": 1_000,
    "updated_ms": 2_000,
    "origin": "/home/x/clean.toml",
    "dead_letters": "orders.dlq",
    "failure": None,
    "progress": [
        {
            "name": "main",
            "batch_id": 7,
            "input_rows": 10,
            "input_rows_per_second": 5.0,
            "processed_rows_per_second": 12.5,
            "batch_ms": 90,
            "lag": 40,
            "rows": 700,
            "dead_letters": 3,
            "message": "",
        }
    ],
    "plan": {
        "bootstrap": "localhost:9092",
        "options": {"password": "hunter2"},
        "queries": [{"name": "main", "reads": "orders", "does": ["json"], "writes": "clean"}],
    },
}


def put(root: Path, name: str, content: Any) -> Path:
    folder = root / name
    folder.mkdir()
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / "status.json").write_text(text)
    (folder / "lock").touch()
    return folder


def test_a_running_one_and_one_that_died(tmp_path: Path) -> None:
    put(tmp_path, "a-died", {**STATUS, "name": "a-died"})
    running = put(tmp_path, "runs", {**STATUS, "name": "runs"})
    lock = os.open(running / "lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        first, second = read_pipelines(tmp_path)
    finally:
        os.close(lock)
    assert (first.name, first.state, first.lag, first.rows_per_second) == ("runs", "running", 40, 12.5)
    assert (second.name, second.state, second.rows_per_second) == ("a-died", "died", None)
    assert first.dead_letters == 3 and first.dead_letter_topic == "orders.dlq"
    assert first.queries[0].reads == "orders" and first.queries[0].does == ("json",)
    assert "hunter2" not in repr(first)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"name": 1', "[" * 100_000, '{"name":"x","state":null}']
)
def test_what_is_no_status_is_left_out(tmp_path: Path, content: str) -> None:
    put(tmp_path, "odd", content)
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    put(tmp_path, "ended", {**STATUS, "name": "ended", "state": "ended", "progress": [], "plan": {}})
    assert [view.name for view in read_pipelines(tmp_path)] == ["ended"]


def test_no_folder_and_too_many(tmp_path: Path) -> None:
    assert read_pipelines(tmp_path / "absent") == []
    for number in range(PIPELINES_MAX + 3):
        put(tmp_path, f"p{number:03d}", {**STATUS, "name": f"p{number:03d}", "state": "ended"})
    assert len(read_pipelines(tmp_path)) == PIPELINES_MAX
