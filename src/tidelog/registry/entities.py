"""What the registry keeps: schemas with their versions and ids, as frozen values, and the JSON of answers.

The guid of a schema is Confluent's: the MD5 of its text, references, metadata and rules as a UUID, so the
same schema has the same guid in every registry.
"""

import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

AVRO = "AVRO"
JSON = "JSON"
PROTOBUF = "PROTOBUF"
SCHEMA_TYPES = (JSON, PROTOBUF, AVRO)


class Reference(NamedTuple):
    """Another schema that a schema uses, by the name it uses for it."""

    name: str
    subject: str
    version: int

    def as_json(self) -> dict[str, Any]:
        return self._asdict()


@dataclass(frozen=True, slots=True)
class Content:
    """What makes a schema the same as another."""

    schema_type: str
    text: str
    references: tuple[Reference, ...] = ()
    metadata: Mapping[str, Any] | None = None
    rule_set: Mapping[str, Any] | None = None

    def digest(self) -> bytes:
        """Confluent's MD5 of a schema."""
        found = hashlib.md5(self.text.encode(), usedforsecurity=False)
        for reference in self.references:
            found.update(reference.name.encode())
            found.update(reference.subject.encode())
            found.update(reference.version.to_bytes(4, "big", signed=True))
        if self.metadata is not None:
            found.update(b"\x01")
            _update_metadata(found, self.metadata)
        if self.rule_set is not None:
            found.update(b"\x01")
            _update_rules(found, self.rule_set)
        return found.digest()

    def same_but_extras(self, other: "Content") -> bool:
        """Whether the schemas are the same, whatever metadata and rules they have."""
        return (self.schema_type, self.text, self.references) == (
            other.schema_type,
            other.text,
            other.references,
        )


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """A version of a subject."""

    subject: str
    version: int
    schema_id: int
    content: Content
    deleted: bool = False

    def __repr__(self) -> str:
        gone = " deleted" if self.deleted else ""
        return f"<SchemaVersion {self.subject} v{self.version} id={self.schema_id}{gone}>"

    @property
    def guid(self) -> str:
        return guid_of(self.content)

    def as_json(self, text: str | None = None) -> dict[str, Any]:
        """The answer about a version."""
        return {
            "subject": self.subject,
            "version": self.version,
            "id": self.schema_id,
            "guid": self.guid,
            **content_json(self.content, text),
            **({"deleted": True} if self.deleted else {}),
        }


def content_json(content: Content, text: str | None = None) -> dict[str, Any]:
    """The part of an answer that is the schema; Avro is the type that is not said."""
    found: dict[str, Any] = {}
    if content.schema_type != AVRO:
        found["schemaType"] = content.schema_type
    if content.references:
        found["references"] = [reference.as_json() for reference in content.references]
    if content.metadata is not None:
        found["metadata"] = content.metadata
    if content.rule_set is not None:
        found["ruleSet"] = content.rule_set
    found["schema"] = content.text if text is None else text
    return found


def guid_of(content: Content) -> str:
    return str(uuid.UUID(bytes=content.digest()))


def compact(value: Any) -> str:
    """JSON without spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _update_texts(digest: Any, texts: Iterable[Any]) -> None:
    for text in texts:
        digest.update(str(text).encode())


def _update_metadata(digest: Any, metadata: Mapping[str, Any]) -> None:
    tags = metadata.get("tags")
    if tags is not None:
        for name in sorted(tags):
            digest.update(name.encode())
            _update_texts(digest, sorted(tags[name]))
    properties = metadata.get("properties")
    if properties is not None:
        for name in sorted(properties):
            digest.update(name.encode())
            digest.update(str(properties[name]).encode())
    if metadata.get("sensitive") is not None:
        _update_texts(digest, sorted(metadata["sensitive"]))


def _update_rules(digest: Any, rule_set: Mapping[str, Any]) -> None:
    for group in ("migrationRules", "domainRules", "encodingRules"):
        for rule in rule_set.get(group) or ():
            _update_rule(digest, rule)
    if rule_set.get("enableAt") is not None:
        digest.update(str(rule_set["enableAt"]).encode())


def _update_rule(digest: Any, rule: Mapping[str, Any]) -> None:
    for name in ("name", "doc", "kind", "mode", "type"):
        if rule.get(name) is not None:
            digest.update(str(rule[name]).encode())
    _update_texts(digest, sorted(rule.get("tags") or ()))
    parameters = rule.get("params") or {}
    for name in sorted(parameters):
        digest.update(name.encode())
        digest.update(str(parameters[name]).encode())
    for name in ("expr", "onSuccess", "onFailure"):
        if rule.get(name) is not None:
            digest.update(str(rule[name]).encode())
    if rule.get("disabled"):
        digest.update(b"\x01")
