"""A disk in memory that forgets what was not synced, as a power cut makes a real one forget.

`SimulatedDisk` implements the contract of `tidelog.storage.disk` and keeps two views of everything: what a
reader sees now (the page cache) and what has certainly reached stable storage. From one seed it always ends
up the same.

- `crash()` is a power cut: it returns the disk as it might be found afterwards. Unsynced bytes of a file are
  lost, kept, torn at any byte, or mixed page by page (a page that was not written reads as its synced bytes,
  or as zeros behind them). Names that were created, renamed or removed since their directory was synced may
  be found changed or unchanged; a rename happened as a whole or not at all, and changes to one name survive
  in order, but unrelated ones do not wait for each other.
- `kill()` is the death of the process alone: nothing is lost, but locks and open files are.

After either, the old disk and its files refuse all work. Faults on request: the n-th operation from now fails
(`fail_operation`), power goes at the n-th operation (`cut_power_at`, raises `PowerCut`), and `capacity_bytes`
limits the sum of all file sizes (`ENOSPC`). Operations are those that change something or sync it.
"""

import errno
import io
import os
from builtins import list as list_of  # `SimulatedDisk.list` hides the name inside the class
from collections.abc import Hashable, Iterator, Sequence
from random import Random
from typing import NamedTuple, TypeVar

from tidelog.storage.disk import Bytes

PAGE_BYTES = 4096


class PowerCut(Exception):
    """The power is gone. Not an OSError, so that nothing takes it for trouble it can handle."""


class _Inode:
    """The content of a file: what readers see, and what is on stable storage."""

    __slots__ = ("content", "durable", "unsynced_from")

    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)
        self.durable = bytearray(content)
        # Both agree before this position.
        self.unsynced_from = len(content)

    def append(self, view: Bytes) -> None:
        self.content += view

    def truncate(self, size: int) -> None:
        del self.content[size:]
        self.unsynced_from = min(self.unsynced_from, size)

    def sync(self) -> None:
        del self.durable[self.unsynced_from :]
        self.durable += memoryview(self.content)[self.unsynced_from :]
        self.unsynced_from = len(self.content)

    def after_crash(self, random: Random) -> bytes:
        """The bytes that a power cut might leave."""
        content, durable, start = self.content, self.durable, self.unsynced_from
        if content == durable:
            return bytes(durable)
        outcome = random.choice(("lost", "kept", "torn", "pages"))
        if outcome == "lost":
            return bytes(durable)
        if outcome == "kept":
            return bytes(content)
        end = random.randint(start, len(content))
        if outcome == "torn":
            return bytes(content[:end])
        end = random.choice((end, len(content)))
        result = bytearray(durable[:end])
        result += bytes(end - len(result))
        result[:start] = content[:start]
        for position in range(start - start % PAGE_BYTES, end, PAGE_BYTES):
            if random.random() < 0.5:
                page_end = min(position + PAGE_BYTES, end)
                result[position:page_end] = content[position:page_end]
        return bytes(result)


class _Directory:
    """The names in a directory: what readers see, and what is on stable storage."""

    __slots__ = ("durable", "entries")

    def __init__(self) -> None:
        self.entries: dict[str, _Inode | _Directory] = {}
        self.durable: dict[str, _Inode | _Directory] = {}


_Node = _Inode | _Directory
# A directory, a name in it and what the name now means; None if nothing.
_NameChange = tuple[_Directory, str, _Node | None]
_Key = TypeVar("_Key", bound=Hashable)


class _Tree:
    """The state of the disk; it outlives the process that uses it."""

    __slots__ = ("_by_directory", "_by_name", "_count", "pending", "root")

    def __init__(self) -> None:
        self.root = _Directory()
        #: name changes that are not durable yet, by number; the changes of one operation happen together
        self.pending: dict[int, tuple[_NameChange, ...]] = {}
        self._count = 0
        # The numbers of operations on a directory, and on a name in it: there may be thousands of both.
        self._by_directory: dict[int, set[int]] = {}
        self._by_name: dict[tuple[int, str], set[int]] = {}

    def change(self, *changes: _NameChange) -> None:
        for directory, name, node in changes:
            if node is None:
                directory.entries.pop(name, None)
            else:
                directory.entries[name] = node
        number = self._count = self._count + 1
        self.pending[number] = changes
        for directory, name, _ in changes:
            self._by_directory.setdefault(id(directory), set()).add(number)
            self._by_name.setdefault((id(directory), name), set()).add(number)

    def sync_names(self, directory: _Directory) -> None:
        """Make the changes in `directory` durable, with those before them that they depend on."""
        due = set(self._by_directory.get(id(directory), ()))
        left = list(due)
        while left:
            number = left.pop()
            for changed, name, _ in self.pending[number]:
                for earlier in self._by_name[id(changed), name]:
                    if earlier < number and earlier not in due:
                        due.add(earlier)
                        left.append(earlier)
        for number in sorted(due):
            changes = self.pending.pop(number)
            _make_durable(changes)
            for changed, name, _ in changes:
                _discard(self._by_directory, id(changed), number)
                _discard(self._by_name, (id(changed), name), number)

    def after_crash(self, random: Random) -> "_Tree":
        for operations in _related(list(self.pending.values())):
            for changes in operations[: random.randint(0, len(operations))]:
                _make_durable(changes)
        tree = _Tree()
        tree.root = _found_directory(self.root, random, {})
        return tree

    def files(self) -> Iterator[_Inode]:
        directories = [self.root]
        while directories:
            for node in directories.pop().entries.values():
                if isinstance(node, _Directory):
                    directories.append(node)
                else:
                    yield node


def _make_durable(changes: tuple[_NameChange, ...]) -> None:
    for directory, name, node in changes:
        if node is None:
            directory.durable.pop(name, None)
        else:
            directory.durable[name] = node


def _discard(numbers: dict[_Key, set[int]], key: _Key, number: int) -> None:
    found = numbers.get(key)
    if found is not None:
        found.discard(number)
        if not found:
            del numbers[key]


def _related(pending: list[tuple[_NameChange, ...]]) -> list[list[tuple[_NameChange, ...]]]:
    """Group operations that share a name, each group in order: within it only a prefix can survive.

    The group with the oldest last operation comes first.
    """
    group_of_name: dict[tuple[int, str], int] = {}
    groups: dict[int, tuple[set[tuple[int, str]], list[int]]] = {}
    for index, changes in enumerate(pending):
        names = {(id(directory), name) for directory, name, _ in changes}
        indexes = [index]
        for group in {group_of_name[name] for name in names if name in group_of_name}:
            group_names, group_indexes = groups.pop(group)
            names |= group_names
            indexes += group_indexes
        groups[index] = (names, indexes)
        for name in names:
            group_of_name[name] = index
    return [[pending[index] for index in sorted(indexes)] for _, indexes in groups.values()]


def _found_directory(directory: _Directory, random: Random, found: dict[int, _Inode]) -> _Directory:
    """Copy a directory as the next start finds it."""
    result = _Directory()
    for name, node in sorted(directory.durable.items(), key=lambda item: item[0]):
        if isinstance(node, _Directory):
            result.entries[name] = _found_directory(node, random, found)
        else:
            if id(node) not in found:
                found[id(node)] = _Inode(node.after_crash(random))
            result.entries[name] = found[id(node)]
    result.durable = dict(result.entries)
    return result


def _copied(directory: _Directory, found: dict[int, _Inode]) -> _Directory:
    """Copy a directory as readers see it, all of it durable."""
    result = _Directory()
    for name, node in directory.entries.items():
        if isinstance(node, _Directory):
            result.entries[name] = _copied(node, found)
        else:
            result.entries[name] = found.setdefault(id(node), _Inode(bytes(node.content)))
    result.durable = dict(result.entries)
    return result


class TakenOut(NamedTuple):
    """A directory without a machine."""

    directory: _Directory


class SimulatedFile:
    """An open file of a simulated disk."""

    __slots__ = ("_disk", "_inode", "_locked", "path")

    def __init__(self, disk: "SimulatedDisk", path: str, inode: _Inode, locked: str | None = None) -> None:
        self._disk = disk
        self._inode: _Inode | None = inode
        self._locked = locked
        self.path = path

    @property
    def size_bytes(self) -> int:
        return len(self._opened().content)

    def append(self, view: Bytes) -> None:
        inode = self._opened()
        self._disk.operation("append", self.path)
        self._disk.reserve(len(view))
        inode.append(view)

    def append_many(self, views: Sequence[Bytes]) -> None:
        self.append(b"".join(views))

    def read(self, position: int, size: int) -> bytes:
        return bytes(memoryview(self._opened().content)[position : position + size])

    def truncate(self, size: int) -> None:
        inode = self._opened()
        assert 0 <= size <= len(inode.content), f"cannot cut {self!r} to {size} bytes"
        self._disk.operation("truncate", self.path)
        inode.truncate(size)

    def reserve(self, end: int) -> None:
        self._opened()

    def release(self) -> None:
        self._opened()

    def sync(self) -> None:
        inode = self._opened()
        self._disk.operation("sync", self.path)
        inode.sync()

    def fileno(self) -> int:
        raise io.UnsupportedOperation(f"{self.path} is in memory and has no descriptor")

    def close(self) -> None:
        self._inode = None
        if self._locked is not None:
            self._disk.unlock(self._locked)
            self._locked = None

    def _opened(self) -> _Inode:
        self._disk.check_alive()
        if self._inode is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.path)
        return self._inode

    def __repr__(self) -> str:
        size_bytes = len(self._inode.content) if self._inode is not None else "closed"
        return f"<SimulatedFile {self.path} size_bytes={size_bytes}>"


class SimulatedDisk:
    """A disk in memory; see the module for what it simulates."""

    def __init__(self, seed: int = 0) -> None:
        self.capacity_bytes: int | None = None
        self.operations_count = 0
        self._random = Random(seed)
        self._tree = _Tree()
        self._locks: set[str] = set()
        self._alive = True
        self._failures: dict[int, int] = {}
        self._failed_directories: dict[str, int] = {}
        self._power_cut_at: int | None = None
        self._boot = 1

    # -- what happens to it

    def crash(self, *, everything_was_written: bool = False) -> "SimulatedDisk":
        """Cut the power; return the disk as the next start finds it.

        With luck the system had just written everything by itself; nobody can tell when the power is back.
        """
        successor = self._successor()
        successor._tree = self._tree if everything_was_written else self._tree.after_crash(self._random)
        successor._boot += 1
        return successor

    def kill(self) -> "SimulatedDisk":
        """End the process; return the disk with everything it wrote, synced or not."""
        successor = self._successor()
        successor._tree = self._tree
        return successor

    def fail_operation(self, count: int, error_number: int = errno.EIO) -> None:
        """Make the `count`-th operation from now (1 is the next) fail without effect, once."""
        assert count >= 1
        self._failures[self.operations_count + count] = error_number

    def fail_directory(self, path: str, error_number: int = errno.EIO) -> None:
        """Let every later operation below a directory fail, until the next start."""
        self._failed_directories[path.rstrip("/") + "/"] = error_number

    def take_out(self, path: str) -> "TakenOut":
        """Take a directory out of the machine, with everything in it; an empty one may stand in its place."""
        taken = _copied(self._directory(path), {})
        parent, name = self._parent(path)
        self._tree.change((parent, name, None))
        self._tree.sync_names(parent)
        return TakenOut(taken)

    def put_in(self, path: str, taken: "TakenOut") -> None:
        """Put a directory that was taken out where nothing is."""
        parent, name = self._parent(path)
        assert name not in parent.entries, f"something is in {path}"
        self._tree.change((parent, name, taken.directory))
        self._tree.sync_names(parent)

    def cut_power_at(self, count: int) -> None:
        """Raise `PowerCut` in place of the `count`-th operation from now and of everything after it."""
        assert count >= 1
        self._power_cut_at = self.operations_count + count

    @property
    def used_bytes(self) -> int:
        return sum(len(inode.content) for inode in self._tree.files())

    # -- the Disk port

    def open(self, path: str, *, create: bool) -> SimulatedFile:
        directory, name = self._parent(path)
        node = directory.entries.get(name)
        if isinstance(node, _Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self.operation("create", path)
            node = _Inode()
            self._tree.change((directory, name, node))
        return SimulatedFile(self, path, node)

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def is_directory(self, path: str) -> bool:
        return isinstance(self._find(path), _Directory)

    def size_bytes(self, path: str) -> int:
        node = self._find(path)
        if not isinstance(node, _Inode):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return len(node.content)

    def list(self, directory: str) -> list_of[str]:
        return sorted(self._directory(directory).entries)

    def make_directory(self, path: str) -> None:
        self.check_alive()
        node = self._tree.root
        for name in _names(path):
            child = node.entries.get(name)
            if child is None:
                self.operation("make_directory", path)
                child = _Directory()
                self._tree.change((node, name, child))
            elif isinstance(child, _Inode):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            node = child

    def rename(self, source: str, target: str) -> None:
        source_directory, source_name = self._parent(source)
        target_directory, target_name = self._parent(target)
        node = source_directory.entries.get(source_name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        replaced = target_directory.entries.get(target_name)
        if replaced is node:
            return
        if isinstance(replaced, _Directory) and isinstance(node, _Inode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), target)
        if isinstance(replaced, _Inode) and isinstance(node, _Directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), target)
        if isinstance(replaced, _Directory) and replaced.entries:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), target)
        self.operation("rename", source)
        self._tree.change((source_directory, source_name, None), (target_directory, target_name, node))

    def remove(self, path: str) -> None:
        directory, name = self._parent(path)
        node = directory.entries.get(name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if isinstance(node, _Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        self.operation("remove", path)
        self._tree.change((directory, name, None))

    def remove_tree(self, path: str) -> None:
        node = self._find(path)
        if node is None:
            return
        if isinstance(node, _Inode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        for name, child in sorted(node.entries.items(), key=lambda item: item[0]):
            if isinstance(child, _Directory):
                self.remove_tree(f"{path}/{name}")
            else:
                self.remove(f"{path}/{name}")
        directory, name = self._parent(path)
        self.operation("remove_tree", path)
        self._tree.change((directory, name, None))

    def replace_atomically(self, path: str, data: Bytes) -> None:
        temporary = path + ".tmp"
        file = self.open(temporary, create=True)
        try:
            file.truncate(0)
            file.append(data)
            file.sync()
        finally:
            file.close()
        self.rename(temporary, path)
        self.sync_directory(path.rpartition("/")[0])

    def sync_directory(self, path: str) -> None:
        directory = self._directory(path)
        self.operation("sync_directory", path)
        self._tree.sync_names(directory)

    def boot_id(self) -> str:
        return f"boot {self._boot}"

    def lock(self, path: str) -> SimulatedFile:
        file = self.open(path, create=True)
        key = "/".join(_names(path))
        if key in self._locks:
            file.close()
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)
        self._locks.add(key)
        file._locked = key
        return file

    # -- for its files

    def check_alive(self) -> None:
        if not self._alive:
            raise PowerCut("this disk belongs to a process that has ended")

    def operation(self, name: str, path: str) -> None:
        """Count an operation that is about to happen, and let it fail if that was asked for."""
        self.check_alive()
        self.operations_count += 1
        if self._power_cut_at is not None and self.operations_count >= self._power_cut_at:
            raise PowerCut(f"power cut at operation {self.operations_count}: {name} {path}")
        error_number = self._failures.pop(self.operations_count, None)
        for directory, number in self._failed_directories.items():
            if path.startswith(directory):
                error_number = number
        if error_number is not None:
            raise OSError(error_number, f"{os.strerror(error_number)} (injected into {name})", path)

    def reserve(self, size: int) -> None:
        """Refuse an append of `size` bytes for which there is no room."""
        if self.capacity_bytes is not None and self.used_bytes + size > self.capacity_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def unlock(self, key: str) -> None:
        self._locks.discard(key)

    # -- inside

    def _successor(self) -> "SimulatedDisk":
        assert self._alive, "this disk belongs to a process that has ended"
        self._alive = False
        successor = SimulatedDisk()
        successor._random = self._random
        successor.capacity_bytes = self.capacity_bytes
        successor._boot = self._boot
        return successor

    def _find(self, path: str) -> _Node | None:
        self.check_alive()
        node: _Node | None = self._tree.root
        for name in _names(path):
            if not isinstance(node, _Directory):
                return None
            node = node.entries.get(name)
        return node

    def _directory(self, path: str) -> _Directory:
        node = self._find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if isinstance(node, _Inode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return node

    def _parent(self, path: str) -> tuple[_Directory, str]:
        *parents, name = _names(path)
        return self._directory("/".join(parents)), name

    def __repr__(self) -> str:
        return f"<SimulatedDisk operations={self.operations_count} {'alive' if self._alive else 'ended'}>"


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name and name != "."]
