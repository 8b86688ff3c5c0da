"""`tidelog gateway mqtt`: devices that speak MQTT at the topics of a cluster, in the foreground."""

import importlib.util
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
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
    from tidelog.client.client_settings import ClientSettings
    from tidelog.gateways.mqtt.gateway import GatewaySettings
    from tidelog.gateways.mqtt.mapping import TopicMap
    from tidelog.gateways.mqtt.serving import Listening, Ports

MQTT_PORT = 1883


def read_topic_map(path: Path | None, topic: str) -> "TopicMap":
    """The rules of --map, or one rule for everything."""
    from tidelog.gateways.mqtt.faults import BadMap
    from tidelog.gateways.mqtt.mapping import default_map, read_map

    try:
        return default_map(topic) if path is None else read_map(path)
    except BadMap as fault:
        raise CommandError(str(fault), "docs/gateways-mqtt.md shows such a file") from fault


MAP_OPTION = click.option(
    "--map",
    "map_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The rules that say which Kafka topic an MQTT topic belongs to (TOML).",
)
TOPIC_OPTION = click.option(
    "--topic",
    default="mqtt",
    show_default=True,
    metavar="NAME",
    help="The Kafka topic of everything, where there is no --map.",
)


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=MQTT_PORT,
    show_default=True,
    metavar="PORT",
    help="Listen on this port for MQTT (0 picks a free one).",
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, metavar="HOST", help="Listen on this address."
)
@click.option(
    "--ws-port",
    "web_socket_port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Listen on this port for MQTT over web sockets (none without it).",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve /metrics on this port of the loopback (none without it).",
)
@MAP_OPTION
@TOPIC_OPTION
@click.option(
    "--name",
    metavar="NAME",
    help="Who this gateway is, the same at every start and unlike all others (default: host and port).",
)
@tls_options("MQTT over TLS")
@click.option("--no-login", is_flag=True, help="Ask for no login, though the cluster is secured.")
@log_options
@EXIT_WITH_STDIN_OPTION
@connection_options()
def mqtt(
    connection: Connection,
    port: int,
    host: str,
    web_socket_port: int | None,
    metrics_port: int | None,
    map_file: Path | None,
    topic: str,
    name: str | None,
    tls_certificate: str | None,
    tls_key: str | None,
    no_login: bool,
    log_format: str,
    log_level: str,
    exit_with_stdin: bool,
) -> None:
    """Serve MQTT 3.1.1 and 5: devices publish to Kafka topics, and subscribe to them.

    The gateway is an ordinary client of any Kafka cluster and keeps nothing but in topics of it. Several may
    run side by side, each with a --name of its own. Where the cluster asks for a password, so does the
    gateway, of the same user, with the rights that the cluster gives.

    \b
    Examples:
      tidelog gateway mqtt
      tidelog gateway mqtt --bootstrap broker.example.com:9092 --host 0.0.0.0 --map rules.toml --name edge-1
    """
    from tidelog.gateways.mqtt.gateway import GatewaySettings
    from tidelog.gateways.mqtt.serving import Listening
    from tidelog.server.log_format import configure_logging

    if web_socket_port is not None and importlib.util.find_spec("wsproto") is None:
        raise CommandError("web sockets are not installed", "pip install 'tidelog[mqtt]'")
    topic_map = read_topic_map(map_file, topic)
    tls = tls_context(tls_certificate, tls_key)
    configure_logging(log_format, log_level)
    probe(connection.bootstrap)
    login = _login(connection, no_login=no_login)
    if exit_with_stdin:
        end_with_stdin()
    settings = GatewaySettings(
        {**connection.properties, "bootstrap.servers": connection.bootstrap},
        connection.client_settings(),
        name or f"{socket.gethostname()}-{port or os.getpid()}",
        topic_map,
    )

    def ready(ports: "Ports") -> None:
        secure = "" if tls is None else "s"
        places = [f"mqtt{secure}://{address_text(host, ports.mqtt)}"]
        if ports.web_socket:
            places.append(f"ws{secure}://{address_text(host, ports.web_socket)}")
        if ports.metrics:
            places.append(f"http://127.0.0.1:{ports.metrics}/metrics")
        click.echo(f"MQTT gateway of {connection.bootstrap} at {', '.join(places)}")
        sys.stdout.flush()

    _run(settings, Listening(host, port, web_socket_port, metrics_port, tls), login, ready)


def _run(
    settings: "GatewaySettings",
    listening: "Listening",
    login: "ClientSettings | None",
    ready: "Callable[[Ports], None]",
) -> None:
    from confluent_kafka import KafkaException

    from tidelog.cli.errors import from_kafka_error
    from tidelog.gateways.mqtt.serving import GatewayFenced, run

    try:
        run(settings, listening, login, ready)
    except KafkaException as fault:
        raise from_kafka_error(fault.args[0], "preparing the gateway's topics") from fault
    except OSError as fault:
        raise CommandError(
            f"cannot listen on {listening.host}: {fault.strerror or fault}",
            "another --port, --ws-port or --metrics-port (0 picks a free one), or stop what uses this one",
        ) from fault
    except GatewayFenced as fault:
        raise CommandError(
            f"another gateway took over from {settings.name}",
            "every gateway needs a --name of its own; one that was only slow can be started again",
        ) from fault


def _login(connection: Connection, *, no_login: bool) -> "ClientSettings | None":
    from tidelog.client.cluster_logins import PASSWORD_MECHANISMS

    settings = connection.client_settings()
    if no_login or not (settings.authenticated or settings.encrypted):
        return None
    if settings.sasl_mechanism not in PASSWORD_MECHANISMS:
        raise CommandError(
            "the cluster is secured, but it has no passwords that people could log in with",
            "--no-login lets in whoever reaches the gateway",
        )
    return settings
