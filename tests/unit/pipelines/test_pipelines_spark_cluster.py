"""What a pipeline does when the master is not local: the warning, the settings, and what comes along."""

import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tidelog.client.faults import BadOption
from tidelog.pipelines import spark_cluster
from tidelog.pipelines.definition import read_definition
from tidelog.pipelines.executor_archive import FOLDER
from tidelog.pipelines.planning import make_plan
from tidelog.pipelines.python_files import load_module, neighbours, neighbours_zip
from tidelog.pipelines.run_settings import RunSettings
from tidelog.pipelines.spark_cluster import INSTALLED, cluster_notes, is_local, prepare_cluster

REMOTE = "spark://10.0.0.1:7077"
VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"


def settings(master: str, checkpoint: str = "/data/checkpoint", **spark: str) -> RunSettings:
    return RunSettings("orders", checkpoint=checkpoint, master=master, spark=spark)


@pytest.mark.parametrize(
    ("master", "checkpoint", "warned"),
    [
        ("local[*]", "/data/checkpoint", False),
        ("local-cluster[2,1,1024]", "/data/checkpoint", False),
        (REMOTE, "/data/checkpoint", True),
        (REMOTE, "file:///data/checkpoint", True),
        (REMOTE, "hdfs://namenode/checkpoint", False),
        (REMOTE, "s3a://bucket/checkpoint", False),
        ("k8s://https://10.0.0.1", "/data/checkpoint", True),
        # There such a path is one of the cluster's file system.
        ("yarn", "/data/checkpoint", False),
        ("yarn", "file:/data/checkpoint", True),
    ],
)
def test_a_checkpoint_that_executors_may_not_reach_is_warned_of(
    master: str, checkpoint: str, warned: bool
) -> None:
    notes = cluster_notes(settings(master, checkpoint))
    assert bool(notes) == warned
    assert all(master in note and f"the checkpoint {checkpoint}." in note for note in notes)


def test_the_plan_warns_of_files_too() -> None:
    archive: dict[str, Any] = {
        "kind": "archive",
        "bootstrap": "localhost:9092",
        "checkpoint": "hdfs://namenode/checkpoint",
        "options": {"topic": "orders", "path": "/data/orders"},
    }
    assert not [note for note in make_plan(read_definition(archive, stem="x")).notes if "warning" in note]
    (note,) = make_plan(read_definition({**archive, "master": REMOTE}, stem="x")).notes
    assert "must reach the files in /data/orders." in note and "checkpoint hdfs" not in note
    flow = {
        "bootstrap": "localhost:9092",
        "master": REMOTE,
        "checkpoint": "/shared/checkpoint",
        "sources": {"orders": {"topic": "orders"}},
        "sinks": [{"format": "parquet", "path": "/data/files"}],
    }
    (note,) = make_plan(read_definition(flow, stem="x")).notes
    assert "the checkpoint /shared/checkpoint and the files in /data/files." in note


@pytest.fixture
def archive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Stands for the archive, which takes seconds to make."""
    made = tmp_path / "kept.zip"
    monkeypatch.setattr(spark_cluster, "kept_archive", lambda folder: made)
    return made


def test_a_cluster_gets_the_archive_and_a_python_of_this_version(archive: Path, tmp_path: Path) -> None:
    environment = {"PATH": "/bin"}
    made = prepare_cluster(settings(REMOTE), {"spark.x": "1"}, environment, tmp_path)
    assert made == {
        "spark.x": "1",
        "spark.archives": f"{archive}#{FOLDER}",
        "spark.executorEnv.PYTHONPATH": FOLDER,
    }
    assert environment["PYSPARK_PYTHON"] == VERSION
    # Spark starts the planning workers of the driver with it, too.
    assert environment["PATH"] == f"{Path(sys.executable).parent}{os.pathsep}/bin"
    assert str(Path(spark_cluster.__file__).parents[2]) in environment["PYTHONPATH"].split(os.pathsep)


def test_what_a_person_has_set_stays(archive: Path, tmp_path: Path) -> None:
    given = {"spark.archives": "mine.zip#mine", "spark.executorEnv.PYTHONPATH": "mine"}
    environment = {"PYSPARK_PYTHON": "/opt/python"}
    made = prepare_cluster(settings(REMOTE), given, environment, tmp_path)
    assert made["spark.archives"] == f"{archive}#{FOLDER},mine.zip#mine"
    assert made["spark.executorEnv.PYTHONPATH"] == f"{FOLDER}{os.pathsep}mine"
    assert environment["PYSPARK_PYTHON"] == "/opt/python"
    made = prepare_cluster(settings(REMOTE), {"spark.pyspark.python": "/usr/bin/p"}, environment, tmp_path)
    assert environment["PYSPARK_PYTHON"] == "/usr/bin/p"
    made = prepare_cluster(settings(REMOTE), {INSTALLED: "True"}, environment, tmp_path)
    assert made == {INSTALLED: "True"}


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_a_cluster_on_this_machine_runs_this_python(archive: Path, tmp_path: Path, host: str) -> None:
    environment: dict[str, str] = {}
    made = prepare_cluster(settings(f"spark://{host}:7077"), {}, environment, tmp_path)
    assert environment["PYSPARK_PYTHON"] == sys.executable
    assert made["spark.driver.host"] == "127.0.0.1"
    assert is_local("local") and is_local("local[2]") and not is_local(f"spark://{host}:7077")


def test_what_a_file_imports_from_beside_it_goes_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    assert neighbours_zip(tmp_path / "none.zip") is None and not (tmp_path / "none.zip").exists()
    package = tmp_path / "flow" / "shop_of_test"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from shop_of_test.taxes import TAX\n")
    (package / "taxes.py").write_text("TAX = 0.19\n")
    beside = package.parent
    (beside / "prices_of_test.py").write_text("PRICE = 100\n")
    (beside / "not_imported.py").write_text("raise ValueError\n")
    (beside / "steps.py").write_text(
        "import json\nimport prices_of_test\nfrom shop_of_test import TAX\n"
        "def taxed(record):\n    return prices_of_test.PRICE * (1 + TAX)\n"
    )
    assert load_module(beside / "steps.py").taxed({}) == 119
    assert neighbours() == [beside / "prices_of_test.py", package]
    made = neighbours_zip(tmp_path / "state" / "imported.zip")
    assert made is not None
    with zipfile.ZipFile(made) as opened:
        assert sorted(opened.namelist()) == [
            "prices_of_test.py",
            "shop_of_test/__init__.py",
            "shop_of_test/taxes.py",
        ]


def test_a_file_beside_a_pipeline_takes_no_other_modules_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "colorsys.py").write_text("raise ValueError\n")
    (tmp_path / "steps.py").write_text("import colorsys\nhues = colorsys.rgb_to_hsv\n")
    assert callable(load_module(tmp_path / "steps.py").hues)
    with pytest.raises(BadOption):
        load_module(tmp_path / "steps.txt")
