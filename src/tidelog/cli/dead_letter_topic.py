"""A dead-letter topic as a list of letters, and the sending back of them, exactly once.

What was sent back is noted in a compacted topic, in the same transaction that sends the records: a letter is
sent back and noted, or neither. The transactional id belongs to the dead-letter topic: of two who send back
at once the first is fenced, and the second reads what the first had noted. Works with any Kafka since 0.11.

A note's key is `topic/partition/offset@timestamp` of the letter; the timestamp tells a topic from one of the
same name that was there before.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tidelog.cli.connection import Connection
from tidelog.cli.errors import CommandError, explained, from_kafka_error
from tidelog.client import dead_letter_headers as names
from tidelog.client.dead_letter_headers import Failure, Headers, read_headers

if TYPE_CHECKING:
    from confluent_kafka import Producer

NOTES_TOPIC = "__tidelog_dlq_redriven"
TRANSACTION_LETTERS_MAX = 500
POLL_LETTERS = 500
POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter: the record as it was, where the letter is, and why it failed."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    failure: Failure
    redriven: bool = False

    @property
    def note(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}@{self.timestamp_ms}"

    @property
    def place(self) -> str:
        return f"{self.topic}-{self.partition}@{self.offset}"

    def headers_to_send(self) -> Headers:
        """Those that the record had, and how often it has been sent back."""
        attempts = str(self.failure.attempts + 1).encode()
        return (*self.failure.headers, (names.ATTEMPTS, attempts))


class DeadLetterTopic:
    """The letters of one topic."""

    def __init__(self, connection: Connection, topic: str) -> None:
        self._connection = connection
        self._topic = topic

    def letters(self) -> Iterator[Letter]:
        """All letters that are there now, partition by partition, with whether they were sent back."""
        notes = self._notes()
        for message in self._records(self._topic, must_exist=True):
            timestamp_ms = message.timestamp()[1]
            letter = Letter(
                self._topic,
                message.partition(),
                message.offset(),
                timestamp_ms,
                message.key(),
                message.value(),
                read_headers(message.headers() or ()),
            )
            if letter.note in notes:
                letter = replace(letter, redriven=True)
            yield letter

    def _notes(self) -> set[str]:
        prefix = f"{self._topic}/".encode()
        return {
            message.key().decode()
            for message in self._records(NOTES_TOPIC, must_exist=False)
            if message.key() is not None and message.key().startswith(prefix)
        }

    def _records(self, topic: str, *, must_exist: bool) -> Iterator[Any]:
        """What a topic has now, read committed, without joining a group."""
        from confluent_kafka import OFFSET_BEGINNING, TopicPartition

        consumer = self._connection.consumer(
            {
                "group.id": "tidelog-dlq-reader",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        try:
            known = self._connection.metadata(consumer).topics.get(topic)
            if known is None or not known.partitions:
                if must_exist:
                    raise CommandError(f"there is no topic {topic}", "'tidelog topic list' shows the topics")
                return
            partitions = set(known.partitions)
            with explained(f"reading {topic}"):
                consumer.assign([TopicPartition(topic, one, OFFSET_BEGINNING) for one in partitions])
                yield from self._until(consumer, topic, partitions)
        finally:
            consumer.close()

    def _until(self, consumer: Any, topic: str, partitions: set[int]) -> Iterator[Any]:
        """Records up to the end of each partition, which the client announces also behind aborted ones."""
        deadline = time.monotonic() + self._connection.timeout_seconds
        while partitions:
            for message in consumer.consume(POLL_LETTERS, POLL_SECONDS):
                deadline = time.monotonic() + self._connection.timeout_seconds
                error = message.error()
                if error is None:
                    yield message
                elif error.name() == "_PARTITION_EOF":
                    partitions.discard(message.partition())
                else:
                    raise from_kafka_error(error, f"reading {topic}")
            if partitions and time.monotonic() >= deadline:
                raise CommandError(
                    f"{topic} has not been read to its end in {self._connection.timeout_seconds:g} s",
                    "raise --timeout, or check 'tidelog cluster status'",
                )

    def letter(self, partition: int, offset: int) -> Letter:
        """The letter at a place."""
        for letter in self.letters():
            if (letter.partition, letter.offset) == (partition, offset):
                return letter
        raise CommandError(
            f"there is no dead letter in {self._topic}-{partition} at offset {offset}",
            f"'tidelog dlq list {self._topic}' shows them",
        )

    def redrive(self, wanted: Callable[[Letter], bool], to: str | None) -> int:
        """Send letters back to where they are from, or to a topic; returns how many were sent."""
        self._make_notes_topic()
        producer = self._connection.producer(
            {"transactional.id": f"tidelog-dlq-{self._topic}", "acks": "all", "linger.ms": 5}
        )
        sent = 0
        with explained(f"sending letters of {self._topic} back"):
            # First, so that what another has noted is seen and what it has not is aborted.
            producer.init_transactions(self._connection.timeout_seconds)
            chosen = [letter for letter in self.letters() if not letter.redriven and wanted(letter)]
            for start in range(0, len(chosen), TRANSACTION_LETTERS_MAX):
                some = chosen[start : start + TRANSACTION_LETTERS_MAX]
                self._send(producer, some, to)
                sent += len(some)
        return sent

    def _send(self, producer: "Producer", letters: Sequence[Letter], to: str | None) -> None:
        producer.begin_transaction()
        for letter in letters:
            target = to or letter.failure.topic
            assert target is not None, letter.place
            timestamp_ms = letter.failure.timestamp_ms
            producer.produce(
                target,
                letter.value,
                letter.key,
                headers=list(letter.headers_to_send()),
                timestamp=letter.timestamp_ms if timestamp_ms is None else timestamp_ms,
            )
            producer.produce(NOTES_TOPIC, target.encode(), letter.note.encode())
            producer.poll(0)
        producer.commit_transaction(self._connection.timeout_seconds)

    def _make_notes_topic(self) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

        admin = self._connection.admin()
        if NOTES_TOPIC in self._connection.metadata(admin).topics:
            return
        new = NewTopic(NOTES_TOPIC, 1, config={"cleanup.policy": "compact"})
        try:
            admin.create_topics([new])[NOTES_TOPIC].result(self._connection.timeout_seconds)
        except KafkaException as failure:
            if failure.args[0].name() != "TOPIC_ALREADY_EXISTS":
                raise from_kafka_error(failure.args[0], f"creating {NOTES_TOPIC}") from failure
