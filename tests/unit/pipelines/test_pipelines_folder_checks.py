"""`plan` says which folders of this machine cannot be written, with the line of the file, and makes none."""

from pathlib import Path

import pytest

from tidelog.pipelines.definition import load_definition
from tidelog.pipelines.folder_checks import check_folders, why_not_written
from tidelog.pipelines.planning import make_plan

FLOW = """\
bootstrap: localhost:9092
checkpoint: {checkpoint}
master: {master}
sources: {{orders: {{topic: orders}}}}
sinks:
  - {{topic: out}}
  - format: parquet
    path: {path}
"""


def problems(folder: Path, text: str) -> list[str]:
    file = folder / "big.yaml"
    file.write_text(text)
    definition = load_definition(file)
    found = check_folders(make_plan(definition)).problems
    return [one.words(definition.origin, definition.lines) for one in found]


def flow(folder: Path, path: object, checkpoint: object = None, master: str = "local[*]") -> list[str]:
    chosen = folder / "checkpoint" if checkpoint is None else checkpoint
    return problems(folder, FLOW.format(path=path, checkpoint=chosen, master=master))


def test_a_folder_that_can_be_written_is_not_made(tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    assert flow(tmp_path, tmp_path / "a" / "b") == []
    assert flow(tmp_path, f"file://{tmp_path}/a%20b") == []
    assert sorted(path for path in tmp_path.iterdir() if path.name != "big.yaml") == before


@pytest.mark.parametrize("path", ["/proc/nope", "file:///proc/nope", "file:/proc/nope"])
def test_what_the_kernel_shows_is_not_written(tmp_path: Path, path: str) -> None:
    assert flow(tmp_path, path) == [
        f"big.yaml:8: {path} cannot be written: nobody can make files in /proc, which the kernel shows"
    ]
    (said,) = flow(tmp_path, tmp_path, checkpoint="/proc/1/nope")
    assert said.startswith("big.yaml:2: /proc/1/nope cannot be written: nobody can make files in /proc/1")


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (said,) = flow(tmp_path, tmp_path / "file" / "x")
    assert said.endswith(f"cannot be written: {tmp_path}/file is not a folder")
    (tmp_path / "lost").symlink_to(tmp_path / "nowhere")
    (said,) = flow(tmp_path, tmp_path / "lost")
    assert said.endswith("lost is not a folder")


def test_ready_pipelines(tmp_path: Path) -> None:
    head = f"bootstrap: localhost:9092\ncheckpoint: {tmp_path}/c\n"
    for kind, option in (("archive", "path"), ("table", "path"), ("file-sink", "path")):
        (said,) = problems(tmp_path, f"{head}kind: {kind}\noptions:\n  topic: orders\n  {option}: /proc/x\n")
        assert said.startswith("big.yaml:6: /proc/x cannot be written"), kind
    moved = (
        "kind: file-source\noptions: {path: /proc, to: orders, when_done: archive, archive_path: /proc/x}\n"
    )
    (said,) = problems(tmp_path, head + moved)
    assert said.startswith("big.yaml:4: /proc/x cannot be written"), "and /proc is only read"


def test_other_machines_are_not_guessed_at(tmp_path: Path) -> None:
    assert flow(tmp_path, "s3a://bucket/proc/x") == []
    assert flow(tmp_path, "/proc/x", master="spark://10.0.0.1:7077") == []


def test_whose_folder_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"none {tmp_path}/a\\040b sysfs rw 0 0\nnone / ext4 rw 0 0\n")
    (tmp_path / "a b").mkdir()
    assert why_not_written(tmp_path / "a b" / "c", mounts) is not None
    assert why_not_written(tmp_path, mounts) is None
    assert why_not_written(tmp_path, tmp_path / "nothing") is None
    # Root passes every right, so the answer of the system is what is put in its place.
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != tmp_path)
    assert why_not_written(tmp_path / "x", mounts) == f"this user may not write {tmp_path}"
