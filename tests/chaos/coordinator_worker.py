"""One process of an exactly-once application, written as librdkafka's manual says, with default settings.

    coordinator_worker.py BOOTSTRAP TRANSACTIONAL_ID GROUP INPUT OUTPUT [NAME=VALUE ...]

It reads the input in a group and writes every record to the same partition of the output, records and offsets
in one transaction. NAME=VALUE are further settings for both of its clients. Nothing here watches over the
client, which may wait as long as it likes. On standard output it says, with times of the monotonic clock:

    committed BEGUN RECORDS · aborted BEGUN WHY · ended WHY

Standard error has the client's own log.
"""

import ctypes
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

RECORDS_MAX = 100
POLL_SECONDS = 0.1
CALL_SECONDS_MAX = 30.0
CONSUMER_ONLY = ("group.protocol", "session.timeout.ms")
PR_SET_PDEATHSIG = 1


class MustAbort(Exception):
    """The transaction cannot commit."""


class Ended(Exception):
    """The producer cannot go on."""


def say(*words: object) -> None:
    print(*words, flush=True)


def insist(call: Callable[..., object], *arguments: Any) -> None:
    """Call, again while the library says that it may be tried again."""
    while True:
        try:
            call(*arguments)
            return
        except KafkaException as refusal:
            error = refusal.args[0]
            why = f"{error.name()}: {error.str()}"
            if error.fatal() or error.code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED):
                raise Ended(why) from None
            if error.txn_requires_abort():
                raise MustAbort(why) from None
            if not error.retriable():
                raise Ended(why) from None


class Worker:
    """Take, write, commit, until told to stop."""

    def __init__(
        self, bootstrap: str, transactional_id: str, group: str, topics: tuple[str, str], more: dict[str, str]
    ) -> None:
        self.input, self.output = topics
        shared = {"bootstrap.servers": bootstrap}
        of_consumers = {name: more.pop(name) for name in CONSUMER_ONLY if name in more}
        self.consumer = Consumer(
            {
                **shared,
                **more,
                **of_consumers,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        self.producer = Producer({**shared, **more, "transactional.id": transactional_id})
        self.stopped = threading.Event()

    def run(self) -> int:
        try:
            insist(self.producer.init_transactions, CALL_SECONDS_MAX)
            self.consumer.subscribe([self.input])
            while not self.stopped.is_set():
                messages = [m for m in self.consumer.consume(RECORDS_MAX, POLL_SECONDS) if m.error() is None]
                if messages:
                    self._transaction(messages)
        except Ended as reason:
            say("ended", reason)
            return 3
        self.consumer.close()
        return 0

    def _transaction(self, messages: list[Message]) -> None:
        begun = time.monotonic()
        try:
            insist(self.producer.begin_transaction)
            for message in messages:
                self.producer.produce(self.output, message.value(), partition=message.partition())  # type: ignore[arg-type]
            nexts = {message.partition(): message.offset() + 1 for message in messages}  # type: ignore[operator]
            offsets = [TopicPartition(self.input, number, offset) for number, offset in nexts.items()]  # type: ignore[arg-type]
            metadata = self.consumer.consumer_group_metadata()
            insist(self.producer.send_offsets_to_transaction, offsets, metadata, CALL_SECONDS_MAX)
            insist(self.producer.commit_transaction, CALL_SECONDS_MAX)
            say("committed", begun, len(messages))
        except MustAbort as reason:
            try:
                insist(self.producer.abort_transaction, CALL_SECONDS_MAX)
            except MustAbort as again:
                raise Ended(str(again)) from None
            say("aborted", begun, reason)
            self._rewind(messages)

    def _rewind(self, messages: list[Message]) -> None:
        """Read again from the first record of each partition that is still ours."""
        mine = {place.partition for place in self.consumer.assignment()}
        firsts: dict[int, int] = {}
        for message in messages:
            firsts.setdefault(message.partition(), message.offset())  # type: ignore[arg-type]
        for number, offset in firsts.items():
            if number in mine:
                try:
                    self.consumer.seek(TopicPartition(self.input, number, offset))
                except KafkaException as refusal:
                    raise Ended(f"seek: {refusal}") from None


def main() -> int:
    # It must not outlive the run that started it.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    bootstrap, transactional_id, group, source, target, *more = sys.argv[1:]
    settings = dict(pair.split("=", 1) for pair in more)
    worker = Worker(bootstrap, transactional_id, group, (source, target), settings)
    signal.signal(signal.SIGTERM, lambda *_: worker.stopped.set())
    return worker.run()


if __name__ == "__main__":
    sys.exit(main())
