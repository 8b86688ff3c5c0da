"""CreateAcls (key 30), versions 1 to 3: who may, or may not, do what (KIP-140, KIP-290).

Each ACL is answered on its own, when it counts on this broker; the others follow within moments. One that
exists already is no error. Without an authorizer every answer is SECURITY_DISABLED.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidelog.broker.acl_answers import SECURITY_DISABLED, binding_of
from tidelog.broker.config_answers import error_fields
from tidelog.broker.parking import Parked
from tidelog.controller.commands import CreateAcls

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.dispatch import Request


def handle(broker: "Broker", request: "Request") -> Mapping[str, object] | Parked:
    """Have the controller add them."""
    creations = request.body.creations
    if broker.authorization is None:
        return {"results": [error_fields(SECURITY_DISABLED) for _ in creations]}
    if not creations:
        return {"results": []}
    parked = Parked()
    broker.metadata.submit(
        CreateAcls(tuple(binding_of(creation) for creation in creations)),
        lambda results: parked.answer({"results": [error_fields(result) for result in results]}),
    )
    return parked
