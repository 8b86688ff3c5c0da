"""Sessions in which brokers are killed while clients are at work: a leader, a coordinator, or all of them.

What is under way when they die has to come to the same on both systems, and everything is read back when the
brokers are in sync again.
"""

from collections.abc import Callable

from tests.oracle.clients_crashes import ALL, GROUP, LEADER, TRANSACTION
from tests.oracle.clients_generator import Maker, read_back
from tests.oracle.clients_session import KILL, WHOLE, ClientSession, Json

#: how long consumers may take to come to the end again
BOUND_MS = 60_000

Scene = Callable[[Maker, str], None]


def _kill(maker: Maker, who: str, **whose: Json) -> None:
    maker.add(KILL, who=who, **({} if who == ALL else whose))


def _filled(maker: Maker, topic: str) -> None:
    """Records that all replicas have."""
    producer = maker.producer()
    maker.add("send", producer=producer, records=maker.records(topic))
    maker.add("close_producer", producer=producer)


def producing(maker: Maker, who: str) -> None:
    topic = maker.topic()
    producer = maker.producer()
    maker.add("send", producer=producer, records=maker.records(topic))
    _kill(maker, who, topic=topic)
    maker.add("send", producer=producer, records=maker.records(topic), goes_on=f"producer, {who}")
    maker.add("send", producer=producer, records=maker.records(topic))
    maker.add("close_producer", producer=producer)


def in_flight(maker: Maker, who: str) -> None:
    """Batches are under way when the broker dies: each is there once, in order."""
    topic = maker.topic(partitions=1)
    small = {"batch_size": "1"} if maker.java else {"batch_num_messages": "1"}
    producer = maker.producer(enable_idempotence="true", linger_ms="0", **small)
    maker.add("send", producer=producer, records=[maker.record(topic, partition=0)])
    for _ in range(2):
        rows = [maker.record(topic, partition=0) for _ in range(8)]
        maker.add("send", producer=producer, records=rows, wait=False)
    _kill(maker, who, topic=topic)
    rows = [maker.record(topic, partition=0) for _ in range(8)]
    maker.add("send", producer=producer, records=rows, wait=False)
    maker.add("flush", producer=producer, goes_on=f"producer with batches in flight, {who}")
    maker.add("close_producer", producer=producer)


def _in_a_group(maker: Maker, who: str, protocol: str) -> None:
    topic = maker.topic()
    group, count = maker.group(), maker.topics[topic]
    settings = {"group_id": group, "auto_offset_reset": "earliest", "enable_auto_commit": "false"}
    _filled(maker, topic)
    reader = maker.consumer(**settings, group_protocol=protocol)
    maker.add("subscribe", consumer=reader, topics=[topic])
    maker.poll(reader, assigned=count)
    maker.add("commit_offsets", consumer=reader)
    producer = maker.producer()
    maker.add("send", producer=producer, records=[maker.record(topic, partition=0)])
    _kill(maker, who, topic=topic, group=group)
    offsets = [[topic, 0, maker.random.randint(0, 9)]]
    maker.add("commit_offsets", consumer=reader, offsets=offsets, goes_on=f"commit, {protocol} group, {who}")
    maker.add("send", producer=producer, records=maker.records(topic))
    maker.add(
        "poll",
        consumers=[reader],
        assigned=count,
        bound_ms=BOUND_MS,
        goes_on=f"consumer, {protocol} group, {who}",
    )
    maker.add("commit_offsets", consumer=reader)
    maker.add("committed", consumer=reader, partitions=maker.partitions_of(topic))
    maker.add("close_consumer", consumer=reader)
    maker.add("close_producer", producer=producer)


def in_a_classic_group(maker: Maker, who: str) -> None:
    _in_a_group(maker, who, "classic")


def in_a_consumer_group(maker: Maker, who: str) -> None:
    _in_a_group(maker, who, "consumer")


def _begun(maker: Maker, topic: str) -> tuple[str, str]:
    """A producer inside of a transaction, and its transactional id."""
    transactional_id = maker.new("x")
    maker.transactional_ids.append(transactional_id)
    producer = maker.producer(transactional_id=transactional_id)
    maker.add("init_transactions", producer=producer)
    maker.add("begin", producer=producer)
    maker.add("send", producer=producer, records=maker.records(topic))
    return producer, transactional_id


def in_a_transaction(maker: Maker, who: str) -> None:
    topic = maker.topic(partitions=2)
    producer, transactional_id = _begun(maker, topic)
    _kill(maker, who, topic=topic, id=transactional_id)
    if maker.chance(0.5):
        maker.add("send", producer=producer, records=maker.records(topic))
    ending = maker.random.choice(("commit", "abort"))
    maker.add(ending, producer=producer, goes_on=f"{ending} of a transaction, {who}")
    maker.add("begin", producer=producer)
    maker.add("send", producer=producer, records=maker.records(topic))
    maker.add("commit", producer=producer)
    maker.add("close_producer", producer=producer)


def with_offsets(maker: Maker, who: str) -> None:
    source, target = maker.topic(partitions=1), maker.topic(partitions=1)
    _filled(maker, source)
    group = maker.group()
    reader = maker.consumer(group_id=group, auto_offset_reset="earliest", enable_auto_commit="false")
    maker.add("subscribe", consumer=reader, topics=[source])
    maker.poll(reader, assigned=1)
    producer, transactional_id = _begun(maker, target)
    maker.add("send_offsets", producer=producer, consumer=reader, offsets=[[source, 0, 1]])
    _kill(maker, who, topic=target, group=group, id=transactional_id)
    maker.add("commit", producer=producer, goes_on=f"commit of a transaction with offsets, {who}")
    maker.add("close_producer", producer=producer)
    maker.add("close_consumer", consumer=reader)


def successor(maker: Maker, who: str) -> None:
    """A transaction is open when brokers die; the next producer of its id aborts it."""
    topic = maker.topic(partitions=1)
    first, transactional_id = _begun(maker, topic)
    second = maker.producer(transactional_id=transactional_id)
    _kill(maker, who, topic=topic, id=transactional_id)
    maker.add("init_transactions", producer=second, goes_on=f"successor of a transaction, {who}")
    maker.add("begin", producer=second)
    maker.add("send", producer=second, records=maker.records(topic))
    maker.add("commit", producer=second)
    maker.add("close_producer", producer=first, timeout_ms=0)
    maker.add("close_producer", producer=second)


def administering(maker: Maker, who: str) -> None:
    topic = maker.topic()
    _filled(maker, topic)
    _kill(maker, who, topic=topic)
    goes_on = f"admin client, {who}"
    if maker.java:
        partitions = [[*pair, "latest"] for pair in maker.partitions_of(topic)]
        maker.add("list_offsets", partitions=partitions, goes_on=goes_on)
    else:
        # librdkafka does not ask again for offsets when leaders changed
        maker.add("describe_topics", topics=[topic], goes_on=goes_on)


#: what is under way, and who is killed meanwhile
SCENES: tuple[tuple[Scene, tuple[str, ...]], ...] = (
    (producing, (LEADER, ALL)),
    (in_a_transaction, (TRANSACTION, ALL, LEADER)),
    (in_a_classic_group, (GROUP, ALL, LEADER)),
    (in_flight, (LEADER, ALL)),
    (with_offsets, (GROUP, TRANSACTION, ALL)),
    (in_a_consumer_group, (GROUP, ALL, LEADER)),
    (successor, (TRANSACTION, ALL)),
    (administering, (LEADER, ALL)),
)


def make_fault_session(seed: int, client: str, brokers: int = 1) -> ClientSession:
    """One scene, each in its turn, and the reading back."""
    maker = Maker(seed, client, brokers)
    scene, victims = SCENES[seed % len(SCENES)]
    scene(maker, victims[seed // len(SCENES) % len(victims)])
    maker.add(WHOLE)
    read_back(maker)
    return ClientSession(seed, client, tuple(maker.operations), brokers)
