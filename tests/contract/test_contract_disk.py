"""The contract of the disk port, run over every implementation."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.simulated_disk import PowerCut, SimulatedDisk
from tidelog.storage.disk import Disk, OsDisk


@pytest.fixture(params=["os", "simulated"])
def disk(request: pytest.FixtureRequest) -> Disk:
    return OsDisk() if request.param == "os" else SimulatedDisk(seed=1)


@pytest.fixture
def root(disk: Disk, tmp_path: Path) -> str:
    path = str(tmp_path / "data")
    disk.make_directory(path)
    return path


def write(disk: Disk, path: str, data: bytes) -> None:
    file = disk.open(path, create=True)
    file.append(data)
    file.close()


def read(disk: Disk, path: str) -> bytes:
    file = disk.open(path, create=False)
    try:
        return file.read(0, file.size_bytes)
    finally:
        file.close()


def test_open_makes_an_empty_file_only_when_asked(disk: Disk, root: str) -> None:
    path = f"{root}/a"
    with pytest.raises(FileNotFoundError):
        disk.open(path, create=False)
    file = disk.open(path, create=True)
    assert (file.path, file.size_bytes) == (path, 0)
    assert disk.exists(path)
    assert not disk.is_directory(path)


def test_open_with_create_keeps_what_is_there(disk: Disk, root: str) -> None:
    write(disk, f"{root}/a", b"before")
    file = disk.open(f"{root}/a", create=True)
    assert file.size_bytes == 6
    file.append(b" after")
    assert read(disk, f"{root}/a") == b"before after"


def test_open_in_a_missing_directory_fails(disk: Disk, root: str) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open(f"{root}/missing/a", create=True)


def test_open_of_a_directory_fails(disk: Disk, root: str) -> None:
    with pytest.raises(IsADirectoryError):
        disk.open(root, create=False)


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_append_takes_any_bytes(disk: Disk, root: str, wrap: Callable[[bytes], bytes]) -> None:
    file = disk.open(f"{root}/a", create=True)
    file.append(wrap(b"abc"))
    file.append(wrap(b""))
    file.append(wrap(b"def"))
    assert file.size_bytes == 6
    assert file.read(0, 6) == b"abcdef"


def test_many_pieces_are_appended_as_one(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/a", create=True)
    file.append(b"0")
    file.append_many([memoryview(b"abc"), b"", bytearray(b"def")])
    assert file.size_bytes == 7 and file.read(0, 7) == b"0abcdef"
    file.append(b"1")
    assert file.read(0, 8) == b"0abcdef1"


def test_reads_start_anywhere_and_are_short_only_at_the_end(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/a", create=True)
    file.append(b"0123456789")
    assert file.read(3, 4) == b"3456"
    assert file.read(8, 100) == b"89"
    assert file.read(10, 5) == b""
    assert file.read(1000, 5) == b""


def test_truncate_and_append_again(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/a", create=True)
    file.append(b"0123456789")
    file.truncate(4)
    assert file.size_bytes == 4
    assert file.read(0, 100) == b"0123"
    file.append(b"new")
    file.sync()
    assert file.read(0, 100) == b"0123new"
    assert disk.size_bytes(f"{root}/a") == 7


def test_room_that_is_reserved_changes_nothing_to_be_seen(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/a", create=True)
    file.append(b"before")
    file.reserve(1 << 20)
    file.append(b" after")
    assert file.size_bytes == disk.size_bytes(f"{root}/a") == 12
    file.release()
    file.append(b" all")
    assert read(disk, f"{root}/a") == b"before after all"


def test_reserved_room_is_taken_and_given_back(tmp_path: Path) -> None:
    file = OsDisk().open(str(tmp_path / "a"), create=True)
    file.append(b"x" * 4096)
    file.reserve(1 << 20)
    taken_bytes = (tmp_path / "a").stat().st_blocks * 512
    file.release()
    left_bytes = (tmp_path / "a").stat().st_blocks * 512
    if taken_bytes < 1 << 20:
        pytest.skip("this file system cannot reserve room")
    assert left_bytes < 1 << 16


def test_a_file_outlives_its_name(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/a", create=True)
    file.append(b"one")
    disk.rename(f"{root}/a", f"{root}/b")
    file.append(b"two")
    assert read(disk, f"{root}/b") == b"onetwo"
    disk.remove(f"{root}/b")
    assert file.read(0, 6) == b"onetwo"
    assert disk.list(root) == []


def test_a_closed_file_refuses_work(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/a", create=True)
    file.close()
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.read(0, 1)
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.append(b"x")


def test_list_is_sorted_and_shallow(disk: Disk, root: str) -> None:
    for name in ("b", "a", "c"):
        write(disk, f"{root}/{name}", b"")
    disk.make_directory(f"{root}/d/e/f")
    assert disk.list(root) == ["a", "b", "c", "d"]
    assert disk.list(f"{root}/d") == ["e"]
    assert disk.is_directory(f"{root}/d/e/f")
    disk.make_directory(f"{root}/d/e")
    assert disk.list(f"{root}/d/e") == ["f"]
    with pytest.raises(FileNotFoundError):
        disk.list(f"{root}/missing")


def test_rename_replaces_a_file_in_one_step(disk: Disk, root: str) -> None:
    write(disk, f"{root}/old", b"old")
    write(disk, f"{root}/new", b"new")
    disk.rename(f"{root}/new", f"{root}/old")
    assert disk.list(root) == ["old"]
    assert read(disk, f"{root}/old") == b"new"
    with pytest.raises(FileNotFoundError):
        disk.rename(f"{root}/new", f"{root}/old")


def test_rename_of_a_directory_takes_its_files_along(disk: Disk, root: str) -> None:
    disk.make_directory(f"{root}/topic-0")
    write(disk, f"{root}/topic-0/log", b"data")
    disk.rename(f"{root}/topic-0", f"{root}/topic-0.delete")
    assert read(disk, f"{root}/topic-0.delete/log") == b"data"
    assert not disk.exists(f"{root}/topic-0")


def test_rename_onto_a_directory_with_files_fails(disk: Disk, root: str) -> None:
    disk.make_directory(f"{root}/a")
    disk.make_directory(f"{root}/b")
    write(disk, f"{root}/b/file", b"")
    with pytest.raises(OSError, match="not empty"):
        disk.rename(f"{root}/a", f"{root}/b")


def test_remove(disk: Disk, root: str) -> None:
    write(disk, f"{root}/a", b"x")
    disk.remove(f"{root}/a")
    assert not disk.exists(f"{root}/a")
    with pytest.raises(FileNotFoundError):
        disk.remove(f"{root}/a")
    with pytest.raises(FileNotFoundError):
        disk.size_bytes(f"{root}/a")


def test_remove_tree(disk: Disk, root: str) -> None:
    disk.make_directory(f"{root}/d/e")
    write(disk, f"{root}/d/a", b"x")
    write(disk, f"{root}/d/e/b", b"y")
    disk.remove_tree(f"{root}/d")
    disk.remove_tree(f"{root}/d")
    assert disk.list(root) == []


def test_replace_atomically(disk: Disk, root: str) -> None:
    disk.replace_atomically(f"{root}/a", b"first")
    disk.replace_atomically(f"{root}/a", b"2")
    assert read(disk, f"{root}/a") == b"2"
    assert disk.list(root) == ["a"]


def test_sync_directory_needs_a_directory(disk: Disk, root: str) -> None:
    disk.sync_directory(root)
    with pytest.raises(FileNotFoundError):
        disk.sync_directory(f"{root}/missing")


def test_a_lock_is_held_until_its_file_is_closed(disk: Disk, root: str) -> None:
    held = disk.lock(f"{root}/.lock")
    with pytest.raises(BlockingIOError):
        disk.lock(f"{root}/.lock")
    held.close()
    disk.lock(f"{root}/.lock").close()


# What only a simulated disk can be made to show.


def test_a_power_cut_keeps_what_was_synced() -> None:
    for seed in range(50):
        disk = SimulatedDisk(seed)
        disk.make_directory("/data")
        disk.sync_directory("/")
        file = disk.open("/data/log", create=True)
        file.append(b"a" * 5000)
        file.sync()
        disk.sync_directory("/data")
        file.append(b"b" * 9000)
        found = read(disk.crash(), "/data/log")
        assert found[:5000] == b"a" * 5000
        assert len(found) <= 14000
        assert set(found[5000:]) <= {ord("b"), 0}


def test_a_power_cut_has_every_outcome_for_unsynced_bytes() -> None:
    outcomes = set()
    for seed in range(100):
        disk = SimulatedDisk(seed)
        file = disk.open("/log", create=True)
        disk.sync_directory("/")
        file.append(b"x" * 20000)
        found = read(disk.crash(), "/log")
        if not found:
            outcomes.add("lost")
        elif found == b"x" * 20000:
            outcomes.add("kept")
        elif b"\0" not in found:
            outcomes.add("torn")
        else:
            outcomes.add("holes")
    assert outcomes == {"lost", "kept", "torn", "holes"}


def test_a_power_cut_may_undo_a_truncation_until_it_is_synced() -> None:
    lengths = set()
    for seed in range(60):
        disk = SimulatedDisk(seed)
        file = disk.open("/log", create=True)
        disk.sync_directory("/")
        file.append(b"0123456789")
        file.sync()
        file.truncate(5)
        if seed % 2:
            file.sync()
            assert read(disk.crash(), "/log") == b"01234"
        else:
            lengths.add(len(read(disk.crash(), "/log")))
    assert lengths == {5, 10}


def test_a_power_cut_may_undo_names_until_they_are_synced() -> None:
    found = set()
    for seed in range(60):
        disk = SimulatedDisk(seed)
        disk.make_directory("/data")
        write(disk, "/data/a", b"")
        disk.sync_directory("/data")
        disk.sync_directory("/")
        disk.rename("/data/a", "/data/b")
        write(disk, "/data/c", b"")
        found.add(tuple(disk.crash().list("/data")))
    assert found == {("a",), ("b",), ("a", "c"), ("b", "c")}


def test_replace_atomically_leaves_the_old_or_the_new_content_at_every_power_cut() -> None:
    contents = set()
    for cut in range(1, 12):
        for seed in range(20):
            disk = SimulatedDisk(seed)
            disk.replace_atomically("/a", b"old")
            disk.cut_power_at(cut)
            try:
                disk.replace_atomically("/a", b"new")
            except PowerCut:
                contents.add(read(disk.crash(), "/a"))
            else:
                assert read(disk.crash(), "/a") == b"new"
    assert contents == {b"old", b"new"}


def test_the_same_seed_finds_the_same_disk() -> None:
    def run(seed: int) -> list[tuple[str, bytes]]:
        disk = SimulatedDisk(seed)
        for name in "abcdef":
            write(disk, f"/{name}", name.encode() * 9999)
        after = disk.crash()
        return [(name, read(after, f"/{name}")) for name in after.list("/")]

    assert run(7) == run(7)
    assert len({tuple(run(seed)) for seed in range(10)}) > 5


def test_the_death_of_the_process_loses_no_bytes_but_all_locks_and_files() -> None:
    disk = SimulatedDisk(0)
    file = disk.lock("/lock")
    file.append(b"unsynced")
    after = disk.kill()
    assert read(after, "/lock") == b"unsynced"
    after.lock("/lock")
    with pytest.raises(PowerCut, match="has ended"):
        file.append(b"x")


def test_a_full_disk_refuses_appends_whole_until_space_returns() -> None:
    disk = SimulatedDisk(0)
    disk.capacity_bytes = 100
    write(disk, "/other", b"x" * 60)
    file = disk.open("/log", create=True)
    file.append(b"y" * 30)
    with pytest.raises(OSError, match="space") as caught:
        file.append(b"z" * 11)
    assert caught.value.errno == errno.ENOSPC
    assert file.read(0, 100) == b"y" * 30
    disk.remove("/other")
    file.append(b"z" * 11)
    assert file.size_bytes == 41


def test_the_operation_asked_for_fails_once_and_without_effect() -> None:
    disk = SimulatedDisk(0)
    file = disk.open("/log", create=True)
    disk.fail_operation(2)
    file.append(b"one")
    with pytest.raises(OSError, match="injected into append"):
        file.append(b"two")
    file.append(b"three")
    assert file.read(0, 100) == b"onethree"
