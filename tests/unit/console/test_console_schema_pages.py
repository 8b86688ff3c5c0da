"""The console's pages of a schema registry, against our registry without a cluster."""

import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from starlette.testclient import TestClient

from tests.support.in_memory_registry import InMemoryRegistry
from tidelog.console.application import create_application
from tidelog.console.console import Console, ConsoleSettings
from tidelog.console.pages_schemas import difference
from tidelog.console.serving import listen
from tidelog.registry.access import OpenAccess
from tidelog.registry.application import create_application as registry_application

OLD = '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}'
NEW = OLD.replace("]}", ',{"name":"note","type":"string","default":""}]}')
BREAKING = OLD.replace("]}", ',{"name":"note","type":"string"}]}')
#: nobody listens there; the pages of schemas do not ask the cluster
AWAY = "127.0.0.1:1"


@pytest.fixture
def registry() -> Iterator[str]:
    application = registry_application(InMemoryRegistry(), OpenAccess())
    socket = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(application, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, args=([socket],), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{socket.getsockname()[1]}"
    server.should_exit = True
    thread.join(20)


def pages(registry: str | None, **settings: Any) -> TestClient:
    console = Console(ConsoleSettings(AWAY, registry=registry, **settings))
    return TestClient(create_application(console), base_url="http://localhost")


@pytest.fixture
def browser(registry: str) -> TestClient:
    return pages(registry)


def submit(browser: TestClient, action: str, **fields: str) -> Any:
    """Send the form as its page has it."""
    page = browser.get("/schemas/new").text
    found = re.search(r'name="token" value="([^"]+)"', page)
    assert found is not None
    form = {"token": found[1], "type": "AVRO", "references": "", "action": action, **fields}
    return browser.post("/schemas/new", data=form)


def register(browser: TestClient, schema: str, subject: str = "orders-value", **fields: str) -> Any:
    return submit(browser, "register", subject=subject, schema=schema, **fields)


def test_nothing_is_there_yet(browser: TestClient) -> None:
    page = browser.get("/schemas").text
    assert "There are no schemas yet" in page and ">BACKWARD<" in page
    assert 'href="/schemas" aria-current="page"' in page


def test_register_look_and_compare(browser: TestClient) -> None:
    said = register(browser, OLD)
    assert said.status_code == 200 and "orders-value has the schema with id 1." in said.text
    assert "compared with" not in said.text, "there is nothing to compare with"
    register(browser, NEW)
    page = browser.get("/schemas?search=ORDERS").text
    assert "/schemas/subject?name=orders-value" in page and "1 subject" in page
    assert "No subject matches" in browser.get("/schemas?search=else").text
    latest = browser.get("/schemas/subject?name=orders-value").text
    assert "Version 2 against version 1" in latest
    assert '<span class="added">+      &#34;name&#34;: &#34;note&#34;,' in latest
    first = browser.get("/schemas/subject?name=orders-value&version=1&against=2").text
    assert "Version 1 against version 2" in first and 'class="removed"' in first
    alone = browser.get("/schemas/subject?name=orders-value&version=1").text
    assert "against version" not in alone
    assert "note" in browser.get("/schemas/new?name=orders-value").text, "the form begins with the latest"


def test_a_check_registers_nothing(browser: TestClient, registry: str) -> None:
    register(browser, OLD)
    good = submit(browser, "check", subject="orders-value", schema=NEW)
    assert "It fits <strong>orders-value</strong>" in good.text
    bad = submit(browser, "check", subject="orders-value", schema=BREAKING)
    assert "It does not fit orders-value" in bad.text and "READER_FIELD_MISSING_DEFAULT_VALUE" in bad.text
    assert "&#34;note&#34;" in bad.text, "what was typed is kept"
    broken = submit(browser, "check", subject="orders-value", schema='{"type": "record"}')
    assert "It does not fit" in broken.text
    assert "Version 2" not in browser.get("/schemas/subject?name=orders-value").text
    refused = register(browser, BREAKING)
    assert refused.status_code == 409 and "Check it first" in refused.text


def test_references(browser: TestClient) -> None:
    register(browser, '{"type":"record","name":"User","fields":[]}', "users")
    uses = '{"type":"record","name":"Order","fields":[{"name":"by","type":"User"}]}'
    assert register(browser, uses, references="User").status_code == 400
    register(browser, uses, references="User=users:1\n\n")
    page = browser.get("/schemas/subject?name=orders-value").text
    assert '<a href="/schemas/subject?name=users&amp;version=1">User</a>' in page
    assert "User=users:1" in browser.get("/schemas/new?name=orders-value").text


def test_what_is_not_there(browser: TestClient) -> None:
    register(browser, OLD)
    assert browser.get("/schemas/subject?name=gone").status_code == 404
    for query in ("version=9", "version=x", "against=9", "version=-1"):
        assert browser.get(f"/schemas/subject?name=orders-value&{query}").status_code == 404, query
    assert register(browser, OLD, subject=" ").status_code == 400
    assert register(browser, OLD, type="THRIFT").status_code == 400


def test_hostile_texts_are_escaped(browser: TestClient) -> None:
    text = 'syntax = "proto3"; // <script>alert(1)</script>\nmessage A {}'
    register(browser, text, "<b>x</b>/../y", type="PROTOBUF")
    for path in ("/schemas", "/schemas/subject?name=%3Cb%3Ex%3C%2Fb%3E%2F..%2Fy"):
        page = browser.get(path).text
        assert "&lt;b&gt;x" in page and "<b>x" not in page and "<script>alert" not in page


def test_a_console_that_only_reads(registry: str, browser: TestClient) -> None:
    register(browser, OLD)
    reader = pages(registry, read_only=True)
    for path in ("/schemas", "/schemas/subject?name=orders-value", "/schemas/new"):
        page = reader.get(path).text
        assert "/schemas/new" not in page and "<textarea" not in page
    token = re.search(r'name="token" value="([^"]+)"', browser.get("/schemas/new").text)
    assert token is not None
    form = {"token": token[1], "subject": "s", "schema": OLD, "type": "AVRO", "action": "register"}
    assert reader.post("/schemas/new", data=form).status_code == 403
    assert browser.post("/schemas/new", data={**form, "token": "wrong"}).status_code == 403


def test_without_a_registry_or_with_one_that_is_away() -> None:
    without = pages(None)
    assert without.get("/schemas").status_code == 404
    assert 'data-go="s"' not in without.get("/schemas").text
    away = pages("http://127.0.0.1:1", timeout_seconds=1.0)
    page = away.get("/schemas")
    assert page.status_code == 503 and "the registry does not answer" in page.text


def test_a_difference_shows_what_is_around_it() -> None:
    old = "\n".join(str(number) for number in range(40))
    lines = difference(old, old.replace("20\n", ""))
    assert [line.text for line in lines if line.kind == "removed"] == ["-20"]
    assert len(lines) == 10 and lines[0].kind == "place"
    assert difference(old, old) == []
