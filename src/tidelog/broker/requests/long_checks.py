"""Produced batches whose check takes long are checked in a thread, and their connections wait meanwhile.

A kilobyte may unpack to a hundred megabytes, and where a topic's rules want every record looked at that takes
the time of thousands of requests. So a Produce request with such a batch is held (`HELD`): the frame stays in
its connection, from which nothing more is read, as Kafka does with every request. Copies of its long batches
are checked in a thread; then the frame is offered again, finds what was found, and is served as any other,
all of its batches in one turn. Order within a connection and a partition is what it was.

Memory and time are bounded: copies of `COPIES_BYTES_MAX` at most are waiting or under way (a larger one is
alone), one of more than `GIANT_RECORDS` records is checked at a time, and others beside it. A thread that
walks records stands back now and then, so that the event loop does not have to wait for the interpreter.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.replicas.replicas import Replicas
from tidelog.broker.requests.checked_batches import Checked, Found, Place
from tidelog.broker.requests.connection_context import ConnectionContext
from tidelog.broker.runtime.background import Background
from tidelog.protocol.produce import ProduceRequest
from tidelog.records.batch import read_header
from tidelog.records.validation import ProduceRules, check_produced, may_take_long, takes_long

COPIES_BYTES_MAX = 64 << 20
GIANT_RECORDS = 100_000
#: how long a thread that walks records stands back after every few of them
STAND_BACK_SECONDS = 0.0002

MayWrite = Callable[[str | UUID], bool]


class _Batch(NamedTuple):
    place: Place
    #: None if its check is quick
    rules: ProduceRules | None
    copy: bytearray = bytearray()


class LongChecks:
    """The checks of one broker; on its event loop, but for the work itself."""

    def __init__(self, metadata: Metadata, replicas: Replicas, background: Background) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._background = background
        self._copies_bytes = 0
        self._giant = False
        self._waiting: deque[Callable[[], None]] = deque()

    def __repr__(self) -> str:
        return f"<LongChecks copies={self._copies_bytes} bytes waiting={len(self._waiting)}>"

    def begin(
        self, context: ConnectionContext, request: ProduceRequest, now_ms: int, may_write: MayWrite
    ) -> bool:
        """Check the long batches of a request; False if the frame has to be offered again, when told so.

        Otherwise `context.checked` has what was found of them, or None if there are none.
        """
        if context.checked is not None or not self._any_may_take_long(request, now_ms):
            return True
        batches = self._batches(request, now_ms, may_write)
        long = [(batch, records) for batch, records in batches if batch.rules is not None]
        if not long:
            return True
        size_bytes = sum(len(records) for _, records in long)
        giant = any(read_header(records).records_count > GIANT_RECORDS for _, records in long)
        if (self._copies_bytes and self._copies_bytes + size_bytes > COPIES_BYTES_MAX) or (
            giant and self._giant
        ):
            context.wait_for = self._waiting.append
            return False
        # The frame may be moved while it waits, and belongs to the connection, which may go.
        copies = [
            batch if batch.rules is None else batch._replace(copy=bytearray(records))
            for batch, records in batches
        ]
        self._copies_bytes += size_bytes
        self._giant = self._giant or giant
        waiter = _Waiter()

        def done(outcome: Checked | BaseException) -> None:
            self._copies_bytes -= size_bytes
            self._giant = self._giant and not giant
            if isinstance(outcome, BaseException):
                raise outcome
            context.checked = outcome
            waiter.tell()
            waiting, self._waiting = self._waiting, deque()
            for call in waiting:
                call()

        self._background.run(lambda: _check(copies, now_ms), done)
        if context.checked is not None:
            return True
        context.wait_for = waiter.when_told
        return False

    def _any_may_take_long(self, request: ProduceRequest, now_ms: int) -> bool:
        """A first look, which every request with several batches gets: nothing is made in it."""
        partitions = self._replicas.led
        names_by_id = self._metadata.image.topic_names_by_id
        for topic, batches in request.topics:
            name = topic if isinstance(topic, str) else names_by_id.get(topic)
            for index, records in batches:
                partition = partitions.get((name, index))  # type: ignore[arg-type]
                if (
                    partition is not None
                    and records is not None
                    and may_take_long(records, partition.rules, now_ms)
                ):
                    return True
        return False

    def _batches(
        self, request: ProduceRequest, now_ms: int, may_write: MayWrite
    ) -> "list[tuple[_Batch, memoryview]]":
        """Every batch there is, in order; those whose check takes long with the rules they go by."""
        found: list[tuple[_Batch, memoryview]] = []
        for topic, partitions in request.topics:
            allowed = None
            for index, records in partitions:
                if records is None:
                    continue
                rules = None
                partition = self._replicas.find(topic, index)[0]
                if partition is not None and may_take_long(records, partition.rules, now_ms):
                    if allowed is None:
                        allowed = may_write(topic)
                    if allowed and takes_long(records, partition.rules):
                        rules = partition.rules
                found.append((_Batch((topic, index), rules), records))
        return found


class _Waiter:
    """Calls one back when told, whichever comes first."""

    def __init__(self) -> None:
        self._told = False
        self._call: Callable[[], None] | None = None

    def tell(self) -> None:
        self._told = True
        if self._call is not None:
            self._call()

    def when_told(self, call: Callable[[], None]) -> None:
        self._call = call
        if self._told:
            call()


def _check(batches: list[_Batch], now_ms: int) -> Checked:
    """In a thread: what is to be said of each long batch."""
    found: Checked = {}
    for place, rules, copy in batches:
        of_place = found.setdefault(place, [])
        if rules is None:
            of_place.append(None)
        else:
            view = memoryview(copy)
            header = read_header(view)
            checked = check_produced(view, rules, now_ms, pause=_stand_back)
            of_place.append(Found(header, rules, checked))
    return found


def _stand_back() -> None:
    time.sleep(STAND_BACK_SECONDS)
