"""Logging in: sessions, wrong passwords, roles; and a console of a secured cluster, as processes."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

from tidelog.client.faults import BadOption
from tidelog.console import login
from tidelog.console.application import create_application
from tidelog.console.console import Console, ConsoleSettings
from tidelog.console.faults import ConsoleFault
from tidelog.console.login import FileCheck, Login, Person, Sessions, Tries, users_file_line
from tidelog.console.pages_login import safe_target
from tidelog.testing.ports import ReservedPort

PASSWORD = "a-Correct-horse"


def users_file(folder: Path) -> Path:
    path = folder / "users"
    lines = ["# people", users_file_line("ada", PASSWORD, "change"), users_file_line("bob", "x" * 9, "read")]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def browser(tmp_path: Path) -> TestClient:
    """A browser before a console of a cluster that is away: who may come in does not need one."""
    settings = ConsoleSettings("127.0.0.1:1", users_file=users_file(tmp_path), timeout_seconds=0.2)
    return TestClient(create_application(Console(settings)), base_url="http://localhost")


def enter(browser: TestClient, name: str, password: str, target: str = "/login") -> httpx2.Response:
    found = re.search(r'name="token" value="([^"]+)"', browser.get("/login").text)
    assert found is not None
    fields = {"name": name, "password": password, "next": target, "token": found[1]}
    return browser.post("/login", data=fields, follow_redirects=False)


def test_nothing_is_open_without_a_session(browser: TestClient) -> None:
    for path in ("/", "/topics/new", "/live", "/topics/t/tail", "/nowhere"):
        answer = browser.get(path, follow_redirects=False)
        assert answer.status_code == 303, path
        assert answer.headers["location"].startswith("/login?next=%2F"), path
    assert browser.get("/api/cluster").status_code == 401
    assert browser.post("/topics", data={"name": "x"}).status_code == 401
    assert browser.get("/healthz").status_code == 200
    assert browser.get("/static/console.css").status_code == 200


def test_the_cookie_and_the_way_out(browser: TestClient) -> None:
    answer = enter(browser, "ada", PASSWORD, "/groups?sort=name")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/groups?sort=name"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=lax" in cookie and PASSWORD.lower() not in cookie
    page = browser.get("/events")
    assert page.status_code == 200
    found = re.search(r'action="/logout"><input type="hidden" name="token" value="([^"]+)"', page.text)
    assert found is not None
    assert browser.post("/logout", data={"token": "wrong"}).status_code == 403
    browser.post("/logout", data={"token": found[1]}, follow_redirects=False)
    assert browser.get("/events", follow_redirects=False).status_code == 303


def test_a_reader_cannot_change_anything(browser: TestClient) -> None:
    assert enter(browser, "bob", "x" * 9).status_code == 303
    page = browser.get("/events")
    found = re.search(r'name="token" value="([^"]+)"', page.text)
    assert found is not None and "read-only" in page.text
    refused = browser.post("/topics", data={"name": "x", "token": found[1]})
    assert refused.status_code == 403 and "Your role is to read" in refused.text


def test_a_token_of_another_session_does_not_fit(browser: TestClient) -> None:
    process_token = re.search(r'name="token" value="([^"]+)"', browser.get("/login").text)
    assert process_token is not None
    enter(browser, "ada", PASSWORD)
    assert browser.post("/topics", data={"name": "x", "token": process_token[1]}).status_code == 403


@pytest.mark.parametrize(("name", "password"), [("ada", "guessed-9"), ("nobody", PASSWORD), ("ada", "")])
def test_a_wrong_password_says_nothing_more(browser: TestClient, name: str, password: str) -> None:
    answer = enter(browser, name, password)
    assert answer.status_code == 401
    assert "The name or the password is wrong" in answer.text
    assert "set-cookie" not in answer.headers
    assert not password or password not in answer.text


def test_guessing_is_stopped(browser: TestClient) -> None:
    codes = [enter(browser, "ada", f"guess-{number}").status_code for number in range(login.TRIES_MAX + 2)]
    assert codes == [401] * login.TRIES_MAX + [429] * 2
    # The right one is not heard either: otherwise the counting would tell when it was found.
    assert enter(browser, "ada", PASSWORD).status_code == 429


def test_scripts_send_their_password_with_each_request(browser: TestClient) -> None:
    assert browser.get("/api/events", auth=("ada", PASSWORD)).json() == []
    assert browser.get("/api/events", auth=("ada", "no")).status_code == 401
    assert browser.get("/api/events", headers={"authorization": "Basic %%%"}).status_code == 401
    # Only there: a page is for browsers, which would send it along unasked.
    assert browser.get("/topics", auth=("ada", PASSWORD), follow_redirects=False).status_code == 303


def test_sessions_end() -> None:
    now = [0.0]
    sessions = Sessions(lambda: now[0])
    first = sessions.open(Person("ada", "change"))
    assert sessions.find(first) is not None
    assert sessions.find(first + "x") is None
    now[0] += login.IDLE_SECONDS + 1
    assert sessions.find(first) is None
    second = sessions.open(Person("ada", "change"))
    for _ in range(4):
        now[0] += login.IDLE_SECONDS - 1
        kept = sessions.find(second)
    assert kept is None, "it was used all the time, but a day is over"
    for _ in range(login.SESSIONS_MAX + 5):
        sessions.open(Person("ada", "change"))
    assert len(sessions) == login.SESSIONS_MAX


def test_tries_are_forgotten_after_a_while() -> None:
    now = [0.0]
    tries = Tries(lambda: now[0])
    for _ in range(login.TRIES_MAX):
        tries.wrong({"ada": login.TRIES_MAX})
    tries.check({"bob": login.TRIES_MAX})
    with pytest.raises(ConsoleFault):
        tries.check({"ada": login.TRIES_MAX})
    now[0] += login.TRIES_SECONDS + 1
    tries.check({"ada": login.TRIES_MAX})


class OnePerson:
    """Ada, whose password is PASSWORD."""

    def person(self, name: str, password: str) -> Person | None:
        return Person(name, "change") if (name, password) == ("ada", PASSWORD) else None


def guess(door: Login, name: str, address: str, times: int, mark: str = "") -> list[int]:
    """The status of each wrong try."""
    found = []
    for _ in range(times):
        with pytest.raises(ConsoleFault) as fault:
            door.person(name, "wrong", address, mark)
        found.append(fault.value.status)
    return found


def test_a_stranger_keeps_nobody_out() -> None:
    door = Login(OnePerson())
    assert guess(door, "ada", "203.0.113.9", 20)[-1] == 429
    assert door.person("ada", PASSWORD, "198.51.100.1").name == "ada"
    with pytest.raises(ConsoleFault):
        door.person("ada", PASSWORD, "203.0.113.9")


def test_a_browser_that_was_let_in_before_is_let_in_behind_the_same_proxy() -> None:
    door = Login(OnePerson())
    mark = door.devices.mark("ada")
    assert guess(door, "ada", "127.0.0.1", 20)[-1] == 429
    assert door.person("ada", PASSWORD, "127.0.0.1", mark).name == "ada"
    # It is no way to guess without end, and no mark of another person or of one's own making counts.
    assert guess(door, "ada", "127.0.0.1", 20, mark)[-1] == 429
    for forged in (door.devices.mark("bob"), Login(OnePerson()).devices.mark("ada"), "x", "x.y"):
        with pytest.raises(ConsoleFault):
            door.person("ada", PASSWORD, "127.0.0.1", forged)


def test_one_address_cannot_try_all_names() -> None:
    door = Login(OnePerson())
    codes = [guess(door, f"name-{number}", "203.0.113.9", 1)[0] for number in range(70)]
    assert codes == [401] * login.ADDRESS_TRIES_MAX + [429] * (70 - login.ADDRESS_TRIES_MAX)


def test_a_network_of_ipv6_addresses_is_one_address() -> None:
    door = Login(OnePerson())
    codes = [guess(door, "ada", f"2001:db8:0:1::{number:x}", 1)[0] for number in range(1, 20)]
    assert codes[-1] == 429
    assert door.person("ada", PASSWORD, "2001:db8:0:2::1").name == "ada"


def test_a_session_is_never_locked(browser: TestClient) -> None:
    enter(browser, "ada", PASSWORD)
    stranger = TestClient(browser.app, base_url="http://localhost")
    for number in range(login.TRIES_MAX + 2):
        last = enter(stranger, "ada", f"guess-{number}").status_code
    assert last == 429
    assert browser.get("/api/events").status_code == 200
    # And logging in again works there: this browser has been let in before.
    session = next(name for name in browser.cookies if not name.endswith("_device"))
    browser.cookies.delete(session)
    assert browser.get("/api/events").status_code == 401
    assert enter(browser, "ada", PASSWORD).status_code == 303


@pytest.mark.parametrize("line", ["ada:change:my-own-password", "ada:owner:scrypt$AA==$AA==", "ada"])
def test_a_bad_line_is_named_without_its_content(tmp_path: Path, line: str) -> None:
    path = tmp_path / "users"
    path.write_text(f"# one\n{line}\n")
    with pytest.raises(BadOption, match="line 2") as fault:
        FileCheck(path)
    assert "my-own-password" not in str(fault.value)


@pytest.mark.parametrize(
    "text", ["//evil.example", "https://evil.example/", "/\\evil.example", "topics", "/a\r\nx: y", ""]
)
def test_a_login_leads_nowhere_else(text: str) -> None:
    assert safe_target(text) == "/"


def test_settings_and_login_show_no_secrets(tmp_path: Path) -> None:
    settings = ConsoleSettings("h:1", {"sasl.password": PASSWORD}, users_file=users_file(tmp_path))
    assert PASSWORD not in repr(settings)
    assert PASSWORD not in repr(Login(FileCheck(users_file(tmp_path))))


@dataclass(slots=True)
class SecuredUp:
    console: str
    password: str
    process: subprocess.Popen[str]
    errors: Path


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredUp]:
    """`tidelog up --secure` with its console."""
    folder = tmp_path_factory.mktemp("secured")
    reserved = ReservedPort()
    port = reserved.port
    command = [sys.executable, "-m", "tidelog.cli", "up", "--secure", "--json", "--port", "0"]
    command += ["--data", str(folder / "data"), "--console-port", str(port)]
    errors = folder / "errors.txt"
    with errors.open("w") as out:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=out, text=True)
        assert process.stdout is not None
        address = ""
        for line in process.stdout:
            event = json.loads(line)
            if event["event"] == "console":
                address = event["address"]
                break
        password = json.loads((folder / "data" / "security" / "credentials.json").read_text())["admin"]
        try:
            transport = httpx2.HTTPTransport(retries=20)
            with httpx2.Client(transport=transport, timeout=60) as client:
                assert client.get(f"{address}/healthz").text == "ok\n"
            yield SecuredUp(address, password, process, errors)
        finally:
            process.terminate()
            process.wait(30)
            reserved.close()


@pytest.mark.timeout(180)
def test_the_console_of_a_secured_cluster(secured: SecuredUp) -> None:
    with httpx2.Client(base_url=secured.console, timeout=60) as client:
        assert client.get("/").status_code == 303
        assert log_in(client, "tidelog-broker", "whatever").status_code == 401
        assert log_in(client, "admin", "wrong-Password-1").status_code == 401
        assert log_in(client, "admin", secured.password).status_code == 303
        page = client.get("/")
        assert page.status_code == 200 and "Healthy" in page.text
        assert client.get("/access").text.count("SCRAM-SHA-512") >= 2
        found = re.search(r'name="token" value="([^"]+)"', page.text)
        assert found is not None
        made = client.post("/topics", data={"name": "secret-things", "token": found[1]})
        assert made.status_code == 303, made.text
    with httpx2.Client(base_url=secured.console, timeout=60) as script:
        assert script.get("/api/topics").status_code == 401
        topics = script.get("/api/topics", auth=("admin", secured.password)).json()
        assert "secret-things" in [topic["name"] for topic in topics["topics"]]
    said = secured.errors.read_text()
    assert secured.password not in said and "wrong-Password-1" not in said and "whatever" not in said


def log_in(client: httpx2.Client, name: str, password: str) -> Any:
    found = re.search(r'name="token" value="([^"]+)"', client.get("/login").text)
    assert found is not None
    return client.post("/login", data={"name": name, "password": password, "token": found[1]})
