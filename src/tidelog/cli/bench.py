"""`tidelog bench`: a load generator over confluent-kafka, for any Kafka cluster.

It measures what an application would see through librdkafka, client costs included. For the broker alone,
the project's own `bench/` sends pre-encoded batches.
"""

import os
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.connection import Connection, connection_options
from tidelog.cli.consume import start_assignment
from tidelog.cli.errors import CommandError, explained, from_kafka_error
from tidelog.cli.latency import LatencyHistogram
from tidelog.cli.output import json_option, print_fields, print_json
from tidelog.cli.positions import PositionKind, RequestedPosition
from tidelog.cli.produce import require_topic

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Producer

PROGRESS_INTERVAL_SECONDS = 1.0
RATE_SLICE_SECONDS = 0.005
IDLE_SECONDS_MAX = 10.0


class ProgressLine:
    """A line on a terminal's standard error, once a second."""

    def __init__(self) -> None:
        self.started = self._reported = time.perf_counter()
        self._shown = sys.stderr.isatty()

    def report(self, count: int, total: int, size_bytes: int) -> None:
        now = time.perf_counter()
        if not self._shown or now - self._reported < PROGRESS_INTERVAL_SECONDS:
            return
        self._reported = now
        elapsed = now - self.started
        click.echo(
            f"\r{count:,} of {total:,}, {count / elapsed:,.0f}/s, {size_bytes / elapsed / 1e6:.1f} MB/s ",
            err=True,
            nl=False,
        )

    def finish(self) -> float:
        if self._shown and self._reported != self.started:
            click.echo("\r", err=True, nl=False)
        return max(time.perf_counter() - self.started, 1e-9)


@dataclass(slots=True)
class ProduceLoad:
    """Sends records, at a rate if one is asked for, and times each acknowledgement."""

    producer: "Producer"
    topic: str
    records: int
    payload: bytes
    rate: float | None
    keys: int
    latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    acknowledged: int = 0
    failed: int = 0
    failure: "KafkaError | None" = None

    def run(self, progress: ProgressLine, timeout_seconds: float) -> None:
        for number in range(self.records):
            if self.rate is not None:
                self._wait_until(progress.started + number / self.rate)
            key = b"%d" % (number % self.keys) if self.keys else None
            self._send(key)
            if number % 256 == 0:
                self.producer.poll(0)
                progress.report(number, self.records, number * len(self.payload))
        left = self.producer.flush(timeout_seconds)
        if self.failure is not None:
            raise from_kafka_error(self.failure, f"{self.failed} records were not written")
        if left:
            raise CommandError(
                f"{left} records were not acknowledged within {timeout_seconds:g} s", "raise --timeout"
            )

    def _wait_until(self, due: float) -> None:
        while (left := due - time.perf_counter()) > 0:
            self.producer.poll(min(left, RATE_SLICE_SECONDS))

    def _send(self, key: bytes | None) -> None:
        sent = time.perf_counter()

        def delivered(error: "KafkaError | None", message: Any) -> None:
            if error is not None:
                self.failed += 1
                self.failure = self.failure or error
                return
            self.acknowledged += 1
            self.latency.add(time.perf_counter() - sent)

        while True:
            try:
                with explained("a record was not accepted"):
                    self.producer.produce(self.topic, value=self.payload, key=key, on_delivery=delivered)
                return
            except BufferError:
                # The time a record waits for the client's queue is its own; it starts when it is accepted.
                self.producer.poll(0.01)
                sent = time.perf_counter()


@click.group()
def bench() -> None:
    """Measure throughput and latency of a cluster, as an application would see them."""


def throughput(records: int, size_bytes: int, elapsed: float) -> dict[str, float | int]:
    """The numbers every run reports."""
    return {
        "records": records,
        "megabytes": round(records * size_bytes / 1e6, 3),
        "seconds": round(elapsed, 3),
        "records_per_second": round(records / elapsed, 1),
        "megabytes_per_second": round(records * size_bytes / elapsed / 1e6, 3),
    }


@bench.command("produce")
@click.argument("topic")
@click.option(
    "--records",
    "-n",
    type=click.IntRange(min=1),
    default=100_000,
    show_default=True,
    help="How many records to send.",
)
@click.option(
    "--size",
    "size_bytes",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    metavar="BYTES",
    help="The size of each value.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    metavar="N",
    help="Records per second (default: as fast as possible).",
)
@click.option(
    "--keys",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Spread over this many keys; 0 sends no key.",
)
@click.option(
    "--compression",
    "-z",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="The codec of batches.",
)
@click.option(
    "--acks",
    type=click.Choice(["0", "1", "all"]),
    default="all",
    show_default=True,
    help="Who must have a record before it counts.",
)
@click.option(
    "--linger-ms",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    help="How long the client gathers a batch.",
)
@click.option(
    "--batch-bytes",
    type=click.IntRange(min=1),
    default=1_000_000,
    show_default=True,
    help="The largest batch the client makes.",
)
@json_option
@connection_options()
def bench_produce(
    connection: Connection,
    topic: str,
    records: int,
    size_bytes: int,
    rate: float | None,
    keys: int,
    compression: str,
    acks: str,
    linger_ms: float,
    batch_bytes: int,
    as_json: bool,
) -> None:
    """Send records of random bytes to TOPIC and time them until they are acknowledged.

    \b
    Examples:
      tidelog bench produce load
      tidelog bench produce load --records 1000000 --size 1000 -z lz4
      tidelog bench produce load --rate 5000 --records 50000 --linger-ms 0 --json
    """
    producer = connection.producer(
        {
            "acks": acks,
            "compression.type": compression,
            "linger.ms": linger_ms,
            "batch.size": batch_bytes,
            "queue.buffering.max.messages": 100_000,
            "message.timeout.ms": int(connection.timeout_seconds * 1000),
        }
    )
    require_topic(connection, producer, topic)
    # Random bytes do not compress; half of them repeated lets a codec show what it does to ordinary data.
    half = os.urandom((size_bytes + 1) // 2)
    load = ProduceLoad(producer, topic, records, (half + half)[:size_bytes], rate, keys)
    progress = ProgressLine()
    load.run(progress, max(connection.timeout_seconds, 30.0))
    result = {
        "topic": topic,
        **throughput(load.acknowledged, size_bytes, progress.finish()),
        **load.latency.summary(),
    }
    _print_result(result, as_json)


@bench.command("consume")
@click.argument("topic")
@click.option(
    "--records", "-n", type=click.IntRange(min=1), help="Stop after this many (default: all that are there)."
)
@json_option
@connection_options()
def bench_consume(connection: Connection, topic: str, records: int | None, as_json: bool) -> None:
    """Read TOPIC from its beginning as fast as possible.

    \b
    Examples:
      tidelog bench consume load
      tidelog bench consume load --records 1000000 --json
    """
    consumer = connection.consumer(
        {"group.id": "tidelog-bench", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    )
    try:
        known = connection.metadata(consumer).topics.get(topic)
        if known is None:
            raise CommandError(f"there is no topic {topic!r}", f"tidelog bench produce {topic}")
        numbers = sorted(known.partitions)
        wanted = _records_there(connection, consumer, topic, numbers)
        if wanted == 0:
            raise CommandError(f"topic {topic!r} is empty", f"fill it with 'tidelog bench produce {topic}'")
        wanted = wanted if records is None else min(records, wanted)
        consumer.assign(
            start_assignment(connection, consumer, topic, numbers, RequestedPosition(PositionKind.BEGINNING))
        )
        _print_result({"topic": topic, **_read(consumer, wanted)}, as_json)
    finally:
        consumer.close()


def _records_there(connection: Connection, consumer: Any, topic: str, numbers: list[int]) -> int:
    from confluent_kafka import TopicPartition

    total = 0
    for number in numbers:
        with explained(f"the offsets of {topic}-{number} cannot be listed"):
            low, high = consumer.get_watermark_offsets(
                TopicPartition(topic, number), timeout=connection.timeout_seconds
            )
        total += high - low
    return total


def _read(consumer: Any, wanted: int) -> dict[str, Any]:
    count, size_bytes = 0, 0
    progress = ProgressLine()
    first: float | None = None
    last = time.perf_counter()
    while count < wanted:
        messages = consumer.consume(min(10_000, wanted - count), 0.2)
        now = time.perf_counter()
        if not messages:
            if now - last > IDLE_SECONDS_MAX:
                # Compaction and control records leave offsets without records: fewer come than were counted.
                break
            continue
        first = now if first is None else first
        last = now
        for message in messages:
            if message.error() is not None:
                raise from_kafka_error(message.error(), "the records cannot be read")
            count += 1
            size_bytes += len(message.value() or b"") + len(message.key() or b"")
        progress.report(count, wanted, size_bytes)
    progress.finish()
    elapsed = max(last - progress.started, 1e-9)
    return {
        **throughput(count, 0, elapsed),
        "megabytes": round(size_bytes / 1e6, 3),
        "megabytes_per_second": round(size_bytes / elapsed / 1e6, 3),
        "first_record_ms": None if first is None else round((first - progress.started) * 1000, 3),
    }


def _print_result(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(result)
        return
    print_fields(
        (name.replace("_", " "), f"{value:,}" if isinstance(value, int | float) else value)
        for name, value in result.items()
    )
