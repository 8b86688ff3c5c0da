"""`tidelog offsets`: the offsets of each partition of a topic, at its ends or at a moment."""

import click

from tidelog.admin.offsets import list_offsets
from tidelog.cli.connection import Connection, connection_options
from tidelog.cli.errors import CommandError
from tidelog.cli.output import json_option, print_json, print_table, utc_text
from tidelog.cli.positions import moment_callback
from tidelog.client.cluster import EARLIEST, LATEST, Cluster


@click.command()
@click.argument("topic")
@click.option(
    "--time",
    "moment_ms",
    callback=moment_callback,
    metavar="TIME",
    help="Also find the first record at or after a time: ISO, @milliseconds, or an age like 15m.",
)
@click.option(
    "--partition", "-p", "wanted", type=int, multiple=True, help="Only this partition; repeat for more."
)
@json_option
@connection_options()
def offsets(
    connection: Connection, topic: str, moment_ms: int | None, wanted: tuple[int, ...], as_json: bool
) -> None:
    """Show the earliest and latest offset of each partition of TOPIC.

    The latest offset is the one the next record will get, so latest - earliest offsets are in use
    (fewer records than that may be left in a compacted topic).

    \b
    Examples:
      tidelog offsets orders
      tidelog offsets orders --time 2026-01-31T12:00:00Z
      tidelog offsets orders --time 15m --json
    """
    admin = connection.cluster_admin()
    found = admin.asked(f"topic {topic!r} cannot be read", Cluster.topics)
    known = found.get(topic)
    if known is None:
        raise CommandError(f"there is no topic {topic!r}", "'tidelog topic list' shows the topics")
    present = {row.partition for row in known.partitions}
    absent = sorted(set(wanted) - present)
    if absent:
        raise CommandError(
            f"topic {topic!r} has no partition {', '.join(map(str, absent))}",
            f"its partitions are 0 to {len(known.partitions) - 1}",
        )
    numbers = sorted(set(wanted) or present)
    partitions = [(topic, number) for number in numbers]
    earliest = list_offsets(admin, partitions, EARLIEST)
    latest = list_offsets(admin, partitions, LATEST)
    rows: list[dict[str, int | None]] = []
    for number in numbers:
        key = (topic, number)
        first, end = earliest[key].offset, latest[key].offset
        rows.append({"partition": number, "earliest": first, "latest": end, "offsets_in_use": end - first})
    columns = ["partition", "earliest", "latest", "offsets in use"]
    if moment_ms is not None:
        at_time = list_offsets(admin, partitions, moment_ms)
        for number, row in zip(numbers, rows, strict=True):
            listed = at_time[(topic, number)]
            row["offset_at_time"] = listed.offset if listed.offset >= 0 else None
            row["timestamp_ms"] = listed.timestamp_ms if listed.offset >= 0 else None
        columns += ["offset at time", "record's time"]
    if as_json:
        print_json(rows)
        return
    if moment_ms is not None:
        click.echo(f"time asked for: {utc_text(moment_ms)} ('-': no record is that young)")
    shown = [
        {name: utc_text(value) if name == "timestamp_ms" else value for name, value in row.items()}
        for row in rows
    ]
    print_table(columns, [tuple(row.values()) for row in shown])
