"""How a client command finds its cluster: the shared options, and clients made from them.

Properties reach confluent-kafka in this order, the later one winning: our defaults, the file given with
--client-config-file, -X name=value, --bootstrap. A TCP probe of the bootstrap addresses runs first, because
librdkafka retries an address that refuses connections until its timeout, and people should hear at once.
"""

import logging
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial, update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from tidelog.cli.errors import CommandError, as_command_error, explained, from_kafka_error
from tidelog.cli.properties import parse_assignments, read_properties
from tidelog.model import addresses

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer
    from confluent_kafka.admin._metadata import ClusterMetadata

    from tidelog.admin.cluster_admin import ClusterAdmin
    from tidelog.client.client_settings import ClientSettings

DEFAULT_BOOTSTRAP = "localhost:9092"
DEFAULT_KAFKA_PORT = 9092
PROBE_TIMEOUT_SECONDS = 3.0
SEVERAL_SECONDS_MAX = 3.0

Command = TypeVar("Command", bound=Callable[..., Any])


def probe(bootstrap: str) -> None:
    """Raise a clear error unless at least one bootstrap address accepts a TCP connection."""
    reasons: list[str] = []
    for address in (part.strip() for part in bootstrap.split(",")):
        host, port = split_address(address)
        try:
            with socket.create_connection((host, port), timeout=PROBE_TIMEOUT_SECONDS):
                return
        except socket.gaierror:
            reasons.append(f"{address}: unknown host")
        except TimeoutError:
            reasons.append(f"{address}: no answer within {PROBE_TIMEOUT_SECONDS:g} s")
        except OSError as failure:
            reasons.append(f"{address}: {os.strerror(failure.errno).lower() if failure.errno else failure}")
    raise CommandError(
        f"no broker at {', '.join(reasons)}",
        "start one with 'tidelog up', or point --bootstrap (or TIDELOG_BOOTSTRAP) at a running cluster",
    )


def split_address(address: str) -> tuple[str, int]:
    """Split `host:port` (the port may be left out; a scheme like PLAINTEXT:// is tolerated)."""
    try:
        return addresses.split_address(address, DEFAULT_KAFKA_PORT)
    except ValueError as fault:
        raise click.BadParameter(str(fault), param_hint="'--bootstrap'") from fault


@dataclass(slots=True)
class Connection:
    """A cluster to talk to, and the client properties to do it with."""

    bootstrap: str = DEFAULT_BOOTSTRAP
    properties: Mapping[str, str] = field(default_factory=dict)
    timeout_seconds: float = 10.0
    last_error: str | None = None
    #: a failure of TLS or SASL, which no patience heals
    refusal: "KafkaError | None" = None

    def producer(self, defaults: Mapping[str, Any]) -> "Producer":
        from confluent_kafka import Producer

        return cast("Producer", self._client(Producer, defaults))

    def consumer(self, defaults: Mapping[str, Any]) -> "Consumer":
        from confluent_kafka import Consumer

        return cast("Consumer", self._client(Consumer, defaults))

    def metadata(self, client: "Producer | Consumer") -> "ClusterMetadata":
        """Fetch the metadata of all topics, which creates none of them."""
        try:
            with explained(f"asking {self.bootstrap} for metadata"):
                return cast("ClusterMetadata", client.list_topics(timeout=self.timeout_seconds))
        except CommandError as failure:
            client.poll(0)  # what the client has noticed is told to `_remember` in here
            if self.refusal is not None:
                raise from_kafka_error(self.refusal, f"asking {self.bootstrap} for metadata") from failure
            if self.last_error is None:
                raise
            raise CommandError(
                f"{failure.message}; the client says: {self.last_error}", failure.hint
            ) from failure

    def cluster_admin(self, hints: Mapping[str, str] | None = None) -> "ClusterAdmin":
        """What asks and changes the cluster with our own client; its trouble is that of a command."""
        from tidelog.admin.cluster_admin import ClusterAdmin

        probe(self.bootstrap)
        # Where several addresses are given, one that does not answer must not use up the time.
        seconds = SEVERAL_SECONDS_MAX if "," in self.bootstrap else None
        return ClusterAdmin(lambda: self.client_settings(seconds), partial(explained, hints=hints))

    def client_settings(self, connect_seconds_max: float | None = None) -> "ClientSettings":
        """The same properties for our own client."""
        from tidelog.client.client_settings import ClientSettings
        from tidelog.client.faults import BadOption

        connect_seconds = min(self.timeout_seconds, connect_seconds_max or self.timeout_seconds)
        options = {
            "client.id": "tidelog-cli",
            **self.properties,
            "bootstrap.servers": self.bootstrap,
            "request.timeout.ms": str(int(self.timeout_seconds * 1000)),
            "default.api.timeout.ms": str(int(self.timeout_seconds * 1000)),
            "socket.connection.setup.timeout.ms": str(int(connect_seconds * 1000)),
        }
        options.pop("socket.timeout.ms", None)
        try:
            return ClientSettings.from_options(options)
        except BadOption as failure:
            raise CommandError(
                f"the client properties were refused: {failure}",
                "correct what -X or --client-config-file gives",
            ) from failure

    def _client(self, client_class: Any, defaults: Mapping[str, Any]) -> Any:
        probe(self.bootstrap)
        properties: dict[str, Any] = {
            "client.id": "tidelog-cli",
            **defaults,
            **self.properties,
            "bootstrap.servers": self.bootstrap,
            "error_cb": self._remember,
        }
        with explained("the client properties were refused"):
            return client_class(properties, logger=_silent_logger())

    def _remember(self, error: "KafkaError") -> None:
        # Kept, not printed: librdkafka reports every lost connection, most of which heal by themselves.
        self.last_error = error.str()
        if error.name() in ("_AUTHENTICATION", "_SSL"):
            self.refusal = error


def _silent_logger() -> logging.Logger:
    logger = logging.getLogger("tidelog.cli.client")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger


def connection_options(*, config_alias: bool = True) -> Callable[[Command], Command]:
    """Add the options every client command shares; the command receives `connection`.

    `config_alias` offers --config as another name of -X; commands with a --config of their own decline it.
    """
    names = ("-X", "--client-config") + (("--config",) if config_alias else ())

    def decorate(command: Command) -> Command:
        def with_connection(
            *arguments: Any,
            bootstrap: str,
            client_config: tuple[str, ...],
            client_config_file: Path | None,
            timeout_seconds: float,
            **options: Any,
        ) -> Any:
            properties = read_properties(client_config_file) if client_config_file is not None else {}
            properties |= parse_assignments(client_config, "'-X'")
            from_properties = properties.pop("bootstrap.servers", None)
            source = click.get_current_context().get_parameter_source("bootstrap")
            if from_properties is not None and source is click.core.ParameterSource.DEFAULT:
                bootstrap = from_properties
            options["connection"] = Connection(bootstrap, properties, timeout_seconds)
            return as_command_error()(command)(*arguments, **options)

        wrapped = update_wrapper(with_connection, command)
        for option in reversed(
            (
                click.option(
                    "--bootstrap",
                    "-b",
                    envvar="TIDELOG_BOOTSTRAP",
                    default=DEFAULT_BOOTSTRAP,
                    show_default=True,
                    show_envvar=True,
                    metavar="HOST:PORT[,…]",
                    help="A broker of the cluster.",
                ),
                click.option(
                    *names,
                    "client_config",
                    multiple=True,
                    metavar="NAME=VALUE",
                    help="A property of the Kafka client (librdkafka), for example security.protocol=ssl.",
                ),
                click.option(
                    "--client-config-file",
                    "--config-file",
                    "client_config_file",
                    type=click.Path(path_type=Path, dir_okay=False),
                    envvar="TIDELOG_CLIENT_CONFIG",
                    show_envvar=True,
                    metavar="FILE",
                    help="A file of such properties.",
                ),
                click.option(
                    "--timeout",
                    "timeout_seconds",
                    type=click.FloatRange(min=0.1),
                    default=10.0,
                    show_default=True,
                    metavar="SECONDS",
                    help="How long to wait for the cluster.",
                ),
            )
        ):
            wrapped = option(wrapped)
        return cast(Command, wrapped)

    return decorate
