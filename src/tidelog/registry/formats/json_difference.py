"""What an older JSON Schema accepted and a newer one may not: Confluent's rules, by their names.

No library compares JSON Schemas with these rules, so they are here: a walk through both schemas that names
every change, and two tables of the changes that are harmless (STRICT, and LENIENT, which takes optional
properties added to open objects too). Whether an object is open, closed or partly open (pattern properties,
a schema for additional properties) decides what adding or removing a property means.

Pairs of schemas that are being compared already count as compatible, so recursive schemas end; a pair that
then turns out different is compared again with that known, until nothing changes. `Steps` bounds all of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import re2

from tidelog.registry import limits
from tidelog.registry.formats.json_array_difference import ArrayDifference
from tidelog.registry.formats.json_model import COMBINED, Document, Kind, Node
from tidelog.registry.formats.json_object_difference import ObjectDifference
from tidelog.registry.formats.json_scalar_difference import number_changes, string_changes, value_changes
from tidelog.registry.formats.json_tables import HARMLESS_LENIENT, HARMLESS_STRICT
from tidelog.registry.formats.parsed import LENIENT, Difference

Pair = tuple[int, int]


class Comparison:
    """One walk through two documents."""

    def __init__(self, old: Document, new: Document, policy: str, steps: limits.Steps) -> None:
        self.old = old
        self.new = new
        self.harmless = HARMLESS_LENIENT if policy == LENIENT else HARMLESS_STRICT
        self._steps = steps
        self._known: dict[Pair, list[Difference]] = {}
        self._incompatible: dict[Pair, list[Difference]] = {}
        self._open: set[Pair] = set()
        self._truncated = False
        self._found: list[Difference] = []
        self._path = "#/"
        self._patterns: dict[str, Any] = {}
        #: inside `not`, the two documents change places
        self._swapped = False

    def run(self) -> list[Difference]:
        """Every difference that is not harmless."""
        while True:
            self._known, self._found, self._truncated = {}, [], False
            self.compare(self.old.root, self.new.root)
            wrong = {pair: found for pair, found in self._known.items() if self.harmful(found)}
            if not self._truncated or wrong.keys() == self._incompatible.keys():
                return self.harmful(self._found)
            self._incompatible = wrong

    def harmful(self, found: list[Difference]) -> list[Difference]:
        return [each for each in found if each.kind not in self.harmless]

    # What the walks of objects and arrays use

    def add(self, kind: str, name: str = "") -> None:
        self._found.append(Difference(kind, self._path + name))

    @contextmanager
    def at(self, name: str) -> Iterator[None]:
        before, self._path = self._path, f"{self._path}{name}/"
        try:
            yield
        finally:
            self._path = before

    def tried(self, old: Node, new: Node) -> list[Difference]:
        """What comparing two schemas finds, kept apart."""
        before, self._found = self._found, []
        try:
            self.compare(old, new)
            return self._found
        finally:
            self._found = before

    def extend(self, found: list[Difference]) -> None:
        self._found.extend(found)

    def old_node(self, value: Any, owner: Node) -> Node:
        return (self.new if self._swapped else self.old).node(value, owner.resolver)

    def new_node(self, value: Any, owner: Node) -> Node:
        return (self.old if self._swapped else self.new).node(value, owner.resolver)

    # The walk

    def compare(self, old: Node, new: Node) -> None:
        self._steps.take()
        pair = (id(old), id(new))
        if pair in self._open:
            known = self._incompatible.get(pair)
            if known is not None:
                self._found.extend(known)
            else:
                self._truncated = True
            return
        if pair in self._known:
            self._found.extend(self._known[pair])
            return
        self._open.add(pair)
        before, self._found = self._found, []
        try:
            self._compare_kinds(old, new)
            self._known[pair] = self._found
        finally:
            self._open.discard(pair)
            before.extend(self._found)
            self._found = before

    def _compare_kinds(self, old: Node, new: Node) -> None:
        if self._is_part(old, new):
            return
        both_combined = old.kind in COMBINED and new.kind in COMBINED
        if old.kind != new.kind and not both_combined:
            harmless = old.kind is Kind.FALSE or new.kind is Kind.EMPTY or _both_bytes(old, new)
            if not harmless:
                self.add("TYPE_CHANGED")
            return
        for name, kind in (
            ("$id", "ID_CHANGED"),
            ("title", "TITLE_CHANGED"),
            ("description", "DESCRIPTION_CHANGED"),
            ("default", "DEFAULT_CHANGED"),
        ):
            if old.keywords.get(name) != new.keywords.get(name):
                self.add(kind)
        self._compare_alike(old, new)

    def _compare_alike(self, old: Node, new: Node) -> None:
        if old.kind in COMBINED:
            self._compare_combined(old, new)
        elif old.kind is Kind.OBJECT:
            ObjectDifference(self, old, new).run()
        elif old.kind is Kind.ARRAY:
            ArrayDifference(self, old, new).run()
        elif old.kind is Kind.NOT:
            self._compare_not(old, new)
        elif old.kind in (Kind.ENUM, Kind.CONST):
            for kind, name in value_changes(old, new):
                self.add(kind, name)
        else:
            changes = string_changes if old.kind is Kind.STRING else number_changes
            for kind, name in changes(old, new) if old.kind in (Kind.STRING, Kind.NUMBER) else ():
                self.add(kind, name)

    def _is_part(self, old: Node, new: Node) -> bool:
        """One schema became one of a choice, or was one of several that all held."""
        if old.kind not in COMBINED and new.kind in COMBINED:
            pairs = [(old, part) for part in new.parts]
            kind = "SUM_TYPE_EXTENDED" if new.kind in (Kind.ANY, Kind.ONE) else ""
        elif old.kind in COMBINED and new.kind not in COMBINED:
            pairs = [(part, new) for part in old.parts]
            kind = "PRODUCT_TYPE_NARROWED" if old.kind is Kind.ALL else ""
        else:
            return False
        if len(pairs) == 1:
            found = self.tried(*pairs[0])
            if not self.harmful(found):
                self.extend(found)
                return True
        elif kind:
            for pair in pairs:
                found = self.tried(*pair)
                if not self.harmful(found):
                    self.extend(found)
                    self.add(kind)
                    return True
        return False

    def _compare_combined(self, old: Node, new: Node) -> None:
        if old.kind is not new.kind:
            single_old, single_new = len(old.parts) == 1, len(new.parts) == 1
            widened = (
                new.kind is Kind.ANY
                or (single_old and (single_new or new.kind is Kind.ONE))
                or (single_new and old.kind is Kind.ALL)
            )
            self.add("COMBINED_TYPE_EXTENDED" if widened else "COMBINED_TYPE_CHANGED")
            if not widened:
                return
        before = list({part.mark: part for part in old.parts}.values())
        after = list({part.mark: part for part in new.parts}.values())
        if len(before) < len(after):
            self.add("PRODUCT_TYPE_EXTENDED" if new.kind is Kind.ALL else "SUM_TYPE_EXTENDED")
        elif len(before) > len(after):
            self.add("PRODUCT_TYPE_NARROWED" if old.kind is Kind.ALL else "SUM_TYPE_NARROWED")
        fitting: list[dict[int, list[Difference]]] = []
        for index, part in enumerate(before):
            with self.at(f"{old.kind.value}/{index}"):
                tried = {number: self.tried(part, other) for number, other in enumerate(after)}
            fitting.append({number: found for number, found in tried.items() if not self.harmful(found)})
        matched = _largest_matching(fitting)
        for number, index in matched.items():
            self.extend(fitting[index][number])
        if len(matched) < min(len(before), len(after)):
            self.add("COMBINED_TYPE_SUBSCHEMAS_CHANGED")

    def _compare_not(self, old: Node, new: Node) -> None:
        with self.at("not"):
            excluded_old = self.old_node(old.keywords["not"], old)
            excluded_new = self.new_node(new.keywords["not"], new)
            self._swapped = not self._swapped
            try:
                found = self.tried(excluded_new, excluded_old)
            finally:
                self._swapped = not self._swapped
            self.add("NOT_TYPE_EXTENDED" if self.harmful(found) else "NOT_TYPE_NARROWED")

    def pattern_covers(self, pattern: str, name: str) -> bool:
        """Whether a pattern of property names finds a name; one that RE2 does not know finds nothing."""
        self._steps.take()
        if pattern not in self._patterns:
            try:
                self._patterns[pattern] = re2.compile(pattern)
            except re2.error:
                self._patterns[pattern] = None
        compiled = self._patterns[pattern]
        return compiled is not None and compiled.search(name) is not None


def _both_bytes(old: Node, new: Node) -> bool:
    """Kafka Connect wrote bytes as several types; it marks them."""
    return old.keywords.get("connect.type") == "bytes" == new.keywords.get("connect.type")


def _largest_matching(fitting: Sequence[Mapping[int, Any]]) -> dict[int, int]:
    """As many pairs as can be had at once: the old part by the new one that it goes with."""
    taken: dict[int, int] = {}

    def place(index: int, seen: set[int]) -> bool:
        for number in fitting[index]:
            if number in seen:
                continue
            seen.add(number)
            if number not in taken or place(taken[number], seen):
                taken[number] = index
                return True
        return False

    for index in range(len(fitting)):
        place(index, set())
    return taken
