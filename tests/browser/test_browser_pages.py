"""Pages of the console that are no journey of their own: each is used once, in a real browser."""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.browser.browser_console import RunningConsole
from tests.browser.test_browser_console import WAIT_MS, expect, produce, produce_to
from tidelog.console.login import users_file_line
from tidelog.testing.cluster import RunningCluster

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("browser")]
PASSWORD = "low-Tide-7"


def test_segments_and_their_indexes(page: Any, cluster: RunningCluster) -> None:
    cluster.create_topic("segmented", partitions=1, segment_bytes=65_536, index_interval_bytes=2_048)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "batch.num.messages": 20})
    for number in range(2_500):
        producer.produce("segmented", f"{number:060d}")
    assert producer.flush(30) == 0
    page.goto("/topics/segmented")
    page.locator(".tabs").get_by_role("link", name="Segments").click()
    rows = page.locator("#segments-live tbody tr")
    expect(rows.filter(has_text="active")).to_have_count(1)
    assert rows.count() >= 3
    rows.last.get_by_role("link").click()
    expect(page.get_by_role("heading", name="Indexes of segment 0")).to_be_visible()
    entries = page.locator("#indexes table").first.locator("tbody tr")
    assert entries.count() > 5
    entries.first.get_by_role("link").click()
    expect(page.get_by_role("heading", level=2).first).to_contain_text("Partition 0, offset")


def test_import_edit_and_replay(page: Any, cluster: RunningCluster) -> None:
    cluster.create_topic("imported", partitions=1)
    page.goto("/topics/imported/produce")
    page.locator("textarea[name=lines]").fill("key,value\nk1,first\nk2,second\n")
    page.get_by_role("button", name="Import").click()
    expect(page.get_by_text("2 records written.")).to_be_visible()
    page.locator("#records tbody tr", has_text="first").get_by_role("link").click()
    page.get_by_role("link", name="Edit and send again").click()
    expect(page.locator("textarea[name=value]")).to_have_value("first")
    page.locator("textarea[name=value]").fill("first, edited")
    page.get_by_role("button", name="Produce", exact=True).click()
    expect(page.get_by_text("Written to partition 0 at offset 2.")).to_be_visible()
    page.goto("/topics/imported/records/0/1")
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_text("Replay as it is").click()
    page.get_by_role("button", name="Replay", exact=True).click()
    expect(page.get_by_text("Sent again to imported, partition 0, offset 3.")).to_be_visible()
    expect(page.locator("pre.data").nth(1)).to_have_text("second")


def test_dead_letters_go_back(page: Any, cluster: RunningCluster) -> None:
    cluster.create_topic("sold", partitions=1)
    cluster.create_topic("sold.dlq", partitions=1)
    headers = {"tidelog.dlq.topic": "sold", "tidelog.dlq.reason": "the value is not JSON"}
    produce_to(cluster, "sold.dlq", 0, "{broken", headers=headers)
    page.goto("/topics/sold.dlq")
    page.locator(".tabs").get_by_role("link", name="Dead letters").click()
    expect(page.get_by_text("the value is not JSON").first).to_be_visible()
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Send 1 dead letter back").click()
    expect(page.get_by_text("1 dead letter sent back to sold.")).to_be_visible()
    page.goto("/topics/sold/records")
    expect(page.locator("#records tbody tr")).to_contain_text("{broken")


def test_pipelines_with_rates_and_lag(page: Any, cluster: RunningCluster, pipelines_folder: Path) -> None:
    now = int(time.time() * 1000)
    progress = {"name": "main", "batch_id": 4, "processed_rows_per_second": 1250.0, "lag": 37, "rows": 900}
    plan = {"queries": [{"name": "main", "reads": "topic sold", "does": ["decode json"], "writes": "clean"}]}
    status = {"name": "clean-sold", "kind": "clean", "state": "running", "started_ms": now, "updated_ms": now}
    folder = pipelines_folder / "clean-sold"
    folder.mkdir()
    (folder / "status.json").write_text(json.dumps({**status, "progress": [progress], "plan": plan}))
    (folder / "lock").touch()
    lock = os.open(folder / "lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    page.goto("/")
    page.get_by_role("link", name="Pipelines", exact=True).click()
    card = page.locator(".pipeline", has_text="clean-sold")
    expect(card).to_contain_text("running")
    expect(card.locator(".facts")).to_contain_text("1.2k/s")
    expect(card.locator("tbody tr")).to_contain_text("topic sold")
    os.close(lock)
    expect(card).to_contain_text("died")


def test_brokers_transactions_access_and_settings(page: Any, cluster: RunningCluster) -> None:
    cluster.create_topic("open-ended", partitions=1)
    writer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "till-7"})
    writer.init_transactions(30)
    writer.begin_transaction()
    writer.produce("open-ended", "not yet")
    writer.flush(30)
    page.goto("/transactions")
    expect(page.locator("main")).to_contain_text("till-7")
    page.goto("/topics/open-ended")
    expect(page.locator("#topic-live tbody .badge.warn", has_text="−")).to_be_visible()
    writer.abort_transaction(30)
    page.goto("/brokers")
    expect(page.locator("#brokers-live tbody").first.locator("tr")).to_have_count(3)
    page.locator("#brokers-live").get_by_role("link", name="1", exact=True).first.click()
    page.get_by_label("Search settings").fill("num.partitions")
    expect(page.locator("#settings tbody tr:not([hidden])").first).to_contain_text("num.partitions")
    page.goto("/access")
    for heading in ("Users", "ACLs", "Quotas"):
        expect(page.get_by_role("heading", name=heading)).to_be_visible()


@pytest.fixture(scope="module")
def guarded(cluster: RunningCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    users = tmp_path_factory.mktemp("users") / "users"
    users.write_text(
        f"{users_file_line('ada', PASSWORD, 'change')}\n{users_file_line('bob', PASSWORD, 'read')}\n"
    )
    with RunningConsole(cluster.bootstrap, users_file=users) as running:
        yield running


def test_log_in_and_out(browser: Any, guarded: RunningConsole) -> None:
    context = browser.new_context(base_url=guarded.address, viewport={"width": 1280, "height": 860})
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    page.goto("/groups")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    page.get_by_label("Name").fill("ada")
    page.get_by_label("Password").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("The name or the password is wrong")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="Groups")).to_be_visible()
    page.goto("/topics")
    expect(page.get_by_role("link", name="New topic")).to_be_visible()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    page.goto("/topics")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    context.close()


def test_a_reader_is_offered_no_changes(
    browser: Any, guarded: RunningConsole, cluster: RunningCluster
) -> None:
    cluster.create_topic("read-only", partitions=1)
    produce(cluster, "read-only", ["seen"])
    context = browser.new_context(base_url=guarded.address, viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    page.goto("/topics/read-only/records")
    page.get_by_label("Name").fill("bob")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_label("Password").press("Enter")
    expect(page.locator("#records tbody tr")).to_contain_text("seen")
    assert page.get_by_role("link", name="Produce").count() == 0
    assert page.get_by_role("link", name="Delete").count() == 0
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0
    context.close()
