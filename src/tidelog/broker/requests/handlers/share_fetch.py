"""ShareFetch (key 78), versions 1 and 2: records for a member of a share group, and what became of others.

Behaviour
- A session (`shares/sessions`) has the member's partitions; it begins with epoch 0 and ends with -1, or with
  its connection. What the member had acquired then is available to others again.
- What it says of records is stored first (see ShareAcknowledge); the answer waits for both.
- Whole batches, and which of their offsets are acquired for the member. Up to `max_records` of all partitions
  together: about so many (KIP-932), or exactly (version 2, KIP-1206).
- Waits up to `max_wait` for `min_bytes`. Of several that wait those get records that have waited longest.
- A request that renews locks (version 2, KIP-1222) asks for no records.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.replicas.replicas import Replicas
from tidelog.broker.requests.current_leaders import KnownLeaders
from tidelog.broker.requests.group_answers import milliseconds
from tidelog.broker.requests.live_quotas import LiveQuotas
from tidelog.broker.requests.request import Request
from tidelog.broker.requests.share_acknowledgements import (
    Acknowledgements,
    Member,
    Place,
    Results,
    asked_of,
    may_be_member,
    topic_of,
)
from tidelog.broker.requests.share_answers import answer, error_fields, refused_whole
from tidelog.broker.runtime.deferred import Deferred
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.purgatory import DelayedAnswer, DelayedOperation, Purgatory, Watched
from tidelog.model.acls import AclOperation, ResourceType
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.ports import Clock
from tidelog.shares.schemas import ShareKey
from tidelog.shares.sessions import CLOSING_EPOCH, OPENING_EPOCH, SessionKey, ShareSession
from tidelog.shares.states import AcquireMode

if TYPE_CHECKING:
    from tidelog.broker.coordinators.share_partitions import SharedPartition
    from tidelog.broker.coordinators.sharing import Sharing
    from tidelog.broker.requests.authorization import Authorization

Fields = Mapping[str, Any]
Rows = dict[Place, Fields]
_NOTHING: Fields = {**error_fields(None), "records": b""}
#: partitions in a session that do not exist, or not yet: a client may be ahead of this broker
UNKNOWN_PARTITIONS_MAX = 100
#: the share coordinator is asked again with the next fetch; no client knows what to do with these
_NOT_READY = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.LEADER_NOT_AVAILABLE)


class SharePlan:
    """One ShareFetch, ready to be tried now or again when there may be something."""

    __slots__ = ("_acknowledgements", "_handler", "_member", "_opened", "_request", "_shares", "places")

    def __init__(
        self,
        handler: "Handler",
        acknowledgements: Acknowledgements,
        member: Member,
        request: Any,
        session: ShareSession,
    ) -> None:
        self._handler = handler
        self._acknowledgements = acknowledgements
        self._member = member
        self._request = request
        self._shares = handler.shares.get()
        self.places = list(session.in_turn())
        self._opened: dict[Place, SharedPartition] = {}

    def watched(self) -> list[Watched]:
        """What may bring records: the logs, and the share partitions."""
        return [thing for shared in self._opened.values() for thing in (shared.partition, shared)]

    def attempt(self, *, final: bool) -> Rows | None:
        """What the member gets; None if it should wait, which it need not do the last time."""
        rows: Rows = {}
        for place in self.places:
            refused = self._open(place)
            if refused is not None:
                rows[place] = {**_NOTHING, **error_fields(refused)}
        ready = {place: self._opened[place] for place in self.places if place not in rows}
        if not ready:
            return rows
        bytes_max = self._bytes_max()
        min_bytes = min(self._request.min_bytes, bytes_max)
        if not final and min_bytes > 1:
            available = sum(
                self._shares.partitions.available_bytes(shared, min_bytes) for shared in ready.values()
            )
            if available < min_bytes:
                return None
        found = self._acquire(ready, bytes_max)
        return {**rows, **found} if found or final else None

    def _bytes_max(self) -> int:
        handler = self._handler
        bytes_max: int = min(self._request.max_bytes, handler.settings.fetch_bytes_max)
        quotas = handler.quotas.current
        limit_bytes = None if quotas is None else quotas.fetch_bytes_max(self._member.context)
        return bytes_max if limit_bytes is None else min(bytes_max, limit_bytes)

    def _open(self, place: Place) -> Refused | None:
        """Find the share partition; why there is none."""
        refused = self._acknowledgements.refusal(self._member, place)
        if refused is not None:
            return refused
        partition, error = self._handler.replicas.find(*place)
        if partition is None:
            return Refused(error, error.name)
        known = self._opened.get(place)
        fault = None if known is None or known.partition is not partition else known.fault
        if fault is not None and fault.code not in _NOT_READY:
            return fault
        shared = self._shares.partitions.open(ShareKey(self._member.group_id, *place), partition)
        self._opened[place] = shared
        fault = shared.fault
        return None if fault is None or fault.code in _NOT_READY else fault

    def _acquire(self, ready: Mapping[Place, "SharedPartition"], bytes_max: int) -> Rows:
        request, rows = self._request, Rows()
        records_left, bytes_left = request.max_records, bytes_max
        mode = AcquireMode(getattr(request, "share_acquire_mode", AcquireMode.BATCH_OPTIMIZED))
        for place, shared in ready.items():
            if records_left <= 0 or (bytes_left <= 0 and rows):
                break
            acquired, batches = self._shares.partitions.acquire(
                shared,
                self._member.member_id,
                records_max=records_left,
                bytes_max=bytes_left,
                batch_size=request.batch_size,
                mode=mode,
            )
            if not acquired:
                continue
            count = sum(each["last_offset"] - each["first_offset"] + 1 for each in acquired)
            size_bytes = sum(map(len, batches))
            records_left, bytes_left = records_left - count, bytes_left - size_bytes
            shared.partition.sent_bytes += size_bytes
            shared.partition.sent_messages += count
            rows[place] = {**_NOTHING, "records": b"".join(batches), "acquired_records": acquired}
        return rows


class DelayedShareFetch(DelayedOperation):
    """A ShareFetch that waits for records."""

    __slots__ = ("_found", "_plan")

    def __init__(self, plan: SharePlan) -> None:
        super().__init__()
        self._plan = plan
        self._found: Rows | None = None

    def ready(self, progressed: Watched) -> bool:
        # Whoever is asked first has what there is: it is acquired here.
        if self._found is None:
            self._found = self._plan.attempt(final=False)
        return self._found is not None

    def complete(self, *, expired: bool) -> Rows:
        return self._found if self._found is not None else self._plan.attempt(final=True) or {}


class ShareAnswer(DelayedAnswer):
    """The answer to one ShareFetch: what was got, and how the acknowledgements went."""

    __slots__ = ("_finish", "_parked", "_results", "_rows")

    def __init__(self, finish: Any) -> None:
        super().__init__()
        self._finish = finish
        self._rows: Rows | None = None
        self._results: Results | None = None
        self._parked: DelayedShareFetch | None = None

    def put_results(self, results: Results) -> None:
        self._results = results
        self._put()

    def put_rows(self, rows: Rows) -> None:
        self._rows, self._parked = rows, None
        self._put()

    def wait_for(self, parked: DelayedShareFetch) -> None:
        self._parked = parked
        parked.deliver_to(self.put_rows)

    def _put(self) -> None:
        if self._rows is not None and self._results is not None:
            self.answer(self._finish(self._rows, self._results))

    def abandon(self) -> None:
        super().abandon()
        if self._parked is not None:
            self._parked.abandon()


@dataclass(frozen=True, slots=True)
class Handler:
    """Serves members of share groups."""

    metadata: Metadata
    replicas: Replicas
    settings: LiveSettings
    authorization: "Authorization | None"
    quotas: LiveQuotas
    purgatory: Purgatory
    clock: Clock
    shares: "Deferred[Sharing]"

    def handle(self, request: Request) -> Fields | DelayedAnswer:
        body, context = request.body, request.context
        asked = asked_of(body.topics)
        refused = self._refusal(request)
        if refused is not None:
            return refused_whole(refused)
        shares = self.shares.get()
        session_key = SessionKey(body.group_id, body.member_id)
        added = [
            (topic_of(topic), part.partition_index) for topic in body.topics for part in topic.partitions
        ]
        known = shares.sessions.get(session_key)
        held = set(added)
        if known is not None and body.share_session_epoch != OPENING_EPOCH:
            held.update(known.partitions)
        if len(held) > self.metadata.image.partition_count + UNKNOWN_PARTITIONS_MAX:
            return refused_whole(Refused(ErrorCode.INVALID_REQUEST, "There are not so many partitions."))
        session = shares.sessions.fetched(
            session_key,
            body.share_session_epoch,
            added,
            [(topic_of(topic), index) for topic in body.forgotten_topics_data for index in topic.partitions],
            context,
            acknowledges=bool(asked),
        )
        if isinstance(session, Refused):
            return refused_whole(session)
        if body.share_session_epoch == OPENING_EPOCH:
            shares.follow(context)
        member = Member(context, body.group_id, body.member_id)
        acknowledgements = Acknowledgements(self.metadata, self.replicas, self.authorization, shares)
        delayed = ShareAnswer(partial(self._finish, request, session))
        is_renew = getattr(body, "is_renew_ack", False)
        acknowledgements.store(member, asked, is_renew=is_renew, then=delayed.put_results)
        if is_renew or body.share_session_epoch == CLOSING_EPOCH:
            delayed.put_rows({})
        else:
            self._fetch(SharePlan(self, acknowledgements, member, body, session), body, delayed)
        return delayed

    def _refusal(self, request: Request) -> Refused | None:
        """What is wrong with a request, whatever its session says."""
        body = request.body
        if body.group_id is None or not may_be_member(body.member_id):
            return Refused(ErrorCode.INVALID_REQUEST, "Who fetches is not said.")
        authorization = self.authorization
        if authorization is not None and not authorization.allows(
            request.context, AclOperation.READ, ResourceType.GROUP, body.group_id
        ):
            return Refused(ErrorCode.GROUP_AUTHORIZATION_FAILED, "Group authorization failed.")
        if getattr(body, "share_acquire_mode", 0) not in frozenset(AcquireMode):
            return Refused(ErrorCode.INVALID_REQUEST, "The acquire mode is unknown.")
        wanted = (body.max_bytes, body.min_bytes, body.max_records, milliseconds(body.max_wait))
        if getattr(body, "is_renew_ack", False) and any(wanted):
            return Refused(ErrorCode.INVALID_REQUEST, "A request that renews locks fetches nothing.")
        return None

    def _fetch(self, plan: SharePlan, body: Any, delayed: ShareAnswer) -> None:
        wait_ms = milliseconds(body.max_wait)
        rows = plan.attempt(final=wait_ms <= 0 or self.purgatory.full)
        if rows is not None:
            delayed.put_rows(rows)
            return
        parked = DelayedShareFetch(plan)
        self.purgatory.park(parked, plan.watched(), self.clock.now_ms() + wait_ms)
        delayed.wait_for(parked)

    def _finish(self, request: Request, session: ShareSession, rows: Rows, results: Results) -> Fields:
        """The answer, of the partitions that have something to say."""
        body, shares = request.body, self.shares.get()
        if body.share_session_epoch == CLOSING_EPOCH and shares.sessions.get(session.key) is session:
            shares.sessions.close(session.key)
            shares.session_ended(session, lost=False)
        told: Rows = {}
        for place in dict.fromkeys((*session.partitions, *rows)):
            row = rows.get(place, _NOTHING)
            has_error = row["error_code"] is not ErrorCode.NONE
            if session.answers(place, has_records=bool(row["records"]), has_error=has_error):
                told[place] = row
        for place, refused in results.items():
            fields = error_fields(refused)
            told[place] = {
                **told.get(place, _NOTHING),
                "acknowledge_error_code": fields["error_code"],
                "acknowledge_error_message": fields["error_message"],
            }
        leaders = KnownLeaders(self.metadata, self.replicas, request.context.listener_name)
        fields = answer(told, leaders, shares.partitions.lock_duration_ms(body.group_id))
        quotas = self.quotas.current
        if quotas is None:
            return fields
        size_bytes = sum(len(row["records"]) for row in told.values())
        return {**fields, "throttle_time": quotas.share_fetched(request.context, size_bytes)}
