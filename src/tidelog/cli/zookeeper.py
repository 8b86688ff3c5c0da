"""`tidelog zookeeper`: run a real ZooKeeper for development and tests."""

import signal
import sys
import threading
from pathlib import Path
from types import FrameType

import click

from tidelog.cli.errors import CommandError
from tidelog.cli.lazy_group import CommandEntry, LazyGroup

SERVERS_MAX = 7


@click.command(
    cls=LazyGroup,
    entries={
        "start": CommandEntry("tidelog.cli.zookeeper:start", "Run a ZooKeeper, or an ensemble, until Ctrl-C.")
    },
)
def zookeeper() -> None:
    """Run a real ZooKeeper on this machine; in production, point brokers at an ensemble of your own."""


@click.command()
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=2181,
    show_default=True,
    metavar="PORT",
    help="The port of the first server; the others follow.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("zookeeper-data"),
    show_default=True,
    metavar="DIR",
    help="Keep data and logs here.",
)
@click.option(
    "--servers",
    type=click.IntRange(1, SERVERS_MAX),
    default=1,
    show_default=True,
    metavar="N",
    help="How many servers; three survive the loss of one.",
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, metavar="HOST", help="Listen on this address."
)
@click.option(
    "--jars",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="DIR",
    help="A folder with ZooKeeper's jars (also: TIDELOG_ZOOKEEPER_JARS).",
)
def start(port: int, data: Path, servers: int, host: str, jars: Path | None) -> None:
    """Run ZooKeeper in the foreground until Ctrl-C or SIGTERM; needs Java.

    \b
    Examples:
      tidelog zookeeper start
      tidelog zookeeper start --servers 3 --port 2181 --data /tmp/ensemble
    """
    from tidelog.server.zookeeper_process import ZookeeperError, ZookeeperServers

    stopping = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt
        stopping.set()

    ensemble = ZookeeperServers(data, port=port, count=servers, host=host, jars=jars)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    try:
        ensemble.start()
        what = "ZooKeeper is" if servers == 1 else f"An ensemble of {servers} ZooKeeper servers is"
        click.echo(f"{what} ready at {ensemble.connect_string}")
        click.echo(f"  data       {data.resolve()}")
        click.echo(f"  a broker   tidelog up --set zookeeper.connect={ensemble.connect_string}/tidelog")
        click.echo("  Ctrl-C stops it cleanly.")
        sys.stdout.flush()
        while not stopping.wait(0.5):
            ended = ensemble.ended()
            if ended:
                numbers = ", ".join(str(index + 1) for index in ended)
                raise CommandError(f"server {numbers} ended by itself", f"see {data}/server-*/zookeeper.out")
    except ZookeeperError as failure:
        raise CommandError(str(failure), failure.hint) from failure
    finally:
        ensemble.stop()
    click.echo("ZooKeeper stopped cleanly.")
