"""`tidelog metrics export`, and where the brokers of a cluster serve their metrics."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tidelog.cli.main import tidelog
from tidelog.cli.metrics import ASSETS
from tidelog.cli.up_cluster import ClusterPlan


def run(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(tidelog, ["metrics", "export", *map(str, words)])
    return result.exit_code, result.output


def test_everything_is_written(tmp_path: Path) -> None:
    code, _ = run(tmp_path / "new")
    assert code == 0
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(ASSETS)
    assert json.loads((tmp_path / "new" / "grafana-dashboard.json").read_text())["title"] == "Tidelog"


def test_targets_take_the_place_of_the_examples(tmp_path: Path) -> None:
    code, _ = run(tmp_path, "--target", "one:9644", "--target", "[::1]:9645")
    text = (tmp_path / "prometheus.yml").read_text()
    assert code == 0
    assert text.endswith('      - targets:\n          - "one:9644"\n          - "[::1]:9645"\n')


@pytest.mark.parametrize("target", ["one", "one:", "one:x", 'o"ne:1', "a b:1"])
def test_a_target_that_is_none(tmp_path: Path, target: str) -> None:
    code, output = run(tmp_path, "--target", target)
    assert code == 2 and "host:port" in output
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_there_stay(tmp_path: Path) -> None:
    (tmp_path / "prometheus.yml").write_text("mine")
    code, output = run(tmp_path)
    assert code != 0 and "prometheus.yml" in output
    assert (tmp_path / "prometheus.yml").read_text() == "mine"
    assert run(tmp_path, "--force")[0] == 0
    assert (tmp_path / "prometheus.yml").read_text() != "mine"


@pytest.mark.parametrize(
    ("given", "expected"), [("9644", ["9644", "9645", "9646"]), ("0", ["0", "0", "0"]), (None, [None] * 3)]
)
def test_brokers_of_a_cluster_have_consecutive_ports(
    tmp_path: Path, given: str | None, expected: list[str | None]
) -> None:
    plan = ClusterPlan(3, tmp_path, host="127.0.0.1", port=9092)
    shared = {} if given is None else {"tidelog.metrics.port": given}
    ports = [each.get("tidelog.metrics.port") for each in plan.overrides(shared, [9092, 9093, 9094])]
    assert ports == expected
