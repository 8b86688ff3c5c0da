"""`tidelog txn`: list, describe and abort transactions."""

from dataclasses import asdict
from datetime import UTC, datetime

import click

from tidelog.admin import transactions
from tidelog.admin.cluster_admin import ClusterAdmin
from tidelog.admin.transactions import OpenProducer
from tidelog.cli.connection import Connection, connection_options
from tidelog.cli.errors import CommandError
from tidelog.cli.output import json_option, print_fields, print_json, print_table
from tidelog.cli.topic import confirm
from tidelog.client.cluster import Cluster

LISTED = ("transactional_id", "state", "producer_id", "coordinator")
DESCRIBED = (*LISTED[:3], "producer_epoch", "coordinator", "timeout_ms", "start_ms", "partitions")


@click.group()
def txn() -> None:
    """Look at transactions, and abort one that hangs.

    A transaction that hangs is open in a partition although its coordinator knows nothing of it; it keeps
    read_committed consumers from everything behind it.
    """


@txn.command("list")
@click.option(
    "--state", "states", multiple=True, metavar="STATE", help="Only in this state, for example Ongoing."
)
@json_option
@connection_options()
def list_transactions(connection: Connection, states: tuple[str, ...], as_json: bool) -> None:
    """List the transactional ids of the cluster with their state.

    \b
    Examples:
      tidelog txn list
      tidelog txn list --state Ongoing --state PrepareCommit
    """
    try:
        found = transactions.list_transactions(connection.cluster_admin(), states)
    except transactions.UnknownState as fault:
        raise CommandError(
            f"there is no transaction state {str(fault)!r}",
            "for example Ongoing, PrepareCommit, CompleteAbort",
        ) from fault
    rows = [{name: getattr(item, name) for name in LISTED} for item in found]
    if as_json:
        print_json(rows)
    elif rows:
        columns = ("transactional id", "state", "producer id", "coordinator")
        print_table(columns, [tuple(row.values()) for row in rows])
    else:
        click.echo("There are no transactional ids" + (" in this state." if states else " yet."))


@txn.command()
@click.argument("transactional_id", metavar="ID")
@json_option
@connection_options()
def describe(connection: Connection, transactional_id: str, as_json: bool) -> None:
    """Show the state, producer, age and open partitions of the transactional ID.

    \b
    Examples:
      tidelog txn describe billing-1
      tidelog txn describe billing-1 --json
    """
    found = transactions.describe_transaction(connection.cluster_admin(), transactional_id)
    if as_json:
        print_json({name: getattr(found, name) for name in DESCRIBED})
        return
    print_fields(
        [
            ("transactional id", found.transactional_id),
            ("state", found.state),
            ("producer id", found.producer_id),
            ("producer epoch", found.producer_epoch),
            ("coordinator", found.coordinator),
            ("timeout", f"{found.timeout_ms} ms"),
            ("started", None if found.start_ms is None else _time(found.start_ms)),
            ("partitions", list(found.partitions)),
        ]
    )


@txn.command()
@click.argument("topic")
@click.argument("partition", type=click.IntRange(min=0))
@click.option("--producer-id", type=int, metavar="ID", help="The producer whose transaction it is.")
@click.option(
    "--start-offset", type=int, metavar="OFFSET", help="Where the transaction starts in the partition."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@connection_options()
def abort(
    connection: Connection,
    topic: str,
    partition: int,
    producer_id: int | None,
    start_offset: int | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Abort a transaction that hangs in PARTITION of TOPIC; without an option, show those that are open.

    Only this partition gets a marker. A producer that is alive loses the part of its transaction that it
    wrote here, so make sure that the coordinator does not know it: tidelog txn list --state Ongoing.

    \b
    Examples:
      tidelog txn abort orders 0
      tidelog txn abort orders 0 --start-offset 4711
      tidelog txn abort orders 0 --producer-id 2000 --yes
    """
    admin = connection.cluster_admin()
    check_led(admin, topic, partition)
    found = transactions.open_producers(admin, topic, partition)
    if producer_id is None and start_offset is None:
        if as_json:
            print_json([_row(item) for item in found])
        else:
            _show(found, topic, partition)
        return
    chosen = [
        item
        for item in found
        if producer_id in (None, item.producer_id) and start_offset in (None, item.start_offset)
    ]
    if not chosen:
        raise CommandError(
            f"no such transaction is open in {topic}-{partition}",
            f"see 'tidelog txn abort {topic} {partition}'",
        )
    (producer,) = chosen
    confirm(
        f"Abort the transaction of producer {producer.producer_id} in {topic}-{partition}, "
        f"which starts at offset {producer.start_offset}?",
        yes,
    )
    transactions.abort(admin, producer)
    if as_json:
        print_json({"aborted": _row(producer), "topic": topic, "partition": partition})
    else:
        click.echo(f"Aborted the transaction of producer {producer.producer_id} in {topic}-{partition}.")


def check_led(admin: ClusterAdmin, topic: str, partition: int) -> None:
    """Say at once what there is no leader of."""
    known = admin.asked("the cluster cannot be described", Cluster.topics)
    rows = {row.partition: row for row in known[topic].partitions} if topic in known else {}
    if partition not in rows:
        raise CommandError(f"there is no partition {topic}-{partition}", "see 'tidelog topic list'")
    if rows[partition].leader < 0:
        raise CommandError(f"{topic}-{partition} has no leader", "check 'tidelog cluster status'")


def _row(producer: OpenProducer) -> dict[str, int]:
    row = asdict(producer)
    del row["topic"], row["partition"]
    return row


def _show(found: list[OpenProducer], topic: str, partition: int) -> None:
    if not found:
        click.echo(f"No transaction is open in {topic}-{partition}.")
        return
    print_table(
        ("producer id", "epoch", "start offset", "last write"),
        [
            (item.producer_id, item.producer_epoch, item.start_offset, _time(item.last_timestamp_ms))
            for item in found
        ],
    )


def _time(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
