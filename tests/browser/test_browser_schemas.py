"""A schema's way through the console in a real browser: checked, registered, compared, read in a record."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.browser.browser_console import RunningConsole
from tests.browser.test_browser_console import expect
from tests.support.registry_process import RegistryProcess
from tidelog.testing.cluster import RunningCluster

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("browser")]
FIELDS: list[dict[str, Any]] = [{"name": "id", "type": "long"}, {"name": "customer", "type": "string"}]
#: the old schema has no amount, so records of it need a default
AMOUNT = {"name": "amount", "type": "double"}


def order(*more: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": [*FIELDS, *more]})


@pytest.fixture(scope="module")
def registry(cluster: RunningCluster) -> Iterator[str]:
    with RegistryProcess(cluster.bootstrap) as running:
        yield running.url


@pytest.fixture(scope="module")
def console_with_registry(cluster: RunningCluster, registry: str) -> Iterator[RunningConsole]:
    with RunningConsole(cluster.bootstrap, registry=registry) as running:
        yield running


def picture(page: Any, name: str) -> None:
    """Draws the page where somebody wants to look at it: TIDELOG_PICTURES names a folder."""
    folder = os.environ.get("TIDELOG_PICTURES")
    if folder:
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def test_a_schema_is_checked_registered_and_compared(
    open_page: Callable[[str], Any],
    console_with_registry: RunningConsole,
    cluster: RunningCluster,
    registry: str,
) -> None:
    page = open_page(console_with_registry.address)
    page.goto("/")
    page.locator("#menu").get_by_role("link", name="Schemas").click()
    page.get_by_role("link", name="Register the first one").click()
    page.locator("input[name=subject]").fill("bought-value")
    page.locator("textarea[name=schema]").fill(order())
    page.get_by_role("button", name="Register").click()
    expect(page.get_by_role("status")).to_contain_text("bought-value has the schema with id")
    page.get_by_role("link", name="New version").click()
    expect(page.locator("textarea[name=schema]")).to_have_value(json.dumps(json.loads(order()), indent=2))
    page.locator("textarea[name=schema]").fill(order(AMOUNT))
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_role("alert")).to_contain_text("READER_FIELD_MISSING_DEFAULT_VALUE")
    picture(page, "console-schema-check")
    page.locator("textarea[name=schema]").fill(order({**AMOUNT, "default": 0}))
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_role("status")).to_contain_text("It fits bought-value")
    page.get_by_role("button", name="Register").click()
    expect(page.get_by_role("heading", name="Version 2 against version 1")).to_be_visible()
    expect(page.locator(".diff .added").filter(has_text='"amount"')).to_have_count(1)
    picture(page, "console-schema")
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it fits a phone"
    picture(page, "console-schema-phone")
    page.set_viewport_size({"width": 1280, "height": 860})
    page.locator("select[name=version]").select_option("1")
    expect(page.locator("#schema")).not_to_contain_text("amount")
    expect(page.locator(".diff")).to_have_count(0)

    cluster.create_topic("bought", partitions=1)
    client = SchemaRegistryClient({"url": registry})
    write = AvroSerializer(client, order({**AMOUNT, "default": 0}))
    context = SerializationContext("bought", MessageField.VALUE)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    producer.produce("bought", write({"id": 7, "customer": "ann", "amount": 12.5}, context))
    assert producer.flush(30) == 0
    page.goto("/topics/bought/records")
    expect(page.locator("#records tbody tr")).to_contain_text('"customer": "ann"')
    page.goto("/schemas")
    expect(page.locator("tbody tr").filter(has_text="bought-value")).to_contain_text("2")
    picture(page, "console-schemas")
