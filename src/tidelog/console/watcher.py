"""The thread that looks at the cluster every few seconds, and remembers a bounded past of it.

Each look makes a new `Snapshot`; pages read `watcher.view`, a frozen value, so they need no lock. Ends of
logs and committed offsets are sampled too, for lag and rates, within limits: at most PARTITIONS_SAMPLED_MAX
partitions and GROUPS_SAMPLED_MAX groups at a look, groups in turn. A look that takes long makes the pause
after it longer, so that the console never takes more than a fraction of a cluster's time.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from tidelog.admin.cluster_admin import ClusterAdmin
from tidelog.admin.groups import Groups
from tidelog.admin.overview import Overview
from tidelog.admin.snapshot import GroupView, Snapshot, TopicPartitionKey
from tidelog.console import events
from tidelog.console.events import ConsoleEvent
from tidelog.console.faults import ConsoleFault
from tidelog.console.history import History, Rates
from tidelog.console.share_watch import ShareWatch

POLL_SECONDS = 2.0
PAUSE_PER_WORK = 4.0
PAUSE_SECONDS_MAX = 30.0
PARTITIONS_SAMPLED_MAX = 2_000
GROUPS_SAMPLED_MAX = 50
EVENTS_MAX = 500
TRAFFIC = "traffic"

log = logging.getLogger("tidelog.console")


@dataclass(frozen=True, slots=True)
class LagView:
    """How far a group is behind: in all, and per partition (committed, end)."""

    total: int
    partitions: dict[TopicPartitionKey, tuple[int, int | None]]
    at: float


@dataclass(frozen=True, slots=True)
class View:
    """What pages draw: the last snapshot that succeeded, and the trouble if the latest look failed."""

    snapshot: Snapshot | None = None
    fault: ConsoleFault | None = None
    version: int = 0


class Watcher:
    """Polls in a thread from `start` to `stop`; `look` makes one poll by hand."""

    def __init__(
        self,
        wire: ClusterAdmin,
        overview: Overview,
        groups: Groups,
        shares: ShareWatch,
        poll_seconds: float = POLL_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._wire = wire
        self._overview = overview
        self._groups = groups
        self.shares = shares
        self._poll_seconds = poll_seconds
        self._clock = clock
        self._view = View()
        self._looking = threading.Lock()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._listeners: dict[int, Callable[[], None]] = {}
        self._listener_count = 0
        self._rates = Rates()
        self._consumed = Rates()
        self._group_cursor = 0
        self._sampled_groups: list[str] = []
        self._ends: dict[TopicPartitionKey, int] = {}
        self.events: deque[ConsoleEvent] = deque(maxlen=EVENTS_MAX)
        self.lag_history = History()
        self.rate_history = History()
        #: records per second that groups commit
        self.consumed_history = History()
        self.lag: dict[str, LagView] = {}

    @property
    def view(self) -> View:
        return self._view

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="console-watcher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def hurry(self) -> None:
        """Look again now: something was changed through the console."""
        self._wake.set()

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have `listener` called (in the watcher's thread) after each look; returns how to stop that."""
        self._listener_count += 1
        number = self._listener_count
        self._listeners[number] = listener

        def forget() -> None:
            self._listeners.pop(number, None)

        return forget

    def _run(self) -> None:
        while not self._stop.is_set():
            started = time.monotonic()
            try:
                self.look()
            except Exception as fault:
                # Whatever it was: the next look may go well, and people see that this one did not.
                log.exception("looking at the cluster failed")
                trouble = ConsoleFault(
                    f"the console could not look at the cluster: {type(fault).__name__}", "Its log says more."
                )
                self._view = View(self._view.snapshot, trouble, self._view.version + 1)
            spent = time.monotonic() - started
            self._wake.wait(min(PAUSE_SECONDS_MAX, max(self._poll_seconds, PAUSE_PER_WORK * spent)))
            self._wake.clear()

    def look(self) -> None:
        """One poll: what metadata says is published first, then groups, then samples.

        Groups and offsets are asked of every broker, so one that hangs makes them late. That it hangs is
        what people want to see at once. Trouble becomes part of the view.
        """
        with self._looking:
            before = self._view
            try:
                if before.snapshot is None or before.fault is not None:
                    self._wire.probe()
                known = {} if before.snapshot is None else before.snapshot.groups
                self._publish(before, self._overview.snapshot(known))
                first = self._view
                assert first.snapshot is not None
                snapshot = self._with_groups(first.snapshot)
                self._publish(View() if before.snapshot is None else first, snapshot)
                self._sample(snapshot)
            except ConsoleFault as fault:
                self._view = View(self._view.snapshot, fault, self._view.version + 1)
                if before.fault is None:
                    log.warning("the cluster cannot be seen: %s", fault.message)
                    self.events.append(ConsoleEvent(self._clock(), "unreachable", "bad", fault.message))
        self.tell()

    def _publish(self, before: View, snapshot: Snapshot) -> None:
        if before.fault is not None:
            self.events.append(ConsoleEvent(self._clock(), "reachable", "good", "The cluster answers again"))
        news = [] if before.snapshot is None else events.changes(before.snapshot, snapshot)
        self.events.extend(news)
        self._view = View(snapshot, None, self._view.version + 1)
        if news:
            self.tell()

    def tell(self) -> None:
        """Call everyone who listens."""
        for listener in list(self._listeners.values()):
            listener()

    def _with_groups(self, snapshot: Snapshot) -> Snapshot:
        """The groups now, with members of some of them in turn; the others keep what was known of them."""
        listing, problems = self._groups.list_groups(snapshot.brokers)
        if problems:
            # A group that a broker did not list is not gone: its coordinator may be away.
            listing = {**snapshot.groups, **listing}
        ids = list(listing)
        if len(ids) > GROUPS_SAMPLED_MAX:
            start = self._group_cursor % len(ids)
            ids = (ids + ids)[start : start + GROUPS_SAMPLED_MAX]
            self._group_cursor = start + GROUPS_SAMPLED_MAX
        self._sampled_groups = ids
        described = self._groups.describe_groups({group_id: listing[group_id].type for group_id in ids})
        groups: dict[str, GroupView] = {}
        for group_id, listed in listing.items():
            known = described.get(group_id) or snapshot.groups.get(group_id)
            if known is None or not known.described:
                groups[group_id] = listed
            else:
                groups[group_id] = replace(known, state=listed.state, type=listed.type)
        return replace(snapshot, groups=groups, problems=(*snapshot.problems, *problems))

    def _sample(self, snapshot: Snapshot) -> None:
        at = self._clock()
        share_groups = [name for name in self._sampled_groups if snapshot.groups[name].type == "share"]
        others = [name for name in self._sampled_groups if snapshot.groups[name].type != "share"]
        committed = self._groups.committed(others)
        wanted = {key for offsets in committed.values() for key in offsets}
        alive = {
            (topic.name, partition.number)
            for topic in snapshot.topics.values()
            for partition in topic.partitions
            if not partition.offline
        }
        wanted &= alive
        everything = len(alive) <= PARTITIONS_SAMPLED_MAX
        if everything:
            wanted = alive
        ends = self._overview.ends(sorted(wanted)[: PARTITIONS_SAMPLED_MAX * 2])
        # A leader that just moved may not answer: what was known of its log is nearer the truth than nothing.
        self._ends = {key: end for key, end in self._ends.items() if key in alive} | ends
        for group_id, offsets in committed.items():
            rows = {key: (offset, self._ends.get(key)) for key, offset in offsets.items()}
            total = sum(max(0, end - offset) for offset, end in rows.values() if end is not None)
            self.lag[group_id] = LagView(total, rows, at)
            self.lag_history.add(group_id, at, total)
            consumed = self._consumed.rate(group_id, at, sum(offsets.values()))
            if consumed is not None:
                self.consumed_history.add(group_id, at, consumed)
        for group_id, starts in self.shares.sample(at, snapshot, share_groups, self._ends).items():
            # What is done with behind the start is no lag: as if the log ended so much earlier.
            begun = {
                key: (start, None if lag is None else start + lag)
                for key, (start, lag) in starts.items()
                if start is not None
            }
            total = sum(lag or 0 for _, lag in starts.values())
            self.lag[group_id] = LagView(total, begun, at)
            self.lag_history.add(group_id, at, total)
        self.shares.keep_only(set(snapshot.groups))
        for group_id in set(self.lag) - set(snapshot.groups):
            del self.lag[group_id]
        self._consumed.keep_only(set(snapshot.groups))
        if everything:
            self._sample_rates(at, ends, alive)

    def _sample_rates(
        self, at: float, ends: dict[TopicPartitionKey, int], alive: set[TopicPartitionKey]
    ) -> None:
        by_topic: dict[str, list[float | None]] = {}
        for (topic, number), end in ends.items():
            # Each partition has its own counter: one that was not told of at a look must not seem to jump.
            by_topic.setdefault(topic, []).append(self._rates.rate(f"{topic}-{number}", at, end))
        total: float | None = None
        for topic, rates in by_topic.items():
            known = [rate for rate in rates if rate is not None]
            if known:
                self.rate_history.add(topic, at, sum(known))
                if not topic.startswith("__"):
                    total = (total or 0.0) + sum(known)
        self._rates.keep_only({f"{topic}-{number}" for topic, number in alive})
        if total is not None:
            self.rate_history.add(TRAFFIC, at, total)

    def end_offset(self, topic: str, partition: int) -> int | None:
        """The end of a log at the last look, if it was sampled."""
        return self._ends.get((topic, partition))
