"""What keeps other sites out of the console.

- Host: requests for a name that is not ours are refused, so that a foreign name made to point here (DNS
  rebinding) reads nothing. Addresses and localhost are ours; other names are given with --allow-host.
- Changes need to come from our own pages: Sec-Fetch-Site or Origin must say so, and the form carries a token
  that only our pages show.
- Answers forbid everything that our pages do not use: foreign scripts, inline scripts, frames, sniffing.
"""

import hmac
import ipaddress
import secrets
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
        " form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def host_allowed(host_header: str, allowed: Iterable[str]) -> bool:
    """Whether a Host header names this console."""
    name = urlsplit(f"//{host_header}").hostname
    if not name:
        return False
    if name == "localhost" or name in allowed:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def same_origin(headers: Mapping[str, str]) -> bool:
    """Whether a request comes from our own page, as far as the browser says; a script says nothing."""
    site = headers.get("sec-fetch-site")
    if site is not None and site not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc == headers.get("host", "")


class Token:
    """The secret of this process that forms carry."""

    def __init__(self) -> None:
        self.text = secrets.token_urlsafe(24)


def token_fits(expected: str, given: str) -> bool:
    """Whether a form carries the token that it must; an empty one fits nothing."""
    return bool(expected) and hmac.compare_digest(expected.encode(), given.encode())


class Guard:
    """ASGI middleware: checks the host, adds the headers."""

    def __init__(self, app: ASGIApp, allowed_hosts: Iterable[str] = ()) -> None:
        self._app = app
        self._allowed = frozenset(allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if not scope["path"].startswith("/static/"):
                    headers.setdefault("cache-control", "no-store")
            await send(message)

        host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
        if not host_allowed(host, self._allowed):
            refusal = PlainTextResponse(
                "This host name is not the console's. Start it with --allow-host NAME to allow one.\n", 421
            )
            await refusal(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)
