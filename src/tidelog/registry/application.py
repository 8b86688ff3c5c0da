"""The HTTP application (ASGI): reads a request within limits, logs its sender in, calls its handler in a
thread.

`/healthz` and `/metrics` answer without a login and without a thread. Everything else needs one where the
cluster does. Errors are Confluent's JSON, `{"error_code": 40401, "message": …}`.
"""

import asyncio
import base64
import binascii
import contextlib
import json
import logging
import ssl
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any
from urllib.parse import parse_qs

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

from tidelog.registry import forwarding, limits, routes
from tidelog.registry.access import Access, Caller
from tidelog.registry.api_schemas import Plain
from tidelog.registry.calls import Call
from tidelog.registry.entities import compact
from tidelog.registry.faults import (
    BAD_REQUEST,
    FORWARDING_FAILED,
    NO_LEADER,
    TOO_LARGE,
    UNAUTHORIZED,
    BadSchema,
    RegistryFault,
)
from tidelog.registry.metrics import CONTENT_TYPE, Metrics
from tidelog.registry.routes import Found, NoRoute
from tidelog.registry.service import NotPrimary, Registry

_log = logging.getLogger("tidelog.registry")

#: a schema of the largest size, escaped in JSON, with what comes along
BODY_BYTES_MAX = 2 * limits.SCHEMA_BYTES_MAX + (64 << 10)
BODY_SECONDS_MAX = 15.0
PARAMETERS_MAX = 100
#: how long a change is offered to a primary that does not take it
PRIMARY_SECONDS_MAX = 10.0
AGAIN_SECONDS = 0.25
READING_THREADS = 32
CHANGING_THREADS = 64
MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"


class Api:
    """The application of one instance."""

    def __init__(self, registry: Registry, access: Access, forward_tls: ssl.SSLContext | None = None) -> None:
        self.registry = registry
        self.access = access
        self.metrics = Metrics()
        self._forward_tls = forward_tls
        self._reading = anyio.CapacityLimiter(READING_THREADS)
        self._changing = anyio.CapacityLimiter(CHANGING_THREADS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        started = time.perf_counter()
        path = scope["path"]
        if path == "/healthz":
            ready = self.registry.is_ready
            response = Response("ok\n" if ready else "not ready\n", 200 if ready else 503)
        elif path == "/metrics":
            response = Response(self.metrics.text(self.registry), media_type=CONTENT_TYPE)
        else:
            template, response = await self._answer(request)
            seconds = time.perf_counter() - started
            self.metrics.count(request.method[:10], template, response.status_code, seconds)
        with contextlib.suppress(ClientDisconnect):
            await response(scope, receive, send)

    async def _answer(self, request: Request) -> tuple[str, Response]:
        """The row of the table that served it, and the answer."""
        template = "unknown"
        try:
            found = _found(request)
            template = found.route.template
            body = await _body(request)
            # Changes that wait for the cluster keep no thread from those who read.
            limiter = self._changing if found.route.changes else self._reading
            served = partial(self._serve, request, found, body)
            return template, await anyio.to_thread.run_sync(served, limiter=limiter)
        except NoRoute as missing:
            code = 405 if missing.allowed else 404
            fault = RegistryFault(
                code, f"HTTP {code} {'Method Not Allowed' if missing.allowed else 'Not Found'}"
            )
            return template, _fault(fault)
        except RegistryFault as fault:
            return template, _fault(fault)
        except ClientDisconnect:
            return template, Response(status_code=BAD_REQUEST)
        except Exception:
            # A defect is told to whoever runs the registry, and nothing of it to whoever sent the request.
            _log.exception("a request failed: %s %s", request.method, template)
            return template, _fault(RegistryFault(50001, "Internal Server Error"))

    def _serve(self, request: Request, found: Found, body: bytes) -> Response:
        """In a thread: log in, do it, or have the primary do it."""
        caller = self._caller(request)
        call = Call(self.registry, self.access, caller, found.path, found.query, _json(body))
        deadline = time.monotonic() + PRIMARY_SECONDS_MAX
        while True:
            try:
                answer = found.route.handler(call)
                break
            except NotPrimary as elsewhere:
                try:
                    return self._forward(request, body, elsewhere)
                except forwarding.NotTaken:
                    # The group has not noticed yet, or we have not heard of it.
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(AGAIN_SECONDS)
        if found.route.changes:
            _log.info("%s %s by %s", request.method, request.url.path[:300], caller.name or "anybody")
        if isinstance(answer, Plain):
            return Response(answer, media_type=MEDIA_TYPE)
        return Response(compact(answer), media_type=MEDIA_TYPE)

    def _caller(self, request: Request) -> Caller:
        if not self.access.closed:
            return Caller()
        name, password = _credentials(request.headers.get("authorization", ""))
        address = request.client.host if request.client is not None else ""
        return self.access.check(name, password, address)

    def _forward(self, request: Request, body: bytes, elsewhere: NotPrimary) -> Response:
        if elsewhere.url is None:
            raise RegistryFault(NO_LEADER, "Leader not known.")
        if forwarding.FORWARDED in request.headers:
            raise RegistryFault(FORWARDING_FAILED, f"the primary is {elsewhere.url} now; try again")
        target = request.scope["raw_path"].decode("latin-1")
        if request.url.query:
            target += f"?{request.url.query}"
        self.metrics.forwarded += 1
        found = forwarding.forward(
            elsewhere.url, request.method, target, request.headers, body, self._forward_tls
        )
        return Response(found.body, found.status, media_type=found.content_type)


def create_application(
    registry: Registry, access: Access, forward_tls: ssl.SSLContext | None = None
) -> Starlette:
    """The application; the registry runs while it does."""
    api = Api(registry, access, forward_tls)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await run_in_threadpool(registry.stop)

    return Starlette(routes=[Mount("/", app=api)], lifespan=lifespan)


def _found(request: Request) -> Found:
    raw_path = request.scope.get("raw_path") or request.scope["path"].encode()
    try:
        query = parse_qs(request.url.query, keep_blank_values=True, max_num_fields=PARAMETERS_MAX)
    except ValueError as fault:
        raise RegistryFault(BAD_REQUEST, f"the query cannot be read: {fault}") from fault
    return routes.find(request.method, raw_path.decode("latin-1").partition("?")[0], query)


async def _body(request: Request) -> bytes:
    """The body within limits of size and time."""
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and (len(announced) > 12 or int(announced) > BODY_BYTES_MAX):
        raise RegistryFault(TOO_LARGE, f"a request has at most {BODY_BYTES_MAX} bytes")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            async for piece in request.stream():
                body += piece
                if len(body) > BODY_BYTES_MAX:
                    raise RegistryFault(TOO_LARGE, f"a request has at most {BODY_BYTES_MAX} bytes")
    except TimeoutError as fault:
        raise RegistryFault(408, "the request did not arrive in time") from fault
    return bytes(body)


def _json(body: bytes) -> dict[str, Any]:
    if not body.strip():
        return {}
    try:
        found = limits.read_json(body.decode())
    except (UnicodeDecodeError, BadSchema) as fault:
        raise RegistryFault(BAD_REQUEST, f"the body cannot be read: {fault}") from fault
    if not isinstance(found, dict):
        raise RegistryFault(BAD_REQUEST, "the body is a JSON object")
    return found


def _credentials(header: str) -> tuple[str, str]:
    kind, _, given = header.partition(" ")
    if kind.lower() != "basic":
        raise RegistryFault(UNAUTHORIZED, "a name and a password of the cluster are needed")
    try:
        name, _, password = base64.b64decode(given.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError) as fault:
        raise RegistryFault(UNAUTHORIZED, "the Authorization header cannot be read") from fault
    return name, password


def _fault(fault: RegistryFault) -> Response:
    body = json.dumps({"error_code": fault.code, "message": fault.message})
    headers = {"www-authenticate": 'Basic realm="schema registry"'} if fault.status == UNAUTHORIZED else None
    return Response(body, fault.status, headers, MEDIA_TYPE)
