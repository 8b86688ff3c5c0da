"""`tidelog registry`: a schema registry in the foreground, over any Kafka cluster."""

import importlib.util
import ssl
import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from tidelog.cli.connection import Connection, connection_options, probe
from tidelog.cli.errors import CommandError
from tidelog.cli.foreground import (
    EXIT_WITH_STDIN_OPTION,
    both_or_none,
    end_with_stdin,
    log_options,
    tls_options,
)
from tidelog.model.addresses import address_text

if TYPE_CHECKING:
    from tidelog.registry.access import Access
    from tidelog.registry.election import Identity
    from tidelog.registry.service import Registry

DEFAULT_REGISTRY_PORT = 8081
_NEEDED = ("starlette", "uvicorn", "avro", "jsonschema", "grpc_tools")


def registry_installed() -> bool:
    """Whether the packages of the extra `registry` are there."""
    return all(importlib.util.find_spec(name) is not None for name in _NEEDED)


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_REGISTRY_PORT,
    show_default=True,
    metavar="PORT",
    help="Listen on this port (0 picks a free one).",
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, metavar="HOST", help="Listen on this address."
)
@click.option(
    "--advertise",
    metavar="URL",
    help="The address under which the other instances reach this one (default: where it listens).",
)
@click.option(
    "--topic",
    default="_schemas",
    show_default=True,
    metavar="NAME",
    help="The topic that holds the schemas; it is made if it is not there.",
)
@click.option(
    "--group",
    "group_id",
    default="schema-registry",
    show_default=True,
    metavar="NAME",
    help="The group in which the instances choose the one that writes.",
)
@tls_options("HTTPS")
@click.option(
    "--tls-ca",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="The authority of the other instances' certificates (default: the system's).",
)
@click.option("--read-only", is_flag=True, help="Never write: changes go to another instance.")
@click.option("--no-login", is_flag=True, help="Ask for no login, though the cluster is secured.")
@log_options
@EXIT_WITH_STDIN_OPTION
@connection_options()
def registry(
    connection: Connection,
    port: int,
    host: str,
    advertise: str | None,
    topic: str,
    group_id: str,
    tls_certificate: str | None,
    tls_key: str | None,
    tls_ca: str | None,
    read_only: bool,
    no_login: bool,
    log_format: str,
    log_level: str,
    exit_with_stdin: bool,
) -> None:
    """Run a schema registry: Avro, JSON Schema and Protobuf, with Confluent's HTTP API.

    It works with any Kafka cluster and keeps everything in a compacted topic of it. Run several for
    safety: they choose one that writes, and the others pass changes on to it. Where the cluster asks for a
    password, so does the registry, of the same user, with the rights that the cluster gives.

    \b
    Examples:
      tidelog registry
      tidelog registry --bootstrap broker.example.com:9092 --host 0.0.0.0 --advertise http://registry-1:8081
    """
    if not registry_installed():
        raise CommandError("the schema registry is not installed", "pip install 'tidelog[registry]'")
    from tidelog.registry.serving import TlsFiles, listen, make_server
    from tidelog.server.log_format import configure_logging

    files = both_or_none(tls_certificate, tls_key)
    tls = None if files is None else TlsFiles(*files)
    configure_logging(log_format, log_level)
    probe(connection.bootstrap)
    access = _access(connection, topic, no_login=no_login)
    try:
        listening = listen(host, port)
    except OSError as failure:
        raise CommandError(
            f"cannot listen on {address_text(host, port)}: {failure.strerror or failure}",
            "another --port (0 picks a free one), or stop what uses this one",
        ) from failure
    actual = listening.getsockname()[1]
    identity = _identity(advertise, host, actual, secure=tls is not None, eligible=not read_only)
    if exit_with_stdin:
        end_with_stdin()
    scheme = "http" if tls is None else "https"
    address = f"{scheme}://{address_text(host, actual)}"

    def ready() -> None:
        click.echo(f"Schema registry of {connection.bootstrap} at {address}")
        sys.stdout.flush()

    forward_tls = None if tls_ca is None else ssl.create_default_context(cafile=tls_ca)
    instance = _started(connection, identity, topic, group_id)
    make_server(instance, access, ready, tls=tls, forward_tls=forward_tls).run(sockets=[listening])


def _started(connection: Connection, identity: "Identity", topic: str, group_id: str) -> "Registry":
    from confluent_kafka import KafkaException

    from tidelog.cli.errors import from_kafka_error
    from tidelog.registry.faults import RegistryFault
    from tidelog.registry.schema_log import UnfitTopic
    from tidelog.registry.service import Registry, RegistrySettings

    settings = RegistrySettings(
        {**connection.properties, "bootstrap.servers": connection.bootstrap},
        connection.client_settings(),
        identity,
        topic,
        group_id,
    )
    instance = Registry(settings)
    try:
        instance.start()
    except UnfitTopic as fault:
        raise CommandError(str(fault), "choose another topic with --topic") from fault
    except RegistryFault as fault:
        raise CommandError(
            f"the topic {topic} cannot be read: {instance.log.fault or fault.message}",
            "the registry's user needs Read and Describe on the topic; docs/registry.md lists its rights",
        ) from fault
    except KafkaException as fault:
        raise from_kafka_error(fault.args[0], f"preparing the topic {topic}") from fault
    return instance


def _identity(advertise: str | None, host: str, port: int, *, secure: bool, eligible: bool) -> "Identity":
    from tidelog.registry.election import Identity

    if advertise is None:
        if host in ("0.0.0.0", "::"):
            raise click.UsageError(
                "--advertise says where the other instances reach this one, which listens everywhere"
            )
        return Identity("https" if secure else "http", host, port, eligible)
    parts = urlsplit(advertise)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise click.UsageError("--advertise is an address like http://registry-1:8081")
    return Identity(parts.scheme, parts.hostname, parts.port or port, eligible)


def _access(connection: Connection, topic: str, *, no_login: bool) -> "Access":
    from tidelog.client.cluster_logins import PASSWORD_MECHANISMS
    from tidelog.registry.access import ClusterAccess, OpenAccess

    settings = connection.client_settings()
    if no_login or not (settings.authenticated or settings.encrypted):
        return OpenAccess()
    if settings.sasl_mechanism not in PASSWORD_MECHANISMS:
        raise CommandError(
            "the cluster is secured, but it has no passwords that people could log in with",
            "--no-login lets in whoever reaches the registry",
        )
    return ClusterAccess(settings, topic)
