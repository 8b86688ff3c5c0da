"""Changes of sessions, each with the records that belong to it, in transactions: all of it or nothing.

One transaction runs at a time, in a thread; what is asked for meanwhile goes into the next. A session is
written as it is when its transaction is made up. The transactional id is the gateway's name: who starts again
under it, or takes its sessions over, fences what this gateway still has under way, and this one must end
(`Fenced`): nothing of it can be written behind the other's back.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Producer

from tidelog.gateways.mqtt.feed import place
from tidelog.gateways.mqtt.messages import Outgoing
from tidelog.gateways.mqtt.session import Session

if TYPE_CHECKING:
    from confluent_kafka import Message as Record

log = logging.getLogger(__name__)

UNITS_MAX = 1_000
TRANSACTION_TIMEOUT_MS = 30_000
START_SECONDS_MAX = 30.0
STEP_SECONDS_MAX = 20.0
RETRY_SECONDS = 0.2
_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)

#: None, or why the records were refused
Done = Callable[[KafkaError | None], None]
Snapshot = Callable[[Session], bytes | None]


class Fenced(Exception):
    """Another gateway took over under our name."""


@dataclass(slots=True)
class Unit:
    """What is written together."""

    session: Session | None
    records: Sequence[Outgoing] = ()
    #: the change of the session; made when the transaction is made up
    apply: Callable[[], None] | None = None
    done: list[Done] = field(default_factory=list)


class Commits:
    """The transactional producer of a gateway."""

    def __init__(
        self,
        properties: Mapping[str, Any],
        name: str,
        sessions_topic: str,
        snapshot: Snapshot,
        ends: dict[tuple[str, int], int],
        on_fenced: Callable[[], None],
    ) -> None:
        self._topic = sessions_topic
        self._snapshot = snapshot
        #: behind what was written, for who subscribes now
        self._acknowledged = ends
        self._on_fenced = on_fenced
        self._producer = Producer(
            {
                "linger.ms": 0,
                "partitioner": "murmur2_random",
                **properties,
                "transactional.id": transactional_id(name),
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            }
        )
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="mqtt-commits")
        self._units: list[Unit] = []
        #: sessions to be written without a record, by client
        self._saves: dict[str, Unit] = {}
        self._running: asyncio.Future[None] | None = None
        self._fenced = False
        self.transactions = 0

    def __repr__(self) -> str:
        return f"<Commits waiting={len(self._units) + len(self._saves)} transactions={self.transactions}>"

    def start(self) -> None:
        """Fence whoever had the name before; blocking. Raises KafkaException."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                self._producer.init_transactions(START_SECONDS_MAX)
                return
            except KafkaException as fault:
                if not fault.args[0].retriable() or time.monotonic() > deadline:
                    raise

    @property
    def waiting(self) -> int:
        return len(self._units) + len(self._saves)

    def submit(
        self,
        session: Session | None,
        records: Sequence[Outgoing],
        done: Done,
        apply: Callable[[], None] | None = None,
    ) -> None:
        """Write records and the session with its change, in the order of the calls."""
        self._units.append(Unit(session, records, apply, [done]))
        self._begin()

    def save(self, session: Session, done: Done | None = None) -> None:
        """Write the session."""
        unit = self._saves.get(session.client_id)
        if unit is None or unit.session is not session:
            unit = self._saves[session.client_id] = Unit(session, done=unit.done if unit else [])
        if done is not None:
            unit.done.append(done)
        self._begin()

    async def drain(self) -> None:
        """Until everything asked for is written."""
        while self._running is not None and not self._fenced:
            await asyncio.wait([self._running])

    def _begin(self) -> None:
        if self._running is None and not self._fenced:
            self._running = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0)  # what the same turn asks for goes along
        while (self._units or self._saves) and not self._fenced:
            units = [*self._units[:UNITS_MAX], *self._saves.values()]
            del self._units[:UNITS_MAX]
            self._saves = {}
            for unit in units:
                if unit.apply is not None:
                    unit.apply()
            await self._write(loop, units)
        self._running = None

    async def _write(self, loop: asyncio.AbstractEventLoop, units: list[Unit]) -> None:
        """Write until it is written, without what the cluster refuses for good."""
        while units:
            records: list[tuple[int, Outgoing]] = []
            sessions: dict[str, Session] = {}
            for index, unit in enumerate(units):
                records += [(index, record) for record in unit.records]
                if unit.session is not None:
                    sessions[unit.session.client_id] = unit.session
            for place_of, (client_id, session) in enumerate(sessions.items(), len(units)):
                value = self._snapshot(session)
                records.append((place_of, Outgoing(self._topic, client_id.encode(), value, [])))
            try:
                refused = await loop.run_in_executor(self._executor, partial(self._commit, records))
            except Fenced:
                self._fenced = True
                self._on_fenced()
                return
            if refused is None:
                self.transactions += 1
                for unit in units:
                    for done in unit.done:
                        done(None)
                return
            by_session = {
                client_id: refused[len(units) + index]
                for index, client_id in enumerate(sessions)
                if len(units) + index in refused
            }
            units = self._refuse(units, refused, by_session)
            await asyncio.sleep(RETRY_SECONDS if not refused else 0)

    def _refuse(
        self, units: list[Unit], refused: dict[int, KafkaError], by_session: dict[str, KafkaError]
    ) -> list[Unit]:
        """Tell of the units that the cluster does not take; those that are left."""
        left: list[Unit] = []
        for index, unit in enumerate(units):
            error = refused.get(index)
            if error is None and unit.session is not None:
                # A session that cannot be written takes what belongs to it along.
                error = by_session.get(unit.session.client_id)
                if error is not None:
                    log.error("the session of %s cannot be written: %s", unit.session.client_id, error.str())
            if error is None:
                left.append(unit)
                continue
            for done in unit.done:
                done(error)
        return left

    # In the thread

    def _commit(self, records: list[tuple[int, Outgoing]]) -> dict[int, KafkaError] | None:
        """None when all is written; else what was refused, and nothing is written."""
        refused: dict[int, KafkaError] = {}

        written: dict[tuple[str, int], int] = {}

        def report(index: int, error: KafkaError | None, record: "Record") -> None:
            if error is None:
                partition, offset = place(record)
                written[partition] = offset + 1
            elif error is None:
                return
            elif error is not None and error.code() not in _PURGED and not error.retriable():
                refused[index] = error

        producer = self._producer
        try:
            producer.begin_transaction()
            for index, record in records:
                try:
                    producer.produce(
                        record.topic,
                        record.value,
                        record.key,
                        headers=record.headers,
                        on_delivery=partial(report, index),
                    )
                except KafkaException as fault:  # too large for the client's own limit
                    refused[index] = fault.args[0]
            producer.flush(STEP_SECONDS_MAX)
            if not refused:
                self._repeat(producer.commit_transaction)
                self._acknowledged.update(written)
                return None
        except KafkaException as fault:
            self._look(fault.args[0])
            log.warning("a transaction is written again: %s", fault.args[0].str())
        except BufferError:
            log.warning("a transaction is written again: the queue is full")
        self._abort()
        return refused

    def _repeat(self, step: Callable[[float], None]) -> None:
        """A step that may be tried again until it is known how it ended."""
        while True:
            try:
                step(STEP_SECONDS_MAX)
                return
            except KafkaException as fault:
                error = fault.args[0]
                if not error.retriable():
                    raise
                time.sleep(RETRY_SECONDS)

    def _abort(self) -> None:
        try:
            self._repeat(self._producer.abort_transaction)
        except KafkaException as fault:
            self._look(fault.args[0])
            log.warning("a transaction could not be aborted: %s", fault.args[0].str())

    def _look(self, error: KafkaError) -> None:
        if error.fatal() or error.code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH):
            log.error("the transactions of this gateway were taken over: %s", error.str())
            raise Fenced(error.str())

    def close(self) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)


def transactional_id(name: str) -> str:
    return f"tidelog-mqtt-{name}"


def fence(properties: Mapping[str, Any], name: str) -> None:
    """End what a gateway of this name still has under way; blocking. Raises KafkaException."""
    producer = Producer({**properties, "transactional.id": transactional_id(name)})
    producer.init_transactions(START_SECONDS_MAX)
