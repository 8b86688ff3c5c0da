"""Where pipelines keep files: the few operations they need, on any file system that Spark knows, or on a
local one.

Paths are texts. `rename` within one file system is atomic, and everything that must not be seen half done is
built on it.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

#: of Hadoop's file systems: what is written appears when its stream is closed, not at all when it is aborted
_ABORTABLE = "fs.capability.outputstream.abortable"


class StoredFile(NamedTuple):
    """A file below a folder: its path from there, and its size."""

    path: str
    size_bytes: int


class FileStore(Protocol):
    """What both implementations do."""

    def files(self, folder: str) -> list[StoredFile]:
        """All files below a folder, sorted; nothing when there is no such folder."""

    def read(self, path: str) -> str | None:
        """The text of a file, None when it is not there."""

    def write(self, path: str, text: str) -> None:
        """Write a file whole or not at all, in place of one that was there."""

    def rename(self, path: str, to: str) -> bool:
        """Move a file, making folders on the way; False when it is not there."""

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with all in it, if it is there."""


class LocalFiles:
    """A file system of this machine."""

    def files(self, folder: str) -> list[StoredFile]:
        root = Path(folder)
        return sorted(
            StoredFile(str(path.relative_to(root)), path.stat().st_size)
            for path in root.rglob("*")
            if path.is_file()
        )

    def read(self, path: str) -> str | None:
        try:
            return Path(path).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def write(self, path: str, text: str) -> None:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        waiting = target.with_name(f".{target.name}.new")
        with waiting.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        waiting.replace(target)

    def rename(self, path: str, to: str) -> bool:
        Path(to).parent.mkdir(parents=True, exist_ok=True)
        try:
            Path(path).rename(to)
        except FileNotFoundError:
            return False
        return True

    def delete(self, path: str) -> None:
        target = Path(path)
        if target.is_dir():
            for inner in target.iterdir():
                self.delete(str(inner))
            target.rmdir()
        else:
            target.unlink(missing_ok=True)


class HadoopFiles:
    """A file system that Spark knows by the beginning of the path (file, hdfs, s3a, …), through the driver's
    JVM.

    In an object store a rename is a copy and a deletion. An object appears there when its stream is closed,
    whole, in place of the one before, so `write` needs no rename; such streams can be aborted, and say so.
    """

    def __init__(self, spark: Any, root: str) -> None:
        jvm = spark.sparkContext._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._configuration = spark._jsparkSession.sessionState().newHadoopConf()
        self._system = self._path(root).getFileSystem(self._configuration)
        self._context = jvm.org.apache.hadoop.fs.FileContext
        self._streams = jvm.org.apache.commons.io.IOUtils
        self._utf8 = jvm.java.nio.charset.StandardCharsets.UTF_8
        rename = jvm.org.apache.hadoop.fs.Options.Rename
        self._replacing = spark.sparkContext._gateway.new_array(rename, 1)
        self._replacing[0] = rename.OVERWRITE

    def files(self, folder: str) -> list[StoredFile]:
        return sorted(self._below(self._path(folder), ""))

    def _below(self, folder: Any, prefix: str) -> Iterator[StoredFile]:
        if not self._system.exists(folder):
            return
        for status in self._system.listStatus(folder):
            name = prefix + status.getPath().getName()
            if status.isDirectory():
                yield from self._below(status.getPath(), name + "/")
            else:
                yield StoredFile(name, status.getLen())

    def read(self, path: str) -> str | None:
        if not self._system.exists(self._path(path)):
            return None
        stream = self._system.open(self._path(path))
        try:
            return str(self._streams.toString(stream, self._utf8))
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        target = self._path(path)
        if self._system.hasPathCapability(target, _ABORTABLE):
            self._write_object(target, text)
            return
        waiting = self._path(target.getParent(), f".{target.getName()}.new")
        stream = self._system.create(waiting, True)
        try:
            stream.write(bytearray(text.encode()))
            stream.hsync()
        finally:
            stream.close()
        # The file system's own rename refuses an existing target; this one replaces it in one step.
        context = self._context.getFileContext(self._system.getUri(), self._configuration)
        context.rename(waiting, self._system.makeQualified(target), self._replacing)

    def _write_object(self, target: Any, text: str) -> None:
        stream = self._system.create(target, True)
        try:
            stream.write(bytearray(text.encode()))
        except BaseException:
            stream.abort()
            raise
        stream.close()

    def rename(self, path: str, to: str) -> bool:
        if not self._system.exists(self._path(path)):
            return False
        self._system.mkdirs(self._path(to).getParent())
        # Where renaming is to copy and to delete, a driver may have died in between.
        self._system.delete(self._path(to), False)
        if not self._system.rename(self._path(path), self._path(to)):
            raise OSError(f"cannot move {path} to {to}")
        return True

    def delete(self, path: str) -> None:
        self._system.delete(self._path(path), True)
