"""A small language to pick records: `value.amount > 100 and key contains "eu-"`.

    expression   or-chain of and-chains; `not`, parentheses
    comparison   path, then one of == != < <= > >= contains startswith, then a literal
    path         key  value  value.a.b  value.items.0  headers.name  offset  partition  timestamp
    literal      "text", 'text', a number, true, false, null, or a bare word
    anything else  a word or quoted text alone: records with it in key or value

`value` as a whole is its text; with a path behind it, the field of its JSON or MessagePack. A path that does
not exist equals null and is smaller and larger than nothing. Expressions are parsed once (ValueError says
what is wrong) and then asked for each record; they cannot loop and have a bound on their size.
"""

import operator
import re
from collections.abc import Callable
from typing import Any

from tidelog.console.decoding import structure
from tidelog.console.record_view import RecordView
from tidelog.console.schema_registry import SchemaRegistry

EXPRESSION_CHARACTERS_MAX = 1_000
DEPTH_MAX = 20

Predicate = Callable[[RecordView], bool]

_TOKEN = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
    r"""|(?P<operator>==|!=|<=|>=|<|>|\(|\))"""
    r"""|(?P<word>[^\s()<>=!"']+))"""
)
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_OPERATORS = {"==", "!=", *_ORDER, "contains", "startswith"}
_ROOTS = ("key", "value", "headers", "offset", "partition", "timestamp")
_LITERAL_WORDS = {"true": True, "false": False, "null": None}


def compile_filter(expression: str, schemas: SchemaRegistry | None = None) -> Predicate | None:
    """The test for records that an expression means; None for an empty one."""
    if not expression.strip():
        return None
    if len(expression) > EXPRESSION_CHARACTERS_MAX:
        raise ValueError(f"the filter is longer than {EXPRESSION_CHARACTERS_MAX} characters")
    parser = _Parser(_tokens(expression), schemas)
    predicate = parser.disjunction(0)
    if parser.position != len(parser.tokens):
        raise ValueError(f"{parser.tokens[parser.position][1]!r} was not expected in the filter")
    return predicate


def _tokens(expression: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    position = 0
    text = expression.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"the filter cannot be read from {text[position : position + 20]!r} on")
        kind = match.lastgroup
        assert kind is not None
        found.append((kind, match[kind]))
        position = match.end()
    return found


class _Parser:
    def __init__(self, tokens: list[tuple[str, str]], schemas: SchemaRegistry | None) -> None:
        self._schemas = schemas
        self.tokens = tokens
        self.position = 0

    def peek(self) -> tuple[str, str]:
        return self.tokens[self.position] if self.position < len(self.tokens) else ("end", "")

    def take(self) -> tuple[str, str]:
        token = self.peek()
        if token[0] == "end":
            raise ValueError("the filter ends too early")
        self.position += 1
        return token

    def accept(self, word: str) -> bool:
        if self.peek() in (("word", word), ("operator", word)):
            self.position += 1
            return True
        return False

    def disjunction(self, depth: int) -> Predicate:
        if depth > DEPTH_MAX:
            raise ValueError("the filter is nested too deep")
        parts = [self.conjunction(depth)]
        while self.accept("or"):
            parts.append(self.conjunction(depth))
        return parts[0] if len(parts) == 1 else lambda record: any(part(record) for part in parts)

    def conjunction(self, depth: int) -> Predicate:
        parts = [self.negation(depth)]
        while self.accept("and"):
            parts.append(self.negation(depth))
        return parts[0] if len(parts) == 1 else lambda record: all(part(record) for part in parts)

    def negation(self, depth: int) -> Predicate:
        if depth > DEPTH_MAX:
            raise ValueError("the filter is nested too deep")
        if self.accept("not"):
            inner = self.negation(depth + 1)
            return lambda record: not inner(record)
        if self.accept("("):
            inner = self.disjunction(depth + 1)
            if not self.accept(")"):
                raise ValueError("a parenthesis is not closed in the filter")
            return inner
        return self.comparison()

    def comparison(self) -> Predicate:
        kind, word = self.take()
        schemas = self._schemas
        root, *path = word.split(".")
        if kind == "operator":
            raise ValueError(f"{word!r} was not expected in the filter")
        if kind == "text" or root not in _ROOTS:
            return _search(_unquoted(word) if kind == "text" else word)
        if self.peek()[1] not in _OPERATORS:
            return lambda record: field_of(record, root, path, schemas) not in (None, "", False)
        comparator = self.take()[1]
        literal = self.literal()
        return lambda record: _compare(comparator, field_of(record, root, path, schemas), literal)

    def literal(self) -> Any:
        kind, word = self.take()
        if kind == "text":
            return _unquoted(word)
        if kind == "operator":
            raise ValueError(f"{word!r} was not expected in the filter")
        if word in _LITERAL_WORDS:
            return _LITERAL_WORDS[word]
        for number in (int, float):
            try:
                return number(word)
            except ValueError:
                continue
        return word


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1])


def _search(word: str) -> Predicate:
    needle = word.encode()
    return lambda record: needle in (record.key or b"") or needle in (record.value or b"")


def field_of(record: RecordView, root: str, path: list[str], schemas: SchemaRegistry | None = None) -> Any:
    """What a path means for a record; None where there is nothing."""
    if root == "headers":
        return next((_text(value) for name, value in record.headers if name == ".".join(path)), None)
    if root in ("key", "value"):
        data = record.key if root == "key" else record.value
        if not path:
            return _text(data)
        found = structure(data, schemas)
        for step in path:
            if isinstance(found, dict):
                found = found.get(step)
            elif isinstance(found, list) and step.isdigit() and int(step) < len(found):
                found = found[int(step)]
            else:
                return None
        return found
    return {"offset": record.offset, "partition": record.partition, "timestamp": record.timestamp_ms}[root]


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", errors="replace")


def _compare(comparator: str, found: Any, literal: Any) -> bool:
    if comparator in ("==", "!="):
        return _equal(found, literal) == (comparator == "==")
    if comparator == "contains":
        if isinstance(found, list):
            return literal in found
        return found is not None and str(literal) in str(found)
    if comparator == "startswith":
        return found is not None and str(found).startswith(str(literal))
    if isinstance(literal, int | float) and isinstance(found, str):
        try:
            found = float(found)
        except ValueError:
            return False
    try:
        return found is not None and _ORDER[comparator](found, literal)
    except TypeError:
        return False


def _equal(found: Any, literal: Any) -> bool:
    if isinstance(found, str) and isinstance(literal, int | float) and not isinstance(literal, bool):
        return found == str(literal)
    return bool(found == literal) and isinstance(found, bool) == isinstance(literal, bool)
