"""The API of settings and modes, of a subject, a context, or everything; and of contexts that are to go."""

from typing import Any

from tidelog import __version__
from tidelog.registry import settings_scope, subjects
from tidelog.registry.access import CONFIGURING, READING
from tidelog.registry.calls import Call
from tidelog.registry.faults import (
    NO_SUBJECT_CONFIG,
    NO_SUBJECT_MODE,
    RegistryFault,
)
from tidelog.registry.settings_scope import LEVEL_FIELD


def _for_reading(call: Call) -> str:
    if call.subject:
        call.require(call.subject, READING)
    return call.subject


def _for_changing(call: Call) -> str:
    subject = call.subject
    if subject and subjects.parse(subject).name:
        subjects.checked(subject)
        call.require(subject, CONFIGURING)
    else:
        # A context and the registry as a whole have the rights of the registry's topic.
        call.require(subjects.GLOBAL, CONFIGURING)
    return subject


def config(call: Call) -> Any:
    subject = _for_reading(call)
    state = call.registry.state

    def find() -> dict[str, Any]:
        if not subject or call.flag("defaultToGlobal"):
            return settings_scope.config_of(state, subject)
        own = state.config(subject)
        if own is None:
            raise RegistryFault(
                NO_SUBJECT_CONFIG,
                f"Subject '{subject}' does not have subject-level compatibility configured",
            )
        return {LEVEL_FIELD: settings_scope.config_of(state, subject)[LEVEL_FIELD], **own}

    return call.registry.read(find)


def set_config(call: Call) -> Any:
    subject = _for_changing(call)
    return call.registry.change(lambda decisions: decisions.set_config(subject, call.body))


def delete_config(call: Call) -> Any:
    subject = _for_changing(call)
    return call.registry.change(lambda decisions: decisions.delete_config(subject))


def mode(call: Call) -> Any:
    subject = _for_reading(call)
    state = call.registry.state

    def find() -> dict[str, Any]:
        if not subject or call.flag("defaultToGlobal"):
            return {"mode": settings_scope.mode_of(state, subject)}
        own = state.mode(subject)
        if own is None:
            raise RegistryFault(
                NO_SUBJECT_MODE, f"Subject '{subject}' does not have subject-level mode configured"
            )
        return {"mode": own}

    return call.registry.read(find)


def set_mode(call: Call) -> Any:
    subject = _for_changing(call)
    wanted = settings_scope.checked_mode(call.body.get("mode"))
    force = call.flag("force")
    return call.registry.change(lambda decisions: decisions.set_mode(subject, wanted, force=force))


def delete_mode(call: Call) -> Any:
    subject = _for_changing(call)
    return call.registry.change(lambda decisions: decisions.delete_mode(subject))


def delete_context(call: Call) -> Any:
    call.require(subjects.GLOBAL, CONFIGURING)
    name = call.path["context"].strip(":") or subjects.DEFAULT_CONTEXT
    return call.registry.change(lambda decisions: decisions.delete_context(name))


def root(call: Call) -> Any:
    return {}


def cluster_id(call: Call) -> Any:
    settings = call.registry.settings
    return {"scope": {"path": [], "clusters": {"schema-registry-cluster": settings.group_id}}, "id": ""}


def server_version(call: Call) -> Any:
    return {"version": f"tidelog-{__version__}", "commitId": ""}
