"""docs/architecture.md names only what exists: modules, classes, functions, their fields and parameters.

What stands in backticks is looked up in the source. Under a heading with the name of a package it is looked
up there; elsewhere anywhere. A call in backticks names parameters of the function or fields of the class.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tidelog.model.settings_table import BROKER_SETTINGS, TOPIC_SETTINGS

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "tidelog"
PAGE = ROOT / "docs" / "architecture.md"
TEMPLATES = list(SOURCE.rglob("templates"))
#: words of Python, of the store, of clients and of Spark
OTHER_WORDS = {
    *("await", "TYPE_CHECKING"),
    *("__consumer_offsets", "__transaction_state", "__tidelog_spark_commits"),
    *("tidelog", 'format("tidelog")'),
    *("changes", "changes/<n>", "controller", "controller-epoch", "live/<id>", "unfinished"),
    *("fetch.min.bytes", "fetch.max.wait.ms"),
}
#: what somebody writes who follows the steps in CONTRIBUTING.md
EXAMPLES = {
    "src/tidelog/broker/requests/handlers/update_features.py",
    "src/tidelog/lab/scenarios/my_scenario.py",
}
_FENCED = re.compile(r"```.*?```", re.DOTALL)
_HEADING = re.compile(r"^#+ (.+)$")
_QUOTED = re.compile(r"`([^`]+)`")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_CALL = re.compile(r"([A-Za-z_][\w.]*)\((.*)\)(?: -> .*)?", re.DOTALL)

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Names:
    """What some modules define: by name, what belongs to it."""

    def __init__(self, files: tuple[Path, ...]) -> None:
        #: of modules and classes: what can be written after a dot
        self.members: dict[str, set[str]] = defaultdict(set)
        self.parameters: dict[str, list[set[str]]] = defaultdict(list)
        self.all: set[str] = set()
        self._bases: dict[str, set[str]] = defaultdict(set)
        for path in files:
            module = path.parent.name if path.stem == "__init__" else path.stem
            self.all |= {module, path.parent.name}
            self.members[path.parent.name].add(module)
            self._read(module, ast.parse(path.read_text()))

    def _read(self, owner: str, tree: ast.AST) -> None:
        for node in ast.iter_child_nodes(tree):
            match node:
                case ast.ClassDef():
                    self._add(owner, node.name)
                    self._bases[node.name] |= {
                        found.id
                        for base in node.bases
                        for found in ast.walk(base)
                        if isinstance(found, ast.Name)
                    }
                    self._read(node.name, node)
                    fields = {
                        item.target.id
                        for item in node.body
                        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
                    }
                    self.parameters[node.name].append(fields)
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self._add(owner, node.name)
                    self._read_function(owner, node)
                case ast.Assign() | ast.AnnAssign():
                    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                        for found in ast.walk(target):
                            if isinstance(found, ast.Name):
                                self._add(owner, found.id)

    def _read_function(self, owner: str, node: Function) -> None:
        arguments = node.args
        named = {
            argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        }
        self.parameters[owner if node.name == "__init__" else node.name].append(named)
        for found in ast.walk(node):
            if (
                isinstance(found, ast.Attribute)
                and isinstance(found.ctx, ast.Store)
                and isinstance(found.value, ast.Name)
                and found.value.id == "self"
            ):
                self._add(owner, found.attr)

    def _add(self, owner: str, name: str) -> None:
        self.members[owner].add(name)
        self.all.add(name)

    def members_of(self, name: str, depth: int = 5) -> set[str]:
        """What can be written after a dot, what comes from base classes included."""
        found = set(self.members[name])
        if depth:
            for base in self._bases[name]:
                found |= self.members_of(base, depth - 1)
        return found

    def knows(self, dotted: str) -> bool:
        first, *rest = dotted.split(".")
        if first not in self.all:
            return False
        owner = first
        for name in rest:
            # An instance is called like its class, in small letters; what it is otherwise is not known here.
            owners = {each for each in self.members if each.lower() == owner.replace("_", "")} | {owner}
            if all(name not in self.members_of(each) for each in owners) and (
                any(self.members_of(each) for each in owners) or name not in self.all
            ):
                return False
            owner = name
        return True

    def takes(self, name: str, parameters: set[str]) -> bool:
        """Whether a function or class of this name has all these parameters or fields."""
        return any(parameters <= known for known in self.parameters[name.rpartition(".")[2]])


@cache
def names_in(packages: tuple[str, ...]) -> Names:
    return Names(tuple(path for package in packages for path in sorted((SOURCE / package).rglob("*.py"))))


def sections(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """The packages that a part of the page is about (all where it is about none), and its lines."""
    packages: tuple[str, ...] = ("",)
    for line in _FENCED.sub("", text).splitlines():
        heading = _HEADING.match(line)
        if heading:
            named = tuple(heading[1].split(", "))
            packages = named if all((SOURCE / name).is_dir() for name in named) else ("",)
        yield packages, line


def quoted(text: str) -> list[tuple[tuple[str, ...], str]]:
    parts: dict[tuple[str, ...], list[str]] = {}
    for packages, line in sections(text):
        parts.setdefault(packages, []).append(line)
    # What stands in backticks may go on in the next line.
    return [
        (packages, " ".join(found.split()))
        for packages, lines in parts.items()
        for found in _QUOTED.findall("\n".join(lines))
    ]


def is_path(text: str, packages: tuple[str, ...]) -> bool:
    folders = [ROOT, ROOT / "docs", SOURCE, *(SOURCE / package for package in packages)]
    folders += TEMPLATES
    text = text.replace("<api_name>", "produce").rstrip("/")
    return any((folder / text).exists() or (folder / f"{text}.py").exists() for folder in folders)


def parameters_of(call: str) -> set[str]:
    """The names in the parentheses of a call; no values, types or texts."""
    inner = re.sub(r"\"[^\"]*\"|\[[^\]]*\]", "", call)
    parts = (re.split(r"[=:]", part)[0].strip() for part in inner.split(","))
    return {part for part in parts if part.isidentifier()}


def fault(packages: tuple[str, ...], text: str) -> str:
    """What of it does not exist."""
    if text in OTHER_WORDS or text in BROKER_SETTINGS or text in TOPIC_SETTINGS or is_path(text, packages):
        return ""
    names, everywhere = names_in(packages), names_in(("",))
    called = _CALL.fullmatch(text)
    name = called[1] if called else text.partition(" = ")[0]
    path, _, attribute = name.rpartition("/")
    if path and is_path(f"{path}/{attribute.partition('.')[0]}", packages):
        name = attribute
    elif path or not _DOTTED.fullmatch(name):
        return f"`{text}` is nothing that could be looked up"
    first = name.partition(".")[0]
    scope = everywhere if (SOURCE / first).is_dir() or (not names.knows(name) and "." in name) else names
    if not scope.knows(name):
        return f"there is no `{name}` in {', '.join(packages) or 'the source'}"
    if called and not scope.takes(name, parameters_of(called[2])):
        return f"`{name}` does not take {sorted(parameters_of(called[2]))}"
    return ""


def test_the_paths_in_contributing_exist() -> None:
    text = _FENCED.sub("", (ROOT / "CONTRIBUTING.md").read_text())
    found = {each for each in _QUOTED.findall(text) if re.fullmatch(r"[\w./-]+/[\w.-]+", each)}
    assert len(found) > 30
    assert {each for each in found if not is_path(each, ("",))} == EXAMPLES


def test_what_the_page_names_exists() -> None:
    found = quoted(PAGE.read_text())
    assert len(found) > 200
    assert [told for packages, text in found if (told := fault(packages, text))] == []


@pytest.mark.parametrize(
    ("packages", "text"),
    [
        (("storage",), "partition_log.PartitionLog.appendix"),
        (("storage",), "append(view, header, base_offset, epoch_of_the_leader)"),
        (("storage",), "Peers"),
        (("broker",), "handlers/no_such_api"),
        (("model",), "ClusterImage(version, no_such_field)"),
        (("",), "broker.no_such_part"),
        (("",), "protocol/slice.py"),
        (("",), "num.partition"),
    ],
)
def test_what_does_not_exist_is_found(packages: tuple[str, ...], text: str) -> None:
    assert fault(packages, text)
