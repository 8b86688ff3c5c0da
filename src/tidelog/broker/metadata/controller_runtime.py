"""What a broker does while it is the controller: decide commands one at a time and make them durable.

A command is decided against the newest image; its records, under the keys they live at and in the change log,
go to the store in one commit, fenced by the version of `controller-epoch`; then the image moves on, listeners
hear of it, and only then the caller gets the results. So "created" is said of what survives a crash.

**Fence.** A commit that finds another version of `controller-epoch` tells this broker that it is not the
controller any more, whatever it still had in its queue. It resigns: nothing of the queue is decided here,
every caller is told so (None for results) and goes to whoever is the controller now.

**Large decisions.** What does not fit one commit goes in several, in the order of the records. The first of
them writes the whole decision under `unfinished`, the last removes it. A controller that takes over and finds
`unfinished` does those writes again before it decides anything: no other decision can have come between, and
values are whole states, so doing it again gives the same. Until then brokers see a part of the decision that
is whole in itself: a topic with fewer partitions, some of the elections.

**Trouble.** When the store fails, the commit is tried again until the caller gave up. When the outcome of a
commit is unknown, everything is read again: either the change is there, or the command is decided anew.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from random import Random

from tidelog.broker.metadata.change_log import (
    CHANGES_KEPT,
    Part,
    change_key,
    decode_change,
    encode_change,
    split,
)
from tidelog.broker.metadata.current_image import CurrentImage
from tidelog.broker.metadata.election import UNFINISHED_KEY, Incumbent, Takeover, enter
from tidelog.broker.metadata.store_session import StoreSession
from tidelog.broker.runtime.timers import Timers
from tidelog.controller.commands import (
    BrokersChanged,
    Command,
    Decision,
    ElectOffline,
    LeadersElected,
    LiveBroker,
    RebalanceLeaders,
    Result,
)
from tidelog.controller.machine import Controller
from tidelog.coordination.store import (
    ABSENT,
    Check,
    Committed,
    CommitUnknown,
    Conflict,
    CoordinationStore,
    SessionLost,
    StoreError,
    Write,
)
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.identifiers import NO_LEADER, TopicPartition
from tidelog.model.image import ClusterImage
from tidelog.model.metadata import (
    CHANGES_KEY,
    CONTROLLER_EPOCH_KEY,
    BrokerRecord,
    ConfigRecord,
    ControllerRecord,
    MetadataRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from tidelog.model.settings import BrokerSettings

log = logging.getLogger(__name__)

#: what one commit may carry; a ZooKeeper takes about a megabyte at once
COMMIT_WRITES_MAX = 4_000
COMMIT_BYTES_MAX = 600_000
ATTEMPTS_MAX = 5
#: changes that are no longer kept go a few at a time: removing a key costs a look at it
TRIM_EVERY = 32
QUEUE_MAX = 10_000
RETRY_MS_MIN = 50
RETRY_MS_MAX = 1_000
_TAKEOVER = "takeover"
_MEMBERSHIP = "membership"
_RETRY_TIMER = "controller retry"
_REBALANCE_TIMER = "controller rebalance"
_OFFLINE_TIMER = "controller offline partitions"
#: a replica that is there, and does not say for so long how long its log is, cannot open it
UNHEARD_MS_MAX = 30_000

Results = tuple[Result, ...]
#: results, or None when this broker is not the controller (any more) and another one must be asked
Decided = Callable[[Results | None], None]


class Job:
    """One decision on its way: waiting, or with its records at the store."""

    __slots__ = (
        "abandoned",
        "attempts",
        "decide",
        "decision",
        "finished",
        "next_part",
        "parts",
        "then",
        "what",
    )

    def __init__(self, what: str, decide: Callable[[], Decision], then: Decided) -> None:
        self.what = what
        self.decide = decide
        self.then = then
        #: the caller does not wait any more; what has not begun need not be done
        self.abandoned = False
        self.finished = False
        self.attempts = 0
        self.decision = Decision((), ())
        #: the records of the decision by commits, once the first of them is made
        self.parts: list[Part] = []
        self.next_part = 0

    def abandon(self) -> None:
        """Nobody waits for it any more."""
        self.abandoned = True

    def finish(self, results: "Results | None") -> None:
        """Answer whoever waits."""
        self.finished = True
        self.then(results)

    def __repr__(self) -> str:
        return f"<Job {self.what} part {self.next_part} of {len(self.parts)}>"


class ControllerRuntime:
    """The controller's work on this broker; idle while another broker is the controller."""

    def __init__(
        self,
        current: CurrentImage,
        session: StoreSession,
        settings: BrokerSettings,
        random: Random,
        timers: Timers,
        *,
        on_resigned: Callable[[Incumbent | None], None],
    ) -> None:
        """`on_resigned` hears that this broker is not the controller any more, and who is, where known."""
        self.active = False
        self.epoch = 0
        #: the number of the last change that this controller made or found
        self.sequence = 0
        self._current = current
        self._on_resigned = on_resigned
        self._session = session
        self._settings = settings
        self._controller = Controller(settings)
        self._random = random
        self._timers = timers
        self._me: LiveBroker | None = None
        self._epoch_version = ABSENT
        self._versions: dict[str, int] = {}
        self._live: tuple[LiveBroker, ...] = ()
        self._queue: deque[Job] = deque()
        self._job: Job | None = None
        self._carrying_out = False
        self._membership_job: Job | None = None
        self._retry_ms = RETRY_MS_MIN
        #: partitions that could be led but for the silence of a replica, and since when
        self._unheard: dict[TopicPartition, int] = {}

    def __repr__(self) -> str:
        return f"<ControllerRuntime active={self.active} epoch={self.epoch} waiting={len(self._queue)}>"

    # -- the place

    def take_over(self, takeover: Takeover, me: LiveBroker) -> None:
        """Begin to decide; the image shows the takeover's snapshot already."""
        assert not self.active
        self.active = True
        self._me = me
        self._adopt_seat(takeover)
        self._live = takeover.live
        log.info("broker %d is the controller now, epoch %d", me.broker_id, self.epoch)
        if takeover.unfinished is not None:
            records = decode_change(takeover.unfinished.value)
            self._queue.append(Job("unfinished decision", lambda: Decision(tuple(records), ()), _nothing))
        self._membership_job = Job(_TAKEOVER, self._decide_takeover, _nothing)
        self._queue.append(self._membership_job)
        self._set_rebalance_timer()
        self._carry_out()

    def _adopt_seat(self, takeover: Takeover) -> None:
        self.epoch = takeover.epoch
        self.sequence = takeover.snapshot.sequence
        self._epoch_version = takeover.epoch_version
        self._versions = dict(takeover.snapshot.versions)
        if takeover.unfinished is not None:
            self._versions[UNFINISHED_KEY] = takeover.unfinished.version

    def resign(self, reason: str, incumbent: Incumbent | None = None, *, stopping: bool = False) -> None:
        """Decide nothing more; everybody who waits is sent to the next controller."""
        if not self.active:
            return
        level = logging.INFO if stopping else logging.WARNING
        log.log(level, "this broker is no longer the controller of epoch %d: %s", self.epoch, reason)
        self.active = False
        self._timers.cancel(_RETRY_TIMER)
        self._timers.cancel(_REBALANCE_TIMER)
        self._timers.cancel(_OFFLINE_TIMER)
        self._unheard = {}
        waiting = [*([self._job] if self._job is not None else []), *self._queue]
        self._job = None
        self._membership_job = None
        self._queue.clear()
        self._on_resigned(incumbent)
        for job in waiting:
            job.finish(None)

    # -- what there is to decide

    def submit(self, command: Command, then: Decided) -> Job | None:
        """Decide a command after those before it; None if too many wait."""
        assert self.active
        if len(self._queue) >= QUEUE_MAX:
            return None
        job = Job(type(command).__name__, lambda: self._handle(command), then)
        self._queue.append(job)
        self._carry_out()
        return job

    def brokers_seen(self, live: tuple[LiveBroker, ...]) -> None:
        """These brokers are there now; what follows from it comes before all commands that wait."""
        if not self.active or live == self._live:
            return
        self._live = live
        if self._membership_job is None:
            job = self._membership_job = Job(_MEMBERSHIP, self._decide_membership, _nothing)
            self._queue.appendleft(job)
            self._carry_out()

    def _handle(self, command: Command) -> Decision:
        return self._controller.handle(command, self._current.image, self._random)

    def _decide_membership(self) -> Decision:
        # From here on a further change needs a decision of its own.
        self._membership_job = None
        return self._handle(BrokersChanged(self._live, self.sequence + 1))

    def _decide_takeover(self) -> Decision:
        decision = self._decide_membership()
        assert self._me is not None
        return Decision(
            (ControllerRecord(self._me.broker_id, self.epoch), *decision.records), decision.results
        )

    def _set_rebalance_timer(self) -> None:
        if self._settings.get_bool("auto.leader.rebalance.enable"):
            delay_ms = self._settings.get_int("leader.imbalance.check.interval.seconds") * 1000
            self._timers.set_after(_REBALANCE_TIMER, delay_ms, self._rebalance)

    def _rebalance(self) -> None:
        self._set_rebalance_timer()
        self.submit(RebalanceLeaders(), _nothing)

    def _look_after_offline(self) -> None:
        """In a while, elect leaders where an unclean election is allowed: others may come back by then."""
        if _OFFLINE_TIMER not in self._timers:
            delay_ms = self._settings.get_int("unclean.recovery.timeout.ms")
            self._timers.set_after(_OFFLINE_TIMER, delay_ms, self._elect_offline)

    def _elect_offline(self) -> None:
        def elected(results: Results | None) -> None:
            [result] = results or (None,)
            if isinstance(result, LeadersElected):
                now_ms = self._timers.monotonic_ms()
                self._unheard = {name: self._unheard.get(name, now_ms) for name in result.silent}
                if self._unheard:
                    self._look_after_offline()

        long_ago_ms = self._timers.monotonic_ms() - UNHEARD_MS_MAX
        impatient = tuple(name for name, since_ms in self._unheard.items() if since_ms <= long_ago_ms)
        self.submit(ElectOffline(impatient), elected)

    # -- carrying out

    def _carry_out(self) -> None:
        # A loop, not recursion: decisions that change nothing, or a store that answers at once, end here.
        if self._carrying_out:
            return
        self._carrying_out = True
        try:
            while self._queue and self._job is None:
                job = self._queue.popleft()
                self._job = job
                if job.abandoned:
                    self._finish(job, None)
                else:
                    self._begin(job)
        finally:
            self._carrying_out = False
            if self._queue and self._job is None:
                # A decision failed, which is a bug; those behind it are not to blame.
                self._timers.set_after(_RETRY_TIMER, RETRY_MS_MIN, self._carry_out)

    def _begin(self, job: Job) -> None:
        """Decide, and send the first part to the store."""
        job.attempts += 1
        try:
            job.decision = job.decide()
        except BaseException:
            self._job = None
            raise
        job.parts = []
        job.next_part = 0
        self._commit_next(job)

    def _commit_next(self, job: Job) -> None:
        if not job.decision.records or (job.parts and job.next_part == len(job.parts)):
            self._finish(job, job.decision.results)
            return
        began_ms = self._timers.monotonic_ms()
        sequence = self.sequence + 1
        self._session.run(
            lambda store: self._commit(store, job, sequence),
            lambda outcome: self._settle(job, sequence, began_ms, outcome),
        )

    def _commit(
        self, store: CoordinationStore, job: Job, sequence: int
    ) -> tuple[list[Write | Check], Committed | Conflict]:
        """Write one part; in a worker thread, since thousands of records take their time to encode."""
        if not job.parts:
            job.parts = split(job.decision.records, COMMIT_WRITES_MAX, COMMIT_BYTES_MAX)
        versions = self._versions
        part = job.parts[job.next_part]
        changes: dict[str, bytes | None] = dict(part.writes)
        # The fence names this key, so it is not written as well; it holds the same already.
        changes.pop(CONTROLLER_EPOCH_KEY, None)
        if len(job.parts) > 1:
            if job.next_part == 0:
                changes[UNFINISHED_KEY] = encode_change(line for each in job.parts for line in each.lines)
            elif job.next_part == len(job.parts) - 1:
                changes[UNFINISHED_KEY] = None
        elif UNFINISHED_KEY in versions:
            # The unfinished decision of an earlier controller, which now needs one commit only.
            changes[UNFINISHED_KEY] = None
        changes[change_key(sequence)] = encode_change(line for _, line in self._unapplied(part))
        changes[CHANGES_KEY] = b"%d" % sequence
        writes: list[Write | Check] = [Check(CONTROLLER_EPOCH_KEY, self._epoch_version)]
        for key, value in changes.items():
            expected = versions.get(key, ABSENT)
            if value is not None or expected != ABSENT:
                writes.append(Write(key, value, expected))
        if sequence % TRIM_EVERY == 0:
            last = sequence - CHANGES_KEPT
            writes += [Write(change_key(old), None) for old in range(max(1, last - TRIM_EVERY + 1), last + 1)]
        return writes, store.commit(writes)

    def _unapplied(self, part: Part) -> list[tuple[MetadataRecord, bytes]]:
        """Without what the image has already, when an unfinished decision is done again."""
        topics = self._current.image.topics
        return [
            (record, line)
            for record, line in zip(part.records, part.lines, strict=True)
            if not (isinstance(record, TopicRecord) and record.name in topics)
            and not (isinstance(record, RemoveTopicRecord) and record.name not in topics)
        ]

    def _settle(
        self,
        job: Job,
        sequence: int,
        began_ms: int,
        outcome: tuple[list[Write | Check], Committed | Conflict] | BaseException,
    ) -> None:
        """Go on after the store answered."""
        if job is not self._job:
            # Resigned meanwhile; the caller has been sent on.
            return
        match outcome:
            case (writes, Committed() as committed):
                self._retry_ms = RETRY_MS_MIN
                self._committed(job, sequence, began_ms, writes, committed)
            case (_, Conflict(key=key)) if key == CONTROLLER_EPOCH_KEY:
                self.resign("another controller has been elected")
            case (_, Conflict() as conflict):
                self._read_again(job, None, str(conflict))
            case CommitUnknown():
                self._read_again(job, sequence, "the outcome of a commit is unknown")
            case SessionLost():
                self.resign("the session with the coordination store is over")
            case StoreError():
                self._retry_later(job, lambda: self._commit_next(job))
            case BaseException() as bug:
                self._finish(job, None)
                raise bug

    def _committed(
        self, job: Job, sequence: int, began_ms: int, writes: Sequence[Write | Check], committed: Committed
    ) -> None:
        versions = self._versions
        for write in writes:
            if isinstance(write, Write) and write.value is None:
                versions.pop(write.key, None)
        versions.update(committed.versions)
        versions.pop(change_key(sequence), None)
        self.sequence = sequence
        records = [record for record, _ in self._unapplied(job.parts[job.next_part])]
        job.next_part += 1
        old = self._current.image
        try:
            self._current.adopt(records, sequence)
            if any(_may_allow_election(record) for record in records):
                self._look_after_offline()
            self._log_events(job, old, records, self._timers.monotonic_ms() - began_ms)
        finally:
            # A listener that fails must not stop the changes that wait behind this one.
            if job is self._job:
                self._commit_next(job)

    def _finish(self, job: Job, results: Results | None) -> None:
        self._job = None
        try:
            job.finish(results)
        finally:
            self._carry_out()

    # -- trouble

    def _retry_later(self, job: Job, again: Callable[[], None], *, written: bool = False) -> None:
        """Try again, unless nobody waits for it and nothing of it is, or may be, written."""

        def retry() -> None:
            if job is not self._job:
                return
            if job.abandoned and job.next_part == 0 and not written:
                self._finish(job, None)
            else:
                again()

        self._timers.set_after(_RETRY_TIMER, self._retry_ms, retry)
        self._retry_ms = min(2 * self._retry_ms, RETRY_MS_MAX)

    def _read_again(self, job: Job, sequence: int | None, why: str) -> None:
        """Find out what the store holds; this broker may or may not be the controller still.

        `sequence` is the change that may be the job's; None if its commit certainly did not happen.
        """
        me = self._me
        assert me is not None
        log.warning("the metadata is read again: %s", why)

        def seen(outcome: object) -> None:
            if job is not self._job:
                return
            match outcome:
                case Takeover():
                    self._adopt_seat(outcome)
                    self._current.catch_up(outcome.snapshot)
                    self._go_on(job, sequence)
                    self.brokers_seen(outcome.live)
                case Incumbent():
                    self.resign("another controller has been elected", outcome)
                case StoreError() if not isinstance(outcome, SessionLost):
                    self._retry_later(job, lambda: self._read_again(job, sequence, why), written=True)
                case _:
                    self.resign(f"its place could not be confirmed: {outcome}")

        self._session.run(lambda store: enter(store, me), seen)

    def _go_on(self, job: Job, sequence: int | None) -> None:
        """After reading again: the part is there, or it must be written, or all be decided, once more."""
        if sequence is not None and self.sequence >= sequence:
            job.next_part += 1
            self._commit_next(job)
        elif job.next_part > 0:
            self._commit_next(job)
        elif job.attempts < ATTEMPTS_MAX:
            self._begin(job)
        elif job.then is _nothing:
            # What the controller owes to the cluster is not given up.
            self._retry_later(job, lambda: self._begin(job))
        else:
            refused = Refused(ErrorCode.UNKNOWN_SERVER_ERROR, "the metadata kept changing underneath")
            self._finish(job, (refused,) * len(job.decision.results))

    # -- what people want to know

    def _log_events(
        self, job: Job, old: ClusterImage, records: Sequence[MetadataRecord], elapsed_ms: int
    ) -> None:
        new = self._current.image
        if old.brokers is not new.brokers:
            for broker_id in sorted(old.alive_brokers.keys() - new.alive_brokers.keys()):
                planned = old.alive_brokers[broker_id].shutting_down
                log.log(logging.INFO if planned else logging.WARNING, "broker %d is gone", broker_id)
            for broker_id, broker in sorted(new.alive_brokers.items()):
                before = old.alive_brokers.get(broker_id)
                if before is None or before.incarnation != broker.incarnation:
                    log.info("broker %d is there, epoch %d", broker_id, broker.epoch)
        elected = leaderless = 0
        for record in records:
            if isinstance(record, PartitionRecord):
                was = old.partition(record.topic, record.index)
                if was is not None and was.leader != record.leader:
                    elected += record.leader != NO_LEADER
                    leaderless += record.leader == NO_LEADER
        if elected or leaderless:
            by_itself = job.what in (_TAKEOVER, _MEMBERSHIP)
            log.log(
                logging.WARNING if by_itself or leaderless else logging.INFO,
                "%s: %d leaders elected, %d partitions without a leader, in %d ms",
                job.what, elected, leaderless, elapsed_ms,
            )  # fmt: skip


def _may_allow_election(record: MetadataRecord) -> bool:
    """Whether an unclean election may follow that the settings allow."""
    if isinstance(record, PartitionRecord):
        return record.leader == NO_LEADER
    return isinstance(record, BrokerRecord | ConfigRecord)


def _nothing(results: Results | None) -> None:
    """Nobody waits for the results."""
