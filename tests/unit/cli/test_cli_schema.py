"""`tidelog schema` against a registry in memory, over HTTP."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from click.testing import CliRunner, Result

from tests.support.in_memory_registry import InMemoryRegistry
from tidelog.cli.schema import schema
from tidelog.registry.access import OpenAccess
from tidelog.registry.application import create_application

USER = '{"type":"record","name":"User","namespace":"x","fields":[{"name":"id","type":"int"}]}'
ORDER = '{"type":"record","name":"Order","fields":[{"name":"by","type":"x.User"}]}'


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    listening = socket.create_server(("127.0.0.1", 0))
    application = create_application(InMemoryRegistry(), OpenAccess())
    server = uvicorn.Server(uvicorn.Config(application, log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join(10)


def run(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(schema, [*arguments, "--registry", url])


def file_of(folder: Path, text: str, name: str = "schema.avsc") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_a_schema_from_the_file_to_its_deletion(url: str, tmp_path: Path) -> None:
    user, order = file_of(tmp_path, USER, "user.avsc"), file_of(tmp_path, ORDER, "order.avsc")
    assert run(url, "register", "user", user).output == "Registered user: version 1, id 1.\n"
    done = run(url, "register", "order", order, "--reference", "x.User=user:1", "--json")
    assert json.loads(done.output) == {"subject": "order", "id": 2, "version": 1}
    rows = json.loads(run(url, "list", "--json").output)
    assert rows[0] == {"subject": "order", "version": 1, "id": 2, "type": "AVRO"}
    assert [row["subject"] for row in json.loads(run(url, "list", "--prefix", "u", "--json").output)] == [
        "user"
    ]
    shown = run(url, "describe", "order").output
    assert "x.User=user:1" in shown and "BACKWARD" in shown and '"name": "by"' in shown
    assert json.loads(run(url, "describe", "order", "--json").output)["versions"] == [1]
    refused = run(url, "delete", "user", "--yes")
    assert refused.exit_code == 1 and "42206" in refused.output
    assert run(url, "delete", "order", "--yes").output == "Deleted order, versions 1.\n"
    assert "order" not in run(url, "list").output
    assert (
        run(url, "delete", "order", "--permanent", "--yes").output == "Deleted order, versions 1 for good.\n"
    )
    assert run(url, "delete", "user", "--version", "1", "--permanent", "--yes").exit_code == 0
    assert run(url, "list").output == "There are no schemas yet.\n"


def test_a_schema_is_checked_before_it_is_registered(url: str, tmp_path: Path) -> None:
    assert run(url, "register", "n", file_of(tmp_path, '"int"')).exit_code == 0
    assert run(url, "check", "n", file_of(tmp_path, '"long"')).output == "It fits n.\n"
    wrong = run(url, "check", "n", file_of(tmp_path, '"string"'), "--version", "1")
    assert wrong.exit_code == 1 and "TYPE_MISMATCH" in wrong.output
    told = run(url, "check", "n", file_of(tmp_path, '"string"'), "--json")
    assert json.loads(told.output)["is_compatible"] is False
    refused = run(url, "register", "n", file_of(tmp_path, '"string"'))
    assert refused.exit_code == 1 and "40901" in refused.output and "tidelog schema check" in refused.output


def test_the_format_is_known_by_the_file(url: str, tmp_path: Path) -> None:
    text = 'syntax = "proto3"; message M { string s = 1; }'
    assert run(url, "register", "p", file_of(tmp_path, text, "m.proto")).exit_code == 0
    assert run(url, "register", "j", file_of(tmp_path, '{"type":"object"}', "j.json")).exit_code == 0
    assert (
        run(url, "register", "k", file_of(tmp_path, '{"type":"object"}', "k.txt"), "--type", "json").exit_code
        == 0
    )
    types = {row["subject"]: row["type"] for row in json.loads(run(url, "list", "--json").output)}
    assert (types["p"], types["j"], types["k"]) == ("PROTOBUF", "JSON", "JSON")
    assert "message M" in run(url, "describe", "p").output


def test_faults_name_a_next_step(url: str, tmp_path: Path) -> None:
    absent = run(url, "describe", "nothing")
    assert absent.exit_code == 1 and "40401" in absent.output and "tidelog schema list" in absent.output
    nobody = run("http://127.0.0.1:1", "list")
    assert nobody.exit_code == 1 and "tidelog registry" in nobody.output
    assert run("nowhere", "list").exit_code == 1
    assert run(url, "register", "a", file_of(tmp_path, '"int"'), "--reference", "x").exit_code == 2
    assert "--yes" in run(url, "delete", "a", "--permanent").output
