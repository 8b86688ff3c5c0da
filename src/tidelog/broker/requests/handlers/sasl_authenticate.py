"""SaslAuthenticate (key 36), versions 0 to 2: one step of a SASL exchange.

A step that fails is answered with SASL_AUTHENTICATION_FAILED after
`connection.failed.authentication.delay.ms`, and the connection is closed. From version 1 the last answer says
how long the authentication lasts (KIP-368); 0 is for as long as the connection.
"""

from dataclasses import dataclass

from tidelog.broker.requests.authentication import Fields
from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.model.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class Handler:
    """Take the step."""

    def handle(self, request: Request) -> Fields | DelayedAnswer:
        authentication = request.context.authentication
        if authentication is None:
            message = "this listener has no SASL"
            return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "error_message": message, "auth_bytes": b""}
        return authentication.authenticate(bytes(request.body.auth_bytes))
