"""Fetch (key 1), versions 4 to 18.

Behaviour
- Answers whole batches as ranges of the segment files; an offset inside a batch returns the whole batch.
- Up to `max_bytes` in all and `partition_max_bytes` each, but always at least one batch, even one above the
  limits.
- Waits up to `max_wait_ms` for `min_bytes`, unless a partition has an error or the request names none.
- read_committed stops at the last stable offset and lists the aborted transactions of the range.
- Incremental sessions (KIP-227), topic ids from v13 (KIP-516), leader epoch checks (KIP-320),
  diverging epochs for followers (KIP-595).
- Followers read to the end of the log (see follower_feeds). Consumers of v11 and up may read from a replica
  that follows, up to its high watermark, and are sent to one in their rack (KIP-392).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.replicas.fetch_sessions import FetchSession, FetchSessions, PartitionKey
from tidelog.broker.replicas.partition import Partition
from tidelog.broker.replicas.reading import read_for_consumer
from tidelog.broker.replicas.replicas import Replicas
from tidelog.broker.replication.follower_feeds import FollowerFeeds
from tidelog.broker.requests.connection_context import ConnectionContext
from tidelog.broker.requests.current_leaders import KnownLeaders
from tidelog.broker.requests.fetch_templates import FetchTemplate, has_template
from tidelog.broker.requests.live_quotas import LiveQuotas
from tidelog.broker.requests.produce_templates import KnownTemplates
from tidelog.broker.requests.read_replicas import preferred_read_replica
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.metrics import Metrics
from tidelog.broker.runtime.purgatory import DelayedOperation, Purgatory, Watched
from tidelog.model.acls import AclOperation, ResourceType
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import TOPIC_NAME_LENGTH_MAX
from tidelog.model.ports import Clock
from tidelog.protocol.apis import FETCH
from tidelog.protocol.fetch import (
    FIRST_CURRENT_LEADER,
    FIRST_TOPIC_ID,
    READ_COMMITTED,
    FetchPartition,
    FetchRequest,
    PartitionFetched,
    decode_request,
    encode_response,
)
from tidelog.protocol.slices import STEP, checkpoint, paced, whole
from tidelog.storage.readable_log import LogSlice

if TYPE_CHECKING:
    from tidelog.broker.requests.authorization import Authorization

Chunks = list[bytes | LogSlice]
Asked = tuple[PartitionKey, FetchPartition]
#: partitions in a session that do not exist, or not yet: a client may be ahead of this broker
UNKNOWN_PARTITIONS_MAX = 100
#: answers that say who leads instead
LED_ELSEWHERE = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
#: from here on a consumer says which rack it is in, and may read from followers
FIRST_RACK = 11
# An alias with parameters would be called through typing, at ten times the cost.
Fetched: TypeAlias = PartitionFetched


class Collected:
    """The partitions of one answer, and whether it should wait for more."""

    __slots__ = ("failed", "read", "rows", "sent", "size_bytes")

    def __init__(self) -> None:
        self.rows: list[tuple[PartitionKey, Fetched]] = []
        self.size_bytes = 0
        #: the replicas that records are read from, how many bytes, and over how many offsets
        self.sent: list[tuple[Partition, int, int]] = []
        #: whether a partition has an error the client should learn of at once
        self.failed = False
        #: the replicas that were looked at, whether or not they had anything: those that can be waited for
        self.read: list[tuple[Partition, FetchPartition, Fetched]] = []


def _until_found(asked: list[Asked], collected: Collected) -> Iterator[Asked]:
    """What is asked for, one by one, in slices as long as there is nothing to wait for.

    After that what arrives meanwhile would be missed.
    """
    for number, item in enumerate(asked):
        if number % STEP == STEP - 1 and not collected.read:
            checkpoint()
        yield item


class FetchPlan:
    """One Fetch request, ready to be tried now or again when data arrives."""

    __slots__ = ("context", "correlation_id", "handler", "opened", "request", "session", "version")

    def __init__(
        self,
        handler: "Handler",
        context: ConnectionContext,
        request: FetchRequest,
        session: FetchSession | None,
        opened: bool,
        version: int,
        correlation_id: int,
    ) -> None:
        self.handler = handler
        self.context = context
        self.request = request
        self.session = session
        self.opened = opened
        self.version = version
        self.correlation_id = correlation_id

    def wanted(self) -> list[Asked]:
        """What the client wants, in the order it is to be served."""
        if self.session is not None:
            return [(key, cached.wanted) for key, cached in self.session.partitions.items()]
        return [((topic, p.partition), p) for topic, partitions in self.request.topics for p in partitions]

    def _may_read(self, key: PartitionKey) -> bool:
        """Whether the consumer may read the topic; an id that nobody has is for others to refuse."""
        name = self.handler.metadata.image.name_of(key[0])
        authorization = self.handler.authorization
        if authorization is None or name is None:
            return True
        return authorization.allows(self.context, AclOperation.READ, ResourceType.TOPIC, name)

    def _find_follower(self, key: PartitionKey, error: ErrorCode) -> Partition | None:
        """The replica that follows here, if the consumer may read from it (KIP-392)."""
        if error is not ErrorCode.NOT_LEADER_OR_FOLLOWER or self.version < FIRST_RACK:
            return None
        handler, topic = self.handler, key[0]
        name = topic if isinstance(topic, str) else handler.metadata.image.topic_names_by_id[topic]
        return handler.replicas.followed.get((name, key[1]))

    def collect(self) -> Collected:
        """Read what there is for every partition, within the byte limits."""
        collected = Collected()
        handler, request = self.handler, self.request
        remaining = min(request.max_bytes, handler.settings.fetch_bytes_max)
        quotas = handler.quotas.current
        if quotas is not None and (limit_bytes := quotas.fetch_bytes_max(self.context)) is not None:
            remaining = min(remaining, limit_bytes)
        read_committed = request.isolation == READ_COMMITTED
        rack = request.rack_id if handler.rack_aware_reads else ""
        find_partition = handler.replicas.find
        guarded = handler.authorization is not None
        asked = self.wanted()
        for key, wanted in asked if len(asked) <= STEP else _until_found(asked, collected):
            if guarded and not self._may_read(key):
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                collected.rows.append((key, Fetched(wanted.partition, code, aborted=())))
                continue
            partition, error = find_partition(key[0], key[1])
            if partition is None:
                partition = self._find_follower(key, error)
            if partition is None:
                # The others are still waited for: a deleted topic must not make a consumer poll in a circle.
                # What is not read has no aborted transactions; what is read and refused has null.
                aborted = None if error is ErrorCode.NOT_LEADER_OR_FOLLOWER else ()
                _, error = handler.replicas.find_in_epoch(*key, wanted.current_leader_epoch)
                collected.rows.append((key, Fetched(wanted.partition, error, aborted=aborted)))
                continue
            fetched = read_for_consumer(
                partition, wanted, remaining, read_committed, at_least_one=collected.size_bytes == 0
            )
            if rack and not fetched.error:
                fetched = self._send_elsewhere(partition, wanted, fetched, rack)
                collected.failed |= fetched.preferred_read_replica >= 0
            if fetched.error or fetched.diverging_epoch is not None:
                collected.failed = True
            if fetched.records is not None:
                size_bytes = fetched.records.size_bytes
                collected.size_bytes += size_bytes
                remaining -= size_bytes
                messages = fetched.records.next_offset - wanted.fetch_offset
                collected.sent.append((partition, size_bytes, messages))
            collected.rows.append((key, fetched))
            collected.read.append((partition, wanted, fetched))
        return collected

    def _send_elsewhere(
        self, partition: Partition, wanted: FetchPartition, fetched: Fetched, rack: str
    ) -> Fetched:
        """Name the replica that the consumer should read from, instead of records, if there is one."""
        brokers = self.handler.metadata.image.alive_brokers
        preferred = preferred_read_replica(partition, rack, wanted.fetch_offset, brokers)
        if preferred < 0:
            return fetched
        return fetched._replace(preferred_read_replica=preferred, records=None)

    def encode(self, collected: Collected) -> Chunks:
        """Encode the answer; an incremental one leaves out partitions without news."""
        handler, session = self.handler, self.session
        rows = collected.rows
        quotas = handler.quotas.current
        if quotas is not None and (throttle_ms := quotas.fetched(self.context, collected.size_bytes)):
            return self._throttled(throttle_ms)
        if session is not None:
            newsworthy = [row for row in rows if session.has_news(*row)]
            if not self.opened:
                rows = newsworthy
                session.served([key for key, fetched in rows if fetched.records is not None])
        for partition, size_bytes, messages in collected.sent:
            partition.sent_bytes += size_bytes
            partition.sent_messages += messages
        topics: dict[str | UUID, list[Fetched]] = {}
        leaders: KnownLeaders | None = None
        for (topic, index), fetched in paced(rows):
            if fetched.error:
                handler.metrics.requests.error(FETCH, fetched.error)
                if fetched.error in LED_ELSEWHERE and self.version >= FIRST_CURRENT_LEADER:
                    leaders = leaders or KnownLeaders(
                        handler.metadata, handler.replicas, self.context.listener_name
                    )
                    fetched = fetched._replace(current_leader=leaders.of(topic, index))
            topics.setdefault(topic, []).append(fetched)
        return encode_response(
            list(topics.items()),
            self.version,
            self.correlation_id,
            session_id=0 if session is None else session.session_id,
            endpoints=None if leaders is None else leaders.endpoints(),
        )

    def _throttled(self, throttle_ms: int) -> Chunks:
        """Nothing but the time to wait (KIP-219); a session that would begin with it does not begin."""
        session_id = 0 if self.session is None else self.session.session_id
        if self.opened:
            self.handler.fetch_sessions.drop(session_id)
            session_id = 0
        return encode_response(
            [], self.version, self.correlation_id, session_id=session_id, throttle_time_ms=throttle_ms
        )


class DelayedFetch(DelayedOperation):
    """A Fetch that waits for `min_bytes`."""

    __slots__ = ("available", "missing_bytes", "offsets", "plan", "seen_bytes")

    def __init__(
        self,
        plan: FetchPlan,
        missing_bytes: int,
        offsets: dict[Partition, int],
        available: dict[Partition, int],
    ) -> None:
        super().__init__()
        self.plan = plan
        self.missing_bytes = missing_bytes
        self.offsets = offsets
        self.seen_bytes = {partition: partition.appended_bytes for partition in offsets}
        #: what each partition had for us at first; for read_committed, when it last moved on
        self.available = available

    def ready(self, progressed: Watched) -> bool:
        assert isinstance(progressed, Partition)
        read_committed = self.plan.request.isolation == READ_COMMITTED
        readable_end = progressed.readable_end(read_committed)
        if readable_end <= self.offsets[progressed]:
            return False
        if self.plan.request.min_bytes <= 1:
            return True
        if read_committed or progressed.replicas is not None or not progressed.leads:
            # What a marker or the watermark makes readable was appended before: it has to be measured.
            self.available[progressed] = self._readable_bytes(progressed, readable_end)
            return sum(self.available.values()) >= self.plan.request.min_bytes
        self.missing_bytes -= progressed.appended_bytes - self.seen_bytes[progressed]
        self.seen_bytes[progressed] = progressed.appended_bytes
        return self.missing_bytes <= 0

    def _readable_bytes(self, partition: Partition, readable_end: int) -> int:
        try:
            piece = partition.log.read(self.offsets[partition], self.plan.request.min_bytes, readable_end)
        except OSError:
            return self.plan.request.min_bytes  # let the answer tell of it
        return 0 if piece is None else piece.size_bytes

    def complete(self, *, expired: bool) -> Chunks:
        return self.plan.encode(self.plan.collect())


@dataclass(frozen=True, slots=True)
class Handler:
    """Answer with what there is, or wait for more."""

    metadata: Metadata
    replicas: Replicas
    settings: LiveSettings
    clock: Clock
    purgatory: Purgatory
    follower_feeds: FollowerFeeds
    authorization: "Authorization | None"
    quotas: LiveQuotas
    metrics: Metrics
    fetch_sessions: FetchSessions
    #: says which templates count
    produce_templates: KnownTemplates
    rack_aware_reads: bool

    def handle(
        self,
        context: ConnectionContext,
        version: int,
        correlation_id: int,
        frame: memoryview,
        position: int,
    ) -> Chunks | DelayedOperation:
        template = context.fetch_template
        if template is not None and template.version == version and self.quotas.current is None:
            answer = template.answer(self.produce_templates.image_version, correlation_id, frame, position)
            if answer is not None:
                return answer
        request = decode_request(frame, position, version)
        now_ms = self.clock.now_ms()
        context.is_replica = False
        if request.replica_id >= 0:
            authorization = self.authorization
            if authorization is not None and not authorization.allows_cluster_action(context):
                return _refuse_follower(request, version, correlation_id)
            context.is_replica = True
            followed: Chunks | DelayedOperation = whole(
                self.follower_feeds.handle, request, version, correlation_id, now_ms
            )
            return followed
        session: FetchSession | None = None
        opened = False
        if request.session_id or request.session_epoch >= 0:
            session, opened, error = self.fetch_sessions.resolve(
                request,
                now_ms,
                version >= FIRST_TOPIC_ID,
                may_remember=self._may_remember(context, request),
            )
            if error:
                return encode_response([], version, correlation_id, error=error)
        plan = FetchPlan(self, context, request, session, opened, version, correlation_id)
        collected = plan.collect()
        if (
            collected.size_bytes >= request.min_bytes
            or collected.failed
            or request.max_wait_ms <= 0
            or not collected.read
            or self.purgatory.full
        ):
            if (
                collected.sent
                and self.quotas.current is None
                and has_template(request, version, len(frame), self.rack_aware_reads)
            ):
                context.fetch_template = self._template(request, version, frame, position)
            return plan.encode(collected)
        offsets: dict[Partition, int] = {}
        available: dict[Partition, int] = {}
        for partition, wanted, fetched in collected.read:
            offsets[partition] = wanted.fetch_offset
            available[partition] = 0 if fetched.records is None else fetched.records.size_bytes
        waiter = DelayedFetch(plan, request.min_bytes - collected.size_bytes, offsets, available)
        self.purgatory.park(waiter, offsets, now_ms + request.max_wait_ms)
        return waiter

    def _template(
        self, request: FetchRequest, version: int, frame: memoryview, position: int
    ) -> FetchTemplate:
        topic, [wanted] = request.topics[0]
        partition = self.replicas.find(topic, wanted.partition)[0]
        image_version, bytes_max = self.metadata.image.version, self.settings.fetch_bytes_max
        return FetchTemplate(image_version, partition, bytes_max, request, version, frame, position)

    def _may_remember(self, context: ConnectionContext, request: FetchRequest) -> bool:
        """Whether a session may keep what a request names: all of it may be read, and nearly all exists."""
        image, authorization = self.metadata.image, self.authorization
        unknown = 0
        for asked, partitions in paced(request.topics):
            name = image.name_of(asked)
            if authorization is not None and (
                name is None or not authorization.allows(context, AclOperation.READ, ResourceType.TOPIC, name)
            ):
                return False
            topic = None if name is None else image.topics.get(name)
            count = 0 if topic is None else len(topic.partitions)
            unknown += sum(not 0 <= wanted.partition < count for wanted in partitions)
            if unknown > UNKNOWN_PARTITIONS_MAX or (name is not None and len(name) > TOPIC_NAME_LENGTH_MAX):
                return False
        return True


def _refuse_follower(request: FetchRequest, version: int, correlation_id: int) -> Chunks:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    topics: list[tuple[str | UUID, list[Fetched]]] = []
    for topic, wanted_list in paced(request.topics):
        rows: list[Fetched] = []
        for wanted in paced(wanted_list):
            rows.append(Fetched(wanted.partition, code))
        topics.append((topic, rows))
    return encode_response(topics, version, correlation_id)
