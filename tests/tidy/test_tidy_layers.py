"""House rules, kept as data: layers, sizes, names, annotations, no leftovers."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "tidelog"

#: a package imports only packages of lower layers, never a sibling
LAYERS = {
    "model": 0,
    "protocol": 1,
    "records": 1,
    "storage": 2,
    "coordination": 2,
    "security": 2,
    "client": 3,
    "controller": 3,
    "groups": 3,
    "replication": 3,
    "transactions": 3,
    "broker": 4,
    "server": 5,
    "console": 6,
    "pipelines": 6,
    "testing": 6,
    "lab": 7,
    "cli": 8,
}
#: machines must not know these: time, randomness and I/O are arguments
PURE = {"controller", "groups", "replication", "transactions"}
IMPURE_MODULES = {"time", "random", "asyncio", "socket", "os", "threading", "pathlib", "secrets"}
#: a pure module may name the type of a generator that it is given
PURE_MAY_NAME = {("random", "Random")}
#: pure machines stand on the words and the formats, not on the disk
PURE_LAYER_MAX = 1
EXCEPTIONS_TO_LAYERS = {
    # ordinary Kafka clients, which start a broker but do not reach into it
    ("testing", "server"),
    ("testing", "model"),
}
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "manager", "misc"}
MODULE_LINES_MAX = 800
FUNCTION_LINES_MAX = 70

FILES = sorted(SOURCE.rglob("*.py"))


def package_of(path: Path) -> str | None:
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else None


def imports(tree: ast.AST) -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found += [(node.module or "", alias.name) for alias in node.names]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_layers(path: Path) -> None:
    package = package_of(path)
    if package is None:
        return
    assert package in LAYERS, f"give {package} a layer"
    for module, name in imports(ast.parse(path.read_text())):
        if not module.startswith("tidelog."):
            if package in PURE and module.split(".")[0] in IMPURE_MODULES:
                assert (module, name) in PURE_MAY_NAME, f"{package} is pure and may not import {module}"
            continue
        other = module.split(".")[1]
        if other == package:
            continue
        if (package, other) in EXCEPTIONS_TO_LAYERS:
            continue
        assert LAYERS[other] < LAYERS[package], f"{package} may not import {module}"
        if package in PURE:
            assert LAYERS[other] <= PURE_LAYER_MAX, f"{package} is pure and may not import {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_sizes_names_and_docstrings(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MODULE_LINES_MAX
    assert path.stem not in FORBIDDEN_NAMES
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "a file opens with its contract"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            assert lines <= FUNCTION_LINES_MAX, f"{node.name} has {lines} lines"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_nothing_is_left_unfinished(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"\b(TODO|FIXME|XXX|NotImplementedError)\b", text)
    assert not re.search(r"except( BaseException)?:\s*\n\s*pass\b", text)


def test_every_api_has_a_handler() -> None:
    from tidelog.broker.dispatch import CONTROLLER_COMMAND, JOBS
    from tidelog.protocol.apis import API_VERSIONS, APIS

    handlers = {path.stem for path in (SOURCE / "broker" / "handlers").glob("*.py")} - {"__init__"}
    apis = [*APIS.values(), CONTROLLER_COMMAND, JOBS]
    assert handlers == {api.module for api in apis if api.key != API_VERSIONS}


def test_the_project_stands_alone() -> None:
    """No file refers to anything outside the repository."""
    for path in ROOT.rglob("*.md"):
        if any(part.startswith(".") or part == "node_modules" for part in path.relative_to(ROOT).parts):
            continue
        assert "../shared" not in path.read_text(), path
