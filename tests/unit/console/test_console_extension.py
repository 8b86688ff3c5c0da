"""The seam for pages of other packages: routes, menu, templates, and the same protection as our own forms."""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.testclient import TestClient

from tidelog.console.application import changing, create_application, reading
from tidelog.console.console import Console, ConsoleSettings, NavigationEntry

TEMPLATE = '{% extends "base.html" %}{% block content %}<h1>{{ word }}</h1>{% endblock %}'


def page(console: Console, request: Request) -> Response:
    return console.page(request, "extra.html", "extra", "Extra", word="<tide>")


def change(console: Console, request: Request, form: dict[str, str]) -> Response:
    return PlainTextResponse(f"changed {form['what']}")


def client(folder: Path, *, read_only: bool = False) -> tuple[TestClient, Console]:
    (folder / "extra.html").write_text(TEMPLATE)
    console = Console(ConsoleSettings("127.0.0.1:1", read_only=read_only))
    application = create_application(
        console,
        extra_routes=(reading(console, "/extra", page), changing(console, "/extra", change)),
        navigation=(NavigationEntry("extra", "/extra", "An extra page", "z"),),
        template_folders=(folder,),
    )
    # Without its context the application starts no watcher: nothing is asked of a cluster.
    return TestClient(application, base_url="http://localhost"), console


def test_an_extra_page_is_in_the_frame_and_the_menu(tmp_path: Path) -> None:
    browser, _ = client(tmp_path)
    answer = browser.get("/extra")
    assert answer.status_code == 200
    assert "<h1>&lt;tide&gt;</h1>" in answer.text
    assert 'href="/extra" aria-current="page" data-go="z">An extra page</a>' in answer.text
    assert 'href="/topics"' in answer.text


def test_an_extra_form_needs_the_token_and_heeds_read_only(tmp_path: Path) -> None:
    browser, console = client(tmp_path)
    assert browser.post("/extra", data={"what": "it"}).status_code == 403
    told = browser.post("/extra", data={"what": "it", "token": console.token.text})
    assert told.text == "changed it"
    reader, console = client(tmp_path, read_only=True)
    assert reader.post("/extra", data={"what": "it", "token": console.token.text}).status_code == 403
