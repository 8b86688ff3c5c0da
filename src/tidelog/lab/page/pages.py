"""The routes of the lab: the list of scenarios, the page of the one that runs, its stream, and its buttons.

The page is drawn here, region by region. The stream sends each region again when it changed, as

    event: region
    data: {"id": "lab-lanes", "html": "…"}

and a script changes what differs. Without the script the page shows the moment it was asked for, and every
button works as a form. With it (the header `x-lab`) buttons answer 204, or JSON with an `error`.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from tidelog.console.application import Extension, changing, reading
from tidelog.console.console import Console, NavigationEntry
from tidelog.console.faults import NOT_FOUND, UNAVAILABLE, ConsoleFault
from tidelog.lab.faults import FAULTS, FaultNotPossible
from tidelog.lab.page.lanes import LANES_MAX, SLOTS
from tidelog.lab.page.stage import Stage, listed
from tidelog.lab.session import Phase

TEMPLATES = Path(__file__).parent / "templates"
STATIC = Path(__file__).parent / "static"
SECTION = "lab"
ENTRY = NavigationEntry(SECTION, "/lab", "Lab", "l")
REGIONS = ("status", "story", "lanes", "brokers", "consumers", "timeline")
TICK_SECONDS = 0.25
KEEP_ALIVE_SECONDS = 15.0
STREAMS_MAX = 30
CONFLICT = 409
NO_CONTENT = 204
#: what a button says; the label of the fault is told when it is pointed at
WORDS = {
    "kill": "Kill",
    "start": "Start",
    "restart": "Restart",
    "pause": "Pause",
    "resume": "Resume",
    "cut": "Cut off",
    "heal": "Reconnect",
    "slow": "Slow",
    "fast": "Fast again",
    "expire_session": "Expire session",
    "kill_consumer": "Kill",
    "pause_consumer": "Pause",
    "resume_consumer": "Resume",
    "stop_consumer": "Stop",
}
LABELS = {fault.name: fault.label for fault in FAULTS}

Act = Callable[[Stage, dict[str, str]], None]


def extension(console: Console, stage: Stage) -> Extension:
    """What the lab adds to a console."""
    streams = _Streams(console, stage)

    def scenarios(console: Console, request: Request) -> Response:
        return console.page(
            request,
            "lab_list.html",
            SECTION,
            "Lab",
            scenarios=listed(stage),
            running=stage.running,
            ended="ended" in request.query_params,
        )

    def run_page(console: Console, request: Request) -> Response:
        if stage.session is None:
            return RedirectResponse("/lab", 303)
        return console.page(
            request,
            "lab_run.html",
            SECTION,
            stage.session.scenario.title,
            regions=draw(console, request, stage),
            number=stage.number,
        )

    def start(console: Console, request: Request, form: dict[str, str]) -> Response:
        try:
            stage.start(form.get("name", ""), auto=form.get("auto") == "on")
        except LookupError as fault:
            raise ConsoleFault(str(fault), "The list has them all.", NOT_FOUND) from fault
        return RedirectResponse("/lab/run", 303)

    def stop(console: Console, request: Request, form: dict[str, str]) -> Response:
        stage.stop()
        # Not a notice of this console, which is over with its cluster.
        return RedirectResponse("/lab?ended=1", 303)

    return Extension(
        routes=(
            reading(console, "/lab", scenarios),
            reading(console, "/lab/run", run_page),
            Route("/lab/live", streams.stream),
            changing(console, "/lab/start", start),
            changing(console, "/lab/stop", stop),
            *(changing(console, path, _acting(stage, act)) for path, act in ACTS),
            Mount("/lab/static", StaticFiles(directory=STATIC)),
        ),
        navigation=(ENTRY,),
        template_folders=(TEMPLATES,),
    )


# Buttons


def go_on(stage: Stage, form: dict[str, str]) -> None:
    """Go on from where the person saw it stand: a second click on the same button does nothing."""
    session = stage.session
    if session is not None and form.get("at", "") == where(session.state()):
        session.go_on()


def where(state: dict[str, object]) -> str:
    """A step and its phase, as a word; empty where nothing waits for a button."""
    step = state["step"]
    if not isinstance(step, dict) or state["phase"] not in (Phase.PREDICTED, Phase.OBSERVED):
        return ""
    return f"{step['number']}-{state['phase']}"


def set_auto(stage: Stage, form: dict[str, str]) -> None:
    if stage.session is not None:
        stage.session.set_auto(form.get("auto") == "on")


def fault(stage: Stage, form: dict[str, str]) -> None:
    if stage.session is None:
        raise FaultNotPossible("no scenario runs")
    stage.session.fault(form.get("fault", ""), form.get("target", ""))


def send(stage: Stage, form: dict[str, str]) -> None:
    stage.send(form.get("topic", ""))


def add_consumer(stage: Stage, form: dict[str, str]) -> None:
    stage.add_consumer()


ACTS: tuple[tuple[str, Act], ...] = (
    ("/lab/next", go_on),
    ("/lab/auto", set_auto),
    ("/lab/fault", fault),
    ("/lab/send", send),
    ("/lab/consumer", add_consumer),
)


def _acting(stage: Stage, act: Act) -> Callable[[Console, Request, dict[str, str]], Response]:
    def handler(console: Console, request: Request, form: dict[str, str]) -> Response:
        scripted = "x-lab" in request.headers
        try:
            act(stage, form)
        except (FaultNotPossible, OSError) as trouble:
            if scripted:
                return JSONResponse({"error": str(trouble)}, CONFLICT)
            return console.done("/lab/run", f"That cannot be done: {trouble}", "bad")
        return Response(status_code=NO_CONTENT) if scripted else RedirectResponse("/lab/run", 303)

    return handler


# Drawing


def draw(console: Console, request: Request, stage: Stage) -> dict[str, str]:
    """The regions of the page as HTML, by name; empty without a session."""
    scene = stage.scene()
    if scene is None:
        return {}
    context = {
        "scene": scene,
        "state": scene.state,
        "phase": scene.state["phase"],
        "picture": scene.picture,
        "lanes": scene.lanes,
        "lanes_max": LANES_MAX,
        "slots": SLOTS,
        "timeline": scene.timeline,
        "where": where(scene.state),
        "following": stage.following(),
        "words": WORDS,
        "labels": LABELS,
    }
    drawn = {}
    for region in REGIONS:
        page = console.page(request, f"lab_{region}.html", SECTION, "", **context)
        drawn[region] = bytes(page.body).decode()
    return drawn


class _Streams:
    """The open streams of one console."""

    def __init__(self, console: Console, stage: Stage) -> None:
        self._console = console
        self._stage = stage
        self._open = 0

    async def stream(self, request: Request) -> Response:
        if self._open >= STREAMS_MAX:
            raise ConsoleFault(f"{STREAMS_MAX} pages are open", "Close some of them.", UNAVAILABLE)
        return StreamingResponse(self._regions(request), media_type="text/event-stream")

    async def _regions(self, request: Request) -> AsyncIterator[str]:
        self._open += 1
        loop = asyncio.get_running_loop()
        sent: dict[str, str] = {}
        drawn_at: tuple[object, ...] = ()
        quiet_since = loop.time()
        try:
            yield "retry: 400\n\n"
            while self._console.still_in(request):
                mark = self._stage.mark()
                if mark != drawn_at:
                    drawn_at = mark
                    regions = await run_in_threadpool(draw, self._console, request, self._stage)
                    for name, html in regions.items():
                        if sent.get(name) != html:
                            sent[name] = html
                            quiet_since = loop.time()
                            told = {"id": f"lab-{name}", "html": html, "number": self._stage.number}
                            yield f"event: region\ndata: {json.dumps(told)}\n\n"
                elif loop.time() - quiet_since > KEEP_ALIVE_SECONDS:
                    quiet_since = loop.time()
                    yield ": still here\n\n"
                await asyncio.sleep(TICK_SECONDS)
        finally:
            self._open -= 1
