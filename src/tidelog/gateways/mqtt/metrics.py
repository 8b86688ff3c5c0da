"""Numbers about a gateway, in Prometheus' text format."""

from collections import Counter

from tidelog.gateways.latency import Latency
from tidelog.gateways.mqtt.faults import Reason
from tidelog.gateways.mqtt.packets import Acknowledgement, Answers, Packet, Ping, Publish


class Metrics:
    """Counted on the event loop."""

    def __init__(self) -> None:
        self.connections_total = 0
        self.dropped = 0
        self.refused = 0
        self.wills = 0
        self.takeovers = 0
        self.acknowledged = Latency(
            "tidelog_mqtt_acknowledge_seconds",
            "From a message of QoS 1 or 2 to its PUBACK or PUBREC, when all in-sync replicas have it.",
        )
        self._received_bytes = 0
        self._sent_bytes = 0
        self._received: Counter[str] = Counter()
        self._published: Counter[int] = Counter()
        self._sent: Counter[int] = Counter()
        self._failed: Counter[str] = Counter()

    def received(self, packet: Packet) -> None:
        if isinstance(packet, Publish):
            self._published[packet.qos] += 1
            self._received_bytes += len(packet.payload)
        elif isinstance(packet, Acknowledgement | Answers | Ping):
            self._received[packet.kind.name.lower()] += 1
        else:
            self._received[type(packet).__name__.lower()] += 1

    def sent(self, qos: int, payload_bytes: int) -> None:
        self._sent[qos] += 1
        self._sent_bytes += payload_bytes

    def failed(self, reason: Reason) -> None:
        self._failed[reason.name.lower()] += 1

    def text(self, gauges: dict[str, tuple[str, float]], counters: dict[str, tuple[str, float]]) -> str:
        """Everything; `gauges` and `counters` are what the parts of the gateway know: meaning and value."""
        lines: list[str] = []

        def family(name: str, kind: str, meaning: str, rows: dict[str, float]) -> None:
            lines.append(f"# HELP tidelog_mqtt_{name} {meaning}")
            lines.append(f"# TYPE tidelog_mqtt_{name} {kind}")
            # Not rounded, as a short form of large numbers would be.
            lines.extend(f"tidelog_mqtt_{name}{labels} {value:.17g}" for labels, value in rows.items())

        for name, (meaning, value) in gauges.items():
            family(name, "gauge", meaning, {"": value})
        counters = {
            "connections_total": ("Connections accepted.", self.connections_total),
            "messages_dropped_total": (
                "Messages not sent: expired, too large, client too slow.",
                self.dropped,
            ),
            "messages_refused_total": ("Messages of clients not written.", self.refused),
            "received_bytes_total": ("Payloads that clients published.", self._received_bytes),
            "sent_bytes_total": ("Payloads sent to clients.", self._sent_bytes),
            "wills_total": ("Wills published.", self.wills),
            "takeovers_total": ("Sessions that moved to another connection.", self.takeovers),
            **counters,
        }
        for name, (meaning, value) in counters.items():
            family(name, "counter", meaning, {"": value})
        published = {f'{{qos="{qos}"}}': float(count) for qos, count in sorted(self._published.items())}
        family("messages_received_total", "counter", "Messages that clients published.", published)
        sent = {f'{{qos="{qos}"}}': float(count) for qos, count in sorted(self._sent.items())}
        family("messages_sent_total", "counter", "Messages sent to clients.", sent)
        kinds = {f'{{type="{name}"}}': float(count) for name, count in sorted(self._received.items())}
        family("packets_received_total", "counter", "Other packets of clients.", kinds)
        failed = {f'{{reason="{name}"}}': float(count) for name, count in sorted(self._failed.items())}
        family("connections_failed_total", "counter", "Connections closed because of a fault.", failed)
        return "\n".join([*lines, *self.acknowledged.lines()]) + "\n"
