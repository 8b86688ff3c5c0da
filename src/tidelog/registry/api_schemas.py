"""The API by id and by guid: schemas, where they are, types, contexts."""

import uuid
from typing import Any

from tidelog.registry import subjects
from tidelog.registry.access import READING
from tidelog.registry.calls import Call
from tidelog.registry.entities import SCHEMA_TYPES, SchemaVersion, content_json
from tidelog.registry.faults import (
    FORBIDDEN,
    BadSchema,
    RegistryFault,
    invalid_schema,
    schema_not_found,
)

#: which forms of a text there are; another one is the usual one
_TEXT_FORM = ""


def rendered(call: Call, schema: SchemaVersion) -> str:
    """The text of a schema in the form that is asked for."""
    form = call.text("format", _TEXT_FORM)
    if form in (_TEXT_FORM, "default"):
        return schema.content.text
    try:
        return call.registry.decisions.parsed(schema).rendered(form)
    except BadSchema as fault:
        raise invalid_schema(str(fault)) from fault


def _context_of(call: Call) -> str:
    """Ids are counted per context: that of the subject that is named beside the id."""
    return subjects.parse(call.text("subject")).context


def _of_id(call: Call) -> list[SchemaVersion]:
    """Every version with the id that the caller may read; raises RegistryFault where there is none."""
    schema_id = call.schema_id()

    def find() -> list[SchemaVersion]:
        found = call.registry.state.of_id(_context_of(call), schema_id)
        if not found:
            raise schema_not_found(schema_id)
        return found

    found = call.registry.read(find)
    readable = call.allowed({each.subject for each in found}, READING)
    if not readable:
        raise RegistryFault(FORBIDDEN, f"user {call.caller.name} may not read schema {schema_id}")
    return [each for each in found if each.subject in readable]


def by_id(call: Call) -> Any:
    found = _of_id(call)
    wanted = subjects.parse(call.text("subject"))
    schema = next((each for each in found if wanted.name and each.subject == wanted.text), found[0])
    answer = {**content_json(schema.content, rendered(call, schema)), "guid": schema.guid}
    if call.flag("fetchMaxId"):
        answer["maxId"] = call.registry.state.highest_id(_context_of(call))
    return answer


def text_by_id(call: Call) -> Any:
    return Plain(rendered(call, _of_id(call)[0]))


def subjects_of_id(call: Call) -> Any:
    found = [each for each in _of_id(call) if call.flag("deleted") or not each.deleted]
    return call.page(sorted({each.subject for each in _named(call, found)}))


def versions_of_id(call: Call) -> Any:
    found = [each for each in _of_id(call) if call.flag("deleted") or not each.deleted]
    rows = sorted((each.subject, each.version) for each in _named(call, found))
    return call.page([{"subject": subject, "version": version} for subject, version in rows])


def _named(call: Call, found: list[SchemaVersion]) -> list[SchemaVersion]:
    wanted = subjects.parse(call.text("subject"))
    return [each for each in found if not wanted.name or each.subject == wanted.text]


def _places_of_guid(call: Call) -> list[tuple[str, int]]:
    try:
        digest = uuid.UUID(call.path["guid"]).bytes
    except ValueError as fault:
        raise schema_not_found(call.path["guid"][:100]) from fault

    def find() -> list[tuple[str, int]]:
        found = list(call.registry.state.of_guid(digest))
        if not found:
            raise schema_not_found(call.path["guid"])
        return found

    return call.registry.read(find)


def by_guid(call: Call) -> Any:
    for context, schema_id in _places_of_guid(call):
        found = call.registry.state.of_id(context, schema_id)
        readable = call.allowed({each.subject for each in found}, READING)
        for schema in found:
            if schema.subject in readable:
                return {**content_json(schema.content, rendered(call, schema)), "guid": schema.guid}
    raise RegistryFault(FORBIDDEN, f"user {call.caller.name} may not read this schema")


def ids_of_guid(call: Call) -> Any:
    rows = []
    for context, schema_id in _places_of_guid(call):
        found = call.registry.state.of_id(context, schema_id)
        if call.allowed({each.subject for each in found}, READING):
            rows.append({"context": context, "id": schema_id})
    return rows


def types(call: Call) -> Any:
    return list(SCHEMA_TYPES)


def contexts(call: Call) -> Any:
    prefix = call.text("contextPrefix")
    return call.page([each for each in call.registry.state.contexts() if each.startswith(prefix)])


def schemas(call: Call) -> Any:
    """Every version of every subject that the caller may read."""
    state = call.registry.state
    deleted = call.flag("deleted")
    names = state.subjects(call.text("subjectPrefix") or subjects.ANY_CONTEXT, deleted=deleted)
    readable = call.allowed(names, READING)
    rows: list[SchemaVersion] = []
    for name in names:
        if name in readable:
            found = state.versions(name, deleted=deleted)
            rows += found[-1:] if call.flag("latestOnly") else found
    return [each.as_json() for each in call.page(rows)]


class Plain(str):
    """An answer that is a text of its own, not JSON around it."""

    __slots__ = ()
