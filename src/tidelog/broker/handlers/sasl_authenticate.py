"""SaslAuthenticate (key 36), versions 0 to 2: one step of a SASL exchange.

A step that fails is answered with SASL_AUTHENTICATION_FAILED after
`connection.failed.authentication.delay.ms`, and the connection is closed. From version 1 the last answer says
how long the authentication lasts (KIP-368); 0 is for as long as the connection.
"""

from typing import TYPE_CHECKING

from tidelog.broker.authentication import Fields
from tidelog.broker.parking import Parked
from tidelog.model.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.dispatch import Request


def handle(broker: "Broker", request: "Request") -> Fields | Parked:
    """Take the step."""
    authentication = request.context.authentication
    if authentication is None:
        message = "this listener has no SASL"
        return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "error_message": message, "auth_bytes": b""}
    return authentication.authenticate(bytes(request.body.auth_bytes))
