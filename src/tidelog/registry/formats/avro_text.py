"""Avro schemas as one canonical text: that of the Java library, which Confluent's registry keeps.

White space and the order of attributes do not matter: `type` and `name` come first, attributes that Avro does
not know after its own, in the order given (sorted when `normalize` is asked for). A type that was defined
before is written by its name, without the namespace where that is the enclosing one.
"""

from collections.abc import Mapping
from typing import Any

from tidelog.registry.entities import compact

_PRIMITIVES = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
_KNOWN = {"type", "name", "namespace", "doc", "fields", "symbols", "size", "items", "values", "aliases"}
_FIELD_KNOWN = {"name", "type", "doc", "default", "order", "aliases"}


class AvroText:
    """Writes one schema; it was checked before."""

    def __init__(self, *, sort: bool) -> None:
        self._sort = sort

    def text(self, schema: Any) -> str:
        return compact(self._type(schema, ""))

    def _type(self, schema: Any, namespace: str) -> Any:
        if isinstance(schema, str):
            return self._named(schema, namespace)
        if isinstance(schema, list):
            return [self._type(branch, namespace) for branch in schema]
        kind = schema["type"]
        if isinstance(kind, dict | list):
            # {"type": {…}}: the inner one is the type, the outer attributes mean nothing to it
            return self._type(kind, namespace)
        if kind in ("record", "error", "enum", "fixed"):
            return self._definition(kind, schema, namespace)
        found: dict[str, Any] = {"type": kind}
        if kind == "array":
            found["items"] = self._type(schema["items"], namespace)
        elif kind == "map":
            found["values"] = self._type(schema["values"], namespace)
        elif kind not in _PRIMITIVES:
            return self._named(kind, namespace)
        found |= self._others(schema, {"type", "items", "values"} if kind in ("array", "map") else {"type"})
        return kind if len(found) == 1 else found

    def _named(self, name: str, namespace: str) -> str:
        if name in _PRIMITIVES or "." not in name:
            return name
        space, _, short = name.rpartition(".")
        return short if space == namespace else name

    def _definition(self, kind: str, schema: Mapping[str, Any], enclosing: str) -> dict[str, Any]:
        namespace, _, name = str(schema["name"]).rpartition(".")
        if not namespace:
            namespace = str(schema.get("namespace", enclosing))
        found: dict[str, Any] = {"type": kind, "name": name}
        if namespace != enclosing:
            found["namespace"] = namespace
        if schema.get("doc") is not None:
            found["doc"] = schema["doc"]
        known = set(_KNOWN)
        if kind == "enum":
            found["symbols"] = schema["symbols"]
            if schema.get("default") is not None:
                found["default"] = schema["default"]
            known.add("default")
        elif kind == "fixed":
            found["size"] = schema["size"]
        else:
            found["fields"] = [self._field(field, namespace) for field in schema["fields"]]
        found |= self._others(schema, known)
        if schema.get("aliases"):
            found["aliases"] = [self._named(str(alias), namespace) for alias in schema["aliases"]]
        return found

    def _field(self, field: Mapping[str, Any], namespace: str) -> dict[str, Any]:
        found: dict[str, Any] = {"name": field["name"], "type": self._type(field["type"], namespace)}
        if field.get("doc") is not None:
            found["doc"] = field["doc"]
        if "default" in field:
            found["default"] = field["default"]
        if field.get("order", "ascending") != "ascending":
            found["order"] = field["order"]
        if field.get("aliases"):
            found["aliases"] = field["aliases"]
        return found | self._others(field, _FIELD_KNOWN)

    def _others(self, schema: Mapping[str, Any], known: set[str]) -> dict[str, Any]:
        names = [name for name in schema if name not in known]
        return {name: schema[name] for name in (sorted(names) if self._sort else names)}
