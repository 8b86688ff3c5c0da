"""Changes of what objects may be: required properties, properties, dependencies, what else may be in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidelog.registry.formats.json_model import Kind, Node
from tidelog.registry.formats.json_scalar_difference import limit_change

if TYPE_CHECKING:
    from tidelog.registry.formats.json_difference import Comparison


class ObjectDifference:
    """The walk through two objects' schemas."""

    def __init__(self, walk: Comparison, old: Node, new: Node) -> None:
        self._walk = walk
        self._old = old
        self._new = new

    def run(self) -> None:
        self._required()
        self._properties()
        self._dependencies()
        self._additional()
        self._unevaluated()
        for name, kind in (("maxProperties", "MAX_PROPERTIES"), ("minProperties", "MIN_PROPERTIES")):
            for change, keyword in limit_change(name, kind, self._old.keywords, self._new.keywords):
                self._walk.add(change, keyword)

    def _required(self) -> None:
        walk, before, after = self._walk, _required(self._old), _required(self._new)
        new_properties = _table(self._new, "properties")
        with walk.at("required"):
            for name in _table(self._old, "properties"):
                if name not in new_properties or (name in before) == (name in after):
                    continue
                if name in before:
                    walk.add("REQUIRED_ATTRIBUTE_REMOVED", name)
                elif walk.new_node(new_properties[name], self._new).has_default:
                    walk.add("REQUIRED_ATTRIBUTE_WITH_DEFAULT_ADDED", name)
                else:
                    walk.add("REQUIRED_ATTRIBUTE_ADDED", name)

    def _properties(self) -> None:
        before, after = _table(self._old, "properties"), _table(self._new, "properties")
        with self._walk.at("properties"):
            for name in dict.fromkeys((*before, *after)):
                with self._walk.at(name):
                    if name not in after:
                        self._removed(name, self._walk.old_node(before[name], self._old))
                    elif name not in before:
                        self._added(name, self._walk.new_node(after[name], self._new))
                    else:
                        old = self._walk.old_node(before[name], self._old)
                        self._walk.compare(old, self._walk.new_node(after[name], self._new))

    def _removed(self, name: str, old: Node) -> None:
        walk = self._walk
        if self._is_open(self._new, new=True):
            walk.add("PROPERTY_REMOVED_FROM_OPEN_CONTENT_MODEL")
            return
        partly = self._partly_open(self._new, name, new=True)
        if partly is None:
            kind = "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"
            if old.kind is Kind.FALSE:
                kind = "PROPERTY_WITH_FALSE_REMOVED_FROM_CLOSED_CONTENT_MODEL"
            walk.add(kind)
            return
        found = walk.tried(old, partly)
        walk.extend(found)
        covered = "NOT" if walk.harmful(found) else "IS"
        walk.add(f"PROPERTY_REMOVED_{covered}_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL")

    def _added(self, name: str, new: Node) -> None:
        walk, required = self._walk, name in _required(self._new)
        if self._is_open(self._old, new=False):
            if new.kind is Kind.EMPTY:
                walk.add("PROPERTY_WITH_EMPTY_SCHEMA_ADDED_TO_OPEN_CONTENT_MODEL")
                return
            place = "OPEN_CONTENT_MODEL"
        else:
            partly = self._partly_open(self._old, name, new=False)
            if partly is not None:
                found = walk.tried(partly, new)
                walk.extend(found)
                covered = "NOT" if walk.harmful(found) else "IS"
                walk.add(f"PROPERTY_ADDED_{covered}_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL")
            place = "UNOPEN_CONTENT_MODEL"
        if not required:
            walk.add(f"OPTIONAL_PROPERTY_ADDED_TO_{place}")
        elif new.has_default:
            walk.add(f"REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_{place}")
        else:
            walk.add(f"REQUIRED_PROPERTY_ADDED_TO_{place}")

    def _dependencies(self) -> None:
        walk = self._walk
        names_before, schemas_before = _dependencies(self._old)
        names_after, schemas_after = _dependencies(self._new)
        with walk.at("dependencies"):
            for name in dict.fromkeys((*names_before, *names_after)):
                if name not in names_after:
                    walk.add("DEPENDENCY_ARRAY_REMOVED", name)
                elif name not in names_before:
                    walk.add("DEPENDENCY_ARRAY_ADDED", name)
                elif names_before[name] != names_after[name]:
                    before, after = names_before[name], names_after[name]
                    change = "EXTENDED" if before < after else "NARROWED" if after < before else "CHANGED"
                    walk.add(f"DEPENDENCY_ARRAY_{change}", name)
            for name in dict.fromkeys((*schemas_before, *schemas_after)):
                if name not in schemas_after:
                    walk.add("DEPENDENCY_SCHEMA_REMOVED", name)
                elif name not in schemas_before:
                    walk.add("DEPENDENCY_SCHEMA_ADDED", name)
                else:
                    with walk.at(name):
                        old = walk.old_node(schemas_before[name], self._old)
                        walk.compare(old, walk.new_node(schemas_after[name], self._new))

    def _additional(self) -> None:
        permitted_before, before = _additional(self._old, "additionalProperties")
        permitted_after, after = _additional(self._new, "additionalProperties")
        with self._walk.at("additionalProperties"):
            if permitted_before != permitted_after:
                self._walk.add(f"ADDITIONAL_PROPERTIES_{'ADDED' if permitted_after else 'REMOVED'}")
            elif before is None and after is not None:
                self._walk.add("ADDITIONAL_PROPERTIES_NARROWED")
            elif after is None and before is not None:
                self._walk.add("ADDITIONAL_PROPERTIES_EXTENDED")
            elif before is not None and after is not None:
                old = self._walk.old_node(before, self._old)
                self._walk.compare(old, self._walk.new_node(after, self._new))

    def _unevaluated(self) -> None:
        compare_unevaluated(self._walk, self._old, self._new, "unevaluatedProperties", "PROPERTIES")

    def _is_open(self, node: Node, *, new: bool) -> bool:
        permitted, schema = _additional(node, "additionalProperties")
        if not permitted or schema is not None or node.keywords.get("patternProperties"):
            return False
        rest = node.keywords.get("unevaluatedProperties", True)
        return self._node(rest, node, new=new).kind is Kind.EMPTY

    def _partly_open(self, node: Node, name: str, *, new: bool) -> Node | None:
        """What a property must be that the schema does not name; None where there may be none."""
        for pattern, schema in _table(node, "patternProperties").items():
            if self._walk.pattern_covers(pattern, name):
                return self._node(schema, node, new=new)
        permitted, schema = _additional(node, "additionalProperties")
        if schema is not None:
            return self._node(schema, node, new=new)
        rest = node.keywords.get("unevaluatedProperties")
        if permitted and rest is not None:
            found = self._node(rest, node, new=new)
            return None if found.kind in (Kind.FALSE, Kind.EMPTY) else found
        return None

    def _node(self, value: Any, owner: Node, *, new: bool) -> Node:
        return self._walk.new_node(value, owner) if new else self._walk.old_node(value, owner)


def compare_unevaluated(walk: Comparison, old: Node, new: Node, keyword: str, what: str) -> None:
    """The same for objects and arrays."""
    before, after = old.keywords.get(keyword), new.keywords.get(keyword)
    if before is None and after is None:
        return
    left = Kind.EMPTY if before is None else walk.old_node(before, old).kind
    right = Kind.EMPTY if after is None else walk.new_node(after, new).kind
    with walk.at(keyword):
        if before is None:
            walk.add(f"UNEVALUATED_{what}_{'REMOVED' if right is Kind.FALSE else 'NARROWED'}")
        elif after is None:
            walk.add(f"UNEVALUATED_{what}_{'ADDED' if left is Kind.FALSE else 'EXTENDED'}")
        elif (left is Kind.FALSE) != (right is Kind.FALSE):
            walk.add(f"UNEVALUATED_{what}_{'ADDED' if left is Kind.FALSE else 'REMOVED'}")
        elif (left is Kind.EMPTY) != (right is Kind.EMPTY):
            walk.add(f"UNEVALUATED_{what}_{'NARROWED' if left is Kind.EMPTY else 'EXTENDED'}")
        else:
            walk.compare(walk.old_node(before, old), walk.new_node(after, new))


def _required(node: Node) -> set[str]:
    found = node.keywords.get("required")
    return {name for name in found if isinstance(name, str)} if isinstance(found, list) else set()


def _table(node: Node, keyword: str) -> Mapping[str, Any]:
    found = node.keywords.get(keyword)
    return found if isinstance(found, dict) else {}


def _additional(node: Node, keyword: str) -> tuple[bool, Any]:
    """Whether more is permitted, and what it must be."""
    found = node.keywords.get(keyword, True)
    if isinstance(found, bool):
        return found, None
    return True, found


def _dependencies(node: Node) -> tuple[dict[str, set[str]], dict[str, Any]]:
    names: dict[str, set[str]] = {}
    schemas: dict[str, Any] = {}
    for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
        for name, row in _table(node, keyword).items():
            if isinstance(row, list):
                names[name] = {str(each) for each in row}
            else:
                schemas[name] = row
    return names, schemas
