"""Requests about ACLs, quotas and users, which any broker takes, and their refusals in words."""

from collections.abc import Mapping
from typing import Any

from tidelog.cli.connection import Connection, probe
from tidelog.cli.errors import UNREACHABLE_HINT, UNREADABLE_HINT, CommandError, hint_for
from tidelog.client.faults import ClientFault
from tidelog.client.link import Link
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.protocol.apis import APIS
from tidelog.protocol.primitives import MalformedRequest

DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS = 29, 30, 31
DESCRIBE_CLIENT_QUOTAS, ALTER_CLIENT_QUOTAS = 48, 49
DESCRIBE_USER_SCRAM_CREDENTIALS = 50
#: how long an address may take that is not the last one
FIRST_SECONDS_MAX = 2.0

_HINTS = {
    ErrorCode.SECURITY_DISABLED: "start the brokers with the setting authorizer.class.name "
    "('tidelog up --secure' does)",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "connect as a super user, or ask one for 'tidelog acl allow USER "
    "OPERATION --cluster': describe and alter for ACLs and users, describe_configs and alter_configs for "
    "quotas",
    ErrorCode.RESOURCE_NOT_FOUND: "'tidelog user list' shows the users",
    ErrorCode.INVALID_REQUEST: "the command's --help has examples",
}


def ask(connection: Connection, api_key: int, fields: Mapping[str, Any]) -> Any:
    """Send one request to the first broker that can be reached, and return the decoded answer."""
    probe(connection.bootstrap)
    api = APIS[api_key]
    address, link = _first_link(connection)
    try:
        ticket = link.send(api.key, api.max_version, messages.encode_request(api, api.max_version, fields))
        return messages.decode_response(api, api.max_version, memoryview(link.receive(ticket)))
    except ClientFault as failure:
        raise CommandError(f"the connection to {address} failed: {failure}", UNREACHABLE_HINT) from failure
    except MalformedRequest as failure:
        raise CommandError(f"the answer of {address} cannot be read: {failure}", UNREADABLE_HINT) from failure
    finally:
        link.close()


def _first_link(connection: Connection) -> tuple[str, Link]:
    """The first bootstrap address that answers; the fault of the last one if none does."""
    *others, last = (part.strip() for part in connection.bootstrap.split(","))
    for address in others:
        try:
            return address, connection.link(address, FIRST_SECONDS_MAX)
        except CommandError:
            continue
    return last, connection.link(last)


def check(answer: Any, doing: str) -> None:
    """Raise what went wrong, as a sentence."""
    code = ErrorCode(int(answer.error_code))
    if code is not ErrorCode.NONE:
        reason = f"{answer.error_message} ({code.name})" if answer.error_message else code.name
        raise CommandError(f"{doing}: {reason}", _HINTS.get(code) or hint_for(code.name))
