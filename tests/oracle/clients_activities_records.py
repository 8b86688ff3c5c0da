"""Activities of producers without transactions, and of consumers without groups."""

from tests.oracle.clients_generator import FIRST_TIMESTAMP_MS, PRODUCER_SETTINGS, Maker


def producing(maker: Maker) -> None:
    topic = maker.some_topic()
    producer = maker.producer(**maker.random.choice(PRODUCER_SETTINGS))
    for _ in range(maker.random.randint(1, 3)):
        maker.add("send", producer=producer, records=maker.records(topic))
    if maker.chance(0.3):
        maker.add("producer_partitions_for", producer=producer, topic=topic)
    maker.add("close_producer", producer=producer)


def refused_records(maker: Maker) -> None:
    """Records that nobody takes, between others."""
    topic = maker.topic(max_message_bytes="1500")
    quick = {"max_block_ms": "1200"} if maker.java else {"message_timeout_ms": "5000"}
    producer = maker.producer(
        **quick, **maker.random.choice(({}, {"acks": "1", "enable_idempotence": "false"}))
    )
    wrong = (
        {"topic": topic, "partition": 0, "size": 4000},
        {"topic": "~bad name!", "partition": 0, "value": "v"},
        {"topic": topic, "partition": 0, "value": "v", "timestamp": 4_000_000_000_000},
        {"topic": topic, "partition": 77, "value": "v"},
        {"topic": topic, "partition": 0, "size": 2_000_000},
    )
    for row in maker.random.sample(wrong, 2):
        maker.add("send", producer=producer, records=[maker.record(topic, partition=0)])
        maker.add("send", producer=producer, records=[row])
    maker.add("send", producer=producer, records=maker.records(topic))
    maker.add("close_producer", producer=producer)


def many_in_flight(maker: Maker) -> None:
    """Small batches to one partition, sent without waiting."""
    topic = maker.topic(partitions=1)
    settings = (
        {"linger_ms": "0", "batch_size": "1"} if maker.java else {"linger_ms": "0", "batch_num_messages": "1"}
    )
    producer = maker.producer(**settings)
    for _ in range(3):
        rows = [maker.record(topic, partition=0, headers=[]) for _ in range(5)]
        maker.add("send", producer=producer, records=rows, wait=False)
    maker.add("flush", producer=producer)
    maker.add("close_producer", producer=producer)


def auto_created(maker: Maker) -> None:
    if maker.brokers > 1:
        # the brokers of its replicas are a choice of each system
        return
    name = maker.new("auto")
    producer = maker.producer()
    maker.add("send", producer=producer, records=[{"topic": name, "key": "k", "value": "v"}])
    maker.add("close_producer", producer=producer)
    maker.topics[name] = 2
    reader = maker.consumer(group_id=maker.group(), auto_offset_reset="earliest")
    maker.add("partitions_for", consumer=reader, topic=name)
    maker.add("close_consumer", consumer=reader)


def append_time(maker: Maker) -> None:
    topic = maker.topic(message_timestamp_type="LogAppendTime")
    maker.filled(topic)
    maker.add("list_offsets", partitions=[[topic, 0, FIRST_TIMESTAMP_MS]])


def compacted(maker: Maker) -> None:
    topic = maker.topic(partitions=1, cleanup_policy="compact")
    producer = maker.producer()
    maker.add("send", producer=producer, records=[maker.record(topic, key="k", partition=0)])
    without = maker.record(topic, partition=0)
    without.pop("key", None)
    maker.add("send", producer=producer, records=[without])
    maker.add("send", producer=producer, records=[maker.record(topic, key="k", partition=0, value=None)])
    maker.add("close_producer", producer=producer)


def offsets(maker: Maker) -> None:
    topic = maker.some_topic()
    maker.filled(topic)
    specs = ["earliest", "latest", FIRST_TIMESTAMP_MS + 1000 * maker.random.randint(0, 60)]
    for spec in maker.random.sample(specs, 2):
        maker.add("list_offsets", partitions=[[topic, 0, spec]], committed=maker.chance(0.3))
    if maker.chance(0.3):
        maker.add_for_absent("list_offsets", partitions=[[topic, 99, "latest"]])
    reader = maker.consumer(group_id=maker.group(), enable_auto_commit="false")
    partitions = maker.partitions_of(topic)
    maker.add("beginning_offsets", consumer=reader, partitions=partitions)
    maker.add("end_offsets", consumer=reader, partitions=partitions)
    times = [[*pair, FIRST_TIMESTAMP_MS + 1000 * maker.random.randint(0, 60)] for pair in partitions]
    maker.add("offsets_for_times", consumer=reader, times=times)
    maker.add("partitions_for", consumer=reader, topic=topic)
    maker.add("close_consumer", consumer=reader)


def newest_time(maker: Maker) -> None:
    """Which record is the newest: all of them say when they were made."""
    topic = maker.topic(partitions=1)
    producer = maker.producer(**maker.random.choice(PRODUCER_SETTINGS))
    for _ in range(maker.random.randint(1, 3)):
        times = [FIRST_TIMESTAMP_MS + 1000 * maker.random.randint(0, 9) for _ in range(3)]
        rows = [maker.record(topic, partition=0, timestamp=time) for time in times]
        maker.add("send", producer=producer, records=rows)
    maker.add("close_producer", producer=producer)
    maker.add("list_offsets", partitions=[[topic, 0, "max_timestamp"]], committed=maker.chance(0.3))


def deleted_records(maker: Maker) -> None:
    topic = maker.topic(partitions=1)
    maker.filled(topic)
    maker.filled(topic)
    maker.add("delete_records", before=[[topic, 0, maker.random.choice((0, 1, 2, -1, 99))]])
    maker.add_for_absent(
        "delete_records", before=[[topic, 99, 1]] if maker.chance(0.5) else [["~absent", 0, 1]]
    )
    maker.add("list_offsets", partitions=[[topic, 0, "earliest"]])
    maker.filled(topic, 2)


def deleted_while_read(maker: Maker) -> None:
    """A consumer stands where records are deleted."""
    topic = maker.topic(partitions=1)
    maker.filled(topic)
    reader = maker.consumer(
        auto_offset_reset=maker.random.choice(("earliest", "latest", "none" if maker.java else "error")),
        enable_auto_commit="false",
        **({} if maker.java else {"group_id": maker.group()}),
    )
    maker.add("assign", consumer=reader, partitions=[[topic, 0, 0]])
    maker.add("delete_records", before=[[topic, 0, -1]])
    if maker.java:
        maker.add("seek", consumer=reader, partition=[topic, 0], offset=0)
    maker.poll(reader, assigned=1, bound_ms=10_000)
    maker.filled(topic, 2)
    maker.poll(reader, assigned=1, bound_ms=10_000)
    maker.add("close_consumer", consumer=reader)


def assigned(maker: Maker) -> None:
    """A consumer of its own: assign, seek, read to the end, and on."""
    topic = maker.some_topic()
    maker.filled(topic)
    partitions = maker.partitions_of(topic)
    settings = {
        "auto_offset_reset": "earliest",
        "isolation_level": maker.random.choice(("read_committed", "read_uncommitted")),
    }
    if maker.chance(0.6) or not maker.java:
        settings |= {"group_id": maker.group(), "enable_auto_commit": maker.random.choice(("true", "false"))}
    reader = maker.consumer(**settings)
    maker.add("assign", consumer=reader, partitions=partitions)
    maker.poll(reader, assigned=len(partitions))
    maker.add("position", consumer=reader, partition=partitions[0])
    if maker.chance(0.6):
        maker.add("seek", consumer=reader, partition=partitions[0], offset=maker.random.choice((0, 1, 2)))
        maker.poll(reader, assigned=len(partitions))
    if maker.chance(0.5):
        maker.filled(topic, 3)
        maker.poll(reader, assigned=len(partitions))
    if maker.java and maker.chance(0.4):
        maker.add("seek_to_beginning", consumer=reader, partitions=partitions)
        maker.poll(reader, assigned=len(partitions))
    if maker.java and maker.chance(0.4):
        maker.add("seek_to_end", consumer=reader, partitions=partitions[:1])
        maker.add("position", consumer=reader, partition=partitions[0])
    if "group_id" in settings and maker.chance(0.7):
        maker.add("commit_offsets", consumer=reader)
        maker.add("committed", consumer=reader, partitions=partitions)
    maker.add("assignment", consumer=reader)
    maker.add("close_consumer", consumer=reader)


def paused(maker: Maker) -> None:
    topic = maker.topic(partitions=2)
    reader = maker.consumer(
        auto_offset_reset="earliest",
        enable_auto_commit="false",
        **({} if maker.java else {"group_id": maker.group()}),
    )
    maker.add("assign", consumer=reader, partitions=[[topic, 0], [topic, 1]])
    maker.poll(reader, assigned=2)
    maker.add("pause", consumer=reader, partitions=[[topic, 0]])
    maker.filled(topic)
    maker.poll(reader, assigned=2)
    maker.add("resume", consumer=reader, partitions=[[topic, 0]])
    maker.poll(reader, assigned=2)
    maker.add("close_consumer", consumer=reader)


def out_of_range(maker: Maker) -> None:
    """A position that the log does not have."""
    topic = maker.topic(partitions=1)
    maker.filled(topic)
    reset = maker.random.choice(("earliest", "latest", "none" if maker.java else "error"))
    reader = maker.consumer(
        auto_offset_reset=reset,
        enable_auto_commit="false",
        **({} if maker.java else {"group_id": maker.group()}),
    )
    maker.add("assign", consumer=reader, partitions=[[topic, 0, 1000]])
    if maker.java:
        maker.add("seek", consumer=reader, partition=[topic, 0], offset=1000)
    maker.poll(reader, assigned=1, bound_ms=10_000)
    maker.add("close_consumer", consumer=reader)
