"""A store in memory for simulations: several sessions over one state, with faults on demand.

    cluster = SimulatedCluster(random=Random(seed), schedule=simulation.call_soon)
    store = cluster.open("broker 1")          # a session; open as many as there are brokers
    store.partition(); store.heal()           # cut the session off from the store, and join it again
    store.expire()                            # the store gives the session up, as after its timeout

Nothing here has a thread, a clock or a hidden source of chance. Listeners are called by way of `schedule`: it
takes the call to make and decides when it is made (at once if nobody says otherwise); calls that wait for the
same watch are one. What the faults mean:

- *partitioned*: reads raise StoreError. Of the commits, the first after the cut may have reached the store
  before it: it raises CommitUnknown and `random` decides whether it happened. Later ones raise StoreError.
  Nothing is told to the session until it is healed; then every watch is called.
- *expired*: the ephemeral keys are gone at once. The session itself learns of it with its next call, or by
  `on_session_lost`; a partitioned one only when it is healed.
"""

from collections.abc import Callable, Sequence
from random import Random

from tidelog.coordination.store import (
    ABSENT,
    Check,
    Committed,
    CommitUnknown,
    Conflict,
    Entry,
    SessionLost,
    StoreError,
    Write,
    check_writes,
)
from tidelog.coordination.watches import Listener, Watches

Schedule = Callable[[Callable[[], None]], None]
_PERSISTENT = 0


def _at_once(call: Callable[[], None]) -> None:
    call()


class SimulatedCluster:
    """The state that the sessions share."""

    def __init__(self, random: Random | None = None, schedule: Schedule | None = None) -> None:
        self.random = random or Random(0)
        #: every commit that happened, oldest first
        self.commits: list[tuple[Write | Check, ...]] = []
        self._schedule = schedule or _at_once
        self._entries: dict[str, tuple[bytes, int, int]] = {}
        self._sessions: dict[int, SimulatedStore] = {}
        self._last_session = 0

    def __repr__(self) -> str:
        return f"<SimulatedCluster entries={len(self._entries)} sessions={list(self._sessions.values())}>"

    @property
    def sessions(self) -> tuple["SimulatedStore", ...]:
        """The sessions that the store believes in, oldest first."""
        return tuple(self._sessions.values())

    def open(self, name: str = "", schedule: Schedule | None = None) -> "SimulatedStore":
        """A new session; its listeners are called through its own `schedule` if one is given."""
        return SimulatedStore(self, name, schedule)

    def entries(self) -> list[Entry]:
        """What the store holds, for checkers: no session, no faults."""
        return [Entry(key, value, version) for key, (value, version, _) in sorted(self._entries.items())]

    def _join(self, store: "SimulatedStore") -> int:
        self._last_session += 1
        self._sessions[self._last_session] = store
        return self._last_session

    def _leave(self, session: int) -> None:
        if self._sessions.pop(session, None) is None:
            return
        gone = [key for key, (_, _, owner) in self._entries.items() if owner == session]
        for key in gone:
            del self._entries[key]
        self._tell(gone)

    def _conflict(self, writes: Sequence[Write | Check]) -> Conflict | None:
        for write in writes:
            version = self._entries[write.key][1] if write.key in self._entries else ABSENT
            if write.expected_version is not None and version != write.expected_version:
                return Conflict(write.key, write.expected_version, version)
        return None

    def _commit(self, session: int, writes: Sequence[Write | Check]) -> Committed | Conflict:
        conflict = self._conflict(writes)
        if conflict is not None:
            return conflict
        versions: dict[str, int] = {}
        changed: list[str] = []
        for write in writes:
            if isinstance(write, Check):
                continue
            _, version, owner = self._entries.get(write.key, (b"", ABSENT, _PERSISTENT))
            if write.value is None:
                if self._entries.pop(write.key, None) is not None:
                    changed.append(write.key)
                continue
            if version == ABSENT or (write.ephemeral and owner != session):
                version, owner = ABSENT, session if write.ephemeral else _PERSISTENT
            versions[write.key] = version + 1
            self._entries[write.key] = (bytes(write.value), version + 1, owner)
            changed.append(write.key)
        self.commits.append(tuple(writes))
        self._tell(changed)
        return Committed(versions)

    def _tell(self, keys: Sequence[str]) -> None:
        for store in list(self._sessions.values()):
            store._changed(keys)


class SimulatedStore:
    """A session of a simulated store; made without a cluster, it is alone in one of its own.

    `fail_next(count)` makes the next calls raise. `conflict_next(count)` makes the next commits that expect a
    version lose, as if a rival had been faster. `lose_answer_next(count)` makes the next commits raise
    CommitUnknown; the random generator of the cluster decides which of them happen.
    """

    def __init__(
        self, cluster: SimulatedCluster | None = None, name: str = "", schedule: Schedule | None = None
    ) -> None:
        self.cluster = cluster or SimulatedCluster()
        self.name = name
        #: the session timeout that this store says it grants
        self.granted_timeout_ms: int | None = None
        self._schedule = schedule or self.cluster._schedule
        self._watches = Watches()
        self._due: set[str] = set()
        self._lost_listeners: list[Listener] = []
        self._failures = 0
        self._conflicts = 0
        self._lost_answers = 0
        self._partitioned = False
        self._commit_in_flight = False
        self._lost_told = False
        self._lapsed = False
        self._closed = False
        self._session = self.cluster._join(self)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "expired" if self.expired else "open"
        cut = " partitioned" if self._partitioned else ""
        return f"<SimulatedStore {self.name or self._session} {state}{cut}>"

    # -- faults

    @property
    def expired(self) -> bool:
        """Whether the store no longer knows this session."""
        return self._session not in self.cluster._sessions

    @property
    def commits(self) -> list[tuple[Write | Check, ...]]:
        """Every commit that happened in the cluster."""
        return self.cluster.commits

    def fail_next(self, count: int = 1) -> None:
        self._failures += count

    def conflict_next(self, count: int = 1) -> None:
        self._conflicts += count

    def lose_answer_next(self, count: int = 1) -> None:
        self._lost_answers += count

    def partition(self) -> None:
        """Cut this session off from the store."""
        self._commit_in_flight = self._commit_in_flight or not self._partitioned
        self._partitioned = True

    def heal(self) -> None:
        """Join the session and the store again: it hears of everything, or of its end."""
        if not self._partitioned:
            return
        self._partitioned = self._commit_in_flight = False
        if self._lapsed:
            self.cluster._leave(self._session)
        if self.expired:
            self._tell_lost()
        else:
            self._fire(self._watches.keys())

    def expire(self) -> None:
        """The store gives the session up; so it goes for a process that died, too."""
        if not self.expired:
            self.cluster._leave(self._session)
            if not self._partitioned:
                self._tell_lost()

    def reopen(self) -> "SimulatedStore":
        """A copy of the persistent entries in a cluster of its own, as a restarted process finds them."""
        copy = SimulatedCluster()
        copy._entries = {
            key: entry for key, entry in self.cluster._entries.items() if entry[2] == _PERSISTENT
        }
        return copy.open(self.name)

    # -- the port

    @property
    def session_timeout_ms(self) -> int | None:
        return self.granted_timeout_ms

    def get(self, key: str) -> Entry | None:
        self._check_usable()
        found = self.cluster._entries.get(key)
        return None if found is None else Entry(key, found[0], found[1])

    def load(self, prefix: str = "") -> list[Entry]:
        self._check_usable()
        return [entry for entry in self.cluster.entries() if entry.key.startswith(prefix)]

    def commit(self, writes: Sequence[Write | Check]) -> Committed | Conflict:
        check_writes(writes)
        if self._partitioned and self._commit_in_flight and not self._closed and not self._lapsed:
            self._commit_in_flight = False
            self._commit_without_answer(writes)
        self._check_usable()
        if self._lost_answers > 0:
            self._lost_answers -= 1
            self._commit_without_answer(writes)
        guarded = next((write for write in writes if write.expected_version is not None), None)
        if self._conflicts > 0 and guarded is not None:
            self._conflicts -= 1
            assert guarded.expected_version is not None
            return Conflict(guarded.key, guarded.expected_version, guarded.expected_version + 1)
        return self.cluster._commit(self._session, writes)

    def watch(self, key: str, listener: Listener) -> None:
        self._check_usable()
        self._watches.add(key, listener)

    def on_session_lost(self, listener: Listener) -> None:
        self._lost_listeners.append(listener)
        if self._lost_told:
            self._schedule(listener)

    def lapse(self) -> None:
        if not self._closed and not self.expired and not self._lapsed:
            self._lapsed = True
            # As for the farewell: a partitioned one is only silent, and its keys stay until it is expired.
            if not self._partitioned:
                self.cluster._leave(self._session)
            self._tell_lost()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            # The farewell of a partitioned session does not arrive: its keys stay until it is expired.
            if not self._partitioned:
                self.cluster._leave(self._session)

    # -- inside

    def _commit_without_answer(self, writes: Sequence[Write | Check]) -> None:
        if self.cluster.random.random() < 0.5 and not self.expired:
            self.cluster._commit(self._session, writes)
        raise CommitUnknown("the answer to a commit was lost, as told")

    def _check_usable(self) -> None:
        if self._closed:
            raise StoreError("the simulated store is closed")
        if self._failures > 0:
            self._failures -= 1
            raise StoreError("the simulated store failed as told")
        if self._lapsed:
            raise SessionLost("the session of the simulated store has lapsed")
        if self._partitioned:
            raise StoreError("the simulated store cannot be reached")
        if self.expired:
            self._tell_lost()
            raise SessionLost("the session of the simulated store has expired")

    def _changed(self, keys: Sequence[str]) -> None:
        if not self._partitioned:
            self._fire(self._watches.touched_by(keys))

    def _fire(self, watched: Sequence[str]) -> None:
        for key in watched:
            if key not in self._due:
                self._due.add(key)
                self._schedule(lambda key=key: self._deliver(key))  # type: ignore[misc]

    def _deliver(self, key: str) -> None:
        self._due.discard(key)
        # Cut off meanwhile: the heal calls every watch, so nothing is missed.
        if not self._closed and not self._partitioned and not self.expired:
            for listener in self._watches.listeners(key):
                listener()

    def _tell_lost(self) -> None:
        if not self._lost_told and not self._closed:
            self._lost_told = True
            for listener in self._lost_listeners:
                self._schedule(listener)
