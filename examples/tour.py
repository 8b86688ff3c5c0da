"""A one-minute tour: a broker, a topic, records in and out, and what is on the disk.

Runs everything in a temporary folder and leaves nothing behind.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from confluent_kafka import Consumer, Producer

from tidelog.testing.broker import RunningBroker

TOPIC = "orders"
CUSTOMERS = ("alice", "erin", "mallory")
ORDERS = ("tea", "coffee", "cake")


def say(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


def tidelog(*arguments: str) -> None:
    """Run the command line as a user would."""
    print(f"$ tidelog {' '.join(arguments)}", flush=True)
    subprocess.run([sys.executable, "-m", "tidelog.cli", *arguments], check=True, timeout=60)


def produce(bootstrap: str) -> None:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": "lz4"}
    )
    for number, order in enumerate(ORDERS * 4):
        customer = CUSTOMERS[number % len(CUSTOMERS)]
        producer.produce(TOPIC, key=customer, value=f"{order} no. {number}", headers={"shop": b"main street"})
    left = producer.flush(30)
    assert left == 0, f"{left} records were not acknowledged"


def consume(bootstrap: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "tour", "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    seen = 0
    while seen < len(ORDERS) * 4:
        message = consumer.poll(10)
        assert message is not None and message.error() is None, "nothing arrived within ten seconds"
        seen += 1
        place = f"{message.topic()}-{message.partition()} offset {message.offset()}"
        print(f"  {place}: {message.key().decode()} ordered {message.value().decode()}")
    consumer.close()
    return seen


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="tidelog-tour-") as folder:
        data = Path(folder) / "data"
        settings = {"group.initial.rebalance.delay.ms": "0"}
        with RunningBroker(data_directory=data, settings=settings) as broker:
            say(f"A broker is running at {broker.bootstrap}. Its data is in {data}.")
            tidelog("topic", "create", TOPIC, "--partitions", "3", "--bootstrap", broker.bootstrap)
            say("An unchanged Kafka client sends records: same key, same partition.")
            produce(broker.bootstrap)
            say("A consumer group reads them. Order holds inside a partition, not across.")
            seen = consume(broker.bootstrap)
            say("What the group has committed, and its lag:")
            tidelog("group", "lag", "tour", "--bootstrap", broker.bootstrap)
            say("On the disk a partition is a folder of segments. One of them, explained:")
            segments = sorted(data.glob(f"{TOPIC}-*/*.log"), key=lambda path: path.stat().st_size)
            tidelog("log", "dump", str(segments[-1]))
        say(f"{seen} records went in and came out. Start your own broker with: tidelog up")


if __name__ == "__main__":
    main()
