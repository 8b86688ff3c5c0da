"""The console against whatever broker is under test: every link and every page, and nothing fails.

A crawl from the overview follows every link of the console's own; a page that is not 200, or that says that
something could not be read, fails the test. Against Apache Kafka it shows all that the protocol tells.
"""

import re
import time
from collections.abc import Callable, Iterator
from html import unescape
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Consumer, Producer, ShareConsumer
from starlette.testclient import TestClient

from tests.conformance.drivers.contract import DEADLINE_SECONDS, new_name
from tidelog.admin.cluster_admin import ClusterAdmin
from tidelog.admin.offset_reset import Move, ResetPlan
from tidelog.admin.share_groups import ShareGroups
from tidelog.client.client_settings import ClientSettings
from tidelog.console.application import create_application
from tidelog.console.console import Console, ConsoleSettings

pytestmark = pytest.mark.timeout(240)
PAGES_MAX = 250
LINK = re.compile(r'href="(/[^"]*)"')
NOT_CRAWLED = re.compile(r"/static/|/export\?")


@pytest.fixture(scope="module")
def console(bootstrap: str) -> Iterator[Console]:
    yield Console(ConsoleSettings(bootstrap, poll_seconds=0.5))


@pytest.fixture(scope="module")
def client(console: Console) -> Iterator[TestClient]:
    with TestClient(create_application(console), base_url="http://localhost") as made:
        yield made


@pytest.fixture(scope="module")
def topic(bootstrap: str, make_topics: Callable[..., None]) -> str:
    """A topic with plain records and a committed transaction."""
    name = new_name("walked")
    make_topics([name], partitions=3)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(30):
        producer.produce(name, f'{{"n": {number}}}', key=f"k{number}", headers={"h": "v"})
    assert producer.flush(DEADLINE_SECONDS) == 0
    writer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{name}-id"})
    writer.init_transactions(DEADLINE_SECONDS)
    writer.begin_transaction()
    writer.produce(name, "committed")
    writer.commit_transaction(DEADLINE_SECONDS)
    return name


@pytest.fixture(scope="module")
def members(bootstrap: str, topic: str) -> Iterator[dict[str, Consumer]]:
    """A member of each kind of group that librdkafka speaks, with partitions and commits."""
    made = {}
    for protocol in ("classic", "consumer"):
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"{topic}-{protocol}",
                "group.protocol": protocol,
                "client.id": f"{protocol}-member",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([topic])
        made[protocol] = consumer
        seen = 0
        deadline = time.monotonic() + DEADLINE_SECONDS
        while seen < 30:
            assert time.monotonic() < deadline, f"the {protocol} member reads nothing"
            seen += len(consumer.consume(50, 0.5))
        consumer.commit(asynchronous=False)
    yield made
    for consumer in made.values():
        consumer.close()


def crawl(client: TestClient, topic: str) -> dict[str, tuple[int, str]]:
    """Every page that can be reached, with its status and text; topics and groups are those of this test."""
    waiting = ["/"]
    found: dict[str, tuple[int, str]] = {}
    while waiting:
        path = waiting.pop(0)
        if path in found:
            continue
        assert len(found) < PAGES_MAX, "the crawl has no end"
        answer = client.get(path, follow_redirects=True)
        found[path] = (answer.status_code, answer.text)
        for link in LINK.findall(answer.text):
            target = unescape(link).partition("#")[0]
            if target not in found and of_this_test(target, topic) and not NOT_CRAWLED.search(target):
                waiting.append(target)
    return found


def of_this_test(path: str, topic: str) -> bool:
    """Topics and groups of other tests may be broken on purpose, or vanish while we look."""
    foreign = re.match(r"/(?:topics/(?!new)([^/?]+)|group(?:/reset)?\?id=([^&]+))", path)
    return foreign is None or (foreign[1] or foreign[2]).startswith(topic)


def test_no_page_fails(
    client: TestClient, console: Console, topic: str, members: dict[str, Consumer]
) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while f"{topic}-consumer" not in console.snapshot().groups or topic not in console.snapshot().topics:
        assert time.monotonic() < deadline, "the console did not see the groups"
        time.sleep(0.1)
    found = crawl(client, topic)
    assert {path: status for path, (status, _) in found.items() if status != 200} == {}
    said = {
        path: re.sub(r"\s+", " ", notice)
        for path, (_, text) in found.items()
        for notice in re.findall(r'<p class="notice (?:warn|bad)"[^>]*>(.*?)</p>', text, re.DOTALL)
        # A group that is read cannot be reset, and without an authorizer there are no ACLs to list.
        if "of the group read" not in notice and "ACLs cannot be read" not in notice
    }
    assert said == {}
    wanted = ("/topics", "/groups", "/brokers", "/transactions", "/access", "/events", "/pipelines")
    assert set(wanted) <= set(found)
    for page in ("", "/records", "/segments", "/settings", "/produce", "/delete"):
        assert f"/topics/{topic}{page}" in found
    assert f"{topic}-id" in found["/transactions"][1]


@pytest.mark.parametrize(
    "path", ["cluster", "brokers", "topics", "groups", "events", "transactions", "access"]
)
def test_the_api_answers(client: TestClient, topic: str, path: str) -> None:
    assert client.get(f"/api/{path}").status_code == 200


def test_a_topic_is_told_in_full(client: TestClient, topic: str) -> None:
    told = client.get(f"/api/topics/{topic}").json()
    assert sum(row["high_watermark"] for row in told["partitions"]) == 32  # with the transaction's marker
    for row in told["partitions"]:
        assert row["isr"] == row["replicas"] and row["leader"] in row["replicas"]
        assert row["last_stable_offset"] == row["high_watermark"] and row["log_start_offset"] == 0
        assert row["size_bytes"] > 0
    settings = {row["name"]: row for row in told["settings"]}
    assert settings["retention.ms"]["default"] is not None
    records = client.get(f"/api/topics/{topic}/records?from=beginning&limit=100").json()["records"]
    assert len(records) == 31


@pytest.mark.parametrize(("protocol", "label"), [("classic", "classic"), ("consumer", "new protocol")])
def test_groups_have_their_kind_members_and_lag(
    client: TestClient, topic: str, members: dict[str, Consumer], protocol: str, label: str
) -> None:
    told = client.get(f"/api/groups/{topic}-{protocol}").json()
    assert (told["label"], told["state"]) == (label, "stable")
    assert [member["client_id"] for member in told["members"]] == [f"{protocol}-member"]
    assert len(told["members"][0]["assignment"]) == 3
    assert {row["partition"] for row in told["partitions"]} == {0, 1, 2}


@pytest.fixture
def sharer(
    bootstrap: str, topic: str, configure_group: Callable[[str, dict[str, str]], None]
) -> Iterator[str]:
    """A share group with a member that holds records of which it has accepted one."""
    name = f"{topic}-share"
    configure_group(name, {"share.auto.offset.reset": "earliest"})
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": name,
        "client.id": "walker",
        "share.acknowledgement.mode": "explicit",
    }
    with ShareConsumer(settings) as consumer:
        consumer.subscribe([topic])
        deadline = time.monotonic() + DEADLINE_SECONDS
        messages: list[Any] = []
        while not messages:
            assert time.monotonic() < deadline, "the share group's member gets nothing"
            messages = list(consumer.poll(0.5))
        consumer.acknowledge(messages[0], AcknowledgeType.ACCEPT)
        for fault in consumer.commit_sync(DEADLINE_SECONDS).values():
            assert fault is None
        yield name


def test_a_share_group_is_shown(
    client: TestClient, console: Console, topic: str, sharer: str, oracle: bool
) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    told: Any = {}
    while told.get("label") != "share" or not told.get("lag_history"):
        assert time.monotonic() < deadline, f"the console does not show the share group: {told}"
        console.watcher.look()
        told = client.get(f"/api/groups/{sharer}").json()
    (member,) = told["members"]
    assert member["client_id"] == "walker" and len(member["assignment"]) == 3
    assert len(told["partitions"]) == 3
    starts = [row["start"] for row in told["partitions"]]
    assert 1 in starts and told["lag"] == sum(
        row["end"] - row["start"] - row["done"] for row in told["partitions"] if row["start"] is not None
    )
    acquired = [row["acquired"] for row in told["partitions"]]
    assert (acquired == [None] * 3) == oracle
    page = client.get(f"/group?id={sharer}").text
    assert "records to deal with" in page and "walker" in page
    assert "Locks ended" in page or oracle
    if not oracle:
        assert sum(count or 0 for count in acquired) > 0
        assert console.watcher.shares.acquired_history.samples(sharer)[-1].value > 0
    assert sharer in dict(client.get(f"/api/topics/{topic}").json()["groups"][0]).values()


def test_a_share_group_begins_elsewhere_and_goes(
    client: TestClient, console: Console, topic: str, bootstrap: str
) -> None:
    name = f"{topic}-moved"
    with ClusterAdmin(lambda: ClientSettings.from_options({"bootstrap.servers": bootstrap})) as admin:
        ShareGroups(admin).reset(ResetPlan(name, (Move(topic, 0, None, 3),)))
    console.watcher.look()
    preview = client.get(f"/group/reset?id={name}&preview=1&to=offset&value=5").text
    assert "1 offset" in preview and "forgets what it acknowledged" in preview
    token = re.search(r'name="token" value="([^"]+)"', preview)
    assert token is not None
    fields = {"token": token[1], "id": name, "offsets": f"{topic},0,5"}
    assert "1 offset of" in client.post("/group/reset", data=fields).text
    assert [row["start"] for row in client.get(f"/api/groups/{name}").json()["partitions"]] == [5]
    fields = {"token": token[1], "id": name, "confirmation": name}
    assert "was deleted" in client.post("/group/delete", data=fields).text
    assert client.get(f"/api/groups/{name}").status_code == 404
