"""The login page, the way out, and the gate before everything else.

Where a console asks for a login, pages without a session lead to /login, the API answers 401 (scripts may
send a name and a password as `Authorization: Basic` with each request), and only /login, /healthz and
/static are open. The cookie is HttpOnly and SameSite=Lax, Secure where the browser came by https.
"""

import base64
import binascii
import hashlib
from typing import Any
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tidelog.console.console import SESSION, Console
from tidelog.console.faults import ConsoleFault
from tidelog.console.login import LIFE_SECONDS, Login, Person, Session
from tidelog.console.rendering import path_part

OPEN_PATHS = ("/login", "/healthz")
OPEN_FOLDER = "/static/"
UNAUTHORIZED = 401
#: how long a browser remembers that somebody has logged in with it
DEVICE_SECONDS = 90 * 86_400.0


def cookie_name(bootstrap: str) -> str:
    """Cookies know no ports: consoles of several clusters on one host have different names."""
    return f"tidelog_console_{hashlib.sha256(bootstrap.encode()).hexdigest()[:8]}"


def device_cookie_name(session_cookie: str) -> str:
    """The cookie that says that somebody has logged in here before."""
    return f"{session_cookie}_device"


def safe_target(text: str) -> str:
    """Where to go after a login: a path of this console, nothing else."""
    parts = urlsplit(text)
    foreign = parts.scheme or parts.netloc or not text.startswith("/") or text.startswith(("//", "/\\"))
    return "/" if foreign or any(character < " " for character in text) else text


class LoginGate:
    """ASGI middleware: finds the session of a request, and keeps those without one out."""

    def __init__(self, app: ASGIApp, console: Console) -> None:
        self._app = app
        self._console = console
        self._cookie = cookie_name(console.settings.bootstrap)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        login = self._console.login
        if scope["type"] != "http" or login is None:
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        refusal: Response | None = None
        try:
            scope[SESSION] = await self._session(login, request)
        except ConsoleFault as fault:
            refusal = JSONResponse({"error": fault.message, "hint": fault.hint}, fault.status)
        path = scope["path"]
        is_open = path in OPEN_PATHS or path.startswith(OPEN_FOLDER)
        if refusal is None and scope.get(SESSION) is None and not is_open:
            refusal = self._refusal(request)
        await (refusal or self._app)(scope, receive, send)

    async def _session(self, login: Login, request: Request) -> Session | None:
        session_id = request.cookies.get(self._cookie)
        if session_id:
            return login.sessions.find(session_id)
        if not request.url.path.startswith("/api/") or request.method != "GET":
            return None
        given = basic_credentials(request.headers)
        if given is None:
            return None
        mark = request.cookies.get(device_cookie_name(self._cookie), "")
        person = await run_in_threadpool(login.person, *given, address_of(request), mark)
        return Session(person, 0.0, 0.0, "")

    def _refusal(self, request: Request) -> Response:
        path = request.url.path
        if path.startswith("/api/") or request.method != "GET" or "x-live" in request.headers:
            return JSONResponse(
                {"error": "log in first", "hint": "Open /login, or send Authorization: Basic."}, UNAUTHORIZED
            )
        target = path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"/login?next={path_part(target)}", 303)


def basic_credentials(headers: Headers) -> tuple[str, str] | None:
    """Name and password of an Authorization header; None where there is none that can be read."""
    kind, _, encoded = headers.get("authorization", "").partition(" ")
    if kind.lower() != "basic":
        return None
    try:
        name, separator, password = base64.b64decode(encoded, validate=True).decode("utf-8").partition(":")
    except (ValueError, binascii.Error):
        return None
    return (name, password) if separator else None


def address_of(request: Request) -> str:
    """Who is at the other end of the connection; what X-Forwarded-For says anybody can write."""
    return "unknown" if request.client is None else request.client.host


def login_page(console: Console, request: Request) -> Response:
    """The form; somebody who is logged in already goes on at once."""
    target = safe_target(request.query_params.get("next", "/"))
    if console.login is None or console.session(request) is not None:
        return RedirectResponse(target, 303)
    return _form(console, request, target)


def _form(console: Console, request: Request, target: str, status: int = 200, **more: Any) -> Response:
    return console.page(request, "login.html", "", "Log in", status=status, target=target, **more)


def log_in(console: Console, request: Request, form: dict[str, str]) -> Response:
    target = safe_target(form.get("next", "/"))
    if console.login is None:
        return RedirectResponse(target, 303)
    name = form.get("name", "").strip()
    try:
        mark = request.cookies.get(device_cookie_name(cookie_name(console.settings.bootstrap)), "")
        person = console.login.person(name, form.get("password", ""), address_of(request), mark)
    except ConsoleFault as fault:
        return _form(console, request, target, fault.status, fault=fault, name=name[:200])
    return _logged_in(console, request, person, target)


def _logged_in(console: Console, request: Request, person: Person, target: str) -> Response:
    assert console.login is not None
    answer = RedirectResponse(target, 303)
    forwarded = request.headers.get("x-forwarded-proto", "")
    cookie = cookie_name(console.settings.bootstrap)
    for name, value, seconds in (
        (cookie, console.login.sessions.open(person), LIFE_SECONDS),
        (device_cookie_name(cookie), console.login.devices.mark(person.name), DEVICE_SECONDS),
    ):
        answer.set_cookie(
            name,
            value,
            max_age=int(seconds),
            httponly=True,
            samesite="lax",
            secure=request.url.scheme == "https" or forwarded == "https",
        )
    return answer


def log_out(console: Console, request: Request, form: dict[str, str]) -> Response:
    name = cookie_name(console.settings.bootstrap)
    if console.login is not None:
        console.login.sessions.close(request.cookies.get(name, ""))
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(name, httponly=True, samesite="lax")
    return answer
