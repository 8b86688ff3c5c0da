"""What a broker counts as it works; everything else is worked out when somebody asks (see `scrape`).

The busy paths pay integer additions only. A Produce request on the fast path adds one to a count. When
there are `FAST_PATH_COUNT_TIMED` of them the turn of the loop that is under way is timed, and its time stands
for all: every request is counted, and where turns have one request each, one in eight is timed. The others
read the clock once each. Nothing here is locked: all of it runs on the broker's event loop.

Latencies are counted by the number of bits of their nanoseconds, so buckets are powers of two and finding
one is a single operation.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from time import perf_counter_ns
from typing import Any

from tidelog.broker.runtime.events import Events
from tidelog.broker.runtime.share_counts import ShareCounts
from tidelog.broker.runtime.topic_traffic import TopicTraffic
from tidelog.model.ports import Clock
from tidelog.protocol.apis import PRODUCE

#: how many parts of one answer are looked at for error codes
ANSWER_PARTS_LOOKED_AT_MAX = 2_000
#: requests of the fast path for which one turn is timed; timing each would cost them three per cent
FAST_PATH_COUNT_TIMED = 8
_BITS_MAX = 64


class Histogram:
    """Durations by powers of two: `counts[n]` had n bits of nanoseconds."""

    __slots__ = ("counts", "sum_ns")

    def __init__(self) -> None:
        self.counts = [0] * (_BITS_MAX + 1)
        self.sum_ns = 0

    def observe(self, elapsed_ns: int, times: int = 1) -> None:
        """Count a duration, so many times."""
        self.counts[elapsed_ns.bit_length()] += times
        self.sum_ns += elapsed_ns * times

    @property
    def count(self) -> int:
        return sum(self.counts)

    def __repr__(self) -> str:
        return f"<Histogram count={self.count} sum_ns={self.sum_ns}>"


class RequestMetrics:
    """Requests by API: how many, how long they took, which error codes they were answered with."""

    __slots__ = ("_short", "began_ns", "errors", "fast_path_count", "latencies")

    def __init__(self) -> None:
        #: when the requests of this turn of the loop arrived
        self.began_ns = 0
        #: Produce requests that went by the fast path and stand in no histogram yet
        self.fast_path_count = 0
        self._short = Histogram()
        self.latencies: dict[int, Histogram] = {PRODUCE: self._short}
        #: error codes in answers, by API key and code
        self.errors: Counter[tuple[int, int]] = Counter()

    def of(self, key: int) -> Histogram:
        """The latencies of an API."""
        found = self.latencies.get(key)
        if found is None:
            found = self.latencies[key] = Histogram()
        return found

    def answered(self, key: int, began_ns: int) -> None:
        """A request that arrived at `began_ns` has its answer."""
        elapsed_ns = perf_counter_ns() - began_ns
        try:
            histogram = self.latencies[key]
        except KeyError:
            histogram = self.of(key)
        # As in `observe`, without the call.
        histogram.counts[elapsed_ns.bit_length()] += 1
        histogram.sum_ns += elapsed_ns

    def end_turn(self) -> None:
        """The answers of this turn have left: time it, for all on the fast path since the last one."""
        elapsed_ns = perf_counter_ns() - self.began_ns
        histogram, count = self._short, self.fast_path_count
        histogram.counts[elapsed_ns.bit_length()] += count
        histogram.sum_ns += elapsed_ns * count
        self.fast_path_count = 0

    def settle(self) -> None:
        """Somebody looks: count those that no turn was timed for yet, with the mean of the others."""
        if self.fast_path_count:
            timed = self._short.count
            self._short.observe(self._short.sum_ns // timed if timed else 0, self.fast_path_count)
            self.fast_path_count = 0

    def error(self, key: int, code: int) -> None:
        """An answer carries an error code."""
        self.errors[key, int(code)] += 1

    def look_for_errors(self, key: int, answer: Mapping[str, Any]) -> None:
        """Count the error codes in the answer of a control-plane request."""
        left: list[Mapping[str, Any]] = [answer]
        looked_at = 0
        while left and looked_at < ANSWER_PARTS_LOOKED_AT_MAX:
            looked_at += 1
            for name, value in left.pop().items():
                if name == "error_code":
                    if value:
                        self.errors[key, int(value)] += 1
                elif isinstance(value, dict):
                    left.append(value)
                elif isinstance(value, list | tuple) and value and isinstance(value[0], dict):
                    left.extend(_parts(value))


def _parts(values: Sequence[Any]) -> Sequence[Mapping[str, Any]]:
    return values[:ANSWER_PARTS_LOOKED_AT_MAX]


class CleanerMetrics:
    """What compaction did since the broker started."""

    __slots__ = ("bytes_read", "bytes_written", "failures", "records_kept", "records_read", "rounds")

    def __init__(self) -> None:
        self.rounds = 0
        self.failures = 0
        self.records_read = 0
        self.records_kept = 0
        self.bytes_read = 0
        self.bytes_written = 0


class Metrics:
    """The counts of one broker."""

    def __init__(self, clock: Clock, node_id: int) -> None:
        self.started_ms = clock.now_ms()
        self.requests = RequestMetrics()
        self.traffic = TopicTraffic()
        self.cleaner = CleanerMetrics()
        self.shares = ShareCounts()
        self.events = Events(clock, node_id)
        self.flushes = Histogram()
        self.flush_failures = 0
        #: transactions whose outcome the coordinators here decided: aborted, committed
        self.transactions_decided = [0, 0]
        #: by kind of quota: how often somebody had to wait, and for how many milliseconds in all
        self.throttle_count: Counter[str] = Counter()
        self.throttle_ms: Counter[str] = Counter()

    def throttled(self, quota: str, delay_ms: int) -> None:
        """A quota makes somebody wait."""
        self.throttle_count[quota] += 1
        self.throttle_ms[quota] += delay_ms

    def __repr__(self) -> str:
        requests = sum(each.count for each in self.requests.latencies.values())
        return f"<Metrics requests={requests} events={self.events.count}>"
