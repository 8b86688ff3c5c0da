"""Records of the topic `_schemas`, in Confluent's form: JSON keys and values.

    key                                                          value
    {"keytype":"SCHEMA","subject":"s","version":1,"magic":1}     {"subject":"s","version":1,"id":1,"md5":…,
                                                                  "schema":…,"deleted":false}; null: erased
    {"keytype":"CONFIG","subject":"s" or null,"magic":0}         {"subject":"s","compatibilityLevel":"FULL",…}
    {"keytype":"MODE","subject":"s" or null,"magic":0}           {"subject":"s","mode":"READONLY"}
    {"keytype":"DELETE_SUBJECT","subject":"s","magic":0}         {"subject":"s","version":3}: all up to it
    {"keytype":"CLEAR_SUBJECT","subject":"s","magic":0}          {"subject":"s"}: nothing of it is left
    {"keytype":"CONTEXT","tenant":"default","context":".c","magic":0}   {"tenant":"default","context":".c"}
    {"keytype":"NOOP","magic":0}                                 ours: {"highestIds":{".":17}}, others': null

Compaction goes by the bytes of a key, so its fields are in Confluent's order. The value of NOOP is read by
nobody else; ours remembers ids that were given to schemas which are gone, so that none is given again.
"""

import base64
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from tidelog.registry.entities import AVRO, Content, Reference, SchemaVersion, compact

SCHEMA = "SCHEMA"
CONFIG = "CONFIG"
MODE = "MODE"
DELETE_SUBJECT = "DELETE_SUBJECT"
CLEAR_SUBJECT = "CLEAR_SUBJECT"
CONTEXT = "CONTEXT"
NOOP = "NOOP"
_TENANT = "default"


class StoredRecord(NamedTuple):
    """A record to write: the bytes of its key, and of its value or None."""

    key: bytes
    value: bytes | None

    @property
    def size_bytes(self) -> int:
        return len(self.key) + len(self.value or b"")


class Decoded(NamedTuple):
    """A record that was read."""

    kind: str
    key: Mapping[str, Any]
    value: Mapping[str, Any] | None


class UnreadableRecord(ValueError):
    """A record that is none of the registry's."""


def decode(key: bytes | None, value: bytes | None) -> Decoded:
    """Raises UnreadableRecord."""
    try:
        found = json.loads(key or b"")
        body = None if value is None or not value.strip() else json.loads(value)
    except (ValueError, RecursionError) as fault:
        raise UnreadableRecord(str(fault)) from fault
    if not isinstance(found, dict) or not isinstance(body, dict | None):
        raise UnreadableRecord("a key and a value are JSON objects")
    return Decoded(str(found.get("keytype")), found, body)


def schema_key(subject: str, version: int) -> bytes:
    return _bytes({"keytype": SCHEMA, "subject": subject, "version": version, "magic": 1})


def _bytes(value: Any) -> bytes:
    return compact(value).encode()


def schema_record(schema: SchemaVersion) -> StoredRecord:
    """What keeps a version."""
    content = schema.content
    value: dict[str, Any] = {
        "subject": schema.subject,
        "version": schema.version,
        "id": schema.schema_id,
        "md5": base64.b64encode(content.digest()).decode(),
    }
    if content.schema_type != AVRO:
        value["schemaType"] = content.schema_type
    if content.references:
        value["references"] = [reference.as_json() for reference in content.references]
    if content.metadata is not None:
        value["metadata"] = content.metadata
    if content.rule_set is not None:
        value["ruleSet"] = content.rule_set
    value |= {"schema": content.text, "deleted": schema.deleted}
    return StoredRecord(schema_key(schema.subject, schema.version), _bytes(value))


def read_schema(value: Mapping[str, Any]) -> SchemaVersion:
    """The version that a value keeps; raises UnreadableRecord."""
    try:
        references = tuple(
            Reference(str(row["name"]), str(row["subject"]), int(row["version"]))
            for row in value.get("references") or ()
        )
        content = Content(
            str(value.get("schemaType") or AVRO),
            str(value["schema"]),
            references,
            value.get("metadata"),
            value.get("ruleSet"),
        )
        return SchemaVersion(
            str(value["subject"]),
            int(value["version"]),
            int(value["id"]),
            content,
            bool(value.get("deleted", False)),
        )
    except (KeyError, TypeError, ValueError) as fault:
        raise UnreadableRecord(f"a schema without {fault}") from fault


def erased_schema(subject: str, version: int) -> StoredRecord:
    return StoredRecord(schema_key(subject, version), None)


def deleted_subject(subject: str, version: int) -> StoredRecord:
    return StoredRecord(
        _bytes({"keytype": DELETE_SUBJECT, "subject": subject, "magic": 0}),
        _bytes({"subject": subject, "version": version}),
    )


def config_record(subject: str, config: Mapping[str, Any] | None) -> StoredRecord:
    """Settings of a subject, of a context, or ("") of everything; None takes them away."""
    key = _bytes({"keytype": CONFIG, "subject": subject or None, "magic": 0})
    return StoredRecord(key, None if config is None else _bytes({"subject": subject or None, **config}))


def mode_record(subject: str, mode: str | None) -> StoredRecord:
    key = _bytes({"keytype": MODE, "subject": subject or None, "magic": 0})
    return StoredRecord(key, None if mode is None else _bytes({"subject": subject or None, "mode": mode}))


def context_record(context: str, *, present: bool = True) -> StoredRecord:
    value = {"tenant": _TENANT, "context": context}
    # The order of Confluent's key: its tenant and context come before the magic number.
    key = _bytes({"keytype": CONTEXT, **value, "magic": 0})
    return StoredRecord(key, _bytes(value) if present else None)


def highest_ids(ids: Mapping[str, int]) -> StoredRecord:
    """Remembers ids that no schema may have again."""
    return StoredRecord(_bytes({"keytype": NOOP, "magic": 0}), _bytes({"highestIds": dict(ids)}))
