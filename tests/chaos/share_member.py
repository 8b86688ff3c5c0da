"""A member of a share group with librdkafka's share consumer, as a process to be killed.

    python -m tests.chaos.share_member BOOTSTRAP GROUP TOPIC accept|reject

It says on standard output what it got before it says to the broker what becomes of it, and what it was told
(`java/ShareMember.java` says the same):

    got SECONDS NUMBER,NUMBER,…
    told SECONDS NUMBER,…
    refused SECONDS REASON NUMBER,…

With `reject` it rejects one record of ten (`share_history.rejected`). It ends with SIGTERM.
"""

import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from confluent_kafka import AcknowledgeType, KafkaException, ShareConsumer

from tests.chaos.share_history import rejected

POLL_SECONDS = 0.2
COMMIT_SECONDS = 20.0
#: the work on what a poll brought
WORK_SECONDS = 0.2


def say(word: str, numbers: Sequence[int], *why: str) -> None:
    """One line, at once: what is not in the pipe when the process is killed was not said."""
    text = " ".join((word, f"{time.monotonic():.6f}", *why, ",".join(map(str, numbers))))
    data = memoryview(f"{text}\n".encode())
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]


def serve(consumer: Any, rejects: bool) -> None:
    """One poll, and what becomes of its records."""
    try:
        messages = [message for message in consumer.poll(POLL_SECONDS) if message.error() is None]
    except KafkaException:
        return
    if not messages:
        return
    numbers: dict[int, list[int]] = defaultdict(list)
    for message in messages:
        numbers[message.partition()].append(int(message.value()))
    say("got", [number for each in numbers.values() for number in each])
    time.sleep(WORK_SECONDS)
    for message in messages:
        rejecting = rejects and rejected(int(message.value()))
        consumer.acknowledge(message, AcknowledgeType.REJECT if rejecting else AcknowledgeType.ACCEPT)
    try:
        results = {where.partition: fault for where, fault in consumer.commit_sync(COMMIT_SECONDS).items()}
    except KafkaException as fault:
        results = dict.fromkeys(numbers, fault)
    for partition, those in numbers.items():
        if partition not in results:
            say("refused", those, "unanswered")
        elif results[partition] is None:
            say("told", those)
        else:
            say("refused", those, results[partition].args[0].name())


def main() -> None:
    bootstrap, group, topic, mode = sys.argv[1:]
    going = True

    def stop(*_: object) -> None:
        nonlocal going
        going = False

    signal.signal(signal.SIGTERM, stop)
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "share.acknowledgement.mode": "explicit",
        "max.poll.records": 100,
        "log_level": 0,
    }
    consumer = ShareConsumer(settings)
    consumer.subscribe([topic])
    while going:
        serve(consumer, mode == "reject")
    consumer.close()


if __name__ == "__main__":
    main()
