"""One step of a coordinator machine: the effects it collects, and what waits for the verdict on its appends.

A step that changes something and must store the change is all or nothing: such an append carries `undo`, the
step's other effects are held until the records are written, and a refusal takes the change back and drops
them. Answers that promise durability wait longer, in `on_appended`, until the records are replicated.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tidelog.model.effects import Append, Effect, RecordPair, Reply
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from tidelog.model.step_effects import StepEffects


class OnFailed(Protocol):
    def __call__(self, error: ErrorCode, now_ms: int) -> None: ...


class PendingAppend:
    """Records on their way into the log, and what happens on each verdict."""

    __slots__ = (
        "contents",
        "held",
        "on_appended",
        "on_failed",
        "on_written",
        "producer_id",
        "records",
        "undo",
        "waiting_reads",
        "written",
    )

    def __init__(
        self,
        records: tuple[RecordPair, ...],
        undo: Callable[[], None] | None,
        on_appended: Callable[[int], None] | None,
        on_failed: OnFailed | None,
        producer_id: int,
    ) -> None:
        self.records = records
        self.producer_id = producer_id
        self.undo = undo
        self.on_appended = on_appended
        self.on_failed = on_failed
        self.on_written: Callable[[int], None] | None = None
        #: what the records say, in the machine's own terms, where the step knows
        self.contents: Sequence[Any] | None = None
        self.held: list[Effect] = []
        self.waiting_reads: list[tuple[Reply, Reply]] = []
        self.written = False


class Outbox(StepEffects):
    """Collects the effects of the running step; keeps the appends whose verdict is still out."""

    __slots__ = ("_step_appends", "pending")

    def __init__(self, partition: int) -> None:
        super().__init__(partition)
        self._step_appends: list[PendingAppend] = []
        self.pending: dict[int, PendingAppend] = {}

    def append(
        self,
        records: list[RecordPair],
        *,
        undo: Callable[[], None] | None = None,
        on_appended: Callable[[int], None] | None = None,
        on_failed: OnFailed | None = None,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        on_written: Callable[[int], None] | None = None,
        contents: Sequence[Any] | None = None,
    ) -> None:
        token = self._new_token()
        pending = PendingAppend(tuple(records), undo, on_appended, on_failed, producer_id)
        pending.on_written = on_written
        pending.contents = contents
        self.pending[token] = pending
        self._step_appends.append(pending)
        self._effects.append(Append(self._partition, pending.records, token, producer_id, producer_epoch))

    def hold_reads(self) -> int:
        """Treat what came before as written and not yet replicated; the token is that of its verdict."""
        token = self._new_token()
        pending = self.pending[token] = PendingAppend((), None, None, None, NO_PRODUCER_ID)
        pending.written = True
        return token

    def read_reply(self, token: int, response: Mapping[str, object], otherwise: Mapping[str, object]) -> None:
        """Answer a read once everything it may have seen is replicated, so that no failover takes it back."""
        unreplicated = next((p for p in reversed(self.pending.values()) if p.written), None)
        if unreplicated is None:
            self.reply(token, response)
        else:
            unreplicated.waiting_reads.append((Reply(token, response), Reply(token, otherwise)))

    def take(self) -> list[Effect]:
        """End the step: its effects, without those that wait for an append that can still be undone."""
        effects = super().take()
        appends, self._step_appends = self._step_appends, []
        undoable = next((pending for pending in appends if pending.undo is not None), None)
        if undoable is None:
            return effects
        undoable.held = [effect for effect in effects if not isinstance(effect, Append)]
        return [effect for effect in effects if isinstance(effect, Append)]

    # ------------------------------------------------------------ verdicts

    def appended(self, token: int, now_ms: int) -> list[Effect]:
        """The records are replicated: answer those who were to wait for that."""
        pending = self.pending.pop(token)
        assert pending.written
        if pending.on_appended is not None:
            pending.on_appended(now_ms)
        self.emit([answer for answer, _ in pending.waiting_reads])
        return self.take()

    def refused(self, token: int, error: ErrorCode, now_ms: int) -> list[Effect]:
        """Not in the log: take the step back. Written but not replicated in time: tell those who wait, and
        keep new reads waiting, for the record is still on its way.
        """
        pending = self.pending[token]
        on_failed, reads = pending.on_failed, pending.waiting_reads
        if pending.written:
            pending.on_appended = pending.on_failed = None
            pending.waiting_reads = []
        else:
            del self.pending[token]
            if pending.undo is not None:
                pending.undo()
        if on_failed is not None:
            on_failed(error, now_ms)
        self.emit([otherwise for _, otherwise in reads])
        return self.take()

    def resign(self, now_ms: int) -> list[Effect]:
        """Nothing is written any more: whoever waits for a verdict must ask elsewhere."""
        effects: list[Effect] = []
        for token in list(self.pending):
            pending = self.pending.pop(token)
            if pending.on_failed is not None:
                pending.on_failed(ErrorCode.NOT_LEADER_OR_FOLLOWER, now_ms)
            self.emit([otherwise for _, otherwise in pending.waiting_reads])
            effects += self.take()
        return effects
