"""A dead-letter topic as a list of letters, and the sending back of them, exactly once.

What was sent back is noted in a compacted topic, in the same transaction that sends the records: a letter is
sent back and noted, or neither. The transactional id belongs to the dead-letter topic: of two who send back
at once the first is fenced, and the second reads what the first had noted. Works with any Kafka since 0.11.

A note's key is `topic/partition/offset@timestamp` of the letter; the timestamp tells a topic from one of the
same name that was there before.

The clients are confluent-kafka's, which the command line and the console make each in their way; what those
raise is raised (KafkaException), and a `LetterFault` for the rest.
"""

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from tidelog.admin import dead_letter_headers as names
from tidelog.admin.dead_letter_headers import Failure, Headers, read_headers
from tidelog.admin.topics import create_topic, topic_views
from tidelog.client.faults import ClientFault

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer

    from tidelog.admin.cluster_admin import ClusterAdmin

NOTES_TOPIC = "__tidelog_dlq_redriven"
TRANSACTION_LETTERS_MAX = 500
POLL_LETTERS = 500
#: librdkafka's word for a record whose partition the partitioner chooses
BY_KEY = -1
#: a call waits so long for a full batch of letters, which the last one seldom is
POLL_SECONDS = 0.05


class LetterFault(ClientFault):
    """The letters cannot be read; the text says why."""


class NoSuchTopic(LetterFault):
    """There is no topic of this name."""


class NoSuchLetter(LetterFault):
    """There is no letter at this place."""


class NotReadInTime(LetterFault):
    """The end of the topic was not reached."""


class Clients(Protocol):
    """Makes clients of a cluster, with defaults that its own properties may override."""

    @property
    def timeout_seconds(self) -> float:
        """How long to wait for the cluster."""

    def cluster_admin(self) -> "ClusterAdmin":
        """What asks and changes the cluster itself."""

    def producer(self, defaults: Mapping[str, Any]) -> "Producer":
        """A producer."""

    def consumer(self, defaults: Mapping[str, Any]) -> "Consumer":
        """A consumer."""

    def metadata(self, client: Any) -> Any:
        """All topics (`list_topics`), through one of these clients."""


def note_of(topic: str, partition: int, offset: int, timestamp_ms: int) -> str:
    """The key under which it is noted that a letter was sent back."""
    return f"{topic}/{partition}/{offset}@{timestamp_ms}"


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
        return note_of(self.topic, self.partition, self.offset, self.timestamp_ms)

    @property
    def place(self) -> str:
        return f"{self.topic}-{self.partition}@{self.offset}"

    @property
    def is_bare(self) -> bool:
        """Whether a share group said what happened, and did not copy the record: there is nothing to send."""
        failure = self.failure
        return failure.group is not None and self.key is None and self.value is None and not failure.headers

    def headers_to_send(self) -> Headers:
        """Those that the record had, and how often it has been sent back."""
        attempts = str(self.failure.attempts + 1).encode()
        return (*self.failure.headers, (names.ATTEMPTS, attempts))


def _partition_of(letter: Letter, target: str, known: Mapping[str, Any]) -> int:
    """The partition that the record was in, where there is one of that number; else the key says."""
    partition, topic = letter.failure.partition, known.get(target)
    if target != letter.failure.topic or topic is None or partition is None:
        return BY_KEY
    return partition if partition in topic.partitions else BY_KEY


def waits(letter: Letter) -> bool:
    """Whether a letter can be sent back and was not."""
    return not letter.redriven and not letter.is_bare


class DeadLetterTopic:
    """The letters of one topic."""

    def __init__(self, clients: Clients, topic: str) -> None:
        self._clients = clients
        self._topic = topic

    def letters(self, places: Mapping[int, Collection[int]] | None = None) -> Iterator[Letter]:
        """All letters that are there now, partition by partition, with whether they were sent back.

        `places`, offsets by partition, has only those looked for.
        """
        notes = self.notes()
        for message in self._records(self._topic, places, must_exist=True):
            if places is not None and message.offset() not in places[message.partition()]:
                continue
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

    def notes(self) -> set[str]:
        """The letters of this topic that were sent back (`note_of`)."""
        prefix = f"{self._topic}/".encode()
        return {
            message.key().decode()
            for message in self._records(NOTES_TOPIC, None, must_exist=False)
            if message.key() is not None and message.key().startswith(prefix)
        }

    def _records(
        self, topic: str, places: Mapping[int, Collection[int]] | None, *, must_exist: bool
    ) -> Iterator[Any]:
        """What a topic has now, read committed, without joining a group; at least what is at the places."""
        from confluent_kafka import OFFSET_BEGINNING, TopicPartition

        consumer = self._clients.consumer(
            {
                "group.id": "tidelog-dlq-reader",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 100,
            }
        )
        try:
            known = self._clients.metadata(consumer).topics.get(topic)
            if known is None or not known.partitions:
                if must_exist:
                    raise NoSuchTopic(f"there is no topic {topic}")
                return
            starts = dict.fromkeys(known.partitions, OFFSET_BEGINNING)
            lasts: dict[int, int] = {}
            if places is not None:
                wanted = {one: offsets for one, offsets in places.items() if one in starts and offsets}
                starts = {one: min(offsets) for one, offsets in wanted.items()}
                lasts = {one: max(offsets) for one, offsets in wanted.items()}
            consumer.assign([TopicPartition(topic, one, start) for one, start in starts.items()])
            yield from self._until(consumer, topic, set(starts), lasts)
        finally:
            consumer.close()

    def _until(
        self, consumer: "Consumer", topic: str, partitions: set[int], lasts: Mapping[int, int]
    ) -> Iterator[Any]:
        """Records up to an offset, or the end, of each partition; the client announces ends also behind
        aborted records.
        """
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + self._clients.timeout_seconds
        while partitions:
            for message in consumer.consume(POLL_LETTERS, POLL_SECONDS):
                deadline = time.monotonic() + self._clients.timeout_seconds
                error, partition = message.error(), message.partition()
                assert partition is not None
                if error is not None and error.name() != "_PARTITION_EOF":
                    raise KafkaException(error)
                offset = message.offset()
                assert offset is not None
                if error is None:
                    yield message
                if error is not None or offset >= lasts.get(partition, offset + 1):
                    partitions.discard(partition)
            if partitions and time.monotonic() >= deadline:
                seconds = self._clients.timeout_seconds
                raise NotReadInTime(f"{topic} has not been read to its end in {seconds:g} s")

    def letter(self, partition: int, offset: int) -> Letter:
        """The letter at a place."""
        for letter in self.letters({partition: (offset,)}):
            return letter
        raise NoSuchLetter(f"there is no dead letter in {self._topic}-{partition} at offset {offset}")

    def redrive(
        self,
        wanted: Callable[[Letter], bool],
        to: str | None,
        places: Mapping[int, Collection[int]] | None = None,
    ) -> int:
        """Send letters back to where they are from, or to a topic; returns how many were sent.

        Letters without a copy of the record stay.
        """
        self._make_notes_topic()
        producer = self._clients.producer(
            {
                "transactional.id": f"tidelog-dlq-{self._topic}",
                "acks": "all",
                "linger.ms": 5,
                # that of Java and of our sink; librdkafka's own is another
                "partitioner": "murmur2_random",
            }
        )
        # First, so that what another has noted is seen and what it has not is aborted.
        producer.init_transactions(self._clients.timeout_seconds)
        chosen = [letter for letter in self.letters(places) if waits(letter) and wanted(letter)]
        known = self._clients.metadata(producer).topics
        for start in range(0, len(chosen), TRANSACTION_LETTERS_MAX):
            self._send(producer, chosen[start : start + TRANSACTION_LETTERS_MAX], to, known)
        return len(chosen)

    def _send(
        self, producer: "Producer", letters: Sequence[Letter], to: str | None, known: Mapping[str, Any]
    ) -> None:
        from confluent_kafka import KafkaException

        producer.begin_transaction()
        try:
            for letter in letters:
                target = to or letter.failure.topic
                assert target is not None, letter.place
                timestamp_ms = letter.failure.timestamp_ms
                producer.produce(
                    target,
                    letter.value,
                    letter.key,
                    partition=_partition_of(letter, target, known),
                    headers=list(letter.headers_to_send()),
                    timestamp=letter.timestamp_ms if timestamp_ms is None else timestamp_ms,
                )
                producer.produce(NOTES_TOPIC, target.encode(), letter.note.encode())
                producer.poll(0)
            producer.commit_transaction(self._clients.timeout_seconds)
        except KafkaException:
            # Readers of the targets wait for the end of what stays open.
            with contextlib.suppress(KafkaException):
                producer.abort_transaction(self._clients.timeout_seconds)
            raise

    def _make_notes_topic(self) -> None:
        admin = self._clients.cluster_admin()
        if NOTES_TOPIC not in topic_views(admin, [NOTES_TOPIC]):
            create_topic(admin, NOTES_TOPIC, 1, configs={"cleanup.policy": "compact"}, if_not_exists=True)
