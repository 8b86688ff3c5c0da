"""`tidelog up`: run a broker in the foreground.

Settings come from four places, the later one winning: the defaults of docs/settings.md, a properties file
(--config-file), the environment (TIDELOG_SET_NUM_PARTITIONS=3 is num.partitions=3), and the flags. Of the
flags, --set is the most exact, so it wins over --host, --port, --data, --advertise and --node-id.

No client library is imported here: start-up is measured in milliseconds.
"""

import logging
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidelog.cli.errors import CommandError
from tidelog.cli.properties import parse_assignments, read_properties

if TYPE_CHECKING:
    from tidelog.model.settings import BrokerSettings
    from tidelog.server.process import ReadyInfo

ENVIRONMENT_PREFIX = "TIDELOG_SET_"
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9092


def environment_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Settings from TIDELOG_SET_… variables: lower case, with dots for underscores."""
    return {
        name[len(ENVIRONMENT_PREFIX) :].lower().replace("_", "."): value
        for name, value in environment.items()
        if name.startswith(ENVIRONMENT_PREFIX) and len(name) > len(ENVIRONMENT_PREFIX)
    }


def layered_settings(
    file_settings: Mapping[str, str],
    environment: Mapping[str, str],
    flags: Mapping[str, str],
    *,
    host: str | None,
    port: int | None,
    advertise: str | None,
) -> dict[str, str]:
    """Put the layers on top of each other; host and port replace listeners only where they were given."""
    settings = {**file_settings, **environment_settings(environment)}
    if host is not None or port is not None or "listeners" not in settings:
        listen_host = DEFAULT_HOST if host is None else host
        listen_port = DEFAULT_PORT if port is None else port
        settings["listeners"] = f"PLAINTEXT://{_bracketed(listen_host)}:{listen_port}"
    if advertise is not None:
        settings["advertised.listeners"] = f"PLAINTEXT://{advertise}"
    return {**settings, **flags}


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


class JsonLogFormatter(logging.Formatter):
    """One JSON object per log line: time, level, logger, message, and the exception if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        import json

        fields = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def configure_logging(log_format: str, log_level: str) -> None:
    """Send the broker's log to standard error, in UTC."""
    handler = logging.StreamHandler(sys.stderr)
    formatter: logging.Formatter
    if log_format == "json":
        formatter = JsonLogFormatter()
    else:
        formatter = logging.Formatter(
            "%(asctime)s.%(msecs)03dZ %(levelname)-7s %(message)s", "%Y-%m-%dT%H:%M:%S"
        )
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logging.basicConfig(level=log_level.upper(), handlers=[handler], force=True)


def resolve_settings(overrides: Mapping[str, str]) -> "BrokerSettings":
    """Check the settings; every fault is named at once."""
    from tidelog.model.settings import BrokerSettings, SettingsError

    try:
        return BrokerSettings.resolve(overrides)
    except SettingsError as refused:
        faults = "\n  - ".join(refused.faults)
        raise CommandError(
            f"the settings cannot be used:\n  - {faults}", "docs/settings.md lists every setting"
        ) from refused


def print_ready(info: "ReadyInfo", settings: "BrokerSettings", started: float) -> None:
    """Tell the person that the broker is ready, where it is, and what to do next."""
    folders = ", ".join(str(Path(folder).resolve()) for folder in settings.log_dirs)
    elapsed_ms = (time.perf_counter() - started) * 1000
    bootstrap = (
        "" if info.bootstrap in ("127.0.0.1:9092", "localhost:9092") else f" --bootstrap {info.bootstrap}"
    )
    click.echo(f"Tidelog broker {settings.node_id} is ready at {info.bootstrap} ({elapsed_ms:.0f} ms)")
    click.echo(f"  data       {folders}")
    click.echo("  next, in another terminal:")
    click.echo(f"    tidelog topic create orders{bootstrap}")
    click.echo(f"    echo hello | tidelog produce orders{bootstrap}")
    click.echo(f"    tidelog consume orders --exit-at-end{bootstrap}")
    click.echo("  Ctrl-C stops the broker cleanly.")
    sys.stdout.flush()


@click.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Keep the data here (log.dirs; default: ./tidelog-data).",
)
@click.option(
    "--host",
    metavar="HOST",
    help=f"Listen on this address (default: {DEFAULT_HOST}; 0.0.0.0 for every interface).",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help=f"Listen on this port (default: {DEFAULT_PORT}; 0 picks a free one).",
)
@click.option(
    "--advertise",
    metavar="HOST:PORT",
    help="The address clients are told to use, when it is not the one listened on.",
)
@click.option(
    "--node-id", type=click.IntRange(min=0), metavar="ID", help="The number of this broker (node.id)."
)
@click.option(
    "--config-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="A properties file of settings.",
)
@click.option("--set", "assignments", multiple=True, metavar="NAME=VALUE", help="A setting; repeat for more.")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How log lines look.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    show_default=True,
    help="How much to log.",
)
def up(
    data: Path | None,
    host: str | None,
    port: int | None,
    advertise: str | None,
    node_id: int | None,
    config_file: Path | None,
    assignments: tuple[str, ...],
    log_format: str,
    log_level: str,
) -> None:
    """Run a broker in the foreground until Ctrl-C or SIGTERM.

    Settings come from the defaults, then --config-file, then variables such as
    TIDELOG_SET_NUM_PARTITIONS=3 (num.partitions), then the flags; the later one wins.

    \b
    Examples:
      tidelog up
      tidelog up --data /var/lib/tidelog --port 9093 --set num.partitions=3
      tidelog up --host 0.0.0.0 --advertise broker.example.com:9092
      TIDELOG_SET_LOG_RETENTION_HOURS=24 tidelog up --config-file server.properties
    """
    started = time.perf_counter()
    flags: dict[str, str] = {}
    if data is not None:
        flags["log.dirs"] = str(data)
    if node_id is not None:
        flags["node.id"] = str(node_id)
    flags |= parse_assignments(assignments, "'--set'")
    from_file = read_properties(config_file) if config_file is not None else {}
    overrides = layered_settings(from_file, os.environ, flags, host=host, port=port, advertise=advertise)
    settings = resolve_settings(overrides)
    configure_logging(log_format, log_level)
    raise click.exceptions.Exit(_serve(settings, started))


def _serve(settings: "BrokerSettings", started: float) -> int:
    from tidelog.server.process import ListenError, serve

    try:
        code = serve(settings, on_ready=lambda info: print_ready(info, settings, started))
    except ListenError as failure:
        raise CommandError(
            str(failure.strerror or failure),
            "another --port (0 picks a free one), or stop what uses this one",
        ) from failure
    except OSError as failure:
        where = failure.filename or ", ".join(settings.log_dirs)
        raise CommandError(
            f"the broker cannot use {where}: {failure.strerror or failure}",
            "choose another folder with --data",
        ) from failure
    click.echo("The broker stopped cleanly.")
    return code
