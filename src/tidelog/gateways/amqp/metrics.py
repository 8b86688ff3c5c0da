"""What a gateway counts, as text for Prometheus."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tidelog.gateways.latency import Latency


@dataclass(slots=True)
class Metrics:
    """Counters; gauges are asked for when somebody looks."""

    connections_opened: int = 0
    connections_refused: int = 0
    logins_failed: int = 0
    protocol_errors: int = 0
    channel_errors: int = 0
    published: int = 0
    published_bytes: int = 0
    confirmed: int = 0
    unroutable: int = 0
    publish_failed: int = 0
    delivered: int = 0
    delivered_bytes: int = 0
    redelivered: int = 0
    acknowledged: int = 0
    requeued: int = 0
    rejected: int = 0
    dead_lettered: int = 0
    expired: int = 0
    write_latency: Latency = field(
        default_factory=lambda: Latency(
            "tidelog_gateway_amqp_write_seconds",
            "From a message's arrival until its record is on all in-sync replicas, when it is confirmed.",
        )
    )


HELP = {
    "connections_opened": "Connections that logged in.",
    "connections_refused": "Connections refused because there were too many.",
    "logins_failed": "Logins that the cluster refused.",
    "protocol_errors": "Connections closed for what they sent.",
    "channel_errors": "Channels closed with an error.",
    "published": "Messages published.",
    "published_bytes": "Bytes of their bodies.",
    "confirmed": "Records written to queues, on all replicas.",
    "unroutable": "Messages that no queue got.",
    "publish_failed": "Records that could not be written.",
    "delivered": "Messages delivered.",
    "delivered_bytes": "Bytes of their bodies.",
    "redelivered": "Deliveries that were not the first.",
    "acknowledged": "Deliveries acknowledged.",
    "requeued": "Deliveries given back.",
    "rejected": "Deliveries rejected.",
    "dead_lettered": "Messages written to a dead letter exchange.",
    "expired": "Messages whose time was over.",
}


def exposition(metrics: Metrics, gauges: Mapping[str, tuple[str, Callable[[], int]]]) -> str:
    """The counters and gauges in Prometheus' text format."""
    lines = []
    for name, text in HELP.items():
        full = f"tidelog_gateway_amqp_{name}_total"
        lines += [f"# HELP {full} {text}", f"# TYPE {full} counter", f"{full} {getattr(metrics, name)}"]
    for name, (text, ask) in gauges.items():
        full = f"tidelog_gateway_amqp_{name}"
        lines += [f"# HELP {full} {text}", f"# TYPE {full} gauge", f"{full} {ask()}"]
    return "\n".join([*lines, *metrics.write_latency.lines()]) + "\n"
