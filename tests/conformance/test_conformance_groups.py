"""Consumer groups through each client: join, commit, go on after a restart, share the partitions."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer

from tests.conformance.drivers.asyncio_python import as_message as as_aio_message
from tests.conformance.drivers.confluent import consumer, poll_messages, producer, send
from tests.conformance.drivers.contract import DEADLINE_SECONDS, Message, TopicMaker, new_name
from tests.conformance.drivers.kafkajs import KafkaJsProcess, as_message
from tests.conformance.drivers.kcat import FORMAT, parse_output, run_kcat
from tests.conformance.drivers.pure_python import poll_messages as poll_pure_python

PARTITION_COUNT = 4

Read = Callable[[str, str, str, int], list[Message]]


def fill(bootstrap: str, topic: str, count: int, first: int = 0) -> None:
    """Numbered messages over the partitions in turn."""
    messages = [Message(value=b"%d" % n, partition=n % PARTITION_COUNT) for n in range(first, first + count)]
    assert not any(send(producer(bootstrap), topic, messages))


def numbers(messages: list[Message]) -> list[int]:
    return sorted(int(message.value or b"") for message in messages)


@contextmanager
def group_member(bootstrap: str, group: str, topic: str, **settings: object) -> Iterator[Consumer]:
    client = consumer(
        bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        session_timeout_ms=10_000,
        heartbeat_interval_ms=200,
        **settings,
    )
    client.subscribe([topic])
    try:
        yield client
    finally:
        client.close()


def read_with_confluent(bootstrap: str, group: str, topic: str, count: int) -> list[Message]:
    with group_member(bootstrap, group, topic) as client:
        received = [message for _, message in poll_messages(client, count)]
        client.commit(asynchronous=False)
    return received


def read_with_kafka_python(bootstrap: str, group: str, topic: str, count: int) -> list[Message]:
    client = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        fetch_max_wait_ms=100,
    )
    try:
        received = [message for _, message in poll_pure_python(client, count)]
        client.commit()
    finally:
        client.close()
    return received


def read_with_aiokafka(bootstrap: str, group: str, topic: str, count: int) -> list[Message]:
    async def read() -> list[Message]:
        client = AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=100,
        )
        await client.start()
        try:
            received = [as_aio_message(await client.getone()) for _ in range(count)]
            await client.commit()
        finally:
            await client.stop()
        return received

    return asyncio.run(asyncio.wait_for(read(), DEADLINE_SECONDS))


def read_with_kcat(bootstrap: str, group: str, topic: str, count: int) -> list[Message]:
    output = run_kcat(
        *("-G", group, "-q", "-b", bootstrap, "-c", str(count), "-f", FORMAT),
        *("-X", "auto.offset.reset=earliest", "-X", "fetch.wait.max.ms=100", topic),
    )
    return parse_output(output)


@pytest.fixture
def readers(request: pytest.FixtureRequest) -> dict[str, Callable[[], Read]]:
    def read_with_kafkajs() -> Read:
        process: KafkaJsProcess = request.getfixturevalue("kafkajs")

        def read(bootstrap: str, group: str, topic: str, count: int) -> list[Message]:
            raw = process.call(
                "consume", bootstrap=bootstrap, group=group, topics=[topic], count=count, commit=True
            )
            return [as_message(message) for message in raw]

        return read

    return {
        "confluent-kafka": lambda: read_with_confluent,
        "kafka-python": lambda: read_with_kafka_python,
        "aiokafka": lambda: read_with_aiokafka,
        "kafkajs": read_with_kafkajs,
        "kcat": lambda: read_with_kcat,
    }


CLIENTS = ("confluent-kafka", "kafka-python", "aiokafka", "kafkajs", "kcat")


@pytest.mark.parametrize("client", CLIENTS)
def test_a_group_goes_on_where_it_committed(
    client: str,
    bootstrap: str,
    make_topic: TopicMaker,
    readers: dict[str, Callable[[], Read]],
    admin: AdminClient,
) -> None:
    """All is read, then the member leaves; a new one sees only what came since, as do the admin's offsets."""
    read = readers[client]()
    topic, group = make_topic(PARTITION_COUNT), new_name(f"group-{client}")
    fill(bootstrap, topic, 40)
    assert numbers(read(bootstrap, group, topic, 40)) == list(range(40))
    assert committed(admin, group, topic) == dict.fromkeys(range(PARTITION_COUNT), 10)
    fill(bootstrap, topic, 20, first=40)
    assert numbers(read(bootstrap, group, topic, 20)) == list(range(40, 60))
    assert committed(admin, group, topic) == dict.fromkeys(range(PARTITION_COUNT), 15)


def committed(admin: AdminClient, group: str, topic: str) -> dict[int, int]:
    """What the group committed of the topic."""
    futures = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    found = futures[group].result(DEADLINE_SECONDS).topic_partitions
    return {partition.partition: partition.offset for partition in found if partition.topic == topic}


def test_offsets_carry_over_between_clients(
    bootstrap: str, make_topic: TopicMaker, readers: dict[str, Callable[[], Read]]
) -> None:
    """One group, five libraries after each other: each goes on where the one before committed."""
    topic, group = make_topic(PARTITION_COUNT), new_name("group-relay")
    for turn, client in enumerate(CLIENTS):
        fill(bootstrap, topic, 8, first=8 * turn)
        assert numbers(readers[client]()(bootstrap, group, topic, 8)) == list(range(8 * turn, 8 * turn + 8))


def poll_until_shared(members: list[Consumer], deadline_seconds: float = 30) -> list[set[int]]:
    """Poll all members until they hold the partitions between them, each at least one."""
    deadline = time.monotonic() + deadline_seconds
    while True:
        for member in members:
            member.poll(0.05)
        assigned = [{partition.partition for partition in member.assignment()} for member in members]
        together = sorted(index for owned in assigned for index in owned)
        if all(assigned) and together == list(range(PARTITION_COUNT)):
            return assigned
        assert time.monotonic() < deadline, f"assigned so far: {assigned}"


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_two_members_share(strategy: str, bootstrap: str, make_topic: TopicMaker) -> None:
    topic, group = make_topic(PARTITION_COUNT), new_name("group-share")
    fill(bootstrap, topic, 8)
    settings: dict[str, object] = {"partition_assignment_strategy": strategy}
    with group_member(bootstrap, group, topic, **settings) as first:
        assert poll_until_shared([first]) == [set(range(PARTITION_COUNT))]
        with group_member(bootstrap, group, topic, **settings) as second:
            assert [len(owned) for owned in poll_until_shared([first, second])] == [2, 2]
        # The second has left: the first takes over all of it.
        assert poll_until_shared([first]) == [set(range(PARTITION_COUNT))]


def test_two_members_of_kafka_python_share(bootstrap: str, make_topic: TopicMaker) -> None:
    topic, group = make_topic(PARTITION_COUNT), new_name("group-share")
    owned: list[set[int]] = [set(), set()]
    stopping = threading.Event()

    def poll(number: int) -> None:
        # in a thread each: two members that wait for one another in turns may do so for ever
        member = KafkaConsumer(bootstrap_servers=bootstrap, group_id=group, heartbeat_interval_ms=200)
        try:
            # a leader that joins before it knows the topic assigns nothing, and does not always notice
            assert member.partitions_for_topic(topic) == set(range(PARTITION_COUNT))
            member.subscribe([topic])
            while not stopping.is_set():
                member.poll(timeout_ms=1_000)
                owned[number] = {partition.partition for partition in member.assignment()}
        finally:
            member.close()

    deadline = time.monotonic() + 30
    with ThreadPoolExecutor(2) as threads:
        polling = [threads.submit(poll, number) for number in range(2)]
        try:
            while sorted(map(len, owned)) != [2, 2] or owned[0] & owned[1]:
                assert time.monotonic() < deadline, owned
                assert not any(each.done() for each in polling)
                time.sleep(0.05)
            assert owned[0] | owned[1] == set(range(PARTITION_COUNT))
        finally:
            stopping.set()
    for each in polling:
        each.result()


def test_two_members_of_kafkajs_share(
    bootstrap: str, make_topic: TopicMaker, kafkajs: KafkaJsProcess
) -> None:
    topic, group = make_topic(PARTITION_COUNT), new_name("group-share")
    names = [new_name("member"), new_name("member")]
    kafkajs.call("join", bootstrap=bootstrap, group=group, topics=[topic], name=names[0])
    try:
        assert sorted(kafkajs.call("assigned", name=names[0])[topic]) == list(range(PARTITION_COUNT))
        kafkajs.call("join", bootstrap=bootstrap, group=group, topics=[topic], name=names[1])
        try:
            deadline = time.monotonic() + 20
            while True:
                owned = [kafkajs.call("assigned", name=name).get(topic, []) for name in names]
                if sorted(map(len, owned)) == [2, 2]:
                    break
                assert time.monotonic() < deadline, owned
                time.sleep(0.05)
            assert sorted(owned[0] + owned[1]) == list(range(PARTITION_COUNT))
            fill(bootstrap, topic, 20)
            wanted = list(range(20))
            while time.monotonic() < deadline:
                received = [as_message(raw) for name in names for raw in kafkajs.call("received", name=name)]
                if len(received) >= len(wanted):
                    break
                time.sleep(0.05)
            assert numbers(received) == wanted
        finally:
            kafkajs.call("leave", name=names[1])
    finally:
        kafkajs.call("leave", name=names[0])


def test_surplus_members_idle(bootstrap: str, make_topic: TopicMaker, admin: AdminClient) -> None:
    topic, group = make_topic(1), new_name("group-surplus")

    def member_count() -> int:
        described = admin.describe_consumer_groups([group])[group].result(DEADLINE_SECONDS)
        return len(described.members) if described.state == ConsumerGroupState.STABLE else 0

    with group_member(bootstrap, group, topic) as first, group_member(bootstrap, group, topic) as second:
        deadline = time.monotonic() + 20
        while True:
            for member in (first, second):
                member.poll(0.05)
            owned = sorted(len(member.assignment()) for member in (first, second))
            if owned == [0, 1] and member_count() == 2:
                break
            assert time.monotonic() < deadline, owned


def test_groups_are_independent(bootstrap: str, make_topic: TopicMaker) -> None:
    topic = make_topic(PARTITION_COUNT)
    fill(bootstrap, topic, 12)
    for _ in range(3):
        assert numbers(read_with_confluent(bootstrap, new_name("group"), topic, 12)) == list(range(12))


def test_commit_without_joining(bootstrap: str, topic: str) -> None:
    """A standalone consumer that keeps its place under a group id, with the metadata it stored beside it."""
    group = new_name("group-standalone")
    client = consumer(bootstrap, group_id=group)
    try:
        client.assign([TopicPartition(topic, 0, 0)])
        client.commit(offsets=[TopicPartition(topic, 0, 7, metadata="left here")], asynchronous=False)
        (found,) = client.committed([TopicPartition(topic, 0)], timeout=10)
        assert (found.offset, found.metadata) == (7, "left here")
    finally:
        client.close()


def test_unknown_group_has_no_offsets(bootstrap: str, topic: str) -> None:
    client = consumer(bootstrap, group_id=new_name("group-unknown"))
    try:
        (found,) = client.committed([TopicPartition(topic, 0)], timeout=10)
        assert (found.offset, found.error) == (-1001, None)
    finally:
        client.close()


def test_committing_makes_the_internal_topic_visible(bootstrap: str, topic: str, admin: AdminClient) -> None:
    client = consumer(bootstrap, group_id=new_name("group"))
    try:
        client.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    finally:
        client.close()
    assert "__consumer_offsets" in admin.list_topics(timeout=10).topics
