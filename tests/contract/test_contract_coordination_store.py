"""What every coordination store must do; run over each implementation, ZooKeeper's against a real one."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest
from kazoo.client import KazooClient

from tests.support.simulated_store import SimulatedCluster, SimulatedStore
from tidelog.coordination.embedded import EmbeddedStore
from tidelog.coordination.embedded_file import StoreFile
from tidelog.coordination.store import (
    ABSENT,
    Check,
    Committed,
    Conflict,
    CoordinationStore,
    Entry,
    SessionLost,
    StoreError,
    Write,
)
from tidelog.coordination.zookeeper import ZookeeperStore

WAIT_SECONDS = 20.0
_chroots = itertools.count(1)


class Store(Protocol):
    """A store that sessions can be opened on."""

    def open(self) -> CoordinationStore: ...

    def expire(self, store: CoordinationStore) -> None:
        """End a session behind its back, as the store itself would."""


class Embedded:
    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self) -> CoordinationStore:
        return EmbeddedStore(self.path, session_timeout_ms=2000)

    def expire(self, store: CoordinationStore) -> None:
        assert isinstance(store, EmbeddedStore)
        file = StoreFile(self.path, busy_timeout_ms=5000, durable=False)
        assert file.end_session(store._session.id) is not None
        file.close()


class Simulated:
    def __init__(self) -> None:
        self.cluster = SimulatedCluster()

    def open(self) -> CoordinationStore:
        return self.cluster.open()

    def expire(self, store: CoordinationStore) -> None:
        assert isinstance(store, SimulatedStore)
        store.expire()


class Zookeeper:
    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.connect = f"{servers}/tests/{next(_chroots)}"

    def open(self) -> CoordinationStore:
        return ZookeeperStore(self.connect, session_timeout_ms=6000)

    def expire(self, store: CoordinationStore) -> None:
        assert isinstance(store, ZookeeperStore)
        # Whoever knows a session's id and password is that session, and may close it.
        twin = KazooClient(hosts=self.servers, client_id=store._client.client_id)
        twin.start()
        twin.stop()
        twin.close()


class Sessions:
    """Opens sessions on one store and closes what a test left open."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._opened: list[CoordinationStore] = []

    def open(self) -> CoordinationStore:
        self._opened.append(self._store.open())
        return self._opened[-1]

    def expire(self, store: CoordinationStore) -> None:
        self._store.expire(store)

    def close_all(self) -> None:
        for store in self._opened:
            store.close()


@pytest.fixture(params=["embedded", "simulated", "zookeeper"])
def sessions(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sessions]:
    if request.param == "embedded":
        opened = Sessions(Embedded(tmp_path / "data" / "metadata.sqlite"))
    elif request.param == "simulated":
        opened = Sessions(Simulated())
    else:
        opened = Sessions(Zookeeper(request.getfixturevalue("zookeeper").connect_string))
    yield opened
    opened.close_all()


@pytest.fixture
def store(sessions: Sessions) -> CoordinationStore:
    return sessions.open()


class Calls:
    """A listener that counts, and lets a test wait until something it reads has become true."""

    def __init__(self) -> None:
        self.count = 0
        self._called = threading.Condition()

    def __call__(self) -> None:
        with self._called:
            self.count += 1
            self._called.notify_all()

    def wait_for(self, true: Callable[[], bool]) -> None:
        """Look once now and once after every call: a store that misses a change fails here."""
        seen = -1
        while True:
            with self._called:
                assert self._called.wait_for(lambda: self.count != seen, WAIT_SECONDS), "not called"  # noqa: B023
                seen = self.count
            if true():
                return

    def wait_count(self, count: int) -> None:
        with self._called:
            assert self._called.wait_for(lambda: self.count >= count, WAIT_SECONDS), self.count


def keys(store: CoordinationStore, prefix: str = "") -> list[str]:
    return [entry.key for entry in store.load(prefix)]


# -- keys and versions


def test_a_new_store_is_empty(store: CoordinationStore) -> None:
    assert store.load() == []
    assert store.get("a") is None
    assert store.commit([]) == Committed({})


def test_a_session_says_how_long_it_is_believed_in_if_that_is_known(store: CoordinationStore) -> None:
    granted_ms = store.session_timeout_ms
    assert granted_ms is None if isinstance(store, SimulatedStore) else granted_ms in range(1_000, 60_001)


def test_versions_count_writes_of_a_key(store: CoordinationStore) -> None:
    assert store.commit([Write("a", b"1"), Write("b", b"x", ABSENT)]) == Committed({"a": 1, "b": 1})
    assert store.commit([Write("a", b"2", 1)]) == Committed({"a": 2})
    assert store.commit([Write("a", b"3")]) == Committed({"a": 3})
    assert store.load() == [Entry("a", b"3", 3), Entry("b", b"x", 1)]
    assert store.get("a") == Entry("a", b"3", 3)


def test_load_takes_a_prefix_and_sorts(store: CoordinationStore) -> None:
    store.commit(
        [Write(key, b"") for key in ("topics/b", "topics/a", "topic", "topicz", "brokers/1", "topics/é")]
    )
    assert keys(store, "topics/") == ["topics/a", "topics/b", "topics/é"]
    assert keys(store, "brokers/") == ["brokers/1"]
    assert keys(store, "topi") == ["topic", "topics/a", "topics/b", "topics/é", "topicz"]
    assert store.load("nothing") == []
    assert store.load("topics/a/") == []


def test_a_key_may_have_the_name_of_a_folder(store: CoordinationStore) -> None:
    store.commit([Write("changes/1", b"one"), Write("changes/2/deep", b"two")])
    assert store.get("changes") is None
    assert store.commit([Write("changes", b"head", ABSENT)]) == Committed({"changes": 1})
    assert store.commit([Write("changes/2", b"", ABSENT)]) == Committed({"changes/2": 1})
    assert keys(store) == ["changes", "changes/1", "changes/2", "changes/2/deep"]
    store.commit([Write("changes", None), Write("changes/2/deep", None)])
    assert keys(store) == ["changes/1", "changes/2"]


def test_any_name_and_any_bytes_come_back(store: CoordinationStore) -> None:
    names = [".", "..", "a/../b", "zookeeper", "a:", "a:/b", "50%", "%41", "x y", "Ünï/✓", "a//b", "tab\tbed"]
    values = [bytes([index]) * index for index in range(len(names))]
    store.commit([Write(name, value) for name, value in zip(names, values, strict=True)])
    assert {entry.key: entry.value for entry in store.load()} == dict(zip(names, values, strict=True))
    assert all(store.get(name) == Entry(name, value, 1) for name, value in zip(names, values, strict=True))
    big = bytes(range(256)) * 1000
    store.commit([Write("big", big)])
    assert store.get("big") == Entry("big", big, 1)


def test_delete(store: CoordinationStore) -> None:
    store.commit([Write("a", b"1"), Write("b", b"2")])
    assert store.commit([Write("a", None, 9)]) == Conflict("a", 9, 1)
    assert store.commit([Write("a", None, 1), Write("missing", None)]) == Committed({})
    assert keys(store) == ["b"]
    assert store.commit([Write("a", None, 1)]) == Conflict("a", 1, ABSENT)
    assert store.commit([Write("a", None, ABSENT)]) == Committed({})
    assert store.commit([Write("a", b"again", ABSENT)]) == Committed({"a": 1})


# -- all or nothing


def test_a_conflict_changes_nothing(store: CoordinationStore) -> None:
    store.commit([Write("a", b"1")])
    outcome = store.commit([Write("b", b"2"), Write("a", b"3", 7), Write("c", b"4")])
    assert outcome == Conflict("a", 7, 1)
    assert store.load() == [Entry("a", b"1", 1)]
    assert store.commit([Write("a", b"3", ABSENT)]) == Conflict("a", ABSENT, 1)
    assert store.commit([Write("z", b"3", 1)]) == Conflict("z", 1, ABSENT)


def test_a_conflict_names_the_first_key(store: CoordinationStore) -> None:
    store.commit([Write("a", b"1"), Write("b", b"1"), Write("c", b"1")])
    wrong = [Write("a", b"2", 1), Write("b", b"2", 5), Write("c", b"2", 6, ephemeral=True)]
    assert store.commit(wrong) == Conflict("b", 5, 1)
    assert store.commit([Check("c", 3), *wrong[:2]]) == Conflict("c", 3, 1)
    assert [entry.version for entry in store.load()] == [1, 1, 1]


def test_checks_are_conditions_that_write_nothing(store: CoordinationStore) -> None:
    store.commit([Write("epoch", b"7")])
    assert store.commit([Check("epoch", 1), Write("a", b"1")]) == Committed({"a": 1})
    assert store.commit([Check("epoch", 2), Write("a", b"2")]) == Conflict("epoch", 2, 1)
    assert store.commit([Write("a", b"2"), Check("epoch", ABSENT)]) == Conflict("epoch", ABSENT, 1)
    assert store.commit([Check("missing", 1), Write("a", b"2")]) == Conflict("missing", 1, ABSENT)
    assert store.commit([Check("missing", ABSENT), Check("epoch", 1)]) == Committed({})
    assert store.commit([Check("folder/missing", ABSENT), Write("b", b"")]) == Committed({"b": 1})
    assert store.load() == [Entry("a", b"1", 1), Entry("b", b"", 1), Entry("epoch", b"7", 1)]


def test_a_key_named_twice_in_one_commit_is_a_bug(store: CoordinationStore) -> None:
    with pytest.raises(AssertionError):
        store.commit([Write("a", b"1"), Write("a", b"2")])
    with pytest.raises(AssertionError):
        store.commit([Write("a", b"1"), Check("a", 1)])
    with pytest.raises(AssertionError):
        store.commit([Write("folder/", b"1")])


def test_two_thousand_keys_in_one_commit(sessions: Sessions) -> None:
    """What the death of a broker that leads 2,000 partitions makes the controller write."""
    store, other = sessions.open(), sessions.open()
    writes = [Write(f"partitions/t{number % 20}/{number}", b"x" * 150, ABSENT) for number in range(2000)]
    assert isinstance(store.commit(writes), Committed)
    entries = other.load("partitions/")
    assert len(entries) == 2000
    changed = [Write(entry.key, b"y" * 150, entry.version) for entry in entries]
    assert other.commit([*changed, Write("partitions/t0/0x", b"", 3)]) == Conflict(
        "partitions/t0/0x", 3, ABSENT
    )
    assert store.load("partitions/") == entries
    assert isinstance(other.commit(changed), Committed)
    assert {(entry.value, entry.version) for entry in store.load("partitions/")} == {(b"y" * 150, 2)}


# -- sessions


def test_everything_committed_is_there_after_a_restart(sessions: Sessions) -> None:
    store = sessions.open()
    store.commit([Write(f"partitions/t/{index}", bytes([index])) for index in range(200)])
    store.commit([Write("partitions/t/7", b"new", 1), Write("partitions/t/8", None)])
    before = store.load()
    store.close()
    again = sessions.open()
    assert again.load() == before
    assert again.commit([Write("partitions/t/7", b"newer", 2)]) == Committed({"partitions/t/7": 3})


def test_a_closed_store_raises_and_closes_twice(store: CoordinationStore) -> None:
    lost = Calls()
    store.on_session_lost(lost)
    store.close()
    store.close()
    with pytest.raises(StoreError):
        store.load()
    with pytest.raises(StoreError):
        store.get("a")
    with pytest.raises(StoreError):
        store.commit([Write("a", b"1")])
    assert lost.count == 0


def test_sessions_see_each_others_commits(sessions: Sessions) -> None:
    first, second = sessions.open(), sessions.open()
    first.commit([Write("a", b"1")])
    assert second.commit([Write("a", b"2", 1)]) == Committed({"a": 2})
    assert first.commit([Write("a", b"3", 1)]) == Conflict("a", 1, 2)


def test_ephemeral_keys_go_with_their_session(sessions: Sessions) -> None:
    first, second = sessions.open(), sessions.open()
    changed = Calls()
    second.watch("live/", changed)
    first.commit([Write("live/1", b"one", ABSENT, ephemeral=True), Write("kept", b"")])
    second.commit([Write("live/2", b"two", ephemeral=True)])
    changed.wait_for(lambda: keys(second, "live/") == ["live/1", "live/2"])
    first.close()
    changed.wait_for(lambda: keys(second) == ["kept", "live/2"])


def test_an_ephemeral_key_has_versions_and_conflicts_like_any(sessions: Sessions) -> None:
    first, second = sessions.open(), sessions.open()
    assert first.commit([Write("me", b"1", ABSENT, ephemeral=True)]) == Committed({"me": 1})
    assert first.commit([Write("me", b"2", 1, ephemeral=True)]) == Committed({"me": 2})
    assert first.commit([Write("me", b"3")]) == Committed({"me": 3})
    assert second.commit([Write("me", b"4", ABSENT, ephemeral=True)]) == Conflict("me", ABSENT, 3)
    assert second.commit([Write("me", b"4", 3)]) == Committed({"me": 4})
    gone = Calls()
    second.watch("me", gone)
    first.close()
    # Plain writes, the owner's and another's, left it ephemeral and the first one's.
    gone.wait_for(lambda: second.get("me") is None)


def test_an_ephemeral_write_takes_a_key_over(sessions: Sessions) -> None:
    first, second, third = sessions.open(), sessions.open(), sessions.open()
    first.commit([Write("me", b"1", ephemeral=True)])
    first.commit([Write("me", b"2", 1)])
    assert second.commit([Write("me", b"3", 2, ephemeral=True)]) == Committed({"me": 1})
    first.commit([Write("kept", b"", ephemeral=False)])
    assert first.commit([Write("kept", b"", ephemeral=True)]) == Committed({"kept": 1})
    gone = Calls()
    third.watch("kept", gone)
    first.close()
    gone.wait_for(lambda: third.get("kept") is None)
    assert third.get("me") == Entry("me", b"3", 1)


def test_an_expired_session_is_over_for_good(sessions: Sessions) -> None:
    store, other = sessions.open(), sessions.open()
    lost, gone = Calls(), Calls()
    store.on_session_lost(lost)
    other.watch("live/", gone)
    store.commit([Write("live/1", b"", ephemeral=True), Write("a", b"1")])
    sessions.expire(store)
    with pytest.raises(SessionLost):
        store.commit([Write("a", b"2", 1)])
    lost.wait_count(1)
    gone.wait_for(lambda: keys(other, "live/") == [])
    for _ in range(2):
        with pytest.raises(SessionLost):
            store.commit([Write("a", b"2", 1)])
        with pytest.raises(SessionLost):
            store.load()
        with pytest.raises(SessionLost):
            store.get("a")
    late = Calls()
    store.on_session_lost(late)
    late.wait_count(1)
    store.close()
    assert lost.count == 1
    assert other.get("a") == Entry("a", b"1", 1)
    # And a new session of the same broker goes on where the old one was cut off.
    again = sessions.open()
    assert again.commit([Write("live/1", b"", ABSENT, ephemeral=True)]) == Committed({"live/1": 1})


def test_a_session_that_lapses_is_gone_for_everybody(sessions: Sessions) -> None:
    store, other = sessions.open(), sessions.open()
    lost, gone = Calls(), Calls()
    store.on_session_lost(lost)
    other.watch("live/", gone)
    store.commit([Write("live/1", b"", ephemeral=True), Write("a", b"1")])
    began = time.monotonic()
    store.lapse()
    store.lapse()
    gone.wait_for(lambda: keys(other, "live/") == [])
    # The store was told: nobody had to wait until the session timed out.
    assert time.monotonic() - began < 1.5
    lost.wait_count(1)
    with pytest.raises(SessionLost):
        store.commit([Write("a", b"2", 1)])
    store.close()
    store.lapse()
    assert lost.count == 1
    assert other.get("a") == Entry("a", b"1", 1)


def test_of_all_who_stand_for_election_one_wins(sessions: Sessions) -> None:
    stores = [sessions.open() for _ in range(3)]
    stores[0].commit([Write("controller-epoch", b"0")])

    def stand(store: CoordinationStore) -> Committed | Conflict:
        epoch = store.get("controller-epoch")
        assert epoch is not None
        return store.commit(
            [
                Write("controller", b"", ABSENT, ephemeral=True),
                Write("controller-epoch", b"%d" % (int(epoch.value) + 1), epoch.version),
            ]
        )

    for round_number in range(1, 4):
        winners = [store for store in stores if isinstance(stand(store), Committed)]
        assert len(winners) == 1
        epoch = stores[0].get("controller-epoch") or pytest.fail("no epoch")
        assert epoch.value == b"%d" % round_number
        free = Calls()
        rest = [store for store in stores if store is not winners[0]]
        rest[0].watch("controller", free)
        winners[0].close()
        free.wait_for(lambda: rest[0].get("controller") is None)  # noqa: B023
        stores = [*rest, sessions.open()]


# -- watches


def test_a_watch_tells_every_kind_of_change_and_stays(sessions: Sessions) -> None:
    watcher, writer = sessions.open(), sessions.open()
    called = Calls()
    watcher.watch("folder/key", called)
    for number in range(1, 6):
        writer.commit([Write("folder/key", b"%d" % number)])
        called.wait_for(lambda: (watcher.get("folder/key") or Entry("", b"", 0)).version == number)  # noqa: B023
    writer.commit([Write("folder/key", None)])
    called.wait_for(lambda: watcher.get("folder/key") is None)
    writer.commit([Write("folder/key", b"again")])
    called.wait_for(lambda: watcher.get("folder/key") is not None)


def test_a_watch_tells_the_sessions_own_changes(store: CoordinationStore) -> None:
    first, second = Calls(), Calls()
    store.watch("key", first)
    store.watch("key", second)
    store.commit([Write("key", b"")])
    first.wait_count(1)
    second.wait_count(1)


def test_a_folder_watch_tells_which_keys_there_are(sessions: Sessions) -> None:
    watcher, writer = sessions.open(), sessions.open()
    called = Calls()
    watcher.watch("live/", called)
    for number in range(5):
        writer.commit([Write(f"live/{number}", b"", ephemeral=number % 2 == 0)])
        called.wait_for(lambda: len(keys(watcher, "live/")) == number + 1)  # noqa: B023
    writer.commit([Write("live/1", None), Write("live/3", None)])
    called.wait_for(lambda: keys(watcher, "live/") == ["live/0", "live/2", "live/4"])
    # The folder becomes empty, and is used again.
    writer.commit([Write(key, None) for key in keys(writer, "live/")])
    called.wait_for(lambda: keys(watcher, "live/") == [])
    writer.commit([Write("live/new", b"")])
    called.wait_for(lambda: keys(watcher, "live/") == ["live/new"])


def test_the_last_change_is_never_missed(sessions: Sessions) -> None:
    watcher, writer = sessions.open(), sessions.open()
    called = Calls()
    watcher.watch("changes", called)
    for burst in range(10):
        for number in range(10):
            writer.commit([Write("changes", b"%d" % (burst * 10 + number))])
        last = b"%d" % (burst * 10 + 9)
        called.wait_for(lambda: watcher.get("changes") == Entry("changes", last, int(last) + 1))  # noqa: B023


# -- several threads (the simulated store has none)


@pytest.fixture
def real_sessions(sessions: Sessions) -> Sessions:
    if isinstance(sessions._store, Simulated):
        pytest.skip("the simulated store is for a single thread")
    return sessions


def run_all(*jobs: Callable[[], None]) -> None:
    faults: list[BaseException] = []

    def run(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []


def test_compare_and_set_loses_no_increment(real_sessions: Sessions) -> None:
    stores = [real_sessions.open() for _ in range(3)]
    stores[0].commit([Write("counter", b"0")])

    def count(store: CoordinationStore) -> None:
        done = 0
        while done < 25:
            entry = store.get("counter") or pytest.fail("no counter")
            write = Write("counter", b"%d" % (int(entry.value) + 1), entry.version)
            done += isinstance(store.commit([write]), Committed)

    run_all(*(lambda store=store: count(store) for store in stores))
    assert stores[0].get("counter") == Entry("counter", b"75", 76)


def test_unconditional_writes_of_several_sessions_all_happen(real_sessions: Sessions) -> None:
    stores = [real_sessions.open() for _ in range(3)]

    def write(store: CoordinationStore) -> None:
        for number in range(20):
            assert isinstance(store.commit([Write("shared", b"%d" % number)]), Committed)

    run_all(*(lambda store=store: write(store) for store in stores))
    assert stores[0].get("shared") == Entry("shared", b"19", 60)


def test_load_never_shows_half_a_commit(real_sessions: Sessions) -> None:
    writer, reader = real_sessions.open(), real_sessions.open()
    names = [f"pair/{number}" for number in range(30)]
    writer.commit([Write(name, b"0") for name in names])
    stop = threading.Event()

    def write() -> None:
        for number in range(1, 60):
            writer.commit([Write(name, b"%d" % number, number) for name in names])
            # Pauses that a reader fits into; its loads still begin in the middle of commits.
            stop.wait(0.02)
        stop.set()

    def read() -> None:
        while not stop.is_set():
            assert len({entry.value for entry in reader.load("pair/")}) == 1

    run_all(write, read)


def test_one_session_serves_several_threads(real_sessions: Sessions) -> None:
    store = real_sessions.open()

    def work(name: str) -> None:
        for number in range(20):
            assert store.commit([Write(name, b"", number)]) == Committed({name: number + 1})
            assert store.get(name) == Entry(name, b"", number + 1)

    run_all(*(lambda name=name: work(name) for name in ("a/1", "a/2", "b")))
    assert {entry.version for entry in store.load()} == {20}
