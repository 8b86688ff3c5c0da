"""What every coordination store must do; run over each implementation."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidelog.coordination.embedded import EmbeddedStore
from tidelog.coordination.simulated import SimulatedStore
from tidelog.coordination.store import (
    ABSENT,
    Committed,
    Conflict,
    CoordinationStore,
    Entry,
    StoreError,
    Write,
)

Reopen = Callable[[CoordinationStore], CoordinationStore]


@pytest.fixture(params=["embedded", "simulated"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[CoordinationStore, Reopen]]:
    stores: list[CoordinationStore] = []

    def keep(store: CoordinationStore) -> CoordinationStore:
        stores.append(store)
        return store

    if request.param == "embedded":
        path = tmp_path / "data" / "metadata.sqlite"

        def reopen_file(store: CoordinationStore) -> CoordinationStore:
            store.close()
            return keep(EmbeddedStore(path))

        yield keep(EmbeddedStore(path)), reopen_file
    else:

        def reopen_memory(store: CoordinationStore) -> CoordinationStore:
            assert isinstance(store, SimulatedStore)
            store.close()
            return keep(store.reopen())

        yield keep(SimulatedStore()), reopen_memory
    for store in stores:
        store.close()


@pytest.fixture
def store(opened: tuple[CoordinationStore, Reopen]) -> CoordinationStore:
    return opened[0]


def test_a_new_store_is_empty(store: CoordinationStore) -> None:
    assert store.load() == []
    assert store.commit([]) == Committed({})


def test_versions_count_writes_of_a_key(store: CoordinationStore) -> None:
    assert store.commit([Write("a", b"1"), Write("b", b"x", ABSENT)]) == Committed({"a": 1, "b": 1})
    assert store.commit([Write("a", b"2", 1)]) == Committed({"a": 2})
    assert store.commit([Write("a", b"3")]) == Committed({"a": 3})
    assert store.load() == [Entry("a", b"3", 3), Entry("b", b"x", 1)]


def test_load_takes_a_prefix_and_sorts(store: CoordinationStore) -> None:
    store.commit(
        [Write(key, b"") for key in ("topics/b", "topics/a", "topic", "topicz", "brokers/1", "topics/é")]
    )
    assert [entry.key for entry in store.load("topics/")] == ["topics/a", "topics/b", "topics/é"]
    assert [entry.key for entry in store.load("brokers/")] == ["brokers/1"]
    assert store.load("nothing") == []


def test_a_conflict_changes_nothing(store: CoordinationStore) -> None:
    store.commit([Write("a", b"1")])
    outcome = store.commit([Write("b", b"2"), Write("a", b"3", 7), Write("c", b"4")])
    assert outcome == Conflict("a", 7, 1)
    assert store.load() == [Entry("a", b"1", 1)]
    assert store.commit([Write("a", b"3", ABSENT)]) == Conflict("a", ABSENT, 1)
    assert store.commit([Write("z", b"3", 1)]) == Conflict("z", 1, ABSENT)


def test_delete(store: CoordinationStore) -> None:
    store.commit([Write("a", b"1"), Write("b", b"2")])
    assert store.commit([Write("a", None, 9)]) == Conflict("a", 9, 1)
    assert store.commit([Write("a", None, 1), Write("missing", None)]) == Committed({})
    assert [entry.key for entry in store.load()] == ["b"]
    assert store.commit([Write("a", b"again", ABSENT)]) == Committed({"a": 1})


def test_a_key_written_twice_in_one_commit_is_a_bug(store: CoordinationStore) -> None:
    with pytest.raises(AssertionError):
        store.commit([Write("a", b"1"), Write("a", b"2")])


def test_everything_committed_is_there_after_a_restart(opened: tuple[CoordinationStore, Reopen]) -> None:
    store, reopen = opened
    store.commit([Write(f"partitions/t/{index}", bytes([index])) for index in range(200)])
    store.commit([Write("partitions/t/7", b"new", 1), Write("partitions/t/8", None)])
    before = store.load()
    again = reopen(store)
    assert again.load() == before
    assert again.commit([Write("partitions/t/7", b"newer", 2)]) == Committed({"partitions/t/7": 3})


def test_a_closed_store_raises_and_closes_twice(store: CoordinationStore) -> None:
    store.close()
    store.close()
    with pytest.raises(StoreError):
        store.load()
    with pytest.raises(StoreError):
        store.commit([Write("a", b"1")])


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    path.write_bytes(b"this is not a database, however long it may be" * 50)
    with pytest.raises(StoreError):
        EmbeddedStore(path)


def test_the_embedded_store_survives_a_copy_taken_without_closing(tmp_path: Path) -> None:
    """A kill leaves the files as they are: the copy stands for what the next process finds."""
    first = EmbeddedStore(tmp_path / "metadata.sqlite")
    first.commit([Write("a", b"1"), Write("b", b"2")])
    killed = tmp_path / "killed"
    killed.mkdir()
    for file in tmp_path.glob("metadata.sqlite*"):
        (killed / file.name).write_bytes(file.read_bytes())
    again = EmbeddedStore(killed / "metadata.sqlite")
    try:
        assert [entry.key for entry in again.load()] == ["a", "b"]
    finally:
        again.close()
        first.close()


def test_simulated_failures_and_conflicts_happen_once_each() -> None:
    store = SimulatedStore()
    store.fail_next()
    with pytest.raises(StoreError):
        store.commit([Write("a", b"1")])
    store.conflict_next()
    assert isinstance(store.commit([Write("a", b"1", ABSENT)]), Conflict)
    assert store.commit([Write("a", b"1", ABSENT)]) == Committed({"a": 1})
