"""Quotas held: three clients above their limits at once, and what a fourth one without a limit notices.

    python -m bench.quotas [--seconds 33] [--json]

Three producers, then three consumers, each a process with a limit of its own, go as fast as they are let; a
fourth client sends one small record after the other and waits for each. Its latency is measured alone and
beside the three; and, to compare, beside three producers without limits.
Rates are measured over whole turns of the quota windows (11 windows of one second): a client that begins may
use up what the windows hold, and again with each turn. Numbers are printed as a table; nothing is asserted.
"""

import argparse
import json
import multiprocessing
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from confluent_kafka import Consumer, Producer, TopicPartition

from tidelog.testing.broker import RunningBroker

LIMITS = {"slow": 500_000, "middle": 1_000_000, "fast": 2_000_000}
TURN_SECONDS = 11
RECORD_BYTES = 1_000
#: small batches, so that no request costs more than a fraction of a window
BATCH_BYTES = 50_000
PROBE_PAUSE_SECONDS = 0.005

Row = dict[str, float | str]


def set_limit(bootstrap: str, client_id: str, key: str, rate: int) -> None:
    words = ["quota", "set", f"{key}={rate}", "--client-id", client_id, "--bootstrap", bootstrap]
    subprocess.run([sys.executable, "-m", "tidelog.cli", *words], check=True, stdout=subprocess.DEVNULL)


class Meter:
    """Bytes that came through, seen from another process."""

    def __init__(self) -> None:
        self._bytes = multiprocessing.Value("q", 0)
        self._stopped = multiprocessing.Event()

    @property
    def bytes(self) -> int:
        return int(self._bytes.value)

    def add(self, size: int) -> None:
        with self._bytes.get_lock():
            self._bytes.value += size

    def stop(self) -> None:
        self._stopped.set()

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()


def produce_until(bootstrap: str, client_id: str, topic: str, meter: Meter) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "batch.size": BATCH_BYTES,
            "linger.ms": 20,
            "queue.buffering.max.kbytes": 2_000,
            "message.timeout.ms": 120_000,
        }
    )
    value = b"v" * RECORD_BYTES

    def delivered(error: object, message: object) -> None:
        if error is None:
            meter.add(RECORD_BYTES)

    while not meter.stopped:
        try:
            producer.produce(topic, value, on_delivery=delivered)
            producer.poll(0)
        except BufferError:
            producer.poll(0.05)
    producer.purge()


def consume_until(bootstrap: str, client_id: str, topic: str, meter: Meter) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "group.id": client_id,
            "fetch.message.max.bytes": 100_000,
            "queued.max.messages.kbytes": 1_000,
            "enable.auto.commit": False,
        }
    )
    place = TopicPartition(topic, 0, 0)
    consumer.assign([place])
    while not meter.stopped:
        for message in consumer.consume(500, timeout=0.2):
            if message.error() is None:
                meter.add(len(message.value() or b""))
    consumer.close()


def probe_until(stop: threading.Event, bootstrap: str, latencies_ms: list[float]) -> None:
    """One record after the other, each waited for."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "client.id": "unlimited", "linger.ms": 0, "acks": "1"}
    )
    while not stop.is_set():
        begun = time.perf_counter()
        producer.produce("probe", b"p")
        producer.flush(30)
        latencies_ms.append((time.perf_counter() - begun) * 1000)
        time.sleep(PROBE_PAUSE_SECONDS)


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def latency_of(bootstrap: str, seconds: float) -> list[float]:
    stop = threading.Event()
    latencies_ms: list[float] = []
    thread = threading.Thread(target=probe_until, args=(stop, bootstrap, latencies_ms))
    thread.start()
    time.sleep(seconds)
    stop.set()
    thread.join()
    return latencies_ms[10:]


def run(
    work: Callable[[str, str, str, Meter], None],
    bootstrap: str,
    seconds: int,
    suffix: str,
    warm_seconds: int = TURN_SECONDS,
) -> tuple[list[Row], list[float]]:
    """All three at once, after one turn of the windows; the rates, and the latency of the fourth."""
    meters = {name: Meter() for name in LIMITS}
    processes = [
        multiprocessing.Process(target=work, args=(bootstrap, f"{name}-{suffix}", f"{name}-topic", meter))
        for name, meter in meters.items()
    ]
    for process in processes:
        process.start()
    time.sleep(warm_seconds)
    begun = time.perf_counter()
    before = {name: meter.bytes for name, meter in meters.items()}
    latencies_ms = latency_of(bootstrap, seconds)
    elapsed = time.perf_counter() - begun
    rates = {name: (meter.bytes - before[name]) / elapsed for name, meter in meters.items()}
    for meter in meters.values():
        meter.stop()
    for process in processes:
        process.join()
    rows: list[Row] = [
        {"client": f"{name}-{suffix}", "limit": limit, "measured": rates[name], "ratio": rates[name] / limit}
        for name, limit in LIMITS.items()
    ]
    return rows, latencies_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=int, default=3 * TURN_SECONDS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with RunningBroker(mode="process") as broker:
        for name, limit in LIMITS.items():
            broker.create_topic(f"{name}-topic")
            set_limit(broker.bootstrap, f"{name}-producer", "producer_byte_rate", limit)
            set_limit(broker.bootstrap, f"{name}-consumer", "consumer_byte_rate", limit)
        broker.create_topic("probe")
        alone_ms = latency_of(broker.bootstrap, 5)
        produced, beside_producers_ms = run(produce_until, broker.bootstrap, options.seconds, "producer")
        for name in LIMITS:
            fill(broker.bootstrap, f"{name}-topic", LIMITS[name] * (options.seconds + 3 * TURN_SECONDS))
        _, beside_free_ms = run(produce_until, broker.bootstrap, 5, "free", warm_seconds=1)
        consumed, beside_consumers_ms = run(consume_until, broker.bootstrap, options.seconds, "consumer")
    latencies: list[Row] = [
        {"beside": name, "p50 ms": percentile(values, 0.5), "p99 ms": percentile(values, 0.99)}
        for name, values in (
            ("nobody", alone_ms),
            ("three producers", beside_producers_ms),
            ("three consumers", beside_consumers_ms),
            ("without limits", beside_free_ms),
        )
    ]
    if options.json:
        print(json.dumps({"rates": [*produced, *consumed], "latencies": latencies}, indent=2))
        return
    print(f"{'client':18} {'limit B/s':>12} {'measured B/s':>14} {'ratio':>7}")
    for row in (*produced, *consumed):
        print(f"{row['client']:18} {row['limit']:>12,} {row['measured']:>14,.0f} {row['ratio']:>7.3f}")
    print(f"\n{'unlimited, beside':18} {'p50 ms':>10} {'p99 ms':>10}")
    for row in latencies:
        print(f"{row['beside']:18} {row['p50 ms']:>10.2f} {row['p99 ms']:>10.2f}")


def fill(bootstrap: str, topic: str, size_bytes: int) -> None:
    """Enough records for a consumer that never runs dry."""
    producer = Producer({"bootstrap.servers": bootstrap, "batch.size": BATCH_BYTES, "linger.ms": 5})
    for _ in range(size_bytes // RECORD_BYTES):
        while True:
            try:
                producer.produce(topic, b"v" * RECORD_BYTES)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    producer.flush(120)


if __name__ == "__main__":
    main()
