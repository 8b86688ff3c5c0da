"""One worker of the exactly-once test as a process of its own, which can be killed at any moment.

    transaction_worker.py CLIENT BOOTSTRAP TRANSACTIONAL_ID INSTANCE EVENTS [--role ROLE] [--static]

It reads the input topic in a group, transforms each record, and writes the result to the same partition of
the output topic, together with its offsets in one transaction. Every output record carries, as a header, the
transaction that wrote it: `instance/number/records`. What it does is appended to the file EVENTS, one
line each, which outlives the worker:

    begin TAG · flushed TAG · committed TAG · aborted TAG · refused TAG · fenced TAG · ended WHY

Roles: `worker`; `zombie` waits inside its first transaction, after its records are in the log, until it has
been stopped and continued; `successor` only takes the transactional id over; `careless` uses no transactions.
"""

import argparse
import os
import random
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

INPUT, OUTPUT, GROUP = "input", "output", "transformers"
TAG = "transaction"
BATCH_RECORDS_MAX = 200
SESSION_MS = 1_500
HEARTBEAT_MS = 300
TRANSACTION_MS = 8_000
ZOMBIE_TRANSACTION_MS = 2_000
ZOMBIE_JUMP_SECONDS = 2.0
ZOMBIE_SECONDS_MAX = 60.0
CALL_SECONDS_MAX = 10.0
TRANSACTION_SECONDS_MAX = {"confluent-kafka": 30.0, "kafka-python": 5.0}
"""After this long a worker gives up. kafka-python (3.0.12) forgets a request whose coordinator cannot be
reached (Sender._maybe_send_transactional_request), and its calls have no timeout, so a worker needs one."""
ABORT_CHANCE = 0.04
LINGER_SECONDS_MAX = 0.04
EXIT_DONE, EXIT_FENCED, EXIT_UNUSABLE, EXIT_REFUSED, EXIT_STUCK = 0, 3, 4, 5, 6


class Refused(Exception):
    """This transaction cannot commit; it has to be aborted."""


class Fenced(Exception):
    """Another producer has the transactional id now."""


class Unusable(Exception):
    """The client says that it cannot go on."""


@dataclass(frozen=True, slots=True)
class Taken:
    """One input record."""

    partition: int
    offset: int
    value: bytes


def transform(value: bytes) -> bytes:
    number = int(value)
    return b"%d squared is %d" % (number, number * number)


class Pipe(Protocol):
    """A consumer and a transactional producer of one client library."""

    def start(self) -> None: ...
    def join(self) -> None: ...
    def take(self, count_max: int) -> list[Taken]: ...
    def begin(self) -> None: ...
    def write(self, tag: str, taken: list[Taken]) -> None: ...
    def flush(self) -> None: ...
    def commit(self, taken: list[Taken]) -> None: ...
    def abort(self) -> None: ...
    def rewind(self, taken: list[Taken]) -> None: ...
    def commit_carelessly(self, taken: list[Taken]) -> None: ...
    def close(self) -> None: ...


def firsts(taken: list[Taken]) -> dict[int, int]:
    """The first offset of each partition."""
    found: dict[int, int] = {}
    for record in taken:
        found.setdefault(record.partition, record.offset)
    return found


def nexts(taken: list[Taken]) -> dict[int, int]:
    """The offset behind the last one of each partition."""
    return {record.partition: record.offset + 1 for record in taken}


class ConfluentPipe:
    """confluent-kafka."""

    def __init__(self, options: argparse.Namespace, timeout_ms: int) -> None:
        from confluent_kafka import Consumer, Producer

        shared = {
            "bootstrap.servers": options.bootstrap,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 300,
            "log_level": 0,
        }
        group = {
            "group.id": GROUP,
            "partition.assignment.strategy": "range",
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 50,
        }
        if options.static:
            group["group.instance.id"] = options.transactional_id
        self.consumer = Consumer({**shared, **group})
        transactional = {
            "transactional.id": options.transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "message.timeout.ms": timeout_ms,
        }
        careless = options.role == "careless"
        self.producer = Producer({**shared, "linger.ms": 5, **({} if careless else transactional)})

    def _insist(self, call: Any, *arguments: Any) -> None:
        """Call, again while the library says that it may be tried again."""
        from confluent_kafka import KafkaError, KafkaException

        while True:
            try:
                call(*arguments)
                return
            except KafkaException as refusal:
                error = refusal.args[0]
                if error.code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED):
                    raise Fenced(error.name()) from None
                if error.fatal():
                    raise Unusable(f"{error.name()}: {error.str()}") from None
                if error.txn_requires_abort():
                    raise Refused(f"{error.name()}: {error.str()}") from None
                if not error.retriable():
                    raise Unusable(f"{error.name()}: {error.str()}") from None

    def start(self) -> None:
        self._insist(self.producer.init_transactions, CALL_SECONDS_MAX)

    def join(self) -> None:
        self.consumer.subscribe([INPUT])

    def take(self, count_max: int) -> list[Taken]:
        messages = self.consumer.consume(count_max, 0.1)
        return [Taken(m.partition(), m.offset(), m.value()) for m in messages if m.error() is None]  # type: ignore[arg-type]

    def begin(self) -> None:
        self._insist(self.producer.begin_transaction)

    def write(self, tag: str, taken: list[Taken]) -> None:
        headers = [(TAG, tag.encode())]
        for record in taken:
            self.producer.produce(
                OUTPUT,
                transform(record.value),
                partition=record.partition,
                headers=headers,  # type: ignore[arg-type]
            )

    def flush(self) -> None:
        if self.producer.flush(CALL_SECONDS_MAX):
            raise Refused("not flushed")

    def commit(self, taken: list[Taken]) -> None:
        from confluent_kafka import TopicPartition

        offsets = [TopicPartition(INPUT, partition, offset) for partition, offset in nexts(taken).items()]
        metadata = self.consumer.consumer_group_metadata()
        self._insist(self.producer.send_offsets_to_transaction, offsets, metadata, CALL_SECONDS_MAX)
        self._insist(self.producer.commit_transaction, CALL_SECONDS_MAX)

    def abort(self) -> None:
        self._insist(self.producer.abort_transaction, CALL_SECONDS_MAX)

    def rewind(self, taken: list[Taken]) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        mine = {place.partition for place in self.consumer.assignment()}
        try:
            for partition, offset in firsts(taken).items():
                if partition in mine:
                    self.consumer.seek(TopicPartition(INPUT, partition, offset))
        except KafkaException as refusal:
            raise Unusable(f"seek: {refusal}") from None

    def commit_carelessly(self, taken: list[Taken]) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        offsets = [TopicPartition(INPUT, partition, offset) for partition, offset in nexts(taken).items()]
        try:
            self.consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as refusal:
            raise Unusable(f"commit: {refusal}") from None

    def close(self) -> None:
        self.consumer.close()


class KafkaPythonPipe:
    """kafka-python.

    After a refused transaction it takes a new producer: its transaction manager keeps offsets that were
    refused and would send them with the next transaction (3.0.12: `_pending_txn_offset_commits` outlives an
    abort).
    """

    def __init__(self, options: argparse.Namespace, timeout_ms: int) -> None:
        from kafka import KafkaConsumer

        self.shared = {
            "bootstrap_servers": options.bootstrap,
            "reconnect_backoff_ms": 50,
            "reconnect_backoff_max_ms": 300,
            "retry_backoff_ms": 50,
        }
        self.settings: dict[str, Any] = {"linger_ms": 5, "max_block_ms": int(CALL_SECONDS_MAX * 1000)}
        if options.role != "careless":
            self.settings["transactional_id"] = options.transactional_id
            self.settings["transaction_timeout_ms"] = timeout_ms
        self.consumer = KafkaConsumer(
            **self.shared,
            group_id=GROUP,
            group_instance_id=options.transactional_id if options.static else None,
            partition_assignment_strategy=self._assignors(),
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            fetch_max_wait_ms=50,
        )
        self.careless = options.role == "careless"
        self._renew()

    @staticmethod
    def _assignors() -> list[Any]:
        from kafka.coordinator.assignors.range import RangePartitionAssignor

        return [RangePartitionAssignor]

    def _renew(self) -> None:
        from kafka import KafkaProducer

        self.producer = KafkaProducer(**self.shared, **self.settings)

    def _insist(self, call: Any, *arguments: Any) -> Any:
        from kafka import errors

        try:
            return call(*arguments)
        except errors.ProducerFencedError as fenced:
            raise Fenced(repr(fenced)) from None
        except errors.KafkaError as refusal:
            cause = refusal.args[-1] if refusal.args else None
            # Where the producer learnt of it in the background, the next call has it in words alone.
            in_words = "ProducerFencedError" in str(refusal)
            if in_words or isinstance(cause, errors.ProducerFencedError | errors.InvalidProducerEpochError):
                raise Fenced(repr(refusal)) from None
            raise Refused(repr(refusal)) from None

    def start(self) -> None:
        self._insist(self.producer.init_transactions)

    def join(self) -> None:
        self.consumer.subscribe([INPUT])

    def take(self, count_max: int) -> list[Taken]:
        from kafka import errors

        try:
            answer = self.consumer.poll(timeout_ms=1_000, max_records=count_max)
        except errors.KafkaConnectionError:
            return []
        except errors.KafkaError as refusal:
            raise Unusable(f"poll: {refusal!r}") from None
        return [Taken(m.partition, m.offset, m.value) for messages in answer.values() for m in messages]

    def begin(self) -> None:
        self._insist(self.producer.begin_transaction)

    def write(self, tag: str, taken: list[Taken]) -> None:
        headers = [(TAG, tag.encode())]
        for record in taken:
            self._insist(self._send, record, headers)

    def _send(self, record: Taken, headers: list[tuple[str, bytes]]) -> None:
        self.producer.send(OUTPUT, transform(record.value), partition=record.partition, headers=headers)

    def flush(self) -> None:
        self._insist(self.producer.flush, CALL_SECONDS_MAX)
        manager = self.producer._transaction_manager
        if manager is not None and manager.has_error():
            self._insist(self._raise, manager.last_error)

    @staticmethod
    def _raise(error: BaseException) -> None:
        raise error

    def _offsets(self, taken: list[Taken]) -> dict[Any, Any]:
        from kafka import TopicPartition
        from kafka.structs import OffsetAndMetadata

        return {
            TopicPartition(INPUT, partition): OffsetAndMetadata(offset, "", -1)
            for partition, offset in nexts(taken).items()
        }

    def commit(self, taken: list[Taken]) -> None:
        metadata = self.consumer.group_metadata()
        self._insist(self.producer.send_offsets_to_transaction, self._offsets(taken), metadata)
        self._insist(self.producer.commit_transaction)

    def abort(self) -> None:
        try:
            self._insist(self.producer.abort_transaction)
        except Refused as refusal:
            raise Unusable(f"abort: {refusal}") from None
        self.producer.close(timeout=CALL_SECONDS_MAX)
        self._renew()
        self.start()

    def rewind(self, taken: list[Taken]) -> None:
        from kafka import TopicPartition

        mine = self.consumer.assignment()
        for partition, offset in firsts(taken).items():
            if TopicPartition(INPUT, partition) in mine:
                self.consumer.seek(TopicPartition(INPUT, partition), offset)

    def commit_carelessly(self, taken: list[Taken]) -> None:
        from kafka import errors

        try:
            self.consumer.commit(self._offsets(taken))
        except errors.KafkaError as refusal:
            raise Unusable(f"commit: {refusal!r}") from None

    def close(self) -> None:
        self.consumer.close()
        self.producer.close(timeout=CALL_SECONDS_MAX)


PIPES: dict[str, type[ConfluentPipe] | type[KafkaPythonPipe]] = {
    "confluent-kafka": ConfluentPipe,
    "kafka-python": KafkaPythonPipe,
}


class Worker:
    """The loop: take, transform, write, commit; again from the start of the batch when refused."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.random = random.Random(options.instance)
        self.events = os.open(options.events, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.number = 0
        self.tag = ""
        self.stopped = threading.Event()
        self.seconds_max = TRANSACTION_SECONDS_MAX[options.client]
        if options.role == "zombie":
            self.seconds_max += ZOMBIE_SECONDS_MAX
        zombie = options.role == "zombie"
        self.pipe: Pipe = PIPES[options.client](options, ZOMBIE_TRANSACTION_MS if zombie else TRANSACTION_MS)

    def say(self, kind: str, about: object = None) -> None:
        os.write(self.events, f"{kind} {self.tag if about is None else about}\n".encode())

    def run(self) -> int:
        try:
            return self._run()
        except Fenced as fenced:
            self.say("fenced")
            print(f"{self.options.instance} {self.tag} fenced: {fenced}", file=sys.stderr)
            return EXIT_FENCED
        except (Unusable, Refused) as fault:
            self.say("ended", str(fault))
            return EXIT_UNUSABLE

    def _run(self) -> int:
        if self.options.role != "careless":
            self.pipe.start()
        if self.options.role == "successor":
            return EXIT_DONE
        self.pipe.join()
        while not self.stopped.is_set():
            taken = self.pipe.take(self.random.randint(1, BATCH_RECORDS_MAX))
            if not taken:
                continue
            self.number += 1
            self.tag = f"{self.options.instance}/{self.number}/{len(taken)}"
            watchdog = threading.Timer(self.seconds_max, self._stuck)
            watchdog.daemon = True
            watchdog.start()
            if self.options.role == "careless":
                self._carelessly(taken)
            else:
                self._in_transaction(taken)
            watchdog.cancel()
        self.pipe.close()
        return EXIT_DONE

    def _stuck(self) -> None:
        self.say("ended", f"a transaction took more than {self.seconds_max:.0f} s")
        os._exit(EXIT_STUCK)

    def _in_transaction(self, taken: list[Taken]) -> None:
        zombie = self.options.role == "zombie"
        try:
            self.pipe.begin()
            self.say("begin")
            self.pipe.write(self.tag, taken)
            wanted = not zombie and self.random.random() < ABORT_CHANCE
            if zombie or wanted:
                self.pipe.flush()
                self.say("flushed")
            if zombie:
                self._sleep_through()
            if wanted:
                self.pipe.abort()
                self.say("aborted")
                self.pipe.rewind(taken)
                return
            time.sleep(self.random.uniform(0, LINGER_SECONDS_MAX))
            self.pipe.commit(taken)
            self.say("committed")
        except Refused as refusal:
            self.say("refused")
            print(f"{self.tag} refused: {refusal}", file=sys.stderr)
            if zombie:
                sys.exit(EXIT_REFUSED)
            self.pipe.abort()
            self.say("aborted")
            self.pipe.rewind(taken)

    def _sleep_through(self) -> None:
        """Until time has jumped: this process was stopped and continued."""
        self.say("waiting")
        last = time.monotonic()
        while time.monotonic() - last < ZOMBIE_JUMP_SECONDS:
            last = time.monotonic()
            time.sleep(0.02)

    def _carelessly(self, taken: list[Taken]) -> None:
        self.say("begin")
        self.pipe.write(self.tag, taken)
        self.pipe.flush()
        time.sleep(self.random.uniform(0, LINGER_SECONDS_MAX))
        self.pipe.commit_carelessly(taken)
        self.say("committed")


def main() -> int:
    import ctypes

    # It must not outlive the test that started it.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("client", choices=tuple(PIPES))
    parser.add_argument("bootstrap")
    parser.add_argument("transactional_id")
    parser.add_argument("instance")
    parser.add_argument("events", type=Path)
    parser.add_argument("--role", choices=("worker", "zombie", "successor", "careless"), default="worker")
    parser.add_argument("--static", action="store_true")
    worker = Worker(parser.parse_args())
    signal.signal(signal.SIGTERM, lambda *_: worker.stopped.set())
    return worker.run()


if __name__ == "__main__":
    sys.exit(main())
