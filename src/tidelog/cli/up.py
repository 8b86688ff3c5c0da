"""`tidelog up`: run a broker, or a cluster of them, in the foreground.

Settings come from four places, the later one winning: the defaults of docs/settings.md, a properties file
(--config-file), the environment (TIDELOG_SET_NUM_PARTITIONS=3 is num.partitions=3), and the flags. Of the
flags, --set is the most exact, so it wins over --host, --port, --data, --advertise and --node-id.

No client library is imported here: start-up is measured in milliseconds.
"""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidelog.cli.broker_options import broker_options
from tidelog.cli.errors import CommandError
from tidelog.cli.properties import parse_assignments, read_properties
from tidelog.cli.up_console import console_option, registry_option, start_console
from tidelog.cli.up_gateways import amqp_option, mqtt_option, start_gateways
from tidelog.model.addresses import address_text

if TYPE_CHECKING:
    from tidelog.cli.secure_setup import SecureSetup
    from tidelog.cli.up_cluster import ClusterPlan
    from tidelog.model.settings import BrokerSettings
    from tidelog.server.process import ReadyInfo

ENVIRONMENT_PREFIX = "TIDELOG_SET_"
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9092
DEFAULT_DATA = "tidelog-data"
BROKERS_MAX = 99
CLUSTER_STATE_NAME = "cluster.json"  # server.local_cluster has the layout


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
    protocol: str = "PLAINTEXT",
) -> dict[str, str]:
    """Put the layers on top of each other; host and port replace listeners only where they were given."""
    settings = {**file_settings, **environment_settings(environment)}
    if host is not None or port is not None or advertise is not None:
        _refuse_replacing(
            settings, protocol, "--advertise" if host is None and port is None else "--host and --port"
        )
    if host is not None or port is not None or "listeners" not in settings:
        listen_host = DEFAULT_HOST if host is None else host
        listen_port = DEFAULT_PORT if port is None else port
        settings["listeners"] = f"{protocol}://{address_text(listen_host, listen_port)}"
    if advertise is not None:
        settings["advertised.listeners"] = f"{protocol}://{advertise}"
    return {**settings, **flags}


def _refuse_replacing(settings: Mapping[str, str], protocol: str, options: str) -> None:
    """The flags make one listener of one protocol: they may replace one like it, and nothing else."""
    listeners = [entry.strip() for entry in settings.get("listeners", "").split(",") if entry.strip()]
    mapped = protocol in settings.get("listener.security.protocol.map", "").upper()
    if listeners and (len(listeners) > 1 or mapped or not listeners[0].upper().startswith(f"{protocol}://")):
        raise CommandError(
            f"{options} would replace the listeners of the settings ({', '.join(listeners)}) by one that is"
            f" {protocol}",
            "change listeners and advertised.listeners in the settings themselves, or with --set listeners=…",
        )


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


def print_ready(
    info: "ReadyInfo", settings: "BrokerSettings", started: float, secure: "SecureSetup | None" = None
) -> None:
    """Tell the person that the broker is ready, where it is, and what to do next."""
    folders = ", ".join(str(Path(folder).resolve()) for folder in settings.log_dirs)
    elapsed_ms = (time.perf_counter() - started) * 1000
    bootstrap = (
        "" if info.bootstrap in ("127.0.0.1:9092", "localhost:9092") else f" --bootstrap {info.bootstrap}"
    )
    click.echo(f"Tidelog broker {settings.node_id} is ready at {info.bootstrap} ({elapsed_ms:.0f} ms)")
    click.echo(f"  data       {folders}")
    if info.metrics:
        click.echo(f"  metrics    {info.metrics}")
    if secure is not None:
        click.echo("\n".join(secure.instructions()))
    else:
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
    "--node-id",
    type=click.IntRange(min=0),
    metavar="ID",
    help="The number of this broker (node.id), or of the first one.",
)
@click.option(
    "--brokers",
    type=click.IntRange(1, BROKERS_MAX),
    default=1,
    show_default=True,
    metavar="N",
    help="Run a cluster of N brokers, each a process of its own on the next port.",
)
@click.option(
    "--racks", metavar="A,B,…", help="With --brokers: the rack of each broker (broker.rack), in turn."
)
@click.option(
    "--secure",
    is_flag=True,
    help="TLS, passwords and ACLs from the first start on: makes certificates, an admin and client files.",
)
@broker_options(log_level="warning")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve metrics for Prometheus on this port (tidelog.metrics.port; 0 picks a free one); with "
    "--brokers, the first broker's.",
)
@console_option
@registry_option
@mqtt_option
@amqp_option
@click.option("--json", "as_json", is_flag=True, help="Print what happens as lines of JSON.")
def up(
    data: Path | None,
    host: str | None,
    port: int | None,
    advertise: str | None,
    node_id: int | None,
    brokers: int,
    racks: str | None,
    secure: bool,
    config_file: Path | None,
    assignments: tuple[str, ...],
    log_format: str,
    log_level: str,
    metrics_port: int | None,
    as_json: bool,
) -> None:
    """Run a broker, or a cluster of them, in the foreground until Ctrl-C or SIGTERM.

    With --brokers 3, three processes listen on consecutive ports, keep their data and logs in
    broker-1, broker-1.log, … of the data folder, and are started again when they die. Topics get three
    replicas, of which two must be in sync. Ctrl-C stops all cleanly, a second one at once.

    Settings come from the defaults, then --config-file, then variables such as
    TIDELOG_SET_NUM_PARTITIONS=3 (num.partitions), then the flags; the later one wins.

    With --secure, certificates of a local authority, the user admin and files for clients are made in
    the folder 'security' of the data, once. Nobody comes in without a password, or does what no ACL
    allows.

    \b
    Examples:
      tidelog up
      tidelog up --data /var/lib/tidelog --port 9093 --set num.partitions=3
      tidelog up --host 0.0.0.0 --advertise broker.example.com:9092
      TIDELOG_SET_LOG_RETENTION_HOURS=24 tidelog up --config-file server.properties
      tidelog up --brokers 3 --racks a,b,c
      tidelog up --secure
      tidelog up --metrics-port 9644
      tidelog up --mqtt-port 1883 --amqp-port 5672
    """
    started = time.perf_counter()
    from_file = read_properties(config_file) if config_file is not None else {}
    flags = parse_assignments(assignments, "'--set'")
    if secure:
        # It writes certificates and users before the broker looks for itself.
        refuse_used_folders([str(DEFAULT_DATA if data is None else data)])
    security = _prepare_security(data, host, advertise) if secure else None
    if metrics_port is not None:
        flags["tidelog.metrics.port"] = str(metrics_port)
    if brokers > 1:
        from tidelog.cli.up_cluster import run_cluster

        plan = _cluster_plan(brokers, data, host, port, advertise, node_id, racks, security)
        shared = {**from_file, **environment_settings(os.environ), **flags}
        code = run_cluster(plan, shared, log_format=log_format, log_level=log_level, as_json=as_json)
        raise click.exceptions.Exit(code)
    if racks is not None:
        raise click.UsageError("--racks is for a cluster: give --brokers too, or --set broker.rack=…")
    own = {} if data is None else {"log.dirs": str(data)}
    own |= {} if node_id is None else {"node.id": str(node_id)}
    own |= flags
    protocol = "PLAINTEXT" if security is None else "SASL_SSL"
    overrides = layered_settings(
        from_file, os.environ, own, host=host, port=port, advertise=advertise, protocol=protocol
    )
    if security is not None:
        overrides = {"log.dirs": DEFAULT_DATA, **security.broker_settings(), **overrides}
    shown = {"log_format": log_format, "log_level": log_level}
    raise click.exceptions.Exit(serve_broker(overrides, started, **shown, as_json=as_json, security=security))


def _cluster_plan(
    brokers: int,
    data: Path | None,
    host: str | None,
    port: int | None,
    advertise: str | None,
    node_id: int | None,
    racks: str | None,
    security: "SecureSetup | None",
) -> "ClusterPlan":
    from tidelog.cli.up_cluster import ClusterPlan

    return ClusterPlan(
        brokers,
        Path(DEFAULT_DATA) if data is None else data,
        host=DEFAULT_HOST if host is None else host,
        port=DEFAULT_PORT if port is None else port,
        advertise=advertise,
        first_id=1 if node_id is None else node_id,
        racks=() if racks is None else tuple(rack.strip() for rack in racks.split(",")),
        security=security,
    )


def _prepare_security(data: Path | None, host: str | None, advertise: str | None) -> "SecureSetup":
    from tidelog.cli.connection import split_address
    from tidelog.cli.secure_setup import prepare

    hosts = [host] if host else []
    if advertise is not None:
        hosts.append(split_address(advertise)[0])
    return prepare(Path(DEFAULT_DATA) if data is None else data, hosts)


def serve_broker(
    overrides: Mapping[str, str],
    started: float,
    *,
    log_format: str,
    log_level: str,
    as_json: bool,
    security: "SecureSetup | None" = None,
) -> int:
    """Run one broker in this process until it is told to stop; the exit code."""
    from tidelog.server.log_format import configure_logging
    from tidelog.server.process import ListenError, NotRegistered, serve
    from tidelog.storage.log_directory import LogDirectoryUnusable

    settings = resolve_settings(overrides)
    _refuse_cluster_folder(settings)
    refuse_used_folders(settings.log_dirs)
    configure_logging(log_format, log_level)
    if security is not None:
        from tidelog.cli.secure_setup import store_users

        store_users(security, settings)

    def ready(info: "ReadyInfo") -> None:
        if security is not None:
            security.write_client_files(info.bootstrap)
        if as_json:
            _print_event({"event": "ready", "broker": info.node_id, **info._asdict()})
        else:
            print_ready(info, settings, started, security)
        folders = [Path(folder) for folder in settings.log_dirs]
        start_console(info.bootstrap, security, as_json=as_json, data_folders=folders)
        start_gateways(info.bootstrap, security, as_json=as_json)

    try:
        code = serve(settings, on_ready=ready)
    except ListenError as failure:
        raise CommandError(str(failure.strerror or failure), failure.remedy) from failure
    except NotRegistered as failure:
        raise CommandError(
            f"the broker could not be registered: {failure}",
            "another id, or stop the broker that has this one",
        ) from failure
    except LogDirectoryUnusable as failure:
        raise CommandError(
            str(failure), "mend what it says, or choose another folder with --data"
        ) from failure
    except OSError as failure:
        where = failure.filename or ", ".join(settings.log_dirs)
        raise CommandError(
            f"the broker cannot use {where}: {failure.strerror or failure}",
            "choose another folder with --data",
        ) from failure
    if as_json:
        _print_event({"event": "stopped", "broker": settings.node_id, "exit_code": code})
    else:
        click.echo("The broker stopped cleanly.")
    return code


def refuse_used_folders(folders: Sequence[str]) -> None:
    """Say that a folder is another broker's before anything is written to it."""
    from tidelog.storage.disk import OsDisk
    from tidelog.storage.log_directory import LogDirectoryUnusable, refuse_used

    try:
        refuse_used(OsDisk(), folders)
    except LogDirectoryUnusable as used:
        raise CommandError(str(used), "stop that broker, or choose another folder with --data") from used


def _print_event(event: Mapping[str, object]) -> None:
    import json

    click.echo(json.dumps(event, ensure_ascii=False))


def _refuse_cluster_folder(settings: "BrokerSettings") -> None:
    """A folder that `tidelog up --brokers` laid out is no data folder of one broker."""
    for folder in settings.log_dirs:
        if (Path(folder) / CLUSTER_STATE_NAME).exists():
            raise CommandError(
                f"{folder} holds the data of a cluster",
                "start it with --brokers, or choose another --data for a single broker",
            )
