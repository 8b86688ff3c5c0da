"""A schema as a client submits it: the body of a request, read and bounded before anything is done with
it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidelog.registry import limits
from tidelog.registry.entities import AVRO, Reference
from tidelog.registry.faults import (
    INVALID_RULE_SET,
    INVALID_SCHEMA,
    INVALID_VERSION,
    SCHEMA_TOO_LARGE,
    RegistryFault,
)

#: a version and an id are Java's int
NUMBER_MAX = 2**31 - 1
LATEST = -1
NAME_CHARACTERS_MAX = 1_024
RULES_MAX = 500
_RULE_GROUPS = ("migrationRules", "domainRules", "encodingRules")


@dataclass(frozen=True, slots=True)
class Submitted:
    """What was sent; text None takes the latest version's."""

    schema_type: str
    text: str | None
    references: tuple[Reference, ...]
    metadata: Mapping[str, Any] | None
    rule_set: Mapping[str, Any] | None
    #: of an import; None everywhere else
    schema_id: int | None
    version: int | None


def read_submitted(body: Mapping[str, Any]) -> Submitted:
    """Raises RegistryFault for values of the wrong kind or size."""
    text = body.get("schema")
    if text is not None and not isinstance(text, str):
        raise RegistryFault(INVALID_SCHEMA, "the field 'schema' is a text")
    if text is not None and len(text.encode(errors="replace")) > limits.SCHEMA_BYTES_MAX:
        raise RegistryFault(
            SCHEMA_TOO_LARGE, f"a schema has at most {limits.SCHEMA_BYTES_MAX} bytes in this registry"
        )
    kind = body.get("schemaType") or AVRO
    if not isinstance(kind, str):
        raise RegistryFault(INVALID_SCHEMA, "the field 'schemaType' is a text")
    return Submitted(
        kind.upper(),
        text if text is not None and text.strip() else None,
        _references(body.get("references")),
        _metadata(body.get("metadata")),
        _rule_set(body.get("ruleSet")),
        _number(body.get("id"), "id"),
        _number(body.get("version"), "version"),
    )


def read_version(text: str) -> int:
    """A version in a path: a number, or LATEST for `latest` and -1; raises RegistryFault."""
    if text in ("latest", "-1"):
        return LATEST
    if text.isascii() and text.isdigit() and len(text) <= 10 and 1 <= int(text) <= NUMBER_MAX:
        return int(text)
    raise RegistryFault(
        INVALID_VERSION,
        f"The specified version '{text[:100]}' is not a valid version id. Allowed values are between"
        ' [1, 2^31-1] and the string "latest"',
    )


def _number(value: Any, name: str) -> int | None:
    """Clients send -1 or 0 for a number that they do not set."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value > NUMBER_MAX:
        raise RegistryFault(INVALID_SCHEMA, f"the field '{name}' is a number up to 2^31-1")
    return value if value > 0 else None


def _references(rows: Any) -> tuple[Reference, ...]:
    if rows is None:
        return ()
    if not isinstance(rows, list):
        raise RegistryFault(INVALID_SCHEMA, "the field 'references' is a list")
    if len(rows) > limits.REFERENCES_MAX:
        raise RegistryFault(INVALID_SCHEMA, f"a schema has at most {limits.REFERENCES_MAX} references")
    return tuple(_reference(row) for row in rows)


def _reference(row: Any) -> Reference:
    if isinstance(row, dict):
        name, subject, version = row.get("name"), row.get("subject"), row.get("version")
        if (
            isinstance(name, str)
            and isinstance(subject, str)
            and isinstance(version, int)
            and not isinstance(version, bool)
            and 0 < len(name) <= NAME_CHARACTERS_MAX
            and 0 < len(subject) <= NAME_CHARACTERS_MAX
            and (version == LATEST or 1 <= version <= NUMBER_MAX)
        ):
            return Reference(name, subject, version)
    raise RegistryFault(INVALID_SCHEMA, "a reference has a name, a subject and a version")


def _metadata(value: Any) -> Mapping[str, Any] | None:
    if value is None:
        return None
    tags, properties = value.get("tags") if isinstance(value, dict) else None, None
    if isinstance(value, dict):
        properties = value.get("properties")
    fits = (
        isinstance(value, dict)
        and _is_table(tags, lambda row: isinstance(row, list) and all(isinstance(tag, str) for tag in row))
        and _is_table(properties, lambda row: isinstance(row, str))
        and _is_texts(value.get("sensitive"))
    )
    if not fits:
        raise RegistryFault(
            INVALID_SCHEMA, "metadata has tags (lists of texts), properties (texts) and sensitive (texts)"
        )
    return {name: value[name] for name in ("tags", "properties", "sensitive") if value.get(name) is not None}


def _is_table(value: Any, fits: Any) -> bool:
    return value is None or (isinstance(value, dict) and all(fits(row) for row in value.values()))


def _is_texts(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(each, str) for each in value))


def _rule_set(value: Any) -> Mapping[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise RegistryFault(INVALID_RULE_SET, "a ruleSet is an object")
    for group in _RULE_GROUPS:
        rules = value.get(group)
        if rules is None:
            continue
        if not isinstance(rules, list) or len(rules) > RULES_MAX:
            raise RegistryFault(INVALID_RULE_SET, f"{group} is a list of at most {RULES_MAX} rules")
        names: set[str] = set()
        for rule in rules:
            _check_rule(rule, names)
    if not any(value.get(group) for group in _RULE_GROUPS) and value.get("enableAt") is None:
        return None
    return {name: value[name] for name in (*_RULE_GROUPS, "enableAt") if value.get(name) is not None}


def _check_rule(rule: Any, names: set[str]) -> None:
    if not isinstance(rule, dict) or not isinstance(rule.get("name"), str) or not rule["name"]:
        raise RegistryFault(INVALID_RULE_SET, "a rule has a name")
    if rule["name"] in names:
        raise RegistryFault(INVALID_RULE_SET, f"Found rule with duplicate name '{rule['name'][:100]}'")
    names.add(rule["name"])
    if not _is_texts(rule.get("tags")) or not _is_table(rule.get("params"), lambda row: isinstance(row, str)):
        raise RegistryFault(INVALID_RULE_SET, f"rule '{rule['name'][:100]}': tags and params are texts")
