"""A member of a share group that blocks: it acquires records, holds them, and says what became of them.

    with ShareMember(settings, "workers", ["jobs"]) as member:
        acquired = member.acquire(1_000, wait_ms=500)     # ranges of offsets, locked for this member
        refused = member.acknowledge(ACCEPT, acquired)    # those of which the broker does not hold it true

Only offsets come back: whoever wants the records reads them from the log. While ranges are held a thread
sends heartbeats and renews their locks (KIP-1222) after a third of their time, so a record may be worked on
for as long as it takes. What was held is lost when the session with the leader ends (a broken connection, a
new leader): others get it, and `acknowledge` returns it.

Any thread may call, one at a time gets in. Each broker that leads assigned partitions has a share session on
the cluster's link to it.
"""

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Collection, Iterable, Iterator
from types import TracebackType
from typing import NamedTuple

from tidelog.client.api_keys import SHARE_ACKNOWLEDGE, SHARE_FETCH, SHARE_GROUP_HEARTBEAT
from tidelog.client.client_settings import ClientSettings
from tidelog.client.cluster import Cluster, CoordinatorKind
from tidelog.client.faults import ClientFault, LinkFault, Refusal, known_code
from tidelog.client.link import Link
from tidelog.client.requests import encode_request
from tidelog.client.share_requests import (
    HEARTBEAT_VERSION,
    JOINING_EPOCH,
    LEAVING_EPOCH,
    RENEW,
    SESSION_CLOSES,
    SESSION_OPENS,
    SHARE_VERSION,
    FetchSize,
    Place,
    Span,
    acknowledge_fields,
    fetch_fields,
    heartbeat_fields,
    new_member_id,
    next_session_epoch,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import TopicPartition

log = logging.getLogger(__name__)

FETCH_BYTES_MAX = 8 << 20
FETCH_RECORDS_MAX = 2_000
#: while the group has not given the member its partitions it is asked so often
HASTY_SECONDS = 0.05
#: how often the thread looks whether something is due
TICK_SECONDS = 0.5
LEAVE_TIMEOUT_MS = 2_000
_REJOIN = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})
#: the session is another's, or none: a new one begins
_SESSION_OVER = frozenset(
    {
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    }
)


class AcquiredRange(NamedTuple):
    """Records, side by side, that are locked for this member."""

    where: TopicPartition
    topic_id: uuid.UUID
    first: int
    last: int
    delivery_count: int

    @property
    def records_count(self) -> int:
        return self.last - self.first + 1


class _Session:
    """A share session with one broker."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.epoch = SESSION_OPENS
        self.places: set[Place] = set()
        self.out: dict[Place, set[Span]] = {}

    def next_epoch(self) -> int:
        epoch = self.epoch
        self.epoch = next_session_epoch(epoch)
        return epoch


class ShareMember:
    """One member; joins when it first acquires."""

    def __init__(
        self,
        settings: ClientSettings,
        group_id: str,
        topics: Iterable[str],
        member_id: str | None = None,
    ) -> None:
        self.group_id = group_id
        self.topics = tuple(sorted(topics))
        self.member_id = member_id or new_member_id()
        self._cluster = Cluster(settings)
        self._lock = threading.RLock()
        self._epoch = JOINING_EPOCH
        self._assigned: set[Place] = set()
        self._names: dict[uuid.UUID, str] = {}
        self._sessions: dict[int, _Session] = {}
        self._heartbeat_seconds = 5.0
        self._renewal_seconds = 5.0
        self._heartbeat_due = 0.0
        self._renewal_due = time.monotonic() + self._renewal_seconds
        self._ended = threading.Event()
        self._keeper: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<ShareMember {self.group_id} epoch={self._epoch} partitions={len(self._assigned)}>"

    def __enter__(self) -> "ShareMember":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        """The partitions that the group has given to this member."""
        with self._lock:
            return frozenset(TopicPartition(self._names[topic], index) for topic, index in self._assigned)

    # Records

    def acquire(
        self, records_max: int, wait_ms: int, passed_over: Collection[TopicPartition] = ()
    ) -> list[AcquiredRange]:
        """Lock about so many records; none if there is nothing for `wait_ms`.

        Raises what cannot be mended in `default.api.timeout.ms`.
        """
        deadline = time.monotonic() + self._cluster.settings.api_timeout_ms / 1000
        backoff_ms = self._cluster.settings.retry_backoff_ms
        while True:
            with self._lock:
                self._start_keeper()
                fault = self._keep(time.monotonic())
                found: list[AcquiredRange] = []
                if fault is None:
                    found, fault = self._acquire_once(records_max, wait_ms, passed_over)
            if found or fault is None:
                return found
            if not _may_pass(fault) or time.monotonic() > deadline:
                raise fault
            time.sleep(backoff_ms / 1000)
            backoff_ms = min(2 * backoff_ms, self._cluster.settings.retry_backoff_max_ms)

    def acknowledge(self, kind: int, ranges: Iterable[AcquiredRange]) -> list[AcquiredRange]:
        """Say that of these records; those of which it does not count, or nobody knows, come back."""
        refused: list[AcquiredRange] = []
        by_session: dict[int, dict[Place, list[AcquiredRange]]] = {}
        with self._lock:
            for one in ranges:
                broker_id = self._holder_of(one)
                if broker_id is None:
                    refused.append(one)
                    continue
                places = by_session.setdefault(broker_id, {})
                places.setdefault((one.topic_id, one.where.partition), []).append(one)
            for broker_id, places in by_session.items():
                session = self._sessions[broker_id]
                spans = {place: [(one.first, one.last) for one in those] for place, those in places.items()}
                for place, those in spans.items():
                    session.out[place].difference_update(those)
                try:
                    failed = self._acknowledge(session, kind, spans)
                except ClientFault as fault:
                    log.info("share session of %s with broker %d: %s", self, broker_id, fault)
                    self._over(broker_id)
                    failed = dict.fromkeys(spans, ErrorCode.NETWORK_EXCEPTION)
                refused += [one for place in failed for one in places[place]]
        return refused

    def close(self) -> None:
        """Give back what is held and leave the group, if the brokers answer soon."""
        self._ended.set()
        if self._keeper is not None and self._keeper is not threading.current_thread():
            self._keeper.join(LEAVE_TIMEOUT_MS / 1000)
        with self._lock:
            for session in self._sessions.values():
                if session.epoch != SESSION_OPENS and not session.link.closed:
                    session.epoch = SESSION_CLOSES
                    with contextlib.suppress(ClientFault):
                        self._acknowledge(session, RENEW, {}, LEAVE_TIMEOUT_MS)
            self._sessions.clear()
            if self._epoch != JOINING_EPOCH:
                self._epoch = LEAVING_EPOCH
                with contextlib.suppress(ClientFault):
                    self._heartbeat(LEAVE_TIMEOUT_MS)
                self._epoch = JOINING_EPOCH
            self._cluster.close()

    # What has to go on

    def _start_keeper(self) -> None:
        if self._keeper is None:
            self._keeper = threading.Thread(target=self._keep_on, name="share-member", daemon=True)
            self._keeper.start()

    def _keep_on(self) -> None:
        while not self._ended.wait(TICK_SECONDS):
            with self._lock:
                if not self._ended.is_set():
                    fault = self._keep(time.monotonic())
                    if fault is not None:
                        log.info("%s: %s", self, fault)

    def _keep(self, now: float) -> ClientFault | None:
        """Send what is due; why it could not be."""
        try:
            if now >= self._heartbeat_due:
                self._heartbeat()
            if now >= self._renewal_due:
                self._renewal_due = now + self._renewal_seconds
                self._renew()
        except Refusal as fault:
            if fault.code in _REJOIN:
                self._epoch = JOINING_EPOCH
            self._cluster.forget_places()
            return fault
        except ClientFault as fault:
            self._cluster.forget_places()
            return fault
        return None

    def _heartbeat(self, timeout_ms: int | None = None) -> None:
        # If it fails it is not tried again at once by the keeper, but by whoever acquires.
        self._heartbeat_due = time.monotonic() + TICK_SECONDS
        link = self._cluster.coordinator_link(CoordinatorKind.GROUP, self.group_id)
        fields = heartbeat_fields(self.group_id, self.member_id, self._epoch, self.topics)
        answer = link.request(
            SHARE_GROUP_HEARTBEAT,
            fields,
            lowest=HEARTBEAT_VERSION,
            highest=HEARTBEAT_VERSION,
            timeout_ms=timeout_ms,
        )
        if answer.error_code:
            raise Refusal(answer.error_code, f"share group {self.group_id!r}", answer.error_message)
        self._epoch = int(answer.member_epoch)
        self._heartbeat_seconds = min(answer.heartbeat_interval.total_seconds(), 15.0)
        if answer.assignment is not None:
            self._assigned = {
                (row.topic_id, int(index))
                for row in answer.assignment.topic_partitions
                for index in row.partitions
            }
            self._name_topics()
        pause = self._heartbeat_seconds if self._assigned else HASTY_SECONDS
        self._heartbeat_due = time.monotonic() + pause

    def _name_topics(self) -> None:
        """Which topics are ours; an id that is no topic's any more is nobody's."""
        if {topic_id for topic_id, _ in self._assigned} - self._names.keys():
            found = self._cluster.topics(self.topics).values()
            self._names = {topic.topic_id: topic.name for topic in found if topic.topic_id is not None}
        self._assigned = {place for place in self._assigned if place[0] in self._names}

    def _renew(self) -> None:
        for broker_id, session in list(self._sessions.items()):
            spans = {place: sorted(those) for place, those in session.out.items() if those}
            if not spans or session.link.closed:
                continue
            try:
                failed = self._acknowledge(session, RENEW, spans)
            except ClientFault as fault:
                log.info("share session of %s with broker %d: %s", self, broker_id, fault)
                self._over(broker_id)
                continue
            for (topic_id, index), code in failed.items():
                name = self._names.get(topic_id, topic_id)
                log.warning("%s: locks of %s-%d are not renewed: %s", self, name, index, code.name)

    # Sessions

    def _acquire_once(
        self, records_max: int, wait_ms: int, passed_over: Collection[TopicPartition]
    ) -> tuple[list[AcquiredRange], ClientFault | None]:
        if not self._assigned:
            # The next heartbeat may bring partitions.
            time.sleep(min(wait_ms / 1000, HASTY_SECONDS))
            return [], None
        places, fault = self._places(passed_over)
        for broker_id in self._sessions.keys() - places.keys():
            self._over(broker_id)
        found: list[AcquiredRange] = []
        sent: list[tuple[int, int]] = []
        for broker_id, those in places.items():
            room = min(FETCH_RECORDS_MAX, max(1, records_max // len(places)))
            try:
                sent.append((broker_id, self._send(broker_id, those, room, wait_ms)))
            except ClientFault as trouble:
                fault = self._failed(broker_id, trouble)
        for broker_id, ticket in sent:
            try:
                found += self._received(broker_id, ticket, wait_ms)
            except ClientFault as trouble:
                fault = self._failed(broker_id, trouble)
        return found, fault

    def _places(
        self, passed_over: Collection[TopicPartition]
    ) -> tuple[dict[int, set[Place]], ClientFault | None]:
        """What to fetch from whom, with what is held there."""
        by_leader: dict[int, set[Place]] = {}
        fault: ClientFault | None = None
        for topic_id, index in self._assigned:
            where = TopicPartition(self._names[topic_id], index)
            if where in passed_over:
                continue
            try:
                leader = self._cluster.leader_of(*where)
            except ClientFault as trouble:
                fault = trouble
                self._cluster.forget_places()
                continue
            by_leader.setdefault(leader, set()).add((topic_id, index))
        for broker_id, session in self._sessions.items():
            held = {place for place, those in session.out.items() if those}
            if held:
                by_leader.setdefault(broker_id, set()).update(held)
        return by_leader, fault

    def _send(self, broker_id: int, places: set[Place], room: int, wait_ms: int) -> int:
        link = self._cluster.link_to(broker_id)
        link.version_of(SHARE_FETCH, SHARE_VERSION, SHARE_VERSION)
        session = self._sessions.get(broker_id)
        if session is None or session.link is not link:
            session = self._sessions[broker_id] = _Session(link)
        added, forgotten = places - session.places, session.places - places
        session.places = set(places)
        size = FetchSize(room, FETCH_BYTES_MAX, wait_ms)
        epoch = session.next_epoch()
        fields = fetch_fields(self.group_id, self.member_id, epoch, size, added, forgotten)
        return link.send(SHARE_FETCH, SHARE_VERSION, encode_request(SHARE_FETCH, SHARE_VERSION, fields))

    def _received(self, broker_id: int, ticket: int, wait_ms: int) -> Iterator[AcquiredRange]:
        session = self._sessions[broker_id]
        timeout_ms = wait_ms + self._cluster.settings.request_timeout_ms
        answer = session.link.receive_decoded(ticket, SHARE_FETCH, SHARE_VERSION, timeout_ms)
        what = f"fetching for share group {self.group_id!r}"
        if answer.error_code:
            raise Refusal(answer.error_code, what, answer.error_message)
        seconds = answer.acquisition_lock_timeout.total_seconds()
        if seconds > 0:
            self._renewal_seconds = seconds / 3
            self._renewal_due = min(self._renewal_due, time.monotonic() + self._renewal_seconds)
        refusals: list[Refusal] = []
        found: list[AcquiredRange] = []
        for topic in answer.responses:
            for row in topic.partitions:
                place = topic.topic_id, int(row.partition_index)
                where = TopicPartition(self._names.get(topic.topic_id, ""), place[1])
                if row.error_code:
                    refusals.append(Refusal(row.error_code, f"{where} for share group {self.group_id!r}"))
                    session.out.pop(place, None)
                    continue
                for each in row.acquired_records:
                    first, last = int(each.first_offset), int(each.last_offset)
                    session.out.setdefault(place, set()).add((first, last))
                    found.append(AcquiredRange(where, place[0], first, last, int(each.delivery_count)))
        if refusals:
            self._cluster.forget_places()
            final = [refusal for refusal in refusals if not _may_pass(refusal)]
            if final or not found:
                raise (final or refusals)[0]
        return iter(found)

    def _failed(self, broker_id: int, fault: ClientFault) -> ClientFault:
        if isinstance(fault, LinkFault) or (isinstance(fault, Refusal) and fault.code in _SESSION_OVER):
            self._over(broker_id)
        self._cluster.forget_places()
        return fault

    def _over(self, broker_id: int) -> None:
        """Nothing more is held there."""
        session = self._sessions.pop(broker_id, None)
        if session is not None and session.epoch != SESSION_OPENS and not session.link.closed:
            session.epoch = SESSION_CLOSES
            with contextlib.suppress(ClientFault):
                self._acknowledge(session, RENEW, {}, LEAVE_TIMEOUT_MS)

    def _holder_of(self, one: AcquiredRange) -> int | None:
        """With whom these records are held; None if they are lost."""
        place, span = (one.topic_id, one.where.partition), (one.first, one.last)
        for broker_id, session in self._sessions.items():
            if span in session.out.get(place, ()) and not session.link.closed:
                return broker_id
        return None

    def _acknowledge(
        self, session: _Session, kind: int, spans: dict[Place, list[Span]], timeout_ms: int | None = None
    ) -> dict[Place, ErrorCode]:
        """Send it, and return what was refused."""
        epoch = SESSION_CLOSES if session.epoch == SESSION_CLOSES else session.next_epoch()
        fields = acknowledge_fields(self.group_id, self.member_id, epoch, kind if spans else 0, spans)
        answer = session.link.request(
            SHARE_ACKNOWLEDGE, fields, lowest=SHARE_VERSION, highest=SHARE_VERSION, timeout_ms=timeout_ms
        )
        if answer.error_code:
            what = f"acknowledging for share group {self.group_id!r}"
            raise Refusal(answer.error_code, what, answer.error_message)
        return {
            (topic.topic_id, int(row.partition_index)): known_code(row.error_code)
            for topic in answer.responses
            for row in topic.partitions
            if row.error_code
        }


def _may_pass(fault: ClientFault) -> bool:
    if isinstance(fault, Refusal):
        return fault.retriable or fault.code in _SESSION_OVER or fault.code in _REJOIN
    return isinstance(fault, LinkFault)
