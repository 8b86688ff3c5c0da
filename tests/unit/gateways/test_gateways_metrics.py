"""What gateways count, as Prometheus reads it."""

from tests.support.prometheus_text import read
from tidelog.gateways.amqp.metrics import Metrics as AmqpMetrics
from tidelog.gateways.amqp.metrics import exposition
from tidelog.gateways.latency import BOUNDS, Latency
from tidelog.gateways.mqtt.metrics import Metrics as MqttMetrics
from tidelog.gateways.mqtt.packets import Publish


def test_a_latency_is_counted_in_the_range_it_is_in() -> None:
    latency = Latency("x_seconds", "How long.")
    for seconds in (0.0, BOUNDS[0], BOUNDS[0] * 1.01, BOUNDS[-1] + 1):
        latency.observe(seconds)
    family = read("\n".join(latency.lines()) + "\n")["x_seconds"]
    assert family.kind == "histogram"
    counted = {dict(labels)["le"]: count for (name, labels), count in family.samples.items() if labels}
    assert counted[str(BOUNDS[0])] == 2
    assert counted[str(BOUNDS[1])] == counted[str(BOUNDS[-1])] == 3
    assert counted["+Inf"] == 4
    assert family.samples[("x_seconds_count", frozenset())] == 4
    assert family.samples[("x_seconds_sum", frozenset())] == 11.002010


def test_mqtt_counts_messages_and_bytes_exactly() -> None:
    metrics = MqttMetrics()
    for _ in range(3):
        metrics.received(Publish("a", b"12345", 1))
    metrics.sent(1, 1_234_567)
    metrics.acknowledged.observe(0.002)
    families = read(metrics.text({"clients": ("Clients connected.", 2)}, {}))
    none: frozenset[tuple[str, str]] = frozenset()
    of_one = frozenset({("qos", "1")})
    assert (
        families["tidelog_mqtt_messages_received_total"].samples[
            ("tidelog_mqtt_messages_received_total", of_one)
        ]
        == 3
    )
    for name, value in (("received_bytes_total", 15), ("sent_bytes_total", 1_234_567), ("clients", 2)):
        family = families[f"tidelog_mqtt_{name}"]
        assert family.samples[(f"tidelog_mqtt_{name}", none)] == value
    latency = families["tidelog_mqtt_acknowledge_seconds"]
    assert latency.samples[("tidelog_mqtt_acknowledge_seconds_count", none)] == 1


def test_amqp_counts_every_counter_once() -> None:
    metrics = AmqpMetrics(published=7, delivered_bytes=9)
    metrics.write_latency.observe(0.3)
    families = read(exposition(metrics, {"queues": ("Queues that exist.", lambda: 4)}))
    none: frozenset[tuple[str, str]] = frozenset()
    for name, value in (("published_total", 7), ("delivered_bytes_total", 9), ("queues", 4)):
        full = f"tidelog_gateway_amqp_{name}"
        assert families[full].samples[(full, none)] == value
    full = "tidelog_gateway_amqp_write_seconds"
    assert families[full].samples[(f"{full}_count", none)] == 1
