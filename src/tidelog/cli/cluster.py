"""`tidelog cluster`: who is in the cluster and who leads it."""

import click

from tidelog.cli.connection import Connection, connection_options
from tidelog.cli.errors import explained
from tidelog.cli.output import json_option, print_fields, print_json, print_table


@click.group()
def cluster() -> None:
    """Show the brokers and the controller."""


@cluster.command()
@json_option
@connection_options()
def status(connection: Connection, as_json: bool) -> None:
    """Show the brokers, the controller, and whether every partition is well.

    \b
    Examples:
      tidelog cluster status
      tidelog cluster status --bootstrap kafka.example.com:9092 --json
    """
    admin = connection.admin()
    known = connection.metadata(admin)
    with explained("the cluster cannot be described"):
        described = connection.outcome(admin.describe_cluster(request_timeout=connection.timeout_seconds))
    partitions = [partition for topic in known.topics.values() for partition in topic.partitions.values()]
    controller = described.controller.id if described.controller is not None else None
    leaders: dict[int, int] = {}
    for partition in partitions:
        leaders[partition.leader] = leaders.get(partition.leader, 0) + 1
    brokers = [
        {
            "id": broker.id,
            "host": broker.host,
            "port": broker.port,
            "controller": broker.id == controller,
            "leads": leaders.get(broker.id, 0),
        }
        for broker in sorted(known.brokers.values(), key=lambda broker: broker.id)
    ]
    summary = {
        "cluster_id": described.cluster_id,
        "controller": controller,
        "topics": len(known.topics),
        "partitions": len(partitions),
        "partitions_without_leader": sum(partition.leader < 0 for partition in partitions),
        "under_replicated_partitions": sum(
            len(partition.isrs) < len(partition.replicas) for partition in partitions
        ),
    }
    if as_json:
        print_json({**summary, "brokers": brokers})
        return
    print_fields((name.replace("_", " "), value) for name, value in summary.items())
    click.echo()
    print_table(
        ("broker", "address", "controller", "leads partitions"),
        [(row["id"], f"{row['host']}:{row['port']}", row["controller"], row["leads"]) for row in brokers],
    )
