"""Draws the pictures of the lab's page for docs/images: scenarios run, and are broken by hand.

python -m tests.browser.lab_screenshots docs/images
"""

import argparse
from pathlib import Path
from typing import Any

from tests.browser.browser_console import chromium_path
from tests.browser.browser_lab import RunningLab

WAIT_MS = 60_000
#: marks glide, records fly in
SETTLE_MS = 1_800
WIDE = {"width": 1280, "height": 900}
NARROW = {"width": 390, "height": 844}


class Camera:
    """Pages of one lab, and where their pictures go."""

    def __init__(self, browser: Any, address: str, folder: Path) -> None:
        self._browser = browser
        self._address = address
        self._folder = folder
        self.page = self._open(WIDE, "light")

    def _open(self, viewport: dict[str, int], scheme: str) -> Any:
        context = self._browser.new_context(
            base_url=self._address, viewport=viewport, color_scheme=scheme, reduced_motion="reduce"
        )
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        return page

    def take(self, name: str, *, settle_ms: int = SETTLE_MS) -> None:
        self.page.wait_for_timeout(settle_ms)
        self.page.screenshot(path=self._folder / f"lab-{name}.png")

    def take_elsewhere(
        self,
        name: str,
        path: str,
        *,
        viewport: dict[str, int] | None = None,
        scheme: str = "light",
        at: str = "",
    ) -> None:
        page = self._open(viewport or WIDE, scheme)
        page.goto(path)
        page.wait_for_timeout(SETTLE_MS)
        if at:
            page.locator(at).evaluate("part => part.scrollIntoView()")
        page.screenshot(path=self._folder / f"lab-{name}.png")
        page.context.close()

    def start(self, name: str) -> None:
        self.page.goto("/lab")
        self.page.locator(f"#{name} button").click()
        self.page.locator("[data-next]").wait_for()

    def act(self) -> None:
        self.page.get_by_role("button", name="Next: do it").click()

    def step(self) -> None:
        """Act, and wait until it is observed."""
        self.act()
        self.page.locator("[data-phase=observed], [data-phase=finished]").wait_for()

    def on(self) -> None:
        self.page.get_by_role("button", name="Next step").click()
        self.page.locator("[data-phase=predicted]").wait_for()


def draw(camera: Camera) -> None:
    page = camera.page
    camera.take_elsewhere("list", "/lab")
    camera.start("replication-and-failover")
    camera.take("predicted")
    camera.step()
    camera.on()
    camera.step()
    camera.take("failover")
    camera.take_elsewhere("failover-dark", "/lab/run", scheme="dark")
    for _ in range(3):
        camera.on()
        camera.step()
    led = page.locator("[data-lane=orders-0]").get_attribute("data-leader")
    dead, slow = sorted({"1", "2", "3"} - {led})
    page.get_by_role("button", name="Send 10 to orders").click()
    page.get_by_role("button", name="Add a consumer").click()
    page.locator("[data-consumer=you-1]").get_by_text("orders-0").wait_for()
    page.locator(f"[data-broker='{dead}']").get_by_role("button", name="Kill").click()
    page.locator(f"[data-replica='{dead}'].dead").wait_for()
    page.get_by_role("button", name="Send 10 to orders").click()
    page.get_by_text("51 records read").wait_for()
    page.locator(f"[data-broker='{slow}']").get_by_role("button", name="Slow").click()
    page.locator(".lab-story").evaluate("story => story.scrollTo(0, 0)")
    camera.take("play")
    page.locator(f"[data-broker='{dead}']").get_by_role("button", name="Start").click()
    camera.take_elsewhere("phone", "/lab/run", viewport=NARROW)
    camera.take_elsewhere("phone-cluster", "/lab/run", viewport=NARROW, at="#lab-brokers")
    camera.start("consumer-groups")
    for _ in range(4):
        camera.step()
        camera.on()
    camera.step()
    page.set_viewport_size({"width": 1280, "height": 1130})
    camera.take("consumer-groups")
    camera.take_elsewhere("phone-dark", "/lab/run", viewport=NARROW, scheme="dark", at="#lab-lanes")
    page.set_viewport_size(WIDE)
    camera.start("transactions")
    for _ in range(3):
        camera.step()
        camera.on()
    camera.act()
    page.locator(".lab-line.stable").first.wait_for()
    camera.take("transactions", settle_ms=0)


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    with RunningLab() as lab, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=["--no-sandbox"])
        draw(Camera(browser, lab.address, folder))
        browser.close()


if __name__ == "__main__":
    main()
