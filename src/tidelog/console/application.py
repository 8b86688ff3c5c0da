"""The Starlette application: the table of routes, and how handlers are called.

Handlers are plain functions that may block, called in worker threads: `handler(console, request)` answers a
GET, `handler(console, request, form)` a POST. A ConsoleFault becomes a page (or JSON under /api) that says
what is wrong and what to do.

The seam for pages of other packages: they give `create_application` routes of their own (made with `reading`
and `changing`, so that they get worker threads, faults, the token and read-only mode; or any Starlette route
for streams), entries for the menu, and folders of templates, which extend `base.html` and may import
`macros.html`. `serving.serve(…, extend=…)` takes a function from the console to such an `Extension`.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from tidelog.console import (
    api,
    pages_cluster,
    pages_groups,
    pages_pipelines,
    pages_records,
    pages_schemas,
    pages_segments,
    pages_topics,
    pages_write,
)
from tidelog.console.console import Console, NavigationEntry
from tidelog.console.faults import FORBIDDEN, NOT_FOUND, UNAVAILABLE, ConsoleFault
from tidelog.console.pages_login import LoginGate, log_in, log_out, login_page
from tidelog.console.protection import Guard, same_origin, token_fits
from tidelog.console.rendering import STATIC

FORM_BYTES_MAX = 8 << 20
FORM_FIELDS_MAX = 100
LIVE_STREAMS_MAX = 200
KEEP_ALIVE_SECONDS = 15.0

Read = Callable[[Console, Request], Response]
Change = Callable[[Console, Request, dict[str, str]], Response]

READS: tuple[tuple[str, Read], ...] = (
    ("/", pages_cluster.overview),
    ("/topics", pages_topics.topics),
    ("/topics/new", pages_topics.new_topic),
    ("/topics/{topic}", pages_topics.topic),
    ("/topics/{topic}/settings", pages_topics.topic_settings),
    ("/topics/{topic}/segments", pages_segments.segments),
    ("/topics/{topic}/delete", pages_topics.delete_page),
    ("/topics/{topic}/records", pages_records.records),
    ("/topics/{topic}/records/{partition}/{offset}", pages_records.record),
    ("/topics/{topic}/export", pages_records.export),
    ("/topics/{topic}/produce", pages_write.produce_page),
    ("/topics/{topic}/redrive", pages_write.redrive_page),
    ("/groups", pages_groups.groups),
    ("/group", pages_groups.group),
    ("/group/reset", pages_groups.reset_page),
    ("/pipelines", pages_pipelines.pipelines),
    ("/schemas", pages_schemas.subjects),
    ("/schemas/subject", pages_schemas.subject),
    ("/schemas/new", pages_schemas.new_schema),
    ("/brokers", pages_cluster.brokers),
    ("/brokers/{broker}", pages_cluster.broker),
    ("/transactions", pages_cluster.transactions),
    ("/access", pages_cluster.access),
    ("/events", pages_cluster.events),
    ("/api/cluster", api.cluster),
    ("/api/brokers", api.brokers),
    ("/api/topics", api.topics),
    ("/api/topics/{topic}", api.topic),
    ("/api/topics/{topic}/records", pages_records.records_json),
    ("/api/topics/{topic}/segments", pages_segments.segments_json),
    ("/api/groups", api.groups),
    ("/api/groups/{group:path}", api.group),
    ("/api/pipelines", pages_pipelines.pipelines_json),
    ("/metrics/pipelines", pages_pipelines.pipelines_metrics),
    ("/api/events", api.events),
    ("/api/transactions", api.transactions),
    ("/api/access", api.access),
)

CHANGES: tuple[tuple[str, Change], ...] = (
    ("/topics", pages_topics.create_topic),
    ("/topics/{topic}/settings", pages_topics.alter_topic),
    ("/topics/{topic}/partitions", pages_topics.grow_topic),
    ("/topics/{topic}/delete", pages_topics.delete_topic),
    ("/topics/{topic}/produce", pages_write.produce),
    ("/topics/{topic}/import", pages_write.import_records),
    ("/topics/{topic}/replay", pages_write.replay),
    ("/topics/{topic}/redrive", pages_write.redrive),
    ("/schemas/new", pages_schemas.check_or_register),
    ("/group/reset", pages_groups.reset_group),
    ("/group/delete", pages_groups.delete_group),
)


class Extension(NamedTuple):
    """What another package adds to a console."""

    routes: Sequence[BaseRoute] = ()
    navigation: Sequence[NavigationEntry] = ()
    template_folders: Sequence[Path] = ()


def create_application(
    console: Console,
    *,
    extra_routes: Sequence[BaseRoute] = (),
    navigation: Sequence[NavigationEntry] = (),
    template_folders: Sequence[Path] = (),
) -> Starlette:
    """The application of one console; the watcher runs while it does."""
    console.extend(navigation, template_folders)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        console.watcher.start()
        try:
            yield
        finally:
            await run_in_threadpool(console.close)

    async def health(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def tail(request: Request) -> Response:
        return await pages_records.tail(console, request)

    routes: list[BaseRoute] = [
        *extra_routes,
        Route("/healthz", health),
        Route("/live", _Live(console).stream),
        Route("/topics/{topic}/tail", tail),
        *(reading(console, path, handler) for path, handler in READS),
        *(changing(console, path, handler) for path, handler in CHANGES),
        reading(console, "/login", login_page),
        changing(console, "/login", log_in, always=True),
        changing(console, "/logout", log_out, always=True),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]

    async def explain(request: Request, failure: Exception) -> Response:
        assert isinstance(failure, ConsoleFault)
        return await run_in_threadpool(fault_page, console, request, failure)

    async def explain_status(request: Request, failure: Exception) -> Response:
        assert isinstance(failure, HTTPException)
        hint = "The menu leads to every page." if failure.status_code == NOT_FOUND else ""
        fault = ConsoleFault(f"{failure.detail}: {request.url.path}", hint, failure.status_code)
        return await run_in_threadpool(fault_page, console, request, fault)

    return Starlette(
        routes=routes,
        middleware=[
            Middleware(Guard, allowed_hosts=console.settings.allowed_hosts),
            Middleware(LoginGate, console=console),
        ],
        exception_handlers={ConsoleFault: explain, HTTPException: explain_status},
        lifespan=lifespan,
    )


def fault_page(console: Console, request: Request, fault: ConsoleFault) -> Response:
    """The page, or the JSON, that explains a fault."""
    if request.url.path.startswith("/api/"):
        return JSONResponse({"error": fault.message, "hint": fault.hint}, fault.status)
    template = "unreachable.html" if fault.status == UNAVAILABLE else "fault.html"
    return console.page(request, template, "", "Trouble", status=fault.status, fault=fault)


def reading(console: Console, path: str, handler: Read) -> Route:
    """The route of a page that only reads."""

    async def endpoint(request: Request) -> Response:
        return await run_in_threadpool(handler, console, request)

    return Route(path, endpoint, methods=["GET"])


def changing(console: Console, path: str, handler: Change, *, always: bool = False) -> Route:
    """The route of a form that changes something: from our own pages only, and never in read-only mode.

    `always` is for forms that change nothing in the cluster (a login), which even readers may send.
    """

    async def endpoint(request: Request) -> Response:
        form = await read_form(request)
        if not same_origin(request.headers) or not token_fits(
            console.form_token(request), form.get("token", "")
        ):
            raise ConsoleFault(
                "the form is not from this console, or from before it was started again",
                "Go back, reload the page, and send it again.",
                FORBIDDEN,
            )
        if not (always or console.may_change(request)):
            why = (
                "It was started with --read-only." if console.settings.read_only else "Your role is to read."
            )
            raise ConsoleFault("this console only reads", why, FORBIDDEN)
        return await run_in_threadpool(handler, console, request, form)

    return Route(path, endpoint, methods=["POST"])


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a URL-encoded form, within limits."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/x-www-form-urlencoded":
        raise ConsoleFault(f"a form is expected, not {kind[:60]!r}")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > FORM_BYTES_MAX:
            raise ConsoleFault(f"the form is larger than {FORM_BYTES_MAX >> 20} MiB", "", 413)
    try:
        pairs = parse_qsl(
            body.decode("utf-8"), keep_blank_values=True, max_num_fields=FORM_FIELDS_MAX, errors="strict"
        )
    except ValueError as fault:
        raise ConsoleFault(f"the form cannot be read: {fault}") from fault
    return dict(pairs)


class _Live:
    """The stream that tells pages to look again: one event after each look of the watcher."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._open = 0

    async def stream(self, request: Request) -> Response:
        if self._open >= LIVE_STREAMS_MAX:
            raise ConsoleFault(f"{LIVE_STREAMS_MAX} pages are open", "Close some of them.", UNAVAILABLE)
        return StreamingResponse(self._events(request), media_type="text/event-stream")

    async def _events(self, request: Request) -> AsyncIterator[str]:
        changed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def looked() -> None:
            loop.call_soon_threadsafe(changed.set)

        forget = self._console.watcher.listen(looked)
        self._open += 1
        try:
            while self._console.still_in(request):
                view = self._console.watcher.view
                state = "seen" if view.fault is None else "unreachable"
                yield f"event: look\ndata: {state}\n\n"
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), KEEP_ALIVE_SECONDS)
                changed.clear()
        finally:
            self._open -= 1
            forget()
