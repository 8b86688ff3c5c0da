"""Protobuf: read by Google's compiler in a process of its own (`protoc`), compared by
`protobuf_difference`.

Texts are kept as they were sent, with their comments; two are the same when their descriptors are. A client
may send a descriptor in base64 in place of a text, and ask for one (`format=serialized`), as Confluent's
Python serializers do. Imports are the references' names, Google's well-known types and confluent/*.proto.
"""

import base64
import binascii
import re
from collections.abc import Sequence

from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError

from tidelog.registry import limits
from tidelog.registry.faults import BadSchema
from tidelog.registry.formats.parsed import Difference, Parsed, Referenced
from tidelog.registry.formats.protobuf_difference import Comparison, File
from tidelog.registry.formats.protobuf_text import render
from tidelog.registry.formats.protoc import COMPILER

_ROOT = "tidelog-schema-root.proto"
_IMPORT_NAME = re.compile(r"(?:[A-Za-z0-9_\-+ ]+[A-Za-z0-9_.\-+ ]*/)*[A-Za-z0-9_\-+ ]+[A-Za-z0-9_.\-+ ]*")
_IMPORT_CHARACTERS_MAX = 255
_TEXT = re.compile(r"\b(syntax|edition|message|enum|package|import|service|option|extend)\b")


class ProtobufSchema(Parsed):
    """A Protobuf file and what it imports."""

    def __init__(self, text: str, descriptors: descriptor_pb2.FileDescriptorSet) -> None:
        self.text = text
        self._descriptors = descriptors
        self._identity: str | None = None

    def __repr__(self) -> str:
        return f"<ProtobufSchema {self.text[:60]!r}>"

    @property
    def file(self) -> descriptor_pb2.FileDescriptorProto:
        return self._descriptors.file[-1]

    def normalized(self) -> str:
        return self.text if self.file.syntax == "editions" else render(self.file)

    def identity(self) -> str:
        if self._identity is None:
            self._identity = self.normalized()
        return self._identity

    def unreadable(self, previous: Parsed, policy: str) -> list[Difference]:
        if not isinstance(previous, ProtobufSchema):
            return [Difference("TYPE_CHANGED", "#/", "the old schema is no Protobuf schema")]
        try:
            return Comparison(File(previous._descriptors), File(self._descriptors), limits.Steps()).run()
        except RecursionError as fault:
            raise BadSchema("the schemas are too deep to be compared") from fault

    def rendered(self, form: str) -> str:
        if form != "serialized":
            return self.text
        return base64.b64encode(self.file.SerializeToString(deterministic=True)).decode()


def parse(text: str, references: Sequence[Referenced]) -> ProtobufSchema:
    """Read a schema and what it refers to; raises BadSchema."""
    text = _as_text(text)
    files = {}
    for reference in references:
        name = reference.name
        if not _IMPORT_NAME.fullmatch(name) or len(name) > _IMPORT_CHARACTERS_MAX or name == _ROOT:
            raise BadSchema(f"a reference is named as it is imported, not {name[:100]!r}")
        files[name] = _as_text(reference.text)
    files[_ROOT] = text
    found = COMPILER.compiled(files, _ROOT)
    try:
        return ProtobufSchema(text, descriptor_pb2.FileDescriptorSet.FromString(found))
    except DecodeError as fault:
        raise BadSchema(f"the compiled schema cannot be read: {fault}") from fault


def _as_text(text: str) -> str:
    """A descriptor in base64 as text; a text as it is."""
    if _TEXT.search(text):
        return text
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return text
    return COMPILER.text_of(data) if data else text
