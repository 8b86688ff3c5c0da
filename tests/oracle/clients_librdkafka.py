"""Carries out operations of librdkafka that it reads as JSON lines, and answers what came of each.

    python -m tests.oracle.clients_librdkafka <bootstrap> <bootstrap with SASL>

The lines are those of the Java driver (`tests/conformance/java/sessions`): a session's operations are carried
out in order in a thread of its own. The clients have default settings, save what the fields of `new_admin`,
`new_producer` and `new_consumer` say, and that the end of a partition is told.
"""

import contextlib
import json
import logging
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tests.oracle.clients_librdkafka_admin import AdminOperations

Json = Any
Operation = Callable[[dict[str, Json]], Json]
SECONDS_MAX = 60.0
ONE_POLL_SECONDS = 0.04
TEXT_SHOWN_MAX = 100
#: of TopicPartition, when it says nothing
NO_OFFSET = -1001
_SILENT = logging.getLogger("librdkafka")


def failure(fault: BaseException | KafkaError) -> Json:
    """An exception as plain data."""
    error = fault.args[0] if isinstance(fault, KafkaException) and fault.args else fault
    if isinstance(error, KafkaError):
        return {
            "error": error.name(),
            "retriable": error.retriable(),
            "fatal": error.fatal(),
            "abort": error.txn_requires_abort(),
            "message": error.str(),
        }
    return {"error": type(error).__name__, "message": str(error)}


def text(data: bytes | None) -> str | None:
    if data is None:
        return None
    shown = data.decode()
    return shown if len(shown) <= TEXT_SHOWN_MAX else f"{shown[:20]}… ({len(shown)})"


def key(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


def rows(pairs: list[Json]) -> list[TopicPartition]:
    """[[topic, partition, offset, metadata], …]; the last two may be missing."""
    return [
        TopicPartition(row[0], row[1], *row[2:3], **({"metadata": row[3]} if row[3:] else {}))
        for row in pairs
    ]


def shown_offset(partition: TopicPartition) -> Json:
    if partition.error is not None:
        return failure(partition.error)
    return {
        "offset": partition.offset,
        "metadata": partition.metadata or "",
        "leader_epoch": -1 if partition.leader_epoch is None else partition.leader_epoch,
    }


class Reader:
    """A consumer, and where it saw the ends of its partitions."""

    def __init__(self, settings: dict[str, Json]) -> None:
        self.consumer = Consumer(settings, logger=_SILENT)
        self.ends: dict[str, int] = {}
        self.paused: set[str] = set()
        self.committed_only = settings.get("isolation.level", "read_committed") == "read_committed"

    def on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self.ends.pop(key(partition), None)


class Session:
    """The clients of one session, by their names."""

    def __init__(self, bootstrap: str, login_bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._login_bootstrap = login_bootstrap
        self.lines: queue.SimpleQueue[dict[str, Json]] = queue.SimpleQueue()
        self._admins: dict[str, AdminClient] = {}
        self._producers: dict[str, Producer] = {}
        self._sent: dict[str, list[Json]] = {}
        self._readers: dict[str, Reader] = {}
        self._admin_operations = AdminOperations(self.admin, failure)

    def perform(self, operation: str, fields: dict[str, Json]) -> Json:
        found: Operation | None = getattr(self, f"do_{operation}", None)
        if found is None:
            found = getattr(self._admin_operations, operation, None)
        if found is None:
            return {"error": "no such operation"}
        try:
            return found(fields)
        except Exception as fault:  # whatever a client raises is its outcome
            return failure(fault)

    def _settings(self, fields: dict[str, Json], client: str) -> dict[str, Json]:
        user = fields.get("user")
        settings: dict[str, Json] = {
            "bootstrap.servers": self._login_bootstrap if user else self._bootstrap,
            "client.id": client,
        }
        if user:
            settings |= {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": user,
                "sasl.password": fields.get("password", f"secret of {user}"),
            }
        return settings | fields.get("settings", {})

    def admin(self, fields: dict[str, Json]) -> AdminClient:
        name = fields.get("admin", "admin")
        if name not in self._admins:
            self._admins[name] = AdminClient(self._settings(fields, name), logger=_SILENT)
        return self._admins[name]

    def do_end(self, fields: dict[str, Json]) -> Json:
        for reader in self._readers.values():
            reader.consumer.close()
        for producer in self._producers.values():
            producer.purge()
        self._readers.clear()
        self._producers.clear()
        self._admins.clear()
        return "ended"

    # Producers

    def _producer(self, fields: dict[str, Json]) -> Producer:
        if fields["producer"] not in self._producers:
            raise ValueError("no such producer")
        return self._producers[fields["producer"]]

    def do_new_producer(self, fields: dict[str, Json]) -> Json:
        name = fields["producer"]
        self._producers[name] = Producer(self._settings(fields, name), logger=_SILENT)
        self._sent[name] = []
        return "done"

    def do_init_transactions(self, fields: dict[str, Json]) -> Json:
        self._producer(fields).init_transactions(SECONDS_MAX)
        return "done"

    def do_begin(self, fields: dict[str, Json]) -> Json:
        self._producer(fields).begin_transaction()
        return "done"

    def do_commit(self, fields: dict[str, Json]) -> Json:
        return self._ended(fields, lambda producer: producer.commit_transaction(SECONDS_MAX))

    def do_abort(self, fields: dict[str, Json]) -> Json:
        return self._ended(fields, lambda producer: producer.abort_transaction(SECONDS_MAX))

    def do_flush(self, fields: dict[str, Json]) -> Json:
        return self._ended(fields, lambda producer: serve(producer, SECONDS_MAX))

    def _ended(self, fields: dict[str, Json], act: Callable[[Producer], Any]) -> Json:
        outcome: Json = "done"
        producer = self._producer(fields)
        try:
            act(producer)
        except KafkaException as fault:
            outcome = failure(fault)
        serve(producer, 0)
        return {"outcome": outcome, "sent": self._taken(fields["producer"])}

    def _taken(self, name: str) -> list[Json]:
        taken, self._sent[name] = self._sent[name], []
        return [one[0] if one else "nothing came of it" for one in taken]

    def do_send(self, fields: dict[str, Json]) -> Json:
        producer = self._producer(fields)
        for row in fields["records"]:
            outcome: list[Json] = []
            self._sent[fields["producer"]].append(outcome)
            options = {
                name: row[name] for name in ("key", "partition", "timestamp") if row.get(name) is not None
            }
            value = "x" * row["size"] if "size" in row else row.get("value")
            try:
                producer.produce(
                    row["topic"],
                    value,
                    headers=[(header, data) for header, data in row.get("headers", ())],
                    on_delivery=lambda error, message, outcome=outcome: outcome.append(  # type: ignore[misc]
                        delivered(error, message)
                    ),
                    **options,
                )
            except (KafkaException, BufferError, RuntimeError) as fault:
                outcome.append(failure(fault))
            serve(producer, 0)
        if not fields.get("wait", True):
            return "sent"
        serve(producer, fields.get("wait_seconds", SECONDS_MAX))
        return self._taken(fields["producer"])

    def do_send_offsets(self, fields: dict[str, Json]) -> Json:
        metadata = self._reader(fields["consumer"]).consumer.consumer_group_metadata()
        self._producer(fields).send_offsets_to_transaction(rows(fields["offsets"]), metadata, SECONDS_MAX)
        return "done"

    def do_close_producer(self, fields: dict[str, Json]) -> Json:
        producer = self._producer(fields)
        if fields.get("timeout_ms", 10_000):
            serve(producer, fields.get("timeout_ms", 10_000) / 1000)
        else:
            producer.purge()
            serve(producer, 1)
        del self._producers[fields["producer"]]
        return self._taken(fields["producer"])

    # Consumers

    def _reader(self, name: str) -> Reader:
        if name not in self._readers:
            raise ValueError("no such consumer")
        return self._readers[name]

    def do_new_consumer(self, fields: dict[str, Json]) -> Json:
        name = fields["consumer"]
        settings = {"enable.partition.eof": True, **self._settings(fields, name)}
        # librdkafka wants a group of every consumer
        settings.setdefault("group.id", "no group")
        self._readers[name] = Reader(settings)
        return "done"

    def do_subscribe(self, fields: dict[str, Json]) -> Json:
        reader = self._reader(fields["consumer"])
        pattern = fields.get("server_pattern", fields.get("pattern"))
        topics = fields["topics"] if pattern is None else [f"^{pattern}"]
        reader.consumer.subscribe(topics, on_assign=reader.on_assign)
        return "done"

    def do_unsubscribe(self, fields: dict[str, Json]) -> Json:
        self._reader(fields["consumer"]).consumer.unsubscribe()
        return "done"

    def do_assign(self, fields: dict[str, Json]) -> Json:
        reader = self._reader(fields["consumer"])
        reader.ends.clear()
        reader.paused.clear()
        reader.consumer.assign(rows(fields["partitions"]))
        return "done"

    def do_seek(self, fields: dict[str, Json]) -> Json:
        reader = self._reader(fields["consumer"])
        (partition,) = rows([[*fields["partition"], fields["offset"]]])
        reader.ends.pop(key(partition), None)
        reader.consumer.seek(partition)
        return "done"

    def do_pause(self, fields: dict[str, Json]) -> Json:
        reader = self._reader(fields["consumer"])
        reader.consumer.pause(rows(fields["partitions"]))
        reader.paused |= {key(partition) for partition in rows(fields["partitions"])}
        return "done"

    def do_resume(self, fields: dict[str, Json]) -> Json:
        reader = self._reader(fields["consumer"])
        reader.consumer.resume(rows(fields["partitions"]))
        reader.paused -= {key(partition) for partition in rows(fields["partitions"])}
        return "done"

    def do_commit_offsets(self, fields: dict[str, Json]) -> Json:
        consumer = self._reader(fields["consumer"]).consumer
        if "offsets" in fields:
            done = consumer.commit(offsets=rows(fields["offsets"]), asynchronous=False)
        else:
            done = consumer.commit(asynchronous=False)
        return {key(partition): shown_offset(partition) for partition in sorted(done, key=key)}

    def do_committed(self, fields: dict[str, Json]) -> Json:
        consumer = self._reader(fields["consumer"]).consumer
        found = consumer.committed(rows(fields["partitions"]), timeout=SECONDS_MAX)
        return {key(partition): shown_offset(partition) for partition in sorted(found, key=key)}

    def do_position(self, fields: dict[str, Json]) -> Json:
        (found,) = self._reader(fields["consumer"]).consumer.position(rows([fields["partition"]]))
        return found.offset

    def do_beginning_offsets(self, fields: dict[str, Json]) -> Json:
        return self._watermarks(fields, 0)

    def do_end_offsets(self, fields: dict[str, Json]) -> Json:
        return self._watermarks(fields, 1)

    def _watermarks(self, fields: dict[str, Json], which: int) -> Json:
        consumer = self._reader(fields["consumer"]).consumer
        found = {}
        for partition in rows(fields["partitions"]):
            try:
                found[key(partition)] = consumer.get_watermark_offsets(partition, SECONDS_MAX)[which]
            except KafkaException as fault:
                found[key(partition)] = failure(fault)
        return found

    def do_offsets_for_times(self, fields: dict[str, Json]) -> Json:
        found = self._reader(fields["consumer"]).consumer.offsets_for_times(
            rows(fields["times"]), SECONDS_MAX
        )
        return {key(partition): shown_offset(partition) for partition in sorted(found, key=key)}

    def do_assignment(self, fields: dict[str, Json]) -> Json:
        return sorted(map(key, self._reader(fields["consumer"]).consumer.assignment()))

    def do_partitions_for(self, fields: dict[str, Json]) -> Json:
        found = self._reader(fields["consumer"]).consumer.list_topics(fields["topic"], SECONDS_MAX)
        return metadata_of(found, fields["topic"])

    def do_producer_partitions_for(self, fields: dict[str, Json]) -> Json:
        return metadata_of(self._producer(fields).list_topics(fields["topic"], SECONDS_MAX), fields["topic"])

    def do_close_consumer(self, fields: dict[str, Json]) -> Json:
        self._reader(fields["consumer"]).consumer.close()
        del self._readers[fields["consumer"]]
        return "done"

    def do_poll(self, fields: dict[str, Json]) -> Json:
        """Poll the consumers in turn until each stands at the end of what it is assigned, and enough is."""
        readers = [self._reader(name) for name in fields["consumers"]]
        wanted = fields.get("assigned", -1)
        deadline = time.monotonic() + fields.get("bound_ms", 10_000) / 1000
        records: list[Json] = []
        fault: Json = None
        at_end = False
        while not at_end and fault is None and time.monotonic() < deadline:
            for reader in readers:
                fault = fault or self._poll_once(reader, records)
            idle = fields.get("shared") and not all(reader.consumer.assignment() for reader in readers)
            at_end = fault is None and not idle and self._at_end(readers, wanted)
        seen = {(row["at"], row["offset"]): row for row in records}
        names = [sorted(map(key, reader.consumer.assignment())) for reader in readers]
        outcome: dict[str, Json] = {
            "records": [seen[each] for each in sorted(seen)],
            "at_end": at_end,
            "assigned": names if len(names) == 1 else sorted(map(len, names)),
        }
        if len(readers) == 1:
            outcome["repeated"] = len(records) - len(seen)
        if fault is not None:
            outcome["failed"] = fault
        return outcome

    def _poll_once(self, reader: Reader, records: list[Json]) -> Json:
        for message in reader.consumer.consume(500, ONE_POLL_SECONDS):
            error = message.error()
            if error is None:
                records.append(shown_record(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                reader.ends[f"{message.topic()}-{message.partition()}"] = message.offset()  # type: ignore[assignment]
            elif error.fatal() or not is_passing(error):
                return failure(error)
        return None

    def _at_end(self, readers: list[Reader], wanted: int) -> bool:
        assigned = [reader.consumer.assignment() for reader in readers]
        if wanted >= 0 and sum(map(len, assigned)) != wanted:
            return False
        for reader, partitions in zip(readers, assigned, strict=True):
            own = [one for one in partitions if key(one) not in reader.paused]
            if any(key(one) not in reader.ends for one in own):
                return False
            try:
                ends = self._admin_operations.ends(own, reader.committed_only)
            except KafkaException:
                # librdkafka's admin client goes on asking those who led before: a new one knows better
                del self._admins["admin"]
                return False
            if any(reader.ends[name] < end for name, end in ends.items()):
                return False
        return True


def serve(producer: Producer, seconds: float) -> None:
    """Have what was sent come to something; a fatal error is told by what it is the fault of."""
    # It is raised wherever the producer is at work, not always as what it is.
    with contextlib.suppress(KafkaException, SystemError):
        _ = producer.flush(seconds) if seconds else producer.poll(0)


def is_passing(error: KafkaError) -> bool:
    """Whether librdkafka tells of something that it goes on with by itself."""
    return error.retriable() or error.code() in (
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
    )


def delivered(error: KafkaError | None, message: Any) -> Json:
    if error is not None:
        return failure(error)
    return {
        "at": f"{message.topic()}-{message.partition()}",
        "offset": message.offset(),
        "timestamp": message.timestamp()[1],
    }


def shown_record(message: Any) -> Json:
    kind, timestamp = message.timestamp()
    return {
        "at": f"{message.topic()}-{message.partition()}",
        "offset": message.offset(),
        "key": text(message.key()),
        "value": text(message.value()),
        "headers": [[name, text(data)] for name, data in message.headers() or ()],
        "timestamp": timestamp,
        "timestamp_type": kind,
        "leader_epoch": message.leader_epoch(),
    }


def metadata_of(found: Any, name: str) -> Json:
    topic = found.topics[name]
    if topic.error is not None:
        return failure(topic.error)
    return [
        {"partition": one.id, "leader": one.leader, "replicas": len(one.replicas), "in_sync": len(one.isrs)}
        for one in sorted(topic.partitions.values(), key=lambda one: one.id)
    ]


def main() -> None:
    _SILENT.addHandler(logging.NullHandler())
    _SILENT.propagate = False
    bootstrap, login_bootstrap = sys.argv[1:3]
    sessions: dict[str, Session] = {}
    writing = threading.Lock()

    def carry_out(session: Session) -> None:
        while True:
            request = session.lines.get()
            began = time.monotonic()
            outcome = session.perform(request["operation"], request["fields"])
            answer = {"id": request["id"], "seconds": time.monotonic() - began, "outcome": outcome}
            with writing:
                print(json.dumps(answer), flush=True)
            if request["operation"] == "end":
                return

    for line in sys.stdin:
        request = json.loads(line)
        name = request["session"]
        if name not in sessions:
            sessions[name] = Session(bootstrap, login_bootstrap)
            threading.Thread(target=carry_out, args=(sessions[name],), daemon=True).start()
        sessions[name].lines.put(request)
        if request["operation"] == "end":
            del sessions[name]


if __name__ == "__main__":
    main()
