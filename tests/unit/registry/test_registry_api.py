"""The HTTP API against a registry in memory: Confluent's answers and error codes, subject by subject."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from tests.support.in_memory_registry import InMemoryRegistry
from tidelog.registry import application, limits
from tidelog.registry.access import OpenAccess
from tidelog.registry.application import create_application
from tidelog.registry.formats.protoc import COMPILER
from tidelog.registry.state import State

INT, LONG, TEXT = '"int"', '"long"', '"string"'
USER = '{"type":"record","name":"User","namespace":"x","fields":[{"name":"id","type":"int"}]}'
ORDER = '{"type":"record","name":"Order","namespace":"x","fields":[{"name":"by","type":"User"}]}'


class Client:
    """Requests and their answers as pairs of a status and JSON."""

    def __init__(self) -> None:
        self.registry = InMemoryRegistry()
        self.browser = TestClient(create_application(self.registry, OpenAccess()))

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        answer = (
            self.browser.request(method, path, json=body)
            if body is not None
            else self.browser.request(method, path)
        )
        return answer.status_code, answer.json()

    def get(self, path: str) -> Any:
        status, answer = self.ask("GET", path)
        assert status == 200, answer
        return answer

    def register(self, subject: str, schema: str, **more: Any) -> Any:
        status, answer = self.ask(
            "POST", f"/subjects/{quote(subject, safe='')}/versions", {"schema": schema, **more}
        )
        assert status == 200, answer
        return answer

    def refused(self, method: str, path: str, body: Any = None) -> int:
        status, answer = self.ask(method, path, body)
        assert set(answer) == {"error_code", "message"}, answer
        assert status == int(str(answer["error_code"])[:3])
        return int(answer["error_code"])


@pytest.fixture
def client() -> Iterator[Client]:
    yield Client()
    COMPILER.close()


def test_ids_and_versions_are_given_as_confluent_does(client: Client) -> None:
    first = client.register("a-value", INT)
    assert (first["id"], first["version"]) == (1, 1)
    assert client.register("a-value", INT)["id"] == 1
    assert client.register("a-value", ' { "type" : "int" } ')["id"] == 1, "formatting makes no new schema"
    assert client.register("a-value", LONG)["version"] == 2
    assert client.register("b-value", INT)["id"] == 1, "the same schema has one id"
    assert client.get("/subjects") == ["a-value", "b-value"]
    assert client.get("/subjects/a-value/versions") == [1, 2]
    found = client.get("/subjects/a-value/versions/latest")
    assert (found["subject"], found["id"], found["version"], found["schema"]) == ("a-value", 2, 2, LONG)
    assert "schemaType" not in found, "Avro is not said"
    assert client.get("/schemas/ids/1")["schema"] == INT
    assert client.get("/schemas/ids/1/schema") == "int"
    assert client.get("/schemas/ids/1/subjects") == ["a-value", "b-value"]
    assert client.get("/schemas/ids/1/versions") == [
        {"subject": "a-value", "version": 1},
        {"subject": "b-value", "version": 1},
    ]
    assert client.get(f"/schemas/guids/{found['guid']}")["schema"] == LONG
    assert client.get(f"/schemas/guids/{found['guid']}/ids") == [{"context": ".", "id": 2}]
    assert client.get("/schemas/ids/1?fetchMaxId=true")["maxId"] == 2
    assert sorted(client.get("/schemas/types")) == ["AVRO", "JSON", "PROTOBUF"]
    assert [row["version"] for row in client.get("/schemas?latestOnly=true")] == [2, 1]
    assert client.get("/subjects/a-value/versions?offset=1&limit=5") == [2]


def test_schemas_are_looked_up(client: Client) -> None:
    client.register("a", INT)
    assert client.ask("POST", "/subjects/a", {"schema": '{"type":"int"}'})[1]["version"] == 1
    assert client.refused("POST", "/subjects/a", {"schema": LONG}) == 40403
    assert client.refused("POST", "/subjects/b", {"schema": INT}) == 40401
    assert client.refused("POST", "/subjects/a", {"schema": "{"}) == 42201


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("GET", "/subjects/none/versions", None, 40401),
        ("GET", "/subjects/none/versions/1", None, 40401),
        ("GET", "/subjects/a/versions/9", None, 40402),
        ("GET", "/subjects/a/versions/0", None, 42202),
        ("GET", "/subjects/a/versions/earliest", None, 42202),
        ("GET", "/subjects/a/versions/99999999999", None, 42202),
        ("GET", "/schemas/ids/9", None, 40403),
        ("GET", "/schemas/ids/x", None, 404),
        ("GET", "/schemas/guids/x", None, 40403),
        ("GET", "/nothing", None, 404),
        ("PUT", "/subjects", {}, 405),
        ("POST", "/subjects/a/versions", {"schema": TEXT}, 40901),
        ("POST", "/subjects/new/versions", {"schema": ""}, 42201),
        ("POST", "/subjects/new/versions", {}, 42201),
        ("POST", "/subjects/a/versions", {"schema": 5}, 42201),
        ("POST", "/subjects/a/versions", {"schema": INT, "schemaType": "THRIFT"}, 42201),
        ("POST", "/subjects/a/versions", {"schema": INT, "references": [{"name": "x"}]}, 42201),
        (
            "POST",
            "/subjects/a/versions",
            {"schema": INT, "references": [{"name": "x", "subject": "none", "version": 1}]},
            42201,
        ),
        ("POST", "/subjects/a/versions", {"schema": INT, "metadata": {"tags": 5}}, 42201),
        ("POST", "/subjects/a/versions", {"schema": INT, "ruleSet": {"domainRules": [{}]}}, 42210),
        ("POST", "/subjects/a/versions", {"schema": INT, "id": 7}, 42205),
        ("POST", "/subjects/a/versions", {"schema": LONG, "version": 7}, 42201),
        ("POST", "/subjects/__GLOBAL/versions", {"schema": INT}, 42208),
        ("POST", "/subjects/%00/versions", {"schema": INT}, 42208),
        ("POST", "/subjects/a/versions", [], 400),
        ("PUT", "/config", {"compatibility": "SIDEWAYS"}, 42203),
        ("PUT", "/config", {"validateFields": True}, 42203),
        ("GET", "/config/a", None, 40408),
        ("DELETE", "/config/a", None, 40401),
        ("PUT", "/mode", {"mode": "ASLEEP"}, 42204),
        ("PUT", "/mode", {"mode": "IMPORT"}, 42205),
        ("GET", "/mode/a", None, 40409),
        ("DELETE", "/subjects/none", None, 40401),
        ("DELETE", "/subjects/a?permanent=true", None, 40405),
        ("DELETE", "/subjects/a/versions/1?permanent=true", None, 40407),
        ("DELETE", "/subjects/a/versions/9", None, 40402),
        ("GET", "/subjects?offset=x", None, 400),
        ("POST", "/compatibility/subjects/a/versions/9", {"schema": INT}, 40402),
    ],
)
def test_errors_have_confluents_codes(client: Client, method: str, path: str, body: Any, code: int) -> None:
    client.register("a", INT)
    before = len(client.registry.written)
    assert client.refused(method, path, body) == code
    assert len(client.registry.written) == before, "what is refused is not written"


def test_soft_and_hard_deletes(client: Client) -> None:
    client.register("a", INT)
    client.register("a", LONG)
    assert client.ask("DELETE", "/subjects/a/versions/1") == (200, 1)
    assert client.get("/subjects/a/versions") == [2]
    assert client.get("/subjects/a/versions?deleted=true") == [1, 2]
    assert client.get("/subjects/a/versions?deletedOnly=true") == [1]
    assert client.get("/subjects/a/versions?deleted=true&deletedAsNegative=true") == [-1, 2]
    assert client.get("/schemas/ids/1")["schema"] == INT, "records written with it are still read"
    assert client.refused("DELETE", "/subjects/a/versions/1") == 40406
    assert client.ask("DELETE", "/subjects/a/versions/1?permanent=true") == (200, 1)
    assert client.refused("GET", "/schemas/ids/1") == 40403
    assert client.ask("DELETE", "/subjects/a") == (200, [2])
    assert client.get("/subjects") == []
    assert client.get("/subjects?deleted=true") == ["a"]
    assert client.refused("DELETE", "/subjects/a") == 40404
    assert client.register("a", LONG)["version"] == 3, "a deleted schema comes back as a new version"
    assert client.register("a", LONG)["id"] == 2
    assert client.get("/subjects/a/versions?deleted=true") == [3]


def test_no_id_is_given_twice_after_hard_deletes_and_compaction(client: Client) -> None:
    client.register("a", INT)
    assert client.register("b", TEXT)["id"] == 2
    client.ask("DELETE", "/subjects/b")
    client.ask("DELETE", "/subjects/b?permanent=true")
    assert client.registry.replayed(compacted=True).highest_id(".") == 2
    assert client.register("c", '"bytes"')["id"] == 3


def test_references_hold_what_they_refer_to(client: Client) -> None:
    client.register("user", USER)
    references = [{"name": "x.User", "subject": "user", "version": 1}]
    order = client.register("order", ORDER, references=references)
    assert client.get("/subjects/user/versions/1/referencedby") == [order["id"]]
    assert client.get("/subjects/order/versions/1")["references"] == references
    assert client.refused("DELETE", "/subjects/user/versions/1") == 42206
    assert client.refused("DELETE", "/subjects/user") == 42206
    client.ask("DELETE", "/subjects/order")
    assert client.ask("DELETE", "/subjects/user") == (200, [1])
    assert client.refused("DELETE", "/subjects/user?permanent=true") == 42206, "a soft deletion may be undone"
    client.ask("DELETE", "/subjects/order?permanent=true")
    assert client.ask("DELETE", "/subjects/user?permanent=true") == (200, [1])


def test_a_reference_to_the_latest_is_kept_with_its_number(client: Client) -> None:
    client.register("user", USER)
    latest = [{"name": "x.User", "subject": "user", "version": -1}]
    client.register("order", ORDER, references=latest)
    assert client.get("/subjects/order/versions/1")["references"][0]["version"] == 1


def test_json_schema_and_protobuf_refer_to_others(client: Client) -> None:
    client.register("j", '{"type":"object"}', schemaType="JSON")
    reference = [{"name": "other.json", "subject": "j", "version": 1}]
    found = client.register("k", '{"$ref":"other.json"}', schemaType="JSON", references=reference)
    assert client.get(f"/schemas/ids/{found['id']}")["schemaType"] == "JSON"
    client.register("p", 'syntax = "proto3"; package p; message N {}', schemaType="PROTOBUF")
    reference = [{"name": "p/n.proto", "subject": "p", "version": 1}]
    text = 'syntax = "proto3"; import "p/n.proto"; message M { p.N n = 1; }'
    first = client.register("q", text, schemaType="PROTOBUF", references=reference)
    serialized = client.get(f"/schemas/ids/{first['id']}?format=serialized")["schema"]
    again = client.register("q", serialized, schemaType="PROTOBUF", references=reference)
    assert again["id"] == first["id"], "a descriptor is the same schema as its text"
    assert client.get(f"/schemas/ids/{first['id']}")["schema"] == text, "texts are kept as they were sent"


def test_settings_of_subjects_contexts_and_everything(client: Client) -> None:
    assert client.get("/config") == {"compatibilityLevel": "BACKWARD"}
    assert client.ask("PUT", "/config", {"compatibility": "full"}) == (200, {"compatibility": "FULL"})
    assert client.get("/config/a?defaultToGlobal=true") == {"compatibilityLevel": "FULL"}
    assert client.ask("PUT", "/config/:.ctx:", {"compatibility": "NONE"})[0] == 200
    assert client.get("/config/:.ctx:a?defaultToGlobal=true") == {"compatibilityLevel": "NONE"}
    client.ask("PUT", "/config/a", {"compatibility": "FORWARD", "normalize": True})
    client.ask("PUT", "/config/a", {"compatibilityPolicy": "LENIENT"})
    assert client.get("/config/a") == {
        "compatibilityLevel": "FORWARD",
        "normalize": True,
        "compatibilityPolicy": "LENIENT",
    }
    assert client.ask("PUT", "/config/a", {"normalize": None})[0] == 200
    assert "normalize" not in client.get("/config/a")
    assert client.ask("DELETE", "/config/a")[1]["compatibilityLevel"] == "FORWARD"
    assert client.ask("DELETE", "/config") == (200, {"compatibilityLevel": "FULL"})
    assert client.get("/config") == {"compatibilityLevel": "BACKWARD"}


def test_compatibility_is_checked_before_registering(client: Client) -> None:
    client.register("a", INT)
    path = "/compatibility/subjects/a/versions"
    assert client.ask("POST", f"{path}/latest", {"schema": LONG}) == (200, {"is_compatible": True})
    assert client.ask("POST", f"{path}/1", {"schema": TEXT}) == (200, {"is_compatible": False})
    _, answer = client.ask("POST", f"{path}?verbose=true", {"schema": TEXT})
    assert answer["is_compatible"] is False
    assert "TYPE_MISMATCH" in answer["messages"][0]
    assert "{oldSchemaVersion: 1}" in answer["messages"]
    assert client.ask("POST", "/compatibility/subjects/new/versions", {"schema": TEXT})[1]["is_compatible"]


def test_modes_keep_from_writing(client: Client) -> None:
    client.register("a", INT)
    client.ask("PUT", "/mode/a", {"mode": "READONLY"})
    assert client.refused("POST", "/subjects/a/versions", {"schema": LONG}) == 42205
    assert client.refused("DELETE", "/subjects/a") == 42205
    assert client.register("b", INT)["id"] == 1
    assert client.ask("DELETE", "/mode/a") == (200, {"mode": "READONLY"})
    client.ask("PUT", "/mode", {"mode": "READONLY"})
    client.ask("PUT", "/mode/a", {"mode": "READWRITE"})
    assert client.register("a", LONG)["version"] == 2, "the nearest mode counts"
    assert client.refused("POST", "/subjects/b/versions", {"schema": LONG}) == 42205


def test_imports_bring_their_ids_and_versions(client: Client) -> None:
    client.ask("PUT", "/mode/a", {"mode": "IMPORT"})
    assert client.register("a", INT, id=40, version=7)["version"] == 7
    assert client.refused("POST", "/subjects/a/versions", {"schema": LONG}) == 42205
    assert client.refused("POST", "/subjects/a/versions", {"schema": LONG, "id": 40, "version": 8}) == 42207
    client.ask("DELETE", "/mode/a")
    found = client.register("a", LONG)
    assert (found["id"], found["version"]) == (41, 8)


def test_contexts_count_their_own_ids(client: Client) -> None:
    client.register("a", TEXT)
    assert client.register(":.one:a", INT)["id"] == 1
    assert client.get("/contexts") == [".", ".one"]
    assert client.get("/schemas/ids/1?subject=:.one:")["schema"] == INT
    assert client.get("/contexts/.one/schemas/ids/1")["schema"] == INT
    assert client.get("/contexts/.one/subjects") == [":.one:a"]
    assert client.get("/contexts/.one/subjects/a/versions") == [1]
    assert client.get("/subjects") == [":.one:a", "a"]
    assert client.get("/subjects?subjectPrefix=") == ["a"], "a prefix is one of the default context"
    assert client.get("/subjects?subjectPrefix=:.one:") == [":.one:a"]
    assert client.refused("DELETE", "/contexts/.one") == 42211
    client.ask("DELETE", "/subjects/:.one:a")
    client.ask("DELETE", "/subjects/:.one:a?permanent=true")
    assert client.ask("DELETE", "/contexts/.one") == (200, None)
    assert client.get("/contexts") == ["."]


def test_metadata_and_rules_are_kept_and_count(client: Client) -> None:
    metadata = {"properties": {"owner": "sales"}, "tags": {"a": ["PII"]}}
    rules = {
        "domainRules": [
            {"name": "check", "kind": "CONDITION", "mode": "WRITE", "type": "CEL", "expr": "true"}
        ]
    }
    client.register("a", INT)
    second = client.register("a", INT, metadata=metadata, ruleSet=rules)
    assert second["version"] == 2
    found = client.get("/subjects/a/versions/2")
    assert found["metadata"] == metadata and found["ruleSet"] == rules
    assert client.register("a", INT)["version"] == 2, "without metadata of its own it gets the latest's"
    assert client.register("a", LONG)["version"] == 3
    assert client.get("/subjects/a/versions/3")["metadata"] == metadata
    assert client.get("/subjects/a/metadata?key=owner&value=sales")["version"] == 3
    assert client.refused("GET", "/subjects/a/metadata?key=owner&value=nobody") == 40403
    client.ask("PUT", "/config/b", {"defaultMetadata": {"properties": {"team": "x"}}})
    client.register("b", INT)
    assert client.get("/subjects/b/versions/1")["metadata"] == {"properties": {"team": "x"}}


def test_groups_of_compatibility_stand_beside_each_other(client: Client) -> None:
    client.ask("PUT", "/config/a", {"compatibilityGroup": "major"})
    client.register("a", INT, metadata={"properties": {"major": "1"}})
    assert client.register("a", TEXT, metadata={"properties": {"major": "2"}})["version"] == 2
    body = {"schema": '"boolean"', "metadata": {"properties": {"major": "2"}}}
    assert client.refused("POST", "/subjects/a/versions", body) == 40901


def test_an_alias_stands_for_another_subject(client: Client) -> None:
    client.register("a", INT)
    client.ask("PUT", "/config/other", {"alias": "a"})
    assert client.get("/subjects/other/versions/latest")["subject"] == "a"


def test_normalize_makes_schemas_the_same(client: Client) -> None:
    one = '{"type":"object","title":"x"}'
    two = '{"title":"x","type":"object"}'
    client.register("a", one, schemaType="JSON")
    status, answer = client.ask(
        "POST", "/subjects/b/versions?normalize=true", {"schema": one, "schemaType": "JSON"}
    )
    assert status == 200
    again = client.ask("POST", "/subjects/b/versions?normalize=true", {"schema": two, "schemaType": "JSON"})[
        1
    ]
    assert again["id"] == answer["id"]


def test_subjects_hold_any_character(client: Client) -> None:
    for name in ("a/b c", "ünï%20", "a?b#c", "com.acme.Order"):
        client.register(name, INT)
        assert client.get(f"/subjects/{quote(name, safe='')}/versions") == [1]
    assert "a/b c" in client.get("/subjects")


def test_the_largest_schema_is_taken_and_a_larger_one_refused(client: Client) -> None:
    frame = '{"type":"string","doc":""}'
    largest = '{"type":"string","doc":"' + "x" * (limits.SCHEMA_BYTES_MAX - len(frame)) + '"}'
    assert len(largest) == limits.SCHEMA_BYTES_MAX
    assert client.register("a", largest)["id"] == 1
    assert client.refused("POST", "/subjects/a/versions", {"schema": largest + " "}) == 42209
    body = b'{"schema":"' + b"x" * application.BODY_BYTES_MAX + b'"}'
    assert client.browser.post("/subjects/a/versions", content=body).json()["error_code"] == 413
    assert client.browser.post("/subjects/a", content=b"[" * 50_000).json()["error_code"] == 400
    name = "n" * 1_024
    assert client.register(name, INT)["version"] == 1
    assert client.refused("POST", f"/subjects/{name}n/versions", {"schema": INT}) == 42208


def test_another_instance_makes_the_same_of_the_records(client: Client) -> None:
    client.register("user", USER)
    client.register("order", ORDER, references=[{"name": "x.User", "subject": "user", "version": 1}])
    client.register(":.c:a", INT)
    client.register("a", INT)
    client.register("a", LONG)
    client.ask("DELETE", "/subjects/a/versions/1")
    client.ask("PUT", "/config/a", {"compatibility": "NONE"})
    client.ask("PUT", "/mode/user", {"mode": "READONLY"})
    client.ask("DELETE", "/subjects/order")
    for compacted in (False, True):
        assert told(client.registry.replayed(compacted=compacted)) == told(client.registry.state)


def told(state: State) -> Any:
    subjects = state.subjects(":*:", deleted=True)
    return (
        state.contexts(),
        {name: [each.as_json() for each in state.versions(name, deleted=True)] for name in subjects},
        {name: (state.config(name), state.mode(name)) for name in (*subjects, "")},
        [state.highest_id(context) for context in state.contexts()],
        state.counts(),
    )


def test_records_have_confluents_keys(client: Client) -> None:
    client.register("a", INT)
    client.ask("PUT", "/config/a", {"compatibility": "NONE"})
    client.ask("PUT", "/mode", {"mode": "READWRITE"})
    client.ask("DELETE", "/subjects/a")
    assert [record.key.decode() for record in client.registry.written] == [
        '{"keytype":"SCHEMA","subject":"a","version":1,"magic":1}',
        '{"keytype":"CONFIG","subject":"a","magic":0}',
        '{"keytype":"MODE","subject":null,"magic":0}',
        '{"keytype":"DELETE_SUBJECT","subject":"a","magic":0}',
        '{"keytype":"CONFIG","subject":"a","magic":0}',
    ]
    value = json.loads(client.registry.written[0].value or b"")
    assert value["schema"] == INT and value["id"] == 1 and value["deleted"] is False


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, None),
        (b"", b""),
        (b"{", b"{}"),
        (b"[]", b"{}"),
        (b'{"keytype":"SCHEMA"}', b"{}"),
        (b'{"keytype":"SCHEMA","subject":"a","version":"x"}', b"{}"),
        (b'{"keytype":"SCHEMA","subject":"a","version":1}', b'{"subject":"a","version":1}'),
        (b'{"keytype":"SCHEMA","subject":"a","version":1}', b"[]"),
        (b'{"keytype":"DELETE_SUBJECT","subject":"a"}', b'{"version":"x"}'),
        (b'{"keytype":"NOOP"}', b'{"highestIds":5}'),
        (b'{"keytype":"OTHER"}', b"{}"),
        (b'{"keytype":"SCHEMA","subject":"a","version":1,"x":' + b"[" * 9_000, b"{}"),
    ],
)
def test_records_of_others_are_passed_over(key: bytes | None, value: bytes | None) -> None:
    state = State()
    state.apply(key, value)
    state.apply(b'{"keytype":"CONFIG","subject":null,"magic":0}', b'{"compatibilityLevel":"FULL"}')
    assert state.unreadable == 1
    assert state.config("") == {"compatibilityLevel": "FULL"}


def test_health_and_metrics_need_no_login(client: Client) -> None:
    client.register("a", INT)
    assert client.browser.get("/healthz").status_code == 503, "nobody writes"
    text = client.browser.get("/metrics").text
    assert (
        'tidelog_registry_requests_total{method="POST",path="/subjects/{subject}/versions",status="200"} 1'
        in text
    )
    assert "tidelog_registry_versions 1" in text


@contextmanager
def primary_that_says(answer: bytes) -> Iterator[str]:
    """An instance that answers one request with these bytes and is gone."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            stream, _ = listening.accept()
            with stream:
                stream.recv(1 << 16)
                stream.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread.join(10)


def test_the_answer_of_the_primary_is_passed_on_whole_or_not_at_all(client: Client) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 8\r\n\r\n"
    for said, expected in ((b'{"id":7}', 200), (b'{"id"', 500), (b"", 500)):
        with primary_that_says(head + said) as url:
            client.registry.elsewhere = url
            status, answer = client.ask("POST", "/subjects/a/versions", {"schema": INT})
        assert status == expected
        assert answer == {"id": 7} if expected == 200 else answer["error_code"] == 50003


def test_a_change_that_was_forwarded_already_is_not_forwarded_again(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "PRIMARY_SECONDS_MAX", 0.01)
    client.registry.elsewhere = "http://127.0.0.1:1"
    assert client.refused("POST", "/subjects/a/versions", {"schema": INT}) == 50003, "nobody listens there"
    answer = client.browser.post(
        "/subjects/a/versions", json={"schema": INT}, headers={"X-Forward": "false"}
    ).json()
    assert answer["error_code"] == 50003 and "try again" in answer["message"]
