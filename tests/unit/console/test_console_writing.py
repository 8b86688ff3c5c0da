"""Records that the console writes: imports, exact copies, and dead letters that go back."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from starlette.testclient import TestClient

from tidelog.cli.main import tidelog
from tidelog.console import dead_letters
from tidelog.console.application import create_application
from tidelog.console.console import Console, ConsoleSettings
from tidelog.console.dead_letters import dead_letter
from tidelog.console.faults import ConsoleFault
from tidelog.console.record_import import headers_text, parse_csv, parse_file, parse_headers
from tidelog.console.record_view import RecordView
from tidelog.testing.broker import RunningBroker

BINARY = b"\x00\xff=\r\n"
HEADERS: list[tuple[str, bytes | None]] = [
    ("plain", b"text = more"),
    ("none", None),
    ("empty", b""),
    ("bytes", BINARY),
    ("lines", b"a\nb"),
    ("odd:base64", b"x"),
    ("again", b"1"),
    ("again", b"2"),
]


def test_headers_come_back_as_they_were() -> None:
    assert parse_headers(headers_text(HEADERS)) == HEADERS
    with pytest.raises(ConsoleFault, match="no base64"):
        parse_headers("a:base64=%%")


def test_csv_with_all_that_a_cell_can_be() -> None:
    text = 'partition,key,value,headers\n1,k,"a ""b""\nc","{""h"": ""x"", ""n"": null}"\n'
    text += ",,\\N,\n,'=k,'=1+1,\n,,,\n"
    found = parse_csv(text)
    assert [tuple(item) for item in found] == [
        (b"k", b'a "b"\nc', [("h", b"x"), ("n", None)], 1),
        (None, None, [], None),
        (b"=k", b"=1+1", [], None),
        (None, b"", [], None),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "neither"),
        ("a,b\n1,2\n", "neither"),
        ("value\n", "no records"),
        ("value\nx,y\n", "line 2"),
        ('value\n"x', "line 2"),
        ("value,headers\nx,[1]\n", "line 2"),
        ("value,headers\nx,{\n", "line 2"),
        ("partition,value\n-4,x\n", "line 2"),
        ('{"value": "x"}\n{"value"', "line 2"),
        ('{"value": "x", "partition": "p"}', "line 1"),
        ("value\n" + "x\n" * 10_001, "more than"),
    ],
)
def test_faults_of_files_name_the_line(text: str, words: str) -> None:
    with pytest.raises(ConsoleFault, match=words):
        parse_file(text)


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with RunningBroker() as running:
        for name in ("source", "copy", "orders", "orders.dlq"):
            running.create_topic(name, partitions=2)
        yield running


@pytest.fixture(scope="module")
def client(broker: RunningBroker) -> Iterator[TestClient]:
    console = Console(ConsoleSettings(broker.bootstrap, poll_seconds=60))
    with TestClient(create_application(console), base_url="http://localhost") as made:
        yield made


def post(client: TestClient, path: str, **fields: str) -> Any:
    found = re.search(r'name="token" value="([^"]+)"', client.get("/topics/new").text)
    assert found is not None
    return client.post(path, data={"token": found[1], **fields}, follow_redirects=True)


def records(client: TestClient, topic: str) -> list[dict[str, Any]]:
    answer = client.get(f"/api/topics/{topic}/records?from=beginning&limit=500")
    found: list[dict[str, Any]] = answer.json()["records"]
    return sorted(found, key=lambda item: (item["partition"], item["offset"]))


def without_place(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: item[name] for name in item if name not in ("topic", "timestamp_ms")} for item in items]


def test_an_export_is_imported_exactly_and_a_record_is_replayed(
    broker: RunningBroker, client: TestClient
) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("source", BINARY, key=BINARY, partition=0, headers=HEADERS)  # type: ignore[arg-type]
    producer.produce("source", None, key="k", partition=1)
    producer.produce("source", "", partition=1)
    producer.produce("source", "=SUM(A1)\nü", key="-1", partition=0, headers={"h": "ü"})
    assert producer.flush(10) == 0
    lines = client.get("/topics/source/export?as=jsonl").text
    answer = post(client, "/topics/copy/import", lines=lines, keep_partitions="1")
    assert "4 records written" in answer.text
    assert without_place(records(client, "copy")) == without_place(records(client, "source"))

    answer = post(client, "/topics/source/replay", partition="0", offset="0", target="copy")
    assert "Sent again to copy" in answer.text
    original = records(client, "source")[0]
    copies = [item for item in records(client, "copy") if item.get("key_base64") == original["key_base64"]]
    assert len(copies) == 2
    assert all(copy["headers"] == original["headers"] for copy in copies)
    assert post(client, "/topics/source/replay", partition="0", offset="0", target="gone").status_code == 404


def test_editing_a_record_keeps_what_was_not_edited(broker: RunningBroker, client: TestClient) -> None:
    page = client.get("/topics/source/produce?copy_partition=0&copy_offset=0").text
    fields = {
        name: re.search(pattern, page, re.DOTALL)
        for name, pattern in {
            "key": r'name="key" value="([^"]*)"',
            "value": r'<textarea name="value"[^>]*>(.*?)</textarea>',
            "headers": r'<textarea name="headers"[^>]*>(.*?)</textarea>',
        }.items()
    }
    sent = {name: found[1] for name, found in fields.items() if found is not None}
    assert set(sent) == {"key", "value", "headers"}
    before = len(records(client, "source"))
    answer = post(client, "/topics/source/produce", key_kind="hex", value_kind="hex", partition="0", **sent)
    assert "Written to partition 0" in answer.text
    after = [item for item in records(client, "source") if item["partition"] == 0]
    assert len(records(client, "source")) == before + 1
    assert {**after[-1], "offset": 0, "timestamp_ms": 0} == {**after[0], "offset": 0, "timestamp_ms": 0}


def test_csv_goes_out_and_in(client: TestClient) -> None:
    text = client.get('/topics/source/export?as=csv&filter=key == "-1"').text
    assert text.splitlines()[0] == "partition,offset,timestamp_ms,key,value,headers"
    before = len(records(client, "copy"))
    assert "1 record written" in post(client, "/topics/copy/import", lines=text).text
    newest = max(records(client, "copy"), key=lambda item: item["timestamp_ms"])
    assert len(records(client, "copy")) == before + 1
    assert (newest["key"], newest["value"]) == ("-1", "=SUM(A1)\nü")
    assert newest["headers"] == [{"name": "h", "value": "ü"}]


def test_dead_letters_go_back_once_each(broker: RunningBroker, client: TestClient) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    own = {"tidelog.dlq.topic": "orders", "tidelog.dlq.partition": "1", "tidelog.dlq.offset": "7"}
    own |= {"tidelog.dlq.reason": "not JSON", "tidelog.dlq.pipeline": "clean", "tidelog.dlq.attempts": "2"}
    producer.produce("orders.dlq", "one", key="k", headers={"trace": "t", **own})
    connect = {"__connect.errors.topic": "orders", "__connect.errors.exception.message": "boom"}
    producer.produce("orders.dlq", "two", headers=connect)  # type: ignore[arg-type]
    producer.produce("orders.dlq", "no dead letter")
    assert producer.flush(10) == 0
    page = client.get("/topics/orders.dlq/redrive").text
    assert "Send 2 dead letters back" in page and "not JSON" in page and "boom" in page
    picked = re.search(r'name="picked" value="([^"]+)"', page)
    assert picked is not None
    assert (
        "2 dead letters sent back to orders"
        in post(client, "/topics/orders.dlq/redrive", picked=picked[1]).text
    )
    back = {item["value"]: item for item in records(client, "orders")}
    assert set(back) == {"one", "two"}
    assert back["one"]["key"] == "k"
    told = {header["name"]: header["value"] for header in back["one"]["headers"]}
    assert told == {"trace": "t", "tidelog.dlq.attempts": "3"}
    assert json.dumps(back["two"]["headers"]).count("tidelog.dlq.attempts") == 1
    producer.produce("orders.dlq", "three", headers=connect)  # type: ignore[arg-type]
    assert producer.flush(10) == 0
    picking = client.get("/topics/orders.dlq/redrive?filter=boom").text
    assert "No dead letter matches" in picking
    assert "No dead letter matches" in client.get("/topics/orders.dlq/redrive?filter=two").text
    assert "Send 1 dead letter back" in client.get("/topics/orders.dlq/redrive?filter=three").text


def test_a_letter_is_not_sent_back_again_by_another_page_or_the_command_line(
    broker: RunningBroker, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("again", "again.dlq"):
        broker.create_topic(name, partitions=1)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    own = {"tidelog.dlq.topic": "again", "tidelog.dlq.timestamp": "1700000000001"}
    for value in "abc":
        producer.produce("again.dlq", value, headers=own)  # type: ignore[arg-type]
    assert producer.flush(10) == 0

    class Died(Exception):
        pass

    def dies(*_: object) -> None:
        raise Died

    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(dead_letters, "Producer", lambda properties: Torn(Producer(properties), dies))
        post(client, "/topics/again.dlq/redrive", picked="0:0 0:1")
    assert records(client, "again") == [], "interrupted before it was noted"
    assert "2 dead letters sent back" in post(client, "/topics/again.dlq/redrive", picked="0:0 0:1").text
    answer = post(client, "/topics/again.dlq/redrive", picked="0:0 0:1 0:2").text
    assert "1 dead letter sent back to again. 2 had been sent back before." in answer
    assert [(item["value"], item["timestamp_ms"]) for item in records(client, "again")] == [
        (value, 1_700_000_000_001) for value in "abc"
    ]
    told = CliRunner().invoke(
        tidelog, ["dlq", "redrive", "again.dlq", "--yes", "--bootstrap", broker.bootstrap]
    )
    assert "sent back 0" in told.output


class Torn:
    """A producer that ends before its transaction is committed."""

    def __init__(self, producer: Any, dies: Any) -> None:
        self._producer = producer
        self._dies = dies

    def __getattr__(self, name: str) -> Any:
        return self._dies if name == "commit_transaction" else getattr(self._producer, name)


def test_a_topic_newer_than_the_last_look_is_no_absent_one(broker: RunningBroker, client: TestClient) -> None:
    for name in ("late", "late.dlq"):
        broker.create_topic(name, partitions=1)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("late.dlq", "x", headers={"tidelog.dlq.topic": "late"})
    producer.produce("late.dlq", "y", headers={"tidelog.dlq.topic": "never-made"})
    assert producer.flush(10) == 0
    page = client.get("/topics/late.dlq/redrive").text
    assert page.count("not there") == 1 and "never-made" in page
    page = client.get("/topics/late.dlq/redrive?filter=x").text
    assert "not there" not in page and "disabled" not in page


@pytest.mark.parametrize("picked", ["", "x", "0", "0:999999", "-1:0", "0:0 " * 2_000 + "1:5"])
def test_places_that_are_not_dead_letters_are_refused(client: TestClient, picked: str) -> None:
    before = len(records(client, "orders"))
    assert post(client, "/topics/orders.dlq/redrive", picked=picked).status_code >= 400
    assert len(records(client, "orders")) == before


def test_attempts_that_are_no_number_count_as_none() -> None:
    headers = (("tidelog.dlq.topic", b"t"), ("tidelog.dlq.attempts", b"-5"))
    letter = dead_letter(RecordView("d", 0, 0, 0, "CreateTime", None, None, headers))
    assert letter is not None and letter.attempts == 0
