"""One commit as one ZooKeeper transaction: which operations, and what their failure means. No I/O.

The operations are, in this order:

1. the session's own marker (`%sessions/<id>`, ephemeral) gets the token of this commit, if it has the version
   we know: fails when the session has ended, and tells afterwards whether a commit whose answer was lost
   happened;
2. the counter `%commits` is touched, so that a reader knows whether a commit came between its reads;
3. the writes and checks.

What needs a look at the key first (`needs_stat`) is planned for the version that was seen, and the whole
commit is tried again when that one changed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidelog.coordination.store import ABSENT, Check, Conflict, Write
from tidelog.coordination.zookeeper_paths import key_path

ANY_VERSION = -1


class Seen(NamedTuple):
    """What a key was when it was looked at."""

    version: int
    owner: int


@dataclass(frozen=True, slots=True)
class Create:
    path: str
    value: bytes
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Set:
    path: str
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    path: str
    version: int


@dataclass(frozen=True, slots=True)
class CheckVersion:
    path: str
    version: int


Operation = Create | Set | Delete | CheckVersion


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """The operations of the writes, the write each belongs to, and the versions the keys will have."""

    operations: tuple[Operation, ...]
    writes: tuple[Write | Check, ...]
    versions: Mapping[str, int]

    def __repr__(self) -> str:
        size_bytes = sum(len(each.value) for each in self.operations if isinstance(each, Create | Set))
        return f"<Plan {len(self.operations)} operations, values of {size_bytes} bytes>"

    @property
    def created(self) -> list[str]:
        return [each.path for each in self.operations if isinstance(each, Create)]

    @property
    def deleted(self) -> list[str]:
        return [each.path for each in self.operations if isinstance(each, Delete)]


def needs_stat(write: Write | Check) -> bool:
    return isinstance(write, Write) and (write.ephemeral or write.expected_version is None)


def plan(
    root: str, session_id: int, writes: Sequence[Write | Check], seen: Mapping[str, Seen | None]
) -> Plan | Conflict:
    """Plan a commit; `seen` has every key that `needs_stat`, None for one that does not exist."""
    operations: list[Operation] = []
    owners: list[Write | Check] = []
    versions: dict[str, int] = {}
    for write in writes:
        path = key_path(root, write.key)
        if isinstance(write, Check):
            added = _check(path, write)
        else:
            outcome = _write(path, write, session_id, seen.get(write.key))
            if isinstance(outcome, Conflict):
                return outcome
            added, version = outcome
            if write.value is not None:
                versions[write.key] = version
        operations += added
        owners += [write] * len(added)
    return Plan(tuple(operations), tuple(owners), versions)


def _check(path: str, check: Check) -> list[Operation]:
    if check.expected_version == ABSENT:
        # There is no check for absence: what can be created did not exist, and goes again at once.
        return [Create(path, b""), Delete(path, ANY_VERSION)]
    return [CheckVersion(path, check.expected_version - 1)]


def _write(
    path: str, write: Write, session_id: int, seen: Seen | None
) -> tuple[list[Operation], int] | Conflict:
    """The operations of one write and the version that the key has afterwards."""
    version = write.expected_version
    if needs_stat(write):
        found = ABSENT if seen is None else seen.version
        if version is not None and version != found:
            return Conflict(write.key, version, found)
        version = found
    assert version is not None
    if write.value is None:
        if version == ABSENT:
            gone: list[Operation] = (
                [] if write.expected_version is None else _check(path, Check(path, ABSENT))
            )
            return gone, ABSENT
        return [Delete(path, version - 1)], ABSENT
    if version == ABSENT:
        return [Create(path, write.value, write.ephemeral)], 1
    if write.ephemeral and seen is not None and seen.owner != session_id:
        return [Delete(path, version - 1), Create(path, write.value, True)], 1
    return [Set(path, write.value, version - 1)], version + 1
