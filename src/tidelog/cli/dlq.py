"""`tidelog dlq`: look at dead letters, and send them back to where they failed."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from tidelog.admin.dead_letter_topic import (
    DeadLetterTopic,
    Letter,
    LetterFault,
    NoSuchLetter,
    NoSuchTopic,
    NotReadInTime,
    waits,
)
from tidelog.cli.connection import Connection, connection_options
from tidelog.cli.errors import CommandError, explained
from tidelog.cli.output import json_option, print_fields, print_json, print_table, utc_text

REASON_CHARACTERS_SHOWN = 60
COPY_SETTING = "errors.deadletterqueue.copy.record.enable"
_HINTS: dict[type[LetterFault], str] = {
    NoSuchTopic: "'tidelog topic list' shows the topics",
    NoSuchLetter: "'tidelog dlq list TOPIC' shows them",
    NotReadInTime: "raise --timeout, or check 'tidelog cluster status'",
}


@click.group()
def dlq() -> None:
    """Look at dead letters, and send them back.

    Pipelines write records that they cannot process to a dead-letter topic, with reason, origin and stack in
    headers; share groups those that were rejected or delivered too often. Those of Kafka Connect are
    understood too.
    """


@contextmanager
def _letters_explained(doing: str) -> Iterator[None]:
    try:
        with explained(doing):
            yield
    except LetterFault as failure:
        raise CommandError(str(failure), _HINTS[type(failure)]) from failure


def filter_options(command: Any) -> Any:
    """Which letters: by words of the reason, by step, by the topic they are from."""
    for name, metavar, sentence in (
        ("--from-topic", "TOPIC", "Only records that are from this topic."),
        ("--step", "STEP", "Only what failed in this step."),
        ("--group", "GROUP", "Only what this share group gave up."),
        ("--reason", "TEXT", "Only letters with this in their reason."),
    ):
        command = click.option(name, metavar=metavar, help=sentence)(command)
    return command


def matches(
    letter: Letter, reason: str | None, step: str | None, from_topic: str | None, group: str | None
) -> bool:
    """Whether a letter is one of those that were asked for."""
    failure = letter.failure
    return (
        (reason is None or reason in (failure.reason or ""))
        and (step is None or step == failure.step)
        and (group is None or group == failure.group)
        and (from_topic is None or from_topic == failure.topic)
    )


@dlq.command("list")
@click.argument("topic")
@filter_options
@click.option("--all", "with_redriven", is_flag=True, help="Also those that were sent back.")
@click.option("--count", "only_count", is_flag=True, help="How many for each step, group and reason.")
@json_option
@connection_options()
def list_letters(
    connection: Connection,
    topic: str,
    reason: str | None,
    step: str | None,
    from_topic: str | None,
    group: str | None,
    with_redriven: bool,
    only_count: bool,
    as_json: bool,
) -> None:
    """List the dead letters of TOPIC.

    \b
    Examples:
      tidelog dlq list orders-dead
      tidelog dlq list orders-dead --reason JSON --count
    """
    with _letters_explained(f"reading {topic}"):
        letters = [
            letter
            for letter in DeadLetterTopic(connection, topic).letters()
            if matches(letter, reason, step, from_topic, group) and (with_redriven or not letter.redriven)
        ]
    if only_count:
        counts = Counter(
            (letter.failure.step, letter.failure.group, letter.failure.reason) for letter in letters
        )
        rows = [
            {"step": step, "group": group, "reason": why, "letters": count}
            for (step, group, why), count in counts.most_common()
        ]
        if as_json:
            print_json(rows)
        else:
            print_table(("step", "group", "reason", "letters"), [tuple(row.values()) for row in rows])
    elif as_json:
        print_json([_as_json(letter) for letter in letters])
    elif letters:
        print_table(("partition", "offset", "at", "from", "by", "sent back", "reason"), map(_row, letters))
    else:
        click.echo(f"There are no dead letters in {topic}.")


@dlq.command()
@click.argument("topic")
@click.argument("partition", type=click.IntRange(min=0))
@click.argument("offset", type=click.IntRange(min=0))
@json_option
@connection_options()
def show(connection: Connection, topic: str, partition: int, offset: int, as_json: bool) -> None:
    """Show one dead letter: the record, why it failed, and the stack.

    \b
    Examples:
      tidelog dlq show orders-dead 0 17
      tidelog dlq show orders-dead 0 17 --json
    """
    with _letters_explained(f"reading {topic}"):
        letter = DeadLetterTopic(connection, topic).letter(partition, offset)
    if as_json:
        print_json(_as_json(letter))
        return
    failure = letter.failure
    print_fields(
        [
            ("letter", letter.place),
            ("at", utc_text(letter.timestamp_ms)),
            ("pipeline", failure.pipeline),
            ("step", failure.step),
            ("group", failure.group),
            ("deliveries", failure.deliveries),
            ("reason", failure.reason),
            ("from", failure.origin),
            ("attempts", failure.attempts),
            ("sent back", letter.redriven),
            ("key", _text(letter.key)),
            ("value", _text(letter.value)),
            ("headers", [f"{name}={_text(value)}" for name, value in failure.headers]),
        ]
    )
    if failure.stack:
        click.echo(f"stack\n{failure.stack}")


@dlq.command()
@click.argument("topic")
@filter_options
@click.option("--partition", type=click.IntRange(min=0), metavar="N", help="Only letters in this partition.")
@click.option(
    "--offset", type=click.IntRange(min=0), metavar="OFFSET", help="Only the letter at this offset."
)
@click.option("--to", metavar="TOPIC", help="Send them here (default: the topic each is from).")
@click.option("--yes", is_flag=True, help="Send them; without this, only say what would be sent.")
@connection_options()
def redrive(
    connection: Connection,
    topic: str,
    reason: str | None,
    step: str | None,
    from_topic: str | None,
    group: str | None,
    partition: int | None,
    offset: int | None,
    to: str | None,
    yes: bool,
) -> None:
    """Send dead letters of TOPIC back, with key, headers and timestamp as they were; each only once.

    Letters of share groups do not tell the timestamp: their own is taken. Those without a copy of the record
    stay.

    \b
    Examples:
      tidelog dlq redrive orders-dead
      tidelog dlq redrive orders-dead --reason JSON --yes
      tidelog dlq redrive orders-dead --partition 0 --offset 17 --to orders-retry --yes
    """

    def wanted(letter: Letter) -> bool:
        return (
            matches(letter, reason, step, from_topic, group)
            and partition in (None, letter.partition)
            and offset in (None, letter.offset)
        )

    letters = DeadLetterTopic(connection, topic)
    with _letters_explained(f"reading {topic}"):
        found = [letter for letter in letters.letters() if not letter.redriven and wanted(letter)]
    chosen = [letter for letter in found if waits(letter)]
    if len(chosen) < len(found):
        count = len(found) - len(chosen)
        click.echo(
            f"{count} without a copy of the record stay; the share group copies with {COPY_SETTING}=true",
            err=True,
        )
    lost = [letter.place for letter in chosen if to is None and letter.failure.topic is None]
    if lost:
        raise CommandError(f"{lost[0]} does not say where it is from", "name a topic with --to")
    targets = Counter(to or letter.failure.topic for letter in chosen)
    words = ", ".join(f"{count} to {target}" for target, count in targets.items()) or "none"
    if not yes:
        click.echo(f"would send {words}; add --yes to do it")
        return
    with _letters_explained(f"sending letters of {topic} back"):
        sent = letters.redrive(wanted, to)
    click.echo(f"sent back {sent} of {topic}" + (f" ({words})" if sent == len(chosen) else ""))


def _row(letter: Letter) -> tuple[Any, ...]:
    failure = letter.failure
    reason = " ".join((failure.reason or "").split())
    if len(reason) > REASON_CHARACTERS_SHOWN:
        reason = reason[: REASON_CHARACTERS_SHOWN - 1] + "…"
    return (
        letter.partition,
        letter.offset,
        utc_text(letter.timestamp_ms),
        failure.origin,
        failure.step or failure.group,
        letter.redriven,
        reason,
    )


def _as_json(letter: Letter) -> dict[str, Any]:
    failure = letter.failure
    return {
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "timestamp_ms": letter.timestamp_ms,
        "pipeline": failure.pipeline,
        "step": failure.step,
        "group": failure.group,
        "deliveries": failure.deliveries,
        "reason": failure.reason,
        "from": {"topic": failure.topic, "partition": failure.partition, "offset": failure.offset},
        "attempts": failure.attempts,
        "redriven": letter.redriven,
        "key": _text(letter.key),
        "value": _text(letter.value),
        "headers": [[name, _text(value)] for name, value in failure.headers],
        "stack": failure.stack,
    }


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "backslashreplace")
