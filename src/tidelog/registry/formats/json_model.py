"""JSON Schema as the kinds that comparisons tell apart: each keyword that says something alone becomes a
schema.

A schema with several of `type`, `enum`, `const`, `not`, `oneOf`, … is the conjunction (ALL) of them;
several types are a choice (ANY); no keyword that constrains is EMPTY, as `true` is. References are followed
when they are needed, so schemas may refer to themselves. A node is made once for a place in a document:
comparisons know pairs again.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import referencing
import referencing.exceptions
import referencing.jsonschema

from tidelog.registry.faults import BadSchema
from tidelog.registry.formats.parsed import Referenced

#: where a document without an address of its own lives
_HOME = "urn:tidelog:schema"
_REFERENCES_FOLLOWED_MAX = 64

_STRING = {"minLength", "maxLength", "pattern", "format"}
_NUMBER = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_OBJECT = {
    *("properties", "required", "minProperties", "maxProperties", "dependencies", "patternProperties"),
    *("additionalProperties", "propertyNames", "dependentRequired", "dependentSchemas"),
    "unevaluatedProperties",
}
_ARRAY = {
    *("items", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains", "prefixItems"),
    *("unevaluatedItems", "minContains", "maxContains"),
}
_TYPES = ("string", "number", "integer", "object", "array", "boolean", "null")


class Kind(Enum):
    """What a node is."""

    EMPTY = "empty"
    FALSE = "false"
    STRING = "string"
    NUMBER = "number"
    BOOLEAN = "boolean"
    NULL = "null"
    OBJECT = "object"
    ARRAY = "array"
    ENUM = "enum"
    CONST = "const"
    NOT = "not"
    ALL = "allOf"
    ANY = "anyOf"
    ONE = "oneOf"


COMBINED = {Kind.ALL, Kind.ANY, Kind.ONE}


@dataclass(eq=False, slots=True)
class Node:
    """One schema: its kind, its keywords, and for combined ones what they combine."""

    kind: Kind
    keywords: Mapping[str, Any]
    resolver: Any = field(repr=False)
    parts: tuple["Node", ...] = ()
    #: of a type among others: the one it stands for
    integer: bool = False
    #: what it is equal by
    mark: str = ""

    @property
    def has_default(self) -> bool:
        return "default" in self.keywords


class Document:
    """A schema and those it refers to; makes nodes."""

    def __init__(self, value: Any, references: Sequence[tuple[Referenced, Any]]) -> None:
        self._nodes: dict[tuple[int, str], Node] = {}
        #: nodes are known by the identity of their JSON, which has to live as long as they do
        self._kept = [value, references]
        home = _resource(value)
        try:
            # Nothing is ever fetched: a registry without `retrieve` knows what it is given.
            registry: Any = referencing.Registry()
            for reference, content in references:
                found = _resource(content)
                names = {reference.name, found.id() or reference.name}
                registry = registry.with_resources((name, found) for name in names)
            address = home.id() or _HOME
            registry = registry.with_resource(address, home).crawl()
            self._resolver = registry.resolver(address)
        except (ValueError, TypeError, AttributeError, KeyError) as fault:
            raise BadSchema(f"its addresses cannot be read: {fault!r}") from fault
        except referencing.exceptions.Unresolvable as fault:
            raise BadSchema(f"it refers to what is not there: {fault}") from fault
        self.root = self.node(value, self._resolver)

    def node(self, value: Any, resolver: Any, part: str = "") -> Node:
        """The node of a JSON value where `resolver` stands; references are followed."""
        for _ in range(_REFERENCES_FOLLOWED_MAX):
            if not (isinstance(value, dict) and isinstance(value.get("$ref"), str)):
                break
            found = self._looked_up(value["$ref"], resolver)
            if _stands_beside_reference(value, self._modern):
                break
            value, resolver = found.contents, found.resolver
        else:
            raise BadSchema("a reference leads through too many others")
        key = (id(value), part)
        known = self._nodes.get(key)
        if known is None:
            known = self._nodes[key] = self._made(value, resolver)
        return known

    @property
    def _modern(self) -> bool:
        value = self._kept[0]
        dialect = str(value.get("$schema", "")) if isinstance(value, dict) else ""
        return "draft/20" in dialect

    def _looked_up(self, reference: str, resolver: Any) -> Any:
        try:
            return resolver.lookup(reference)
        except referencing.exceptions.Unresolvable as fault:
            raise BadSchema(f"{reference!r} is not there: name it in the references") from fault
        except (ValueError, TypeError, AttributeError, KeyError) as fault:
            raise BadSchema(f"{reference!r} cannot be looked up: {fault!r}") from fault

    def _made(self, value: Any, resolver: Any) -> Node:
        if value is True:
            return Node(Kind.EMPTY, {}, resolver, mark="true")
        if value is False:
            return Node(Kind.FALSE, {}, resolver, mark="false")
        if not isinstance(value, dict):
            raise BadSchema("a schema is an object, true or false")
        identity = value.get("$id")
        if isinstance(identity, str) and value is not self._kept[0]:
            resolver = resolver.in_subresource(_resource(value))
        mark = json.dumps(value, sort_keys=True)
        parts = self._parts(value, resolver)
        if not parts:
            return Node(Kind.EMPTY, value, resolver, mark=mark)
        if len(parts) == 1:
            parts[0].mark = mark
            return parts[0]
        return Node(Kind.ALL, value, resolver, tuple(parts), mark=mark)

    def _parts(self, value: dict[str, Any], resolver: Any) -> list[Node]:
        """A node for each keyword that constrains on its own."""
        parts: list[Node] = []
        if isinstance(value.get("$ref"), str):
            found = self._looked_up(value["$ref"], resolver)
            parts.append(self.node(found.contents, found.resolver))
        if "enum" in value:
            parts.append(Node(Kind.ENUM, value, resolver, mark=_mark("enum", value["enum"])))
        for kind in (Kind.ALL, Kind.ANY, Kind.ONE):
            rows = value.get(kind.value)
            if rows is None:
                continue
            if not isinstance(rows, list):
                raise BadSchema(f"{kind.value} is a list")
            inner = tuple(self.node(row, resolver) for row in rows)
            parts.append(Node(kind, value, resolver, inner, mark=_mark(kind.value, rows)))
        if "not" in value:
            parts.append(Node(Kind.NOT, value, resolver, mark=_mark("not", value["not"])))
        if "const" in value:
            parts.append(Node(Kind.CONST, value, resolver, mark=_mark("const", value["const"])))
        parts += self._of_types(value, resolver)
        return parts

    def _of_types(self, value: dict[str, Any], resolver: Any) -> list[Node]:
        kinds = value.get("type")
        if isinstance(kinds, list):
            rows = tuple(_of_type(str(kind), value, resolver) for kind in kinds)
            if len(rows) == 1:
                return list(rows)
            return [Node(Kind.ANY, value, resolver, rows, mark=_mark("type", kinds))]
        if isinstance(kinds, str):
            return [_of_type(kinds, value, resolver)]
        names = set(value)
        for keywords, kind in (
            (_ARRAY, "array"),
            (_OBJECT, "object"),
            (_NUMBER, "number"),
            (_STRING, "string"),
        ):
            if names & keywords:
                return [_of_type(kind, value, resolver)]
        return []


def _of_type(kind: str, value: Mapping[str, Any], resolver: Any) -> Node:
    if kind not in _TYPES:
        raise BadSchema(f"{kind[:40]!r} is no type")
    mark = _mark(kind, value)
    if kind == "integer":
        return Node(Kind.NUMBER, value, resolver, integer=True, mark=mark)
    return Node(Kind(kind), value, resolver, mark=mark)


def _mark(kind: str, value: Any) -> str:
    return f"{kind} {json.dumps(value, sort_keys=True)}"


def _resource(value: Any) -> Any:
    try:
        return referencing.Resource.from_contents(value, default_specification=referencing.jsonschema.DRAFT7)
    except referencing.exceptions.CannotDetermineSpecification as fault:
        raise BadSchema(f"its $schema is not known: {fault}") from fault


def _stands_beside_reference(value: Mapping[str, Any], modern: bool) -> bool:
    """Whether keywords beside a $ref count: they do since 2019-09."""
    return modern and any(name in value for name in (*_CONSTRAINING,))


_CONSTRAINING = {
    "type",
    "enum",
    "const",
    "not",
    "allOf",
    "anyOf",
    "oneOf",
    *_STRING,
    *_NUMBER,
    *_OBJECT,
    *_ARRAY,
}
