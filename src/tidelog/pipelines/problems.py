"""What is wrong with a pipeline before it runs: one sentence each, and the place in the file it is about.

A place is the way to it, `("sources", "orders", "topic")`, as a person finds it: names of a mapping, numbers
of a list. `line_of` gives the line of a way, or of the nearest part of it that the file has.

What reads a file says the place of what it refuses with `at`, part by part; who knows the file's lines puts
the line before the sentence (`told_with_lines`).
"""

import ast
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidelog.client.faults import BadOption

#: names of a mapping and numbers of a list, from the top of the file
Where = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a pipeline cannot run, and where its file says so."""

    where: Where
    sentence: str

    def words(self, origin: Path | None, lines: Mapping[Where, int]) -> str:
        """The sentence behind the line of the file, or behind the option where no file says it."""
        line = line_of(self.where, lines)
        if origin is not None and line is not None:
            return f"{origin.name}:{line}: {self.sentence}"
        place = ".".join(str(part) for part in self.where if part != "options")
        return f"{place}: {self.sentence}" if place else self.sentence


@dataclass(frozen=True, slots=True)
class Findings:
    """What checks found: problems stop a pipeline, notes are for a person to know."""

    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()

    def __add__(self, other: "Findings") -> "Findings":
        return Findings(self.problems + other.problems, self.notes + other.notes)


class Misplaced(BadOption):
    """An option that cannot be used, and where a file says it."""

    def __init__(self, sentence: str, where: Where) -> None:
        super().__init__(sentence)
        self.where = where


@contextmanager
def at(*where: str | int) -> Iterator[None]:
    """What is refused within is about this part of the file, or about something in it."""
    try:
        yield
    except BadOption as fault:
        inner = fault.where if isinstance(fault, Misplaced) else ()
        raise Misplaced(str(fault), (*where, *inner)) from fault.__cause__


@contextmanager
def told_with_lines(origin: Path | None, lines: Mapping[Where, int]) -> Iterator[None]:
    """What is refused within names the file, and the line if it has a place there."""
    try:
        yield
    except BadOption as fault:
        if origin is None:
            raise
        line = line_of(fault.where, lines) if isinstance(fault, Misplaced) else None
        place = origin.name if line is None else f"{origin.name}:{line}"
        raise BadOption(f"{place}: {fault}") from fault.__cause__


def line_of(where: Where, lines: Mapping[Where, int]) -> int | None:
    """The line of a place, or of what it is in; None for a file that does not name the first part of it."""
    for length in range(len(where), 0, -1):
        if where[:length] in lines:
            return lines[where[:length]]
    return None


def yaml_lines(text: str) -> dict[Where, int]:
    """The line of every name and every entry of a YAML text that has been read before."""
    from ruamel.yaml import YAML

    found: dict[Where, int] = {}
    _yaml_node(YAML(typ="safe", pure=True).compose(text), (), found)
    return found


def _yaml_node(node: Any, where: Where, found: dict[Where, int]) -> None:
    if node is None or isinstance(node.value, str):
        return
    for number, child in enumerate(node.value):
        if isinstance(child, tuple):
            name, value = child
            inner = (*where, _plain(name.value))
            found[inner] = name.start_mark.line + 1
        else:
            value, inner = child, (*where, number)
            found[inner] = value.start_mark.line + 1
        _yaml_node(value, inner, found)


def python_lines(text: str) -> dict[Where, int]:
    """The same of a Python file that has its pipeline as a literal; nothing where it is made otherwise."""
    found: dict[Where, int] = {}
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.Assign):
            names = [target.id for target in statement.targets if isinstance(target, ast.Name)]
            if "pipeline" in names:
                _python_node(statement.value, (), found)
    return found


def _python_node(node: ast.expr, where: Where, found: dict[Where, int]) -> None:
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant):
                inner = (*where, _plain(key.value))
                found[inner] = key.lineno
                _python_node(value, inner, found)
    elif isinstance(node, ast.List | ast.Tuple):
        for number, entry in enumerate(node.elts):
            found[*where, number] = entry.lineno
            _python_node(entry, (*where, number), found)


def _plain(name: Any) -> str:
    """A name as a definition knows it."""
    return str(name).replace("-", "_")
