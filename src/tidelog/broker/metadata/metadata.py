"""The metadata of the node: the image, the broker's life in the cluster, and the door to the controller.

Durable facts live in the coordination store; only the controller writes them. Every broker, the controller
too, holds them as an immutable image and follows: the store tells that the change log grew, the new changes
are read and applied, listeners hear of it. Who is too far behind reads everything.

A broker's life: `load` (blocking, at start) reads the image; `start` registers the broker under an ephemeral
key, takes the controller's place if it is free, and tells when the image shows the broker alive. When the
session with the store is lost, so are both keys: the broker is *fenced*, opens another session and registers
as a new incarnation, if it may (`may_enter`: not while its disks do not answer; it follows the image all the
same). While the store cannot be reached at all, the broker goes on with the image it has.

`submit` hands a command to the controller, on this broker or another (see `submitting`); what a controller
does is in `controller_runtime`, and what the image is now in `current_image`. Everything here happens on the
event loop, only calls of the store elsewhere.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from tidelog.broker.metadata.change_log import Changes, Snapshot, read_changes, read_snapshot
from tidelog.broker.metadata.controller_runtime import ControllerRuntime, Results
from tidelog.broker.metadata.current_image import CurrentImage, Listener
from tidelog.broker.metadata.election import IdTaken, Incumbent, Takeover, enter, read_live
from tidelog.broker.metadata.store_session import OpenStore, StoreSession
from tidelog.broker.metadata.submitting import Submitting
from tidelog.broker.runtime.background import Background
from tidelog.broker.runtime.events import Events
from tidelog.broker.runtime.peers import Peers
from tidelog.broker.runtime.timers import Timers
from tidelog.controller.commands import Command, FormCluster, LiveBroker, ReplicaPlacement
from tidelog.controller.machine import Controller
from tidelog.coordination.opening import session_timeout_ms
from tidelog.coordination.store import (
    ABSENT,
    Committed,
    CoordinationStore,
    SessionLost,
    StoreError,
    Write,
)
from tidelog.model.addresses import address_text
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.events import SESSION_LOST
from tidelog.model.identifiers import random_uuid
from tidelog.model.image import ClusterImage
from tidelog.model.metadata import CHANGES_KEY, CONTROLLER_KEY, LIVE_PREFIX, Endpoint
from tidelog.model.settings import BrokerSettings

log = logging.getLogger(__name__)

COMMAND_TIMEOUT_MS = 30_000
FORMING_ATTEMPTS_MAX = 10
#: how long a broker waits before it asks a store again that failed, or an id that is taken
RETRY_MS = 250
#: beyond the session timeout, until somebody else's hold on our id is an error
ID_TAKEN_GRACE_MS = 2_000
_ENTER_TIMER = "metadata enter"
_FOLLOW_TIMER = "metadata follow"
_LIVE_TIMER = "metadata live"
_REOPEN_TIMER = "metadata reopen"


class Registration(NamedTuple):
    """What a broker tells the cluster about itself."""

    endpoints: Mapping[str, Endpoint]
    rack: str | None = None
    directories: tuple[str, ...] = ()
    offline_directories: int = 0
    placements: tuple[ReplicaPlacement, ...] = ()
    #: the logs may have lost their ends before this process began
    unclean_shutdown: bool = False
    #: directories that somebody has given up
    lost_directories: tuple[str, ...] = ()


class NotYet(NamedTuple):
    """This broker follows, but may not register."""


def _nothing() -> None:
    """Nobody needs to know."""


@dataclass(frozen=True, slots=True)
class LifecycleCallbacks:
    """What the broker's life in the cluster depends on, and who else must know of it."""

    #: whether this broker may register now
    may_enter: Callable[[], bool] = lambda: True
    #: called with the timeout of every session that is opened, if the store tells it
    on_session: Callable[[int | None], None] = lambda timeout_ms: None
    #: called when the image shows a new life of this broker alive
    on_registered: Callable[[], None] = _nothing
    #: called when a session was lost, and with it the right to lead
    on_fenced: Callable[[], None] = _nothing


class Metadata:
    """Holds the image and changes it; everything but the store's own work happens on the event loop."""

    def __init__(
        self,
        open_store: OpenStore,
        settings: BrokerSettings,
        background: Background,
        random: Random,
        timers: Timers,
        peers: Peers,
        node_id: int,
        events: Events,
        life: LifecycleCallbacks,
    ) -> None:
        self.node_id = node_id
        #: no life of this broker is registered, as far as it knows: it may not lead what others could
        self.fenced = True
        self._life = life
        self._events = events
        self._session_timeout_ms = session_timeout_ms(settings)
        self._lapse_cause = ""
        self._settings = settings
        self._random = random
        self._timers = timers
        self._session = StoreSession(
            open_store, background, on_opened=self._session_opened, on_lost=self._session_lost
        )
        self._current = CurrentImage(self._tell_started)
        self._controller_runtime = ControllerRuntime(
            self._current, self._session, settings, random, timers, on_resigned=self._lost_seat
        )
        self._submitting = Submitting(self._controller_runtime, peers, timers, self._when_at)
        self._registration: Callable[[], Registration] | None = None
        self._me: LiveBroker | None = None
        self._started: Callable[[Refused | None], None] | None = None
        self._id_taken_since_ms: int | None = None
        self._watching = False
        #: a look under way may be older than what a watch tells meanwhile: then another one follows it
        self._entering = self._enter_again = False
        self._following = self._follow_again = False
        self._live_unseen = False
        self._stopped = False

    def __repr__(self) -> str:
        return f"<Metadata {self.image!r} sequence={self.sequence} controller={self.is_controller}>"

    @property
    def image(self) -> ClusterImage:
        """The newest image."""
        return self._current.image

    @property
    def sequence(self) -> int:
        """The number of the last change that the image shows."""
        return self._current.sequence

    @property
    def cluster_id(self) -> str:
        return self.image.cluster_id

    @property
    def is_controller(self) -> bool:
        """Whether this broker decides, as far as it knows."""
        return self._controller_runtime.active

    @property
    def controller_epoch(self) -> int:
        """The epoch of this broker's last term as the controller."""
        return self._controller_runtime.epoch

    @property
    def broker_epoch(self) -> int:
        """The number that the controller gave to this life of this broker; -1 before it did."""
        own = self.image.brokers.get(self.node_id)
        registered = own is not None and self._me is not None and own.incarnation == self._me.incarnation
        return own.epoch if own is not None and registered else -1

    def listen(self, listener: Listener) -> None:
        """Call `listener(old_image, new_image, records)` after every change, before the results go out."""
        self._current.listen(listener)

    # -- start

    def load(self, cluster_id: str | None = None) -> ClusterImage:
        """Open the store and read the image, blocking; a new cluster gets its id here.

        `cluster_id` is the id a new store adopts, where the data directories already belong to a cluster.
        Raises StoreError or MetadataCorruptError when the store cannot be read.
        """
        store = self._session.open()
        for _ in range(FORMING_ATTEMPTS_MAX):
            snapshot = read_snapshot(store)
            image = ClusterImage().apply(snapshot.records)
            forming = Controller(self._settings).handle(FormCluster(cluster_id), image, self._random)
            writes = [
                Write(key, value, ABSENT) for record in forming.records for key, value in record.writes()
            ]
            # No controller is needed for this, the first of all facts: only one broker can write it.
            if not writes or isinstance(store.commit(writes), Committed):
                self._current.begin(image.apply(forming.records) if writes else image, snapshot.sequence)
                return self.image
        raise StoreError("the cluster could not be formed: others kept changing it")

    def start(self, registration: Callable[[], Registration], then: Callable[[Refused | None], None]) -> None:
        """Begin the broker's life in the cluster; `then` when the image shows it, or with why it cannot.

        `registration` is asked each time the broker registers: what it tells may change.
        """
        self._registration = registration
        self._started = then
        self._enter_anew()

    def _enter_anew(self) -> None:
        """Register in a new session, as a new incarnation."""
        assert self._registration is not None
        incarnation = str(random_uuid(self._random))
        self._me = LiveBroker(self.node_id, incarnation, *self._registration())
        self._watching = self._entering = False
        self._enter()

    def _enter(self) -> None:
        """Look whether the controller's place, or our own id, is free now."""
        if self._entering:
            self._enter_again = True
        if self._entering or self._stopped or self._me is None:
            return
        self._entering, self._live_unseen = True, False
        me, watching, may_enter = self._me, self._watching, self._life.may_enter()

        def look(store: CoordinationStore) -> Takeover | Incumbent | IdTaken | NotYet:
            if not watching:
                # Before anything is read, so that nothing is missed; again if that failed half way.
                self._session.watch(store, CHANGES_KEY, self._follow)
                self._session.watch(store, CONTROLLER_KEY, self._enter)
                self._session.watch(store, LIVE_PREFIX, self._live_changed)
            return enter(store, me) if may_enter else NotYet()

        self._session.run(look, lambda outcome: self._entered(me, outcome))

    def _entered(
        self, me: LiveBroker, outcome: Takeover | Incumbent | IdTaken | NotYet | BaseException
    ) -> None:
        if me is not self._me or self._stopped:
            # What an earlier incarnation found does not count.
            return
        self._entering = False
        again, self._enter_again = self._enter_again, False
        self._timers.cancel(_ENTER_TIMER)
        self._watching = self._watching or not isinstance(outcome, BaseException)
        match outcome:
            case Takeover():
                self._id_taken_since_ms = None
                if not self.is_controller:
                    self._current.catch_up(outcome.snapshot)
                    self._controller_runtime.take_over(outcome, me)
                    if self._live_unseen:
                        self._live_changed()
                    self._submitting.controller_is(None)
            case Incumbent():
                self._id_taken_since_ms = None
                self._controller_runtime.resign(f"broker {outcome.broker_id} is the controller", outcome)
                self._submitting.controller_is(outcome.broker_id)
                self._follow()
            case IdTaken():
                self._wait_for_id(outcome.holder)
            case NotYet():
                self._timers.set_after(_ENTER_TIMER, RETRY_MS, self._enter)
                self._follow()
                again = False
            case SessionLost():
                # A new session is on its way, and a new incarnation with it, which looks for itself.
                again = False
            case _:
                if isinstance(outcome, ValueError):
                    log.error("the broker cannot enter the cluster: %s", outcome)
                self._timers.set_after(_ENTER_TIMER, RETRY_MS, self._enter)
                again = False
        if again:
            self._enter()

    def _wait_for_id(self, holder: LiveBroker) -> None:
        """Another session holds our id: our own last one, which will end, or a second broker's."""
        now_ms = self._timers.monotonic_ms()
        if self._id_taken_since_ms is None:
            self._id_taken_since_ms = now_ms
        addresses = ", ".join(address_text(host, port) for host, port in holder.endpoints.values())
        if now_ms - self._id_taken_since_ms > self._session_timeout_ms + ID_TAKEN_GRACE_MS:
            message = f"broker id {self.node_id} is already registered by {addresses}"
            if self._started is not None:
                then, self._started = self._started, None
                then(Refused(ErrorCode.DUPLICATE_BROKER_REGISTRATION, message))
                return
            log.error("%s; waiting for it to go", message)
            self._id_taken_since_ms = now_ms
        # The watch of `live/` tells when it goes; this is for what a watch cannot tell: that time passed.
        self._timers.set_after(_ENTER_TIMER, RETRY_MS, self._enter)

    # -- following

    def _follow(self) -> None:
        """Read what is new in the change log; the controller makes all changes itself."""
        if self._following:
            self._follow_again = True
        if self._following or self._stopped or self.is_controller:
            return
        self._following = True
        after = self.sequence
        self._session.run(
            lambda store: read_changes(store, after) or read_snapshot(store),
            lambda outcome: self._followed(after, outcome),
        )

    def _followed(self, after: int, outcome: Changes | Snapshot | BaseException) -> None:
        self._following = False
        again, self._follow_again = self._follow_again, False
        if self._stopped or self.is_controller:
            return
        match outcome:
            case Changes(sequence=sequence, records=records):
                if after != self.sequence:
                    # A snapshot came between; whatever is newer than it is read once more.
                    again = True
                elif records:
                    self._current.adopt(records, sequence)
                else:
                    self._current.skip_to(sequence)
            case Snapshot():
                log.info("all metadata is read again: more than the change log holds went by")
                self._current.replace(outcome)
            case SessionLost():
                # Whoever asked for another look may mean the next session, which may be there already.
                log.debug("the metadata could not be followed: %s", outcome)
            case _:
                if isinstance(outcome, ValueError):
                    log.error("the metadata cannot be followed: %s", outcome)
                self._timers.set_after(_FOLLOW_TIMER, RETRY_MS, self._follow)
                again = False
        if again:
            self._follow()

    def _lost_seat(self, incumbent: Incumbent | None) -> None:
        """Not the controller any more: follow the one that is."""
        self._submitting.controller_is(incumbent.broker_id if incumbent is not None else None)
        if incumbent is None:
            self._enter()
        self._follow()

    def _tell_started(self) -> None:
        if self.fenced and self._me is not None:
            own = self.image.alive_brokers.get(self.node_id)
            if own is not None and own.incarnation == self._me.incarnation:
                self.fenced = False
                self._life.on_registered()
                if self._started is not None:
                    then, self._started = self._started, None
                    then(None)

    def _when_at(self, sequence: int, callback: Callable[[], None]) -> None:
        """Call back when the image shows change number `sequence`; now, if it does."""
        if not self._current.when_at(sequence, callback):
            self._follow()

    # -- who is there

    def _live_changed(self) -> None:
        if self._stopped:
            return
        if self.is_controller:
            self._session.run(read_live, self._live_read)
            return
        self._live_unseen = True
        if self._id_taken_since_ms is not None:
            self._enter()

    def _live_read(self, outcome: tuple[LiveBroker, ...] | BaseException) -> None:
        if isinstance(outcome, tuple):
            self._controller_runtime.brokers_seen(outcome)
        elif self.is_controller and not isinstance(outcome, SessionLost):
            self._timers.set_after(_LIVE_TIMER, RETRY_MS, self._live_changed)

    # -- the session

    def lapse(self, cause: str) -> None:
        """Give the session up and all that comes with it: this broker made no progress for too long."""
        if not self._stopped:
            self._lapse_cause = cause
            self._session.give_up()
            self._lapse_cause = ""

    def end_session(self) -> None:
        """Have the session ended, from any thread, while the loop cannot say anything."""
        self._session.end()

    def _session_lost(self) -> None:
        """Our ephemeral keys are gone: somebody else decides, and our partitions find other leaders."""
        if self._stopped:
            return
        cause, self._lapse_cause = self._lapse_cause, ""
        why = f": {cause}" if cause else ""
        log.warning("the session with the coordination store is over%s; this broker registers again", why)
        self.fenced = True
        self._life.on_fenced()
        incarnation = "" if self._me is None else self._me.incarnation
        fields = {"controller": self.is_controller, "sequence": self.sequence}
        cause = cause or "the coordination store ended it or could not be reached in time"
        self._events.emit(SESSION_LOST, fields, cause=cause, cause_id=f"session-{incarnation[:8]}")
        # That life is over: an image that still shows it alive gives no right to anything.
        self._me = None
        self._timers.cancel(_ENTER_TIMER)
        self._controller_runtime.resign("the session with the coordination store is over")
        self._submitting.controller_is(None)
        self._reopen()

    def _session_opened(self, store: CoordinationStore) -> None:
        granted_ms = store.session_timeout_ms
        if granted_ms is not None and granted_ms != self._session_timeout_ms:
            asked_ms, self._session_timeout_ms = self._session_timeout_ms, granted_ms
            log.warning("the store grants sessions of %d ms, not of %d ms", granted_ms, asked_ms)
        self._life.on_session(granted_ms)

    def _reopen(self) -> None:
        def opened(fault: StoreError | None) -> None:
            if self._stopped:
                return
            if fault is not None:
                self._timers.set_after(_REOPEN_TIMER, RETRY_MS, self._reopen)
            elif self._registration is not None:
                self._enter_anew()
                self._follow()

        if not self._stopped:
            self._session.reopen(opened)

    # -- commands

    def submit(
        self, command: Command, then: Callable[[Results], None], timeout_ms: int = COMMAND_TIMEOUT_MS
    ) -> None:
        """Have the controller carry out a command, then call `then` with a result for each of its items.

        The results are true of the image that this broker has by then.
        """
        self._submitting.submit(command, then, timeout_ms)

    def decide(self, command: Command, then: Callable[[Results | None, int], None], timeout_ms: int) -> None:
        """Decide another broker's command if this broker is the controller; `then` with the change number.

        After `timeout_ms` nobody waits for it any more: what has not begun by then is not done.
        """
        waiting = object()

        def decided(results: Results | None) -> None:
            self._timers.cancel(waiting)
            then(results, self.sequence)

        job = self._controller_runtime.submit(command, decided) if self.is_controller else None
        if job is None:
            decided(None)
        elif not job.finished:
            self._timers.set_after(waiting, timeout_ms, job.abandon)

    # -- the end

    def stop(self) -> None:
        """Leave the cluster, blocking: the broker's ephemeral keys go at once."""
        if self._stopped:
            return
        self._stopped = True
        self._controller_runtime.resign("this broker stops", stopping=True)
        self._submitting.close()
        for key in (_ENTER_TIMER, _FOLLOW_TIMER, _LIVE_TIMER, _REOPEN_TIMER):
            self._timers.cancel(key)
        self._session.close()
