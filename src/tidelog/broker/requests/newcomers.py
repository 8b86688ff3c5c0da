"""Connections on which nothing was asked yet: their clients have said who they are, no more."""

from tidelog.broker.requests.connection_context import ConnectionContext
from tidelog.model.ports import Clock
from tidelog.protocol.apis import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE

GREETINGS = frozenset({API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE})
#: from so many on, or twice as many as were left the last time, those are forgotten that asked or are gone
PRUNED_FROM = 1_000
#: who comes while there are so many is not noted
NOTED_MAX = 10_000


class Newcomers:
    """Since when connections have been silent that only greeted."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_ms: dict[ConnectionContext, int] = {}
        self._pruned_from = PRUNED_FROM

    def __repr__(self) -> str:
        return f"<Newcomers {len(self._since_ms)}>"

    def __len__(self) -> int:
        return len(self._since_ms)

    def met(self, context: ConnectionContext) -> None:
        """A client asked for the versions."""
        if len(self._since_ms) >= self._pruned_from:
            self._prune()
            self._pruned_from = max(PRUNED_FROM, 2 * len(self._since_ms))
        if len(self._since_ms) < NOTED_MAX:
            self._since_ms.setdefault(context, self._clock.monotonic_ms())

    def let_go(self, silent_ms: int) -> int:
        """Close the connections of those who have been silent for so long; return how many."""
        self._prune()
        before_ms = self._clock.monotonic_ms() - silent_ms
        silent = [context for context, since_ms in self._since_ms.items() if since_ms <= before_ms]
        for context in silent:
            del self._since_ms[context]
            if context.finish is not None:
                context.finish()
        return len(silent)

    def _prune(self) -> None:
        self._since_ms = {
            context: since_ms
            for context, since_ms in self._since_ms.items()
            if context.finish is not None and context.last_api_key in GREETINGS
        }
