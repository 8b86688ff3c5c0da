"""What the coordinator decided, read back from `__consumer_offsets`: who owned which partition, and when.

The records are Kafka's own, so the history of a group can be read from Tidelog and from Apache Kafka alike. A
classic group is stored once for each generation, with everybody's assignment; of a consumer group each member
is, whenever it takes or gives up partitions (what it has yet to give up is still its own).
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from tidelog.groups.consumer_protocol import read_assignment
from tidelog.groups.consumer_schemas import (
    ConsumerRecordType,
    CurrentAssignment,
    read_consumer_key,
    read_consumer_value,
)
from tidelog.groups.schemas import GroupMetadataKey, read_group_metadata_value, read_key

OFFSETS_TOPIC = "__consumer_offsets"
DEADLINE_SECONDS = 30.0
CURRENT_KEY = int(ConsumerRecordType.CURRENT_MEMBER_ASSIGNMENT).to_bytes(2, "big")


@dataclass(frozen=True)
class Owners:
    """The owners of a group's partitions from one of its records on; `at_ms` is the record's time."""

    generation: int
    at_ms: int
    partitions: dict[str, frozenset[tuple[str, int]]]

    def __repr__(self) -> str:
        owned = {member: sorted(index for _, index in owned) for member, owned in self.partitions.items()}
        return f"<Owners generation={self.generation} {owned}>"


@dataclass(frozen=True)
class StoredRecord:
    key: bytes
    value: bytes | None
    at_ms: int


def read_offsets_topic(bootstrap: str) -> Iterator[StoredRecord]:
    """Everything in `__consumer_offsets` as of now, each partition from beginning to end."""
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "history",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    try:
        count = len(reader.list_topics(OFFSETS_TOPIC, DEADLINE_SECONDS).topics[OFFSETS_TOPIC].partitions)
        places = [TopicPartition(OFFSETS_TOPIC, index, OFFSET_BEGINNING) for index in range(count)]
        # Other groups may commit all the time: what comes after these offsets is not waited for.
        ends = [reader.get_watermark_offsets(place, DEADLINE_SECONDS)[1] for place in places]
        reader.assign(places)
        unread = {index for index, end in enumerate(ends) if end > 0}
        deadline = time.monotonic() + DEADLINE_SECONDS
        while unread:
            assert time.monotonic() < deadline, f"{OFFSETS_TOPIC} was not read in time: {unread}"
            message = reader.poll(0.5)
            if message is None:
                continue
            index, error, offset = message.partition(), message.error(), message.offset()
            assert index is not None
            assert offset is not None
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                unread.discard(index)
                continue
            if offset >= ends[index] - 1:
                unread.discard(index)
            key = message.key()
            assert isinstance(key, bytes)
            value = message.value()
            assert value is None or isinstance(value, bytes)
            yield StoredRecord(key, value, message.timestamp()[1])
    finally:
        reader.close()


def owners_of(bootstrap: str, group_id: str) -> list[Owners]:
    """The history of one group, oldest first."""
    history: list[Owners] = []
    current: dict[str, frozenset[tuple[str, int]]] = {}
    for record in read_offsets_topic(bootstrap):
        if record.key[:2] == CURRENT_KEY:
            key = read_consumer_key(record.key)
            if key.group_id != group_id:
                continue
            current.pop(key.subject, None)
            epoch = history[-1].generation if history else 0
            if record.value is not None:
                value = read_consumer_value(ConsumerRecordType.CURRENT_MEMBER_ASSIGNMENT, record.value)
                assert isinstance(value, CurrentAssignment)
                held = value.assigned | value.pending_revocation
                current[key.subject] = frozenset((str(topic_id), index) for topic_id, index in held)
                epoch = value.epoch
            history.append(Owners(epoch, record.at_ms, dict(current)))
        elif read_key(record.key) == GroupMetadataKey(group_id) and record.value is not None:
            stored = read_group_metadata_value(record.value)
            assigned = {
                member.member_id: frozenset(
                    (topic, index)
                    for topic, indexes in read_assignment(member.assignment)
                    for index in indexes
                )
                for member in stored.members
            }
            history.append(Owners(stored.generation, record.at_ms, assigned))
    return history


def check_one_owner_each(history: list[Owners]) -> None:
    for owners in history:
        seen: dict[tuple[str, int], str] = {}
        for member, partitions in owners.partitions.items():
            for partition in partitions:
                other = seen.setdefault(partition, member)
                assert other == member, f"{partition} belongs to {other} and {member}: {owners}"
