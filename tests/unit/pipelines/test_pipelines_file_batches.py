"""Files that appear once: the driver dies at every single operation, and the next one finds its way."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from tidelog.pipelines.file_batches import FileBatches, snapshot
from tidelog.pipelines.file_store import LocalFiles, StoredFile
from tidelog.pipelines.ready.archive import small_files


class Died(BaseException):
    """The driver is gone."""


class DyingFiles(LocalFiles):
    """A file system whose user dies before its n-th change."""

    def __init__(self, changes: int) -> None:
        self.left = changes

    def _count(self) -> None:
        if self.left == 0:
            raise Died
        self.left -= 1

    def write(self, path: str, text: str) -> None:
        self._count()
        super().write(path, text)

    def rename(self, path: str, to: str) -> bool:
        self._count()
        return super().rename(path, to)

    def delete(self, path: str) -> None:
        self._count()
        super().delete(path)


def writer(store: LocalFiles, rows: dict[str, str]) -> Callable[[str], None]:
    def write(folder: str) -> None:
        for name, text in rows.items():
            store.write(f"{folder}/{name}", text)
        store.write(f"{folder}/_SUCCESS", "")

    return write


def visible(root: Path) -> list[str]:
    return sorted(
        path.read_text()
        for path in root.rglob("*.txt")
        if not any(part.startswith(("_", ".")) for part in path.relative_to(root).parts)
    )


def drive(store: LocalFiles, root: Path) -> None:
    """Three batches; the second merges what is there, the third takes the place of everything."""
    files = FileBatches(store, str(root), "query-1")
    files.write_batch(0, writer(store, {"date=1/a.txt": "a", "date=2/b.txt": "b"}))
    if files.write_batch(1, writer(store, {"date=1/a.txt": "c"})):
        merged = [file.path for file in files.present() if file.path.startswith("date=1")]
        text = "".join(sorted((root / path).read_text() for path in merged))
        files.rewrite("merge-1", writer(store, {"date=1/m.txt": text}), merged)
    before = [file.path for file in files.present()]
    files.write_batch(2, writer(store, {"date=3/z.txt": "z"}), lambda added: before)


def test_batches_and_merges_without_faults(tmp_path: Path) -> None:
    store = LocalFiles()
    files = FileBatches(store, str(tmp_path), "query-1")
    assert files.write_batch(0, writer(store, {"date=1/a.txt": "a"}))
    assert not files.write_batch(0, writer(store, {"date=1/a.txt": "other"})), "a batch is written once"
    assert files.write_batch(1, writer(store, {"date=1/a.txt": "b"}))
    assert visible(tmp_path) == ["a", "b"] and files.last_batch_id() == 1
    another = FileBatches(store, str(tmp_path), "query-2")
    assert another.write_batch(0, writer(store, {"date=1/a.txt": "c"})), "queries count for themselves"
    assert visible(tmp_path) == ["a", "b", "c"]


def test_a_driver_that_dies_at_any_operation_leaves_nothing_lost_or_twice(tmp_path: Path) -> None:
    deaths = 0
    for changes in itertools.count():
        root = tmp_path / str(changes)
        root.mkdir()
        try:
            drive(DyingFiles(changes), root)
        except Died:
            deaths += 1
        else:
            break
        decided = sorted(Path(path).read_text() for path in snapshot(LocalFiles(), str(root)))
        assert decided in ([], ["a", "b"], ["a", "b", "c"], ["ac", "b"], ["z"]), changes
        drive(LocalFiles(), root)
        assert visible(root) == ["z"], f"died before change {changes}"
        assert not list((root / "_tidelog" / "staging").rglob("*.txt"))
    assert deaths > 20


@pytest.mark.parametrize(("changes", "texts"), [(3, ["a", "b"]), (30, ["a", "b"])])
def test_dying_again_and_again(tmp_path: Path, changes: int, texts: list[str]) -> None:
    for _ in range(100):
        store = DyingFiles(changes)
        try:
            FileBatches(store, str(tmp_path), "query-1").write_batch(
                0, writer(LocalFiles(), {"a.txt": "a", "b.txt": "b"})
            )
        except Died:
            changes += 1
        else:
            break
    assert visible(tmp_path) == texts


def test_small_files_are_merged_date_by_date() -> None:
    files = [StoredFile(f"date=1/{n}", 10) for n in range(3)] + [StoredFile("date=1/big", 900)]
    files += [StoredFile("date=2/0", 10)]
    assert small_files(files, 3, 100) == ["date=1/0", "date=1/1", "date=1/2"]
    assert small_files(files, 4, 100) == []
    assert small_files(files, 1, 100) == ["date=1/0", "date=1/1", "date=1/2"], "one file is merged already"
