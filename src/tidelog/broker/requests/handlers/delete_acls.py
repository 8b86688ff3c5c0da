"""DeleteAcls (key 31), versions 1 to 3: the ACLs that filters choose go away (KIP-140, KIP-290).

The answer names what each filter chose. Without an authorizer every answer is SECURITY_DISABLED.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.acl_answers import SECURITY_DISABLED, filter_of
from tidelog.broker.requests.config_answers import error_fields
from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.controller.commands import AclsDeleted, DeleteAcls, Result
from tidelog.model.acls import AclBinding

if TYPE_CHECKING:
    from tidelog.broker.requests.authorization import Authorization

Fields = dict[str, object]


@dataclass(frozen=True, slots=True)
class Handler:
    """Have the controller remove them."""

    metadata: Metadata
    authorization: "Authorization | None"

    def handle(self, request: Request) -> Mapping[str, object] | DelayedAnswer:
        filters = request.body.filters
        if self.authorization is None:
            row: Fields = {**error_fields(SECURITY_DISABLED), "matching_acls": []}
            return {"filter_results": [row for _ in filters]}
        if not filters:
            return {"filter_results": []}
        delayed = DelayedAnswer()
        self.metadata.submit(
            DeleteAcls(tuple(filter_of(one) for one in filters)),
            lambda results: delayed.answer({"filter_results": [_result(result) for result in results]}),
        )
        return delayed


def _result(result: Result) -> Fields:
    acls = result.acls if isinstance(result, AclsDeleted) else ()
    return {**error_fields(result), "matching_acls": [_matching(acl) for acl in acls]}


def _matching(acl: AclBinding) -> Fields:
    return {
        **error_fields(None),
        "resource_type": int(acl.resource_type),
        "resource_name": acl.name,
        "pattern_type": int(acl.pattern_type),
        "principal": acl.principal,
        "host": acl.host,
        "operation": int(acl.operation),
        "permission_type": int(acl.permission),
    }
