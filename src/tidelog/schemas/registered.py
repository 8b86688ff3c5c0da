"""The schemas of a registry, kept as they are read: a schema never changes, and neither do those that it
refers to.

    schemas = RegisteredSchemas(RegistryClient("http://localhost:8081"))
    schemas.by_id(7)
    schemas.version("orders-value", "latest")

What the registry says is hostile input, as the rest of what comes by network: kinds and references are
checked, and their number is bounded. Raises RegistryFault, RegistryUnreachable, and ValueError for answers
that cannot be used.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from tidelog.schemas.registry_client import RegistryClient, subject_path

AVRO, JSON_SCHEMA, PROTOBUF = "avro", "json-schema", "protobuf"
#: by the registry's word
KINDS = {"AVRO": AVRO, "JSON": JSON_SCHEMA, "PROTOBUF": PROTOBUF}
TYPES = {kind: word for word, kind in KINDS.items()}
LATEST = "latest"
SCHEMAS_KEPT_MAX = 1_000
REFERENCES_MAX = 50


@dataclass(frozen=True, slots=True)
class Reference:
    """A schema that another one refers to, by the name that it uses."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema with its id and all that it refers to, directly or not."""

    id: int
    kind: str
    text: str
    references: tuple[Reference, ...] = ()

    def __repr__(self) -> str:
        return f"<RegisteredSchema {self.id} {self.kind}>"


class RegisteredSchemas:
    """What one registry has; safe from any thread."""

    def __init__(self, client: RegistryClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, RegisteredSchema] = OrderedDict()

    def __repr__(self) -> str:
        return f"<RegisteredSchemas {self._client!r} kept={len(self._kept)}>"

    def by_id(self, schema_id: int) -> RegisteredSchema:
        """The schema of an id."""
        with self._lock:
            kept = self._kept.get(schema_id)
            if kept is not None:
                self._kept.move_to_end(schema_id)
        if kept is None:
            kept = self._keep(self._schema(schema_id, self._asked(f"/schemas/ids/{schema_id}")))
        return kept

    def version(self, subject: str, version: int | str = LATEST) -> RegisteredSchema:
        """A version of a subject; the latest one is asked for each time."""
        found = self._asked(f"/subjects/{subject_path(subject)}/versions/{version}")
        schema_id = found.get("id")
        if not isinstance(schema_id, int):
            raise ValueError("the registry's answer has no id")
        with self._lock:
            kept = self._kept.get(schema_id)
        return kept if kept is not None else self._keep(self._schema(schema_id, found))

    def register(self, subject: str, kind: str, text: str) -> RegisteredSchema:
        """Register a schema without references; one that is there already keeps its id."""
        body = {"schema": text, "schemaType": TYPES[kind]}
        answer = self._client.ask("POST", f"/subjects/{subject_path(subject)}/versions", body)
        return self.by_id(int(answer["id"]))

    def _keep(self, made: RegisteredSchema) -> RegisteredSchema:
        with self._lock:
            self._kept[made.id] = made
            while len(self._kept) > SCHEMAS_KEPT_MAX:
                self._kept.popitem(last=False)
        return made

    def _asked(self, path: str) -> dict[str, Any]:
        found = self._client.ask("GET", path)
        if not isinstance(found, dict) or not isinstance(found.get("schema"), str):
            raise ValueError("the registry's answer has no schema")
        return found

    def _schema(self, schema_id: int, found: dict[str, Any]) -> RegisteredSchema:
        word = str(found.get("schemaType") or "AVRO").upper()
        kind = KINDS.get(word)
        if kind is None:
            raise ValueError(f"schemas of type {word[:40]} are not known here")
        try:
            return RegisteredSchema(schema_id, kind, found["schema"], self._references(found))
        except (KeyError, TypeError, AttributeError) as fault:
            raise ValueError(f"the references in the registry's answer cannot be read: {fault!r}") from fault

    def _references(self, found: dict[str, Any]) -> tuple[Reference, ...]:
        made: list[Reference] = []
        seen: set[tuple[str, int]] = set()
        wanted = list(found.get("references") or ())
        while wanted:
            reference = wanted.pop()
            key = (str(reference["subject"]), int(reference["version"]))
            if key in seen:
                continue
            seen.add(key)
            if len(seen) > REFERENCES_MAX:
                raise ValueError("too many references")
            other = self._asked(f"/subjects/{subject_path(key[0])}/versions/{key[1]}")
            made.append(Reference(str(reference["name"]), other["schema"]))
            wanted += other.get("references") or ()
        return tuple(made)
