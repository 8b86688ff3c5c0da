"""Writes the dead letters of share groups (KIP-1191): copies of records that a group has given up.

The leader of the partition reads the records, and has the leader of the other topic's partition append their
copies, a megabyte or so at a time, one after the other. They are promised as acks=all promises. A topic takes
dead letters if `errors.deadletterqueue.group.enable` is set for it; one that is missing is created where
`errors.deadletterqueue.auto.create.topics.enable` allows it. What a topic does not take for now is retriable,
and all of it is written again then; what it never takes is given up.

A copy that is too large for the topic is written without key, value and headers of the original: what
happened to which record is more than nothing.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tidelog.broker.coordinators.replicated_appends import ReplicatedAppends
from tidelog.broker.coordinators.share_reading import read_shared
from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.replicas.partition import Partition
from tidelog.broker.replicas.replicas import Replicas
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.peers import PeerFault, Peers
from tidelog.controller.commands import CreateTopics, TopicSpec
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.identifiers import NO_LEADER
from tidelog.model.ports import Clock
from tidelog.protocol.apis import APPEND_DEAD_LETTERS
from tidelog.protocol.primitives import INT32, string
from tidelog.records.batch import BatchHeader
from tidelog.records.builder import build_batch
from tidelog.records.corrupt_record import CorruptRecord
from tidelog.records.record import Record, iterate_records
from tidelog.shares.commands import WriteDeadLetters
from tidelog.shares.dead_letters import (
    PREFIX,
    Header,
    dead_letter_headers,
    dead_letter_partition,
    topic_fault,
)
from tidelog.shares.schemas import ShareKey

log = logging.getLogger(__name__)

#: what is asked of a topic before it gets dead letters
GROUP_ENABLE = "errors.deadletterqueue.group.enable"
COPY_ENABLE = "errors.deadletterqueue.copy.record.enable"
#: dead letters wait for replicas: not before requests that do not
DEAD_LETTERS_CHANNEL = "dead letters"
RECORDS_PER_BATCH_MAX = 500
BATCH_BYTES_MAX = 1 << 20
CREATION_MS_MAX = 5_000

_RETRIABLE = frozenset(
    (
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    )
)
_CREATED_LATER = _RETRIABLE | {ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.INVALID_REPLICATION_FACTOR}
_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)

Written = Callable[[ErrorCode, bool], None]
"""With the error, and whether it is worth another try."""


@dataclass(frozen=True, slots=True)
class _Letters:
    """Dead letters on their way."""

    key: ShareKey
    source: Partition
    message: WriteDeadLetters
    target: str
    index: int
    copies: bool
    then: Written


class DeadLetterWriter:
    """Writes to topics of this and of other brokers."""

    def __init__(
        self,
        metadata: Metadata,
        replicas: Replicas,
        appends: ReplicatedAppends,
        peers: Peers,
        settings: LiveSettings,
        clock: Clock,
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._appends = appends
        self._peers = peers
        self._settings = settings
        self._clock = clock
        #: the batch that was unpacked last: the letters of its records are often written one after the other
        self._unpacked: tuple[tuple[str, int, BatchHeader], dict[int, Record]] | None = None

    def __repr__(self) -> str:
        return "<DeadLetterWriter>"

    def write(self, key: ShareKey, source: Partition, message: WriteDeadLetters, then: Written) -> None:
        """Write the letters of records of one partition; `then` once, perhaps at once."""
        target = message.topic
        if target is None:
            # The group has no topic for them any more.
            then(ErrorCode.NONE, False)
            return
        image = self._metadata.image
        topic = image.topics.get(target)
        if topic is None:
            self._create(target, source, then)
            return
        prefix = self._settings.get_str("errors.deadletterqueue.topic.name.prefix")
        fault = topic_fault(target, prefix, source.topic)
        if fault is None and topic.configs.get(GROUP_ENABLE, "false").lower() != "true":
            fault = f"{GROUP_ENABLE} is not set for it"
        if fault is not None:
            log.warning("%s gets no dead letters of %s: %s", target, key.group_id, fault)
            then(ErrorCode.INVALID_CONFIG, False)
            return
        copies = image.group_configs.get(key.group_id, {}).get(COPY_ENABLE, "false").lower() == "true"
        index = dead_letter_partition(source.index, len(topic.partitions))
        letters = _Letters(key, source, message, target, index, copies, then)
        self._write_from(letters, message.first_offset)

    def _create(self, target: str, source: Partition, then: Written) -> None:
        """A topic that is missing is created if that is allowed; then it is tried again."""
        settings = self._settings
        prefix = settings.get_str("errors.deadletterqueue.topic.name.prefix")
        allowed = settings.get_bool("errors.deadletterqueue.auto.create.topics.enable")
        if not allowed or topic_fault(target, prefix, source.topic) is not None:
            then(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, False)
            return

        def created(results: Sequence[object]) -> None:
            refused = results[0] if isinstance(results[0], Refused) else None
            if refused is None or refused.code in _CREATED_LATER:
                then(ErrorCode.LEADER_NOT_AVAILABLE, True)
            else:
                then(refused.code, False)

        spec = TopicSpec(target, configs={GROUP_ENABLE: "true"})
        self._metadata.submit(CreateTopics((spec,)), created, timeout_ms=CREATION_MS_MAX)

    # ------------------------------------------------------------ one batch after the other

    def _write_from(self, letters: _Letters, offset: int) -> None:
        """Write the letters from an offset on."""
        if offset > letters.message.last_offset:
            letters.then(ErrorCode.NONE, False)
            return
        records, next_offset = self._copies(letters, offset)
        self._append(letters, records, partial(self._written, letters, next_offset))

    def _written(self, letters: _Letters, next_offset: int, error: ErrorCode) -> None:
        if error is ErrorCode.NONE:
            self._write_from(letters, next_offset)
        else:
            letters.then(error, error in _RETRIABLE)

    def _append(
        self, letters: _Letters, records: Sequence[Record], then: Callable[[ErrorCode], None]
    ) -> None:
        """Append the copies as one batch; as several, or without the originals, if they are too large."""

        def appended(error: ErrorCode) -> None:
            if error not in _TOO_LARGE:
                then(error)
            elif len(records) > 1:
                half = len(records) // 2

                def first_half(error: ErrorCode) -> None:
                    if error is ErrorCode.NONE:
                        self._append(letters, records[half:], then)
                    else:
                        then(error)

                self._append(letters, records[:half], first_half)
            elif records[0].key is None and records[0].value is None:
                then(error)
            else:
                self._append(letters, [self._bare(letters, records[0])], then)

        renumbered = [record._replace(offset=number) for number, record in enumerate(records)]
        self._send(letters.target, letters.index, build_batch(renumbered), appended)

    def _send(self, topic: str, index: int, batch: bytes, then: Callable[[ErrorCode], None]) -> None:
        state = self._metadata.image.partition(topic, index)
        if state is None or state.leader == NO_LEADER:
            then(ErrorCode.LEADER_NOT_AVAILABLE)
        elif state.leader == self._metadata.node_id:
            self.append_here(topic, index, memoryview(bytearray(batch)), then)
        else:
            self._peers.request(
                state.leader,
                APPEND_DEAD_LETTERS,
                0,
                string(topic) + INT32.pack(index) + batch,
                lambda answer: then(_error(answer)),
                timeout_ms=self._settings.get_int("request.timeout.ms"),
                channel=DEAD_LETTERS_CHANNEL,
            )

    def append_here(
        self, topic: str, index: int, batch: memoryview, then: Callable[[ErrorCode], None]
    ) -> None:
        """As leader: append a batch, and wait for its replicas."""
        partition = self._replicas.leader(topic, index)
        if partition is None:
            then(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        outcome: object = partition.not_enough_replicas()
        if outcome is None:
            outcome = partition.append_produced(batch, self._clock.now_ms())
        if isinstance(outcome, Refused):
            then(outcome.code)
            return
        self._appends.appended(partition)
        timeout_ms = self._settings.get_int("request.timeout.ms")
        self._appends.wait(partition, partition.log.log_end_offset, timeout_ms, then)

    # ------------------------------------------------------------ the copies

    def _copies(self, letters: _Letters, offset: int) -> tuple[list[Record], int]:
        """The letters of one batch from an offset on, and the offset after them."""
        last = min(letters.message.last_offset, offset + RECORDS_PER_BATCH_MAX - 1)
        if not letters.copies:
            bare = [self._letter(letters, each, None) for each in range(offset, last + 1)]
            return bare, last + 1
        start = max(offset, letters.source.log.log_start_offset)
        read = read_shared(
            letters.source, start, max(1, last - start + 1), BATCH_BYTES_MAX, read_committed=False
        )
        originals: dict[int, Record] = {}
        end = last
        for header, data in read.batches:
            end = min(last, header.last_offset)
            found = self._records_of(letters.source, header, data)
            originals |= {each: found[each] for each in range(offset, end + 1) if each in found}
        # Of a record that is not there any more it is told what happened to it.
        wanted = range(offset, end + 1)
        return [self._letter(letters, each, originals.get(each)) for each in wanted], end + 1

    def _records_of(self, source: Partition, header: BatchHeader, data: memoryview) -> dict[int, Record]:
        """The records of a batch by offset: unpacked once for many letters, each of one record."""
        batch = source.topic, source.index, header
        if self._unpacked is None or self._unpacked[0] != batch:
            records: dict[int, Record] = {}
            try:
                for record in iterate_records(data, header):
                    records[record.offset] = record
            except (CorruptRecord, ValueError) as fault:
                log.warning("%s: records of dead letters could not be read: %s", source, fault)
            self._unpacked = batch, records
        return self._unpacked[1]

    def _letter(self, letters: _Letters, offset: int, original: Record | None) -> Record:
        message, source = letters.message, letters.source
        kept: Sequence[Header] = () if original is None else original.headers
        headers = dead_letter_headers(
            letters.key.group_id,
            source.topic,
            source.index,
            offset,
            message.delivery_count,
            message.reason,
            kept,
        )
        key, value = (None, None) if original is None else (original.key, original.value)
        return Record(offset, self._clock.now_ms(), key, value, headers)

    def _bare(self, letters: _Letters, record: Record) -> Record:
        """A letter without what it copied."""
        own = [header for header in record.headers if header[0].startswith(PREFIX)]
        return record._replace(key=None, value=None, headers=tuple(own))


def _error(answer: memoryview | PeerFault) -> ErrorCode:
    if isinstance(answer, PeerFault) or len(answer) != INT32.size:
        return ErrorCode.NETWORK_EXCEPTION
    return ErrorCode(INT32.unpack_from(answer)[0])
