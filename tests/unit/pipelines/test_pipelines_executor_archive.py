"""The archive for executors: what it holds, what is left out, and that a bare Python imports all from it."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

from tidelog.pipelines.executor_archive import FOLDER, driver_environment, main, spark_settings

#: everything that a task imports, save what Spark itself brings
NEEDED = (
    "tidelog.pipelines.arrow_stream, tidelog.pipelines.record_batches, tidelog.client.transactional_writer,"
    " kio.serial"
)


def test_a_python_without_packages_has_all_it_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = tmp_path / "executors.zip"
    assert main([str(archive), "--leave-out", "pyarrow,numpy"]) == 0
    told = capsys.readouterr().out
    assert f"spark.archives={archive}#{FOLDER}" in told and "export PYSPARK_PYTHON=" in told
    with zipfile.ZipFile(archive) as opened:
        names = opened.namelist()
        opened.extractall(tmp_path / FOLDER)
    assert len(names) == len(set(names))
    assert "pyspark_tidelog/__init__.py" in names
    assert not any(
        name.endswith(".pyc") or name.startswith(("pyarrow/", "numpy/", "/", "..")) for name in names
    )
    # -S: no site-packages. What was left out comes from here, as it would from the executor's Python.
    installed = Path(pa.__file__).parent.parent
    for name in ("numpy", "pyarrow", "numpy.libs", "pyarrow.libs"):
        if (installed / name).exists():
            (tmp_path / FOLDER / name).symlink_to(installed / name)
    command = [sys.executable, "-S", "-c", f"import {NEEDED}; print(tidelog.__file__)"]
    ended = subprocess.run(
        command, env={"PYTHONPATH": str(tmp_path / FOLDER)}, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == str(tmp_path / FOLDER / "tidelog" / "__init__.py")


def test_what_spark_is_told(tmp_path: Path) -> None:
    assert spark_settings(tmp_path / "x.zip") == {
        "spark.archives": f"{tmp_path}/x.zip#{FOLDER}",
        "spark.executorEnv.PYTHONPATH": FOLDER,
    }
    environment = driver_environment("python3.11")
    assert environment["PYSPARK_PYTHON"] == "python3.11"
    assert str(Path(sys.modules["pytest"].__file__ or "").parent.parent) in environment["PYTHONPATH"].split(
        ":"
    )


def test_only_what_is_in_it_can_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path / "x.zip"), "--leave-out", "pyspark"])
    assert "pyspark is not in the archive" in capsys.readouterr().err
