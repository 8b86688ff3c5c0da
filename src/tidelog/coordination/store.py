"""The port to whatever keeps the cluster's facts: versioned keys, changed together or not at all.

A key is a path (`topics/orders`), a value is bytes, and every write gives a key a new, larger version (1 when
the key is new). A commit carries any number of writes and checks; each may say the version it expects. Either
all of them happen and survive a crash from then on, or none does and the answer names the first key that was
not as expected.

An open store is a session. A key written with `ephemeral=True` belongs to the session that wrote it and goes
when the session ends: by `close`, by `lapse`, by the death of its process, or because the store heard nothing
of it for the session timeout. A session that ended stays ended: every later call raises `SessionLost`, so a
broker that slept through its own end cannot change anything any more.

What happens to a key that is there already:

- a plain write replaces the value and leaves the key as persistent or ephemeral as it was;
- an ephemeral write of a key that is persistent, or another session's, replaces the key: version 1, ours.

Failures of the medium itself raise `StoreError`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

# The version to expect of a key that must not exist yet.
ABSENT = 0


class StoreError(OSError):
    """The store could not be read or written; nothing is known to have changed."""


class CommitUnknown(StoreError):
    """The store was lost during a commit, which has happened, or not, or still may; load to find out."""


class SessionLost(StoreError):
    """This session is over for good and its ephemeral keys are gone; only a new store can go on."""


class Entry(NamedTuple):
    """A stored key with its value and version (1 when new)."""

    key: str
    value: bytes
    version: int


class Write(NamedTuple):
    """A new value for a key, or its end (None); without `expected_version`, whatever is there is replaced."""

    key: str
    value: bytes | None
    expected_version: int | None = None
    ephemeral: bool = False


class Check(NamedTuple):
    """A condition of a commit that writes nothing; ABSENT means that the key must not exist."""

    key: str
    expected_version: int


@dataclass(frozen=True, slots=True)
class Committed:
    """All writes happened; the new version of every key that has a value."""

    versions: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Conflict:
    """Nothing happened: `key` has `found_version` (ABSENT if it does not exist), not the expected one."""

    key: str
    expected_version: int
    found_version: int


class CoordinationStore(Protocol):
    """Every implementation passes tests/contract/test_contract_coordination_store.py.

    Calls block and may come from any thread. Listeners are called from any thread, must not block, and must
    not call the store from within the call.
    """

    @property
    def session_timeout_ms(self) -> int | None:
        """How long the store believes in this session when it does not hear of it; None: as it was asked."""
        ...

    def get(self, key: str) -> Entry | None:
        """The entry of a key, or None."""
        ...

    def load(self, prefix: str = "") -> list[Entry]:
        """Every entry whose key starts with `prefix`, in order of keys; no commit shows in part."""
        ...

    def commit(self, writes: Sequence[Write | Check]) -> Committed | Conflict:
        """Do all the writes or none; a key may be named once in a commit.

        Raises CommitUnknown when nobody can say whether it happened, StoreError when it did not.
        """
        ...

    def watch(self, key: str, listener: Callable[[], None]) -> None:
        """Call `listener` after every change of the value or existence of `key`, whoever made it.

        A key that ends with `/` means the set of keys directly below it. The watch stays until the session
        ends. Calls may be spurious, may stand for several changes, and come after a reconnect too; the last
        change is never missed by a listener that reads after it was called.
        """
        ...

    def on_session_lost(self, listener: Callable[[], None]) -> None:
        """Call `listener` once when this session has ended without being closed; at once if it has."""
        ...

    def lapse(self) -> None:
        """Give the session up as lost, because its broker makes no progress; waits for nothing.

        Nobody is told any more that it lives, so it ends after its timeout at the latest; where the store can
        be reached, it and its ephemeral keys go at once. `on_session_lost` tells. Twice is once.
        """
        ...

    def close(self) -> None:
        """End the session; its ephemeral keys go at once. Twice is once; later calls raise StoreError."""
        ...


def check_writes(writes: Sequence[Write | Check]) -> None:
    """A commit that names a key twice, or a key that is no path, is a bug in whoever built it."""
    keys = [write.key for write in writes]
    assert len(set(keys)) == len(keys), "a key is named twice in one commit"
    assert all(key and not key.endswith("/") for key in keys), "a key is empty or ends with a slash"
