"""Files that appear exactly once: a batch of a query is in a folder whole, however often the driver dies.

    path/date=2026-01-31/part-1f3a…-000012-0.parquet     what readers see
    path/_tidelog/staging/<query>/<change>/…             what is being written
    path/_tidelog/log/<query>/<change>.json              decided: files to add, files to take away
    path/_tidelog/log/<query>/last.json                  the last batch that is done

A change is a batch, or a rewriting of files (compaction). It is written to staging; then one file says what
is added and what goes, and that is the decision; then the files are moved and deleted, and what was decided
is forgotten. A driver that finds a decision carries it out. Without one, staging is thrown away and the
batch is written anew. Names that begin with '_' are not read by Spark, Arrow and the like.

Whoever lists the folder while files are moved may see a part of a batch; `snapshot` gives what is decided.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tidelog.pipelines.file_store import FileStore, StoredFile

_HIDDEN = ("_", ".")


@dataclass(frozen=True, slots=True)
class Change:
    """What is decided: files from staging with their places, and files that go."""

    name: str
    adds: tuple[tuple[str, str], ...]
    removes: tuple[str, ...] = ()
    #: the batch that is done with this change, None for a rewriting of files
    batch_id: int | None = None

    def as_text(self) -> str:
        return json.dumps(
            {"adds": self.adds, "removes": self.removes, "batch_id": self.batch_id}, separators=(",", ":")
        )

    @classmethod
    def read(cls, name: str, text: str) -> "Change":
        content = json.loads(text)
        return cls(
            name,
            tuple((staged, final) for staged, final in content["adds"]),
            tuple(content["removes"]),
            content["batch_id"],
        )


class FileBatches:
    """The files of one query in one folder."""

    def __init__(self, store: FileStore, root: str, query: str) -> None:
        self._store = store
        self._root = root.rstrip("/")
        self._query = query
        self._own = f"{self._root}/_tidelog"
        self._log = f"{self._own}/log/{query}"
        self._staging = f"{self._own}/staging/{query}"

    def last_batch_id(self) -> int:
        """The newest batch that is done, -1 before the first."""
        text = self._store.read(f"{self._log}/last.json")
        return -1 if text is None else int(json.loads(text)["batch_id"])

    def recover(self) -> None:
        """Carry out what was decided, throw away what was not."""
        for change in self._decided():
            self._carry_out(change)
        self._store.delete(self._staging)

    def _decided(self) -> list[Change]:
        found = []
        for file in self._store.files(self._log):
            if file.path != "last.json" and file.path.endswith(".json") and not file.path.startswith("."):
                text = self._store.read(f"{self._log}/{file.path}")
                assert text is not None, file.path
                found.append(Change.read(file.path.removesuffix(".json"), text))
        return found

    def write_batch(
        self,
        batch_id: int,
        write: Callable[[str], None],
        removes: Callable[[list[str]], Iterable[str]] | None = None,
    ) -> bool:
        """Write a batch once: `write` is given a folder to write to. False when it was done before.

        `removes` is told the files that were written, and says which others go with this batch.
        """
        self.recover()
        if batch_id <= self.last_batch_id():
            return False
        self._change(f"{batch_id:09d}", write, removes, batch_id)
        return True

    def rewrite(self, name: str, write: Callable[[str], None], removes: Iterable[str]) -> None:
        """Put files in place of others, all or nothing."""
        self._change(name, write, lambda _: removes, None)

    def _change(
        self,
        name: str,
        write: Callable[[str], None],
        removes: Callable[[list[str]], Iterable[str]] | None,
        batch_id: int | None,
    ) -> None:
        staging = f"{self._staging}/{name}"
        self._store.delete(staging)
        write(staging)
        adds = [
            (f"{staging}/{file.path}", self._place(name, number, file))
            for number, file in enumerate(self._visible(self._store.files(staging)))
        ]
        gone = () if removes is None else tuple(removes([place for _, place in adds]))
        change = Change(name, tuple(adds), gone, batch_id)
        self._store.write(f"{self._log}/{name}.json", change.as_text())
        self._carry_out(change)

    def _place(self, change: str, number: int, file: StoredFile) -> str:
        """`date=2026-01-31/part-0000-….snappy.parquet` gets a name that no other file has."""
        folder, separator, name = file.path.rpartition("/")
        ending = name.partition(".")[2]
        return f"{folder}{separator}part-{self._query[:8]}-{change}-{number}.{ending}"

    @staticmethod
    def _visible(files: Iterable[StoredFile]) -> list[StoredFile]:
        return [file for file in files if not any(part.startswith(_HIDDEN) for part in file.path.split("/"))]

    def _carry_out(self, change: Change) -> None:
        for staged, place in change.adds:
            # Not there: a driver before us has moved it.
            self._store.rename(staged, f"{self._root}/{place}")
        for place in change.removes:
            self._store.delete(f"{self._root}/{place}")
        if change.batch_id is not None:
            self._store.write(f"{self._log}/last.json", json.dumps({"batch_id": change.batch_id}))
        self._store.delete(f"{self._log}/{change.name}.json")
        self._store.delete(f"{self._staging}/{change.name}")

    def present(self) -> list[StoredFile]:
        """The files that readers see; call it with nothing undecided."""
        return self._visible(self._store.files(self._root))


def snapshot(store: FileStore, root: str) -> list[str]:
    """The paths of the files that are decided to be there, also while files are moved."""
    root = root.rstrip("/")
    files = store.files(root)
    present = {file.path: f"{root}/{file.path}" for file in FileBatches._visible(files)}
    staged = {f"{root}/{file.path}" for file in files if file.path.startswith("_tidelog/staging/")}
    for file in files:
        name = file.path.rpartition("/")[2]
        if not file.path.startswith("_tidelog/log/") or name == "last.json" or not name.endswith(".json"):
            continue
        text = None if name.startswith(".") else store.read(f"{root}/{file.path}")
        if text is not None:
            change = Change.read(name, text)
            for source, place in change.adds:
                present[place] = source if source in staged else f"{root}/{place}"
            for place in change.removes:
                present.pop(place, None)
    return sorted(present.values())


def read_files(spark: Any, store: FileStore, root: str, schema: str, kind: str = "parquet") -> Any:
    """A frame of what `snapshot` names, with the columns of the folders' names."""
    paths = snapshot(store, root)
    if not paths:
        return spark.createDataFrame([], schema)
    return spark.read.format(kind).schema(schema).option("basePath", root).load(paths)
