"""DescribeAcls (key 29), versions 1 to 3: the ACLs that a filter chooses, by resource pattern.

KIP-140, with prefixes KIP-290, users as resources KIP-373. Without an authorizer the answer is
SECURITY_DISABLED.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.acl_answers import SECURITY_DISABLED, filter_of
from tidelog.broker.requests.config_answers import error_fields
from tidelog.broker.requests.request import Request
from tidelog.model.errors import ErrorCode, Refused

if TYPE_CHECKING:
    from tidelog.broker.requests.authorization import Authorization


@dataclass(frozen=True, slots=True)
class Handler:
    """Answer from the image."""

    metadata: Metadata
    authorization: "Authorization | None"

    def handle(self, request: Request) -> Mapping[str, object]:
        if self.authorization is None:
            return {**error_fields(SECURITY_DISABLED), "resources": []}
        chosen = filter_of(request.body)
        if chosen.unknown:
            refused = Refused(ErrorCode.INVALID_REQUEST, "The filter has an unknown element.")
            return {**error_fields(refused), "resources": []}
        resources = []
        for pattern, entries in sorted(self.metadata.image.acls.items()):
            if not chosen.matches_pattern(pattern):
                continue
            acls = [
                {
                    "principal": who,
                    "host": host,
                    "operation": int(operation),
                    "permission_type": int(permission),
                }
                for who, host, operation, permission in sorted(filter(chosen.matches_entry, entries))
            ]
            if acls:
                resources.append(
                    {
                        "resource_type": int(pattern.resource_type),
                        "resource_name": pattern.name,
                        "pattern_type": int(pattern.pattern_type),
                        "acls": acls,
                    }
                )
        return {**error_fields(None), "resources": resources}
