"""How commands reach a schema registry: its address, the login, and what its refusals mean to a person."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.errors import CommandError

if TYPE_CHECKING:
    from tidelog.schemas.registry_client import RegistryClient

DEFAULT_REGISTRY = "http://localhost:8081"
#: by the end of a file's name
SCHEMA_TYPES = {".avsc": "AVRO", ".proto": "PROTOBUF", ".json": "JSON"}


def registry_option(help_text: str) -> Callable[[Any], Any]:
    """--registry; the command receives `registry_url`."""
    return click.option(
        "--registry",
        "registry_url",
        envvar="TIDELOG_REGISTRY",
        default=DEFAULT_REGISTRY,
        show_default=True,
        show_envvar=True,
        metavar="URL",
        help=help_text,
    )


def open_registry(url: str, timeout_seconds: float) -> "RegistryClient":
    """A client of the registry, with the login of the environment; CommandError for what is no address."""
    from tidelog.schemas.registry_client import RegistryClient

    try:
        return RegistryClient(url, os.environ.get("TIDELOG_REGISTRY_USER_INFO", ""), timeout_seconds)
    except ValueError as fault:
        raise CommandError(str(fault), "give it with --registry or TIDELOG_REGISTRY") from fault


@contextmanager
def registry_faults() -> Iterator[None]:
    """What the registry refuses, or that it does not answer, as the error of a command."""
    from tidelog.schemas.registry_client import RegistryFault, RegistryUnreachable

    try:
        yield
    except RegistryUnreachable as fault:
        raise CommandError(
            f"no answer from the registry: {fault}",
            "start one with 'tidelog registry', or point --registry at one",
        ) from fault
    except RegistryFault as fault:
        raise CommandError(f"{fault.message} ({fault.code})", _hint(fault.code)) from fault


def _hint(code: int) -> str:
    if code in (401, 403):
        return "name:password of a user with rights, in TIDELOG_REGISTRY_USER_INFO"
    if code // 100 == 404:
        return "'tidelog schema list' shows the subjects"
    if code in (409, 40901):
        return "'tidelog schema check' says the same without registering; or change the subject's level"
    return "docs/registry.md lists what is refused"
