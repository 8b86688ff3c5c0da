"""SaslHandshake (key 17), versions 0 and 1: a client names the SASL mechanism it will use.

The answer lists the mechanisms of the listener. One that is not enabled is answered with
UNSUPPORTED_SASL_MECHANISM, after the delay of a failed authentication, and the connection is closed. On a
listener without SASL, or in the middle of an exchange, it is ILLEGAL_SASL_STATE. Version 0 is followed by
tokens without request headers.
"""

from dataclasses import dataclass

from tidelog.broker.requests.authentication import Fields
from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.model.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class Handler:
    """Begin an exchange."""

    def handle(self, request: Request) -> Fields | DelayedAnswer:
        authentication = request.context.authentication
        if authentication is None:
            return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": ()}
        return authentication.handshake(request.body.mechanism, request.version)
