"""Writes records to topics with acks=all, many at a time, and says of each when it is on all replicas.

    writer.write("orders", record, done)     # `done(fault)` is called once: None when it is written

A partition has one batch under way; what comes meanwhile goes with the next, so batches are as large as the
broker is slow, and their order is that of `write`. They carry the sequence numbers of an idempotent producer,
one for each partition: a batch whose answer was lost is sent again and written once. After a failure that
cannot pass, or `DELIVERY_SECONDS`, the records of the batch are given up and told so.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from tidelog.client.api_keys import INIT_PRODUCER_ID, PRODUCE
from tidelog.client.faults import MOVED, RETRIABLE, ClientFault, LinkFault, Refusal, known_code
from tidelog.client.key_hash import murmur2
from tidelog.client.produce_requests import (
    VERSION_MAX,
    VERSION_MIN,
    BatchToSend,
    decode_response,
    encode_request,
)
from tidelog.gateways.amqp.kafka_access import KafkaAccess
from tidelog.model.errors import ErrorCode
from tidelog.protocol.primitives import MalformedRequest
from tidelog.records.builder import build_batch
from tidelog.records.record import Record

log = logging.getLogger(__name__)

BATCH_BYTES_MAX = 128 << 10
BATCH_RECORDS_MAX = 2_000
DELIVERY_SECONDS = 60.0
_RECORD_OVERHEAD_BYTES = 64
_SEQUENCES = 1 << 31
_LOST_PRODUCER = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)

Done = Callable[["ClientFault | int"], None]
"""Told the offset of the record, or what went wrong."""


class _Waiting(NamedTuple):
    record: Record
    size_bytes: int
    done: Done


class _Lane:
    """What waits to be written to one partition."""

    __slots__ = ("epoch", "producer_id", "sequence", "task", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[_Waiting] = deque()
        self.task: asyncio.Task[None] | None = None
        self.producer_id = -1
        self.epoch = -1
        self.sequence = 0


class RecordWriter:
    """Writes as one user."""

    def __init__(self, access: KafkaAccess) -> None:
        self._access = access
        self._lanes: dict[tuple[str, int], _Lane] = {}
        self._turns: dict[str, int] = {}
        self.unconfirmed_bytes = 0

    def __repr__(self) -> str:
        return f"<RecordWriter {self._access!r} unconfirmed={self.unconfirmed_bytes}B>"

    def write(self, topic: str, record: Record, done: Done) -> None:
        """Queue a record. `done` is called later, never from in here."""
        known = self._access.known_topic(topic)
        count = 1 if known is None else len(known.leaders)
        partition = 0
        if count > 1 and record.key is not None:
            partition = (murmur2(record.key) & 0x7FFFFFFF) % count
        elif count > 1:
            partition = self._turns.get(topic, 0) % count
        lane = self._lanes.get((topic, partition))
        if lane is None:
            lane = self._lanes[topic, partition] = _Lane()
        size = len(record.value or b"") + len(record.key or b"") + _RECORD_OVERHEAD_BYTES
        size += sum(len(name) + len(value or b"") for name, value in record.headers)
        lane.waiting.append(_Waiting(record, size, done))
        self.unconfirmed_bytes += size
        if lane.task is None:
            lane.task = asyncio.get_running_loop().create_task(self._run(topic, partition, lane))

    async def written(self, topic: str, record: Record) -> int:
        """Write one record and wait; its offset, or raises."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def done(result: ClientFault | int) -> None:
            if future.done():
                return
            if isinstance(result, ClientFault):
                future.set_exception(result)
            else:
                future.set_result(result)

        self.write(topic, record, done)
        return await future

    def forget_topic(self, topic: str) -> None:
        """A topic is gone; one of its name that comes later begins anew."""
        for place in [place for place, lane in self._lanes.items() if place[0] == topic and not lane.task]:
            del self._lanes[place]

    def close(self) -> None:
        for lane in self._lanes.values():
            if lane.task is not None:
                lane.task.cancel()

    async def _run(self, topic: str, partition: int, lane: _Lane) -> None:
        """Write what waits, batch after batch, until nothing does."""
        taken: list[_Waiting] = []
        result: ClientFault | int = LinkFault("the gateway stops")
        try:
            while lane.waiting:
                self._turns[topic] = partition + 1
                taken = self._take(lane)
                try:
                    result = await self._deliver(topic, partition, lane, [row.record for row in taken])
                except ClientFault as fault:
                    lane.producer_id = -1
                    result = fault
                self._tell(taken, result)
                taken = []
        finally:
            lane.task = None
            if taken:
                self._tell(taken, LinkFault("the gateway stops"))

    def _take(self, lane: _Lane) -> list[_Waiting]:
        taken = [lane.waiting.popleft()]
        size = taken[0].size_bytes
        while lane.waiting and len(taken) < BATCH_RECORDS_MAX:
            size += lane.waiting[0].size_bytes
            if size > BATCH_BYTES_MAX:
                break
            taken.append(lane.waiting.popleft())
        return taken

    def _tell(self, taken: list[_Waiting], result: "ClientFault | int") -> None:
        for index, row in enumerate(taken):
            self.unconfirmed_bytes -= row.size_bytes
            row.done(result if isinstance(result, ClientFault) else result + index)

    async def _deliver(self, topic: str, partition: int, lane: _Lane, records: list[Record]) -> int:
        """Write one batch; the offset of its first record."""
        deadline = time.monotonic() + DELIVERY_SECONDS
        backoff_ms = self._access.settings.retry_backoff_ms
        data: bytes | None = None
        while True:
            try:
                if lane.producer_id < 0:
                    await self._begin(lane)
                    data = None
                if data is None:
                    data = build_batch(
                        records,
                        producer_id=lane.producer_id,
                        producer_epoch=lane.epoch,
                        base_sequence=lane.sequence,
                    )
                offset = await self._produce(topic, partition, data)
                lane.sequence = (lane.sequence + len(records)) % _SEQUENCES
                return offset
            except (LinkFault, Refusal) as fault:
                code = fault.code if isinstance(fault, Refusal) else None
                if code in _LOST_PRODUCER:
                    lane.producer_id = -1
                elif code is not None and code not in RETRIABLE:
                    raise
                if time.monotonic() > deadline:
                    raise
                if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    deadline = min(deadline, time.monotonic() + 3.0)
                if code is None or code in MOVED:
                    self._access.forget_places()
            await asyncio.sleep(backoff_ms / 1000)
            backoff_ms = min(2 * backoff_ms, self._access.settings.retry_backoff_max_ms)

    async def _begin(self, lane: _Lane) -> None:
        fields = {"transactional_id": None, "producer_id": -1, "producer_epoch": -1}
        link = await self._access.any_link()
        answer = await link.request(INIT_PRODUCER_ID, fields, highest=4)
        if answer.error_code:
            raise Refusal(answer.error_code, "asking for a producer id")
        lane.producer_id, lane.epoch, lane.sequence = answer.producer_id, answer.producer_epoch, 0

    async def _produce(self, topic: str, partition: int, data: bytes) -> int:
        link = await self._access.link_to(await self._access.leader_of(topic, partition))
        version = link.version_of(PRODUCE, VERSION_MIN, VERSION_MAX)
        timeout_ms = self._access.settings.request_timeout_ms
        request = encode_request([BatchToSend(topic, partition, data)], None, timeout_ms)
        body = await link.answer(link.send(PRODUCE, version, request), timeout_ms)
        try:
            [answer] = decode_response(version, body)
        except (MalformedRequest, ValueError) as fault:
            link.close("its answer to Produce could not be read")
            raise LinkFault(f"the answer to Produce cannot be read: {fault}") from fault
        code = known_code(answer.error)
        if code not in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            raise Refusal(code, f"writing to {topic}-{partition}", answer.message)
        return answer.base_offset


async def let_go(task: "asyncio.Task[None] | None") -> None:
    """Cancel a task and wait until it is over."""
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, ClientFault):
            await task
