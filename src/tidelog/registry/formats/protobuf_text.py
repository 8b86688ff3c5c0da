"""A Protobuf file's descriptor as .proto text: what is kept when a client sends a descriptor, and what two
texts are compared by.

proto2 and proto3. Comments are not in descriptors, and options that are extensions are left out: nothing
here knows their names. The same descriptor always gives the same text.
"""

from collections.abc import Iterator
from typing import Any

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FieldDescriptor

from tidelog.registry.faults import BadSchema

_Field = descriptor_pb2.FieldDescriptorProto
TYPE_NAMES = {
    _Field.TYPE_DOUBLE: "double",
    _Field.TYPE_FLOAT: "float",
    _Field.TYPE_INT64: "int64",
    _Field.TYPE_UINT64: "uint64",
    _Field.TYPE_INT32: "int32",
    _Field.TYPE_FIXED64: "fixed64",
    _Field.TYPE_FIXED32: "fixed32",
    _Field.TYPE_BOOL: "bool",
    _Field.TYPE_STRING: "string",
    _Field.TYPE_BYTES: "bytes",
    _Field.TYPE_UINT32: "uint32",
    _Field.TYPE_SFIXED32: "sfixed32",
    _Field.TYPE_SFIXED64: "sfixed64",
    _Field.TYPE_SINT32: "sint32",
    _Field.TYPE_SINT64: "sint64",
}
_NUMBER_MAX = 536_870_911
_ENUM_MAX = 2_147_483_647
_INDENT = "  "


def render(file: Any) -> str:
    """The text of a FileDescriptorProto; raises BadSchema for an edition."""
    if file.syntax not in ("", "proto2", "proto3"):
        raise BadSchema("a descriptor of an edition cannot be written as text here: send the .proto text")
    return "\n".join(_Renderer(file).lines()) + "\n"


class _Renderer:
    def __init__(self, file: Any) -> None:
        self._file = file
        self._proto3 = file.syntax == "proto3"

    def lines(self) -> Iterator[str]:
        file = self._file
        yield f'syntax = "{file.syntax or "proto2"}";'
        if file.package:
            yield f"package {file.package};"
        public, weak = set(file.public_dependency), set(file.weak_dependency)
        for index, name in enumerate(file.dependency):
            kind = "public " if index in public else "weak " if index in weak else ""
            yield f"import {kind}{_quoted(name)};"
        for option in _options(file.options):
            yield f"option {option};"
        for message in file.message_type:
            yield from self._message(message, "")
        for enum in file.enum_type:
            yield from self._enum(enum, "")
        yield from self._extensions(file.extension, "")
        for service in file.service:
            yield from self._service(service)

    def _message(self, message: Any, indent: str) -> Iterator[str]:
        yield f"{indent}message {message.name} {{"
        yield from self._body(message, indent + _INDENT)
        yield f"{indent}}}"

    def _body(self, message: Any, inner: str) -> Iterator[str]:
        for option in _options(message.options, ("map_entry",)):
            yield f"{inner}option {option};"
        reserved = [_range(row.start, row.end - 1, _NUMBER_MAX) for row in message.reserved_range]
        if reserved:
            yield f"{inner}reserved {', '.join(reserved)};"
        if message.reserved_name:
            yield f"{inner}reserved {', '.join(_quoted(name) for name in message.reserved_name)};"
        for row in message.extension_range:
            yield f"{inner}extensions {_range(row.start, row.end - 1, _NUMBER_MAX)};"
        entries = {nested.name: nested for nested in message.nested_type if nested.options.map_entry}
        groups = {
            field.type_name.rpartition(".")[2] for field in message.field if field.type == _Field.TYPE_GROUP
        }
        nested = {row.name: row for row in message.nested_type}
        written: set[int] = set()
        for field in message.field:
            if not field.HasField("oneof_index") or field.proto3_optional:
                yield from self._field(field, entries, nested, inner)
            elif field.oneof_index not in written:
                written.add(field.oneof_index)
                yield f"{inner}oneof {message.oneof_decl[field.oneof_index].name} {{"
                for option in _options(message.oneof_decl[field.oneof_index].options):
                    yield f"{inner}{_INDENT}option {option};"
                for member in message.field:
                    if member.HasField("oneof_index") and member.oneof_index == field.oneof_index:
                        yield from self._field(member, entries, nested, inner + _INDENT, in_oneof=True)
                yield f"{inner}}}"
        for row in message.nested_type:
            if row.name not in entries and row.name not in groups:
                yield from self._message(row, inner)
        for enum in message.enum_type:
            yield from self._enum(enum, inner)
        yield from self._extensions(message.extension, inner)

    def _field(
        self, field: Any, entries: Any, nested: Any, indent: str, *, in_oneof: bool = False
    ) -> Iterator[str]:
        short = field.type_name.rpartition(".")[2]
        label = "" if in_oneof else self._label(field)
        if field.type == _Field.TYPE_GROUP:
            yield f"{indent}{label}group {short} = {field.number} {{"
            if short in nested:
                yield from self._body(nested[short], indent + _INDENT)
            yield f"{indent}}}"
            return
        if field.type == _Field.TYPE_MESSAGE and short in entries:
            key, value = entries[short].field[0], entries[short].field[1]
            kind, label = f"map<{_type(key)}, {_type(value)}>", ""
        else:
            kind = _type(field)
        yield f"{indent}{label}{kind} {field.name} = {field.number}{_field_options(field)};"

    def _label(self, field: Any) -> str:
        if field.label == _Field.LABEL_REPEATED:
            return "repeated "
        if field.label == _Field.LABEL_REQUIRED:
            return "required "
        return "optional " if not self._proto3 or field.proto3_optional else ""

    def _enum(self, enum: Any, indent: str) -> Iterator[str]:
        inner = indent + _INDENT
        yield f"{indent}enum {enum.name} {{"
        for option in _options(enum.options):
            yield f"{inner}option {option};"
        reserved = [_range(row.start, row.end, _ENUM_MAX) for row in enum.reserved_range]
        if reserved:
            yield f"{inner}reserved {', '.join(reserved)};"
        if enum.reserved_name:
            yield f"{inner}reserved {', '.join(_quoted(name) for name in enum.reserved_name)};"
        for value in enum.value:
            yield f"{inner}{value.name} = {value.number}{_bracketed(list(_options(value.options)))};"
        yield f"{indent}}}"

    def _extensions(self, fields: Any, indent: str) -> Iterator[str]:
        for field in fields:
            yield f"{indent}extend {field.extendee} {{"
            yield from self._field(field, {}, {}, indent + _INDENT)
            yield f"{indent}}}"

    def _service(self, service: Any) -> Iterator[str]:
        yield f"service {service.name} {{"
        for option in _options(service.options):
            yield f"{_INDENT}option {option};"
        for method in service.method:
            asks = f"{'stream ' if method.client_streaming else ''}{method.input_type}"
            answers = f"{'stream ' if method.server_streaming else ''}{method.output_type}"
            head = f"{_INDENT}rpc {method.name} ({asks}) returns ({answers})"
            options = list(_options(method.options))
            if options:
                yield head + " {"
                yield from (f"{_INDENT * 2}option {option};" for option in options)
                yield f"{_INDENT}}}"
            else:
                yield head + ";"
        yield "}"


def _type(field: Any) -> str:
    # Full names with the leading dot mean one thing wherever they stand.
    return TYPE_NAMES.get(field.type) or str(field.type_name)


def _field_options(field: Any) -> str:
    found: list[str] = []
    if field.HasField("default_value"):
        text = field.type in (_Field.TYPE_STRING, _Field.TYPE_BYTES)
        default = field.default_value
        if text:
            # Bytes are escaped in descriptors already.
            default = f'"{default}"' if field.type == _Field.TYPE_BYTES else _quoted(default)
        found.append(f"default = {default}")
    if field.HasField("json_name") and field.json_name != _json_name(field.name):
        found.append(f"json_name = {_quoted(field.json_name)}")
    return _bracketed([*found, *_options(field.options)])


def _bracketed(options: list[str]) -> str:
    return f" [{', '.join(options)}]" if options else ""


def _options(options: Any, hidden: tuple[str, ...] = ()) -> Iterator[str]:
    for field, value in options.ListFields():
        if field.name in hidden or field.is_extension or field.message_type is not None:
            continue
        for each in value if _repeated(field) else (value,):
            yield f"{field.name} = {_option_value(field, each)}"


def _repeated(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated)


def _option_value(field: FieldDescriptor, value: Any) -> str:
    if field.enum_type is not None:
        return str(field.enum_type.values_by_number[value].name)
    if isinstance(value, bool):
        return "true" if value else "false"
    return _quoted(value) if isinstance(value, str) else str(value)


def _range(start: int, last: int, most: int) -> str:
    if start == last:
        return str(start)
    return f"{start} to {'max' if last >= most else last}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def _json_name(name: str) -> str:
    found = []
    upper = False
    for character in name:
        if character == "_":
            upper = True
        else:
            found.append(character.upper() if upper else character)
            upper = False
    return "".join(found)
