"""Quotas of a broker: how much each user, client id and address may, and making them wait who want more.

There are none until somebody sets one (AlterClientQuotas), and then nothing here costs anything:
the `LiveQuotas` have none. Clients without a limit keep the fast path of Produce also where others have one.

    producer_byte_rate         bytes of Produce requests, counted when they arrive
    consumer_byte_rate         bytes of records in Fetch answers; above the limit the answer is empty
    request_percentage         time that the broker spends on requests, from reading one to its answer; 100 is
                               all that its one thread has
    controller_mutation_rate   partitions created and deleted, in tokens (KIP-599)
    connection_creation_rate   new connections from an address

Who is above a limit is told in the answer how long to wait (KIP-219), and nothing is read from the
connection for so long: `ConnectionContext.throttle_ms` asks the server for that. The limit that holds and
who shares it is Kafka's choice (see security/quotas); each broker counts for itself, as in Kafka.

Deliberate differences from Kafka: those who share a limit wait together. A request that comes while they do,
on whatever connection, is held until the wait is over (`hold_ms`), so that more connections, or new ones, do
not get more. And the wait of `request_percentage` has no bound: in Kafka it ends with a window, which lets
long requests through far above the limit.

Not counted: what brokers ask of each other (Fetch of followers, markers and verification of transactions,
commands for the controller), if the peer may act as a broker (CLUSTER_ACTION); and what comes before a client
has said who it is.
"""

import hashlib
from collections.abc import Callable
from typing import Any

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.authorization import Authorization
from tidelog.broker.requests.connection_context import ConnectionContext
from tidelog.broker.requests.mutation_quota import STRICT_SINCE, serve_mutation
from tidelog.broker.requests.request import PendingAnswer, Request
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.metrics import Metrics
from tidelog.model.client_quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from tidelog.model.image import ClusterImage
from tidelog.model.ports import Clock
from tidelog.protocol import fetch, produce
from tidelog.protocol.apis import PRODUCE, Api
from tidelog.security.quotas import TokenBucket, find_address_limit, find_limit

#: what brokers ask of each other, and from which version on
_BETWEEN_BROKERS = {
    "Fetch": 0,
    "ListOffsets": 0,
    "OffsetForLeaderEpoch": 0,
    "WriteTxnMarkers": 0,
    "AddPartitionsToTxn": 4,
    "InitializeShareGroupState": 0,
    "ReadShareGroupState": 0,
    "WriteShareGroupState": 0,
    "DeleteShareGroupState": 0,
    "ReadShareGroupStateSummary": 0,
}
#: buckets kept of clients; when there are more, those that are full are forgotten, then the oldest
BUCKETS_MAX = 10_000
PEERS_MAX = 10_000
#: longer client ids are known by their hash
CLIENT_ID_LENGTH_MAX = 256
CONNECTIONS_BURST_MS = 1_000
#: over how long the connections wake that waited for the same limit
STAGGER_MS_MAX = 1_000
_NANOSECONDS_PER_PERCENT = 1e7

BucketKey = tuple[str, str | None, str | None]


class Meter:
    """A limit, and what those who share it may still do."""

    __slots__ = ("bucket", "limit")

    def __init__(self, limit: float, bucket: TokenBucket) -> None:
        self.limit = limit
        self.bucket = bucket

    def record(self, value: float, now_ms: int) -> int:
        """Note so much more; how long to wait now."""
        self.bucket.take(value, self.limit, now_ms)
        return self.bucket.throttle_ms(self.limit, now_ms)

    def hold_ms(self, now_ms: int) -> int:
        """How long to wait before anything more; each a little longer, for not all shall wake at once."""
        waits_ms = self.bucket.throttle_ms(self.limit, now_ms)
        if not waits_ms:
            self.bucket.held_count = 0
            return 0
        self.bucket.held_count += 1
        return waits_ms + min(self.bucket.held_count, STAGGER_MS_MAX) - 1


class Meters:
    """What holds for one user and client id; None where nothing does."""

    __slots__ = ("consumer", "mutations", "producer", "requests")

    def __init__(self) -> None:
        self.producer: Meter | None = None
        self.consumer: Meter | None = None
        self.requests: Meter | None = None
        self.mutations: Meter | None = None


class Quotas:
    """The limits of the newest metadata, and how fast everybody is."""

    def __init__(
        self,
        metadata: Metadata,
        live_settings: LiveSettings,
        clock: Clock,
        authorization: Authorization | None,
        metrics: Metrics,
    ) -> None:
        settings = live_settings.static
        self._metadata = metadata
        self._settings = live_settings
        self._clock = clock
        self._authorization = authorization
        self._metrics = metrics
        samples = settings.get_int("quota.window.num")
        # Kafka measures over the full windows before the one under way.
        self._burst_ms = max(samples - 1, 1) * settings.get_int("quota.window.size.seconds") * 1000
        self._mutation_burst_ms = (
            settings.get_int("controller.quota.window.num")
            * settings.get_int("controller.quota.window.size.seconds")
            * 1000
        )
        #: in the order in which they were last looked up
        self._buckets: dict[BucketKey, Meter] = {}
        self._meters: dict[tuple[str, str | None], Meters] = {}
        self.adopt(metadata.image)

    def __repr__(self) -> str:
        return f"<Quotas limits={len(self._limits)} clients={len(self._meters)}>"

    def adopt(self, image: ClusterImage) -> None:
        """Let these limits hold from now on; how fast everybody was is not forgotten."""
        self._limits = image.client_quotas
        self._meters = {}

    def _now_ms(self) -> int:
        return self._clock.monotonic_ms()

    # -- whose limit is whose

    def meters(self, context: ConnectionContext) -> Meters:
        """What holds for the peer of a connection."""
        client_id = context.client_id
        found = self._meters.get((context.principal, client_id))
        if found is not None:
            return found
        if client_id is not None and len(client_id) > CLIENT_ID_LENGTH_MAX:
            # Looked up each time, for it is long to keep.
            made = self._find_meters(context.principal, client_id)
            self._meters.pop((context.principal, client_id), None)
            return made
        return self._find_meters(context.principal, client_id)

    def _find_meters(self, principal: str, client_id: str | None) -> Meters:
        if len(self._meters) >= PEERS_MAX:
            self._meters.clear()
        user = principal.partition(":")[2]
        made = self._meters[principal, client_id] = Meters()
        made.producer = self._meter(PRODUCER_BYTE_RATE, user, client_id or "", self._burst_ms)
        made.consumer = self._meter(CONSUMER_BYTE_RATE, user, client_id or "", self._burst_ms)
        made.requests = self._meter(REQUEST_PERCENTAGE, user, client_id or "", self._burst_ms)
        made.mutations = self._meter(CONTROLLER_MUTATION_RATE, user, client_id or "", self._mutation_burst_ms)
        return made

    def _meter(self, key: str, user: str, client_id: str, burst_ms: int) -> Meter | None:
        limit = find_limit(self._limits, key, user, client_id)
        if limit is None:
            return None
        return self._shared((key, limit.user, _known_as(limit.client_id)), limit.value, burst_ms)

    def _shared(self, key: BucketKey, limit: float, burst_ms: int) -> Meter:
        """What all have together whose limit has this key."""
        now_ms = self._now_ms()
        present = self._buckets.pop(key, None)
        if present is None and len(self._buckets) >= BUCKETS_MAX:
            self._make_room(now_ms)
        bucket = TokenBucket(burst_ms, limit, now_ms) if present is None else present.bucket
        self._buckets[key] = meter = Meter(limit, bucket)
        return meter

    def _make_room(self, now_ms: int) -> None:
        """Forget who has nothing to wait for; a client that has as many names as it likes has no limit."""
        kept = {k: one for k, one in self._buckets.items() if not one.bucket.is_full(one.limit, now_ms)}
        for key in list(kept)[: max(len(kept) - BUCKETS_MAX // 2, 0)]:
            del kept[key]
        self._buckets = kept
        self._meters = {}

    # -- before a request is served

    def hold_ms(self, context: ConnectionContext, api: Api, version: int) -> int:
        """How long a request has to wait before it is served: somebody who shares its limit was above it."""
        context.counted_ns = 0
        if context.gate is not None:
            context.counted_ns = None  # nobody has said yet who it is
            return 0
        meters = self.meters(context)
        waits_ms, quota = 0, "request"
        if meters.requests is not None:
            waits_ms = meters.requests.hold_ms(self._now_ms())
        if api.key == PRODUCE and meters.producer is not None:
            by_bytes_ms = meters.producer.hold_ms(self._now_ms())
            if by_bytes_ms > waits_ms:
                waits_ms, quota = by_bytes_ms, "produce"
        elif meters.mutations is not None and version < STRICT_SINCE.get(api.name, 0):
            by_tokens_ms = meters.mutations.hold_ms(self._now_ms())
            if by_tokens_ms > waits_ms:
                waits_ms, quota = by_tokens_ms, "mutation"
        if not waits_ms or self._between_brokers(context, api, version):
            return 0
        self._mute(context, waits_ms, quota)
        return waits_ms

    def _between_brokers(self, context: ConnectionContext, api: Api, version: int) -> bool:
        """Whether brokers ask this of each other, and the peer may act as one."""
        since = _BETWEEN_BROKERS.get(api.name)
        if since is None or version < since:
            return False
        authorization = self._authorization
        return authorization is None or authorization.allows_cluster_action(context)

    # -- data

    def limits_produce(self, context: ConnectionContext) -> bool:
        """Whether every Produce request of the peer has to be counted."""
        meters = self.meters(context)
        return meters.producer is not None or meters.requests is not None

    def limits_requests(self, context: ConnectionContext) -> bool:
        """Whether every request of the peer has to be counted."""
        return self.meters(context).requests is not None

    def produced(
        self, context: ConnectionContext, version: int, frame_bytes: int, took_ns: int, answer: Any
    ) -> Any:
        """Count a Produce request; the answer with the time to wait."""
        throttle_ms, quota = self.request_took(context, took_ns), "request"
        producer = self.meters(context).producer
        if producer is not None:
            by_bytes_ms = producer.record(frame_bytes, self._now_ms())
            if by_bytes_ms > throttle_ms:
                throttle_ms, quota = by_bytes_ms, "produce"
        if not throttle_ms:
            return answer
        self._mute(context, throttle_ms, quota)
        return _changed(answer, lambda data: produce.with_throttle_time(data, version, throttle_ms))

    def fetch_bytes_max(self, context: ConnectionContext) -> int | None:
        """The most that one Fetch answer may have: what the windows hold; None without a limit."""
        consumer = self.meters(context).consumer
        if consumer is None:
            return None
        return max(int(consumer.bucket.capacity(consumer.limit)), 1)

    def fetched(self, context: ConnectionContext, record_bytes: int) -> int:
        """Count the records of a Fetch answer; if they are too many, how long to wait instead."""
        consumer = self.meters(context).consumer
        if consumer is None:
            return 0
        now_ms = self._now_ms()
        throttle_ms = consumer.record(record_bytes, now_ms)
        if throttle_ms:
            consumer.bucket.take(-record_bytes, consumer.limit, now_ms)
            self._mute(context, throttle_ms, "fetch")
        return throttle_ms

    def share_fetched(self, context: ConnectionContext, record_bytes: int) -> int:
        """Count the records of a ShareFetch answer, which are sent in any case: nobody else could get them
        before their locks end. How long to wait then.
        """
        consumer = self.meters(context).consumer
        if consumer is None:
            return 0
        throttle_ms = consumer.record(record_bytes, self._now_ms())
        if throttle_ms:
            self._mute(context, throttle_ms, "fetch")
        return throttle_ms

    def fetch_took(self, context: ConnectionContext, version: int, took_ns: int, answer: Any) -> Any:
        """Count the time of a Fetch request, unless a follower's; the answer with the time to wait."""
        throttle_ms = 0 if context.is_replica else self.request_took(context, took_ns)
        if not throttle_ms:
            return answer
        self._mute(context, throttle_ms, "request")
        return _changed(answer, lambda chunks: fetch.with_throttle_time(chunks, version, throttle_ms))

    def request_took(self, context: ConnectionContext, took_ns: int) -> int:
        """Count the time that a request took; how long to wait."""
        requests = self.meters(context).requests
        if requests is None or context.counted_ns is None:
            return 0
        return requests.record(took_ns / _NANOSECONDS_PER_PERCENT, self._now_ms())

    def finished(self, context: ConnectionContext, took_ns: int) -> None:
        """Count what a request took beyond what was counted when its answer was made."""
        if context.counted_ns is not None:
            self.took_later(context, took_ns - context.counted_ns)

    def took_later(self, context: ConnectionContext, took_ns: int) -> None:
        """Count time that no answer tells of any more."""
        requests = self.meters(context).requests
        if requests is not None:
            throttle_ms = requests.record(took_ns / _NANOSECONDS_PER_PERCENT, self._now_ms())
            if throttle_ms:
                context.throttle_ms = max(context.throttle_ms, throttle_ms)

    def _mute(self, context: ConnectionContext, throttle_ms: int, quota: str) -> None:
        self._metrics.throttled(quota, throttle_ms)
        context.throttle_ms = max(context.throttle_ms, throttle_ms)

    # -- everything else

    def serve(self, call: Callable[[Request], Any], request: Request, took_ns: Callable[[], int]) -> Any:
        """Have a request served and counted; `took_ns` tells what it has taken so far."""
        from tidelog.broker.requests.guards.guard import changed

        context = request.context
        # What clients ask too says for whom: consumers are -1, a broker has its number.
        as_broker = getattr(request.body, "replica_id", 0) >= 0
        if context.gate is not None or (
            as_broker and self._between_brokers(context, request.api, request.version)
        ):
            context.counted_ns = None
            return call(request)
        meters = self.meters(context)
        throttle_ms = 0
        if meters.mutations is None:
            answer = call(request)
        else:
            answer, throttle_ms = serve_mutation(
                meters.mutations.bucket,
                meters.mutations.limit,
                call,
                request,
                self._metadata.image,
                self._settings.get_int("num.partitions"),
                self._now_ms(),
            )
        context.counted_ns = took_ns()
        by_time_ms = self.request_took(context, context.counted_ns)
        quota = "mutation" if throttle_ms > by_time_ms else "request"
        throttle_ms = max(throttle_ms, by_time_ms)
        if not throttle_ms:
            return answer
        self._mute(context, throttle_ms, quota)
        return changed(answer, lambda fields: {**fields, "throttle_time": throttle_ms})

    def admits(self, host: str) -> bool:
        """Whether one more connection from an address may come in now."""
        limit = find_address_limit(self._limits, CONNECTION_CREATION_RATE, host)
        if limit is None:
            return True
        meter = self._shared((CONNECTION_CREATION_RATE, host, None), limit, CONNECTIONS_BURST_MS)
        now_ms = self._now_ms()
        if meter.record(1, now_ms) == 0:
            return True
        meter.bucket.take(-1, limit, now_ms)
        return False


def _known_as(client_id: str | None) -> str | None:
    if client_id is None or len(client_id) <= CLIENT_ID_LENGTH_MAX:
        return client_id
    return hashlib.sha256(client_id.encode(errors="surrogatepass")).hexdigest()


def _changed(answer: Any, change: Callable[[Any], Any]) -> Any:
    """The answer after a change; one that comes later is changed then."""
    if answer is None:
        return None
    if isinstance(answer, bytes | list):
        return change(answer)
    pending: PendingAnswer = answer
    pending.change = change
    return pending
