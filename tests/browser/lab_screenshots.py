"""Draws the pictures of the lab's page for docs/images: scenarios run, and are broken by hand.

python tests/browser/lab_screenshots.py docs/images
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from browser_console import chromium_path
from browser_lab import RunningLab

WAIT_MS = 60_000
#: marks glide, records fly in
SETTLE_MS = 1_800
NARROW = {"width": 390, "height": 844}


class Camera:
    """Pages of one lab, and where their pictures go."""

    def __init__(self, browser: Any, address: str, folder: Path) -> None:
        self._browser = browser
        self._address = address
        self._folder = folder
        self.page = self._open({"width": 1280, "height": 900}, "light")

    def _open(self, viewport: dict[str, int], scheme: str) -> Any:
        context = self._browser.new_context(
            base_url=self._address, viewport=viewport, color_scheme=scheme, reduced_motion="reduce"
        )
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        return page

    def take(self, name: str, *, full: bool = False) -> None:
        self.page.wait_for_timeout(SETTLE_MS)
        self.page.screenshot(path=self._folder / f"lab-{name}.png", full_page=full)

    def take_elsewhere(
        self,
        name: str,
        path: str,
        *,
        viewport: dict[str, int] | None = None,
        scheme: str = "light",
        full: bool = False,
    ) -> None:
        page = self._open(viewport or {"width": 1280, "height": 900}, scheme)
        page.goto(path)
        page.wait_for_timeout(SETTLE_MS)
        page.screenshot(path=self._folder / f"lab-{name}.png", full_page=full)
        page.context.close()

    def start(self, name: str) -> None:
        self.page.goto("/lab")
        self.page.locator(f"#{name} button").click()
        self.page.locator("[data-next]").wait_for()

    def step(self, until: Callable[[], None] | None = None) -> None:
        """Act, and come to where the next step, or the end, is told."""
        page = self.page
        page.get_by_role("button", name="Next: do it").click()
        page.locator("[data-phase=observed], [data-phase=finished]").wait_for()

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
    for _ in range(2):
        page.get_by_role("button", name="Send 10 to orders").click()
    page.get_by_role("button", name="Add a consumer").click()
    page.locator("[data-consumer=you-1]").get_by_text("orders-0").wait_for()
    page.locator("[data-broker='2']").get_by_role("button", name="Pause").click()
    page.locator("[data-broker='3']").get_by_role("button", name="Slow").click()
    camera.take("play")
    page.locator("[data-broker='2']").get_by_role("button", name="Resume").click()
    camera.take_elsewhere("phone", "/lab/run", viewport=NARROW, full=True)
    camera.start("consumer-groups")
    for _ in range(2):
        camera.step()
        camera.on()
    camera.step()
    camera.take("consumer-groups")
    camera.take_elsewhere("consumer-groups-phone-dark", "/lab/run", viewport=NARROW, scheme="dark", full=True)
    camera.start("transactions")
    camera.step()
    camera.take("transactions")


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
