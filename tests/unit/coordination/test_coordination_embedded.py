"""The embedded store between real processes: killed, stopped, hung in the middle of a commit."""

import os
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.child_programs import environment, program
from tidelog.coordination.embedded import EmbeddedStore
from tidelog.coordination.embedded_file import Busy, Change, StoreFile
from tidelog.coordination.embedded_links import EVERYTHING, _changed_message
from tidelog.coordination.store import ABSENT, Committed, Entry, SessionLost, StoreError, Write

WAIT_SECONDS = 20.0
SESSION_TIMEOUT_MS = 1200


class StoreProcess:
    """Another process with a session on the same file."""

    def __init__(self, path: Path, timeout_ms: int = SESSION_TIMEOUT_MS) -> None:
        self._process = subprocess.Popen(
            [*program("tests.unit.coordination.store_process"), str(path), str(timeout_ms)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        assert self._answer() == "open"

    @property
    def pid(self) -> int:
        return self._process.pid

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def ask(self, line: str) -> str:
        self.send(line)
        return self._answer()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> int:
        """Make sure that the process is gone; its exit code."""
        if self._process.poll() is None:
            self._process.kill()
        return self._process.wait()

    def wait(self) -> int:
        return self._process.wait(WAIT_SECONDS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.sqlite"


@pytest.fixture
def started(path: Path) -> Iterator[Callable[[], StoreProcess]]:
    processes: list[StoreProcess] = []

    def start() -> StoreProcess:
        processes.append(StoreProcess(path))
        return processes[-1]

    yield start
    for process in processes:
        process.end()


@pytest.fixture
def opened(path: Path) -> Iterator[Callable[[], EmbeddedStore]]:
    stores: list[EmbeddedStore] = []

    def open_store() -> EmbeddedStore:
        stores.append(EmbeddedStore(path, session_timeout_ms=SESSION_TIMEOUT_MS))
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


class Gone:
    """Waits until a key is gone, reading only when the watch says so."""

    def __init__(self, store: EmbeddedStore, key: str) -> None:
        self._store, self._key = store, key
        self._called = threading.Event()
        store.watch(key, self._called.set)

    def wait(self) -> float:
        """When it went, by the monotonic clock."""
        deadline = time.monotonic() + WAIT_SECONDS
        while self._store.get(self._key) is not None:
            assert self._called.wait(deadline - time.monotonic()), f"{self._key} is still there"
            self._called.clear()
        return time.monotonic()


def test_a_killed_process_is_noticed_at_once(
    opened: Callable[[], EmbeddedStore], started: Callable[[], StoreProcess]
) -> None:
    first, second = opened(), opened()
    delays = []
    for number in range(3):
        process = started()
        assert process.ask(f"commit live/{number} here ephemeral") == "committed"
        assert process.ask(f"commit kept/{number} here") == "committed"
        watches = [Gone(first, f"live/{number}"), Gone(second, f"live/{number}")]
        killed = time.monotonic()
        process.signal(signal.SIGKILL)
        delays.append(max(watch.wait() for watch in watches) - killed)
    # Far below the session timeout: it was the kernel that told. One slow turn of a busy machine may pass.
    assert min(delays) < 0.1
    assert [entry.key for entry in first.load()] == ["kept/0", "kept/1", "kept/2"]


def test_a_stopped_process_loses_its_session_and_finds_out(
    opened: Callable[[], EmbeddedStore], started: Callable[[], StoreProcess]
) -> None:
    store, process = opened(), started()
    assert process.ask("commit live/1 here ephemeral") == "committed"
    gone = Gone(store, "live/1")
    stopped = time.monotonic()
    process.signal(signal.SIGSTOP)
    silent_seconds = gone.wait() - stopped
    assert SESSION_TIMEOUT_MS / 2000 < silent_seconds < WAIT_SECONDS
    process.send("commit stale yes")
    process.signal(signal.SIGCONT)
    assert process._answer() == "lost"
    assert process.ask("told") == "told"
    assert store.get("stale") is None
    # The others, who were awake all the time, kept their sessions.
    assert isinstance(store.commit([Write("still", b"here")]), Committed)


def test_a_session_that_lapses_while_the_file_is_busy_falls_silent(
    path: Path, opened: Callable[[], EmbeddedStore], started: Callable[[], StoreProcess]
) -> None:
    store, process = opened(), started()
    assert process.ask("commit live/1 here ephemeral") == "committed"
    gone = Gone(store, "live/1")
    busy = sqlite3.connect(path, isolation_level=None)
    busy.execute("BEGIN IMMEDIATE")
    assert process.ask("lapse") == "lapsed"
    time.sleep(SESSION_TIMEOUT_MS / 4000)
    assert store.get("live/1") is not None
    busy.execute("ROLLBACK")
    released = time.monotonic()
    assert gone.wait() - released < SESSION_TIMEOUT_MS / 2000
    busy.close()
    assert process.ask("told") == "told"
    assert process.ask("commit stale yes") == "lost"


def test_a_short_stop_costs_nothing(
    opened: Callable[[], EmbeddedStore], started: Callable[[], StoreProcess]
) -> None:
    store, process = opened(), started()
    assert process.ask("commit live/1 here ephemeral") == "committed"
    process.signal(signal.SIGSTOP)
    store.commit([Write("meanwhile", b"")])
    process.signal(signal.SIGCONT)
    assert process.ask("commit after 1") == "committed"
    assert store.get("live/1") is not None


def test_who_wakes_from_a_long_sleep_does_not_judge_the_others(
    opened: Callable[[], EmbeddedStore], started: Callable[[], StoreProcess]
) -> None:
    store, process = opened(), started()
    store.commit([Write("live/me", b"", ephemeral=True)])
    gone = Gone(store, "live/it")
    assert process.ask("commit live/it here ephemeral") == "committed"
    process.signal(signal.SIGSTOP)
    gone.wait()
    process.signal(signal.SIGCONT)
    assert process.ask("told") == "told"
    assert store.get("live/me") is not None
    assert isinstance(store.commit([Write("a", b"")]), Committed)


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="only Linux tells who holds a lock")
def test_a_process_that_hangs_in_a_commit_is_killed_after_its_timeout(
    opened: Callable[[], EmbeddedStore], started: Callable[[], StoreProcess]
) -> None:
    store, process = opened(), started()
    assert process.ask("commit live/1 here ephemeral") == "committed"
    assert process.ask("hold") == "holding"
    gone = Gone(store, "live/1")
    process.signal(signal.SIGSTOP)
    gone.wait()
    assert process.wait() == -signal.SIGKILL
    assert isinstance(store.commit([Write("a", b"")]), Committed)


def test_who_cannot_write_is_told_who_does(path: Path, started: Callable[[], StoreProcess]) -> None:
    process = started()
    file = StoreFile(path, busy_timeout_ms=5, durable=False)
    assert process.ask("hold") == "holding"
    with pytest.raises(Busy, match=rf"locked \(by process {process.pid}\)"):
        file.end_session("nobody's")
    file.close()


def test_a_commit_is_pushed_to_the_other_processes(
    opened: Callable[[], EmbeddedStore], started: Callable[[], StoreProcess]
) -> None:
    store, process = opened(), started()
    called = threading.Event()
    store.watch("changes", called.set)
    for number in range(10):
        called.clear()
        assert process.ask(f"commit changes {number}") == "committed"
        assert called.wait(WAIT_SECONDS)
        assert store.get("changes") == Entry("changes", b"%d" % number, number + 1)


def test_a_commit_that_nobody_told_of_is_noticed_all_the_same(
    path: Path, opened: Callable[[], EmbeddedStore]
) -> None:
    """As when a process is stopped between its commit and the telling."""
    store = opened()
    called = threading.Event()
    store.watch("a", called.set)
    file = StoreFile(path, busy_timeout_ms=5000, durable=False)
    file.commit(store._session.id, [Write("a", b"")])
    file.close()
    assert called.wait(WAIT_SECONDS)
    assert store.get("a") is not None


def test_what_dead_processes_left_blocks_nobody(
    path: Path, opened: Callable[[], EmbeddedStore], started: Callable[[], StoreProcess]
) -> None:
    for number in range(2):
        process = started()
        assert process.ask(f"commit live/{number} x ephemeral") == "committed"
        assert process.ask("commit kept x") == "committed"
        assert process.ask("hold") == "holding"
        process.signal(signal.SIGKILL)
        process.wait()
    folder = path.with_name("metadata.sqlite.sessions")
    assert len(list(folder.iterdir())) >= 1
    (folder / "0123456789abcdef.sock").write_text("no socket at all")
    os.utime(folder / "0123456789abcdef.sock", (1, 1))
    store = opened()
    # The keys of the dead are gone before the first read, and so are their sockets.
    assert [entry.key for entry in store.load()] == ["kept"]
    assert [socket.name for socket in folder.iterdir()] == [f"{store._session.id}.sock"]


def test_a_closed_process_leaves_nothing(
    path: Path, opened: Callable[[], EmbeddedStore], started: Callable[[], StoreProcess]
) -> None:
    store, process = opened(), started()
    assert process.ask("commit live/1 x ephemeral") == "committed"
    gone = Gone(store, "live/1")
    assert process.ask("close") == "closed"
    gone.wait()
    store.close()
    assert list(path.with_name("metadata.sqlite.sessions").iterdir()) == []


def test_a_process_that_closes_leaves_the_journal_of_the_others(
    path: Path, started: Callable[[], StoreProcess], opened: Callable[[], EmbeddedStore]
) -> None:
    """The last one to close deletes it; who is the last, SQLite knows by the locks on the file."""
    store = opened()
    store.commit([Write("before", b"1")])
    assert started().ask("close") == "closed"
    assert path.with_name(path.name + "-wal").exists()
    assert isinstance(store.commit([Write("after", b"2")]), Committed)
    assert started().ask("get after") == "2"


def test_a_path_may_be_long(tmp_path: Path) -> None:
    path = tmp_path / ("long" * 30) / "metadata.sqlite"
    first, second = EmbeddedStore(path), EmbeddedStore(path)
    called = threading.Event()
    first.watch("a", called.set)
    second.commit([Write("a", b"")])
    assert called.wait(WAIT_SECONDS)
    first.close()
    second.close()


def test_a_file_that_is_no_store_is_refused(path: Path) -> None:
    path.write_bytes(b"this is not a database, however long it may be" * 50)
    with pytest.raises(StoreError):
        EmbeddedStore(path)


def test_a_file_of_a_newer_version_is_refused(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(StoreError, match="newer version"):
        EmbeddedStore(path)


def test_a_file_of_the_first_version_is_taken_over(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute(
        "CREATE TABLE entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL)"
    )
    connection.execute("INSERT INTO entries VALUES ('cluster', 'id', 3)")
    connection.execute("PRAGMA user_version=1")
    connection.commit()
    connection.close()
    store = EmbeddedStore(path)
    assert store.commit([Write("cluster", b"new", 3), Write("live/1", b"", ABSENT, True)]) == Committed(
        {"cluster": 4, "live/1": 1}
    )
    store.close()


def test_the_store_survives_a_copy_taken_without_closing(tmp_path: Path, path: Path) -> None:
    """A power cut leaves the files as they are: the copy stands for what the next process finds."""
    first = EmbeddedStore(path)
    first.commit([Write("a", b"1"), Write("b", b"2"), Write("live/1", b"", ephemeral=True)])
    killed = tmp_path / "killed"
    killed.mkdir()
    for file in tmp_path.glob("metadata.sqlite*"):
        if file.is_file():
            (killed / file.name).write_bytes(file.read_bytes())
    again = EmbeddedStore(killed / "metadata.sqlite")
    assert [entry.key for entry in again.load()] == ["a", "b"]
    again.close()
    first.close()


def test_many_stores_may_open_a_new_file_together(path: Path) -> None:
    stores: list[EmbeddedStore] = []
    threads = [threading.Thread(target=lambda: stores.append(EmbeddedStore(path))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stores) == 6
    called = [threading.Event() for _ in stores]
    for store, event in zip(stores, called, strict=True):
        store.watch("a", event.set)
    stores[0].commit([Write("a", b"")])
    assert all(event.wait(WAIT_SECONDS) for event in called)
    for store in stores:
        store.close()


def test_a_change_of_many_keys_is_told_in_few_bytes() -> None:
    small = _changed_message(Change(("a b", "c"), 7))
    assert small == b"changed 7 a%20b c\n"
    large = _changed_message(Change(tuple(f"partitions/orders/{number}" for number in range(5000)), 8))
    assert large == f"changed 8 {EVERYTHING}\n".encode()


def test_nobody_else_can_read_the_store_or_take_part(path: Path) -> None:
    """Whatever the umask says, and also where a folder was there before."""
    sessions = path.with_name(path.name + ".sessions")
    path.parent.mkdir(parents=True, exist_ok=True)
    before = os.umask(0)
    try:
        sessions.mkdir(mode=0o777)
        store = EmbeddedStore(path)
        store.commit([Write("users/alice", b"what checks a password")])
        files = [path, *path.parent.glob(path.name + "-*")]
        assert len(files) >= 2, "the journal is there too"
        assert [file.stat().st_mode & 0o077 for file in files] == [0] * len(files)
        assert sessions.stat().st_mode & 0o777 == 0o700
        store.close()
    finally:
        os.umask(before)


def test_links_that_fail_end_the_session_and_another_one_goes_on(
    opened: Callable[[], EmbeddedStore], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A thread that died in silence would leave a broker that hears of no change."""
    store = opened()
    lost = threading.Event()
    store.on_session_lost(lost.set)

    def fail(*arguments: object, **more: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(store, "look_around", fail)
    assert lost.wait(10)
    monkeypatch.undo()
    assert "the links of the store failed" in caplog.text
    with pytest.raises(SessionLost):
        store.get("a")
    other = opened()
    heard = threading.Event()
    other.watch("a", heard.set)
    other.commit([Write("a", b"1")])
    assert heard.wait(10)
