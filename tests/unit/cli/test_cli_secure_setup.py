"""What `tidelog up --secure` writes: for its user alone, whatever the umask says, and the same again."""

import os
from pathlib import Path

from tidelog.cli.secure_setup import prepare


def test_everything_is_for_its_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        setup = prepare(tmp_path / "new" / "data", ["127.0.0.1"])
    finally:
        os.umask(before)
    for folder in (tmp_path / "new" / "data", setup.folder):
        assert folder.stat().st_mode & 0o777 == 0o700
    files = list(setup.folder.iterdir())
    assert len(files) >= 4
    assert [path.name for path in files if path.stat().st_mode & 0o077] == []


def test_a_second_time_changes_nothing(tmp_path: Path) -> None:
    folder = prepare(tmp_path, ["127.0.0.1"]).folder
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    mode = tmp_path.stat().st_mode
    prepare(tmp_path, ["127.0.0.1"])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert tmp_path.stat().st_mode == mode
