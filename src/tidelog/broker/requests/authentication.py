"""SASL on one connection: which requests it may make until it has authenticated, and when it must again.

    HANDSHAKE ── SaslHandshake ──▶ EXCHANGE ── SaslAuthenticate ──▶ … ──▶ DONE ── the session ends ──▶ EXPIRED
        │                             │  ▲                              │                                │
        │ unknown mechanism           │  └───────── SaslHandshake ──────┴────────────────────────────────┘
        └──────────▶ REFUSED ◀────────┘ (answered after a delay, then closed)

As long as an `Authentication` is the gate of its connection, every frame passes by it: before the handshake
ApiVersions and SaslHandshake are allowed, during the exchange SaslAuthenticate, and nothing else. Whoever
authenticates again (KIP-368) must stay who it was, by the same mechanism. After SaslHandshake version 0 come
tokens without request headers.

Steps that take time (a password to be hashed, a token's keys to be asked for) run on threads of their own;
what arrives meanwhile breaks the protocol. A failure is answered late, so that trying passwords is slow, and
says no more than that the credentials are invalid.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from tidelog.broker.requests.connection_context import ConnectionContext
from tidelog.broker.requests.users import BrokerUsers
from tidelog.broker.runtime.background import Background
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.broker.runtime.timers import Timers
from tidelog.model.credentials import USER_TYPE
from tidelog.model.errors import ErrorCode
from tidelog.model.ports import Clock
from tidelog.protocol.apis import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from tidelog.protocol.primitives import INT32
from tidelog.security.exchange import (
    Accepted,
    Challenge,
    DeferredVerdict,
    Exchange,
    ExchangeOutcome,
    Rejected,
)
from tidelog.security.listeners import ListenerSecurity

log = logging.getLogger(__name__)

#: nobody needs to authenticate again sooner; it would only keep us busy (Kafka has the same)
REAUTHENTICATION_INTERVAL_MS_MIN = 1_000

Fields = dict[str, object]


#: the longest name of a user; SCRAM and PLAIN take no longer ones anyway
USER_NAME_LENGTH_MAX = 4_096


class State(Enum):
    """Where the connection stands."""

    HANDSHAKE = "handshake"
    EXCHANGE = "exchange"
    BUSY = "busy"
    DONE = "done"
    EXPIRED = "expired"
    REFUSED = "refused"


ALLOWED = {
    State.HANDSHAKE: frozenset({API_VERSIONS, SASL_HANDSHAKE}),
    State.EXCHANGE: frozenset({SASL_AUTHENTICATE}),
    State.EXPIRED: frozenset({SASL_HANDSHAKE}),
}
_NOTHING: frozenset[int] = frozenset()


class Reply(NamedTuple):
    """What a step of the exchange is answered with."""

    code: ErrorCode = ErrorCode.NONE
    message: str | None = None
    data: bytes = b""
    session_ms: int = 0


@dataclass(frozen=True, slots=True)
class Authenticator:
    """What the gates of all connections of a broker stand on."""

    users: BrokerUsers
    settings: LiveSettings
    clock: Clock
    timers: Timers
    #: checks passwords and tokens
    authentication_background: Background

    def gate(
        self, context: ConnectionContext, security: ListenerSecurity, close: Callable[[str], None]
    ) -> "Authentication":
        """Let a connection in that authenticates; `close` ends it once its answers are sent, and says why."""
        return Authentication(self, context, security, close)


class Authentication:
    """The gate of a connection on a listener with SASL."""

    __slots__ = (
        "_authenticator",
        "_began_ms",
        "_close",
        "_context",
        "_exchange",
        "_mechanism",
        "_principal",
        "_security",
        "_state",
        "raw",
    )

    def __init__(
        self,
        authenticator: Authenticator,
        context: ConnectionContext,
        security: ListenerSecurity,
        close: Callable[[str], None],
    ) -> None:
        self._authenticator = authenticator
        self._context = context
        self._security = security
        self._close = close
        self._state = State.HANDSHAKE
        self._exchange: Exchange | None = None
        self._mechanism = ""
        self._principal = ""
        self._began_ms = -REAUTHENTICATION_INTERVAL_MS_MIN
        #: whether frames are bare tokens now
        self.raw = False

    def __repr__(self) -> str:
        return f"<Authentication {self._state.value} {self._mechanism} {self._principal}>"

    @property
    def completed(self) -> bool:
        """Whether the peer has ever proved who it is."""
        return bool(self._principal)

    def refusal(self, api_key: int) -> str | None:
        """Why a request may not be made now; None if it may."""
        if api_key in ALLOWED.get(self._state, _NOTHING):
            return None
        if self._state is State.EXPIRED:
            return "its authentication has expired"
        return f"a request of API {api_key} before it has authenticated"

    # -- requests

    def handshake(self, mechanism: str, version: int) -> Fields | DelayedAnswer:
        """Begin an exchange, the first or another one."""
        again = self._state in (State.DONE, State.EXPIRED)
        now_ms = self._authenticator.clock.monotonic_ms()
        early = now_ms - self._began_ms < REAUTHENTICATION_INTERVAL_MS_MIN
        if (self._state is not State.HANDSHAKE and not again) or (again and (early or version == 0)):
            return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": ()}
        mechanisms = self._security.mechanisms
        if mechanism not in mechanisms:
            delayed = DelayedAnswer()
            fields: Fields = {"error_code": ErrorCode.UNSUPPORTED_SASL_MECHANISM, "mechanisms": mechanisms}
            self._refuse(f"SASL mechanism {mechanism[:40]!r} is not enabled", lambda: delayed.answer(fields))
            return delayed
        self._began_ms = now_ms
        if again:
            # Until the exchange has ended nothing else may be asked, on the fast paths neither.
            self._context.forget_templates()
            self._context.gate = self
        self._exchange = None
        if not again or mechanism == self._mechanism:
            self._mechanism = mechanism
            self._exchange = self._security.exchange(mechanism, self._authenticator.users)
        self._state = State.EXCHANGE
        self.raw = version == 0
        return {"error_code": ErrorCode.NONE, "mechanisms": mechanisms}

    def authenticate(self, data: bytes) -> Fields | DelayedAnswer:
        """Take a step of the exchange."""
        if self._state is not State.EXCHANGE:
            message = "SaslHandshake comes before SaslAuthenticate"
            return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "error_message": message, "auth_bytes": b""}
        delayed = DelayedAnswer()
        self._step(
            data,
            lambda reply: delayed.answer(
                {
                    "error_code": reply.code,
                    "error_message": reply.message,
                    "auth_bytes": reply.data,
                    "session_lifetime": reply.session_ms,
                }
            ),
        )
        return delayed

    def take_raw(self, frame: memoryview) -> DelayedAnswer | None:
        """Take a token that came without a request around it; a failure has no answer. None: not its turn."""
        if self._state is not State.EXCHANGE:
            return None
        delayed = DelayedAnswer()

        def deliver(reply: Reply) -> None:
            if reply.code is ErrorCode.NONE:
                delayed.answer(INT32.pack(len(reply.data)) + reply.data)

        self._step(bytes(frame), deliver)
        return delayed

    # -- the exchange

    def _step(self, data: bytes, deliver: Callable[[Reply], None]) -> None:
        self._state = State.BUSY
        exchange = self._exchange
        outcome: ExchangeOutcome
        if exchange is None:
            outcome = Rejected("another mechanism than before", "the mechanism must stay the same")
        else:
            outcome = exchange.respond(data)
        if not isinstance(outcome, DeferredVerdict):
            self._settle(outcome, deliver)
            return

        def worked(result: Any) -> None:
            if isinstance(result, BaseException):
                log.error("checking credentials failed", exc_info=result)
                result = Rejected("its credentials could not be checked")
            self._settle(result, deliver)

        work = outcome.work

        def still_wanted() -> object:
            # Whoever logs in and hangs up at once, again and again, must not keep others waiting.
            return work() if self._state is State.BUSY else Rejected("the connection is gone")

        self._authenticator.authentication_background.run(still_wanted, worked)

    def _settle(self, outcome: Challenge | Accepted | Rejected, deliver: Callable[[Reply], None]) -> None:
        if self._state is not State.BUSY:
            return  # the connection was lost meanwhile
        if isinstance(outcome, Challenge):
            self._state = State.EXCHANGE
            deliver(Reply(data=outcome.data))
            return
        if isinstance(outcome, Accepted) and len(outcome.user) > USER_NAME_LENGTH_MAX:
            # Tokens may name anybody; who a client is stands in answers, logs and keys.
            outcome = Rejected(f"a user name of {len(outcome.user)} characters", "the user name is too long")
        principal = f"{USER_TYPE}:{outcome.user}" if isinstance(outcome, Accepted) else ""
        if isinstance(outcome, Accepted) and self._principal in ("", principal):
            deliver(self._accept(outcome, principal))
            return
        if isinstance(outcome, Accepted):
            outcome = Rejected("another user than before", "the user must stay the same")
        assert isinstance(outcome, Rejected)
        message = outcome.message or f"Authentication failed: invalid credentials for {self._mechanism}"
        reply = Reply(ErrorCode.SASL_AUTHENTICATION_FAILED, message)
        self._refuse(f"{self._mechanism} failed: {outcome.reason}", lambda: deliver(reply))

    def _accept(self, accepted: Accepted, principal: str) -> Reply:
        context, authenticator = self._context, self._authenticator
        session_ms = self._security.session_ms(
            self._mechanism, accepted.expires_ms, authenticator.clock.now_ms()
        )
        self._state = State.DONE
        self._exchange = None
        self._principal = context.principal = principal
        self.raw = False
        context.token_id = accepted.token_id
        context.gate = None
        context.frame_bytes_max = authenticator.settings.get_int("socket.request.max.bytes")
        if session_ms:
            authenticator.timers.set_after(self, session_ms, self._expire)
        else:
            authenticator.timers.cancel(self)
        log.debug("%s authenticated as %s with %s", context.host, principal, self._mechanism)
        return Reply(data=accepted.data, session_ms=session_ms)

    def _refuse(self, reason: str, answer: Callable[[], None]) -> None:
        """Answer after a while, then close."""
        self._state = State.REFUSED
        self._exchange = None
        self._context.forget_templates()
        self._context.gate = self

        def late() -> None:
            answer()
            self._close(reason)

        delay_ms = self._authenticator.settings.get_int("connection.failed.authentication.delay.ms")
        self._authenticator.timers.set_after(self, delay_ms, late)

    def _expire(self) -> None:
        if self._state is State.DONE:
            self._state = State.EXPIRED
            self._context.forget_templates()
            self._context.gate = self

    def abandon(self) -> None:
        """The connection is gone."""
        self._state = State.REFUSED
        self._authenticator.timers.cancel(self)
