"""Tests and measurements are packages: modules are found by their whole names, from wherever they are run."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: brokers find what is here through PYTHONPATH
BROKEN_BROKER = ROOT / "tests" / "lab" / "broken_broker"
FILES = [
    path
    for folder in ("tests", "bench")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "node_modules" not in path.parts and path.parent != BROKEN_BROKER
]


def test_every_folder_is_a_package() -> None:
    assert {path.parent for path in FILES if not (path.parent / "__init__.py").exists()} == set()


def test_nobody_changes_where_modules_are_found() -> None:
    changes = re.compile(r"sys\.path\.(insert|append|extend)|sys\.path\[?.*\]? \+?= ")
    assert [str(path) for path in FILES if path != Path(__file__) and changes.search(path.read_text())] == []
