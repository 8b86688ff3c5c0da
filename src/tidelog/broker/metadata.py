"""The metadata of the node: the current image, and the one door through which it changes.

Commands are carried out one at a time: the controller decides against the newest image, the store makes the
records durable off the event loop, the image moves on, listeners hear of it, and only then the caller gets
the results. So "created" is said of something that survives a crash and that everybody here sees.

When the store holds something newer than the image (a conflict), the image is loaded again and the command is
decided again, a few times at most. When the store fails, every item of the command is answered with
KAFKA_STORAGE_ERROR and the image stays as it was.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from random import Random

from tidelog.broker.background import Background
from tidelog.controller.commands import Command, Decision, FormCluster, Result
from tidelog.controller.machine import Controller
from tidelog.coordination.store import ABSENT, Committed, Conflict, CoordinationStore, StoreError, Write
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.image import ClusterImage
from tidelog.model.metadata import (
    PREFIXES,
    MetadataCorruptError,
    MetadataRecord,
    PartitionRecord,
    record_from_entry,
)
from tidelog.model.settings import BrokerSettings

log = logging.getLogger(__name__)

ATTEMPTS_MAX = 5
QUEUE_MAX = 10_000

Results = tuple[Result, ...]
Loaded = tuple[list[MetadataRecord], dict[str, int]]
Listener = Callable[[ClusterImage, ClusterImage, Sequence[MetadataRecord]], None]


class Metadata:
    """Holds the image and changes it; everything but the store's own work happens on the event loop."""

    def __init__(
        self, store: CoordinationStore, settings: BrokerSettings, background: Background, random: Random
    ) -> None:
        self.image = ClusterImage()
        self._store = store
        self._controller = Controller(settings)
        self._background = background
        self._random = random
        self._versions: dict[str, int] = {}
        self._listeners: list[Listener] = []
        self._queue: deque[_Pending] = deque()
        self._busy = False

    def __repr__(self) -> str:
        return f"<Metadata {self.image!r} waiting={len(self._queue)}>"

    @property
    def cluster_id(self) -> str:
        return self.image.cluster_id

    def listen(self, listener: Listener) -> None:
        """Call `listener(old_image, new_image, records)` after every change, before the results go out."""
        self._listeners.append(listener)

    def load(self, cluster_id: str | None = None) -> ClusterImage:
        """Read the image from the store at start, blocking; a new cluster gets its id here.

        `cluster_id` is the id a new store adopts, where the data directories already belong to a cluster.
        Raises StoreError or MetadataCorruptError when the store cannot be read.
        """
        records, self._versions = read_store(self._store)
        self.image = ClusterImage().apply(records)
        self.image.check_invariants()
        decision = self._controller.handle(FormCluster(cluster_id), self.image, self._random)
        if decision.records:
            outcome = self._store.commit(self._writes(decision.records))
            if isinstance(outcome, Conflict):
                raise StoreError(f"another broker formed the cluster at the same time: {outcome}")
            self._adopt(decision.records, outcome)
        return self.image

    def submit(self, command: Command, then: Callable[[Results], None]) -> None:
        """Carry out a command after those before it, then call `then` with a result for each of its items."""
        if len(self._queue) >= QUEUE_MAX:
            refused = Refused(ErrorCode.REQUEST_TIMED_OUT, "too many metadata changes are waiting")
            then((refused,) * command.item_count)
            return
        self._queue.append(_Pending(command, then))
        if not self._busy:
            self._carry_out_queue()

    def _carry_out_queue(self) -> None:
        # A loop, not recursion: commands that change nothing, or an inline background, finish right here.
        self._busy = True
        waiting = False
        try:
            while self._queue and not waiting:
                pending = self._queue.popleft()
                self._decide(pending)
                waiting = pending.resumes = not pending.finished
        finally:
            self._busy = waiting

    def _decide(self, pending: "_Pending") -> None:
        """Decide a command against the newest image and send its records to the store."""
        decision = pending.decision = self._controller.handle(pending.command, self.image, self._random)
        pending.attempt += 1
        if not decision.records:
            self._finish(pending, decision.results)
            return
        writes = self._writes(decision.records)
        self._background.run(
            lambda: self._store.commit(writes), lambda outcome: self._settle(pending, outcome)
        )

    def _settle(self, pending: "_Pending", outcome: Committed | Conflict | BaseException) -> None:
        """Go on after the store answered."""
        if isinstance(outcome, Committed):
            try:
                self._adopt(pending.decision.records, outcome)
            finally:
                # A listener that fails must not stop the changes that wait behind this one.
                self._finish(pending, pending.decision.results)
        elif isinstance(outcome, Conflict):
            log.warning("metadata conflict, attempt %d of %d: %s", pending.attempt, ATTEMPTS_MAX, outcome)
            if pending.attempt < ATTEMPTS_MAX:
                self._background.run(
                    lambda: read_store(self._store), lambda loaded: self._decide_again(pending, loaded)
                )
                return
            self._refuse(pending, ErrorCode.UNKNOWN_SERVER_ERROR, "the metadata kept changing underneath")
        else:
            log.error("metadata could not be stored, %r is refused: %s", pending.command, outcome)
            self._refuse(pending, ErrorCode.KAFKA_STORAGE_ERROR, "the metadata could not be stored")

    def _decide_again(self, pending: "_Pending", loaded: Loaded | BaseException) -> None:
        if isinstance(loaded, BaseException):
            self._settle(pending, loaded)
            return
        self._replace_image(*loaded)
        self._decide(pending)

    def _refuse(self, pending: "_Pending", code: ErrorCode, message: str) -> None:
        self._finish(pending, (Refused(code, message),) * pending.command.item_count)

    def _finish(self, pending: "_Pending", results: Results) -> None:
        pending.finished = True
        try:
            pending.then(results)
        finally:
            # When the store answered later, the queue has been waiting for this command.
            if pending.resumes:
                self._carry_out_queue()

    def _replace_image(self, records: list[MetadataRecord], versions: dict[str, int]) -> None:
        """Adopt what somebody else stored; listeners hear every record, as they do not know which are new."""
        old = self.image
        loaded = ClusterImage(version=old.version).apply(records)
        self._versions = versions
        self.image = loaded
        for listener in self._listeners:
            listener(old, loaded, records)

    def _adopt(self, records: Sequence[MetadataRecord], committed: Committed) -> None:
        for record in records:
            for key, value in record.writes():
                if value is None:
                    self._versions.pop(key, None)
        self._versions.update(committed.versions)
        old = self.image
        self.image = old.apply(records)
        for listener in self._listeners:
            listener(old, self.image, records)

    def _writes(self, records: Sequence[MetadataRecord]) -> list[Write]:
        # Within one decision a later record about a key replaces an earlier one.
        last = {key: value for record in records for key, value in record.writes()}
        return [Write(key, value, self._versions.get(key, ABSENT)) for key, value in last.items()]


class _Pending:
    """A command on its way: waiting, being decided, or with its records at the store."""

    __slots__ = ("attempt", "command", "decision", "finished", "resumes", "then")

    def __init__(self, command: Command, then: Callable[[Results], None]) -> None:
        self.command = command
        self.then = then
        self.decision = Decision((), ())
        self.attempt = 0
        self.finished = False
        #: whether the queue waits for this command to go on
        self.resumes = False


def read_store(store: CoordinationStore) -> Loaded:
    """Every stored record in an order that can be applied, and the version of every key."""
    entries = store.load()
    ranks = {prefix: rank for rank, prefix in enumerate(PREFIXES)}

    def rank(key: str) -> int:
        top, slash, _ = key.partition("/")
        found = ranks.get(top + slash)
        if found is None:
            raise MetadataCorruptError(f"the stored metadata has an unknown key {key!r}")
        return found

    keyed = [(rank(entry.key), record_from_entry(entry.key, entry.value)) for entry in entries]
    # Keys sort `10` before `2`; partitions are applied by number.
    keyed.sort(key=lambda item: (item[0], item[1].index if isinstance(item[1], PartitionRecord) else 0))
    return [record for _, record in keyed], {entry.key: entry.version for entry in entries}
