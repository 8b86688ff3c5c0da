"""`tidelog schema`: list, describe, register, check and delete schemas in a registry.

Any registry with Confluent's API will do. Its address comes from --registry or TIDELOG_REGISTRY, a name and
password for it, as name:password, from TIDELOG_REGISTRY_USER_INFO.
"""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tidelog.cli.output import json_option, print_fields, print_json, print_table
from tidelog.cli.registry_access import SCHEMA_TYPES, open_registry, registry_faults, registry_option
from tidelog.cli.topic import confirm

if TYPE_CHECKING:
    from tidelog.schemas.registry_client import RegistryClient


Command = TypeVar("Command", bound=Callable[..., Any])


def registry_options(command: Command) -> Any:
    """Add --registry and --timeout; the command receives `registry`, and faults are errors of a command."""

    @wraps(command)
    def with_registry(*arguments: Any, registry_url: str, timeout_seconds: float, **options: Any) -> Any:
        registry = open_registry(registry_url, timeout_seconds)
        with registry_faults():
            return command(*arguments, registry=registry, **options)

    with_timeout = click.option(
        "--timeout",
        "timeout_seconds",
        type=click.FloatRange(min=0.1),
        default=30.0,
        show_default=True,
        metavar="SECONDS",
        help="How long to wait for the registry.",
    )(with_registry)
    return registry_option("The schema registry.")(with_timeout)


def schema_options(command: Command) -> Any:
    """Add the file of a schema, its type and its references; the command receives `body`."""

    @wraps(command)
    def with_body(
        *arguments: Any, file: Path, schema_type: str | None, references: tuple[str, ...], **options: Any
    ) -> Any:
        kind = schema_type.upper() if schema_type else SCHEMA_TYPES.get(file.suffix, "AVRO")
        body: dict[str, Any] = {"schema": file.read_text(encoding="utf-8"), "schemaType": kind}
        if references:
            body["references"] = [_reference(text) for text in references]
        return command(*arguments, body=body, **options)

    wrapped = click.option(
        "--reference",
        "references",
        multiple=True,
        metavar="NAME=SUBJECT:VERSION",
        help="A schema that this one refers to, by the name that it uses; repeat for more.",
    )(with_body)
    wrapped = click.option(
        "--type",
        "schema_type",
        type=click.Choice(["avro", "json", "protobuf"]),
        help="The format (default: by the file's name: .avsc, .json, .proto).",
    )(wrapped)
    return click.argument(
        "file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE"
    )(wrapped)


def _reference(text: str) -> dict[str, Any]:
    from tidelog.schemas.texts import reference_of

    try:
        return reference_of(text)
    except ValueError as fault:
        raise click.BadParameter(str(fault), param_hint="'--reference'") from fault


@click.group()
def schema() -> None:
    """List, describe, register, check and delete schemas in a registry."""


@schema.command("list")
@click.option("--prefix", default="", metavar="TEXT", help="Only subjects that begin with this.")
@click.option("--deleted", is_flag=True, help="Also what was deleted softly.")
@json_option
@registry_options
def list_schemas(registry: "RegistryClient", prefix: str, deleted: bool, as_json: bool) -> None:
    """List the latest schema of each subject.

    \b
    Examples:
      tidelog schema list
      tidelog schema list --prefix orders --json
    """
    rows = registry.ask("GET", f"/schemas?latestOnly=true&deleted={'true' if deleted else 'false'}")
    found = [
        {
            "subject": row["subject"],
            "version": row["version"],
            "id": row["id"],
            "type": row.get("schemaType", "AVRO"),
        }
        for row in rows
        if row["subject"].startswith(prefix)
    ]
    if as_json:
        print_json(found)
    elif found:
        print_table(("subject", "version", "id", "type"), [tuple(row.values()) for row in found])
    else:
        click.echo("There are no schemas yet.")


@schema.command()
@click.argument("subject")
@click.option("--version", default="latest", show_default=True, metavar="VERSION", help="Which version.")
@json_option
@registry_options
def describe(registry: "RegistryClient", subject: str, version: str, as_json: bool) -> None:
    """Show a schema of SUBJECT: its id, its versions, the level of compatibility and its text.

    \b
    Examples:
      tidelog schema describe orders-value
      tidelog schema describe orders-value --version 1
    """
    from tidelog.schemas.registry_client import subject_path
    from tidelog.schemas.texts import reference_text, schema_text

    path = f"/subjects/{subject_path(subject)}"
    found = registry.ask("GET", f"{path}/versions/{subject_path(version)}")
    versions = registry.ask("GET", f"{path}/versions")
    config = registry.ask("GET", f"/config/{subject_path(subject)}?defaultToGlobal=true")
    if as_json:
        print_json({**found, "versions": versions, "compatibility": config["compatibilityLevel"]})
        return
    references = [reference_text(row) for row in found.get("references", ())]
    fields = [
        ("subject", found["subject"]),
        ("version", f"{found['version']} of {','.join(map(str, versions))}"),
        ("id", found["id"]),
        ("guid", found.get("guid")),
        ("type", found.get("schemaType", "AVRO")),
        ("references", references),
        ("compatibility", config["compatibilityLevel"]),
    ]
    print_fields(fields)
    click.echo()
    click.echo(schema_text(found))


@schema.command()
@click.argument("subject")
@schema_options
@click.option("--normalize", is_flag=True, help="Register its normal form.")
@json_option
@registry_options
def register(
    registry: "RegistryClient", subject: str, body: dict[str, Any], normalize: bool, as_json: bool
) -> None:
    """Register the schema in FILE under SUBJECT; one that is there already keeps its id.

    \b
    Examples:
      tidelog schema register orders-value order.avsc
      tidelog schema register orders-value order.avsc --reference x.User=users-value:1
    """
    from tidelog.schemas.registry_client import subject_path

    path = f"/subjects/{subject_path(subject)}/versions?normalize={'true' if normalize else 'false'}"
    answer = registry.ask("POST", path, body)
    if as_json:
        print_json({"subject": subject, "id": answer["id"], "version": answer.get("version")})
    else:
        version = f"version {answer['version']}, " if answer.get("version") else ""
        click.echo(f"Registered {subject}: {version}id {answer['id']}.")


@schema.command()
@click.argument("subject")
@schema_options
@click.option(
    "--version", metavar="VERSION", help="Judge against this version alone, not as registering does."
)
@json_option
@registry_options
def check(
    registry: "RegistryClient", subject: str, body: dict[str, Any], version: str | None, as_json: bool
) -> None:
    """Say whether the schema in FILE could be registered under SUBJECT; exit code 1 if not.

    \b
    Examples:
      tidelog schema check orders-value order.avsc
      tidelog schema check orders-value order.avsc --version 1
    """
    from tidelog.schemas.registry_client import subject_path

    path = f"/compatibility/subjects/{subject_path(subject)}/versions"
    path += f"/{subject_path(version)}" if version else ""
    answer = registry.ask("POST", f"{path}?verbose=true", body)
    fits = bool(answer["is_compatible"])
    if as_json:
        print_json(answer)
    elif fits:
        click.echo(f"It fits {subject}.")
    else:
        click.echo(f"It does not fit {subject}:")
        for message in answer.get("messages") or ():
            click.echo(f"  {message}")
    if not fits:
        raise click.exceptions.Exit(1)


@schema.command()
@click.argument("subject")
@click.option("--version", metavar="VERSION", help="Only this version (default: all).")
@click.option("--permanent", is_flag=True, help="For good; what was not deleted softly is, first.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@registry_options
def delete(registry: "RegistryClient", subject: str, version: str | None, permanent: bool, yes: bool) -> None:
    """Delete SUBJECT or a version of it: softly, so that its ids can still be read, or for good.

    \b
    Examples:
      tidelog schema delete orders-value --yes
      tidelog schema delete orders-value --version 1 --permanent --yes
    """
    from tidelog.registry.faults import RegistryFault
    from tidelog.schemas.registry_client import subject_path

    what = subject if version is None else f"version {version} of {subject}"
    if permanent:
        confirm(f"Delete {what} for good? Records written with it can then no longer be read.", yes)
    path = f"/subjects/{subject_path(subject)}"
    path += "" if version is None else f"/versions/{subject_path(version)}"
    try:
        answer = registry.ask("DELETE", path)
    except RegistryFault as fault:
        # Deleted softly before: 40404 for subjects, 40406 for versions.
        if not permanent or fault.code not in (40404, 40406):
            raise
        answer = None
    if permanent:
        answer = registry.ask("DELETE", f"{path}?permanent=true")
    numbers = answer if isinstance(answer, list) else [answer]
    told = ",".join(str(number) for number in numbers)
    click.echo(f"Deleted {subject}, versions {told}{' for good' if permanent else ''}.")
