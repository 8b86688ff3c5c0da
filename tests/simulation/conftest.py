"""After a run: the table of deliberate faults and the seed that caught each."""

import logging
import re
from collections.abc import Iterator

import pytest

CAUGHT = re.compile(r"^(?P<mutant>.+?): seed (?P<seed>\d+): (?P<how>.+)$", re.MULTILINE)


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A world switches logging off, which is for its own time only."""
    level = logging.root.manager.disable
    yield
    logging.disable(level)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows = [
        (report.nodeid.rpartition("/")[2].partition("::")[0], *found.group("mutant", "seed", "how"))
        for report in terminalreporter.getreports("passed")
        if "is_noticed" in report.nodeid
        for found in CAUGHT.finditer(report.capstdout)
    ]
    if not rows:
        return
    terminalreporter.section("deliberate faults, each noticed")
    for where, mutant, seed, how in sorted(rows):
        world = where.removeprefix("test_simulation_").removesuffix(".py")
        terminalreporter.write_line(f"{world:13} {mutant:50.50} seed {seed:>4}  {how[:60]}")
    terminalreporter.write_line(f"{len(rows)} faults, all noticed")
