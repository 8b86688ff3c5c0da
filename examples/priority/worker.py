"""Priorities for an ordinary consumer group: a topic for each, the urgent one first, and none starves.

    python examples/priority/worker.py --bootstrap localhost:9092 --group workers jobs.p9 jobs.p5 jobs.p1

The topics are named from the most urgent one to the least. One consumer reads all of them and keeps a few
records of each in a lane of its own; a topic whose lane is full is paused. The next record comes from the
first lane that has one. Every fourth comes from the last lane that has one instead, so a flood of urgent
records leaves the others a quarter of the work. Work with every record is done before its offset is stored:
after a crash some come again, none is lost. Any number of such workers share the partitions of the topics, as
groups do.
"""

import argparse
import time
from collections import deque

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

LANE_RECORDS_MAX = 20
#: one record of so many comes from the least urgent lane
SHARE = 4
#: how long to wait for something to do
IDLE_SECONDS = 5.0


class Lanes:
    """What was read and not worked on yet, by topic, the most urgent one first."""

    def __init__(self, consumer: Consumer, topics: list[str]) -> None:
        self._consumer = consumer
        self._lanes: dict[str, deque[Message]] = {topic: deque() for topic in topics}
        self._paused: set[str] = set()
        self._taken = 0
        consumer.subscribe(topics, on_revoke=self._revoked)

    def _places(self, topic: str) -> list[TopicPartition]:
        return [each for each in self._consumer.assignment() if each.topic == topic]

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Another worker gets these partitions, and reads again what was only read here."""
        for topic, lane in self._lanes.items():
            gone = {each.partition for each in partitions if each.topic == topic}
            kept = [each for each in lane if each.partition() not in gone]
            lane.clear()
            lane.extend(kept)

    def fill(self, patience_seconds: float) -> None:
        """Read what there is; wait for the first record if the lanes are empty."""
        for topic, lane in self._lanes.items():
            if topic in self._paused and len(lane) < LANE_RECORDS_MAX // 2:
                self._consumer.resume(self._places(topic))
                self._paused.discard(topic)
        deadline = time.monotonic() + patience_seconds
        while True:
            empty = not any(self._lanes.values())
            message = self._consumer.poll(min(0.1, patience_seconds) if empty else 0)
            if message is None:
                if not empty or time.monotonic() >= deadline:
                    return
                continue
            if (error := message.error()) is not None:
                raise KafkaException(error)
            topic = message.topic() or ""
            self._lanes[topic].append(message)
            if len(self._lanes[topic]) >= LANE_RECORDS_MAX and topic not in self._paused:
                self._consumer.pause(self._places(topic))
                self._paused.add(topic)

    def take(self) -> Message | None:
        """The next record to work on."""
        waiting = [lane for lane in self._lanes.values() if lane]
        if not waiting:
            return None
        self._taken += 1
        lane = waiting[-1] if self._taken % SHARE == 0 else waiting[0]
        return lane.popleft()


def work(message: Message) -> None:
    value = message.value() or b""
    print(f"{message.topic()} {value.decode()}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--group", default="workers")
    parser.add_argument("--count", type=int, default=100, help="end after so many records")
    parser.add_argument("topics", nargs="+", help="the most urgent one first")
    options = parser.parse_args()
    consumer = Consumer(
        {
            "bootstrap.servers": options.bootstrap,
            "group.id": options.group,
            "auto.offset.reset": "earliest",
            "enable.auto.offset.store": False,
            # What librdkafka reads ahead by itself would be lost with each pause.
            "queued.min.messages": LANE_RECORDS_MAX,
        }
    )
    lanes = Lanes(consumer, options.topics)
    try:
        for _ in range(options.count):
            lanes.fill(IDLE_SECONDS)
            message = lanes.take()
            if message is None:
                break
            work(message)
            consumer.store_offsets(message=message)
    finally:
        consumer.close()


if __name__ == "__main__":
    main()
