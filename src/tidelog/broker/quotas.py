"""Quotas of a broker: how much each user, client id and address may, and making them wait who want more.

There are none until somebody sets one (AlterClientQuotas), and then nothing here costs anything:
`broker.quotas` is None. Clients without a limit keep the short way of Produce also where others have one.

    producer_byte_rate         bytes of Produce requests, counted when they arrive
    consumer_byte_rate         bytes of records in Fetch answers; above the limit the answer is empty
    request_percentage         time that the broker spends on requests; 100 is all that its one thread has
    controller_mutation_rate   partitions created and deleted, in tokens (KIP-599)
    connection_creation_rate   new connections from an address

Who is above a limit is told in the answer how long to wait (KIP-219), and nothing is read from the
connection for so long: `ConnectionContext.throttle_ms` asks the server for that. The limit that holds and
who shares it is Kafka's choice (see security/quotas); each broker counts for itself, as in Kafka.

Not counted: what brokers do for each other (Fetch of followers, commands for the controller).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidelog.model.client_quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from tidelog.protocol.primitives import INT32
from tidelog.security.quotas import SampledRate, TokenBucket, Windows, find_address_limit, find_limit

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.dispatch import ConnectionContext, PendingAnswer, Request
    from tidelog.model.image import ClusterImage

#: what brokers ask of each other is not counted
_BETWEEN_BROKERS = {"WriteTxnMarkers": 0, "AddPartitionsToTxn": 4}
#: rates kept of clients; when there are more, those that are over are forgotten
RATES_MAX = 10_000
PEERS_MAX = 10_000
PRODUCE_FIRST_FLEXIBLE = 9
FETCH_FIRST_FLEXIBLE = 12
_NANOSECONDS_PER_PERCENT = 1e7

RateKey = tuple[str, str | None, str | None]


class Meter:
    """A limit, and how fast those are who share it."""

    __slots__ = ("limit", "rate")

    def __init__(self, limit: float, rate: SampledRate) -> None:
        self.limit = limit
        self.rate = rate

    def record(self, value: float, now_ms: int) -> int:
        """Note so much more; how long to wait now."""
        self.rate.record(value, now_ms)
        return self.rate.throttle_ms(self.limit, now_ms)


class Meters:
    """What holds for one user and client id; None where nothing does."""

    __slots__ = ("consumer", "mutation_limit", "mutations", "producer", "requests")

    def __init__(self) -> None:
        self.producer: Meter | None = None
        self.consumer: Meter | None = None
        self.requests: Meter | None = None
        self.mutation_limit = 0.0
        self.mutations: TokenBucket | None = None


class Quotas:
    """The limits of the newest metadata, and how fast everybody is."""

    def __init__(self, broker: "Broker", image: "ClusterImage") -> None:
        settings = broker.static_settings
        self._broker = broker
        self.windows = Windows(
            settings.get_int("quota.window.num"), settings.get_int("quota.window.size.seconds") * 1000
        )
        self._mutation_windows = Windows(
            settings.get_int("controller.quota.window.num"),
            settings.get_int("controller.quota.window.size.seconds") * 1000,
        )
        self._rates: dict[RateKey, SampledRate] = {}
        self._buckets: dict[RateKey, TokenBucket] = {}
        self._meters: dict[tuple[str, str | None], Meters] = {}
        self.adopt(image)

    def __repr__(self) -> str:
        return f"<Quotas limits={len(self._limits)} clients={len(self._meters)}>"

    def adopt(self, image: "ClusterImage") -> None:
        """Let these limits hold from now on; how fast everybody was is not forgotten."""
        self._limits = image.client_quotas
        self._meters = {}

    def _now_ms(self) -> int:
        return self._broker.clock.monotonic_ms()

    # -- whose limit is whose

    def meters(self, context: "ConnectionContext") -> Meters:
        """What holds for the peer of a connection."""
        found = self._meters.get((context.principal, context.client_id))
        return self._find_meters(context.principal, context.client_id) if found is None else found

    def _find_meters(self, principal: str, client_id: str | None) -> Meters:
        if len(self._meters) >= PEERS_MAX:
            self._meters.clear()
        user = principal.partition(":")[2]
        now_ms = self._now_ms()
        made = self._meters[principal, client_id] = Meters()
        made.producer = self._meter(PRODUCER_BYTE_RATE, user, client_id or "", now_ms)
        made.consumer = self._meter(CONSUMER_BYTE_RATE, user, client_id or "", now_ms)
        made.requests = self._meter(REQUEST_PERCENTAGE, user, client_id or "", now_ms)
        limit = find_limit(self._limits, CONTROLLER_MUTATION_RATE, user, client_id or "")
        if limit is not None:
            key = (CONTROLLER_MUTATION_RATE, limit.user, limit.client_id)
            made.mutation_limit = limit.value
            made.mutations = self._bucket(key, limit.value, self._mutation_windows, now_ms)
        return made

    def _meter(self, key: str, user: str, client_id: str, now_ms: int) -> Meter | None:
        limit = find_limit(self._limits, key, user, client_id)
        if limit is None:
            return None
        shared = (key, limit.user, limit.client_id)
        rate = self._rates.get(shared)
        if rate is None:
            if len(self._rates) >= RATES_MAX:
                over_ms = now_ms - self.windows.samples * self.windows.size_ms
                self._rates = {k: rate for k, rate in self._rates.items() if rate.last_ms > over_ms}
            rate = self._rates[shared] = SampledRate(self.windows, now_ms)
        return Meter(limit.value, rate)

    def _bucket(self, key: RateKey, limit: float, windows: Windows, now_ms: int) -> TokenBucket:
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= RATES_MAX:
                over_ms = now_ms - windows.samples * windows.size_ms
                self._buckets = {k: one for k, one in self._buckets.items() if one.last_ms > over_ms}
            bucket = self._buckets[key] = TokenBucket(windows, limit, now_ms)
        return bucket

    # -- data

    def limits_produce(self, context: "ConnectionContext") -> bool:
        """Whether every Produce request of the peer has to be counted."""
        meters = self.meters(context)
        return meters.producer is not None or meters.requests is not None

    def limits_requests(self, context: "ConnectionContext") -> bool:
        """Whether every request of the peer has to be counted."""
        return self.meters(context).requests is not None

    def produced(
        self, context: "ConnectionContext", version: int, frame_bytes: int, took_ns: int, answer: Any
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
        tail_bytes = 5 if version >= PRODUCE_FIRST_FLEXIBLE else 4

        def told(data: bytes) -> bytes:
            rest = len(data) - tail_bytes
            return data[:rest] + INT32.pack(throttle_ms) + data[rest + 4 :]

        return _changed(answer, told)

    def fetch_bytes_max(self, context: "ConnectionContext") -> int | None:
        """The most that one Fetch answer may have: what the windows hold; None without a limit."""
        consumer = self.meters(context).consumer
        if consumer is None:
            return None
        return max(int(consumer.limit * (self.windows.samples - 1) * self.windows.size_ms / 1000), 1)

    def fetched(self, context: "ConnectionContext", record_bytes: int) -> int:
        """Count the records of a Fetch answer; if they are too many, how long to wait instead."""
        consumer = self.meters(context).consumer
        if consumer is None:
            return 0
        now_ms = self._now_ms()
        throttle_ms = consumer.record(record_bytes, now_ms)
        if throttle_ms:
            consumer.rate.record(-record_bytes, now_ms)
            self._mute(context, throttle_ms, "fetch")
        return throttle_ms

    def fetch_took(self, context: "ConnectionContext", version: int, took_ns: int, answer: Any) -> Any:
        """Count the time of a Fetch request; the answer with the time to wait."""
        throttle_ms = self.request_took(context, took_ns)
        if not throttle_ms:
            return answer
        self._mute(context, throttle_ms, "request")
        position = 9 if version >= FETCH_FIRST_FLEXIBLE else 8

        def told(chunks: list[Any]) -> list[Any]:
            head = chunks[0]
            longest_ms = max(throttle_ms, INT32.unpack_from(head, position)[0])
            return [head[:position] + INT32.pack(longest_ms) + head[position + 4 :], *chunks[1:]]

        return _changed(answer, told)

    def request_took(self, context: "ConnectionContext", took_ns: int) -> int:
        """Count the time that a request took; how long to wait, never longer than a window."""
        requests = self.meters(context).requests
        if requests is None or context.is_replica:
            return 0
        return min(requests.record(took_ns / _NANOSECONDS_PER_PERCENT, self._now_ms()), self.windows.size_ms)

    def _mute(self, context: "ConnectionContext", throttle_ms: int, quota: str) -> None:
        self._broker.metrics.throttled(quota, throttle_ms)
        context.throttle_ms = max(context.throttle_ms, throttle_ms)

    # -- everything else

    def serve(self, call: "Callable[[Request], Any]", request: "Request", clock_ns: Callable[[], int]) -> Any:
        """Have a request served and counted."""
        from tidelog.broker.guards.guard import changed
        from tidelog.broker.mutation_quota import serve_mutation

        since = _BETWEEN_BROKERS.get(request.api.name)
        if since is not None and request.version >= since:
            return call(request)
        began_ns = clock_ns()
        context = request.context
        meters = self.meters(context)
        throttle_ms = 0
        if meters.mutations is None:
            answer = call(request)
        else:
            answer, throttle_ms = serve_mutation(
                meters.mutations, meters.mutation_limit, call, request, self._broker, self._now_ms()
            )
        by_time_ms = self.request_took(context, clock_ns() - began_ns)
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
        now_ms = self._now_ms()
        bucket = self._bucket((CONNECTION_CREATION_RATE, host, None), limit, Windows(1, 1000), now_ms)
        bucket.take(1, limit, now_ms)
        if bucket.throttle_ms(limit, now_ms) == 0:
            return True
        bucket.take(-1, limit, now_ms)
        return False


def _changed(answer: Any, change: Callable[[Any], Any]) -> Any:
    """The answer after a change; one that comes later is changed then."""
    if answer is None:
        return None
    if isinstance(answer, bytes | list):
        return change(answer)
    pending: PendingAnswer = answer
    pending.change = change
    return pending
