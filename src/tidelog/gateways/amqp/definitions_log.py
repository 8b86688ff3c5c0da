"""The topic of definitions: made if it is not there, followed from its start, and waited for.

The gateway reads it as its own user; who declares something writes it as himself, so that the ACL on this
topic (Write) says who may declare.
"""

import asyncio
import logging
import time

from tidelog.client.faults import ClientFault, Refusal
from tidelog.gateways.amqp.definitions import Definitions
from tidelog.gateways.amqp.kafka_access import KafkaAccess, fetch
from tidelog.gateways.amqp.kafka_link import KafkaLink
from tidelog.gateways.amqp.record_writer import RecordWriter, let_go
from tidelog.model.errors import ErrorCode
from tidelog.records.batch import iterate_headers
from tidelog.records.record import Record, iterate_records

log = logging.getLogger(__name__)

_WAIT_MS = 1_000
_RETRY_SECONDS = 0.5
#: what was written is read back within this time
_BEHIND_SECONDS_MAX = 10.0
_CONFIGS = {"cleanup.policy": "compact"}
_EARLIEST = -2
#: a topic that is not known for so long is not there
_LOOK_MS = 300


class DefinitionsLog:
    """Keeps `definitions` as the topic has them."""

    def __init__(self, access: KafkaAccess, topic: str, definitions: Definitions) -> None:
        self.topic = topic
        self.definitions = definitions
        self._access = access
        self._link: KafkaLink | None = None
        self._position = 0
        self._moved = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<DefinitionsLog {self.topic} at {self._position}>"

    async def start(self) -> None:
        """Read what is there; then follow."""
        try:
            await self._access.persist(lambda: self._access.topic(self.topic), timeout_ms=_LOOK_MS)
        except Refusal as fault:
            if fault.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            await self._access.create_topic(self.topic, 1, _CONFIGS)
        access = self._access
        self._position = await access.persist(lambda: access.list_offset(self.topic, 0, _EARLIEST))
        end = await access.persist(lambda: access.list_offset(self.topic, 0))
        self._task = asyncio.get_running_loop().create_task(self._follow())
        await self._reach(end)

    async def stop(self) -> None:
        await let_go(self._task)
        if self._link is not None:
            self._link.close()

    async def define(self, writer: RecordWriter, key: bytes, value: bytes | None) -> None:
        """Write a definition as the user of `writer`, and wait until it is in force here."""
        record = Record(0, int(time.time() * 1000), key, value)
        await self._reach(await writer.written(self.topic, record) + 1)

    async def _reach(self, offset: int) -> None:
        async with asyncio.timeout(_BEHIND_SECONDS_MAX):
            while self._position < offset:
                await self._moved.wait()

    async def _follow(self) -> None:
        while True:
            try:
                await self._fetch()
            except ClientFault as fault:
                log.info("the topic %s cannot be read now: %s", self.topic, fault)
                self._access.forget_places()
                if self._link is not None:
                    self._link.close()
                await asyncio.sleep(_RETRY_SECONDS)

    async def _fetch(self) -> None:
        if self._link is None or self._link.closed:
            leader = await self._access.leader_of(self.topic, 0)
            self._link = await self._access.own_link(leader)
        link = self._link
        found = await fetch(link, self.topic, 0, self._position, wait_ms=_WAIT_MS)
        if found.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._position = await self._access.list_offset(self.topic, 0, _EARLIEST)
            return
        if found.error:
            raise Refusal(found.error, f"reading {self.topic}")
        self._take_in(found.records)

    def _take_in(self, records: memoryview) -> None:
        now_ms = int(time.monotonic() * 1000)
        for position, header in iterate_headers(records):
            if not header.control:
                for record in iterate_records(records[position : position + header.size_bytes], header):
                    if record.offset >= self._position:
                        self.definitions.apply(record.key, record.value, now_ms)
            self._position = max(self._position, header.next_offset)
        self._moved.set()
        self._moved = asyncio.Event()
