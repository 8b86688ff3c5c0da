"""Settings and modes: what may be set, and which ones a subject has.

The nearest that says something counts: the subject's own, its context's, then the registry's as a whole.
"""

from collections.abc import Mapping
from typing import Any

from tidelog.registry import subjects
from tidelog.registry.compatibility import DEFAULT_LEVEL, LEVELS
from tidelog.registry.faults import INVALID_LEVEL, INVALID_MODE, RegistryFault
from tidelog.registry.formats.parsed import LENIENT, STRICT
from tidelog.registry.state import State

READWRITE = "READWRITE"
READONLY = "READONLY"
READONLY_OVERRIDE = "READONLY_OVERRIDE"
IMPORT = "IMPORT"
FORWARD = "FORWARD"
MODES = (READWRITE, READONLY, READONLY_OVERRIDE, IMPORT, FORWARD)

#: as the field is named in the topic and in answers; requests call the first one `compatibility`
LEVEL_FIELD = "compatibilityLevel"
_FLAGS = ("normalize",)
_TEXTS = ("alias", "compatibilityGroup")
_TABLES = ("defaultMetadata", "overrideMetadata", "defaultRuleSet", "overrideRuleSet")
_KNOWN = ("compatibility", LEVEL_FIELD, "compatibilityPolicy", *_FLAGS, *_TEXTS, *_TABLES)


def changed_config(present: Mapping[str, Any] | None, body: Mapping[str, Any]) -> dict[str, Any]:
    """Settings after a request: what it names is set, what it names as null is taken away."""
    config = dict(present or {})
    for name, value in body.items():
        if name not in _KNOWN:
            if value is None:
                continue
            raise RegistryFault(INVALID_LEVEL, f"the setting '{name[:60]}' is not supported here")
        kept = LEVEL_FIELD if name == "compatibility" else name
        if value is None:
            config.pop(kept, None)
        else:
            config[kept] = _checked(kept, value)
    return config


def _checked(name: str, value: Any) -> Any:
    if name == LEVEL_FIELD:
        level = str(value).upper()
        if level not in LEVELS:
            raise RegistryFault(
                INVALID_LEVEL,
                "Invalid compatibility level. Valid values are none, backward, forward, full,"
                " backward_transitive, forward_transitive, and full_transitive",
            )
        return level
    if name == "compatibilityPolicy":
        policy = str(value).upper()
        if policy not in (STRICT, LENIENT):
            raise RegistryFault(
                INVALID_LEVEL, "Invalid compatibility policy. Valid values are strict, lenient"
            )
        return policy
    fits = isinstance(value, bool if name in _FLAGS else str if name in _TEXTS else dict)
    if not fits:
        raise RegistryFault(INVALID_LEVEL, f"the setting '{name}' has another kind of value")
    return value


def request_form(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as the answer to a request that changed them says them."""
    return {("compatibility" if name == LEVEL_FIELD else name): value for name, value in config.items()}


def checked_mode(value: Any) -> str:
    mode = str(value).upper()
    if mode not in MODES:
        raise RegistryFault(
            INVALID_MODE,
            "Invalid mode. Valid values are READWRITE, READONLY, READONLY_OVERRIDE, IMPORT and FORWARD",
        )
    return mode


def config_of(state: State, subject: str) -> dict[str, Any]:
    """The settings that hold for a subject, each from the nearest place that has it."""
    found: dict[str, Any] = {}
    for scope in reversed(subjects.parse(subject).scopes):
        found |= state.config(scope) or {}
    found.setdefault(LEVEL_FIELD, DEFAULT_LEVEL)
    return found


def mode_of(state: State, subject: str) -> str:
    """The mode that holds for a subject; READONLY_OVERRIDE of the registry counts before a subject's own."""
    if state.mode(subjects.GLOBAL) == READONLY_OVERRIDE:
        return READONLY_OVERRIDE
    for scope in subjects.parse(subject).scopes:
        mode = state.mode(scope)
        if mode is not None:
            return mode
    return READWRITE


def aliased(state: State, subject: str) -> str:
    """The subject that an alias stands for."""
    own = state.config(subject) or {}
    alias = own.get("alias")
    return subjects.beside(subject, alias) if isinstance(alias, str) and alias else subject


def merged_metadata(*parts: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Metadata on top of each other, the later one winning; None where there is none at all."""
    given = [part for part in parts if part is not None]
    if len(given) < 2:
        return given[0] if given else None
    merged: dict[str, Any] = {}
    for part in given:
        for name in ("tags", "properties"):
            if part.get(name):
                merged[name] = {**merged.get(name, {}), **part[name]}
        if part.get("sensitive"):
            merged["sensitive"] = list(dict.fromkeys((*merged.get("sensitive", ()), *part["sensitive"])))
    return merged


def merged_rules(*parts: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The same for rules, which are known by their names."""
    given = [part for part in parts if part is not None]
    if len(given) < 2:
        return given[0] if given else None
    merged: dict[str, Any] = {}
    for part in given:
        for name in ("migrationRules", "domainRules", "encodingRules"):
            if part.get(name):
                rules = {rule["name"]: rule for rule in (*merged.get(name, ()), *part[name])}
                merged[name] = list(rules.values())
        if part.get("enableAt") is not None:
            merged["enableAt"] = part["enableAt"]
    return merged
