"""`tidelog produce`: send lines of standard input or files to a topic as records."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import click

from tidelog.cli.connection import Connection, connection_options
from tidelog.cli.errors import CommandError, explained, from_kafka_error
from tidelog.cli.record_format import unescape
from tidelog.cli.record_input import Encoders, LineReader, NewRecord, json_record, split_records
from tidelog.cli.record_schemas import record_encoders
from tidelog.cli.registry_access import registry_option

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

AUTO_CREATION_WAIT_SECONDS = 3.0
PROGRESS_INTERVAL_SECONDS = 1.0
PARTITIONERS = (
    "consistent_random",
    "consistent",
    "murmur2_random",
    "murmur2",
    "random",
    "fnv1a",
    "fnv1a_random",
)


class Delivery:
    """Sends records, counts their acknowledgements, and keeps the first failure."""

    def __init__(self, producer: "Producer", topic: str, *, show_progress: bool) -> None:
        self.producer = producer
        self.topic = topic
        self.sent_count = 0
        self.sent_bytes = 0
        self.acknowledged_count = 0
        self.by_partition: dict[int, int] = {}
        self.failure: KafkaError | None = None
        self._show_progress = show_progress
        self._started = self._reported = time.monotonic()

    def send(self, record: NewRecord, partition: int | None) -> None:
        """Queue one record, waiting while the client's queue is full."""
        options: dict[str, Any] = {"headers": record.headers} if record.headers else {}
        chosen = partition if partition is not None else record.partition
        if chosen is not None:
            options["partition"] = chosen
        if record.timestamp_ms is not None:
            options["timestamp"] = record.timestamp_ms
        while True:
            try:
                with explained(f"a record was not accepted for {self.topic}"):
                    self.producer.produce(
                        self.topic,
                        value=record.value,
                        key=record.key,
                        on_delivery=self._delivered,
                        **options,
                    )
                break
            except BufferError:
                self.producer.poll(0.1)
                self.check()
        self.sent_count += 1
        self.sent_bytes += len(record.value or b"") + len(record.key or b"")
        self.producer.poll(0)
        self.check()
        self._progress()

    def finish(self, timeout_seconds: float) -> None:
        """Wait until every record is acknowledged or has failed."""
        deadline = time.monotonic() + timeout_seconds
        while self.producer.flush(0.2) > 0:
            self.check()
            self._progress()
            if time.monotonic() > deadline:
                raise CommandError(
                    f"{self.sent_count - self.acknowledged_count} records were not acknowledged within "
                    f"{timeout_seconds:g} s",
                    "raise --timeout, or check 'tidelog cluster status'",
                )
        self.check()

    def check(self) -> None:
        """Stop at the first record that was refused."""
        if self.failure is not None:
            self.producer.purge()
            raise from_kafka_error(
                self.failure, f"a record was not written to {self.topic} ({self.acknowledged_count} were)"
            )

    def summary(self) -> str:
        elapsed = max(time.monotonic() - self._started, 1e-9)
        where = ", ".join(f"p{number}: {count}" for number, count in sorted(self.by_partition.items()))
        return (
            f"{self.acknowledged_count} records acknowledged by {self.topic} ({where or 'nothing to send'}) "
            f"in {elapsed:.2f} s, {self.acknowledged_count / elapsed:,.0f} records/s"
        )

    def _delivered(self, error: "KafkaError | None", message: "Message") -> None:
        if error is not None:
            if self.failure is None:
                self.failure = error
            return
        self.acknowledged_count += 1
        partition = message.partition()
        if partition is not None:
            self.by_partition[partition] = self.by_partition.get(partition, 0) + 1

    def _progress(self) -> None:
        now = time.monotonic()
        if not self._show_progress or now - self._reported < PROGRESS_INTERVAL_SECONDS:
            return
        self._reported = now
        rate = self.sent_bytes / (now - self._started) / 1e6
        click.echo(f"\r{self.sent_count:,} records sent, {rate:.1f} MB/s …", err=True, nl=False)


def parse_header(text: str) -> tuple[str, bytes | None]:
    """`name=value`; a name without '=' is a header with a null value, as in kcat."""
    name, separator, value = text.partition("=")
    if not name:
        raise click.BadParameter(f"{text!r} has no name", param_hint="'-H'")
    return name, value.encode() if separator else None


def require_topic(connection: Connection, producer: "Producer", topic: str) -> int:
    """The number of partitions of the topic; asking creates it where the broker is set to do so."""
    from confluent_kafka import KafkaException

    connection.metadata(producer)
    deadline = time.monotonic() + AUTO_CREATION_WAIT_SECONDS
    while True:
        try:
            found = producer.list_topics(topic, timeout=connection.timeout_seconds).topics[topic]
        except KafkaException as failure:
            raise from_kafka_error(failure.args[0], f"topic {topic!r} cannot be used") from failure
        if found.error is None and found.partitions:
            return len(found.partitions)
        if time.monotonic() > deadline or (found.error is not None and not found.error.retriable()):
            break
        time.sleep(0.05)
    if found.error is not None and found.error.name() not in (
        "UNKNOWN_TOPIC_OR_PART",
        "LEADER_NOT_AVAILABLE",
    ):
        raise from_kafka_error(found.error, f"topic {topic!r} cannot be used")
    raise CommandError(f"there is no topic {topic!r}", f"tidelog topic create {topic}")


class LineForm(NamedTuple):
    """What lines are: JSON objects, or values as they are; and which fields a schema encodes."""

    as_json: bool
    encoders: Encoders


def records_of(
    stream: IO[bytes], name: str, delimiter: bytes, lines: LineReader, form: LineForm
) -> Iterator[NewRecord]:
    """The records of one input; a line that is no record is named by its number."""
    for number, line in enumerate(split_records(stream, delimiter), start=1):
        try:
            if not form.as_json:
                record = lines.encoded(line, form.encoders)
            elif line.strip():
                record = json_record(line, lines.headers, form.encoders)
            else:
                continue
        except ValueError as fault:
            raise CommandError(
                f"{name}, line {number}: {fault}", "correct the line; those before it were sent"
            ) from fault
        yield record


@click.command()
@click.argument("topic")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@click.option("-K", "--key-delimiter", metavar="TEXT", help="Split each line into key and value at TEXT.")
@click.option("-k", "--key", metavar="KEY", help="The key of every record (a key from -K comes first).")
@click.option(
    "-D", "--delimiter", default="\\n", show_default=True, metavar="TEXT", help="What ends a record."
)
@click.option(
    "-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header; repeat for more."
)
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Send everything to this partition.")
@click.option(
    "-z",
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="Compress batches with this codec.",
)
@click.option(
    "--acks",
    type=click.Choice(["0", "1", "all", "-1"]),
    default="all",
    show_default=True,
    help="Who must have the record before it counts: nobody, the leader, all in-sync replicas.",
)
@click.option(
    "--partitioner",
    type=click.Choice(PARTITIONERS),
    default="consistent_random",
    show_default=True,
    help="How keys choose partitions; murmur2_random is what Java clients do.",
)
@click.option(
    "-Z", "--null", "empty_is_null", is_flag=True, help="Send empty keys and values as null (tombstones)."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Each line is a JSON object with key, value, headers, …"
)
@click.option(
    "--schema",
    "value_schema",
    metavar="WHICH",
    help="Encode values, which are JSON then, with a schema: latest or a version of <topic>-value, id:7, or a"
    " file (.avsc, .json, .proto), which is registered.",
)
@click.option("--key-schema", metavar="WHICH", help="The same for keys, with <topic>-key.")
@click.option(
    "--message", metavar="NAME", help="The message that values of a Protobuf schema are (default: the first)."
)
@registry_option("The schema registry, for --schema and --key-schema.")
@click.option("-q", "--quiet", is_flag=True, help="Print no summary.")
@connection_options()
def produce(
    connection: Connection,
    topic: str,
    files: tuple[Path, ...],
    key_delimiter: str | None,
    key: str | None,
    delimiter: str,
    headers: tuple[str, ...],
    partition: int | None,
    compression: str,
    acks: str,
    partitioner: str,
    empty_is_null: bool,
    as_json: bool,
    value_schema: str | None,
    key_schema: str | None,
    message: str | None,
    registry_url: str,
    quiet: bool,
) -> None:
    """Send each line of FILES (or of standard input) to TOPIC as one record.

    \b
    Examples:
      echo hello | tidelog produce orders
      echo 'ann:3 apples' | tidelog produce orders -K : -H source=web
      tidelog produce orders -z zstd --acks all access.log
      echo 'ann:' | tidelog produce customers -K : -Z          # a tombstone
      echo '{"key":"ann","value":{"n":3}}' | tidelog produce orders --json
      tidelog consume orders --json -e | tidelog produce copy --json
      echo '"3 apples"' | tidelog produce orders --schema order.avsc
    """
    end, lines = _line_reader(delimiter, key_delimiter, key, headers, empty_is_null)
    schemas = {"key": key_schema, "value": value_schema}
    form = LineForm(
        as_json, record_encoders(registry_url, connection.timeout_seconds, topic, schemas, message)
    )
    producer = connection.producer(
        {
            "acks": acks,
            "compression.type": compression,
            "partitioner": partitioner,
            "message.timeout.ms": int(connection.timeout_seconds * 1000),
        }
    )
    count = require_topic(connection, producer, topic)
    if partition is not None and partition >= count:
        raise CommandError(
            f"topic {topic!r} has no partition {partition}", f"its partitions are 0 to {count - 1}"
        )
    delivery = Delivery(
        producer, topic, show_progress=not quiet and sys.stderr.isatty() and not sys.stdin.isatty()
    )
    interrupted = False
    try:
        for path in files or (Path("-"),):
            _send_input(delivery, path, end, lines, form, partition)
    except KeyboardInterrupt:
        interrupted = True
    delivery.finish(connection.timeout_seconds)
    if not quiet:
        click.echo(("\r" if sys.stderr.isatty() else "") + delivery.summary(), err=True)
    if interrupted:
        raise click.exceptions.Exit(130)


def _line_reader(
    delimiter: str, key_delimiter: str | None, key: str | None, headers: tuple[str, ...], empty_is_null: bool
) -> tuple[bytes, LineReader]:
    """What ends a line, and what makes a record of it."""
    try:
        end = unescape(delimiter)
        key_end = unescape(key_delimiter) if key_delimiter is not None else None
    except ValueError as fault:
        raise click.UsageError(str(fault)) from fault
    if not end or key_end == b"":
        raise click.UsageError("A delimiter cannot be empty.")
    return end, LineReader(
        key_end,
        key.encode() if key is not None else None,
        [parse_header(text) for text in headers],
        empty_is_null,
    )


def _send_input(
    delivery: Delivery, path: Path, delimiter: bytes, lines: LineReader, form: LineForm, partition: int | None
) -> None:
    if str(path) == "-":
        if sys.stdin.isatty():
            click.echo("Type one record per line; Ctrl-D ends.", err=True)
        for record in records_of(sys.stdin.buffer, "standard input", delimiter, lines, form):
            delivery.send(record, partition)
        return
    try:
        stream = path.open("rb")
    except OSError as failure:
        raise CommandError(f"cannot read {path}: {failure.strerror}", "check the path") from failure
    with stream:
        for record in records_of(stream, str(path), delimiter, lines, form):
            delivery.send(record, partition)
