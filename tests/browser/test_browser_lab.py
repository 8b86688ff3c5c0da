"""The lab's page in a real browser: scenarios step by step, and every fault button on their clusters."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.browser.browser_lab import RunningLab

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("browser")]

WAIT_MS = 45_000


def expect(locator: Any) -> Any:
    from playwright.sync_api import expect as playwright_expect

    playwright_expect.set_options(timeout=WAIT_MS)
    return playwright_expect(locator)


@pytest.fixture(scope="module")
def lab(browser: Any) -> Iterator[RunningLab]:
    with RunningLab() as running:
        yield running


@pytest.fixture
def page(open_page: Callable[[str], Any], lab: RunningLab) -> Any:
    return open_page(lab.address)


def start(page: Any, name: str) -> None:
    """From the list to the prediction of the first step."""
    page.goto("/lab")
    page.locator(f"#{name}").get_by_role("button", name="Start").click()
    expect(page.get_by_role("button", name="Next: do it")).to_be_visible()


def act(page: Any) -> None:
    """Let the step that is told happen, and see that its checks held."""
    page.get_by_role("button", name="Next: do it").click()
    page.locator("[data-phase=observed], [data-phase=finished]").wait_for()
    expect(page.locator(".lab-observed .lab-checks .held").first).to_be_visible()
    expect(page.locator(".lab-observed .lab-checks .failed")).to_have_count(0)


def go_on(page: Any) -> None:
    page.get_by_role("button", name="Next step").click()
    page.locator("[data-phase=predicted]").wait_for()


def broker(page: Any, number: int | str) -> Any:
    return page.locator(f"[data-broker='{number}']")


def press(card: Any, name: str) -> None:
    card.get_by_role("button", name=name, exact=True).click()


def lane(page: Any, name: str) -> Any:
    return page.locator(f"[data-lane={name}]")


def leader(page: Any, name: str) -> int:
    return int(lane(page, name).get_attribute("data-leader"))


def finish(page: Any, steps: int) -> None:
    for number in range(1, steps + 1):
        act(page)
        if number < steps:
            go_on(page)
    expect(page.get_by_text("The cluster is yours now")).to_be_visible()


def test_replication_is_told_step_by_step_and_then_broken_by_hand(page: Any, lab: RunningLab) -> None:
    start(page, "replication-and-failover")
    expect(page.get_by_role("heading", name="Three copies")).to_be_visible()
    expect(page.get_by_text("three logs of the same length, equal to the last byte")).to_be_visible()
    act(page)
    for row in page.locator("[data-lane=orders-0] [data-replica]").all():
        expect(row.locator(".lab-cell.committed")).to_have_count(20)
    expect(lane(page, "orders-0")).to_contain_text("high watermark 20")
    go_on(page)
    first = leader(page, "orders-0")
    act(page)
    expect(lane(page, "orders-0")).not_to_have_attribute("data-leader", str(first))
    expect(broker(page, first)).to_contain_text("down")
    expect(page.locator("#lab-timeline")).to_contain_text(f"Broker {first} is killed")
    go_on(page)
    act(page)
    behind = lane(page, "orders-0").locator(f"[data-replica='{first}']")
    expect(behind.locator(".lab-cell.missing")).to_have_count(10)
    for _ in range(2):
        go_on(page)
        act(page)
    expect(page.get_by_text("Every check held.")).to_be_visible()
    assert lab.tour.done[-1] == "replication-and-failover"
    break_it(page)


def break_it(page: Any) -> None:
    """The buttons of brokers, on a cluster that nobody checks any more."""
    led = leader(page, "orders-0")
    press(broker(page, led), "Kill")
    expect(broker(page, led)).to_contain_text("down")
    expect(lane(page, "orders-0")).not_to_have_attribute("data-leader", str(led))
    press(broker(page, led), "Start")
    expect(broker(page, led)).to_contain_text("running")
    expect(lane(page, "orders-0")).to_contain_text("ISR 1, 2, 3")

    led = leader(page, "orders-0")
    others = [number for number in (1, 2, 3) if number != led]
    press(broker(page, others[0]), "Pause")
    expect(broker(page, others[0])).to_contain_text("paused")
    press(broker(page, others[0]), "Resume")
    expect(broker(page, others[0])).to_contain_text("running")
    press(broker(page, others[1]), "Slow")
    expect(broker(page, others[1])).to_contain_text("200 ms late")
    press(broker(page, others[1]), "Fast again")
    expect(broker(page, others[1])).not_to_contain_text("late")
    press(broker(page, others[1]), "Cut off")
    expect(broker(page, others[1])).to_contain_text("cut off")
    press(broker(page, others[1]), "Reconnect")
    expect(broker(page, others[1])).not_to_contain_text("cut off")
    expect(lane(page, "orders-0")).to_contain_text("ISR 1, 2, 3")

    led = leader(page, "orders-0")
    press(broker(page, led), "Expire session")
    expect(page.locator("#lab-timeline")).to_contain_text(f"Broker {led} is paused until its session ends")
    expect(lane(page, "orders-0")).not_to_have_attribute("data-leader", str(led))
    expect(broker(page, led)).to_contain_text("running")
    expect(lane(page, "orders-0")).to_contain_text("ISR 1, 2, 3")

    led = leader(page, "orders-0")
    press(broker(page, led), "Restart")
    expect(page.locator("#lab-timeline")).to_contain_text(f"Broker {led} is stopped cleanly")
    expect(page.locator("#lab-timeline")).to_contain_text(f"Broker {led} is started")
    expect(lane(page, "orders-0")).not_to_have_attribute("data-leader", str(led))
    expect(broker(page, led)).to_contain_text("running")
    expect(lane(page, "orders-0")).to_contain_text("ISR 1, 2, 3")
    expect(page.locator("#lab-message")).to_be_hidden()


def test_consumers_are_paused_killed_and_replaced(page: Any) -> None:
    start(page, "keys-and-ordering")
    finish(page, 4)
    page.get_by_role("button", name="Add a consumer").click()
    page.get_by_role("button", name="Add a consumer").click()
    first, second = page.locator("[data-consumer=you-1]"), page.locator("[data-consumer=you-2]")
    expect(first.locator(".replica")).not_to_have_count(0)
    expect(second.locator(".replica")).not_to_have_count(0)
    page.get_by_role("button", name=re.compile("^Send 10 to ")).first.click()
    expect(first).to_contain_text(re.compile(r"[1-9]\d* records? read"))
    press(first, "Pause")
    expect(first).to_contain_text("paused")
    # Its session of 3 s ends, and the other one has everything.
    everything = page.locator("[data-lane]").count()
    expect(second.locator(".replica")).to_have_count(everything)
    press(first, "Resume")
    expect(first).to_contain_text("running")
    expect(second.locator(".replica")).not_to_have_count(everything)
    press(second, "Kill")
    expect(second).to_contain_text("down")
    expect(second.get_by_role("button")).to_have_count(0)
    expect(first.locator(".replica")).to_have_count(everything)
    press(first, "Stop")
    expect(first).to_contain_text("down")


def test_it_runs_by_itself_and_the_console_follows_its_cluster(page: Any) -> None:
    start(page, "keys-and-ordering")
    page.get_by_role("link", name="Topics", exact=True).click()
    expect(page.get_by_role("link", name="rides")).to_be_visible()
    page.go_back()
    page.get_by_role("button", name="Auto").click()
    expect(page.get_by_role("button", name="Auto")).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_text("Every check held.")).to_be_visible()
    colours = page.locator("[data-lane] .lab-cell[class*=hue-]")
    expect(colours.first).to_be_visible()
    page.get_by_role("button", name="End", exact=True).click()
    expect(page.get_by_text("The scenario is over, and its cluster is gone.")).to_be_visible()
    expect(page.get_by_role("link", name="Topics", exact=True)).to_have_count(0)
    expect(page.locator("#keys-and-ordering")).to_contain_text("done")


def test_what_cannot_be_done_is_said(browser: Any, lab: RunningLab) -> None:
    # Not a watched page: the browser notes a refusal as an error.
    page = browser.new_context(base_url=lab.address).new_page()
    page.set_default_timeout(WAIT_MS)
    start(page, "keys-and-ordering")
    # In one turn of the page: the cards come with the first look at the cluster and change with every later.
    tamper = "button => { button.form.elements.namedItem('target').value = '7'; button.click(); }"
    broker(page, 1).get_by_role("button", name="Kill", exact=True).evaluate(tamper)
    expect(page.locator("#lab-message")).to_have_text("That cannot be done: there is no broker '7'")
    page.context.close()


def test_it_fits_a_phone(open_page: Callable[[str], Any], lab: RunningLab) -> None:
    page = open_page(lab.address)
    page.set_viewport_size({"width": 390, "height": 844})
    for path in ("/lab", "/lab/run"):
        page.goto(path)
        page.wait_for_load_state("load")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
