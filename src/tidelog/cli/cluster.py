"""`tidelog cluster`: the table of its commands; the modules behind it are imported when one runs."""

import click

from tidelog.cli.lazy_group import CommandEntry, LazyGroup

COMMANDS = {
    "status": CommandEntry("tidelog.cli.cluster_status:status", "Show whether the cluster is well."),
    "brokers": CommandEntry("tidelog.cli.cluster_status:brokers", "List the brokers, alive and dead."),
    "reassign": CommandEntry("tidelog.cli.cluster_moves:reassign", "Move replicas to other brokers."),
    "move": CommandEntry(
        "tidelog.cli.cluster_moves:move", "Move one partition's replicas or its leadership."
    ),
    "elect": CommandEntry("tidelog.cli.cluster_moves:elect", "Elect preferred or unclean leaders."),
    "decommission": CommandEntry(
        "tidelog.cli.cluster_moves:decommission", "Take a broker out of the cluster for good."
    ),
    "roll": CommandEntry(
        "tidelog.cli.cluster_roll:roll", "Restart the brokers of 'tidelog up --brokers' one by one."
    ),
}


@click.command(cls=LazyGroup, entries=COMMANDS)
def cluster() -> None:
    """See how a cluster is, and move what it holds.

    Commands that move data show their plan first and change nothing without --execute. They work with
    any Kafka cluster, except 'roll', which talks to the supervisor of 'tidelog up --brokers'.
    """
