"""Dead letters as the console shows them and sends them back (their headers: `admin.dead_letter_headers`).

They go back exactly once, as `tidelog dlq redrive` sends them (`admin.dead_letter_topic`): what the one has
sent back, the other does not send again.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, Producer

from tidelog.admin.cluster_admin import ClusterAdmin
from tidelog.admin.dead_letter_headers import read_headers
from tidelog.admin.dead_letter_topic import DeadLetterTopic, note_of
from tidelog.console.faults import explained
from tidelog.console.kafka_client import KafkaClient
from tidelog.console.record_view import RecordView


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record of a dead-letter topic; `target` is where it came from."""

    record: RecordView
    target: str
    reason: str
    source: str
    origin: str
    attempts: int
    #: no copy of the record: it says what happened alone, and cannot be sent back
    is_bare: bool = False


def dead_letter(record: RecordView) -> DeadLetter | None:
    """What a record says about its failure; None where it is no dead letter."""
    failure = read_headers(record.headers)
    if not failure.topic:
        return None
    partition = "?" if failure.partition is None else failure.partition
    offset = "?" if failure.offset is None else failure.offset
    return DeadLetter(
        record,
        failure.topic,
        failure.reason or "",
        failure.source or "",
        f"{failure.topic}-{partition} @ {offset}",
        failure.attempts,
        failure.group is not None and record.key is None and record.value is None and not failure.headers,
    )


class _Clients:
    """The clients of a dead-letter topic, made as the console makes its own."""

    def __init__(self, client: KafkaClient, admin: ClusterAdmin) -> None:
        self._client = client
        self._admin = admin
        self.timeout_seconds = client.timeout_seconds

    def cluster_admin(self) -> ClusterAdmin:
        return self._admin

    def producer(self, defaults: Mapping[str, Any]) -> Producer:
        return Producer(self._client.client_properties(defaults))

    def consumer(self, defaults: Mapping[str, Any]) -> Consumer:
        return Consumer(self._client.client_properties(defaults))

    def metadata(self, client: Any) -> Any:
        return client.list_topics(timeout=self.timeout_seconds)


class SentBack:
    """The letters of a topic that were sent back, as they were when this was made."""

    def __init__(self, client: KafkaClient, admin: ClusterAdmin, topic: str) -> None:
        with explained("what was sent back cannot be read"):
            self._notes = DeadLetterTopic(_Clients(client, admin), topic).notes()

    def __contains__(self, record: RecordView) -> bool:
        timestamp_ms = -1 if record.timestamp_ms is None else record.timestamp_ms
        return note_of(record.topic, record.partition, record.offset, timestamp_ms) in self._notes


def send_back(
    client: KafkaClient, admin: ClusterAdmin, topic: str, places: Mapping[int, Collection[int]]
) -> int:
    """Send the letters at these offsets by partition back; how many there were that had not been."""
    with explained("the dead letters were not sent back"):
        letters = DeadLetterTopic(_Clients(client, admin), topic)
        return letters.redrive(lambda letter: bool(letter.failure.topic), None, places)
