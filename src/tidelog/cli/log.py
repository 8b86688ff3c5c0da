"""`tidelog log`: explain the files of a broker's data folder."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click

from tidelog.cli.errors import CommandError
from tidelog.cli.log_entries import (
    Batch,
    BatchRecord,
    Damage,
    Entry,
    Summary,
    known_endings,
    read_log,
    reader_for,
)
from tidelog.cli.log_text import entry_json, entry_text, heading


@click.group()
def log() -> None:
    """Explain the files a broker keeps on disk."""


@log.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option(
    "--records/--no-records", default=True, help="Show the records inside the batches, or batches only."
)
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help="Show only the first N batches or entries."
)
@click.option(
    "--preview",
    "preview_bytes",
    type=click.IntRange(min=0),
    default=60,
    show_default=True,
    metavar="BYTES",
    help="How much of each key and value to show.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per line, with whole keys and values."
)
def dump(
    paths: tuple[Path, ...], records: bool, limit: int | None, preview_bytes: int, as_json: bool
) -> None:
    """Explain FILE: a .log, .index, .timeindex, .txnindex, .snapshot or checkpoint file, or a whole folder.

    It only reads, takes no lock, and works beside a running broker and on Apache Kafka's files.
    What looks torn at the end of the newest segment may be a batch that is being written right now;
    after a crash the broker cuts such a tail when it starts.

    Exit code 1 means damage was found.

    \b
    Examples:
      tidelog log dump tidelog-data/orders-0/00000000000000000000.log
      tidelog log dump --no-records tidelog-data/orders-0
      tidelog log dump --json tidelog-data/orders-0/*.log | jq 'select(.type == "record") | .key'
    """
    damaged = False
    for number, path in enumerate(_files(paths)):
        reader = reader_for(path)
        if reader is None:
            raise CommandError(
                f"{path} is not a kind of file that is known",
                f"give a file that ends in {', '.join(known_endings())}",
            )
        if reader is read_log:
            reader = partial(read_log, with_records=records)
        if not as_json:
            click.echo(("\n" if number else "") + heading(path))
        try:
            for entry in _limited(reader(path), limit):
                damaged |= isinstance(entry, Damage) or (isinstance(entry, Batch) and not entry.crc_ok)
                click.echo(entry_json(path, entry) if as_json else entry_text(entry, preview_bytes))
        except OSError as failure:
            raise CommandError(
                f"cannot read {path}: {failure.strerror}", "check the path, and that you may read the file"
            ) from failure
    if damaged:
        raise click.exceptions.Exit(1)


def _files(paths: tuple[Path, ...]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            inside = sorted(
                file for file in path.iterdir() if file.is_file() and reader_for(file) is not None
            )
            if not inside:
                raise CommandError(
                    f"{path} has no log files", "give the folder of a partition, like orders-0"
                )
            yield from inside
        elif path.exists():
            yield path
        else:
            raise CommandError(
                f"there is no file {path}", "the folder of a partition is DATA/<topic>-<partition>"
            )


def _limited(entries: Iterator[Entry], limit: int | None) -> Iterator[Entry]:
    """Entries up to the limit; records belong to their batch and do not count."""
    shown = 0
    for entry in entries:
        if limit is not None and not isinstance(entry, BatchRecord | Damage | Summary):
            if shown == limit:
                return
            shown += 1
        yield entry
