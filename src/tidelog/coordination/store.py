"""The port to whatever keeps the cluster's facts: versioned keys, changed together or not at all.

A key is a path (`topics/orders`), a value is bytes, and every write gives a key a new, larger version. A
commit carries any number of writes; each may say the version it expects to replace. Either all of them happen
and survive a crash from then on, or none does and the answer names the first key that was not as expected.
Failures of the medium itself raise `StoreError`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

# The version to expect of a key that must not exist yet.
ABSENT = 0


class StoreError(OSError):
    """The store could not be read or written; nothing is known to have changed."""


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
    """Every implementation passes tests/contract/test_contract_coordination_store.py."""

    def load(self, prefix: str = "") -> list[Entry]:
        """Every entry whose key starts with `prefix`, in order of keys."""
        ...

    def commit(self, writes: Sequence[Write]) -> Committed | Conflict:
        """Do all the writes or none; a key may be written once in a commit."""
        ...

    def close(self) -> None:
        """Let go of the medium; closing twice does nothing, other calls then raise StoreError."""
        ...


def check_writes(writes: Sequence[Write]) -> None:
    """A commit that writes a key twice is a bug in whoever built it."""
    assert len({write.key for write in writes}) == len(writes), "a key is written twice in one commit"
