"""Whether the end of the logs can be trusted at a start: clean stops, killed processes, power cuts."""

from pathlib import Path

import pytest

from tests.support.simulated_disk import SimulatedDisk
from tidelog.model.identifiers import TopicPartition
from tidelog.model.log_config import LogConfig
from tidelog.storage.boot_id import BOOT_ID, forget_boot_id, kept_its_end, note_boot_id, read_boot_id
from tidelog.storage.disk import BOOT_ID_FILE_VARIABLE, OsDisk
from tidelog.storage.log_directories import LogDirectories


def start(disk: SimulatedDisk, *paths: str) -> LogDirectories:
    return LogDirectories.open(disk, paths or ("/a", "/b"), cluster_id="c", node_id=1)


def test_new_directories_and_killed_processes_have_lost_nothing() -> None:
    disk = SimulatedDisk()
    assert start(disk).kept_their_ends
    assert start(disk.kill()).kept_their_ends


def test_a_clean_stop_survives_a_power_cut() -> None:
    disk = SimulatedDisk()
    start(disk).close()
    disk = disk.crash()
    directories = start(disk)
    assert directories.kept_their_ends
    assert start(disk.kill()).kept_their_ends, "the new boot was noted"


def test_a_power_cut_is_told_until_the_cluster_knows_of_it() -> None:
    disk = SimulatedDisk()
    start(disk)
    disk = disk.crash()
    assert not start(disk).kept_their_ends
    disk = disk.kill()
    directories = start(disk)
    assert not directories.kept_their_ends, "killed before it could tell anybody"
    directories.note_boot()
    assert start(disk.kill()).kept_their_ends


def test_one_directory_in_doubt_is_enough() -> None:
    disk = SimulatedDisk()
    start(disk, "/a", "/b")
    disk = disk.kill()
    forget_boot_id(disk, "/b")
    assert not start(disk, "/a", "/b").kept_their_ends


def test_a_new_directory_beside_old_ones_is_no_doubt() -> None:
    disk = SimulatedDisk()
    start(disk, "/a").close()
    assert start(disk.kill(), "/a", "/b").kept_their_ends


def test_a_failed_sync_is_not_forgotten_by_a_restart() -> None:
    disk = SimulatedDisk()
    directories = start(disk)
    place = TopicPartition("t", 0)
    directories.open_log(place, LogConfig(), now_ms=0)
    directories.sync_failed(place)
    assert not start(disk.kill()).kept_their_ends


def test_a_system_without_boot_ids_trusts_clean_stops_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedDisk, "boot_id", lambda self: "")
    disk = SimulatedDisk()
    start(disk).close()
    disk = disk.kill()
    assert start(disk).kept_their_ends
    disk = disk.kill()
    assert not start(disk).kept_their_ends


def test_the_operating_system_tells_one_boot_from_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = OsDisk()
    assert disk.boot_id() == disk.boot_id()
    boots = tmp_path / "boot"
    monkeypatch.setenv(BOOT_ID_FILE_VARIABLE, str(boots))
    assert disk.boot_id() == ""
    boots.write_text("one\n")
    note_boot_id(disk, str(tmp_path))
    assert read_boot_id(disk, str(tmp_path)) == "one"
    assert (tmp_path / BOOT_ID).read_text() == "one\n"
    assert kept_its_end(disk, str(tmp_path))
    boots.write_text("two\n")
    assert not kept_its_end(disk, str(tmp_path))
