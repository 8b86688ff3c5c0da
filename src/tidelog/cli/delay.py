"""`tidelog delay`: see what waits in delay topics, and cancel it."""

import time
from dataclasses import asdict

import click

from tidelog.admin.delays import SeenDelays, delays, first_due
from tidelog.cli.connection import Connection, connection_options
from tidelog.cli.errors import CommandError
from tidelog.cli.output import json_option, print_json, print_table, utc_text

CANCEL_HEADER = "tidelog-cancel"
RECORDS_MAX = 1_000


@click.group()
def delay() -> None:
    """See what waits in delay topics, and cancel it.

    A topic with the setting tidelog.delay.target has each of its records copied to that topic when it is due.
    """


@delay.command("list")
@json_option
@connection_options()
def list_delays(connection: Connection, as_json: bool) -> None:
    """List the delay topics: how much waits, what is due next, and what hinders them.

    \b
    Examples:
      tidelog delay list
      tidelog delay list --json
    """
    seen = delays(connection.cluster_admin())
    topics: dict[str, list[SeenDelays]] = {}
    for each in seen:
        topics.setdefault(each.topic, []).append(each)
    rows = [_row(name, partitions) for name, partitions in topics.items()]
    if as_json:
        print_json(rows)
    elif rows:
        print_table(
            ("topic", "target", "waiting", "due", "next due", "late", "reason"),
            [
                (
                    row["topic"],
                    row["target"],
                    row["waiting"],
                    row["due"],
                    utc_text(row["next_due_ms"]),  # type: ignore[arg-type]
                    f"{row['late_ms']} ms",
                    row["reason"],
                )
                for row in rows
            ],
        )
    else:
        click.echo("There are no delay topics.")


def _row(topic: str, partitions: list[SeenDelays]) -> dict[str, object]:
    due = [each.next_due_ms for each in partitions if each.next_due_ms is not None]
    return {
        "topic": topic,
        "target": partitions[0].target,
        "waiting": sum(each.waiting for each in partitions),
        "due": sum(each.due for each in partitions),
        "next_due_ms": min(due, default=None),
        "late_ms": max(each.late_ms for each in partitions),
        "forwarded": sum(each.forwarded for each in partitions),
        "cancelled": sum(each.cancelled for each in partitions),
        "reason": next((each.reason for each in partitions if each.reason), ""),
    }


@delay.command()
@click.argument("topic")
@click.option(
    "--limit",
    type=click.IntRange(1, RECORDS_MAX),
    default=20,
    show_default=True,
    metavar="N",
    help="How many records to show.",
)
@json_option
@connection_options()
def show(connection: Connection, topic: str, limit: int, as_json: bool) -> None:
    """Show the records of TOPIC that are due next, with their places.

    \b
    Examples:
      tidelog delay show orders-later
      tidelog delay show orders-later --limit 100 --json
    """
    seen = delays(connection.cluster_admin(), topic, limit)
    _require(seen, topic)
    records = first_due(seen, limit)
    if as_json:
        print_json([asdict(record) for record in records])
        return
    now_ms = int(time.time() * 1_000)
    print_table(
        ("partition", "offset", "due", "in"),
        [
            (record.partition, record.offset, utc_text(record.due_ms), _words(record.due_ms - now_ms))
            for record in records
        ],
    )
    waiting = sum(each.waiting for each in seen)
    click.echo(f"{waiting} records wait in {topic}; 'tidelog consume {topic} --from OFFSET' shows one")


def _words(milliseconds: int) -> str:
    return f"{milliseconds / 1_000:.1f} s" if milliseconds > 0 else "now"


def _require(seen: list[SeenDelays], topic: str) -> None:
    if not seen:
        raise CommandError(f"{topic} is not a delay topic", "'tidelog delay list' shows those there are")


@delay.command()
@click.argument("topic")
@click.argument("key")
@json_option
@connection_options()
def cancel(connection: Connection, topic: str, key: str, as_json: bool) -> None:
    """Cancel the records of TOPIC that wait with KEY.

    A record with that key and the header tidelog-cancel is written to each partition, for it is not known how
    their producers chose it. Copies whose transaction has begun are not recalled.

    \b
    Examples:
      tidelog delay cancel orders-later alice
    """
    seen = delays(connection.cluster_admin(), topic)
    _require(seen, topic)
    producer = connection.producer({"acks": "all"})
    faults: list[str] = []
    for each in seen:
        producer.produce(
            topic,
            None,
            key.encode(),
            partition=each.partition,
            headers={CANCEL_HEADER: b""},
            on_delivery=lambda error, _: faults.append(error.str()) if error is not None else None,
        )
    if producer.flush(connection.timeout_seconds) or faults:
        raise CommandError(
            f"the cancel did not reach every partition of {topic}: {(faults or ['no answer in time'])[0]}",
            "try again: to cancel twice does no harm",
        )
    if as_json:
        print_json({"topic": topic, "key": key, "partitions": [each.partition for each in seen]})
    else:
        click.echo(f"what waits in {topic} with the key {key!r} is cancelled")
