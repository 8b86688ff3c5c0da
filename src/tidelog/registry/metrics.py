"""Numbers about an instance, in Prometheus' text format: requests by route, what is stored, who writes."""

import threading
import time
from collections import Counter

from tidelog.registry.service import Registry

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.025, 0.1, 0.5, 2.5, 10.0)


class Metrics:
    """Counts requests; safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._buckets: Counter[float] = Counter()
        self._seconds = 0.0
        self._count = 0
        self.forwarded = 0

    def count(self, method: str, template: str, status: int, seconds: float) -> None:
        """Templates come from the table of routes: whoever sends requests makes no new series."""
        with self._lock:
            self._requests[method, template, status] += 1
            self._count += 1
            self._seconds += seconds
            for limit in _SECONDS:
                if seconds <= limit:
                    self._buckets[limit] += 1

    def text(self, registry: Registry) -> str:
        lines: list[str] = []

        def family(name: str, kind: str, meaning: str) -> None:
            lines.append(f"# HELP {name} {meaning}")
            lines.append(f"# TYPE {name} {kind}")

        def single(name: str, kind: str, meaning: str, value: float) -> None:
            family(name, kind, meaning)
            lines.append(f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}")

        with self._lock:
            family("tidelog_registry_requests_total", "counter", "Requests answered.")
            for (method, template, status), count in sorted(self._requests.items()):
                labels = f'method="{method}",path="/{template}",status="{status}"'
                lines.append(f"tidelog_registry_requests_total{{{labels}}} {count}")
            family("tidelog_registry_request_seconds", "histogram", "Time until a request was answered.")
            for limit in _SECONDS:
                lines.append(
                    f'tidelog_registry_request_seconds_bucket{{le="{limit:g}"}} {self._buckets[limit]}'
                )
            lines.append(f'tidelog_registry_request_seconds_bucket{{le="+Inf"}} {self._count}')
            lines.append(f"tidelog_registry_request_seconds_sum {self._seconds:.6f}")
            lines.append(f"tidelog_registry_request_seconds_count {self._count}")
        for name, value in registry.state.counts().items():
            single(
                f"tidelog_registry_{name}", "gauge", f"{name.replace('_', ' ').capitalize()} stored.", value
            )
        single(
            "tidelog_registry_primary", "gauge", "1 where this instance writes.", int(registry.primary.is_us)
        )
        single("tidelog_registry_ready", "gauge", "1 where it can serve.", int(registry.is_ready))
        single("tidelog_registry_changes_total", "counter", "Changes written.", registry.changes)
        single("tidelog_registry_claims_total", "counter", "Times it began to write.", registry.claims)
        single("tidelog_registry_forwarded_total", "counter", "Changes sent to the primary.", self.forwarded)
        single("tidelog_registry_log_position", "gauge", "Offset applied.", registry.log.position)
        single(
            "tidelog_registry_unreadable_records_total",
            "counter",
            "Records of the topic that are none of the registry's.",
            registry.state.unreadable,
        )
        single("tidelog_registry_scraped_at_seconds", "gauge", "Time of this text.", int(time.time()))
        return "\n".join(lines) + "\n"
