"""The console's pages and API against a real broker, through the application without a socket."""

import html
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from starlette.testclient import TestClient

from tidelog.admin.offsets import known_offsets
from tidelog.client.cluster import LATEST
from tidelog.console import application, tails
from tidelog.console.application import create_application
from tidelog.console.console import Console, ConsoleSettings
from tidelog.testing.broker import RunningBroker

HOSTILE = b"<script>alert('x')</script>"
PAGES = (
    "/",
    "/topics",
    "/topics?search=ord&sort=records&order=desc&internal=1&page=9",
    "/topics/new",
    "/topics/orders",
    "/topics/orders/settings",
    "/topics/orders/settings?edit=retention.ms",
    "/topics/orders/delete",
    "/topics/orders/records",
    "/topics/orders/produce",
    "/topics/orders/segments",
    "/topics/orders/redrive",
    "/groups",
    "/groups?sort=name&search=x",
    "/group?id=readers",
    "/group/reset?id=readers",
    "/pipelines",
    "/brokers",
    "/transactions",
    "/access",
    "/events",
    "/events?severity=bad",
)


class ForeignBroker(NamedTuple):
    """Another broker than Tidelog: TIDELOG_CONSOLE_BOOTSTRAP=127.0.0.1:19092 runs these tests against it."""

    bootstrap: str

    def create_topic(self, name: str, partitions: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)

    def clean(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.delete_consumer_groups(["readers"])["readers"].result(30)
        admin.delete_topics(["orders"])["orders"].result(30)


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker | ForeignBroker]:
    foreign = os.environ.get("TIDELOG_CONSOLE_BOOTSTRAP")
    if foreign is not None:
        other = ForeignBroker(foreign)
        fill(other)
        yield other
        other.clean()
        return
    with RunningBroker({"num.partitions": "2"}) as running:
        fill(running)
        yield running


def fill(broker: RunningBroker | ForeignBroker) -> None:
    """A topic with records, one of them hostile, and a group that has read them."""
    broker.create_topic("orders", partitions=2)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(10):
        value = json.dumps({"order": number, "amount": 10 * number})
        producer.produce("orders", value, key=f"k{number}", partition=number % 2, headers={"trace": b"t"})
    producer.produce("orders", HOSTILE, key=HOSTILE, partition=0, headers={HOSTILE.decode(): HOSTILE})
    producer.flush(10)
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["orders"])
    seen = 0
    deadline = time.monotonic() + 30
    while seen < 11 and time.monotonic() < deadline:
        seen += len(consumer.consume(11, 1.0))
    consumer.commit(asynchronous=False)
    consumer.close()


def client_of(broker: RunningBroker | ForeignBroker, **settings: Any) -> TestClient:
    console = Console(ConsoleSettings(broker.bootstrap, poll_seconds=60, **settings))
    return TestClient(create_application(console), base_url="http://localhost")


@pytest.fixture(scope="module")
def client(broker: RunningBroker | ForeignBroker) -> Iterator[TestClient]:
    with client_of(broker) as made:
        yield made


def token_of(client: TestClient) -> str:
    found = re.search(r'name="token" value="([^"]+)"', client.get("/topics/new").text)
    assert found is not None
    return found[1]


def post(client: TestClient, path: str, **fields: str) -> Any:
    return client.post(path, data={"token": token_of(client), **fields}, follow_redirects=True)


@pytest.mark.parametrize("path", PAGES)
def test_every_page_answers_with_its_headers(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"
    assert "<script>alert" not in answer.text
    assert "<title>" in answer.text


def test_records_are_shown_escaped(client: TestClient) -> None:
    for path in ("/topics/orders/records?partition=0", "/topics/orders/records/0/5"):
        text = client.get(path).text
        assert html.escape(HOSTILE.decode()).replace("&#x27;", "&#39;") in text
        assert "<script>alert" not in text


def test_looking_by_offset_time_key_and_filter(client: TestClient) -> None:
    def offsets(**query: str) -> list[tuple[int, int]]:
        found = client.get("/api/topics/orders/records", params=query).json()
        return [(record["partition"], record["offset"]) for record in found["records"]]

    assert len(offsets()) == 11
    assert sorted(offsets(**{"from": "offset", "offset": "3", "partition": "0"})) == [(0, 3), (0, 4), (0, 5)]
    assert offsets(key="k7") == [(1, 3)]
    assert sorted(offsets(filter="value.amount >= 80")) == [(0, 4), (1, 4)]
    assert offsets(**{"from": "time", "time": "2999-01-01"}) == []
    assert len(offsets(**{"from": "time", "time": "2001-01-01"})) == 11
    assert len(offsets(**{"from": "beginning", "limit": "4"})) == 4


def test_a_filter_that_is_wrong_is_explained(client: TestClient) -> None:
    answer = client.get("/topics/orders/records", params={"filter": "key =="})
    assert answer.status_code == 200
    assert "the filter ends too early" in answer.text
    assert client.get("/api/topics/orders/records", params={"filter": "key =="}).status_code == 400


def test_export(client: TestClient) -> None:
    lines = client.get("/topics/orders/export?as=jsonl").text.splitlines()
    assert len(lines) == 11
    assert {json.loads(line)["topic"] for line in lines} == {"orders"}
    answer = client.get("/topics/orders/export?as=csv&filter=value.order")
    assert answer.headers["content-disposition"] == 'attachment; filename="orders.csv"'
    assert len(answer.text.splitlines()) == 10  # the order 0 is no value, the hostile one has none


def test_the_batch_of_a_record_is_explained(client: TestClient) -> None:
    text = client.get("/topics/orders/records/0/0").text
    assert "partition_leader_epoch" in text
    assert "CRC is right" in text


def test_the_life_of_a_topic(client: TestClient) -> None:
    answer = post(client, "/topics", name="fresh", partitions="1", settings="retention.ms=60000")
    assert answer.status_code == 200
    assert "Topic fresh was created." in answer.text
    answer = post(client, "/topics/fresh/settings", setting="retention.ms", value="70000", action="set")
    assert "retention.ms is 70000 now." in answer.text
    settings = {row["name"]: row for row in client.get("/api/topics/fresh").json()["settings"]}
    assert (settings["retention.ms"]["value"], settings["retention.ms"]["source"]) == ("70000", "topic")
    post(client, "/topics/fresh/settings", setting="retention.ms", action="unset")
    answer = post(client, "/topics/fresh/partitions", partitions="3")
    assert "3 partitions now" in answer.text
    answer = post(
        client, "/topics/fresh/produce", key="k", value="v", value_kind="text", headers="a=b", partition="2"
    )
    assert "Written to partition 2 at offset 0." in answer.text
    post(client, "/topics/fresh/import", lines='{"key":"x","value":{"y":1}}\n{"value":null}')
    records = client.get("/api/topics/fresh/records?from=beginning").json()["records"]
    assert sorted(str(record["value"]) for record in records) == ["None", "v", '{"y": 1}']
    assert post(client, "/topics/fresh/delete", confirmation="fres").status_code == 400
    answer = post(client, "/topics/fresh/delete", confirmation="fresh")
    assert "Topic fresh was deleted." in answer.text


def test_resetting_a_group_moves_what_the_preview_showed(client: TestClient) -> None:
    page = client.get("/group/reset", params={"id": "readers", "preview": "1", "to": "offset", "value": "2"})
    offsets = re.search(r'<textarea name="offsets" hidden>([^<]*)</textarea>', page.text)
    assert offsets is not None
    assert offsets[1] == "orders,0,2\norders,1,2\n"
    answer = post(client, "/group/reset", id="readers", offsets=offsets[1])
    assert "2 offsets of readers moved." in answer.text
    group = client.get("/api/groups/readers").json()
    assert [row["committed"] for row in group["partitions"]] == [2, 2]
    assert group["lag"] == 7
    shifted = client.get(
        "/group/reset", params={"id": "readers", "preview": "1", "to": "shift", "value": "-9"}
    )
    assert "-7 is outside the log, nearest taken" in shifted.text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/topics/absent", 404),
        ("/api/topics/absent", 404),
        ("/group?id=absent", 404),
        ("/group", 400),
        ("/brokers/99", 404),
        ("/nowhere", 404),
        ("/topics/orders/records/0/99", 404),
        ("/topics/orders/records/0/x", 400),
        ("/topics?page=x", 400),
    ],
)
def test_what_is_not_there_is_explained(client: TestClient, path: str, status: int) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    if path.startswith("/api/"):
        assert answer.json()["error"]
    else:
        assert "<h1>" in answer.text


def test_changes_from_elsewhere_are_refused(client: TestClient) -> None:
    fields = {"name": "forged", "token": token_of(client)}
    assert client.post("/topics", data={"name": "forged"}).status_code == 403
    assert client.post("/topics", data={**fields, "token": "guess"}).status_code == 403
    for headers in ({"origin": "http://evil.example.com"}, {"sec-fetch-site": "cross-site"}):
        assert client.post("/topics", data=fields, headers=headers).status_code == 403
    assert client.post("/topics", json=fields).status_code == 400
    assert client.get("/topics", headers={"host": "evil.example.com"}).status_code == 421
    assert client.get("/topics/forged").status_code == 404


def test_a_form_has_a_limit(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "FORM_BYTES_MAX", 100)
    assert client.post("/topics", data={"name": "x" * 200}).status_code == 413


def test_a_notice_cannot_be_forged(client: TestClient) -> None:
    assert "forged" not in client.get("/topics?notice=forged").text


def test_reading_only(broker: RunningBroker | ForeignBroker) -> None:
    with client_of(broker, read_only=True) as client:
        text = client.get("/topics").text
        assert "read-only" in text
        assert "New topic" not in text
        answer = client.post("/topics", data={"name": "x", "token": token_of(client)})
        assert answer.status_code == 403
        assert "only reads" in answer.text


def test_a_cluster_that_is_away_is_explained() -> None:
    console = Console(ConsoleSettings("127.0.0.1:1", poll_seconds=60, timeout_seconds=1))
    with TestClient(create_application(console), base_url="http://localhost") as client:
        answer = client.get("/")
        assert answer.status_code == 503
        assert "The cluster does not answer" in answer.text
        assert "tidelog up" in answer.text
        assert client.get("/api/cluster").status_code == 503
        assert client.get("/healthz").status_code == 200


def test_the_api(client: TestClient) -> None:
    cluster = client.get("/api/cluster").json()
    assert cluster["healthy"]
    (one,) = cluster["brokers"]
    assert one["leads"] >= 2
    settings = client.get(f"/brokers/{one['id']}")
    assert settings.status_code == 200
    assert "log.retention" in settings.text
    assert "orders" in [topic["name"] for topic in client.get("/api/topics").json()["topics"]]
    topic = client.get("/api/topics/orders").json()
    assert [(row["log_start_offset"], row["high_watermark"]) for row in topic["partitions"]] == [
        (0, 6),
        (0, 5),
    ]
    assert all(row["size_bytes"] > 0 for row in topic["partitions"])
    assert [group["group"] for group in client.get("/api/groups").json()] == ["readers"]
    for path in ("/api/events", "/api/transactions", "/api/brokers"):
        assert isinstance(client.get(path).json(), list)


def test_a_tail_hands_out_what_arrives_and_tails_are_counted(broker: RunningBroker | ForeignBroker) -> None:
    console = Console(ConsoleSettings(broker.bootstrap, poll_seconds=60))
    got: list[dict[str, Any]] = []
    monkeypatched_max, tails.TAILS_MAX = tails.TAILS_MAX, 1
    try:
        tail = console.tails.open(
            "orders", {0: 0, 1: 0}, None, ("auto", "auto"), lambda rows, _: got.extend(rows)
        )
        with pytest.raises(Exception, match="live tails are open"):
            console.tails.open("orders", {0: 0}, None, ("auto", "auto"), lambda rows, _: None)
        deadline = time.monotonic() + 30
        while len(got) < 11 and time.monotonic() < deadline:
            threading.Event().wait(0.05)
        assert {(row["partition"], row["offset"]) for row in got} >= {(0, 5), (1, 4)}
        tail.stop()
        assert len(console.tails) == 0 and console.tails.feeds_count == 0
    finally:
        tails.TAILS_MAX = monkeypatched_max
        console.close()


def test_tails_of_the_same_partitions_share_a_feed(broker: RunningBroker | ForeignBroker) -> None:
    console = Console(ConsoleSettings(broker.bootstrap, poll_seconds=60))
    starts: dict[int, int] = {}
    deadline = time.monotonic() + 30
    while len(starts) < 2 and time.monotonic() < deadline:
        # A look of three seconds at most: a busy machine may not answer the first one in time.
        found = known_offsets(console.wire, [("orders", 0), ("orders", 1)], LATEST)
        starts = {number: end for (_, number), end in found.items()}
    seen: dict[str, set[str]] = {"all": set(), "hex": set(), "picked": set(), "later": set()}

    def into(name: str) -> Any:
        return lambda rows, _: seen[name].update(row["value"] for row in rows)

    later = {number: offset + 1 for number, offset in starts.items()}
    try:
        first = console.tails.open("orders", starts, None, ("auto", "auto"), into("all"))
        console.tails.open("orders", starts, None, ("hex", "hex"), into("hex"))
        console.tails.open("orders", later, None, ("auto", "auto"), into("later"))
        console.tails.open(
            "orders", {0: starts[0]}, lambda record: record.value == b"b", ("auto", "auto"), into("picked")
        )
        assert len(console.tails) == 4 and console.tails.feeds_count == 2
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for value in ("a", "b"):
            producer.produce("orders", value, partition=0)
        assert producer.flush(10) == 0
        wanted = {"all": {"a", "b"}, "hex": {"61", "62"}, "picked": {"b"}, "later": {"b"}}
        deadline = time.monotonic() + 30
        while seen != wanted and time.monotonic() < deadline:
            threading.Event().wait(0.05)
        assert seen == wanted
        first.stop()
        assert len(console.tails) == 3 and console.tails.feeds_count == 2
    finally:
        console.close()
    assert len(console.tails) == 0
