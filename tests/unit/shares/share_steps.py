"""A share partition and what it asks for, step by step: answers by token, messages and timers."""

from typing import Any
from uuid import UUID

from tidelog.model.effects import CancelTimer, Effect, Reply, Send, SetTimer, TellEvent
from tidelog.model.errors import ErrorCode
from tidelog.shares.commands import (
    Acknowledge,
    AcknowledgementBatch,
    Acquire,
    Open,
    ReadShareState,
    ShareCommand,
    StateRead,
    StateWritten,
    TimerFired,
    Wake,
    WriteDeadLetters,
    WriteShareState,
)
from tidelog.shares.fetched import FetchedBatch
from tidelog.shares.schemas import ShareKey
from tidelog.shares.settings import SharePartitionSettings
from tidelog.shares.share_partition import SharePartition
from tidelog.shares.state_batches import StateBatch
from tidelog.shares.states import AcquireMode

KEY = ShareKey("g", UUID(int=7), 0)
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
LOCK_MS = 30_000


class Steps:
    """Drives one share partition; writes are answered by hand unless `stores` is set."""

    def __init__(
        self,
        *,
        start: int = 0,
        batches: tuple[StateBatch, ...] = (),
        stores: bool = True,
        **settings: Any,
    ) -> None:
        self.now_ms = 1_000_000
        self.answers: dict[int, Any] = {}
        self.writes: list[WriteShareState] = []
        self.letters: list[WriteDeadLetters] = []
        self.messages: list[object] = []
        self.events: list[TellEvent] = []
        self.timer_ms: int | None = None
        self.wakes = 0
        self.stores = stores
        self._token = 0
        self.partition = SharePartition(KEY, 4, SharePartitionSettings(**settings))
        self.do(Open())
        assert self.messages == [ReadShareState(4)]
        self.do(StateRead(9, start, batches))

    def do(self, command: ShareCommand) -> None:
        effects = self.partition.handle(command, self.now_ms)
        for effect in effects:
            self._carry_out(effect)
        if self.stores:
            while self.writes_open:
                self.answer()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Reply(token, response):
                assert token not in self.answers, "answered twice"
                self.answers[token] = response
            case SetTimer(_, deadline_ms):
                self.timer_ms = deadline_ms
            case CancelTimer():
                self.timer_ms = None
            case TellEvent():
                self.events.append(effect)
            case Send(Wake()):
                self.wakes += 1
            case Send(WriteShareState() as write):
                self.writes.append(write)
            case Send(WriteDeadLetters() as letters):
                self.letters.append(letters)
            case Send(message):
                self.messages.append(message)

    answered = 0

    @property
    def writes_open(self) -> bool:
        return len(self.writes) > self.answered

    def answer(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """The share coordinator's verdict on the write on its way."""
        write = self.writes[self.answered]
        self.answered += 1
        self.do(StateWritten(write.number, error))

    def acquire(self, member: str, count: int = 500, *batches: tuple[int, int], **more: Any) -> list[Any]:
        """Fetch; what comes back is (first, last, delivery count) of each batch."""
        self._token += 1
        fetched = more.pop("fetched", None) or tuple(FetchedBatch(*batch) for batch in batches)
        fetch_offset = more.pop("fetch_offset", self.partition.next_fetch_offset)
        self.do(Acquire(self._token, member, count, fetch_offset, fetched, **more))
        records = self.answers[self._token]["acquired_records"]
        return [(one["first_offset"], one["last_offset"], one["delivery_count"]) for one in records]

    def exactly(self, member: str, count: int, *batches: tuple[int, int]) -> list[Any]:
        return self.acquire(member, count, *batches, mode=AcquireMode.RECORD_LIMIT)

    def say(self, member: str, first: int, last: int, *types: int) -> int:
        """Acknowledge; returns the token."""
        self._token += 1
        batch = AcknowledgementBatch(first, last, types)
        self.do(Acknowledge(self._token, member, (batch,)))
        return self._token

    def says(self, member: str, first: int, last: int, *types: int) -> ErrorCode:
        """Acknowledge and get the answer."""
        return self.error(self.say(member, first, last, *types))

    def error(self, token: int) -> ErrorCode:
        code = self.answers[token]["error_code"]
        assert isinstance(code, ErrorCode)
        return code

    def wait(self, milliseconds: int) -> None:
        """Let time pass, with every timer on its way."""
        until_ms = self.now_ms + milliseconds
        while self.timer_ms is not None and self.timer_ms <= until_ms:
            self.now_ms, self.timer_ms = max(self.now_ms, self.timer_ms), None
            self.do(TimerFired(KEY))
        self.now_ms = until_ms

    def states(self) -> list[Any]:
        return [(run.first, run.last, run.state.name, run.delivery_count) for run in self.partition.runs]

    @property
    def start(self) -> int:
        return self.partition.runs.start
