"""Changes of what arrays may be: their items, what may follow, how many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.registry.formats.json_model import Kind, Node
from tidelog.registry.formats.json_object_difference import compare_unevaluated
from tidelog.registry.formats.json_scalar_difference import limit_change

if TYPE_CHECKING:
    from tidelog.registry.formats.json_difference import Comparison

_LIMITS = (
    ("maxItems", "MAX_ITEMS"),
    ("minItems", "MIN_ITEMS"),
    ("maxContains", "MAX_CONTAINS"),
    ("minContains", "MIN_CONTAINS"),
)


class ArrayDifference:
    """The walk through two arrays' schemas."""

    def __init__(self, walk: Comparison, old: Node, new: Node) -> None:
        self._walk = walk
        self._old = old
        self._new = new

    def run(self) -> None:
        walk = self._walk
        before, after = _all_items(self._old), _all_items(self._new)
        with walk.at("items"):
            if before is None and after is not None:
                walk.add("SCHEMA_ADDED")
            elif after is None and before is not None:
                walk.add("SCHEMA_REMOVED")
            elif before is not None:
                walk.compare(walk.old_node(before, self._old), walk.new_node(after, self._new))
        self._each_item()
        self._additional()
        compare_unevaluated(walk, self._old, self._new, "unevaluatedItems", "ITEMS")
        for name, kind in _LIMITS:
            for change, keyword in limit_change(name, kind, self._old.keywords, self._new.keywords):
                walk.add(change, keyword)
        unique_before, unique_after = (
            node.keywords.get("uniqueItems") is True for node in (self._old, self._new)
        )
        if unique_before != unique_after:
            walk.add(f"UNIQUE_ITEMS_{'REMOVED' if unique_before else 'ADDED'}", "uniqueItems")

    def _each_item(self) -> None:
        before, after = _items(self._old), _items(self._new)
        for index in range(max(len(before), len(after))):
            with self._walk.at(f"items/{index}"):
                if index >= len(after):
                    self._removed(self._walk.old_node(before[index], self._old))
                elif index >= len(before):
                    self._added(self._walk.new_node(after[index], self._new))
                else:
                    old = self._walk.old_node(before[index], self._old)
                    self._walk.compare(old, self._walk.new_node(after[index], self._new))

    def _removed(self, old: Node) -> None:
        walk = self._walk
        if self._is_open(self._new, new=True):
            walk.add("ITEM_REMOVED_FROM_OPEN_CONTENT_MODEL")
            return
        partly = self._partly_open(self._new, new=True)
        if partly is None:
            kind = "ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL"
            if old.kind is Kind.FALSE:
                kind = "ITEM_WITH_FALSE_REMOVED_FROM_CLOSED_CONTENT_MODEL"
            walk.add(kind)
            return
        found = walk.tried(old, partly)
        walk.extend(found)
        covered = "NOT" if walk.harmful(found) else "IS"
        walk.add(f"ITEM_REMOVED_{covered}_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL")

    def _added(self, new: Node) -> None:
        walk = self._walk
        if self._is_open(self._old, new=False):
            kind = "ITEM_ADDED_TO_OPEN_CONTENT_MODEL"
            if new.kind is Kind.EMPTY:
                kind = "ITEM_WITH_EMPTY_SCHEMA_ADDED_TO_OPEN_CONTENT_MODEL"
            walk.add(kind)
            return
        partly = self._partly_open(self._old, new=False)
        if partly is None:
            walk.add("ITEM_ADDED_TO_CLOSED_CONTENT_MODEL")
            return
        found = walk.tried(partly, new)
        walk.extend(found)
        covered = "NOT" if walk.harmful(found) else "IS"
        walk.add(f"ITEM_ADDED_{covered}_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL")

    def _additional(self) -> None:
        walk = self._walk
        permitted_before, before = _additional(self._old)
        permitted_after, after = _additional(self._new)
        with walk.at("additionalItems"):
            if permitted_before != permitted_after:
                walk.add(f"ADDITIONAL_ITEMS_{'REMOVED' if permitted_before else 'ADDED'}")
            elif before is None and after is not None:
                walk.add("ADDITIONAL_ITEMS_NARROWED")
            elif after is None and before is not None:
                walk.add("ADDITIONAL_ITEMS_EXTENDED")
            elif before is not None and after is not None:
                walk.compare(walk.old_node(before, self._old), walk.new_node(after, self._new))

    def _is_open(self, node: Node, *, new: bool) -> bool:
        permitted, schema = _additional(node)
        if not permitted or schema is not None:
            return False
        return self._node(node.keywords.get("unevaluatedItems", True), node, new=new).kind is Kind.EMPTY

    def _partly_open(self, node: Node, *, new: bool) -> Node | None:
        permitted, schema = _additional(node)
        if schema is not None:
            return self._node(schema, node, new=new)
        rest = node.keywords.get("unevaluatedItems")
        if permitted and rest is not None:
            found = self._node(rest, node, new=new)
            return None if found.kind in (Kind.FALSE, Kind.EMPTY) else found
        return None

    def _node(self, value: Any, owner: Node, *, new: bool) -> Node:
        return self._walk.new_node(value, owner) if new else self._walk.old_node(value, owner)


def _items(node: Node) -> list[Any]:
    """The schemas of the first items, one each."""
    for keyword in ("prefixItems", "items"):
        found = node.keywords.get(keyword)
        if isinstance(found, list):
            return found
    return []


def _all_items(node: Node) -> Any:
    """The schema of every item; None where there is none, or only what may follow the first ones."""
    if isinstance(node.keywords.get("prefixItems"), list):
        return None
    found = node.keywords.get("items")
    return None if isinstance(found, list) else found


def _additional(node: Node) -> tuple[bool, Any]:
    """Whether items may follow the first ones, and what they must be."""
    keyword = "items" if isinstance(node.keywords.get("prefixItems"), list) else "additionalItems"
    found = node.keywords.get(keyword, True)
    if isinstance(found, bool):
        return found, None
    return True, found
