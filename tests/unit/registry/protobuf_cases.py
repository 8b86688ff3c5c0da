"""Pairs of Protobuf schemas with Confluent's verdicts: whether the new one may follow the old one, BACKWARD
and FORWARD.

The rules are those of its documentation and of "Updating a message type" of Protobuf's: fields are known by
numbers, types of one family on the wire may take each other's place, a message must not go away.
"""

from tests.unit.registry.avro_cases import Case


def message(fields: str, *, more: str = "", package: str = "p") -> str:
    return f'syntax = "proto3";\npackage {package};\nmessage M {{ {fields} }}\n{more}'


def two(fields: str, more: str = "") -> str:
    return f'syntax = "proto2";\npackage p;\nmessage M {{ {fields} }}\n{more}'


S = "string s = 1;"
NESTED = "N n = 1; message N { int32 i = 1; }"

_ROWS: tuple[tuple[str, str, str, bool, bool], ...] = (
    ("the same", message(S), message(S), True, True),
    ("a comment is added", message(S), "// so\n" + message(S), True, True),
    ("a field is added", message(S), message(S + "int32 i = 2;"), True, True),
    ("a field is removed", message(S + "int32 i = 2;"), message(S), True, True),
    ("a field is renamed", message(S), message("string t = 1;"), True, True),
    ("a number changes", message(S), message("string s = 2;"), True, True),
    ("fields change places", message(S + "int32 i = 2;"), message("int32 i = 2;" + S), True, True),
    ("a number is reserved", message(S + "int32 i = 2;"), message(S + "reserved 2;"), True, True),
    ("the package changes", message(S), message(S, package="q"), False, False),
    ("a message is added", message(S), message(S, more="message O {}"), True, False),
    ("a message is removed", message(S, more="message O {}"), message(S), False, True),
    (
        "messages change places",
        message(S, more="message O {}"),
        f'syntax = "proto3";\npackage p;\nmessage O {{}}\nmessage M {{ {S} }}',
        True,
        True,
    ),
    ("the message is renamed", message(S), message(S).replace(" M ", " O "), False, False),
    ("int32 to int64", message("int32 i = 1;"), message("int64 i = 1;"), True, True),
    ("int32 to uint32", message("int32 i = 1;"), message("uint32 i = 1;"), True, True),
    ("int32 to bool", message("int32 i = 1;"), message("bool i = 1;"), True, True),
    ("int32 to sint32", message("int32 i = 1;"), message("sint32 i = 1;"), False, False),
    ("sint32 to sint64", message("sint32 i = 1;"), message("sint64 i = 1;"), True, True),
    ("int32 to fixed32", message("int32 i = 1;"), message("fixed32 i = 1;"), False, False),
    ("fixed32 to sfixed32", message("fixed32 i = 1;"), message("sfixed32 i = 1;"), True, True),
    ("fixed64 to sfixed64", message("fixed64 i = 1;"), message("sfixed64 i = 1;"), True, True),
    ("fixed32 to fixed64", message("fixed32 i = 1;"), message("fixed64 i = 1;"), False, False),
    ("float to double", message("float i = 1;"), message("double i = 1;"), False, False),
    ("string to bytes", message(S), message("bytes s = 1;"), True, True),
    ("string to int32", message(S), message("int32 s = 1;"), False, False),
    ("a field becomes repeated", message("int32 i = 1;"), message("repeated int32 i = 1;"), True, True),
    ("a field becomes optional", message("int32 i = 1;"), message("optional int32 i = 1;"), True, True),
    (
        "an enum becomes a number",
        message("E e = 1; enum E { A = 0; }"),
        message("int32 e = 1; enum E { A = 0; }"),
        True,
        True,
    ),
    (
        "an enum becomes a string",
        message("E e = 1; enum E { A = 0; }"),
        message("string e = 1; enum E { A = 0; }"),
        False,
        False,
    ),
    (
        "a value is added",
        message(S + "enum E { A = 0; }"),
        message(S + "enum E { A = 0; B = 1; }"),
        True,
        True,
    ),
    ("a value is renamed", message(S + "enum E { A = 0; }"), message(S + "enum E { B = 0; }"), True, True),
    ("an enum is added", message(S), message(S, more="enum E { A = 0; }"), True, True),
    ("an enum is removed", message(S, more="enum E { A = 0; }"), message(S), True, True),
    (
        "a scalar becomes a message",
        message("int32 n = 1; message N {}"),
        message("N n = 1; message N {}"),
        False,
        False,
    ),
    (
        "a nested message grows",
        message(NESTED),
        message(NESTED.replace("= 1; }", "= 1; bool b = 2; }")),
        True,
        True,
    ),
    (
        "a nested field changes its type",
        message(NESTED),
        message(NESTED.replace("int32", "string")),
        False,
        False,
    ),
    (
        "a field gets another message",
        message(NESTED + "message O { int32 i = 1; }"),
        message(NESTED.replace("N n", "O n") + "message O { int32 i = 1; }"),
        False,
        False,
    ),
    ("a nested message is removed", message(S + "message N {}"), message(S), False, True),
    (
        "a map gets another value",
        message("map<string, int32> m = 1;"),
        message("map<string, string> m = 1;"),
        False,
        False,
    ),
    (
        "a map's value of one family",
        message("map<string, int32> m = 1;"),
        message("map<string, int64> m = 1;"),
        True,
        True,
    ),
    ("a map becomes a scalar", message("map<string, int32> m = 1;"), message("int32 m = 1;"), False, False),
    ("a map is removed", message(S + "map<string, int32> m = 2;"), message(S), True, True),
    ("a oneof is added", message(S), message(S + "oneof o { int32 i = 2; }"), True, True),
    ("a oneof is removed with its fields", message(S + "oneof o { int32 i = 2; }"), message(S), True, True),
    (
        "a field is added to a oneof",
        message("oneof o { int32 i = 1; }"),
        message("oneof o { int32 i = 1; int32 j = 2; }"),
        True,
        False,
    ),
    ("one field moves into a new oneof", message(S), message("oneof o { string s = 1; }"), True, True),
    (
        "two fields move into a new oneof",
        message(S + "int32 i = 2;"),
        message("oneof o { string s = 1; int32 i = 2; }"),
        False,
        True,
    ),
    (
        "a field moves into a oneof that is there",
        message(S + "oneof o { int32 i = 2; }"),
        message("oneof o { string s = 1; int32 i = 2; }"),
        False,
        True,
    ),
    (
        "a oneof is renamed",
        message("oneof o { string s = 1; int32 i = 2; }"),
        message("oneof q { string s = 1; int32 i = 2; }"),
        True,
        True,
    ),
    (
        "a field in a oneof changes its type",
        message("oneof o { string s = 1; int32 i = 2; }"),
        message("oneof o { string s = 1; string i = 2; }"),
        False,
        False,
    ),
    (
        "a required field is added",
        two("optional int32 i = 1;"),
        two("optional int32 i = 1; required int32 j = 2;"),
        False,
        False,
    ),
    (
        "a required field is removed",
        two("optional int32 i = 1; required int32 j = 2;"),
        two("optional int32 i = 1;"),
        False,
        False,
    ),
    (
        "a required number becomes optional",
        two("required int32 i = 1;"),
        two("optional int32 i = 1;"),
        False,
        False,
    ),
    (
        "a required text becomes optional",
        two("required string s = 1;"),
        two("optional string s = 1;"),
        True,
        True,
    ),
    (
        "an optional number becomes repeated",
        two("optional int32 i = 1;"),
        two("repeated int32 i = 1;"),
        False,
        False,
    ),
    ("proto2 becomes proto3", two("optional string s = 1;"), message(S), True, True),
    (
        "a recursive message grows",
        message("M m = 1; int32 i = 2;"),
        message("M m = 1; int32 i = 2; int32 j = 3;"),
        True,
        True,
    ),
    (
        "a recursive message changes a type",
        message("M m = 1; int32 i = 2;"),
        message("M m = 1; string i = 2;"),
        False,
        False,
    ),
    ("a service is added", message(S), message(S, more="service V { rpc Get (M) returns (M); }"), True, True),
    (
        "a well-known type takes another's place",
        'import "google/protobuf/timestamp.proto";\n',
        'import "google/protobuf/duration.proto";\n',
        True,
        True,
    ),
)


def _whole(text: str) -> str:
    if not text.startswith("import"):
        return text
    kind = "Timestamp" if "timestamp" in text else "Duration"
    return f'syntax = "proto3";\npackage p;\n{text}message M {{ google.protobuf.{kind} t = 1; }}'


#: the last pair differs in the name of its type
_VERDICTS = {"a well-known type takes another's place": (False, False)}

CASES = tuple(
    Case(name, _whole(old), _whole(new), *_VERDICTS.get(name, (back, forth)))
    for name, old, new, back, forth in _ROWS
)
