"""The console's journeys in a real browser against a real cluster of three brokers."""

import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from tests.browser.browser_console import RunningConsole
from tidelog.testing.cluster import RunningCluster

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("browser")]

WAIT_MS = 45_000
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


def expect(locator: Any) -> Any:
    from playwright.sync_api import expect as playwright_expect

    playwright_expect.set_options(timeout=WAIT_MS)
    return playwright_expect(locator)


@contextmanager
def member(cluster: RunningCluster, group: str, topic: str, client_id: str) -> Iterator[Callable[[], None]]:
    """A consumer in a thread; the function that is given ends it before its time."""
    stop = threading.Event()

    def run() -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": group,
                "client.id": client_id,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 500,
                "session.timeout.ms": 10_000,
            }
        )
        consumer.subscribe([topic])
        while not stop.is_set():
            consumer.poll(0.2)
        consumer.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def end() -> None:
        stop.set()
        thread.join(30)

    try:
        yield end
    finally:
        end()


DOOMED = """
import sys
from confluent_kafka import Consumer
bootstrap, group, topic, name = sys.argv[1:]
consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "client.id": name,
                     "session.timeout.ms": 6000, "auto.offset.reset": "earliest"})
consumer.subscribe([topic])
while True:
    consumer.poll(0.2)
"""


@contextmanager
def doomed_member(
    cluster: RunningCluster, group: str, topic: str, client_id: str
) -> Iterator[Callable[[], None]]:
    """A consumer in a process of its own; the function that is given kills it."""
    arguments = [cluster.bootstrap, group, topic, client_id]
    process = subprocess.Popen([sys.executable, "-c", DOOMED, *arguments])
    try:
        yield process.kill
    finally:
        process.kill()
        process.wait(30)


def produce(cluster: RunningCluster, topic: str, values: list[str], key: str | None = None) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for value in values:
        producer.produce(topic, value, key=key)
    assert producer.flush(30) == 0


def produce_to(cluster: RunningCluster, topic: str, partition: int, value: str, **more: Any) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    producer.produce(topic, value, partition=partition, **more)
    assert producer.flush(30) == 0


def test_create_a_topic_change_it_and_delete_it(page: Any) -> None:
    page.goto("/topics")
    page.get_by_role("link", name="New topic").click()
    page.locator("input[name=name]").fill("journey")
    page.locator("input[name=partitions]").fill("3")
    page.get_by_role("button", name="Create topic").click()
    expect(page.get_by_text("Topic journey was created.")).to_be_visible()
    expect(page.locator("#topic-live table.rows tbody tr")).to_have_count(3)
    page.locator(".tabs").get_by_role("link", name="Settings").click()
    page.get_by_label("Search settings").fill("retention.ms")
    page.get_by_label("Edit retention.ms", exact=True).click()
    page.locator("input[name=value]").fill("123456")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("retention.ms is 123456 now.")).to_be_visible()
    expect(page.locator("tr.own")).to_contain_text("123456")
    page.locator(".tabs").get_by_role("link", name="Delete").click()
    page.locator("input[name=confirmation]").fill("journey")
    page.get_by_role("button", name="Delete topic").click()
    expect(page.get_by_text("Topic journey was deleted.")).to_be_visible()
    expect(page.locator("#topics-live").get_by_role("link", name="journey")).to_have_count(0)


def test_produce_and_see_it_arrive_in_the_live_tail(page: Any, cluster: RunningCluster) -> None:
    cluster.create_topic("tailed", partitions=2)
    page.goto("/topics/tailed/records")
    page.get_by_role("button", name="Live tail").click()
    expect(page.locator("#tail-status")).to_contain_text("waiting for records")
    # Written until it is seen: a tail shows what arrives after it has found the ends of the logs.
    produce(cluster, "tailed", [f"before-{HOSTILE}"], key="k1")
    row = page.locator("#records tbody tr", has_text="before-")
    expect(row.first).to_be_visible()
    expect(row.first.locator("td.key")).to_have_text("k1")
    assert page.locator("#records img, #records script").count() == 0
    other = page.context.new_page()
    other.goto("/topics/tailed/produce")
    other.locator("input[name=key]").fill("form-key")
    other.locator("textarea[name=value]").fill('{"from": "the form"}')
    other.get_by_role("button", name="Produce", exact=True).click()
    expect(other.get_by_text("Written to partition")).to_be_visible()
    other.close()
    expect(page.locator("#records tbody tr", has_text="the form").first).to_be_visible()
    assert "owned" not in page.title()
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#tail-status")).to_contain_text("stopped")
    page.locator("#records tbody tr", has_text="the form").first.get_by_role("link").click()
    expect(page.locator("pre.data").nth(1)).to_contain_text('"from": "the form"')
    page.get_by_text("Header fields and bytes").click()
    expect(page.get_by_text("partition_leader_epoch")).to_be_visible()


def test_records_are_filtered_and_exported(page: Any, cluster: RunningCluster) -> None:
    cluster.create_topic("filtered", partitions=1)
    produce(cluster, "filtered", [f'{{"n": {number}}}' for number in range(20)])
    page.goto("/topics/filtered/records")
    expect(page.locator("#records tbody tr")).to_have_count(20)
    page.locator("input[name=filter]").fill("value.n >= 15")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.locator("#records tbody tr")).to_have_count(5)
    page.locator("summary", has_text="Export").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="JSON lines").click()
    assert len(download.value.path().read_text().splitlines()) == 5


def test_watch_a_group_rebalance_and_reset_it(page: Any, cluster: RunningCluster) -> None:
    cluster.create_topic("grouped", partitions=4)
    produce(cluster, "grouped", [str(number) for number in range(40)])
    with member(cluster, "watched", "grouped", "first"):
        page.goto("/groups")
        expect(page.get_by_role("link", name="watched")).to_be_visible()
        page.get_by_role("link", name="watched").click()
        members = page.locator("section", has_text="Members").locator("tbody tr")
        expect(page.locator("#group-live")).to_contain_text("first")
        with doomed_member(cluster, "watched", "grouped", "second") as die:
            expect(page.locator(".timeline")).to_contain_text("second joined group watched")
            # Only what a look has seen is told: it must have seen the partitions with their new owner.
            expect(members.filter(has_text="second")).to_contain_text("grouped-")
            expect(page.locator(".timeline")).to_contain_text("went to another member")
            die()
            # Nobody said goodbye: the coordinator takes it for dead when its session is over.
            expect(page.locator(".timeline")).to_contain_text("second left group watched")
            expect(members).to_have_count(1)
        expect(page.locator("svg.chart")).to_be_visible()
    expect(page.locator("#group-live .tiles")).to_contain_text("empty")
    page.get_by_role("link", name="Reset offsets").click()
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("heading", name="Preview")).to_contain_text("would move")
    page.get_by_role("button", name=re.compile("Move .* offset")).click()
    expect(page.get_by_text("of watched moved.")).to_be_visible()
    expect(page.locator("#group-live .tiles")).to_contain_text("40")


def test_kill_a_broker_and_see_leaders_move(page: Any, cluster: RunningCluster) -> None:
    cluster.create_topic("moving", partitions=3)
    # Only what a look has seen can be told as moved.
    page.goto("/topics")
    expect(page.locator("#topics-live").get_by_role("link", name="moving")).to_be_visible()
    victim = cluster.leader("moving", 0)
    page.goto("/")
    expect(page.locator(".health")).to_contain_text("Healthy")
    cluster.kill(victim)
    try:
        expect(page.locator(".health")).to_contain_text(f"Broker {victim} is away")
        expect(page.locator(".health")).to_contain_text("not in sync")
        page.goto("/events")
        expect(page.locator(".timeline")).to_contain_text(f"Broker {victim} is gone")
        expect(page.locator(".timeline")).to_contain_text(
            re.compile(rf"moving-0 is led by broker \d, before by {victim}")
        )
        page.goto("/topics/moving")
        expect(page.locator(".replica.out").first).to_have_text(str(victim))
    finally:
        cluster.start(victim)
    page.goto("/events")
    expect(page.locator(".timeline")).to_contain_text(f"Broker {victim} is here")
    page.goto("/")
    expect(page.locator(".health")).to_contain_text("Healthy")


PATHS = (
    "/",
    "/topics",
    "/topics/shown",
    "/topics/shown/records",
    "/topics/shown/settings",
    "/topics/shown/produce",
    "/topics/shown/segments?base=0",
    "/topics/shown/redrive",
    "/topics/shown/records/0/0",
    "/topics/shown/delete",
    "/topics/new",
    "/groups",
    "/pipelines",
    "/brokers",
    "/brokers/1",
    "/transactions",
    "/access",
    "/events",
)


@pytest.mark.parametrize("width", [390, 1280])
def test_no_page_is_wider_than_the_window(
    browser: Any, console: RunningConsole, cluster: RunningCluster, width: int
) -> None:
    if width == 390:
        cluster.create_topic("shown", partitions=2)
        produce(cluster, "shown", ["x" * 3_000, '{"a": 1}'], key="y" * 500)
        # Something on the first partition too, wherever the key goes.
        produce_to(cluster, "shown", 0, "z" * 2_000)
    scheme = "dark" if width == 390 else "light"
    context = browser.new_context(
        base_url=console.address, viewport={"width": width, "height": 800}, color_scheme=scheme
    )
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    faults: list[str] = []
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    for path in PATHS:
        page.goto(path)
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{path} is {wide} px too wide at {width}"
        assert page.locator("h1").count() == 1, path
    context.close()
    assert faults == []


def test_keys_and_theme(page: Any) -> None:
    page.goto("/")
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_url("**/topics")
    page.keyboard.press("/")
    expect(page.get_by_label("Search topics")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("d")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to content")).to_be_focused()


def test_a_cluster_that_is_away_is_explained(browser: Any) -> None:
    with RunningConsole("127.0.0.1:1", timeout_seconds=1.0) as alone:
        page = browser.new_page()
        page.goto(alone.address, timeout=WAIT_MS)
        expect(page.get_by_role("heading", level=1)).to_have_text("The cluster does not answer")
        expect(page.get_by_text("tidelog up")).to_be_visible()
        page.close()
