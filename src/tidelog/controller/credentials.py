"""Decisions about users and delegation tokens.

Limits, errors and their order are Kafka's. Whoever asks has done what needs a secret or a clock: passwords
come as what checks them, tokens with their times.
"""

from dataclasses import replace

from tidelog.controller.commands import (
    AlterUsers,
    ChangeTokens,
    CredentialChange,
    Decision,
    Done,
    Result,
    TokenChange,
)
from tidelog.model.credentials import SCRAM_MECHANISMS, TokenRecord, UserRecord
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.image import ClusterImage
from tidelog.model.metadata import MetadataRecord

ITERATIONS_MIN = 4_096
ITERATIONS_MAX = 16_384
#: names are parts of keys, three bytes for a character in the worst case
USER_NAME_BYTES_MAX = 1_024
SALT_BYTES_MAX = 1_024


def alter_users(command: AlterUsers, image: ClusterImage) -> Decision:
    """Set and remove SCRAM credentials, one of a user; a fault of the first is told before the second."""
    accepted: dict[str, CredentialChange] = {}
    refused: dict[str, Refused] = {}
    for change in command.changes:
        if change.user in refused:
            continue
        if accepted.pop(change.user, None) is not None:
            message = "a user can be named once in a request"
            refused[change.user] = Refused(ErrorCode.DUPLICATE_RESOURCE, message)
        elif (fault := _check(change, image)) is not None:
            refused[change.user] = fault
        else:
            accepted[change.user] = change
    records = tuple(_changed_user(change, image) for change in accepted.values())
    results = tuple(refused.get(change.user) or Done() for change in command.changes)
    return Decision(records, results)


def _changed_user(change: CredentialChange, image: ClusterImage) -> UserRecord:
    credentials = dict(image.users.get(change.user, {}))
    if change.credential is None:
        del credentials[change.mechanism]
    else:
        credentials[change.mechanism] = change.credential
    return UserRecord(change.user, credentials)


def _check(change: CredentialChange, image: ClusterImage) -> Refused | None:
    if not change.user:
        return Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, "the user's name is empty")
    if len(change.user.encode()) > USER_NAME_BYTES_MAX:
        message = f"the user's name has more than {USER_NAME_BYTES_MAX} bytes"
        return Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, message)
    if change.mechanism not in SCRAM_MECHANISMS.values():
        return Refused(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "there is no such SCRAM mechanism")
    credential = change.credential
    if credential is None:
        if change.mechanism not in image.users.get(change.user, {}):
            return Refused(ErrorCode.RESOURCE_NOT_FOUND, "the user has no such credential")
        return None
    if not ITERATIONS_MIN <= credential.iterations <= ITERATIONS_MAX:
        message = f"iterations must be {ITERATIONS_MIN} to {ITERATIONS_MAX}, not {credential.iterations}"
        return Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, message)
    if not 0 < len(credential.salt) <= SALT_BYTES_MAX:
        return Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, "the salt is empty or too long")
    return None


def change_tokens(command: ChangeTokens, image: ClusterImage) -> Decision:
    """Keep new tokens, let tokens last longer or shorter, and remove them."""
    records: list[MetadataRecord] = []
    results: list[Result] = []
    for change in command.changes:
        record = _token_record(change, image)
        results.append(record if isinstance(record, Refused) else Done())
        if isinstance(record, TokenRecord):
            records.append(record)
    return Decision(tuple(records), tuple(results))


def _token_record(change: TokenChange, image: ClusterImage) -> TokenRecord | Refused:
    if change.created is not None:
        return TokenRecord(change.token_id, change.created)
    token = image.tokens.get(change.token_id)
    if token is None:
        return Refused(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "the token is gone")
    if change.expiry_timestamp_ms is None:
        return TokenRecord(change.token_id)
    expiry_ms = min(change.expiry_timestamp_ms, token.max_timestamp_ms)
    return TokenRecord(change.token_id, replace(token, expiry_timestamp_ms=expiry_ms))
