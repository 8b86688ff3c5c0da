"""One member of a group as a process of its own, which a test can kill: says on standard output what it does.

    python -m tests.conformance.group_member <client> <bootstrap> <group> <topic> <strategy> <instance or ->

    A <seconds> <partitions>          it may read these from now on (monotonic clock of the machine)
    R <seconds> <partitions or all>   it does not read these any more
    L <seconds> <partitions>          nor these, and it could not commit what it had read of them
    V <seconds> <partition> <value>   it has read and processed a record
    C <seconds> <error>               a commit of what it has processed was refused

It commits what it has processed: every few records, and before it gives partitions up. A line on standard
input, or its end, makes it leave in good order. kafkajs/member.js speaks the same.
"""

import asyncio
import faulthandler
import signal
import sys
import threading
import time
from collections.abc import Iterable

SESSION_MS = 6_000
HEARTBEAT_MS = 300
METADATA_MS = 500
COMMIT_RECORDS = 20
KAFKA_PYTHON_POLL_MS = 5_000
"""Longer than any rebalance here: a kafka-python leader that joins again because a topic has grown stays
without partitions if the poll that began the join ends before it does (docs/groups.md, Known client faults).
"""


def say(kind: str, *fields: object) -> None:
    print(kind, f"{time.monotonic():.6f}", *fields, flush=True)


def listed(partitions: Iterable[int]) -> str:
    return ",".join(str(partition) for partition in sorted(partitions)) or "-"


def stop_when_told() -> threading.Event:
    stopped = threading.Event()

    def wait() -> None:
        sys.stdin.readline()
        stopped.set()

    threading.Thread(target=wait, daemon=True).start()
    return stopped


def run_confluent(
    protocol: str, bootstrap: str, group: str, topic: str, strategy: str, instance: str
) -> None:
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    settings: dict[str, object] = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 100,
        "topic.metadata.refresh.interval.ms": METADATA_MS,
        "reconnect.backoff.max.ms": 500,
        "log_level": 0,
    }
    if protocol == "consumer":
        settings["group.remote.assignor"] = strategy
    else:
        settings["partition.assignment.strategy"] = strategy
        settings["session.timeout.ms"] = SESSION_MS
        settings["heartbeat.interval.ms"] = HEARTBEAT_MS
    if instance != "-":
        settings["group.instance.id"] = instance
    client, stopped, uncommitted = Consumer(settings), stop_when_told(), 0
    leaving = False

    def commit() -> None:
        nonlocal uncommitted
        try:
            if uncommitted:
                client.commit(asynchronous=False)
        except KafkaException as refused:
            # Fenced, or no coordinator for a moment: the records will be read again.
            say("C", refused.args[0].name())
        uncommitted = 0

    def assigned(_: object, partitions: list[TopicPartition]) -> None:
        # A rebalance that ended a moment ago may still be told by close, which reads nothing any more.
        if not leaving:
            say("A", listed(p.partition for p in partitions))

    def revoked(_: object, partitions: list[TopicPartition]) -> None:
        commit()
        say("R", listed(p.partition for p in partitions))

    def lost(_: object, partitions: list[TopicPartition]) -> None:
        nonlocal uncommitted
        uncommitted = 0
        say("L", listed(p.partition for p in partitions))

    client.subscribe([topic], on_assign=assigned, on_revoke=revoked, on_lost=lost)
    while not stopped.is_set():
        message = client.poll(0.1)
        error = None if message is None else message.error()
        if error is not None and error.fatal():
            raise KafkaException(error)  # fenced, say: it will not come back by itself
        if message is not None and not message.error():
            say("V", message.partition(), message.value().decode())  # type: ignore[union-attr]
            uncommitted += 1
        if uncommitted >= COMMIT_RECORDS or (message is None and uncommitted):
            commit()
    commit()
    leaving = True
    say("R", "all")
    client.close()


def run_kafka_python(bootstrap: str, group: str, topic: str, strategy: str, instance: str) -> None:
    from kafka import ConsumerRebalanceListener, KafkaConsumer
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
    from kafka.errors import KafkaConnectionError, KafkaError

    assignors = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
    }
    client = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        group_instance_id=None if instance == "-" else instance,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        metadata_max_age_ms=METADATA_MS,
        fetch_max_wait_ms=100,
        partition_assignment_strategy=[assignors[strategy]],
    )
    stopped, uncommitted = stop_when_told(), 0

    def commit() -> None:
        nonlocal uncommitted
        try:
            if uncommitted:
                client.commit()
        except KafkaError as refused:
            say("C", type(refused).__name__)
        uncommitted = 0

    class Listener(ConsumerRebalanceListener):
        # Partitions come and go only within poll, and all it returned before is committed by then. Here one
        # could not: listeners run in the thread that would have to send the commit.
        def on_partitions_revoked(self, revoked: set[object]) -> None:
            say("R", listed(p.partition for p in revoked))  # type: ignore[attr-defined]

        def on_partitions_lost(self, lost: set[object]) -> None:
            say("L", listed(p.partition for p in lost))  # type: ignore[attr-defined]

        def on_partitions_assigned(self, assigned: set[object]) -> None:
            say("A", listed(p.partition for p in assigned))  # type: ignore[attr-defined]

    # A kafka-python leader that does not know the topic yet assigns nothing, and may never look again.
    client.partitions_for_topic(topic)
    client.subscribe([topic], listener=Listener())
    while not stopped.is_set():
        try:
            records = client.poll(timeout_ms=KAFKA_PYTHON_POLL_MS, max_records=COMMIT_RECORDS)
        except KafkaConnectionError as refused:
            # While the broker is down this client's poll may raise instead of trying again.
            say("C", type(refused).__name__)
            time.sleep(0.1)
            continue
        for batch in records.values():
            for record in batch:
                say("V", record.partition, record.value.decode())
                uncommitted += 1
        commit()
    say("R", "all")
    client.close()


async def run_aiokafka(bootstrap: str, group: str, topic: str, strategy: str, instance: str) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
    from aiokafka.errors import KafkaError

    assignors = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
    }
    client = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        group_instance_id=None if instance == "-" else instance,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        metadata_max_age_ms=METADATA_MS,
        fetch_max_wait_ms=100,
        partition_assignment_strategy=[assignors[strategy]],
    )
    stopped, uncommitted = stop_when_told(), 0

    async def commit() -> None:
        nonlocal uncommitted
        try:
            if uncommitted:
                await client.commit()
        except KafkaError as refused:
            say("C", type(refused).__name__)
        uncommitted = 0

    class Listener(ConsumerRebalanceListener):
        async def on_partitions_revoked(self, revoked: set[object]) -> None:
            await commit()
            say("R", listed(p.partition for p in revoked))  # type: ignore[attr-defined]

        async def on_partitions_assigned(self, assigned: set[object]) -> None:
            # A rebalance may still end in the background after we said that we leave.
            if not stopped.is_set():
                say("A", listed(p.partition for p in assigned))  # type: ignore[attr-defined]

    client.subscribe([topic], listener=Listener())
    await client.start()
    while not stopped.is_set():
        for batch in (await client.getmany(timeout_ms=100, max_records=COMMIT_RECORDS)).values():
            for record in batch:
                say("V", record.partition, record.value.decode())
                uncommitted += 1
        await commit()
    say("R", "all")
    await client.stop()


def main(client: str, *where: str) -> None:
    if client == "aiokafka":
        asyncio.run(run_aiokafka(*where))
    elif client == "kafka-python":
        run_kafka_python(*where)
    else:
        run_confluent({"confluent": "classic", "confluent-consumer": "consumer"}[client], *where)


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)  # what is it doing? says it on standard error
    main(*sys.argv[1:])
