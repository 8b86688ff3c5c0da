"""The API by subject: versions, looking up, registering, deleting, checking compatibility."""

from typing import Any

from tidelog.registry import settings_scope, subjects
from tidelog.registry.access import DELETING, READING, WRITING
from tidelog.registry.api_schemas import Plain, rendered
from tidelog.registry.calls import Call
from tidelog.registry.entities import SchemaVersion, content_json
from tidelog.registry.faults import (
    RegistryFault,
    invalid_schema,
    schema_not_found,
    subject_not_found,
    version_not_found,
)
from tidelog.registry.submitted import LATEST, read_submitted, read_version


def listed(call: Call) -> Any:
    prefix = call.text("subjectPrefix", subjects.ANY_CONTEXT)
    names = call.registry.state.subjects(
        prefix, deleted=call.flag("deleted"), deleted_only=call.flag("deletedOnly")
    )
    readable = call.allowed(names, READING)
    return call.page([name for name in names if name in readable])


def versions(call: Call) -> Any:
    subject = _aliased(call)
    call.require(subject, READING)
    deleted, only = call.flag("deleted"), call.flag("deletedOnly")

    def find() -> list[SchemaVersion]:
        found = call.registry.state.versions(subject, deleted=deleted or only)
        found = [each for each in found if each.deleted or not only]
        if not found:
            raise subject_not_found(subject)
        return found

    negative = call.flag("deletedAsNegative")
    return call.page(
        [-each.version if negative and each.deleted else each.version for each in call.registry.read(find)]
    )


def _aliased(call: Call) -> str:
    return settings_scope.aliased(call.registry.state, call.subject)


def _version(call: Call) -> SchemaVersion:
    """The version of the path; raises RegistryFault where there is none."""
    subject = _aliased(call)
    wanted = read_version(call.path["version"])
    call.require(subject, READING)
    deleted = call.flag("deleted")

    def find() -> SchemaVersion:
        found = call.registry.state.versions(subject, deleted=deleted)
        if not found:
            raise subject_not_found(subject)
        if wanted == LATEST:
            return found[-1]
        for each in found:
            if each.version == wanted:
                return each
        raise version_not_found(wanted)

    return call.registry.read(find)


def version(call: Call) -> Any:
    found = _version(call)
    return found.as_json(rendered(call, found))


def text_of_version(call: Call) -> Any:
    return Plain(rendered(call, _version(call)))


def referenced_by(call: Call) -> Any:
    found = _version(call)
    rows = call.registry.state.referrers(found.subject, found.version, deleted=call.flag("deleted"))
    return call.page(sorted({each.schema_id for each in rows}))


def with_metadata(call: Call) -> Any:
    """The latest version that has all of these properties in its metadata."""
    subject = _aliased(call)
    call.require(subject, READING)
    wanted = dict(zip(call.query.get("key", ()), call.query.get("value", ()), strict=False))

    def find() -> SchemaVersion:
        found = call.registry.state.versions(subject, deleted=call.flag("deleted"))
        if not found:
            raise subject_not_found(subject)
        for each in reversed(found):
            properties = (each.content.metadata or {}).get("properties") or {}
            if wanted.items() <= properties.items():
                return each
        raise schema_not_found()

    found = call.registry.read(find)
    return found.as_json(rendered(call, found))


def look_up(call: Call) -> Any:
    subject = subjects.checked(_aliased(call))
    call.require(subject, READING)
    submitted = read_submitted(call.body)
    normalize, deleted = call.flag("normalize"), call.flag("deleted")
    found = call.registry.read(
        lambda: call.registry.decisions.lookup(subject, submitted, normalize=normalize, deleted=deleted)
    )
    return found.as_json(rendered(call, found))


def register(call: Call) -> Any:
    subject = subjects.checked(_aliased(call))
    call.require(subject, WRITING)
    submitted = read_submitted(call.body)
    normalize = call.flag("normalize")
    found: SchemaVersion = call.registry.change(
        lambda decisions: decisions.register(subject, submitted, normalize=normalize)
    )
    answer: dict[str, Any] = {"id": found.schema_id, "version": found.version, "guid": found.guid}
    content = found.content
    if submitted.text is None or (content.metadata, content.rule_set) != (
        submitted.metadata,
        submitted.rule_set,
    ):
        # What the registry added. Clients keep this in place of what they sent, so it is in their own form.
        answer |= content_json(content, submitted.text or rendered(call, found))
    return answer


def delete_version(call: Call) -> Any:
    call.require(call.subject, DELETING)
    wanted = read_version(call.path["version"])
    permanent = call.flag("permanent")
    return call.registry.change(
        lambda decisions: decisions.delete_version(call.subject, wanted, permanent=permanent)
    )


def delete_subject(call: Call) -> Any:
    call.require(call.subject, DELETING)
    permanent = call.flag("permanent")
    return call.registry.change(lambda decisions: decisions.delete_subject(call.subject, permanent=permanent))


def compatible(call: Call) -> Any:
    """Whether a schema could be registered; with a version, judged against that one alone."""
    subject = subjects.checked(_aliased(call))
    call.require(subject, READING)
    submitted = read_submitted(call.body)
    wanted = read_version(call.path["version"]) if "version" in call.path else None
    verbose, normalize = call.flag("verbose"), call.flag("normalize")
    try:
        messages = call.registry.read(
            lambda: call.registry.decisions.compatible(subject, submitted, wanted, normalize=normalize)
        )
    except RegistryFault as fault:
        if verbose and fault.code == invalid_schema("").code:
            return {"is_compatible": False, "messages": [fault.message]}
        raise
    answer: dict[str, Any] = {"is_compatible": not messages}
    if verbose:
        answer["messages"] = messages
    return answer
