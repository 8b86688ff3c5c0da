"""House rules, kept as data: layers, sizes, names, annotations, no leftovers."""

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
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
    "delays": 3,
    "replication": 3,
    "shares": 3,
    "transactions": 3,
    "admin": 4,
    "schemas": 4,
    "broker": 4,
    "server": 5,
    "registry": 5,
    "console": 6,
    "gateways": 6,
    "pipelines": 6,
    "testing": 6,
    "lab": 7,
    "cli": 8,
}
#: the same within the broker, from the bottom up; `broker.broker` knows all of them, and none knows it
BROKER_LAYERS = (
    *("runtime", "metadata", "replicas", "maintenance", "replication"),
    *("coordinators", "requests", "telemetry"),
)
#: what starts a broker
STARTS_BROKERS = {"server/node.py"}
#: machines must not know these: time, randomness and I/O are arguments
PURE = {"controller", "delays", "groups", "replication", "shares", "transactions"}
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

#: whoever comes first reads every module of the source
pytestmark = pytest.mark.timeout(400)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def package_of(path: Path) -> str | None:
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else None


def imports(tree: ast.AST) -> list[tuple[str, str | None]]:
    """What is imported anywhere: within functions, for types only, and by `import_module` with a name."""
    found: list[tuple[str, str | None]] = []
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                found += [(alias.name, None) for alias in node.names]
            case ast.ImportFrom():
                assert node.level == 0, "imports are absolute"
                found += [(node.module or "", alias.name) for alias in node.names]
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module"),
                args=[
                    ast.Constant(value=str(name)) | ast.JoinedStr(values=[ast.Constant(value=str(name)), *_]),
                    *_,
                ],
            ):
                # Of a name that is put together, what it begins with.
                found.append((name.rstrip("."), None))
    return found


@pytest.mark.parametrize(
    "line",
    [
        "import tidelog.broker.broker",
        "from tidelog.broker.broker import Broker",
        "from tidelog.broker import broker as root",
        "if TYPE_CHECKING:\n    from tidelog.broker.broker import Broker",
        "def handle():\n    import tidelog.broker.broker",
        "part = import_module('tidelog.broker.broker').Broker",
        "part = importlib.import_module(f'tidelog.broker.broker.{name}')",
    ],
)
def test_every_way_to_the_whole_broker_is_seen(line: str) -> None:
    assert knows_the_broker(ast.parse(line))


def layer_faults(path: Path) -> Iterator[str]:
    """The imports of a module that its layer does not allow."""
    package = package_of(path)
    if package is None:
        return
    assert package in LAYERS, f"give {package} a layer"
    for module, name in imports(tree_of(path)):
        if not module.startswith("tidelog."):
            impure = package in PURE and module.split(".")[0] in IMPURE_MODULES
            if impure and (module, name) not in PURE_MAY_NAME:
                yield f"{package} is pure and may not import {module}"
            continue
        other = module.split(".")[1]
        if other == package or (package, other) in EXCEPTIONS_TO_LAYERS:
            continue
        if LAYERS[other] >= LAYERS[package]:
            yield f"{package} may not import {module}"
        if package in PURE and LAYERS[other] > PURE_LAYER_MAX:
            yield f"{package} is pure and may not import {module}"


def faults_in_files(faults_of: Callable[[Path], Iterable[str]]) -> list[str]:
    """What a rule says of each module, with the module's name before it."""
    assert len(FILES) > 500
    return [f"{path.relative_to(SOURCE)}: {fault}" for path in FILES for fault in faults_of(path)]


def test_layers() -> None:
    assert faults_in_files(layer_faults) == []


def knows_the_broker(tree: ast.AST) -> bool:
    return any("tidelog.broker.broker" in (module, f"{module}.{name}") for module, name in imports(tree))


def modules_of_the_broker() -> dict[str, set[str]]:
    """Which modules of the broker each of them imports, for types only too, as `subpackage.module`."""
    found: dict[str, set[str]] = {}
    for path in sorted((SOURCE / "broker").rglob("*.py")):
        named = {
            name.removeprefix("tidelog.broker.")
            for module, member in imports(tree_of(path))
            for name in (module, f"{module}.{member}")
            if name.startswith("tidelog.broker.")
        }
        found[".".join(path.relative_to(SOURCE / "broker").with_suffix("").parts)] = named
    # A name that is put together stands for its package.
    return {
        module: {each for name in named for each in (name, f"{name}.__init__") if each in found}
        for module, named in found.items()
    }


def test_layers_of_the_broker() -> None:
    """Downwards only, and nobody knows the whole."""
    upwards = []
    for module, named in modules_of_the_broker().items():
        if module in ("broker", "__init__"):
            continue
        layer = BROKER_LAYERS.index(module.partition(".")[0])
        for other in named:
            subpackage = other.partition(".")[0]
            if subpackage not in BROKER_LAYERS or BROKER_LAYERS.index(subpackage) > layer:
                upwards.append(f"{module} may not import {other}")
    assert upwards == []


def cycle_in(graph: dict[str, set[str]]) -> list[str]:
    """The nodes that no order puts behind all that they point to."""
    left = {node: set(others) for node, others in graph.items()}
    while free := [node for node, others in left.items() if not others]:
        for node in free:
            del left[node]
        for others in left.values():
            others.difference_update(free)
    return sorted(left)


def test_the_broker_has_no_cycles() -> None:
    assert cycle_in(modules_of_the_broker()) == []


def test_a_start_imports_no_coordinators() -> None:
    """They are a good part of all modules, and are imported when they are first asked for."""
    # A dispatcher makes the handlers of Produce and Fetch at once.
    handlers = "tidelog.broker.requests.handlers"
    program = f"import sys, tidelog.broker.broker, {handlers}.produce, {handlers}.fetch; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    late = ("tidelog.groups", "tidelog.transactions.machine", f"{handlers}.")
    loaded = [name for name in done.stdout.split() if name.startswith(late)]
    assert sorted(loaded) == [f"{handlers}.fetch", f"{handlers}.produce"]


def test_a_cycle_is_found() -> None:
    assert cycle_in({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]


def test_nobody_but_its_process_knows_the_whole_broker() -> None:
    knowing = {str(path.relative_to(SOURCE)) for path in FILES if knows_the_broker(tree_of(path))}
    assert knowing == STARTS_BROKERS


def shape_faults(path: Path) -> Iterator[str]:
    """What of a module is too long, has a name that says nothing, or is not explained."""
    lines = len(path.read_text().splitlines())
    if lines > MODULE_LINES_MAX:
        yield f"has {lines} lines"
    if path.stem in FORBIDDEN_NAMES:
        yield "has a name that says nothing"
    if not ast.get_docstring(tree_of(path)):
        yield "a file opens with its contract"
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{node.name} has {lines} lines"


def test_sizes_names_and_docstrings() -> None:
    assert faults_in_files(shape_faults) == []


def unfinished(path: Path) -> list[str]:
    found = re.finditer(
        r"\b(TODO|FIXME|XXX|NotImplementedError)\b|except( BaseException)?:\s*\n\s*pass\b", path.read_text()
    )
    return [match[0] for match in found]


def test_nothing_is_left_unfinished() -> None:
    assert faults_in_files(unfinished) == []


@pytest.mark.parametrize(
    ("faults_of", "text"),
    [
        (layer_faults, '"""A machine."""\nimport time\n'),
        (layer_faults, '"""A machine."""\nfrom tidelog.storage import partition_log\n'),
        (layer_faults, '"""A machine."""\nfrom tidelog.broker import broker\n'),
        (shape_faults, "import re\n"),
        (shape_faults, '"""Long."""\n' + "\n" * MODULE_LINES_MAX),
        (shape_faults, '"""Long."""\ndef long():\n' + "    pass\n" * FUNCTION_LINES_MAX),
        (unfinished, "raise NotImplementedError\n"),
        (unfinished, "try:\n    x()\nexcept:\n    pass\n"),
    ],
)
def test_a_fault_is_found(
    faults_of: Callable[[Path], Iterable[str]], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "SOURCE", tmp_path)
    path = tmp_path / "groups" / "planted.py"
    path.parent.mkdir()
    path.write_text(text)
    assert list(faults_of(path)) != []


def test_every_api_has_a_handler() -> None:
    from tidelog.protocol.apis import API_VERSIONS, APIS, PRIVATE_APIS

    handlers = {path.stem for path in (SOURCE / "broker" / "requests" / "handlers").glob("*.py")} - {
        "__init__"
    }
    apis = [*APIS.values(), *PRIVATE_APIS.values()]
    assert handlers == {api.module for api in apis if api.key != API_VERSIONS}


def test_the_project_stands_alone() -> None:
    """No file refers to anything outside the repository."""
    for path in ROOT.rglob("*.md"):
        if any(part.startswith(".") or part == "node_modules" for part in path.relative_to(ROOT).parts):
            continue
        assert "../shared" not in path.read_text(), path
