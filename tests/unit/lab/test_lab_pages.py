"""The pages of the lab have every scenario with every step, and the 90-minute path is one."""

import re
from pathlib import Path

import pytest

from tidelog.lab import catalog

DOCS = Path(__file__).parents[3] / "docs" / "lab"
INDEX = (DOCS / "index.md").read_text(encoding="utf-8")
PATH_MINUTES_MAX = 90


@pytest.mark.parametrize("name", catalog.names())
def test_every_scenario_has_its_page(name: str) -> None:
    page = (DOCS / "scenarios" / f"{name}.md").read_text(encoding="utf-8")
    for number, step in enumerate(catalog.load(name).steps, 1):
        assert f"## {number}. {step.title}" in page, "write the page anew: docs/lab/write_pages.py"
    assert f"(scenarios/{name}.md)" in INDEX


def test_the_path_takes_ninety_minutes() -> None:
    path = INDEX.split("## The 90-minute path")[1].split("## All scenarios")[0]
    rows = re.findall(r"^\| \[(\S+)\]\(scenarios/\S+\.md\) \| (\d+) \|", path, re.MULTILINE)
    assert len(rows) >= 12
    for name, minutes in rows:
        assert catalog.load(name).minutes == int(minutes), name
    total = sum(int(minutes) for _, minutes in rows)
    parts = [int(minutes) for minutes in re.findall(r"^### \d\. .*\((\d+) minutes\)$", path, re.MULTILINE)]
    assert sum(parts) == total <= PATH_MINUTES_MAX
