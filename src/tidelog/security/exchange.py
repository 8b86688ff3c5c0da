"""The server's side of a SASL exchange: what the client sent goes in, what becomes of it comes out.

    respond(bytes) → Challenge         say this and wait for more
                     Accepted          the client is who it says
                     Rejected          it is not
                     DeferredVerdict   the answer takes work that would keep others waiting; `work` gives it

An exchange is used once, by one connection, and knows neither sockets nor threads: whoever has a
`DeferredVerdict` runs its work where it likes, and feeds nothing more in before that is done.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

#: nobody may act for another here, so an authorization id adds nothing to the user's own name
OTHER_AUTHORIZATION = "Authentication failed: the authorization id is not that of the user"


class Challenge(NamedTuple):
    """There is more to come."""

    data: bytes


class Accepted(NamedTuple):
    """The client proved to be the user of this name."""

    user: str
    data: bytes = b""
    #: when what it proved itself with ends, in wall-clock time
    expires_ms: int | None = None
    #: the delegation token it came with, if it did
    token_id: str = ""


class Rejected(NamedTuple):
    """The client proved nothing.

    `reason` is for our log. `message` is for the client, and None where saying more than that the credentials
    are invalid would tell it who exists.
    """

    reason: str
    message: str | None = None


class DeferredVerdict(NamedTuple):
    """Work to be done elsewhere: it blocks."""

    work: "Callable[[], Verdict]"


Verdict = Challenge | Accepted | Rejected
ExchangeOutcome = Challenge | Accepted | Rejected | DeferredVerdict


class Exchange(Protocol):
    """One run of one mechanism."""

    def respond(self, data: bytes) -> ExchangeOutcome:
        """Take what the client sent."""
