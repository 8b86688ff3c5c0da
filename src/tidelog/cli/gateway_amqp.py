"""`tidelog gateway amqp`: the AMQP 0-9-1 door in the foreground, over any Kafka cluster."""

import asyncio
import importlib.util
import ssl
import sys
from typing import TYPE_CHECKING

import click

from tidelog.cli.connection import Connection, connection_options, probe
from tidelog.cli.errors import CommandError
from tidelog.cli.foreground import (
    EXIT_WITH_STDIN_OPTION,
    end_with_stdin,
    log_options,
    tls_context,
    tls_options,
)
from tidelog.model.addresses import address_text

if TYPE_CHECKING:
    from tidelog.gateways.amqp.gateway import Gateway

DEFAULT_AMQP_PORT = 5672


def amqp_installed() -> bool:
    """Whether the packages of the extra `amqp` are there."""
    return importlib.util.find_spec("pamqp") is not None


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_AMQP_PORT,
    show_default=True,
    metavar="PORT",
    help="Listen on this port (0 picks a free one).",
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, metavar="HOST", help="Listen on this address."
)
@tls_options("AMQP over TLS")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve metrics for Prometheus on this port of the same address.",
)
@click.option(
    "--definitions-topic",
    default="__amqp_definitions",
    show_default=True,
    metavar="NAME",
    help="The topic that holds exchanges, queues and bindings; it is made if it is not there.",
)
@click.option(
    "--partitions",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    metavar="N",
    help="Partitions of topics that are made for queues.",
)
@click.option(
    "--connections",
    type=click.IntRange(1, 100_000),
    default=2_000,
    show_default=True,
    metavar="N",
    help="Refuse more connections than this.",
)
@click.option(
    "--message-bytes",
    type=click.IntRange(1, 64 << 20),
    default=1_000_000,
    show_default=True,
    metavar="BYTES",
    help="Refuse larger messages; topics have a limit of their own (max.message.bytes).",
)
@log_options
@EXIT_WITH_STDIN_OPTION
@connection_options()
def amqp(
    connection: Connection,
    port: int,
    host: str,
    tls_certificate: str | None,
    tls_key: str | None,
    metrics_port: int | None,
    definitions_topic: str,
    partitions: int,
    connections: int,
    message_bytes: int,
    log_format: str,
    log_level: str,
    exit_with_stdin: bool,
) -> None:
    """Serve AMQP 0-9-1 over the topics of a cluster: for pika, aio-pika, kombu and Celery.

    A queue is a topic that is read by a share group, so the cluster must have share groups (Kafka 4.2 or
    later). Exchanges, queues and bindings are records of a topic: run several gateways for safety. Where
    the cluster asks for a password, so does the gateway, of the same user, with the rights that the cluster
    gives.

    \b
    Examples:
      tidelog gateway amqp
      tidelog gateway amqp --bootstrap broker.example.com:9092 --host 0.0.0.0 --port 5672
    """
    if not amqp_installed():
        raise CommandError("the AMQP gateway is not installed", "pip install 'tidelog[amqp]'")
    from tidelog.gateways.amqp.gateway import Gateway
    from tidelog.gateways.amqp.limits import Limits, QueueDefaults
    from tidelog.server.log_format import configure_logging

    tls = tls_context(tls_certificate, tls_key)
    configure_logging(log_format, log_level)
    probe(connection.bootstrap)
    gateway = Gateway(
        connection.client_settings(),
        limits=Limits(connections=connections, message_bytes=message_bytes),
        queue_defaults=QueueDefaults(partitions),
        definitions_topic=definitions_topic,
    )
    if exit_with_stdin:
        end_with_stdin()
    asyncio.run(_served(gateway, connection, host, port, metrics_port, tls))


async def _served(
    gateway: "Gateway",
    connection: Connection,
    host: str,
    port: int,
    metrics_port: int | None,
    tls: ssl.SSLContext | None,
) -> None:
    from tidelog.client.faults import ClientFault, LinkFault
    from tidelog.gateways.amqp.serving import serve

    def ready(actual: int) -> None:
        scheme = "amqp" if tls is None else "amqps"
        click.echo(f"AMQP gateway of {connection.bootstrap} at {scheme}://{address_text(host, actual)}")
        sys.stdout.flush()

    try:
        await serve(gateway, host, port, tls=tls, metrics_port=metrics_port, ready=ready)
    except LinkFault as fault:
        raise CommandError(
            f"the cluster at {connection.bootstrap} did not answer: {fault}",
            "start the gateway again when its brokers can be reached",
        ) from fault
    except ClientFault as fault:
        raise CommandError(
            f"the topic {gateway.log.topic} cannot be read: {fault}",
            "the gateway's user needs Read and Create on it; docs/gateways-amqp.md lists its rights",
        ) from fault
    except OSError as failure:
        raise CommandError(
            f"cannot listen on {address_text(host, port)}: {failure.strerror or failure}",
            "another --port (0 picks a free one), or stop what uses this one",
        ) from failure
