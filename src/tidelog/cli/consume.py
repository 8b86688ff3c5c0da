"""`tidelog consume`: print the records of a topic, from any place, once or for ever, alone or in a group.

Without --group the command assigns itself the partitions and commits nothing. With --group it joins the
group and commits what it has printed.
"""

import os
import signal
import sys
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, BinaryIO

import click

from tidelog.cli.connection import Connection, connection_options
from tidelog.cli.errors import CommandError, explained, from_kafka_error
from tidelog.cli.positions import PositionKind, RequestedPosition, position_callback
from tidelog.cli.record_format import Formatter, ShownRecord, compile_format, json_line
from tidelog.cli.record_schemas import RecordDecoder, record_decoder
from tidelog.cli.registry_access import registry_option

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, TopicPartition
    from confluent_kafka.admin._metadata import TopicMetadata

POLL_COUNT = 500
POLL_SECONDS = 0.2
_TIMESTAMP_TYPES = {1: "CreateTime", 2: "LogAppendTime"}


@dataclass(frozen=True, slots=True)
class Ending:
    """When to stop: after `count` records, at the end of every partition, or not at all."""

    count: int | None
    at_end: bool


def shown_record(message: "Message") -> ShownRecord:
    """A client's message as the record the formatters know."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None and partition is not None and offset is not None
    timestamp_type, timestamp_ms = message.timestamp()
    headers = message.headers()
    pairs = headers.items() if isinstance(headers, dict) else headers or ()
    return ShownRecord(
        topic,
        partition,
        offset,
        timestamp_ms if timestamp_type else -1,
        _TIMESTAMP_TYPES.get(timestamp_type),
        message.key(),
        message.value(),
        [(name, value.encode() if isinstance(value, str) else value) for name, value in pairs],
    )


def start_assignment(
    connection: Connection, consumer: "Consumer", topic: str, numbers: list[int], position: RequestedPosition
) -> list["TopicPartition"]:
    """The partitions with the offset each one is read from."""
    from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TopicPartition

    match position.kind:
        case PositionKind.BEGINNING:
            return [TopicPartition(topic, number, OFFSET_BEGINNING) for number in numbers]
        case PositionKind.END:
            return [TopicPartition(topic, number, OFFSET_END) for number in numbers]
        case PositionKind.TIMESTAMP:
            asked = [TopicPartition(topic, number, position.number) for number in numbers]
            with explained(f"the offsets of {topic} at that time cannot be found"):
                return consumer.offsets_for_times(asked, timeout=connection.timeout_seconds)
    assigned = []
    for number in numbers:
        with explained(f"the offsets of {topic}-{number} cannot be listed"):
            low, high = consumer.get_watermark_offsets(
                TopicPartition(topic, number), timeout=connection.timeout_seconds
            )
        wanted = position.number if position.kind is PositionKind.OFFSET else high - position.number
        # An offset outside the log would make the client jump by auto.offset.reset; the nearest one is meant.
        assigned.append(TopicPartition(topic, number, min(max(wanted, low), high)))
    return assigned


class Printer:
    """Polls the consumer and writes records until the ending is reached."""

    def __init__(
        self,
        consumer: "Consumer",
        formatter: Formatter,
        out: BinaryIO,
        ending: Ending,
        store_offsets: bool,
        decoder: RecordDecoder | None = None,
    ) -> None:
        self.consumer = consumer
        self.formatter = formatter
        self.out = out
        self.ending = ending
        self.printed_count = 0
        self.store_offsets = store_offsets
        self._decoder = decoder
        self._ended: set[tuple[str | None, int | None]] = set()

    def run(self) -> None:
        """Print until done; Ctrl-C and a closed pipe end it from outside."""
        while not self._done():
            wanted = POLL_COUNT if self.ending.count is None else self.ending.count - self.printed_count
            messages = self.consumer.consume(min(POLL_COUNT, wanted), POLL_SECONDS)
            printed = [message for message in messages if self._take(message)]
            if not printed:
                continue
            self.out.flush()
            if self.store_offsets:
                # Only what has left this process may be committed; a closed pipe fails the flush above.
                for message in printed:
                    self.consumer.store_offsets(message)

    def _take(self, message: "Message") -> bool:
        """Write a record and say so; note the end of a partition; raise what will not heal by itself."""
        from confluent_kafka import KafkaError

        error = message.error()
        place = (message.topic(), message.partition())
        if error is None:
            self._ended.discard(place)
            record = shown_record(message)
            if self._decoder is not None:
                record = self._decoder.decoded(record)
                if self.formatter is not json_line and any(one.fault for one in record.decoded.values()):
                    # Only a line of JSON has a place for bytes; the fault was told.
                    return False
            self.out.write(self.formatter(record))
            self.printed_count += 1
            return True
        if error.code() == KafkaError._PARTITION_EOF:
            self._ended.add(place)
        elif not error.retriable() and error.code() != KafkaError._ALL_BROKERS_DOWN:
            raise from_kafka_error(error, "the records cannot be read")
        return False

    def _done(self) -> bool:
        if self.ending.count is not None and self.printed_count >= self.ending.count:
            return True
        if not self.ending.at_end or not self._ended:
            return False
        assigned = {(partition.topic, partition.partition) for partition in self.consumer.assignment()}
        return bool(assigned) and assigned <= self._ended


def _interrupt(signal_number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@click.command()
@click.argument("topic")
@click.option(
    "-f",
    "--format",
    "format_text",
    default="%s\\n",
    show_default=True,
    metavar="FORMAT",
    help="How to print a record; see below.",
)
@click.option("--json", "as_json", is_flag=True, help="Print each record as a line of JSON.")
@click.option(
    "--from",
    "-o",
    "position",
    default=None,
    metavar="WHERE",
    callback=lambda ctx, parameter, value: (
        None if value is None else position_callback(ctx, parameter, value)
    ),
    help="beginning (default), end, an offset, -N (the last N), an ISO time, @milliseconds or an age (15m).",
)
@click.option(
    "-p",
    "--partition",
    "wanted",
    type=click.IntRange(min=0),
    multiple=True,
    help="Only this partition; repeat for more.",
)
@click.option("-n", "--count", type=click.IntRange(min=1), help="Stop after this many records.")
@click.option(
    "--follow/--exit-at-end",
    "-F/-e",
    "follow",
    default=True,
    help="Wait for new records (the default), or stop at the end.",
)
@click.option("-g", "--group", metavar="GROUP", help="Read as a member of this consumer group and commit.")
@click.option("-Z", "--null", "show_null", is_flag=True, help="Print NULL for null keys and values.")
@click.option(
    "--schema", "values_by_schema", is_flag=True, help="Decode values with the schema that their id names."
)
@click.option("--key-schema", "keys_by_schema", is_flag=True, help="The same for keys.")
@registry_option("The schema registry, for --schema and --key-schema.")
@connection_options()
def consume(
    connection: Connection,
    topic: str,
    format_text: str,
    as_json: bool,
    position: RequestedPosition | None,
    wanted: tuple[int, ...],
    count: int | None,
    follow: bool,
    group: str | None,
    show_null: bool,
    values_by_schema: bool,
    keys_by_schema: bool,
    registry_url: str,
) -> None:
    """Print the records of TOPIC.

    \b
    Examples:
      tidelog consume orders
      tidelog consume orders --from -5 --exit-at-end
      tidelog consume orders -f '%p:%o %k=%s\\n' -n 10
      tidelog consume orders --from 2026-01-31T12:00:00Z --json
      tidelog consume orders --group billing
      tidelog consume orders --schema --exit-at-end

    \b
    Formats:
      %t topic   %p partition   %o offset   %k key   %s value   %h headers
      %T timestamp in ms   %K key size   %S value size   %% percent   \\n \\t \\xNN
    """
    try:
        formatter = json_line if as_json else compile_format(format_text, null=b"NULL" if show_null else b"")
    except ValueError as fault:
        raise click.BadParameter(str(fault), param_hint="'--format'") from fault
    _check_group_options(group, position, wanted)
    decoder = record_decoder(
        registry_url, connection.timeout_seconds, keys=keys_by_schema, values=values_by_schema
    )
    at_latest = position is not None and position.kind is PositionKind.END
    consumer = _consumer(connection, group, at_latest)
    signal.signal(signal.SIGTERM, _interrupt)
    printer = Printer(
        consumer, formatter, sys.stdout.buffer, Ending(count, not follow), group is not None, decoder
    )
    try:
        known = connection.metadata(consumer).topics.get(topic)
        numbers = _partition_numbers(topic, known, wanted)
        with explained(f"topic {topic!r} cannot be read"):
            if group is not None:
                consumer.subscribe([topic])
            else:
                start = position or RequestedPosition(PositionKind.BEGINNING)
                consumer.assign(start_assignment(connection, consumer, topic, numbers, start))
            printer.run()
    except KeyboardInterrupt:
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # The reader has seen enough (`… | head`): no error. Python must not flush to it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        consumer.close()
    if decoder is not None and decoder.faults_count:
        raise click.exceptions.Exit(1)


def _consumer(connection: Connection, group: str | None, at_latest: bool) -> "Consumer":
    return connection.consumer(
        {
            "group.id": group or "tidelog-consume",
            "enable.auto.commit": group is not None,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "latest" if at_latest else "earliest",
            "fetch.wait.max.ms": 100,
        }
    )


def _check_group_options(
    group: str | None, position: RequestedPosition | None, wanted: tuple[int, ...]
) -> None:
    if group is None:
        return
    if wanted:
        raise click.UsageError(
            "--group shares partitions among its members; it cannot be used with --partition."
        )
    if position is not None and position.kind not in (PositionKind.BEGINNING, PositionKind.END):
        raise click.UsageError(
            "With --group, --from can only be beginning or end, and is used where the group has no committed "
            "offset. To move a group: tidelog group reset-offsets."
        )


def _partition_numbers(topic: str, known: "TopicMetadata | None", wanted: tuple[int, ...]) -> list[int]:
    if known is None:
        raise CommandError(f"there is no topic {topic!r}", "'tidelog topic list' shows the topics")
    if known.error is not None:
        raise from_kafka_error(known.error, f"topic {topic!r} cannot be read")
    absent = sorted(set(wanted) - set(known.partitions))
    if absent:
        raise CommandError(
            f"topic {topic!r} has no partition {', '.join(map(str, absent))}",
            f"its partitions are 0 to {len(known.partitions) - 1}",
        )
    return sorted(set(wanted) or known.partitions)
