"""The archive for executors: what it holds, what is left out, and that a bare Python imports all from it."""

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

from tidelog.pipelines import executor_archive
from tidelog.pipelines.executor_archive import (
    DISTRIBUTIONS,
    FOLDER,
    OPTIONAL_DISTRIBUTIONS,
    NotInstalled,
    driver_environment,
    kept_archive,
    main,
    spark_settings,
)

#: everything that a task imports, save what Spark itself brings
NEEDED = (
    "tidelog.pipelines.arrow_stream, tidelog.pipelines.record_batches, tidelog.client.transactional_writer,"
    " kio.serial"
)


def test_a_python_without_packages_has_all_it_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = tmp_path / "executors.zip"
    assert main([str(archive), "--leave-out", "pyarrow,numpy,pandas"]) == 0
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
    program = f"import {NEEDED}; print(tidelog.__file__)"
    if importlib.util.find_spec("psycopg_binary") is not None:
        program += "; import psycopg; assert psycopg.pq.__impl__ == 'binary'"
    command = [sys.executable, "-S", "-c", program]
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


LARGE = tuple(name for name in (*DISTRIBUTIONS, *OPTIONAL_DISTRIBUTIONS) if name != "kio")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small package in place of ours."""
    folder = tmp_path / "packages" / "shipped_in_test"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.setattr(executor_archive, "PACKAGES", ("shipped_in_test",))
    monkeypatch.setattr(executor_archive, "_held", [])
    return folder


def let_go() -> None:
    """As if the drivers of the archives had ended."""
    for descriptor in executor_archive._held:
        os.close(descriptor)
    executor_archive._held.clear()


def test_an_archive_is_made_again_when_something_in_it_has_changed(tmp_path: Path, package: Path) -> None:
    first = kept_archive(tmp_path / "kept", LARGE)
    seen = first.stat()
    assert kept_archive(tmp_path / "kept", LARGE) == first
    assert (first.stat().st_ino, first.stat().st_mtime_ns) == (seen.st_ino, seen.st_mtime_ns)
    (package / "more.py").write_text("MORE = 1")
    second = kept_archive(tmp_path / "kept", LARGE)
    with zipfile.ZipFile(second) as opened:
        assert "shipped_in_test/more.py" in opened.namelist()
    # A driver that runs gives the first one to executors that come later.
    assert first.exists() and second != first
    let_go()
    (package / "more.py").write_text("MORE = 20")
    third = kept_archive(tmp_path / "kept", LARGE)
    assert list((tmp_path / "kept").iterdir()) == [third]
    let_go()


def test_what_is_installed_comes_along_and_what_must_be_is_missed(
    tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_archive, "DISTRIBUTIONS", ("kio",))
    monkeypatch.setattr(executor_archive, "OPTIONAL_DISTRIBUTIONS", ("crc32c", "nowhere-to-be-found"))
    target = executor_archive.build(tmp_path / "x.zip")
    with zipfile.ZipFile(target) as opened:
        assert {name.partition("/")[0] for name in opened.namelist()} >= {"kio", "crc32c"}
    monkeypatch.setattr(executor_archive, "DISTRIBUTIONS", ("nowhere-to-be-found",))
    with pytest.raises(NotInstalled, match=r"nowhere-to-be-found is not installed .*'tidelog\[spark\]"):
        kept_archive(tmp_path / "kept", ())
    assert list((tmp_path / "kept").iterdir()) == []
