"""Produce (key 0), versions 3 to 13.

Behaviour
- Each partition's batch is checked and appended on its own; one bad batch fails only its partition.
- acks=0 has no answer; an error then closes the connection, as in Kafka, so that the client notices.
- acks=1 answers when the batch is in the log and, where `flush.messages` asked for it, on the disk; acks=all
  when the high watermark has passed it as well. NOT_ENOUGH_REPLICAS refuses a batch while too few replicas
  are in sync, NOT_ENOUGH_REPLICAS_AFTER_APPEND says that this became so while it waited.
- A retry by an idempotent producer is answered with the offset of the first time, and writes nothing.

Versions: v5 log start offset, v7 zstd (KIP-110), v8 record errors and message (KIP-467), v9 flexible, v13
topic ids (KIP-516). Below version 3 the message formats 0 and 1 would be needed: advertised for old
librdkafka, refused as Kafka 4 does.

Transactional batches need the transactional id in the request, and the word of its coordinator before the
first batch of a transaction in each partition (see transactional_produce).

A batch may have several faults; the first of these is told, as in Kafka: no right to write, a partition that
does not exist, bytes that are no batch of a format that the version may have, the coordinator's verdict, acks
that do not exist, an internal topic, a leader elsewhere, too few replicas, contents, place in the order. The
log start offset is told by those of the log itself, where they do not doubt the bytes or the disk.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from tidelog.broker.maintenance.flusher import Flusher, FlushWaiter
from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.replicas.partition import Appended, Partition
from tidelog.broker.replicas.replicas import Replicas
from tidelog.broker.requests.checked_batches import Checked, take
from tidelog.broker.requests.connection_context import ConnectionContext
from tidelog.broker.requests.current_leaders import KnownLeaders
from tidelog.broker.requests.live_quotas import LiveQuotas
from tidelog.broker.requests.long_checks import LongChecks
from tidelog.broker.requests.produce_answers import refused_batch
from tidelog.broker.requests.produce_templates import (
    TEMPLATE_START,
    KnownTemplates,
    template_end,
)
from tidelog.broker.requests.request import HELD, CloseConnection
from tidelog.broker.requests.transactional_produce import (
    TransactionalProduce,
    has_transactional_records,
    submit,
)
from tidelog.broker.runtime.deferred import Deferred
from tidelog.broker.runtime.metrics import Metrics
from tidelog.broker.runtime.purgatory import DelayedAnswer, DelayedOperation, Purgatory, Watched
from tidelog.broker.runtime.turn import Turn
from tidelog.model.acls import AclOperation, ResourceType
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.identifiers import INTERNAL_TOPICS, TopicPartition
from tidelog.model.ports import Clock
from tidelog.protocol.apis import PRODUCE
from tidelog.protocol.produce import (
    PartitionProduced,
    ProducedTopic,
    ProduceRequest,
    decode_request,
    encode_response_pieces,
)
from tidelog.protocol.slices import STEP, checkpoint, paced, whole
from tidelog.records.batch import (
    ATTRIBUTES_POSITION,
    CODEC_MASK,
    HEADER_SIZE,
    is_transactional,
    read_header,
)
from tidelog.records.compression import Codec
from tidelog.records.validation import TakesLong, unframed

if TYPE_CHECKING:
    from tidelog.broker.coordinators.transactions import Transactions
    from tidelog.broker.requests.authorization import Authorization

Results = Mapping[TopicPartition, ErrorCode]
#: one for many topics may come in pieces
Answer = bytes | list[bytes]
NOTHING_REFUSED: Results = {}

ACKS_NONE = 0
ACKS_ALL = -1
#: older clients could not read zstd, so batches of theirs may not have it (KIP-110)
FIRST_ZSTD = 7
ACKS_VALID = (-1, 0, 1)
#: the one client that may write to internal topics, as in Kafka
ADMIN_CLIENT_ID = "__admin_client"


class Targets(NamedTuple):
    """What the batches of one request wait for: offsets to be on the disk, and to be replicated."""

    flushes: dict[Partition, int]
    replications: dict[Partition, int]


class DelayedProduce(FlushWaiter):
    """A Produce answer that waits until its batches are on the disk, and in the logs of the replicas."""

    __slots__ = ("_answer_of", "_targets", "late_code")

    def __init__(self, answer_of: "Callable[[Late], Answer]", targets: Targets) -> None:
        super().__init__()
        self._answer_of = answer_of
        self._targets = targets
        self.late_code = ErrorCode.REQUEST_TIMED_OUT

    def flush_failed(self, partition: Partition) -> None:
        """The disk failed: answer at once with the right error."""
        if partition in self._targets.flushes:
            self.late_code = ErrorCode.KAFKA_STORAGE_ERROR
            if self.purgatory is not None:
                self.purgatory.finish(self, expired=True)

    def ready(self, progressed: Watched) -> bool:
        return all(
            partition.log.recovery_point >= offset for partition, offset in self._targets.flushes.items()
        ) and all(
            partition.replicated(offset) is not None
            for partition, offset in self._targets.replications.items()
        )

    def complete(self, *, expired: bool) -> Answer:
        late: dict[Partition, ErrorCode] = {}
        for partition, offset in self._targets.replications.items():
            outcome = partition.replicated(offset)
            if outcome is not ErrorCode.NONE:
                late[partition] = ErrorCode.REQUEST_TIMED_OUT if outcome is None else outcome
        for partition, offset in self._targets.flushes.items():
            if partition.log.recovery_point < offset:
                late[partition] = self.late_code
        return self._answer_of(late)


class Doing(NamedTuple):
    """What is the same for all batches of a request."""

    acks: int
    version: int
    now_ms: int
    targets: Targets
    refused: Results
    found: Checked | None
    quick: bool


@dataclass(frozen=True, slots=True)
class Handler:
    """Append every batch of the request; HELD until those are checked that take long."""

    metadata: Metadata
    replicas: Replicas
    clock: Clock
    purgatory: Purgatory
    turn: Turn
    authorization: "Authorization | None"
    transactions: "Deferred[Transactions]"
    flusher: Flusher
    long_checks: LongChecks
    produce_templates: KnownTemplates
    metrics: Metrics
    quotas: LiveQuotas

    def handle(
        self,
        context: ConnectionContext,
        version: int,
        correlation_id: int,
        frame: memoryview,
        position: int,
    ) -> Answer | DelayedAnswer | object | None:
        request = decode_request(frame, position, version)
        transactional = has_transactional_records(request)
        alone = not transactional and len(request.topics) == 1 and len(request.topics[0][1]) == 1
        if alone and context.checked is None:
            try:
                return self._append_all(
                    context, version, correlation_id, frame, request, NOTHING_REFUSED, quick=True
                )
            except TakesLong:
                pass  # nothing was changed
        if not self._check_long(context, request):
            return HELD
        found, context.checked = context.checked, None
        if transactional:
            return self._handle_transactional(
                context, version, correlation_id, frame, position, request, found
            )
        return self._append_all(context, version, correlation_id, frame, request, NOTHING_REFUSED, found)

    def _check_long(self, context: ConnectionContext, request: ProduceRequest) -> bool:
        """Have batches checked that take long; False while that is under way."""

        def may_write(topic: str | UUID) -> bool:
            return self._may_write(context, topic)

        return self.long_checks.begin(context, request, self.clock.now_ms(), may_write)

    def _handle_transactional(
        self,
        context: ConnectionContext,
        version: int,
        correlation_id: int,
        frame: memoryview,
        position: int,
        request: ProduceRequest,
        found: Checked | None,
    ) -> Answer | DelayedAnswer | None:
        """Append what the coordinator of the transactional id permits; its word may come later."""
        if not self._may_transact(context, request.transactional_id):
            code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            if request.acks == ACKS_NONE:
                raise CloseConnection(f"acks=0 batches failed with {code.name}")
            return encode_response_pieces(_refuse_all(request, code), version, correlation_id)

        def append_all(
            frame: memoryview, request: ProduceRequest, refused: Results
        ) -> Answer | DelayedAnswer | None:
            return self._append_all(context, version, correlation_id, frame, request, refused, found)

        produce = TransactionalProduce(append_all, frame, request)
        allowed = self._authorized(context, request)
        whole(submit, self.replicas, self.transactions, allowed, version, produce.append)
        if not produce.waits:
            return produce.outcome
        if request.acks == ACKS_NONE:
            produce.abandon()
            raise CloseConnection("a transactional batch with acks=0 cannot wait for its coordinator")
        produce.keep(position, version)
        return produce

    def _may_transact(self, context: ConnectionContext, transactional_id: str | None) -> bool:
        if transactional_id is None:
            return False
        authorization = self.authorization
        return authorization is None or authorization.allows(
            context, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
        )

    def _authorized(self, context: ConnectionContext, request: ProduceRequest) -> ProduceRequest:
        """The request without the topics that its sender may not write to: they are refused later."""
        if self.authorization is None:
            return request
        topics = [item for item in request.topics if self._may_write(context, item[0])]
        return request._replace(topics=topics)

    def _may_write(self, context: ConnectionContext, topic: str | UUID) -> bool:
        name = self.metadata.image.name_of(topic)
        authorization = self.authorization
        return (
            authorization is None
            or name is None
            or authorization.allows(context, AclOperation.WRITE, ResourceType.TOPIC, name)
        )

    def _append_all(
        self,
        context: ConnectionContext,
        version: int,
        correlation_id: int,
        frame: memoryview,
        request: ProduceRequest,
        refused: Results,
        found: Checked | None = None,
        *,
        quick: bool = False,
    ) -> Answer | DelayedAnswer | None:
        acks = request.acks
        now_ms = self.clock.now_ms()
        targets = Targets({}, {})
        doing = Doing(acks, version, now_ms, targets, refused, found, quick)
        answers = self._append_topics(context, request, doing)
        failed = self._count_errors(answers)
        if acks == ACKS_NONE:
            for partition in targets.flushes:
                self.flusher.request(partition)
            _close_on_error(answers)
            return None
        if (
            len(request.topics) == 1
            and len(request.topics[0][1]) == 1
            and not targets.flushes
            # Who has a limit goes by the general path, where every request is counted.
            and ((quotas := self.quotas.current) is None or not quotas.limits_produce(context))
        ):
            self._remember_template(context, version, frame, request, answers)
        if targets.flushes or targets.replications:
            timeout_ms = request.timeout_ms
            return self._park(context, answers, targets, version, correlation_id, now_ms + timeout_ms)
        leaders = KnownLeaders(self.metadata, self.replicas, context.listener_name) if failed else None
        return encode_response_pieces(answers, version, correlation_id, leaders=leaders)

    def _remember_template(
        self,
        context: ConnectionContext,
        version: int,
        frame: memoryview,
        request: ProduceRequest,
        answers: list[ProducedTopic],
    ) -> None:
        topic, [(index, records)] = request.topics[0]
        partition, _ = self.replicas.find(topic, index)
        if (
            partition is not None
            and records is not None
            and not answers[0][1][0].error
            and not is_transactional(records)
        ):
            end = template_end(frame, version, records)
            if end:
                timeout_ms = request.timeout_ms if request.acks == ACKS_ALL else None
                key, template = self.produce_templates.find(
                    bytes(frame[TEMPLATE_START:end]),
                    version,
                    self.metadata.image.version,
                    topic,
                    partition,
                    timeout_ms,
                )
                context.keep_produce_template(key, template, end)

    def _append_topics(
        self, context: ConnectionContext, request: ProduceRequest, doing: Doing
    ) -> list[ProducedTopic]:
        """Append topic by topic; in slices until something is appended, which others may wait for."""
        if len(request.topics) == 1:
            topic, partitions = request.topics[0]
            return [(topic, self._append_topic(context, topic, partitions, doing))]
        answers: list[ProducedTopic] = []
        appended = False
        for topic, partitions in request.topics:
            if appended:
                rows = whole(self._append_topic, context, topic, partitions, doing)
            else:
                rows = self._append_topic(context, topic, partitions, doing)
                appended = any(not row.error for row in rows)
            answers.append((topic, rows))
            if not appended and len(answers) % STEP == 0:
                checkpoint()
        return answers

    def _append_topic(
        self,
        context: ConnectionContext,
        topic: str | UUID,
        partitions: list[tuple[int, memoryview | None]],
        doing: Doing,
    ) -> list[PartitionProduced]:
        acks, version, now_ms, targets, refused, found, quick = doing
        name = self.metadata.image.name_of(topic)
        produced: list[PartitionProduced] = []
        waits = acks == ACKS_ALL
        if self.authorization is not None and not self._may_write(context, topic):
            return _refused_rows(partitions, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if name is None:
            return _refused_rows(partitions, ErrorCode.UNKNOWN_TOPIC_ID)
        fault = _fault_of_all(context, name, acks)
        for index, records in partitions:
            partition = self.replicas.led.get((name, index))
            if partition is None or fault is not None:
                produced.append(PartitionProduced(index, self._fault(name, index, records, doing, fault)))
                continue
            checked = None
            if found is not None and records is not None:
                checked = take(found, topic, index, records, partition.rules)
            if version < FIRST_ZSTD and records is not None and _has_later_codec(records):
                produced.append(PartitionProduced(index, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE))
                continue
            code = refused.get(TopicPartition(partition.topic, index)) if refused else None
            if code is not None and code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                produced.append(PartitionProduced(index, _framing_fault(records) or code))
                continue
            replicated = waits and partition.replicas is not None
            outcome: Appended | Refused | None = partition.not_enough_replicas() if replicated else None
            if outcome is None and code is not None:
                outcome = partition.refuse_in_order(records, now_ms, Refused(code), checked)
            elif outcome is None:
                outcome = partition.append_produced(records, now_ms, quick=quick, checked=checked)
            if isinstance(outcome, Refused):
                produced.append(refused_batch(partition, outcome, records))
                continue
            base_offset, log_append_time_ms, flush_to = outcome
            if flush_to >= 0:
                # A request may name a partition twice.
                targets.flushes[partition] = max(flush_to, targets.flushes.get(partition, 0))
            if replicated and records is not None:
                end_offset = base_offset + read_header(records).last_offset_delta + 1
                if partition.replicated(end_offset) is not ErrorCode.NONE:
                    targets.replications[partition] = max(end_offset, targets.replications.get(partition, 0))
            self.turn.note_progress(partition)
            produced.append(
                PartitionProduced(index, 0, base_offset, log_append_time_ms, partition.log.log_start_offset)
            )
        return produced

    def _fault(
        self,
        name: str,
        index: int,
        records: memoryview | None,
        doing: Doing,
        fault: ErrorCode | None,
    ) -> ErrorCode:
        """The first fault of a batch that never comes to a log."""
        absence = self.replicas.absence(name, index)
        if absence is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and (name, index) not in self.replicas.led:
            return absence
        if doing.version < FIRST_ZSTD and records is not None and _has_later_codec(records):
            return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        verdict = doing.refused.get(TopicPartition(name, index))
        if verdict is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            verdict = None
        return _framing_fault(records) or verdict or fault or absence

    def _count_errors(self, answers: list[ProducedTopic]) -> bool:
        """Count the errors by their codes; say whether there are any."""
        failed = False
        for _, partitions in answers:
            for produced in partitions:
                if produced.error:
                    failed = True
                    self.metrics.requests.error(PRODUCE, produced.error)
        return failed

    def _park(
        self,
        context: ConnectionContext,
        answers: list[ProducedTopic],
        targets: Targets,
        version: int,
        correlation_id: int,
        deadline_ms: int,
    ) -> DelayedOperation:
        def answer_of(late: Late) -> Answer:
            late_keys: dict[tuple[str | UUID, int], ErrorCode] = {}
            for partition, late_code in late.items():
                self.metrics.requests.error(PRODUCE, late_code)
                late_keys[partition.topic, partition.index] = late_code
                late_keys[partition.topic_id, partition.index] = late_code
            if late_keys:
                for topic, partitions in answers:
                    for place, produced in enumerate(partitions):
                        code = late_keys.get((topic, produced.partition))
                        if code is not None:
                            partitions[place] = PartitionProduced(produced.partition, code)
            leaders = KnownLeaders(self.metadata, self.replicas, context.listener_name)
            return encode_response_pieces(answers, version, correlation_id, leaders=leaders)

        waiter = DelayedProduce(answer_of, targets)
        self.purgatory.park(waiter, targets.flushes, deadline_ms)
        for partition, end_offset in targets.replications.items():
            partition.await_commit(end_offset, waiter)
        for partition in targets.flushes:
            self.flusher.request(partition)
        return waiter


def _has_later_codec(records: memoryview) -> bool:
    """Whether a batch has a codec that came after the first ones: zstd, or one that there is not."""
    return len(records) >= HEADER_SIZE and records[ATTRIBUTES_POSITION + 1] & CODEC_MASK >= Codec.ZSTD


def _fault_of_all(context: ConnectionContext, name: str, acks: int) -> ErrorCode | None:
    """What is wrong with all batches for a topic of which nothing else is wrong."""
    if acks not in ACKS_VALID:
        return ErrorCode.INVALID_REQUIRED_ACKS
    if name in INTERNAL_TOPICS and context.client_id != ADMIN_CLIENT_ID:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    return None


def _framing_fault(records: memoryview | None) -> ErrorCode | None:
    refused = None if records is None else unframed(records)
    return None if refused is None else refused.code


def _refused_rows(
    partitions: list[tuple[int, memoryview | None]], code: ErrorCode
) -> list[PartitionProduced]:
    return [PartitionProduced(index, code) for index, _ in paced(partitions)]


def _refuse_all(request: ProduceRequest, code: ErrorCode) -> list[ProducedTopic]:
    return [(topic, _refused_rows(partitions, code)) for topic, partitions in request.topics]


def _close_on_error(answers: list[ProducedTopic]) -> None:
    for topic, partitions in answers:
        for produced in partitions:
            if produced.error:
                name = ErrorCode(produced.error).name
                raise CloseConnection(f"acks=0 batch for {topic}-{produced.partition} failed with {name}")


Late = Mapping[Partition, ErrorCode]
