"""Draws the pictures of docs/images: a cluster with some life in it, its console, and a browser.

python -m tests.browser.screenshots docs/images
"""

import argparse
import fcntl
import json
import os
import random
import shutil
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer

from tests.browser.browser_console import RunningConsole, chromium_path
from tidelog.console.login import users_file_line
from tidelog.testing.cluster import RunningCluster

LIFE_SECONDS = 60
TOPICS = {
    "orders": 6,
    "payments": 3,
    "inventory.updates": 3,
    "clicks": 4,
    "audit-log": 1,
    "emails.outbound": 2,
    "orders.dlq": 1,
}
#: small, so that a minute of life fills some
SEGMENT_SETTINGS = {"segment_bytes": 32_768, "index_interval_bytes": 2_048}
GROUPS = (
    ("billing", "orders", "billing-1", 0.03, "classic"),
    ("billing", "orders", "billing-2", 0.03, "classic"),
    ("analytics", "clicks", "analytics-1", 0.0, "consumer"),
    ("spark-kafka-source-8f2a", "orders", "spark", 0.005, "classic"),
)
CLICK = b"\x83\xa4page\xa5/cart\xa2ms\x2a\xa3bot\xc2"


def consume(
    bootstrap: str, group: str, topic: str, name: str, pause: float, protocol: str, until: float
) -> None:
    properties = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "client.id": name,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 1_000,
        "group.protocol": protocol,
    }
    consumer = Consumer(properties)
    consumer.subscribe([topic])
    while time.time() < until:
        if consumer.poll(0.2) is not None and pause:
            time.sleep(pause)
    consumer.close()


def produce(bootstrap: str, until: float) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    rng = random.Random(7)
    number = 0
    while time.time() < until:
        for _ in range(rng.randrange(3, 14)):
            number += 1
            order = {
                "order": number,
                "customer": f"c-{rng.randrange(900)}",
                "amount": round(rng.uniform(5, 900), 2),
            }
            trace = f"{rng.randrange(16**8):08x}".encode()
            producer.produce(
                "orders", json.dumps(order), key=f"eu-{rng.randrange(400)}", headers={"trace": trace}
            )
        producer.produce("clicks", CLICK, key=f"u{rng.randrange(99)}")
        producer.produce("payments", json.dumps({"order": number, "paid": True}), key=str(number))
        producer.produce(
            "inventory.updates", json.dumps({"stock": rng.randrange(99)}), key=f"A{rng.randrange(99)}"
        )
        if rng.random() < 0.3:
            producer.produce("audit-log", f"user {rng.randrange(50)} logged in")
            producer.produce("emails.outbound", bytes(rng.randrange(256) for _ in range(40)))
        producer.poll(0)
        time.sleep(0.1)
    producer.flush(10)


def leave_dead_letters(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(14):
        reason = "the value is not JSON of order INT" if number % 3 else "amount: amount > 0 does not hold"
        headers = {"tidelog.dlq.topic": "orders", "tidelog.dlq.partition": str(number % 6)}
        headers |= {"tidelog.dlq.offset": str(90 + 7 * number), "tidelog.dlq.pipeline": "clean-orders"}
        producer.produce(
            "orders.dlq", "{broken", key=f"eu-{number}", headers={**headers, "tidelog.dlq.reason": reason}
        )
    producer.flush(10)


@contextmanager
def noted_pipeline(folder: Path, bootstrap: str) -> Iterator[None]:
    """A pipeline as one that runs notes itself, beside one that failed."""
    now = int(time.time() * 1000)
    progress = {"name": "clean", "batch_id": 212, "processed_rows_per_second": 1840.0, "batch_ms": 96}
    progress |= {"lag": 118, "rows": 403_118, "dead_letters": 14}
    query: dict[str, object] = {"name": "clean", "reads": "topic orders", "writes": "topic payments"}
    query["does"] = ["decode json", "amount > 0"]
    status = {"kind": "clean", "started_ms": now - 1_260_000, "updated_ms": now, "dead_letters": "orders.dlq"}
    plan = {"bootstrap": bootstrap, "queries": [query]}
    for name, state, failure in (
        ("clean-orders", "running", None),
        ("archive-clicks", "failed", "OSError: no space left on device"),
    ):
        (folder / name).mkdir(parents=True)
        told = {**status, "name": name, "state": state, "failure": failure}
        told |= {"progress": [progress], "plan": plan} if failure is None else {"kind": "archive"}
        (folder / name / "status.json").write_text(json.dumps(told))
        (folder / name / "lock").touch()
    lock = os.open(folder / "clean-orders" / "lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(lock)


def draw(address: str, cluster: RunningCluster, folder: Path, guarded: str) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=["--no-sandbox"])

        def picture(
            name: str,
            path: str,
            *,
            width: int = 1280,
            scheme: Any = "light",
            tail: bool = False,
            until: str = "",
            console: str = address,
        ) -> None:
            height = 860 if width > 600 else 844
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
            page = context.new_page()
            page.goto(console + path, timeout=60_000)
            if tail:
                page.get_by_role("button", name="Live tail").click()
                page.locator("tr.fresh").first.wait_for(timeout=60_000)
                page.wait_for_timeout(2_500)
            if until:
                page.get_by_text(until).first.wait_for(timeout=60_000)
                page.wait_for_timeout(3_000)
            page.wait_for_timeout(600)
            page.screenshot(path=folder / f"console-{name}.png")
            context.close()

        picture("overview", "/")
        picture("overview-phone", "/", width=390, scheme="dark")
        picture("topics-dark", "/topics", scheme="dark")
        picture("topic", "/topics/orders")
        picture("records", "/topics/orders/records", tail=True)
        picture("record", "/topics/orders/records/0/5")
        picture("settings", "/topics/payments/settings")
        picture("segments", "/topics/orders/segments?partition=0&base=0")
        picture("produce", "/topics/payments/produce")
        picture("dead-letters", "/topics/orders.dlq/redrive")
        picture("pipelines", "/pipelines")
        picture("login", "/login", console=guarded)
        picture("groups", "/groups")
        picture("group-phone", "/group?id=billing", width=390)
        picture("records-phone", "/topics/orders/records", width=390)
        picture("group-dark", "/group?id=analytics", scheme="dark")
        picture("group", "/group?id=billing")
        victim = cluster.leader("orders", 0)
        cluster.kill(victim)
        picture("broker-lost", "/", until=f"Broker {victim} is away")
        cluster.start(victim)
        picture("events-dark", "/events", scheme="dark", until="in sync again")
        picture("brokers", "/brokers")
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    with RunningCluster(3, settings={"offsets.topic.num.partitions": "6"}) as cluster:
        for name, partitions in TOPICS.items():
            cluster.create_topic(name, partitions=partitions, **SEGMENT_SETTINGS)
        leave_dead_letters(cluster.bootstrap)
        until = time.time() + LIFE_SECONDS + 90
        threads = [threading.Thread(target=produce, args=(cluster.bootstrap, until), daemon=True)]
        threads += [
            threading.Thread(target=consume, args=(cluster.bootstrap, *group, until), daemon=True)
            for group in GROUPS
        ]
        scratch = Path(tempfile.mkdtemp(prefix="tidelog-pictures-"))
        (scratch / "people").write_text(users_file_line("ada", "unused-here", "change") + "\n")
        folders = {"data_folders": (cluster.data_directory,), "pipelines_folder": scratch / "pipelines"}
        with (
            noted_pipeline(scratch / "pipelines", cluster.bootstrap),
            RunningConsole(cluster.bootstrap, users_file=scratch / "people") as guarded,
            RunningConsole(cluster.bootstrap, **folders) as console,
        ):
            # The first page waits for the first look; what happens after it is news.
            urllib.request.urlopen(console.address, timeout=60).close()
            # One member comes late, for a rebalance in the story of its group.
            late = threads.pop(2)
            for thread in threads:
                thread.start()
            time.sleep(LIFE_SECONDS / 2)
            late.start()
            time.sleep(LIFE_SECONDS / 2)
            draw(console.address, cluster, folder, guarded.address)
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
