"""What an older Protobuf schema wrote and a newer one cannot read: Confluent's rules, by their names.

No library has these rules (buf's are others, and a program of its own), so they are here. Fields are known
by their numbers; types that look alike on the wire may take each other's place. Two files are compared
message by message, and what their fields refer to in other files as well.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from google.protobuf import descriptor_pb2

from tidelog.registry import limits
from tidelog.registry.formats.parsed import Difference

_Field = descriptor_pb2.FieldDescriptorProto

HARMLESS = frozenset(
    {
        "ENUM_ADDED",
        "ENUM_CONST_ADDED",
        "ENUM_CONST_CHANGED",
        "ENUM_CONST_REMOVED",
        "ENUM_REMOVED",
        "FIELD_ADDED",
        "FIELD_NAME_CHANGED",
        "FIELD_REMOVED",
        "FIELD_STRING_OR_BYTES_LABEL_CHANGED",
        "MESSAGE_ADDED",
        "MESSAGE_MOVED",
        "ONEOF_ADDED",
        "ONEOF_FIELD_ADDED",
        "ONEOF_FIELD_MOVED_TO_TOP_LEVEL",
        "ONEOF_REMOVED",
    }
)

_GENERAL_NUMBER = "general number"
#: types that can stand for each other on the wire
_SCALARS = {
    **dict.fromkeys(
        (
            _Field.TYPE_INT32,
            _Field.TYPE_INT64,
            _Field.TYPE_UINT32,
            _Field.TYPE_UINT64,
            _Field.TYPE_BOOL,
            _Field.TYPE_ENUM,
        ),
        _GENERAL_NUMBER,
    ),
    **dict.fromkeys((_Field.TYPE_SINT32, _Field.TYPE_SINT64), "signed number"),
    **dict.fromkeys((_Field.TYPE_STRING, _Field.TYPE_BYTES), "string or bytes"),
    **dict.fromkeys((_Field.TYPE_FIXED32, _Field.TYPE_SFIXED32), "fixed32"),
    **dict.fromkeys((_Field.TYPE_FIXED64, _Field.TYPE_SFIXED64), "fixed64"),
    _Field.TYPE_FLOAT: "float",
    _Field.TYPE_DOUBLE: "double",
}


class File:
    """A compiled file with every message that it can refer to."""

    def __init__(self, descriptors: Any) -> None:
        self.file = descriptors.file[-1]
        self.messages: dict[str, Any] = {}
        self._packages: dict[str, str] = {}
        self._syntax: dict[str, str] = {}
        for file in descriptors.file:
            prefix = f".{file.package}" if file.package else ""
            for message in file.message_type:
                self._collect(message, prefix, file)

    def _collect(self, message: Any, prefix: str, file: Any) -> None:
        name = f"{prefix}.{message.name}"
        self.messages[name] = message
        self._packages[name] = file.package
        self._syntax[name] = file.syntax
        for nested in message.nested_type:
            self._collect(nested, name, file)

    def local_name(self, name: str) -> str:
        """The full name of a message without its package."""
        package = self._packages.get(name)
        return name.removeprefix(f".{package}.") if package else name.removeprefix(".")

    def entry(self, field: Any) -> Any:
        """The entry of a map field; None for another field."""
        found = self.messages.get(field.type_name) if field.type == _Field.TYPE_MESSAGE else None
        return found if found is not None and found.options.map_entry else None

    @property
    def has_labels(self) -> bool:
        """Whether singular fields say `optional`."""
        return self.file.syntax in ("", "proto2")


class Comparison:
    """One walk through two files."""

    def __init__(self, old: File, new: File, steps: limits.Steps) -> None:
        self._old = old
        self._new = new
        self._steps = steps
        self._found: list[Difference] = []
        self._path = "#/"
        self._open: set[tuple[int, int]] = set()
        self._done: dict[tuple[str, str], bool] = {}

    def run(self) -> list[Difference]:
        """Every difference that is not harmless."""
        if self._old.file.package != self._new.file.package:
            self._add("PACKAGE_CHANGED")
        self._types(self._old.file, self._new.file, "message_type")
        return [each for each in self._found if each.kind not in HARMLESS]

    def _add(self, kind: str, detail: str = "") -> None:
        self._found.append(Difference(kind, self._path, detail))

    @contextmanager
    def _at(self, name: object) -> Iterator[None]:
        before, self._path = self._path, f"{self._path}{name}/"
        try:
            yield
        finally:
            self._path = before

    def _types(self, old: Any, new: Any, messages: str) -> None:
        before = {row.name: row for row in getattr(old, messages) if not row.options.map_entry}
        after = {row.name: row for row in getattr(new, messages) if not row.options.map_entry}
        for name, message in before.items():
            with self._at(name):
                if name in after:
                    self._message(message, after[name])
                else:
                    self._add("MESSAGE_REMOVED")
        for name in after.keys() - before.keys():
            with self._at(name):
                self._add("MESSAGE_ADDED")

    def _message(self, old: Any, new: Any) -> None:
        self._steps.take()
        pair = (id(old), id(new))
        if pair in self._open:
            return
        self._open.add(pair)
        try:
            self._fields(old, new)
            self._types(old, new, "nested_type")
        finally:
            self._open.discard(pair)

    def _fields(self, old: Any, new: Any) -> None:
        before = {field.number: field for field in old.field}
        after = {field.number: field for field in new.field}
        groups_before = {number: _oneof(old, field) for number, field in before.items()}
        groups_after = {number: _oneof(new, field) for number, field in after.items()}
        self._newly_exclusive(before, groups_before, groups_after)
        lost = {name for name in groups_before.values() if name and name not in groups_after.values()}
        # A oneof that is gone with all its members was deleted; one whose members live on has lost some.
        deleted = {
            name
            for name in lost
            if not any(number in after for number, group in groups_before.items() if group == name)
        }
        for number in sorted(before.keys() | after.keys()):
            self._steps.take()
            group = groups_after.get(number) or groups_before.get(number)
            with self._at(f"{group}/{number}" if group else number):
                if number not in after:
                    was_in = groups_before[number]
                    if was_in and was_in not in deleted:
                        self._add("ONEOF_FIELD_REMOVED")
                    elif not was_in and before[number].label == _Field.LABEL_REQUIRED:
                        self._add("REQUIRED_FIELD_REMOVED")
                elif number not in before:
                    if not groups_after[number] and after[number].label == _Field.LABEL_REQUIRED:
                        self._add("REQUIRED_FIELD_ADDED")
                else:
                    self._field(before[number], after[number])

    def _newly_exclusive(
        self, before: dict[int, Any], groups_before: dict[int, str], groups_after: dict[int, str]
    ) -> None:
        """Fields that could be set together and now cannot."""
        for name in dict.fromkeys(group for group in groups_after.values() if group):
            members = [number for number, group in groups_after.items() if group == name and number in before]
            origins = {groups_before[number] or f"field {number}" for number in members}
            if len(origins) > 1:
                single = sum(not groups_before[number] for number in members)
                with self._at(name):
                    self._add(
                        "MULTIPLE_FIELDS_MOVED_TO_ONEOF" if single > 1 else "FIELD_MOVED_TO_EXISTING_ONEOF"
                    )

    def _field(self, old: Any, new: Any) -> None:
        before, after = self._old.entry(old), self._new.entry(new)
        if _kind(old, before) != _kind(new, after):
            self._add("FIELD_KIND_CHANGED")
        elif before is not None and after is not None:
            for part in (0, 1):
                self._part(before.field[part], after.field[part])
        elif old.type in _SCALARS:
            self._scalar(old, new)
        else:
            self._named(old, new)

    def _part(self, old: Any, new: Any) -> None:
        """The key or the value of a map."""
        if _kind(old, None) != _kind(new, None):
            self._add("FIELD_KIND_CHANGED")
        elif old.type not in _SCALARS:
            self._named(old, new)
        elif _SCALARS[old.type] != _SCALARS[new.type]:
            self._add("FIELD_SCALAR_KIND_CHANGED")

    def _scalar(self, old: Any, new: Any) -> None:
        if _SCALARS[old.type] != _SCALARS[new.type]:
            self._add("FIELD_SCALAR_KIND_CHANGED")
            return
        before, after = _label(old, self._old), _label(new, self._new)
        if before is not None and after is not None and before != after:
            text = _SCALARS[old.type] == "string or bytes"
            self._add("FIELD_STRING_OR_BYTES_LABEL_CHANGED" if text else "FIELD_NUMERIC_LABEL_CHANGED")

    def _named(self, old: Any, new: Any) -> None:
        before, after = self._old.messages.get(old.type_name), self._new.messages.get(new.type_name)
        same = self._old.local_name(old.type_name) == self._new.local_name(new.type_name)
        if not same or before is None or after is None:
            if not same:
                self._add("FIELD_NAMED_TYPE_CHANGED", f"{old.type_name[1:]} to {new.type_name[1:]}")
            return
        if not self._reads(old.type_name, before, new.type_name, after):
            self._add("FIELD_NAMED_TYPE_CHANGED", new.type_name[1:])

    def _reads(self, old_name: str, old: Any, new_name: str, new: Any) -> bool:
        key = (old_name, new_name)
        if key not in self._done:
            self._done[key] = True  # while it is looked at
            kept, self._found = self._found, []
            self._message(old, new)
            self._done[key] = all(each.kind in HARMLESS for each in self._found)
            self._found = kept + self._found
        return self._done[key]


def _oneof(message: Any, field: Any) -> str:
    """The oneof that a field is in; "" for none, and for the one that `optional` of proto3 makes."""
    if not field.HasField("oneof_index") or field.proto3_optional:
        return ""
    return str(message.oneof_decl[field.oneof_index].name)


def _kind(field: Any, entry: Any) -> str:
    if entry is not None:
        return "map"
    return "scalar" if field.type in _SCALARS else "message"


def _label(field: Any, file: File) -> int | None:
    """The label that stands in the text; None where none does."""
    if field.label == _Field.LABEL_OPTIONAL:
        if field.HasField("oneof_index") and not field.proto3_optional:
            return None
        if not file.has_labels and not field.proto3_optional:
            return None
    return int(field.label)
