"""CreateAcls (key 30), versions 1 to 3: who may, or may not, do what (KIP-140, KIP-290).

Each ACL is answered on its own, when it counts on this broker; the others follow within moments. One that
exists already is no error. Without an authorizer every answer is SECURITY_DISABLED.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.acl_answers import SECURITY_DISABLED, binding_of
from tidelog.broker.requests.config_answers import error_fields
from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.controller.commands import CreateAcls

if TYPE_CHECKING:
    from tidelog.broker.requests.authorization import Authorization


@dataclass(frozen=True, slots=True)
class Handler:
    """Have the controller add them."""

    metadata: Metadata
    authorization: "Authorization | None"

    def handle(self, request: Request) -> Mapping[str, object] | DelayedAnswer:
        creations = request.body.creations
        if self.authorization is None:
            return {"results": [error_fields(SECURITY_DISABLED) for _ in creations]}
        if not creations:
            return {"results": []}
        delayed = DelayedAnswer()
        self.metadata.submit(
            CreateAcls(tuple(binding_of(creation) for creation in creations)),
            lambda results: delayed.answer({"results": [error_fields(result) for result in results]}),
        )
        return delayed
