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

import struct
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from tidelog.broker.dispatch import HELD, CloseConnection, ConnectionContext
from tidelog.broker.long_checks import Checked, take
from tidelog.broker.parking import Parked, Waiter, Watched
from tidelog.broker.partition import Appended, Partition
from tidelog.broker.produce_shapes import NO_TAGS, SHAPE_START, ProduceShape, records_of, remember
from tidelog.broker.transactional_produce import (
    TransactionalProduce,
    has_transactional_records,
    is_transactional,
    submit,
)
from tidelog.model.acls import AclOperation, ResourceType
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.identifiers import INTERNAL_TOPICS, TopicPartition
from tidelog.protocol.apis import PRODUCE
from tidelog.protocol.primitives import DECODING_ERRORS, INT32
from tidelog.protocol.produce import (
    FIRST_FLEXIBLE,
    PartitionProduced,
    ProducedTopic,
    ProduceRequest,
    decode_request,
    encode_response,
)
from tidelog.protocol.slices import STEP, checkpoint, paced, whole
from tidelog.records.batch import (
    ATTRIBUTES_POSITION,
    CODEC_MASK,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_POSITION,
    PRODUCER_ID_POSITION,
    read_header,
)
from tidelog.records.compression import Codec
from tidelog.records.validation import TakesLong, unframed

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

Results = Mapping[TopicPartition, ErrorCode]
NOTHING_REFUSED: Results = {}

ACKS_NONE = 0
ACKS_ALL = -1
#: requests appended with one write at most
RUN_FRAMES_MAX = 64
#: older clients could not read zstd, so batches of theirs may not have it (KIP-110)
FIRST_ZSTD = 7
ACKS_VALID = (-1, 0, 1)
#: api key, api version, correlation id
SHORT_PREFIX = struct.Struct(">hhi")
#: the same behind the size of the frame
FRAME_PREFIX = struct.Struct(">ihhi")
#: refusals of a log that do not tell where it starts
START_UNKNOWN = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
#: the one client that may write to internal topics, as in Kafka
ADMIN_CLIENT_ID = "__admin_client"


class Targets(NamedTuple):
    """What the batches of one request wait for: offsets to be on the disk, and to be replicated."""

    flushes: dict[Partition, int]
    replications: dict[Partition, int]


class ProduceWaiter(Waiter):
    """A Produce answer that waits until its batches are on the disk, and in the logs of the replicas."""

    __slots__ = ("_answer_of", "_targets", "late_code")

    def __init__(self, answer_of: "Callable[[Late], bytes]", targets: Targets) -> None:
        super().__init__()
        self._answer_of = answer_of
        self._targets = targets
        self.late_code = ErrorCode.REQUEST_TIMED_OUT

    def flush_failed(self, partition: Partition) -> None:
        """The disk failed: answer at once with the right error."""
        if partition in self._targets.flushes:
            self.late_code = ErrorCode.KAFKA_STORAGE_ERROR
            if self.lot is not None:
                self.lot.finish(self, expired=True)

    def ready(self, progressed: Watched) -> bool:
        return all(
            partition.log.recovery_point >= offset for partition, offset in self._targets.flushes.items()
        ) and all(
            partition.replicated(offset) is not None
            for partition, offset in self._targets.replications.items()
        )

    def complete(self, *, expired: bool) -> bytes:
        late: dict[Partition, ErrorCode] = {}
        for partition, offset in self._targets.replications.items():
            outcome = partition.replicated(offset)
            if outcome is not ErrorCode.NONE:
                late[partition] = ErrorCode.REQUEST_TIMED_OUT if outcome is None else outcome
        for partition, offset in self._targets.flushes.items():
            if partition.log.recovery_point < offset:
                late[partition] = self.late_code
        return self._answer_of(late)


class ReplicationWaiter(Waiter):
    """The answer to a request of a known shape, which waits for the replicas alone."""

    __slots__ = ("_appended", "_broker", "_correlation_id", "_end_offset", "_shape")

    def __init__(
        self,
        broker: "Broker",
        shape: ProduceShape,
        correlation_id: int,
        appended: Appended,
        end_offset: int,
    ) -> None:
        super().__init__()
        self._broker = broker
        self._shape = shape
        self._correlation_id = correlation_id
        self._appended = appended
        self._end_offset = end_offset

    def ready(self, progressed: Watched) -> bool:
        return self._shape.partition.replicated(self._end_offset) is not None

    def complete(self, *, expired: bool) -> bytes:
        shape = self._shape
        code = shape.partition.replicated(self._end_offset)
        if code is ErrorCode.NONE:
            base_offset, log_append_time_ms, _ = self._appended
            return shape.answer(self._correlation_id, base_offset, log_append_time_ms)
        late = ErrorCode.REQUEST_TIMED_OUT if code is None else code
        self._broker.metrics.requests.error(PRODUCE, late)
        produced = PartitionProduced(shape.partition.index, late)
        return encode_response([(shape.topic, [produced])], shape.version, self._correlation_id)


def handle(
    broker: "Broker",
    context: ConnectionContext,
    version: int,
    correlation_id: int,
    frame: memoryview,
    position: int,
) -> bytes | Parked | object | None:
    """Append every batch of the request; HELD until those are checked that take long."""
    request = decode_request(frame, position, version)
    transactional = has_transactional_records(request)
    alone = not transactional and len(request.topics) == 1 and len(request.topics[0][1]) == 1
    if alone and context.checked is None:
        try:
            return _append_all(
                broker, context, version, correlation_id, frame, request, NOTHING_REFUSED, quick=True
            )
        except TakesLong:
            pass  # nothing was changed
    if not _check_long(broker, context, request):
        return HELD
    found, context.checked = context.checked, None
    if transactional:
        return _handle_transactional(
            broker, context, version, correlation_id, frame, position, request, found
        )
    return _append_all(broker, context, version, correlation_id, frame, request, NOTHING_REFUSED, found)


def _check_long(broker: "Broker", context: ConnectionContext, request: ProduceRequest) -> bool:
    """Have batches checked that take long; False while that is under way."""

    def may_write(topic: str | UUID) -> bool:
        return _may_write(broker, context, topic)

    return broker.long_checks.begin(context, request, broker.clock.now_ms(), may_write)


def _handle_transactional(
    broker: "Broker",
    context: ConnectionContext,
    version: int,
    correlation_id: int,
    frame: memoryview,
    position: int,
    request: ProduceRequest,
    found: Checked | None,
) -> bytes | Parked | None:
    """Append what the coordinator of the transactional id permits; its word may come later."""
    if not _may_transact(broker, context, request.transactional_id):
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if request.acks == ACKS_NONE:
            raise CloseConnection(f"acks=0 batches failed with {code.name}")
        return encode_response(_refuse_all(request, code), version, correlation_id)

    def append_all(frame: memoryview, request: ProduceRequest, refused: Results) -> bytes | Parked | None:
        return _append_all(broker, context, version, correlation_id, frame, request, refused, found)

    produce = TransactionalProduce(append_all, frame, request)
    whole(submit, broker, _authorized(broker, context, request), version, produce.append)
    if not produce.waits:
        return produce.outcome
    if request.acks == ACKS_NONE:
        produce.abandon()
        raise CloseConnection("a transactional batch with acks=0 cannot wait for its coordinator")
    produce.keep(position, version)
    return produce


def _may_transact(broker: "Broker", context: ConnectionContext, transactional_id: str | None) -> bool:
    if transactional_id is None:
        return False
    authorization = broker.authorization
    return authorization is None or authorization.allows(
        context, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
    )


def _authorized(broker: "Broker", context: ConnectionContext, request: ProduceRequest) -> ProduceRequest:
    """The request without the topics that its sender may not write to; they are refused when it is served."""
    if broker.authorization is None:
        return request
    topics = [item for item in request.topics if _may_write(broker, context, item[0])]
    return request._replace(topics=topics)


def _may_write(broker: "Broker", context: ConnectionContext, topic: str | UUID) -> bool:
    name = topic if isinstance(topic, str) else broker.image.topic_names_by_id.get(topic)
    authorization = broker.authorization
    return (
        authorization is None
        or name is None
        or authorization.allows(context, AclOperation.WRITE, ResourceType.TOPIC, name)
    )


def _append_all(
    broker: "Broker",
    context: ConnectionContext,
    version: int,
    correlation_id: int,
    frame: memoryview,
    request: ProduceRequest,
    refused: Results,
    found: Checked | None = None,
    *,
    quick: bool = False,
) -> bytes | Parked | None:
    acks = request.acks
    now_ms = broker.clock.now_ms()
    targets = Targets({}, {})
    doing = Doing(acks, version, now_ms, targets, refused, found, quick)
    answers = _append_topics(broker, context, request, doing)
    _count_errors(broker, answers)
    if acks == ACKS_NONE:
        for partition in targets.flushes:
            broker.flusher.request(partition)
        _close_on_error(answers)
        return None
    if (
        len(request.topics) == 1
        and len(request.topics[0][1]) == 1
        and not targets.flushes
        # Who has a limit goes the long way, where every request is counted.
        and (broker.quotas is None or not broker.quotas.limits_produce(context))
    ):
        _remember_shape(broker, context, version, frame, request, answers)
    if targets.flushes or targets.replications:
        timeout_ms = request.timeout_ms
        return _park(broker, answers, targets, version, correlation_id, now_ms + timeout_ms)
    return encode_response(answers, version, correlation_id)


def handle_again(
    broker: "Broker", context: ConnectionContext, buffer: memoryview, start: int, stop: int
) -> bytes | Waiter | None:
    """Serve the frame from `start` to `stop` if it looks like an earlier one; None: the long way."""
    end = start + context.produce_shape_end
    shape = context.produce_shapes.get(bytes(buffer[start + SHAPE_START : end]))
    if shape is None or context.checked is not None:
        return None
    key, version, correlation_id = SHORT_PREFIX.unpack_from(buffer, start)
    if shape.image_version != broker.image_version:
        # Whatever they lead to may be gone; those that still count are learnt again.
        context.forget_produce_shapes()
        return None
    if key != PRODUCE or version != shape.version:
        return None
    try:
        records = records_of(buffer, end, stop, version)
    except DECODING_ERRORS:
        return None
    partition = shape.partition
    if records is None or partition.flushes or is_transactional(records):
        return None
    timeout_ms = None if partition.replicas is None else shape.replication_timeout_ms
    outcome: Appended | Refused | None = None if timeout_ms is None else partition.not_enough_replicas()
    if outcome is None:
        try:
            outcome = partition.append_produced(records, broker.turn_ms, quick=True)
        except TakesLong:
            return None
    if isinstance(outcome, Refused):
        # Not the long way: the batch may have been patched already, and would be refused for that.
        refusal = _refusal(partition, outcome, records)
        broker.metrics.requests.error(PRODUCE, outcome.code)
        return encode_response([(shape.topic, [refusal])], version, correlation_id)
    base_offset, log_append_time_ms, _ = outcome
    if (partition.waiters or partition.commits) and not partition.progressing:
        broker.note_progress(partition)
    if timeout_ms is not None:
        end_offset = base_offset + INT32.unpack_from(records, LAST_OFFSET_DELTA_POSITION)[0] + 1
        if partition.replicated(end_offset) is not ErrorCode.NONE:
            waiter = ReplicationWaiter(broker, shape, correlation_id, outcome, end_offset)
            broker.parking.park(waiter, (), broker.turn_ms + timeout_ms)
            partition.await_commit(end_offset, waiter)
            return waiter
    return shape.answer(correlation_id, base_offset, log_append_time_ms)


def handle_run(
    broker: "Broker", context: ConnectionContext, buffer: memoryview, start: int, end: int
) -> tuple[list[bytes], int] | None:
    """Serve the frames from `start` on that all look like the same earlier one, with one write.

    Returns their answers and where the next frame starts; None if there are not two of them.
    """
    shape_end = 4 + context.produce_shape_end
    key = bytes(buffer[start + 4 + SHAPE_START : start + shape_end])
    shape = context.produce_shapes.get(key)
    if shape is None or shape.image_version != broker.image_version or not shape.partition.plain:
        return None
    if context.checked is not None:
        return None  # what was found is for the first of these frames
    if shape.replication_timeout_ms is not None and shape.partition.replicas is not None:
        return None
    correlation_ids: list[int] = []
    views: list[memoryview] = []
    start = _collect_run(buffer, start, end, shape.version, key, shape_end, correlation_ids, views)
    if len(views) < 2:
        return None
    partition = shape.partition
    outcome = partition.append_run(views, broker.turn_ms)
    if outcome is None:
        return None
    if isinstance(outcome, Refused):
        refusal = [(shape.topic, [_refusal(partition, outcome, views[0])])]
        for _ in correlation_ids:
            broker.metrics.requests.error(PRODUCE, outcome.code)
        return [encode_response(refusal, shape.version, each) for each in correlation_ids], start
    if (partition.waiters or partition.commits) and not partition.progressing:
        broker.note_progress(partition)
    return shape.answers(correlation_ids, outcome), start


def _collect_run(
    buffer: memoryview,
    start: int,
    end: int,
    version: int,
    key: bytes,
    shape_end: int,
    correlation_ids: list[int],
    views: list[memoryview],
) -> int:
    """Add what frames of one shape have of their own to the lists; return where the next frame starts."""
    shape_start = 4 + SHAPE_START
    tail_size = len(NO_TAGS) if version >= FIRST_FLEXIBLE else 0
    tail = NO_TAGS[:tail_size]
    last_size = records_start = records_end = 0
    head = key
    while end - start >= FRAME_PREFIX.size and len(views) < RUN_FRAMES_MAX:
        size, api_key, frame_version, correlation_id = FRAME_PREFIX.unpack_from(buffer, start)
        stop = start + 4 + size
        if stop > end or api_key != PRODUCE or frame_version != version:
            break
        if size == last_size and buffer[start + shape_start : start + records_start] == head:
            # As long as the one before: its records are at the same place.
            if buffer[stop - tail_size : stop] != tail:
                break
            views.append(buffer[start + records_start : start + records_end])
        else:
            if start + shape_end >= stop or buffer[start + shape_start : start + shape_end] != key:
                break
            try:
                records = records_of(buffer, start + shape_end, stop, version)
            except DECODING_ERRORS:
                break
            if records is None or len(records) < HEADER_SIZE or records[PRODUCER_ID_POSITION] < 0x80:
                break  # a producer with an id: each of its batches is checked against the one before
            views.append(records)
            last_size = size
            records_end = 4 + size - tail_size
            records_start = records_end - len(records)
            head = bytes(buffer[start + shape_start : start + records_start])
        correlation_ids.append(correlation_id)
        start = stop
    return start


def _remember_shape(
    broker: "Broker",
    context: ConnectionContext,
    version: int,
    frame: memoryview,
    request: ProduceRequest,
    answers: list[ProducedTopic],
) -> None:
    topic, [(index, records)] = request.topics[0]
    partition, _ = broker.find_partition(topic, index)
    if (
        partition is not None
        and records is not None
        and not answers[0][1][0].error
        and not is_transactional(records)
    ):
        timeout_ms = request.timeout_ms if request.acks == ACKS_ALL else None
        known, image_version = broker.produce_shapes, broker.image.version
        remember(context, known, frame, version, image_version, topic, partition, records, timeout_ms)


class Doing(NamedTuple):
    """What is the same for all batches of a request."""

    acks: int
    version: int
    now_ms: int
    targets: Targets
    refused: Results
    found: Checked | None
    quick: bool


def _append_topics(
    broker: "Broker", context: ConnectionContext, request: ProduceRequest, doing: Doing
) -> list[ProducedTopic]:
    """Append topic by topic, in slices until something is appended: what waits for it must not come late."""
    if len(request.topics) == 1:
        topic, partitions = request.topics[0]
        return [(topic, _append_topic(broker, context, topic, partitions, doing))]
    answers: list[ProducedTopic] = []
    append: Callable[..., list[PartitionProduced]] = _append_topic
    for topic, partitions in request.topics:
        rows = append(broker, context, topic, partitions, doing)
        answers.append((topic, rows))
        if append is _append_topic and any(not row.error for row in rows):
            append = partial(whole, _append_topic)
        elif append is _append_topic and len(answers) % STEP == 0:
            checkpoint()
    return answers


def _append_topic(
    broker: "Broker",
    context: ConnectionContext,
    topic: str | UUID,
    partitions: list[tuple[int, memoryview | None]],
    doing: Doing,
) -> list[PartitionProduced]:
    acks, version, now_ms, targets, refused, found, quick = doing
    name = topic if isinstance(topic, str) else broker.image.topic_names_by_id.get(topic)
    produced: list[PartitionProduced] = []
    waits = acks == ACKS_ALL
    if broker.authorization is not None and not _may_write(broker, context, topic):
        return _refused_rows(partitions, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if name is None:
        return _refused_rows(partitions, ErrorCode.UNKNOWN_TOPIC_ID)
    fault = _fault_of_all(context, name, acks)
    for index, records in partitions:
        partition = broker.partitions.get((name, index))
        if partition is None or fault is not None:
            produced.append(PartitionProduced(index, _fault(broker, name, index, records, doing, fault)))
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
            produced.append(_refusal(partition, outcome, records))
            continue
        base_offset, log_append_time_ms, flush_to = outcome
        if flush_to >= 0:
            # A request may name a partition twice.
            targets.flushes[partition] = max(flush_to, targets.flushes.get(partition, 0))
        if replicated and records is not None:
            end_offset = base_offset + read_header(records).last_offset_delta + 1
            if partition.replicated(end_offset) is not ErrorCode.NONE:
                targets.replications[partition] = max(end_offset, targets.replications.get(partition, 0))
        if (partition.waiters or partition.commits) and not partition.progressing:
            broker.note_progress(partition)
        produced.append(
            PartitionProduced(index, 0, base_offset, log_append_time_ms, partition.log.log_start_offset)
        )
    return produced


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


def _fault(
    broker: "Broker",
    name: str,
    index: int,
    records: memoryview | None,
    doing: Doing,
    fault: ErrorCode | None,
) -> ErrorCode:
    """The first fault of a batch that never comes to a log."""
    absence = broker.absence(name, index)
    if absence is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and (name, index) not in broker.partitions:
        return absence
    if doing.version < FIRST_ZSTD and records is not None and _has_later_codec(records):
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    verdict = doing.refused.get(TopicPartition(name, index))
    if verdict is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
        verdict = None
    return _framing_fault(records) or verdict or fault or absence


def _framing_fault(records: memoryview | None) -> ErrorCode | None:
    refused = None if records is None else unframed(records)
    return None if refused is None else refused.code


def _refusal(partition: Partition, refused: Refused, records: memoryview | None) -> PartitionProduced:
    """Why a log did not take a batch, with its start where the batch and the disk can be trusted."""
    unknown_start = refused.code in START_UNKNOWN or (records is not None and unframed(records) is not None)
    return PartitionProduced(
        partition.index,
        refused.code,
        log_start_offset=-1 if unknown_start else partition.log.log_start_offset,
        record_errors=refused.record_errors,
        error_message=refused.message,
    )


def _refused_rows(
    partitions: list[tuple[int, memoryview | None]], code: ErrorCode
) -> list[PartitionProduced]:
    return [PartitionProduced(index, code) for index, _ in paced(partitions)]


def _refuse_all(request: ProduceRequest, code: ErrorCode) -> list[ProducedTopic]:
    return [(topic, _refused_rows(partitions, code)) for topic, partitions in request.topics]


def _count_errors(broker: "Broker", answers: list[ProducedTopic]) -> None:
    for _, partitions in answers:
        for produced in partitions:
            if produced.error:
                broker.metrics.requests.error(PRODUCE, produced.error)


def _close_on_error(answers: list[ProducedTopic]) -> None:
    for topic, partitions in answers:
        for produced in partitions:
            if produced.error:
                name = ErrorCode(produced.error).name
                raise CloseConnection(f"acks=0 batch for {topic}-{produced.partition} failed with {name}")


Late = Mapping[Partition, ErrorCode]


def _park(
    broker: "Broker",
    answers: list[ProducedTopic],
    targets: Targets,
    version: int,
    correlation_id: int,
    deadline_ms: int,
) -> Waiter:
    def answer_of(late: Late) -> bytes:
        late_keys: dict[tuple[str | UUID, int], ErrorCode] = {}
        for partition, late_code in late.items():
            broker.metrics.requests.error(PRODUCE, late_code)
            late_keys[partition.topic, partition.index] = late_code
            late_keys[partition.topic_id, partition.index] = late_code
        if late_keys:
            for topic, partitions in answers:
                for place, produced in enumerate(partitions):
                    code = late_keys.get((topic, produced.partition))
                    if code is not None:
                        partitions[place] = PartitionProduced(produced.partition, code)
        return encode_response(answers, version, correlation_id)

    waiter = ProduceWaiter(answer_of, targets)
    broker.parking.park(waiter, targets.flushes, deadline_ms)
    for partition, end_offset in targets.replications.items():
        partition.await_commit(end_offset, waiter)
    for partition in targets.flushes:
        broker.flusher.request(partition)
    return waiter
