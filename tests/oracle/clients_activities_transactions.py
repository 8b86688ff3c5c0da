"""Activities of transactional producers."""

from tests.oracle.clients_generator import Maker


def _transactional(maker: Maker, transactional_id: str | None = None) -> tuple[str, str]:
    if transactional_id is None:
        transactional_id = maker.new("x")
        maker.transactional_ids.append(transactional_id)
    settings = {"transactional_id": transactional_id}
    if maker.chance(0.3):
        settings["transaction_timeout_ms"] = "30000"
    producer = maker.producer(**settings)
    maker.add("init_transactions", producer=producer)
    return producer, transactional_id


def committed(maker: Maker) -> None:
    """Transactions one after the other; consumers of both levels look in between."""
    topic = maker.topic()
    partitions = maker.partitions_of(topic)
    producer, _ = _transactional(maker)
    for _ in range(maker.random.randint(1, 3)):
        maker.add("begin", producer=producer)
        ending = maker.random.choice(("commit", "commit", "abort"))
        for _ in range(maker.random.randint(0, 2)):
            # an abort throws away what is not sent yet
            wait = ending == "abort" or maker.chance(0.5)
            maker.add("send", producer=producer, records=maker.records(topic), wait=wait)
        if maker.chance(0.3):
            maker.add("list_offsets", partitions=[[*pair, "latest"] for pair in partitions], committed=True)
        maker.add(ending, producer=producer)
        if maker.chance(0.3):
            maker.filled(topic, 2)
    reader = maker.consumer(
        auto_offset_reset="earliest",
        isolation_level=maker.random.choice(("read_committed", "read_uncommitted")),
        enable_auto_commit="false",
        **({} if maker.java else {"group_id": maker.group()}),
    )
    maker.add("assign", consumer=reader, partitions=partitions)
    maker.poll(reader, assigned=len(partitions))
    maker.add("close_consumer", consumer=reader)
    maker.add("close_producer", producer=producer)


def fenced(maker: Maker) -> None:
    """A second producer with the same transactional id; the first one learns of it."""
    topic = maker.topic(partitions=1)
    first, transactional_id = _transactional(maker)
    maker.add("begin", producer=first)
    inside = maker.chance(0.7)
    if inside:
        maker.add("send", producer=first, records=maker.records(topic))
    second, _ = _transactional(maker, transactional_id)
    maker.add("begin", producer=second)
    maker.add("send", producer=second, records=maker.records(topic))
    if maker.chance(0.5):
        # librdkafka keeps what a fenced producer sends
        maker.add("send", producer=first, records=maker.records(topic, 1), wait_seconds=2)
    maker.add(maker.random.choice(("commit", "abort")), producer=first)
    maker.add("begin", producer=first)
    maker.add("commit", producer=second)
    maker.add("close_producer", producer=first, timeout_ms=0)
    maker.add("begin", producer=second)
    maker.add("send", producer=second, records=maker.records(topic))
    maker.add("commit", producer=second)
    maker.add("close_producer", producer=second)


def with_offsets(maker: Maker) -> None:
    """Read, write and commit what was read in one transaction."""
    source, target = maker.topic(partitions=1), maker.topic(partitions=1)
    maker.filled(source)
    group = maker.group()
    settings = {"group_id": group, "auto_offset_reset": "earliest", "enable_auto_commit": "false"}
    if maker.chance(0.4):
        settings["group_protocol"] = "consumer"
    reader = maker.consumer(**settings)
    maker.add("subscribe", consumer=reader, topics=[source])
    maker.poll(reader, assigned=1)
    producer, _ = _transactional(maker)
    for _ in range(maker.random.randint(1, 2)):
        maker.add("begin", producer=producer)
        maker.add("send", producer=producer, records=maker.records(target))
        offset = maker.random.randint(0, 3)
        maker.add("send_offsets", producer=producer, consumer=reader, offsets=[[source, 0, offset]])
        if maker.chance(0.4):
            maker.add("list_group_offsets", groups=[group])
        maker.add(maker.random.choice(("commit", "commit", "abort")), producer=producer, settle=True)
        maker.add("list_group_offsets", groups=[group], stable=True)
    if maker.chance(0.5):
        # The group has gone on without this member.
        maker.add("close_consumer", consumer=reader)
        if maker.java:
            maker.add("begin", producer=producer)
            maker.add("send_offsets", producer=producer, group=group, offsets=[[source, 0, 1]])
            maker.add("commit", producer=producer)
    maker.add("close_producer", producer=producer)


def wrong_state(maker: Maker) -> None:
    """Calls at the wrong time."""
    topic = maker.topic(partitions=1)
    transactional_id = maker.new("x")
    producer = maker.producer(transactional_id=transactional_id)
    wrong = maker.random.sample(("begin", "commit", "abort", "send"), 2)
    for name in wrong:
        if name == "send":
            maker.add("send", producer=producer, records=maker.records(topic, 1), wait_seconds=1)
        else:
            maker.add(name, producer=producer)
    plain = maker.producer()
    maker.add("init_transactions", producer=plain)
    maker.add("begin", producer=plain)
    maker.add("close_producer", producer=plain)
    maker.add("close_producer", producer=producer, timeout_ms=0)
    producer, _ = _transactional(maker)
    maker.add("init_transactions", producer=producer)
    maker.add("commit", producer=producer)
    maker.add("begin", producer=producer)
    maker.add("begin", producer=producer)
    maker.add("send", producer=producer, records=maker.records(topic, 2))
    maker.add("commit", producer=producer)
    maker.add("send", producer=producer, records=maker.records(topic, 1), wait_seconds=1)
    maker.add("close_producer", producer=producer, timeout_ms=0)
    too_long = maker.producer(transactional_id=maker.new("x"), transaction_timeout_ms="2000000")
    maker.add("init_transactions", producer=too_long)
    maker.add("close_producer", producer=too_long, timeout_ms=0)


def left_open(maker: Maker) -> None:
    """A producer goes away inside of a transaction; readers wait, and its successor aborts it."""
    topic = maker.topic(partitions=1)
    producer, transactional_id = _transactional(maker)
    maker.add("begin", producer=producer)
    maker.add("send", producer=producer, records=maker.records(topic))
    maker.add("close_producer", producer=producer, timeout_ms=0)
    maker.filled(topic)
    reader = maker.consumer(
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        enable_auto_commit="false",
        **({} if maker.java else {"group_id": maker.group()}),
    )
    maker.add("assign", consumer=reader, partitions=[[topic, 0]])
    maker.poll(reader, assigned=1, bound_ms=10_000)
    if maker.java and maker.chance(0.4):
        maker.add("abort_transaction_of", partition=[topic, 0])
    elif maker.java and maker.chance(0.5):
        maker.add("fence_producers", ids=[transactional_id])
    else:
        successor, _ = _transactional(maker, transactional_id)
        maker.add("close_producer", producer=successor)
    maker.poll(reader, assigned=1)
    maker.add("close_consumer", consumer=reader)


def refused_inside(maker: Maker) -> None:
    """A record that is refused makes its transaction one that can only be aborted."""
    topic = maker.topic(partitions=1, max_message_bytes="1500")
    producer, _ = _transactional(maker)
    maker.add("begin", producer=producer)
    maker.add("send", producer=producer, records=maker.records(topic, 2))
    maker.add("send", producer=producer, records=[{"topic": topic, "partition": 0, "size": 4000}])
    if maker.chance(0.6):
        maker.add("commit", producer=producer)
    maker.add("abort", producer=producer)
    maker.add("begin", producer=producer)
    maker.add("send", producer=producer, records=maker.records(topic, 2))
    maker.add("commit", producer=producer)
    maker.add("close_producer", producer=producer)


def seen_by_admin(maker: Maker) -> None:
    """What admin clients see of transactions, and what they do to them."""
    topic = maker.topic(partitions=1)
    producer, transactional_id = _transactional(maker)
    ids = [transactional_id, "~absent"]
    maker.add("describe_transactions", ids=ids)
    maker.add("begin", producer=producer)
    maker.add("send", producer=producer, records=maker.records(topic))
    maker.add("describe_transactions", ids=ids)
    maker.add("describe_producers", partitions=[[topic, 0]])
    maker.add("list_transactions")
    if maker.chance(0.5):
        maker.add("fence_producers", ids=[transactional_id])
        maker.add("commit", producer=producer)
    else:
        maker.add("commit", producer=producer)
    maker.add("describe_transactions", ids=[transactional_id])
    maker.add_for_absent("describe_producers", partitions=[[topic, 0], [topic, 99]])
    maker.add("close_producer", producer=producer, timeout_ms=0)
