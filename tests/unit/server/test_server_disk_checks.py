"""Which disk hangs: work that takes long raises a suspicion, an answer takes it back."""

import threading
import time
from pathlib import Path

import pytest

from tidelog.model.settings import BrokerSettings
from tidelog.server.disk_checks import BLOCK, FILE_NAME, DiskChecks, write_block
from tidelog.server.process import BrokerThread
from tidelog.server.watchdog import where

INTERVAL = 0.02
WAIT_SECONDS = 10.0


class Disk:
    """Answers while `answers` is set."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.asked: list[Path] = []
        self.work_seconds = 0.0
        self.in_use = ["/a", "/b"]

    def check(self, folder: Path) -> None:
        self.asked.append(folder)
        if folder == Path("/b"):
            assert self.answers.wait(WAIT_SECONDS)

    def checks(self) -> DiskChecks:
        return DiskChecks(
            lambda: self.in_use, lambda: self.work_seconds, interval_seconds=INTERVAL, check=self.check
        )


def test_while_all_work_is_quick_no_disk_is_asked() -> None:
    disk = Disk()
    checks = disk.checks()
    disk.work_seconds = INTERVAL / 2
    for _ in range(3):
        assert checks.silent_ms() == 0
        time.sleep(INTERVAL)
    assert disk.asked == []


def test_a_disk_that_answers_is_not_silent_however_long_the_work_takes() -> None:
    disk = Disk()
    checks = disk.checks()
    time.sleep(INTERVAL)
    disk.work_seconds = 100.0
    deadline = time.monotonic() + WAIT_SECONDS
    while len(disk.asked) < 8:
        assert checks.silent_ms() < WAIT_SECONDS * 1000
        assert time.monotonic() < deadline
        time.sleep(INTERVAL / 4)
    while checks.hanging():
        time.sleep(INTERVAL / 4)
    assert set(disk.asked) == {Path("/a"), Path("/b")}
    assert checks.silent_ms() < 2_000


def test_a_disk_that_hangs_is_silent_since_its_work_began_and_is_asked_once() -> None:
    disk = Disk()
    checks = disk.checks()
    disk.answers.clear()
    time.sleep(INTERVAL * 2)
    began = time.monotonic()
    while (seconds := time.monotonic() - began) < INTERVAL * 10:
        disk.work_seconds = seconds
        checks.silent_ms()
        time.sleep(INTERVAL / 4)
    disk.work_seconds = time.monotonic() - began
    silent_ms = checks.silent_ms()
    assert INTERVAL * 9_000 <= silent_ms <= (time.monotonic() - began) * 1000
    assert checks.hanging() == ["/b"]
    assert disk.asked.count(Path("/b")) == 1
    # The work came back with an error, say; the disk still owes an answer.
    disk.work_seconds = 0.0
    assert checks.silent_ms() > 0
    disk.answers.set()
    deadline = time.monotonic() + WAIT_SECONDS
    while checks.silent_ms():
        assert time.monotonic() < deadline
        time.sleep(INTERVAL / 4)
    assert checks.hanging() == []


def test_a_directory_out_of_use_is_not_asked_and_what_it_owes_is_forgotten() -> None:
    disk = Disk()
    checks = disk.checks()
    disk.answers.clear()
    time.sleep(INTERVAL * 2)
    disk.work_seconds = 10.0
    checks.silent_ms()
    assert "/b" in checks.hanging()
    assert checks.silent_ms() > 0
    disk.in_use.remove("/b")  # it has failed
    asked = disk.asked.count(Path("/b"))
    deadline = time.monotonic() + WAIT_SECONDS
    while disk.asked.count(Path("/a")) < 3:
        assert time.monotonic() < deadline
        checks.silent_ms()
        time.sleep(INTERVAL / 4)
    disk.work_seconds = 0.0
    while checks.hanging():
        assert time.monotonic() < deadline
    assert checks.silent_ms() == 0 and disk.asked.count(Path("/b")) == asked
    disk.answers.set()


def test_a_broker_asks_the_directories_that_it_uses(tmp_path: Path) -> None:
    folders = [str(tmp_path / name) for name in ("a", "b")]
    values = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": ",".join(folders)}
    thread = BrokerThread(BrokerSettings.resolve(values))
    thread.start()
    try:
        assert thread.node is not None and thread.node.broker is not None
        directories, checks = thread.node.broker.log_directories, thread.node.broker.liveness.disks
        assert isinstance(checks, DiskChecks)
        assert sorted(checks._in_use()) == folders
        directories.fail(directories.directories[1], "EIO")
        assert checks._in_use() == folders[:1]
    finally:
        thread.stop()


def test_an_error_is_an_answer() -> None:
    def fail(folder: Path) -> None:
        raise OSError(f"{folder} is broken")

    checks = DiskChecks(lambda: ["/a"], lambda: 100.0, interval_seconds=0.0, check=fail)
    checks.prepare()
    checks.silent_ms()
    deadline = time.monotonic() + WAIT_SECONDS
    while checks.hanging():
        assert time.monotonic() < deadline
    assert checks.silent_ms() < 2_000


def test_the_file_keeps_its_size(tmp_path: Path) -> None:
    for _ in range(3):
        write_block(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == BLOCK
    with pytest.raises(OSError):
        write_block(tmp_path / "missing")


def test_where_a_thread_is_reads_from_the_inside_out() -> None:
    def inner() -> str:
        import sys

        return where(sys._getframe())

    assert where(None) == "an unknown place"
    assert inner().startswith("inner (test_server_disk_checks.py:")
    assert " < test_where_a_thread_is" in inner()
