"""A store in memory for simulations, with conflicts, failures and restarts on demand."""

from collections.abc import Sequence

from tidelog.coordination.store import ABSENT, Committed, Conflict, Entry, StoreError, Write, check_writes


class SimulatedStore:
    """A coordination store in a dictionary.

    `fail_next(count)` makes the next calls raise. `conflict_next(count)` makes the next commits that expect a
    version lose, as if a rival had been faster.
    """

    def __init__(self) -> None:
        self._entries: dict[str, tuple[bytes, int]] = {}
        self._failures = 0
        self._conflicts = 0
        self._closed = False
        self.commits: list[tuple[Write, ...]] = []

    def __repr__(self) -> str:
        return f"<SimulatedStore entries={len(self._entries)} commits={len(self.commits)}>"

    def fail_next(self, count: int = 1) -> None:
        self._failures += count

    def conflict_next(self, count: int = 1) -> None:
        self._conflicts += count

    def reopen(self) -> "SimulatedStore":
        """The same entries as a restarted process would find them."""
        store = SimulatedStore()
        store._entries = dict(self._entries)
        return store

    def load(self, prefix: str = "") -> list[Entry]:
        self._check_usable()
        return [
            Entry(key, value, version)
            for key, (value, version) in sorted(self._entries.items())
            if key.startswith(prefix)
        ]

    def commit(self, writes: Sequence[Write]) -> Committed | Conflict:
        check_writes(writes)
        self._check_usable()
        guarded = next((write for write in writes if write.expected_version is not None), None)
        if self._conflicts > 0 and guarded is not None:
            self._conflicts -= 1
            assert guarded.expected_version is not None
            return Conflict(guarded.key, guarded.expected_version, guarded.expected_version + 1)
        for key, _, expected_version in writes:
            version = self._version(key)
            if expected_version is not None and version != expected_version:
                return Conflict(key, expected_version, version)
        versions: dict[str, int] = {}
        for key, value, _ in writes:
            if value is None:
                self._entries.pop(key, None)
            else:
                versions[key] = self._version(key) + 1
                self._entries[key] = (bytes(value), versions[key])
        self.commits.append(tuple(writes))
        return Committed(versions)

    def close(self) -> None:
        self._closed = True

    def _version(self, key: str) -> int:
        return self._entries[key][1] if key in self._entries else ABSENT

    def _check_usable(self) -> None:
        if self._closed:
            raise StoreError("the simulated store is closed")
        if self._failures > 0:
            self._failures -= 1
            raise StoreError("the simulated store failed as told")
