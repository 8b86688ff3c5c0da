"""Takes a change to the primary: the same request, with who sent it, once.

A request that was forwarded already is not forwarded again (`X-Forward`, as Confluent's), so two instances
that are wrong about each other end with an error and not with a loop. Answers are bounded in size and time.
"""

import http.client
import json
import ssl
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from tidelog.registry.faults import FORWARDING_FAILED, NO_LEADER, RegistryFault

FORWARDED = "x-forward"
TIMEOUT_SECONDS = 30.0
ANSWER_BYTES_MAX = 8 << 20
_SERVER_FAULT = 500
_PASSED_ON = ("authorization", "content-type", "accept")


class NotTaken(RegistryFault):
    """Who was taken for the primary did not take the change: nobody is there, or it is another one now."""


class Forwarded(NamedTuple):
    """The primary's answer, to be passed on as it is."""

    status: int
    content_type: str
    body: bytes


def forward(
    url: str,
    method: str,
    target: str,
    headers: Mapping[str, str],
    body: bytes,
    tls: ssl.SSLContext | None,
) -> Forwarded:
    """Ask the primary; raises NotTaken where nothing can have been written, RegistryFault where it may."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port
    if parts.scheme == "https":
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, port, timeout=TIMEOUT_SECONDS, context=tls or ssl.create_default_context()
        )
    else:
        connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
    sent = {name: headers[name] for name in _PASSED_ON if name in headers}
    failed = f"Error while forwarding the request to the primary at {url}"
    try:
        connection.connect()
    except OSError as fault:
        connection.close()
        raise NotTaken(FORWARDING_FAILED, f"{failed}: {fault}") from fault
    try:
        connection.request(method, target, body, {**sent, FORWARDED: "false"})
        answer = connection.getresponse()
        found = answer.read(ANSWER_BYTES_MAX + 1)
        missing = answer.length or 0
    except (OSError, http.client.HTTPException) as fault:
        raise RegistryFault(FORWARDING_FAILED, f"{failed}: {fault}") from fault
    finally:
        connection.close()
    if missing and len(found) <= ANSWER_BYTES_MAX:
        # It died in the middle; reading up to a limit does not say so.
        raise RegistryFault(FORWARDING_FAILED, f"the answer of the primary at {url} broke off")
    if len(found) > ANSWER_BYTES_MAX:
        raise RegistryFault(FORWARDING_FAILED, "the primary's answer is too large")
    if answer.status == _SERVER_FAULT and _refused_code(found) in (FORWARDING_FAILED, NO_LEADER):
        raise NotTaken(FORWARDING_FAILED, f"{url} is not the primary any more, or not yet")
    return Forwarded(answer.status, answer.getheader("content-type") or "application/json", found)


def _refused_code(body: bytes) -> int:
    try:
        return int(json.loads(body)["error_code"])
    except (ValueError, KeyError, TypeError):
        return 0
