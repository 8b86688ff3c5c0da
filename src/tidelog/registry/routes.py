"""The table of the HTTP API, and how a path finds its row.

Segments are decoded one by one, so a subject may hold any character, a slash included. `/contexts/.name/…`
means the same as the rest of the path with subjects of that context.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

from tidelog.registry import api_schemas, api_settings, api_subjects, subjects
from tidelog.registry.calls import Call

Handler = Callable[[Call], Any]


class Route(NamedTuple):
    """A row of the table."""

    method: str
    template: str
    handler: Handler

    @property
    def changes(self) -> bool:
        """Whether only the primary may do it."""
        return self.handler in _CHANGING


_VERSION = "subjects/{subject}/versions/{version}"
_CHANGING: set[Handler] = {
    *(api_subjects.register, api_subjects.delete_version, api_subjects.delete_subject),
    *(api_settings.set_config, api_settings.delete_config),
    *(api_settings.set_mode, api_settings.delete_mode, api_settings.delete_context),
}

ROUTES: tuple[Route, ...] = tuple(
    Route(*row)
    for row in (
        ("GET", "", api_settings.root),
        ("POST", "", api_settings.root),
        ("GET", "v1/metadata/id", api_settings.cluster_id),
        ("GET", "v1/metadata/version", api_settings.server_version),
        ("GET", "schemas", api_schemas.schemas),
        ("GET", "schemas/types", api_schemas.types),
        ("GET", "schemas/ids/{id}", api_schemas.by_id),
        ("GET", "schemas/ids/{id}/schema", api_schemas.text_by_id),
        ("GET", "schemas/ids/{id}/subjects", api_schemas.subjects_of_id),
        ("GET", "schemas/ids/{id}/versions", api_schemas.versions_of_id),
        ("GET", "schemas/guids/{guid}", api_schemas.by_guid),
        ("GET", "schemas/guids/{guid}/ids", api_schemas.ids_of_guid),
        ("GET", "contexts", api_schemas.contexts),
        ("DELETE", "contexts/{context}", api_settings.delete_context),
        ("GET", "subjects", api_subjects.listed),
        ("POST", "subjects/{subject}", api_subjects.look_up),
        ("DELETE", "subjects/{subject}", api_subjects.delete_subject),
        ("GET", "subjects/{subject}/metadata", api_subjects.with_metadata),
        ("GET", "subjects/{subject}/versions", api_subjects.versions),
        ("POST", "subjects/{subject}/versions", api_subjects.register),
        ("GET", _VERSION, api_subjects.version),
        ("DELETE", _VERSION, api_subjects.delete_version),
        ("GET", f"{_VERSION}/schema", api_subjects.text_of_version),
        ("GET", f"{_VERSION}/referencedby", api_subjects.referenced_by),
        ("POST", "compatibility/subjects/{subject}/versions", api_subjects.compatible),
        ("POST", f"compatibility/{_VERSION}", api_subjects.compatible),
        ("GET", "config", api_settings.config),
        ("PUT", "config", api_settings.set_config),
        ("DELETE", "config", api_settings.delete_config),
        ("GET", "config/{subject}", api_settings.config),
        ("PUT", "config/{subject}", api_settings.set_config),
        ("DELETE", "config/{subject}", api_settings.delete_config),
        ("GET", "mode", api_settings.mode),
        ("PUT", "mode", api_settings.set_mode),
        ("DELETE", "mode", api_settings.delete_mode),
        ("GET", "mode/{subject}", api_settings.mode),
        ("PUT", "mode/{subject}", api_settings.set_mode),
        ("DELETE", "mode/{subject}", api_settings.delete_mode),
    )
)


class Found(NamedTuple):
    """A route with what its path names, and what a context in front of it adds."""

    route: Route
    path: dict[str, str]
    query: dict[str, list[str]]


class NoRoute(Exception):
    """Nothing is there; `allowed` are the methods that would be."""

    def __init__(self, allowed: Sequence[str]) -> None:
        self.allowed = tuple(allowed)
        super().__init__()


def find(method: str, raw_path: str, query: dict[str, list[str]]) -> Found:
    """The route of a path as it was sent; raises NoRoute."""
    segments = [unquote(segment) for segment in raw_path.strip("/").split("/")]
    context = ""
    if len(segments) > 2 and segments[0] == "contexts":
        name = segments[1].strip(":")
        context = "" if name in ("", subjects.DEFAULT_CONTEXT) else f":{name}:"
        segments = segments[2:]
    allowed: list[str] = []
    for route in ROUTES:
        path = _matched(route.template.split("/"), segments)
        if path is None:
            continue
        if route.method == method or (method == "HEAD" and route.method == "GET"):
            return _in_context(Found(route, path, query), context)
        allowed.append(route.method)
    raise NoRoute(allowed)


def _matched(template: Sequence[str], segments: Sequence[str]) -> dict[str, str] | None:
    if len(template) != len(segments):
        return None
    path: dict[str, str] = {}
    for wanted, given in zip(template, segments, strict=True):
        if wanted.startswith("{"):
            path[wanted[1:-1]] = given
        elif wanted != given:
            return None
    return path


def _in_context(found: Found, context: str) -> Found:
    if not context:
        return found
    path, query = dict(found.path), dict(found.query)
    top = found.route.template.split("/")[0]
    if "subject" in path or top in ("config", "mode"):
        path["subject"] = _qualified(context, path.get("subject", ""))
    if top == "schemas":
        query["subject"] = [_qualified(context, (query.get("subject") or [""])[-1])]
    if found.route.template in ("subjects", "schemas"):
        query["subjectPrefix"] = [_qualified(context, (query.get("subjectPrefix") or [""])[-1])]
    return Found(found.route, path, query)


def _qualified(context: str, subject: str) -> str:
    return subject if subject.startswith(":.") else context + subject
