"""Protobuf schemas as a registry keeps them: .proto text, read as far as decoding and encoding need it.

Messages with their fields, oneofs and maps, nested messages and enums; options, services, extensions and
reserved ranges are passed over. Imports are other texts that the registry refers to; Google's well-known
types, which serializers do not register, are known (`KNOWN_TYPES`). The grammar is at
https://protobuf.dev/reference/protobuf/proto3-spec/ and proto2-spec/.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache

TEXT_CHARACTERS_MAX = 1 << 20
DEPTH_MAX = 32
_TOKEN = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/|(?P<token>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|[A-Za-z_][\w.]*|\.[A-Za-z_][\w.]*"""
    r"""|-?\d[\w.]*|.)""",
    re.DOTALL,
)
#: https://protobuf.dev/reference/protobuf/google.protobuf/
KNOWN_TYPES = """
package google.protobuf;
message Timestamp { int64 seconds = 1; int32 nanos = 2; }
message Duration { int64 seconds = 1; int32 nanos = 2; }
message Any { string type_url = 1; bytes value = 2; }
message Empty {}
message FieldMask { repeated string paths = 1; }
message DoubleValue { double value = 1; }
message FloatValue { float value = 1; }
message Int64Value { int64 value = 1; }
message UInt64Value { uint64 value = 1; }
message Int32Value { int32 value = 1; }
message UInt32Value { uint32 value = 1; }
message BoolValue { bool value = 1; }
message StringValue { string value = 1; }
message BytesValue { bytes value = 1; }
enum NullValue { NULL_VALUE = 0; }
message Struct { map<string, Value> fields = 1; }
message ListValue { repeated Value values = 1; }
message Value {
  oneof kind {
    NullValue null_value = 1;
    double number_value = 2;
    string string_value = 3;
    bool bool_value = 4;
    Struct struct_value = 5;
    ListValue list_value = 6;
  }
}
"""
_LABELS = ("optional", "required", "repeated")
_PASSED_OVER = ("option", "reserved", "extensions", "import", "syntax", "edition")


@dataclass(frozen=True, slots=True)
class ProtoField:
    """One field; `map_value` is the type of the values where the field is a map (its keys are `type`)."""

    name: str
    number: int
    type: str
    repeated: bool = False
    map_value: str = ""
    #: of a oneof: its name; only one of its fields is set
    oneof: str = ""
    required: bool = False


@dataclass(slots=True)
class ProtoMessage:
    """A message by its full name; nested messages in the order in which they stand."""

    name: str
    fields: dict[int, ProtoField] = field(default_factory=dict)
    nested: list["ProtoMessage"] = field(default_factory=list)


@dataclass(slots=True)
class ProtoFile:
    """What one text defines, and what all texts together define by full name."""

    package: str = ""
    messages: list[ProtoMessage] = field(default_factory=list)
    all_messages: dict[str, ProtoMessage] = field(default_factory=dict)
    all_enums: dict[str, dict[int, str]] = field(default_factory=dict)

    def message_at(self, indexes: Iterable[int]) -> ProtoMessage:
        """The message that a path of indexes means, as serializers write it before the payload."""
        where, found = self.messages, None
        for index in indexes:
            if not 0 <= index < len(where):
                raise ValueError(f"the schema has no message {index} there")
            found = where[index]
            where = found.nested
        if found is None:
            raise ValueError("no message is named")
        return found

    def path_of(self, name: str) -> list[int]:
        """The path of a message by its full name, or without its package; ValueError where it has none."""
        waiting = [(message, [index]) for index, message in enumerate(self.messages)]
        names: list[str] = []
        while waiting:
            message, path = waiting.pop()
            short = message.name.removeprefix(f"{self.package}.") if self.package else message.name
            if name in (message.name, short):
                return path
            names.append(message.name)
            waiting += [(inner, [*path, index]) for index, inner in enumerate(message.nested)]
        raise ValueError(f"the schema has no message {name[:80]!r}; it has {', '.join(sorted(names))[:300]}")

    def resolve(self, name: str, scope: str) -> ProtoMessage | dict[int, str] | None:
        """What a type name means inside a scope: a message, an enum, or nothing that is known."""
        if name.startswith("."):
            candidates = [name[1:]]
        else:
            parts = scope.split(".") if scope else []
            candidates = [".".join((*parts[:size], name)) for size in range(len(parts), -1, -1)]
        for full in candidates:
            if full in self.all_messages:
                return self.all_messages[full]
            if full in self.all_enums:
                return self.all_enums[full]
        return None


def parse(text: str, references: Iterable[str] = ()) -> ProtoFile:
    """Read a text and those that it imports; ValueError where it is no .proto."""
    found = _Parser(text).file()
    for reference in references:
        other = _Parser(reference).file()
        found.all_messages = {**other.all_messages, **found.all_messages}
        found.all_enums = {**other.all_enums, **found.all_enums}
    known = _known_types()
    found.all_messages = {**known.all_messages, **found.all_messages}
    found.all_enums = {**known.all_enums, **found.all_enums}
    return found


@cache
def _known_types() -> ProtoFile:
    return _Parser(KNOWN_TYPES).file()


class _Parser:
    def __init__(self, text: str) -> None:
        if len(text) > TEXT_CHARACTERS_MAX:
            raise ValueError("the schema is too long")
        self._tokens = [found["token"] for found in _TOKEN.finditer(text) if found["token"] is not None]
        self._at = 0
        self._file = ProtoFile()

    def file(self) -> ProtoFile:
        while self._at < len(self._tokens):
            word = self._next()
            if word == "package":
                self._file.package = self._next()
                self._skip_statement()
            elif word == "message":
                self._file.messages.append(self._message(self._file.package, 0))
            elif word == "enum":
                self._enum(self._file.package)
            elif word in ("service", "extend", *_PASSED_OVER):
                self._skip_statement()
            elif word != ";":
                raise ValueError(f"{word[:40]!r} is not expected in a .proto")
        return self._file

    def _next(self) -> str:
        if self._at >= len(self._tokens):
            raise ValueError("the .proto ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _expect(self, wanted: str) -> None:
        found = self._next()
        if found != wanted:
            raise ValueError(f"{wanted!r} is expected, not {found[:40]!r}")

    def _skip_statement(self) -> None:
        """Go behind the next ; or the block that comes before it."""
        depth = 0
        while True:
            word = self._next()
            depth += word in ("{", "[", "(")
            depth -= word in ("}", "]", ")")
            if depth == 0 and word in (";", "}"):
                return

    def _inside(self) -> Iterator[str]:
        """The words that begin statements of a block, up to its end."""
        self._expect("{")
        while (word := self._next()) != "}":
            if word != ";":
                yield word

    def _message(self, scope: str, depth: int) -> ProtoMessage:
        if depth > DEPTH_MAX:
            raise ValueError("messages are nested too deep")
        name = self._next()
        message = ProtoMessage(f"{scope}.{name}" if scope else name)
        self._file.all_messages[message.name] = message
        for word in self._inside():
            self._member(message, word, depth)
        return message

    def _member(self, message: ProtoMessage, word: str, depth: int) -> None:
        if word == "message":
            message.nested.append(self._message(message.name, depth + 1))
        elif word == "enum":
            self._enum(message.name)
        elif word == "oneof":
            name = self._next()
            for inner in self._inside():
                if inner in _PASSED_OVER:
                    self._skip_statement()
                else:
                    self._field(message, inner, oneof=name)
        elif word == "extend" or (word in _PASSED_OVER and self._tokens[self._at] != "="):
            self._skip_statement()
        elif word == "map" and self._tokens[self._at] == "<":
            self._map(message)
        elif word in _LABELS:
            self._field(message, self._next(), label=word)
        else:
            self._field(message, word)

    def _field(self, message: ProtoMessage, kind: str, *, label: str = "", oneof: str = "") -> None:
        name = self._next()
        self._expect("=")
        number = self._number()
        message.fields[number] = ProtoField(
            name, number, kind, label == "repeated", oneof=oneof, required=label == "required"
        )
        self._skip_statement()

    def _map(self, message: ProtoMessage) -> None:
        self._expect("<")
        key = self._next()
        self._expect(",")
        value = self._next()
        self._expect(">")
        name = self._next()
        self._expect("=")
        number = self._number()
        message.fields[number] = ProtoField(name, number, key, repeated=True, map_value=value)
        self._skip_statement()

    def _enum(self, scope: str) -> None:
        name = self._next()
        values: dict[int, str] = {}
        for word in self._inside():
            if word in ("option", "reserved") and self._tokens[self._at] != "=":
                self._skip_statement()
                continue
            self._expect("=")
            values.setdefault(self._number(), word)
            self._skip_statement()
        self._file.all_enums[f"{scope}.{name}" if scope else name] = values

    def _number(self) -> int:
        word = self._next()
        negative = word == "-"
        text = self._next() if negative else word
        number = int(text, 0)
        return -number if negative else number
