"""Exactly once under kill -9: workers copy a topic in transactions while they and the broker are killed.

    python tests/chaos/transaction_cycles.py --records 200000 --seconds-between-kills 1 --seed 1

A worker process reads `source`, writes each record to `sink` and commits its offsets in the same transaction.
This process kills the worker or the broker at random moments, and a worker that makes no progress. When
everything is copied a read_committed consumer must find every record once, in order. Prints one line of JSON;
the exit code is 1 if anything was lost or doubled.
"""

import argparse
import json
import random
import subprocess
import sys
import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

SOURCE, SINK, GROUP, TRANSACTIONAL_ID = "source", "sink", "copy", "copier"
BATCH_RECORDS = 100
STALL_SECONDS = 8.0
DEADLINE_SECONDS = 600.0


def work(bootstrap: str) -> None:
    """The worker: runs until it is killed, or a call fails for good."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": TRANSACTIONAL_ID, "linger.ms": 2}
    )
    producer.init_transactions(30)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": GROUP,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    (start,) = consumer.committed([TopicPartition(SOURCE, 0)], timeout=30)
    position = max(0, start.offset)
    consumer.assign([TopicPartition(SOURCE, 0, position)])
    while True:
        messages = [m for m in consumer.consume(BATCH_RECORDS, timeout=1.0) if not m.error()]
        if not messages:
            continue
        producer.begin_transaction()
        for message in messages:
            producer.produce(SINK, message.value(), partition=0)
        position = messages[-1].offset() + 1
        producer.send_offsets_to_transaction(
            [TopicPartition(SOURCE, 0, position)], consumer.consumer_group_metadata()
        )
        producer.commit_transaction(30)


def committed(bootstrap: str) -> int:
    """How far the group has come, or -1 while the broker is away."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    try:
        (found,) = consumer.committed([TopicPartition(SOURCE, 0)], timeout=5)
        return max(0, int(found.offset))
    except KafkaException:
        return -1
    finally:
        consumer.close()


def read_sink(bootstrap: str) -> list[int]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "check",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(SINK, 0, 0)])
    values: list[int] = []
    while True:
        for message in consumer.consume(10_000, timeout=5.0):
            if not message.error():
                values.append(int(message.value()))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                consumer.close()
                return values


def torment(records: int, seconds_between_kills: float, seed: int) -> dict[str, object]:
    from tidelog.testing.broker import RunningBroker

    chance = random.Random(seed)
    kills = {"broker": 0, "worker": 0, "stalled": 0}
    with RunningBroker({"transaction.state.log.num.partitions": "2"}, mode="process") as broker:
        broker.create_topic(SOURCE, partitions=1)
        broker.create_topic(SINK, partitions=1)
        filler = Producer(
            {"bootstrap.servers": broker.bootstrap, "queue.buffering.max.messages": records + 1}
        )
        for number in range(records):
            filler.produce(SOURCE, str(number), partition=0)
        assert filler.flush(120) == 0
        worker = _start_worker(broker.bootstrap)
        started = moved = time.monotonic()
        next_kill, reached = started + seconds_between_kills, 0
        try:
            while reached < records:
                time.sleep(0.2)
                now = time.monotonic()
                assert now - started < DEADLINE_SECONDS, f"{reached} of {records}, {kills}"
                position = committed(broker.bootstrap)
                if position > reached:
                    reached, moved = position, now
                if now > next_kill:
                    victim = chance.choice(("broker", "worker"))
                    kills[victim] += 1
                    if victim == "broker":
                        broker.kill()
                        broker.start()
                    else:
                        worker.kill()
                    next_kill = now + chance.uniform(0.3, 1.7) * seconds_between_kills
                elif now - moved > STALL_SECONDS:
                    # librdkafka can wait for ever for a group coordinator that went away.
                    kills["stalled"] += 1
                    worker.kill()
                    moved = now
                if worker.poll() is not None:
                    worker = _start_worker(broker.bootstrap)
        finally:
            worker.kill()
            worker.wait()
        values = read_sink(broker.bootstrap)
    return {
        "records": records,
        "kills": kills,
        "seconds": round(time.monotonic() - started, 1),
        "lost": len(set(range(records)) - set(values)),
        "doubled": len(values) - len(set(values)),
        "in_order": values == sorted(values),
        "exactly_once": values == list(range(records)),
    }


def _start_worker(bootstrap: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, __file__, "--work", bootstrap]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--work", metavar="BOOTSTRAP", help=argparse.SUPPRESS)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--seconds-between-kills", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.work is not None:
        work(options.work)
        return
    outcome = torment(options.records, options.seconds_between_kills, options.seed)
    print(json.dumps(outcome))
    sys.exit(0 if outcome["exactly_once"] else 1)


if __name__ == "__main__":
    main()
