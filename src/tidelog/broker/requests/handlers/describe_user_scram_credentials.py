"""DescribeUserScramCredentials (key 50), version 0: who has SCRAM credentials, and of which kind (KIP-554).

Without names, or with none, all users are described. Nothing that helps to guess a password is told: the
mechanisms and the numbers of iterations alone.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.request import Request
from tidelog.model.credentials import SCRAM_MECHANISMS
from tidelog.model.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class Handler:
    """Answer from the newest metadata."""

    metadata: Metadata

    def handle(self, request: Request) -> Mapping[str, object]:
        known = self.metadata.image.users
        wanted = Counter(user.name for user in request.body.users or ()) or Counter(known.keys())
        results = []
        for user, times in wanted.items():
            fields: dict[str, object] = {"user": user, "error_code": ErrorCode.NONE, "credential_infos": ()}
            if times > 1:
                message = "a user can be named once in a request"
                fields |= {"error_code": ErrorCode.DUPLICATE_RESOURCE, "error_message": message}
            elif user not in known:
                message = "the user has no SCRAM credentials"
                fields |= {"error_code": ErrorCode.RESOURCE_NOT_FOUND, "error_message": message}
            else:
                fields["credential_infos"] = [
                    {"mechanism": number, "iterations": known[user][mechanism].iterations}
                    for number, mechanism in SCRAM_MECHANISMS.items()
                    if mechanism in known[user]
                ]
            results.append(fields)
        return {"error_code": ErrorCode.NONE, "results": results}
