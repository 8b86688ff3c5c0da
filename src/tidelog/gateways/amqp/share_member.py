"""A member of a share group that reads one topic: joins, fetches, acknowledges, renews locks, leaves.

    member = ShareMember(access, "amqp.orders", "orders", reader)
    await member.join()              # raises what the cluster refuses
    member.wake()                    # there is room for more records

The reader is asked how many records it has room for (`room`), and gets what was acquired (`acquired`): never
more than that many, for the acquire mode is the record limit (KIP-1206). Each broker that leads partitions
has a share session on a link of its own, since a ShareFetch that waits keeps later answers back. When a
session is lost its records are others' (`lost`).

Acknowledgements are gathered for a few milliseconds and go in a ShareAcknowledge, also while a ShareFetch
waits: Tidelog serves them at once, Kafka when the fetch is over. Locks are renewed after a third of their
time (KIP-1222), for as long as the reader holds the records: AMQP knows no time within which a message must
be acknowledged.
"""

import asyncio
import base64
import contextlib
import logging
import time
import uuid
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from tidelog.client.api_keys import SHARE_ACKNOWLEDGE, SHARE_FETCH, SHARE_GROUP_HEARTBEAT
from tidelog.client.faults import ClientFault, LinkFault, Refusal, UnsupportedVersion, known_code
from tidelog.client.requests import encode_request
from tidelog.gateways.amqp.kafka_access import KafkaAccess
from tidelog.gateways.amqp.kafka_link import KafkaLink
from tidelog.gateways.amqp.record_writer import let_go
from tidelog.model.errors import ErrorCode
from tidelog.records.batch import iterate_headers
from tidelog.records.record import CorruptRecord, Record, iterate_records

log = logging.getLogger(__name__)

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
#: version 2 has renewals and exact limits; both are in Kafka 4.2
SHARE_VERSION = 2
_RECORD_LIMIT = 1
_JOINING, _LEAVING = 0, -1
_SESSION_OPENS, _SESSION_CLOSES, _EPOCH_MAX = 0, -1, 2**31 - 1
#: while the group has not given the member its partitions it is asked so often
_ASSIGNMENT_SECONDS = 0.05
_ASSIGNMENT_PATIENCE_SECONDS = 10.0
_HEARTBEAT_SECONDS_MAX = 15.0
_RETRY_SECONDS = 0.5
#: acknowledgements of so long go together
_GATHER_SECONDS = 0.004
#: a waiting fetch does not hold up acknowledgements on brokers that serve a connection in order
WAIT_MS_WITH_RECORDS_OUT, WAIT_MS_IDLE = 250, 500
FETCH_BYTES_MAX = 4 << 20
FETCH_RECORDS_MAX = 2_000
_REJOIN = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})


class Acquired(NamedTuple):
    """A record that is locked for this member."""

    partition: int
    record: Record
    delivery_count: int


class Reader(Protocol):
    """Whoever reads the records."""

    def room(self) -> int:
        """How many records it has room for."""

    def acquired(self, records: list[Acquired]) -> None:
        """These are locked for it now."""

    def lost(self, partitions: Iterable[int]) -> None:
        """What it holds of these partitions is others' by now."""

    def wait_ms(self) -> int | None:
        """How long a fetch may wait when that is not for the member to say."""


class _Session:
    """A share session with one broker."""

    def __init__(self, member: "ShareMember", broker_id: int) -> None:
        self.member = member
        self.broker_id = broker_id
        self.link: KafkaLink | None = None
        self.epoch = _SESSION_OPENS
        self.partitions: set[int] = set()
        self.held: set[int] = set()
        self.acknowledgements: dict[int, dict[int, int]] = {}
        self.flush_due: asyncio.TimerHandle | None = None
        self.woken = asyncio.Event()
        self.out: dict[int, set[int]] = {}
        self.renewed_at = time.monotonic()
        self.task: asyncio.Task[None] | None = None
        self.answers: set[asyncio.Task[None]] = set()

    def next_epoch(self) -> int:
        epoch = self.epoch
        self.epoch = 1 if epoch == _EPOCH_MAX else epoch + 1
        return epoch

    def acknowledge(self, partition: int, offset: int, kind: int) -> None:
        out = self.out.get(partition)
        if out is None or offset not in out:
            return  # the session in which it was acquired is over
        out.discard(offset)
        self.acknowledgements.setdefault(partition, {})[offset] = kind
        self.flush_soon()

    def flush_soon(self) -> None:
        if self.flush_due is None:
            self.flush_due = asyncio.get_running_loop().call_later(_GATHER_SECONDS, self.flush)

    def flush(self) -> None:
        """Send what is acknowledged."""
        if self.flush_due is not None:
            self.flush_due.cancel()
            self.flush_due = None
        if not self.acknowledgements or self.link is None or self.link.closed or self.epoch == _SESSION_OPENS:
            return
        with contextlib.suppress(LinkFault):
            self._send_acknowledge(self._take(), renew=False)

    def _take(self) -> dict[int, dict[int, int]]:
        taken, self.acknowledgements = self.acknowledgements, {}
        return taken

    def _rows(self, acknowledged: dict[int, dict[int, int]], partitions: Iterable[int]) -> list[Any]:
        rows = [
            {"partition_index": index, "acknowledgement_batches": ranges(acknowledged.get(index, {}))}
            for index in sorted({*acknowledged, *partitions})
        ]
        return [{"topic_id": self.member.topic_id, "partitions": rows}] if rows else []

    def _send_acknowledge(self, acknowledged: dict[int, dict[int, int]], *, renew: bool) -> None:
        assert self.link is not None
        fields = {
            "group_id": self.member.group_id,
            "member_id": self.member.member_id,
            "share_session_epoch": self.next_epoch(),
            "is_renew_ack": renew,
            "topics": self._rows(acknowledged, ()),
        }
        body = encode_request(SHARE_ACKNOWLEDGE, SHARE_VERSION, fields)
        future = self.link.send(SHARE_ACKNOWLEDGE, SHARE_VERSION, body)
        task = asyncio.get_running_loop().create_task(self._acknowledged(self.link, future))
        self.answers.add(task)
        task.add_done_callback(self.answers.discard)

    async def _acknowledged(self, link: KafkaLink, future: "asyncio.Future[memoryview]") -> None:
        with contextlib.suppress(LinkFault):
            answer = link.decoded(SHARE_ACKNOWLEDGE, SHARE_VERSION, await link.answer(future))
            if answer.error_code:
                link.close(f"ShareAcknowledge: {known_code(answer.error_code).name}")
            for topic in answer.responses:
                for row in topic.partitions:
                    if row.error_code:
                        self.member.refused_acknowledgement(row.partition_index, row.error_code)

    async def run(self) -> None:
        """Fetch for as long as the broker leads partitions of the member."""
        while True:
            try:
                await self._serve()
            except UnsupportedVersion:
                raise
            except (LinkFault, Refusal) as fault:
                log.info("share session of %s with broker %d: %s", self.member, self.broker_id, fault)
                self._over(str(fault))
                self.member.places_changed()
                await asyncio.sleep(_RETRY_SECONDS)

    def _over(self, reason: str) -> None:
        if self.link is not None:
            self.link.close(reason)
            self.link = None
        self.epoch = _SESSION_OPENS
        self.held = set()
        self.acknowledgements = {}
        lost = [partition for partition, offsets in self.out.items() if offsets]
        self.out = {}
        if lost:
            self.member.reader.lost(lost)

    async def _serve(self) -> None:
        member = self.member
        while True:
            if self.link is None or self.link.closed:
                self._over("the link was lost")
                self.link = await member.access.own_link(self.broker_id)
                self.link.version_of(SHARE_FETCH, SHARE_VERSION, SHARE_VERSION)
                self.link.on_closed = self.woken.set
            self.woken.clear()
            room = min(member.reader.room(), FETCH_RECORDS_MAX)
            self._renew_locks()
            if room > 0 and self.partitions:
                await self._fetch(room)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(member.renewal_seconds):
                    await self.woken.wait()

    def _renew_locks(self) -> None:
        now = time.monotonic()
        if now - self.renewed_at < self.member.renewal_seconds or self.epoch == _SESSION_OPENS:
            return
        self.renewed_at = now
        held = {index: dict.fromkeys(offsets, RENEW) for index, offsets in self.out.items() if offsets}
        if held:
            self._send_acknowledge(held, renew=True)

    async def _fetch(self, room: int) -> None:
        member, link = self.member, self.link
        assert link is not None
        opens = self.epoch == _SESSION_OPENS
        self.flush()
        added = self.partitions - self.held
        forgotten = sorted(self.held - self.partitions)
        wait_ms = member.reader.wait_ms()
        if wait_ms is None:
            wait_ms = WAIT_MS_WITH_RECORDS_OUT if any(self.out.values()) else WAIT_MS_IDLE
        fields = {
            "group_id": member.group_id,
            "member_id": member.member_id,
            "share_session_epoch": self.next_epoch(),
            "max_wait": 0 if opens else wait_ms,
            "min_bytes": 1,
            "max_bytes": FETCH_BYTES_MAX,
            "max_records": room,
            "batch_size": room,
            "share_acquire_mode": _RECORD_LIMIT,
            "topics": self._rows({}, added),
            "forgotten_topics_data": [{"topic_id": member.topic_id, "partitions": forgotten}]
            if forgotten
            else [],
        }
        self.held = set(self.partitions)
        body = encode_request(SHARE_FETCH, SHARE_VERSION, fields)
        future = link.send(SHARE_FETCH, SHARE_VERSION, body)
        answer = link.decoded(SHARE_FETCH, SHARE_VERSION, await link.answer(future))
        if answer.error_code:
            raise Refusal(answer.error_code, f"fetching for share group {member.group_id!r}")
        self._take_in(answer)
        member.fetched(waited=not opens)

    def _take_in(self, answer: Any) -> None:
        member = self.member
        lock = answer.acquisition_lock_timeout.total_seconds()
        if lock > 0:
            member.renewal_seconds = lock / 3
        found: list[Acquired] = []
        moved = False
        for topic in answer.responses:
            for row in topic.partitions:
                if row.error_code:
                    code = known_code(row.error_code)
                    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                        member.failed(Refusal(code, f"reading topic {member.topic!r}"))
                    moved = True
                    continue
                if row.acknowledge_error_code:
                    member.refused_acknowledgement(row.partition_index, row.acknowledge_error_code)
                found += read_acquired(row)
        for each in found:
            self.out.setdefault(each.partition, set()).add(each.record.offset)
        if found:
            member.reader.acquired(found)
        if moved:
            member.places_changed()

    async def close(self) -> None:
        """End the session, with what is still to be acknowledged; the rest is released by that."""
        link = self.link
        if link is not None and not link.closed and self.epoch != _SESSION_OPENS:
            await self._close_session(link)
        self._over("closed")

    async def _close_session(self, link: KafkaLink) -> None:
        fields = {
            "group_id": self.member.group_id,
            "member_id": self.member.member_id,
            "share_session_epoch": _SESSION_CLOSES,
            "is_renew_ack": False,
            "topics": self._rows(self._take(), ()),
        }
        with contextlib.suppress(ClientFault):
            await link.request(
                SHARE_ACKNOWLEDGE, fields, lowest=SHARE_VERSION, highest=SHARE_VERSION, timeout_ms=5_000
            )


class ShareMember:
    """One member; made by whoever reads, ended by `leave`."""

    def __init__(self, access: KafkaAccess, group_id: str, topic: str, reader: Reader) -> None:
        self.access = access
        self.group_id = group_id
        self.topic = topic
        self.reader = reader
        self.member_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self.topic_id: uuid.UUID | None = None
        self.renewal_seconds = 10.0
        #: fetches that were answered, and those that waited for records
        self.fetches = 0
        self.waited_fetches = 0
        self.fault: ClientFault | None = None
        self._epoch = _JOINING
        self._interval_seconds = 5.0
        self._assigned: set[int] = set()
        self._sessions: dict[int, _Session] = {}
        self._places_changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.progress = asyncio.Event()

    def __repr__(self) -> str:
        return f"<ShareMember {self.group_id} of {self.topic} epoch={self._epoch}>"

    async def join(self) -> None:
        """Become a member and begin to fetch; raises what the cluster refuses."""
        self.access.forget_topic(self.topic)
        topic = await self.access.persist(lambda: self.access.topic(self.topic))
        self.topic_id = topic.topic_id
        await self.access.persist(self._heartbeat)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._keep_membership()), loop.create_task(self._keep_sessions())]

    async def leave(self) -> None:
        """Give everything back and leave the group."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            await let_go(task)
        for session in self._sessions.values():
            await let_go(session.task)
            await session.close()
        self._sessions.clear()
        if self._epoch != _JOINING:
            self._epoch = _LEAVING
            with contextlib.suppress(ClientFault):
                await self._heartbeat()

    def wake(self) -> None:
        for session in self._sessions.values():
            session.woken.set()

    def acknowledge(self, partition: int, offset: int, kind: int) -> None:
        """Say what became of a record; it is sent soon."""
        for session in self._sessions.values():
            session.acknowledge(partition, offset, kind)

    def flush(self) -> int:
        """Send what is acknowledged now; how many requests are not answered yet."""
        for session in self._sessions.values():
            session.flush()
        return sum(len(session.answers) for session in self._sessions.values())

    def fetched(self, *, waited: bool) -> None:
        self.fetches += 1
        self.waited_fetches += waited
        self.progress.set()
        self.progress = asyncio.Event()

    def refused_acknowledgement(self, partition: int, code: int) -> None:
        log.info("%s-%d: acknowledgement refused: %s", self.topic, partition, known_code(code).name)

    def failed(self, fault: ClientFault) -> None:
        self.fault = self.fault or fault
        self.progress.set()
        self.progress = asyncio.Event()

    def places_changed(self) -> None:
        """Who leads is looked up again."""
        self.access.forget_places()
        self._places_changed.set()

    # Membership

    async def _heartbeat(self) -> None:
        joins = self._epoch == _JOINING
        link = await self.access.coordinator(self.group_id)
        fields = {
            "group_id": self.group_id,
            "member_id": self.member_id,
            "member_epoch": self._epoch,
            "rack_id": None,
            "subscribed_topic_names": [self.topic] if joins else None,
        }
        answer = await link.request(SHARE_GROUP_HEARTBEAT, fields, lowest=1, highest=1)
        if answer.error_code:
            raise Refusal(answer.error_code, f"share group {self.group_id!r}", answer.error_message)
        if self._epoch == _LEAVING:
            return
        self._epoch = answer.member_epoch
        self._interval_seconds = min(answer.heartbeat_interval.total_seconds(), _HEARTBEAT_SECONDS_MAX)
        if answer.assignment is not None:
            self._assigned = {
                index
                for row in answer.assignment.topic_partitions
                if row.topic_id == self.topic_id
                for index in row.partitions
            }
            self._places_changed.set()

    async def _keep_membership(self) -> None:
        began = time.monotonic()
        while True:
            hasty = not self._assigned and time.monotonic() - began < _ASSIGNMENT_PATIENCE_SECONDS
            await asyncio.sleep(_ASSIGNMENT_SECONDS if hasty else self._interval_seconds)
            try:
                await self._heartbeat()
            except Refusal as fault:
                if fault.code in _REJOIN:
                    self._epoch = _JOINING
                    began = time.monotonic()
                elif not fault.retriable:
                    self.failed(fault)
                    return
                self.access.forget_places()
            except ClientFault:
                self.access.forget_places()

    async def _keep_sessions(self) -> None:
        """One session for each broker that leads partitions that are ours."""
        while True:
            await self._places_changed.wait()
            self._places_changed.clear()
            try:
                topic = await self.access.topic(self.topic)
            except ClientFault:
                await asyncio.sleep(_RETRY_SECONDS)
                self._places_changed.set()
                continue
            if topic.topic_id != self.topic_id:
                self.failed(Refusal(ErrorCode.UNKNOWN_TOPIC_ID, f"topic {self.topic!r} is another one now"))
                return
            by_leader: dict[int, set[int]] = {}
            for index in self._assigned:
                if index < len(topic.leaders) and topic.leaders[index] >= 0:
                    by_leader.setdefault(topic.leaders[index], set()).add(index)
            for broker_id in [*self._sessions]:
                if broker_id not in by_leader:
                    session = self._sessions.pop(broker_id)
                    await let_go(session.task)
                    await session.close()
            for broker_id, partitions in by_leader.items():
                found = self._sessions.get(broker_id)
                if found is None:
                    found = self._sessions[broker_id] = _Session(self, broker_id)
                    found.partitions = partitions
                    found.task = asyncio.get_running_loop().create_task(found.run())
                found.partitions = partitions
                found.woken.set()
            if sum(map(len, by_leader.values())) < len(self._assigned):
                await asyncio.sleep(_RETRY_SECONDS)
                self._places_changed.set()


def ranges(acknowledged: dict[int, int]) -> list[dict[str, Any]]:
    """Offsets and what is said of them as ranges of neighbours."""
    rows: list[dict[str, Any]] = []
    for offset, kind in sorted(acknowledged.items()):
        if rows and rows[-1]["last_offset"] == offset - 1 and rows[-1]["acknowledge_types"] == [kind]:
            rows[-1]["last_offset"] = offset
        else:
            rows.append({"first_offset": offset, "last_offset": offset, "acknowledge_types": [kind]})
    return rows


def read_acquired(row: Any) -> list[Acquired]:
    """The records of an answer that were acquired; the batches hold others as well."""
    data = row.records
    if not data or not row.acquired_records:
        return []
    view = memoryview(data)
    spans = [(each.first_offset, each.last_offset, each.delivery_count) for each in row.acquired_records]
    found: list[Acquired] = []
    for position, header in iterate_headers(view):
        wanted = [span for span in spans if span[0] <= header.last_offset and span[1] >= header.base_offset]
        if not wanted or header.control:
            continue
        try:
            for record in iterate_records(view[position : position + header.size_bytes], header):
                for first, last, count in wanted:
                    if first <= record.offset <= last:
                        found.append(Acquired(row.partition_index, record, count))
                        break
        except CorruptRecord as fault:
            log.warning("partition %d: a batch cannot be read: %s", row.partition_index, fault)
    return found
