"""Produce requests that look like earlier ones: the two fast paths (see docs/adr/0022-fast-paths.md).

`again` serves one request that looks like an earlier one of its connection (see produce_templates); `run`
serves several such requests for one partition with one write. Both step aside, by returning None, before
anything is changed: the general path then does all of it. What they write and answer is the same.
"""

import struct
from dataclasses import dataclass

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.replicas.partition import Appended
from tidelog.broker.replicas.replicas import Replicas
from tidelog.broker.requests.connection_context import ConnectionContext
from tidelog.broker.requests.current_leaders import KnownLeaders
from tidelog.broker.requests.produce_answers import refused_batch
from tidelog.broker.requests.produce_templates import (
    NO_TAGS,
    TEMPLATE_START,
    KnownTemplates,
    ProduceTemplate,
    records_of,
)
from tidelog.broker.runtime.metrics import Metrics
from tidelog.broker.runtime.purgatory import DelayedOperation, Purgatory, Watched
from tidelog.broker.runtime.turn import Turn
from tidelog.model.errors import ErrorCode, Refused
from tidelog.protocol.apis import PRODUCE
from tidelog.protocol.primitives import DECODING_ERRORS, INT32
from tidelog.protocol.produce import FIRST_FLEXIBLE, PartitionProduced, encode_response
from tidelog.records.batch import (
    HEADER_SIZE,
    LAST_OFFSET_DELTA_POSITION,
    PRODUCER_ID_POSITION,
    is_transactional,
)
from tidelog.records.validation import TakesLong

#: requests appended with one write at most
RUN_FRAMES_MAX = 64
#: api key, api version, correlation id
SHORT_PREFIX = struct.Struct(">hhi")
#: the same behind the size of the frame
FRAME_PREFIX = struct.Struct(">ihhi")


@dataclass(frozen=True, slots=True)
class ProduceFastPath:
    """Serves Produce requests of known templates."""

    metadata: Metadata
    replicas: Replicas
    purgatory: Purgatory
    turn: Turn
    metrics: Metrics
    produce_templates: KnownTemplates

    def again(
        self, context: ConnectionContext, buffer: memoryview, start: int, stop: int
    ) -> bytes | DelayedOperation | None:
        """Serve the frame from `start` to `stop` if it looks like an earlier one; None: the general path."""
        end = start + context.produce_template_end
        template = context.produce_templates.get(bytes(buffer[start + TEMPLATE_START : end]))
        if template is None or context.checked is not None:
            return None
        key, version, correlation_id = SHORT_PREFIX.unpack_from(buffer, start)
        if template.image_version != self.produce_templates.image_version:
            # Whatever they lead to may be gone; those that still count are learnt again.
            context.forget_produce_templates()
            return None
        if key != PRODUCE or version != template.version:
            return None
        try:
            records = records_of(buffer, end, stop, version)
        except DECODING_ERRORS:
            return None
        partition = template.partition
        if records is None or partition.flushes or is_transactional(records):
            return None
        timeout_ms = None if partition.replicas is None else template.replication_timeout_ms
        outcome: Appended | Refused | None = None if timeout_ms is None else partition.not_enough_replicas()
        if outcome is None:
            try:
                outcome = partition.append_produced(records, self.turn.now_ms, quick=True)
            except TakesLong:
                return None
        if isinstance(outcome, Refused):
            # Not the general path: the batch may have been patched already, and would be refused for that.
            refusal = refused_batch(partition, outcome, records)
            return self.refuse(context, template, correlation_id, refusal)
        base_offset, log_append_time_ms, _ = outcome
        self.turn.note_progress(partition)
        if timeout_ms is not None:
            end_offset = base_offset + INT32.unpack_from(records, LAST_OFFSET_DELTA_POSITION)[0] + 1
            if partition.replicated(end_offset) is not ErrorCode.NONE:
                waiter = DelayedReplication(self, context, template, correlation_id, outcome, end_offset)
                self.purgatory.park(waiter, (), self.turn.now_ms + timeout_ms)
                partition.await_commit(end_offset, waiter)
                return waiter
        return template.answer(correlation_id, base_offset, log_append_time_ms)

    def run(
        self, context: ConnectionContext, buffer: memoryview, start: int, end: int
    ) -> tuple[list[bytes], int] | None:
        """Serve the frames from `start` on that all look like the same earlier one, with one write.

        Returns their answers and where the next frame starts; None if there are not two of them.
        """
        template_end = 4 + context.produce_template_end
        key = bytes(buffer[start + 4 + TEMPLATE_START : start + template_end])
        template = context.produce_templates.get(key)
        if (
            template is None
            or template.image_version != self.produce_templates.image_version
            or not template.partition.plain
        ):
            return None
        if context.checked is not None:
            return None  # what was found is for the first of these frames
        if template.replication_timeout_ms is not None and template.partition.replicas is not None:
            return None
        correlation_ids: list[int] = []
        views: list[memoryview] = []
        start = _collect_run(buffer, start, end, template.version, key, template_end, correlation_ids, views)
        if len(views) < 2:
            return None
        partition = template.partition
        outcome = partition.append_run(views, self.turn.now_ms)
        if outcome is None:
            return None
        if isinstance(outcome, Refused):
            refusal = refused_batch(partition, outcome, views[0])
            return [self.refuse(context, template, each, refusal) for each in correlation_ids], start
        self.turn.note_progress(partition)
        return template.answers(correlation_ids, outcome), start

    def refuse(
        self,
        context: ConnectionContext,
        template: ProduceTemplate,
        correlation_id: int,
        refusal: PartitionProduced,
    ) -> bytes:
        """The answer to a request whose batch was refused."""
        self.metrics.requests.error(PRODUCE, refusal.error)
        leaders = KnownLeaders(self.metadata, self.replicas, context.listener_name)
        return encode_response(
            [(template.topic, [refusal])], template.version, correlation_id, leaders=leaders
        )


class DelayedReplication(DelayedOperation):
    """The answer to a request of a known template, which waits for the replicas alone."""

    __slots__ = ("_appended", "_context", "_correlation_id", "_end_offset", "_fast_path", "_template")

    def __init__(
        self,
        fast_path: ProduceFastPath,
        context: ConnectionContext,
        template: ProduceTemplate,
        correlation_id: int,
        appended: Appended,
        end_offset: int,
    ) -> None:
        super().__init__()
        self._fast_path = fast_path
        self._context = context
        self._template = template
        self._correlation_id = correlation_id
        self._appended = appended
        self._end_offset = end_offset

    def ready(self, progressed: Watched) -> bool:
        return self._template.partition.replicated(self._end_offset) is not None

    def complete(self, *, expired: bool) -> bytes:
        template = self._template
        code = template.partition.replicated(self._end_offset)
        if code is ErrorCode.NONE:
            base_offset, log_append_time_ms, _ = self._appended
            return template.answer(self._correlation_id, base_offset, log_append_time_ms)
        late = ErrorCode.REQUEST_TIMED_OUT if code is None else code
        produced = PartitionProduced(template.partition.index, late)
        return self._fast_path.refuse(self._context, template, self._correlation_id, produced)


def _collect_run(
    buffer: memoryview,
    start: int,
    end: int,
    version: int,
    key: bytes,
    template_end: int,
    correlation_ids: list[int],
    views: list[memoryview],
) -> int:
    """Add what frames of one template have of their own to the lists; return where the next frame starts."""
    template_start = 4 + TEMPLATE_START
    tail_size = len(NO_TAGS) if version >= FIRST_FLEXIBLE else 0
    tail = NO_TAGS[:tail_size]
    last_size = records_start = records_end = 0
    head = key
    while end - start >= FRAME_PREFIX.size and len(views) < RUN_FRAMES_MAX:
        size, api_key, frame_version, correlation_id = FRAME_PREFIX.unpack_from(buffer, start)
        stop = start + 4 + size
        if stop > end or api_key != PRODUCE or frame_version != version:
            break
        if size == last_size and buffer[start + template_start : start + records_start] == head:
            # As long as the one before: its records are at the same place.
            if buffer[stop - tail_size : stop] != tail:
                break
            views.append(buffer[start + records_start : start + records_end])
        else:
            if start + template_end >= stop or buffer[start + template_start : start + template_end] != key:
                break
            try:
                records = records_of(buffer, start + template_end, stop, version)
            except DECODING_ERRORS:
                break
            if records is None or len(records) < HEADER_SIZE or records[PRODUCER_ID_POSITION] < 0x80:
                break  # a producer with an id: each of its batches is checked against the one before
            views.append(records)
            last_size = size
            records_end = 4 + size - tail_size
            records_start = records_end - len(records)
            head = bytes(buffer[start + template_start : start + records_start])
        correlation_ids.append(correlation_id)
        start = stop
    return start
