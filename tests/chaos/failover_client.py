"""A client with its default settings, through a failover: `… CLIENT BOOTSTRAP TOPIC GROUP SECONDS`.

It sends numbered records (`client/N`, to partition N mod 3) for some seconds and reads them in a group
meanwhile, then until it has read everything that was acknowledged. It says on standard output, one line each:

    sent NUMBER PARTITION OFFSET · failed NUMBER PARTITION WHY · assigned · read PARTITION OFFSET VALUE · done

tests/chaos/java/Failover.java says the same for the Java client.
"""

import sys
import threading
import time
from collections.abc import Callable

PAUSE_SECONDS = 0.02
DRAIN_SECONDS_MAX = 60.0
PARTITIONS = 3


class Talk:
    """What was said, and what is still to be read."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.expected: set[str] = set()
        self.read: set[str] = set()
        self.sending = True

    def say(self, *words: object) -> None:
        with self.lock:
            print(*words, flush=True)

    def sent(self, number: int, partition: int, offset: int) -> None:
        self.expected.add(f"client/{number}")
        self.say("sent", number, partition, offset)

    def failed(self, number: int, why: object) -> None:
        self.say("failed", number, number % PARTITIONS, why)

    def got(self, partition: int, offset: int, value: str) -> None:
        self.say("read", partition, offset, value)
        self.read.add(value)


def paced(seconds: float, send: Callable[[int], None]) -> None:
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end:
        send(number)
        number += 1
        time.sleep(PAUSE_SECONDS)


def confluent_send(talk: Talk, bootstrap: str, topic: str, seconds: float) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap})

    def send(number: int) -> None:
        def told(error: object, message: object) -> None:
            if error is None:
                talk.sent(number, message.partition(), message.offset())  # type: ignore[attr-defined]
            else:
                talk.failed(number, error)

        producer.produce(topic, f"client/{number}", partition=number % PARTITIONS, on_delivery=told)
        producer.poll(0)

    paced(seconds, send)
    producer.flush(DRAIN_SECONDS_MAX)


def confluent_read(talk: Talk, bootstrap: str, topic: str, group: str, done: Callable[[], bool]) -> None:
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic], on_assign=lambda *_: talk.say("assigned"))
    while not done():
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            talk.got(message.partition(), message.offset(), message.value().decode())  # type: ignore[arg-type, union-attr]
    consumer.close()


def kafka_python_send(talk: Talk, bootstrap: str, topic: str, seconds: float) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=bootstrap.split(","))

    def send(number: int) -> None:
        future = producer.send(topic, f"client/{number}".encode(), partition=number % PARTITIONS)
        future.add_callback(lambda told: talk.sent(number, told.partition, told.offset))
        future.add_errback(lambda error: talk.failed(number, repr(error)))

    paced(seconds, send)
    producer.flush(DRAIN_SECONDS_MAX)
    producer.close(5)


def kafka_python_read(talk: Talk, bootstrap: str, topic: str, group: str, done: Callable[[], bool]) -> None:
    from kafka import ConsumerRebalanceListener, KafkaConsumer

    class Listener(ConsumerRebalanceListener):
        def on_partitions_revoked(self, revoked: object) -> None: ...

        def on_partitions_assigned(self, assigned: object) -> None:
            talk.say("assigned")

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap.split(","), group_id=group, auto_offset_reset="earliest"
    )
    consumer.subscribe([topic], listener=Listener())
    while not done():
        # Longer than a rebalance: a member that polls for less may stay without partitions (docs/groups.md).
        for records in consumer.poll(timeout_ms=5_000).values():
            for record in records:
                talk.got(record.partition, record.offset, record.value.decode())
    consumer.close()


CLIENTS = {
    "confluent-kafka": (confluent_send, confluent_read),
    "kafka-python": (kafka_python_send, kafka_python_read),
}


def main(client: str, bootstrap: str, topic: str, group: str, seconds: str) -> int:
    send, read = CLIENTS[client]
    talk = Talk()
    deadline = [float("inf")]

    def done() -> bool:
        if talk.sending:
            return False
        deadline[0] = min(deadline[0], time.monotonic() + DRAIN_SECONDS_MAX)
        return talk.expected <= talk.read or time.monotonic() > deadline[0]

    reader = threading.Thread(target=read, args=(talk, bootstrap, topic, group, done))
    reader.start()
    send(talk, bootstrap, topic, float(seconds))
    talk.sending = False
    reader.join(DRAIN_SECONDS_MAX + 10)
    talk.say("done")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
