"""What goes in and out of the dispatcher: a decoded request, and the answers that are none yet."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidelog.broker.requests.connection_context import ConnectionContext
from tidelog.broker.runtime.metrics import RequestMetrics
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.protocol.apis import Api

#: the request waits for its turn: its principal is above a quota; the server offers it again
HELD = object()


class CloseConnection(Exception):
    """The peer broke the protocol in a way that has no answer."""


@dataclass(frozen=True, slots=True)
class Request:
    """A decoded control-plane request as a handler sees it."""

    context: ConnectionContext
    api: Api
    version: int
    body: Any


class PendingAnswer:
    """The place of a parked request in its connection's order of answers."""

    __slots__ = ("api_key", "began_ns", "change", "chunks", "delayed", "on_filled", "requests")

    def __init__(self, delayed: DelayedAnswer) -> None:
        self.delayed = delayed
        #: who counts the answer, under which API, and when its request arrived
        self.requests: RequestMetrics | None = None
        self.api_key = self.began_ns = 0
        self.chunks: Any = None
        #: what is done to the answer when it comes
        self.change: Callable[[Any], Any] | None = None
        self.on_filled: Callable[[], None] | None = None

    def fill(self, chunks: Any) -> None:
        self.chunks = chunks if self.change is None else self.change(chunks)
        if self.requests is not None:
            self.requests.answered(self.api_key, self.began_ns)
        if self.on_filled is not None:
            self.on_filled()
