"""Pages of a schema registry: subjects, a version, the difference of two, check and register.

The console asks the registry with the login that it was given for it, so its rights are those of that login;
who may change anything here is a matter of the console, as for every page.
"""

import difflib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from tidelog.console.console import Console
from tidelog.console.faults import BAD_GATEWAY, FORBIDDEN, NOT_FOUND, UNAVAILABLE, ConsoleFault
from tidelog.console.rendering import path_part
from tidelog.schemas.registry_client import (
    RegistryClient,
    RegistryFault,
    RegistryUnreachable,
    subject_path,
)
from tidelog.schemas.texts import reference_of, reference_text, schema_text

TYPES = ("AVRO", "JSON", "PROTOBUF")
SUBJECTS_SHOWN_MAX = 500
SUBJECT_CHARACTERS_MAX = 1_024
DIFF_CONTEXT_LINES = 4
_MARKS = {"+": "added", "-": "removed", "@": "place"}


class DiffLine(NamedTuple):
    """A line of a difference; `kind` is added, removed, place or nothing."""

    kind: str
    text: str


class Verdict(NamedTuple):
    """What the registry says of a schema that was not registered yet."""

    fits: bool
    messages: list[str]


@contextmanager
def registry_of(console: Console) -> Iterator[RegistryClient]:
    """The registry, whose faults a page explains."""
    if console.registry is None:
        raise ConsoleFault(
            "the console was given no schema registry",
            "Start it with --registry http://host:8081.",
            NOT_FOUND,
        )
    try:
        yield console.registry
    except RegistryUnreachable as fault:
        raise ConsoleFault(
            f"the registry does not answer: {fault}",
            "Check that it runs and that --registry points at it.",
            UNAVAILABLE,
        ) from fault
    except RegistryFault as fault:
        raise ConsoleFault(f"{fault.message} ({fault.code})", *_hint(fault)) from fault
    except (KeyError, TypeError, ValueError, AttributeError) as fault:
        raise ConsoleFault(
            f"the registry's answer cannot be read: {fault!r}"[:300], "Is it a schema registry?", BAD_GATEWAY
        ) from fault


def _hint(fault: RegistryFault) -> tuple[str, int]:
    if fault.status in (401, 403):
        return "The console's login at the registry (TIDELOG_REGISTRY_USER_INFO) may not do this.", FORBIDDEN
    if fault.status == NOT_FOUND:
        return "It may have been deleted.", NOT_FOUND
    if fault.status == 409:
        return "Check it first: the page says where it differs.", 409
    if fault.status >= 500:
        return "It may be starting or choosing who writes; try again.", UNAVAILABLE
    return "", max(400, fault.status)


def subjects(console: Console, request: Request) -> Response:
    """Every subject with its latest version."""
    search = request.query_params.get("search", "")
    with registry_of(console) as registry:
        found = [
            {
                "subject": str(row["subject"]),
                "version": int(row["version"]),
                "id": int(row["id"]),
                "type": str(row.get("schemaType") or "AVRO"),
            }
            for row in registry.ask("GET", "/schemas?latestOnly=true")
        ]
        level = str(registry.ask("GET", "/config")["compatibilityLevel"])
    listed = sorted(
        (row for row in found if search.lower() in str(row["subject"]).lower()),
        key=lambda row: str(row["subject"]),
    )
    return console.page(
        request,
        "schemas.html",
        "schemas",
        "Schemas",
        rows=listed[:SUBJECTS_SHOWN_MAX],
        total=len(listed),
        search=search,
        level=level,
    )


def subject(console: Console, request: Request) -> Response:
    """One version of a subject, and how it differs from another one."""
    name = request.query_params.get("name", "")
    with registry_of(console) as registry:
        path = f"/subjects/{subject_path(name)}"
        versions = [int(number) for number in registry.ask("GET", f"{path}/versions")]
        number = _version(request.query_params.get("version"), versions)
        shown = registry.ask("GET", f"{path}/versions/{number}")
        config = registry.ask("GET", f"/config/{subject_path(name)}?defaultToGlobal=true")
        earlier = [one for one in versions if one < number]
        against = _version(request.query_params.get("against"), versions, earlier[-1] if earlier else number)
        lines = None
        if against != number:
            other = registry.ask("GET", f"{path}/versions/{against}")
            lines = difference(schema_text(other), schema_text(shown))
        described = {
            "version": number,
            "id": int(shown["id"]),
            "type": str(shown.get("schemaType") or "AVRO"),
            "text": schema_text(shown),
            "references": [
                (str(one["name"]), str(one["subject"]), int(one["version"]))
                for one in shown.get("references") or ()
            ],
            "level": str(config["compatibilityLevel"]),
        }
    return console.page(
        request,
        "schema.html",
        "schemas",
        name,
        subject=name,
        versions=sorted(versions, reverse=True),
        shown=described,
        against=against,
        lines=lines,
    )


def _version(text: str | None, versions: list[int], otherwise: int | None = None) -> int:
    if not text:
        return versions[-1] if otherwise is None else otherwise
    if not text.isdigit() or int(text) not in versions:
        raise ConsoleFault(f"there is no version {text[:20]!r}", "It may have been deleted.", NOT_FOUND)
    return int(text)


def difference(old: str, new: str) -> list[DiffLine]:
    """The lines that differ, with some around them; empty where none do."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), n=DIFF_CONTEXT_LINES, lineterm="")
    found = list(lines)[2:]
    return [DiffLine(_MARKS.get(line[:1], ""), line) for line in found]


def new_schema(console: Console, request: Request) -> Response:
    """The form for a schema, filled with the latest version of a subject where one is named."""
    name = request.query_params.get("name", "")
    values = {"subject": name, "type": "AVRO", "schema": "", "references": ""}
    if name:
        with registry_of(console) as registry:
            latest = registry.ask("GET", f"/subjects/{subject_path(name)}/versions/latest")
            references = [reference_text(one) for one in latest.get("references") or ()]
            values |= {
                "type": str(latest.get("schemaType") or "AVRO"),
                "schema": schema_text(latest),
                "references": "\n".join(references),
            }
    return _form_page(console, request, values, None)


def _form_page(
    console: Console, request: Request, values: Mapping[str, str], verdict: Verdict | None
) -> Response:
    return console.page(
        request,
        "schema_new.html",
        "schemas",
        "Register a schema",
        values=values,
        types=TYPES,
        verdict=verdict,
    )


def check_or_register(console: Console, request: Request, form: Mapping[str, str]) -> Response:
    """What the form asked for: a verdict on its own page, or the schema registered."""
    values = {name: form.get(name, "") for name in ("subject", "type", "schema", "references")}
    name = values["subject"].strip()
    if not name or len(name) > SUBJECT_CHARACTERS_MAX:
        raise ConsoleFault("a subject has a name", "Such as orders-value, for values of the topic orders.")
    if values["type"] not in TYPES:
        raise ConsoleFault(f"{values['type'][:40]!r} is no type of schema")
    lines = [line.strip() for line in values["references"].splitlines() if line.strip()]
    try:
        references = [reference_of(line) for line in lines]
    except ValueError as fault:
        raise ConsoleFault(f"a reference cannot be read: {fault}") from fault
    body = {"schema": values["schema"], "schemaType": values["type"], "references": references}
    if form.get("action") != "register":
        return _form_page(console, request, values, _checked(console, name, body))
    with registry_of(console) as registry:
        answer = registry.ask("POST", f"/subjects/{subject_path(name)}/versions", body)
        schema_id = int(answer["id"])
    return console.done(
        f"/schemas/subject?name={path_part(name)}", f"{name} has the schema with id {schema_id}."
    )


def _checked(console: Console, name: str, body: Mapping[str, Any]) -> Verdict:
    """The registry's word on a schema; one that it cannot read does not fit, either."""
    with registry_of(console) as registry:
        path = f"/compatibility/subjects/{subject_path(name)}/versions?verbose=true"
        try:
            answer = registry.ask("POST", path, body)
        except RegistryFault as fault:
            if fault.status != 422:
                raise
            return Verdict(False, [fault.message])
        return Verdict(bool(answer["is_compatible"]), [str(line) for line in answer.get("messages") or ()])
