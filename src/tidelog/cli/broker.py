"""`tidelog broker`: one broker of a cluster over several machines, in the foreground.

The same broker as `tidelog up` runs; what differs is that it must be told its number and where the cluster
meets, and that it listens for other machines unless told otherwise.
"""

import os
import time
from pathlib import Path

import click

from tidelog.cli.broker_options import broker_options
from tidelog.cli.errors import CommandError
from tidelog.cli.properties import parse_assignments, read_properties
from tidelog.cli.up import environment_settings, serve_broker

DEFAULT_LISTENERS = "PLAINTEXT://:9092"
MEETING_PLACES = ("zookeeper.connect", "tidelog.coordination.path")


def broker_overrides(
    base: dict[str, str], flags: dict[str, str | None], assignments: dict[str, str]
) -> dict[str, str]:
    """Put file and environment, flags and --set on top of each other, and check what a member must have."""
    given = {name: value for name, value in flags.items() if value is not None}
    settings = {**base, **given, **assignments}
    if "node.id" not in settings and "broker.id" not in settings:
        raise CommandError(
            "a broker of a cluster needs a number of its own", "give --id, unique in the cluster"
        )
    chosen = [name for name in MEETING_PLACES if settings.get(name)]
    if not chosen:
        raise CommandError(
            "a broker needs a place where it meets the others",
            "give --zookeeper HOST:PORT/CHROOT, or --coordination FILE for brokers of one machine; "
            "a broker alone is 'tidelog up'",
        )
    if len(chosen) > 1:
        raise CommandError(
            "--zookeeper and --coordination exclude each other", "use one of them, the same for every broker"
        )
    settings.setdefault("listeners", DEFAULT_LISTENERS)
    return settings


@click.command()
@click.option("--id", "node_id", type=click.IntRange(min=0), metavar="N", help="The number of this broker.")
@click.option(
    "--zookeeper",
    metavar="HOST:PORT[,…][/CHROOT]",
    help="The ZooKeeper ensemble where the brokers meet (zookeeper.connect).",
)
@click.option(
    "--coordination",
    metavar="FILE",
    help="Meet in this embedded store instead: for brokers of one machine.",
)
@click.option(
    "--listeners",
    metavar="NAME://HOST:PORT,…",
    help=f"Where to listen (default: {DEFAULT_LISTENERS}, every interface).",
)
@click.option(
    "--advertised-listeners",
    metavar="NAME://HOST:PORT,…",
    help="What clients and other brokers are told (default: this machine's name).",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Keep the data here (log.dirs; default: ./tidelog-data).",
)
@click.option("--rack", metavar="NAME", help="The rack or zone of this machine (broker.rack).")
@broker_options(log_level="info")
@click.option("--json", "as_json", is_flag=True, help="Print what happens as lines of JSON.")
def broker(
    node_id: int | None,
    zookeeper: str | None,
    coordination: str | None,
    listeners: str | None,
    advertised_listeners: str | None,
    data: Path | None,
    rack: str | None,
    config_file: Path | None,
    assignments: tuple[str, ...],
    log_format: str,
    log_level: str,
    as_json: bool,
) -> None:
    """Run one broker of a cluster in the foreground until Ctrl-C or SIGTERM.

    Every broker has a number of its own and the same ZooKeeper ensemble; the chroot keeps clusters that
    share an ensemble apart. SIGTERM hands leadership to the other brokers before the broker ends, so
    restarting one broker after the other is safe: wait for 'tidelog cluster status --wait' in between.

    Settings come from --config-file, TIDELOG_SET_… variables and the flags, as for 'tidelog up'.

    \b
    Examples:
      tidelog broker --id 1 --zookeeper zk1:2181,zk2:2181,zk3:2181/tidelog --data /var/lib/tidelog
      tidelog broker --id 2 --zookeeper zk1:2181/tidelog --rack b --set default.replication.factor=3
      tidelog broker --id 1 --coordination /tmp/demo.sqlite --data /tmp/b1 --listeners PLAINTEXT://127.0.0.1:9092
      tidelog broker --config-file server.properties
    """
    started = time.perf_counter()
    base = read_properties(config_file) if config_file is not None else {}
    flags = {
        "node.id": None if node_id is None else str(node_id),
        "zookeeper.connect": zookeeper,
        "tidelog.coordination.path": coordination,
        "listeners": listeners,
        "advertised.listeners": advertised_listeners,
        "log.dirs": None if data is None else str(data),
        "broker.rack": rack,
    }
    overrides = broker_overrides(
        {**base, **environment_settings(os.environ)}, flags, parse_assignments(assignments, "'--set'")
    )
    raise click.exceptions.Exit(
        serve_broker(overrides, started, log_format=log_format, log_level=log_level, as_json=as_json)
    )
