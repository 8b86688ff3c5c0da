"""AlterUserScramCredentials (key 51), version 0: set and remove SCRAM credentials (KIP-554).

A client sends the salted password; what is stored of it is what checks it, no more. Between 4,096 and 16,384
iterations are taken, others are UNACCEPTABLE_CREDENTIAL. A user is named once in a request, or nothing of it
is changed (DUPLICATE_RESOURCE). The answer has one result for each user.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.config_answers import error_fields
from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.controller.commands import AlterUsers, CredentialChange, Result
from tidelog.model.credentials import SCRAM_MECHANISMS, ScramCredential
from tidelog.security.scram import credential_from_salted


@dataclass(frozen=True, slots=True)
class Handler:
    """Have the controller change the users and answer when that is durable."""

    metadata: Metadata

    def handle(self, request: Request) -> Mapping[str, object] | DelayedAnswer:
        body = request.body
        changes = [
            CredentialChange(deletion.name, SCRAM_MECHANISMS.get(deletion.mechanism, ""))
            for deletion in body.deletions
        ]
        for upsertion in body.upsertions:
            mechanism = SCRAM_MECHANISMS.get(upsertion.mechanism, "")
            salt, salted = bytes(upsertion.salt), bytes(upsertion.salted_password)
            credential = (
                credential_from_salted(mechanism, salted, salt, upsertion.iterations)
                if mechanism
                else ScramCredential(b"", b"", b"", 0)
            )
            changes.append(CredentialChange(upsertion.name, mechanism, credential))
        delayed = DelayedAnswer()

        def changed(results: tuple[Result, ...]) -> None:
            by_user = {change.user: result for change, result in zip(changes, results, strict=True)}
            delayed.answer(
                {"results": [{"user": user, **error_fields(result)} for user, result in by_user.items()]}
            )

        self.metadata.submit(AlterUsers(tuple(changes)), changed)
        return delayed
