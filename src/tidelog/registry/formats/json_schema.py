"""JSON Schema: checked against its own meta-schema by the library jsonschema, compared by
`json_difference`.

Drafts 4, 6, 7, 2019-09 and 2020-12; 7 where `$schema` says nothing. The text that is kept has no spaces and
the keys in the order given (sorted when `normalize` is asked for). Nothing that a schema refers to is
fetched.
"""

from collections.abc import Sequence
from typing import Any

import jsonschema
from jsonschema.validators import validator_for

from tidelog.registry import limits
from tidelog.registry.entities import compact
from tidelog.registry.faults import BadSchema
from tidelog.registry.formats.json_difference import Comparison
from tidelog.registry.formats.json_model import Document
from tidelog.registry.formats.parsed import Difference, Parsed, Referenced


class JsonSchema(Parsed):
    """A JSON Schema with what it refers to."""

    def __init__(self, value: Any, references: Sequence[tuple[Referenced, Any]]) -> None:
        self._value = value
        self._references = references
        self.text = compact(value)

    def __repr__(self) -> str:
        return f"<JsonSchema {self.text[:60]}>"

    def normalized(self) -> str:
        return compact(_sorted(self._value))

    def unreadable(self, previous: Parsed, policy: str) -> list[Difference]:
        if not isinstance(previous, JsonSchema):
            return [Difference("TYPE_CHANGED", "#/", "the old schema is no JSON Schema")]
        try:
            return Comparison(previous.document(), self.document(), policy, limits.Steps()).run()
        except RecursionError as fault:
            raise BadSchema("the schemas are too deep to be compared") from fault

    def document(self) -> Document:
        return Document(self._value, self._references)


def parse(text: str, references: Sequence[Referenced]) -> JsonSchema:
    """Read a schema and what it refers to; raises BadSchema."""
    value = limits.read_json(text)
    if not isinstance(value, dict | bool):
        raise BadSchema("a JSON Schema is an object, true or false")
    found = JsonSchema(value, [(each, limits.read_json(each.text)) for each in references])
    _check(value)
    found.document()
    return found


def _check(value: Any) -> None:
    default: Any = jsonschema.Draft7Validator
    validator = validator_for(value, default=default)
    try:
        fault = next(iter(validator(validator.META_SCHEMA).iter_errors(value)), None)
    except RecursionError as deep:
        raise BadSchema("the schema is too deep to be checked") from deep
    if fault is not None:
        place = "/".join(str(part) for part in fault.absolute_path)
        raise BadSchema(f"no JSON Schema at '/{place}': {fault.message[:300]}")


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    if isinstance(value, list):
        return [_sorted(each) for each in value]
    return value
