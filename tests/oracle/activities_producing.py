"""Records written: plain, with producer ids, several batches in flight, and wrong in many ways."""

from tests.oracle.generator import Activity, Builder, Producer, Topic
from tests.oracle.session import Json, name, ref

_SPOILS = ("crc", "magic", "old magic", "short", "size", "count", "last offset delta", "codec")


def records(b: Builder, count: int | None = None) -> list[Json]:
    """Rows of key, value, headers and milliseconds."""
    if count is None:
        count = b.choose(1, 1, 2, 3, 5)
    start = b.start_ms + b.random.randrange(0, 10_000)
    rows: list[Json] = []
    for number in range(count):
        key = b.choose(None, "k1", "k2", "", "key of a record")
        value = b.choose(None, "v", "", "value " * b.choose(1, 5, 40))
        headers = [["h", "1"], ["h", None], ["", ""]][: b.choose(0, 0, 0, 1, 2, 3)]
        rows.append([key, value, headers, start + b.choose(0, 1, number * 10, -number)])
    return rows


def batch(b: Builder, **more: Json) -> Json:
    found: dict[str, Json] = {"records": records(b), **more}
    if "codec" not in found and b.chance(0.3):
        found["codec"] = b.choose(1, 2, 3, 4)
    return found


def produce(
    b: Builder,
    parts: list[tuple[Topic, int, list[Json]]],
    *,
    acks: int = -1,
    version: int | None = None,
    **options: Json,
) -> str:
    """One Produce request of some partitions."""
    if acks == 1 and b.several:
        acks = -1  # the watermark is behind what only the leader has
    by_topic: dict[str, Json] = {}
    for topic, partition, batches in parts:
        row = by_topic.setdefault(
            topic.alias, {"name": name(topic.alias), "topic_id": topic.id, "partition_data": []}
        )
        row["partition_data"].append({"index": partition, "records": {"$batches": batches}})
    transactional_id = options.pop("transactional_id", None)
    fields = {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout": 10_000,
        "topic_data": list(by_topic.values()),
    }
    return b.ask("Produce", fields, version=version, **options)


def plain(b: Builder) -> None:
    """Records without a producer id, to one or several partitions."""
    parts: list[tuple[Topic, int, list[Json]]] = []
    for _ in range(b.choose(1, 1, 1, 2, 3)):
        topic = b.topic()
        partition = b.partition(topic)
        if all((topic.alias, partition) != (other.alias, number) for other, number, _ in parts):
            parts.append((topic, partition, [batch(b)]))
            topic.ends[partition] = topic.ends.get(partition, 0) + len(parts[-1][2][0]["records"])
    acks = b.choose(-1, -1, -1, 1, 1, 0, 2, -2)
    if acks == 0 and b.several:
        acks = -1
    produce(b, parts, acks=acks, connection="c0")
    if acks == 0:
        # Something that is answered, so that what follows on other connections comes behind it.
        b.ask(
            "ApiVersions", {"client_software_name": "oracle", "client_software_version": "1"}, connection="c0"
        )


def odd(b: Builder) -> None:
    """What a broker refuses, or takes with a shrug."""
    topic = b.topic()
    partition = b.random.randrange(topic.partitions)
    kind = b.choose(
        "spoil", "spoil", "spoil", "two", "empty", "control", "transactional", "future", "unknown", "big"
    )
    if kind == "spoil":
        batches = [batch(b, spoil=b.choose(*_SPOILS), codec=0)]
    elif kind == "two":
        batches = [batch(b), batch(b)]
    elif kind == "empty":
        batches = []
    elif kind == "control":
        batches = [batch(b, control=True, codec=0)]
    elif kind == "transactional":
        batches = [batch(b, transactional=True, producer_id=7, producer_epoch=0, base_sequence=0)]
    elif kind == "future":
        batches = [{"records": [["k", "v", [], 10**12]]}]
    elif kind == "big":
        batches = [{"records": [["k", "v" * 1200, [], 0]]}]
    else:
        batches = [
            batch(
                b,
                producer_id=b.choose(123456789, 5),
                producer_epoch=b.choose(0, 3),
                base_sequence=b.choose(0, 4),
            )
        ]
    produce(b, [(topic, partition, batches)], acks=b.choose(-1, 1))


def recompressed(b: Builder) -> None:
    """Records with headers, in a topic whose broker compresses them itself or unpacks them."""
    wanted = b.choose("gzip", "lz4", "snappy", "zstd", "uncompressed")
    topic = b.create_topic(configs={"compression.type": wanted})
    partition = b.random.randrange(topic.partitions)
    rows = records(b)
    rows[0][2] = [["h", "1"], ["h", None]]
    topic.ends[partition] = topic.ends.get(partition, 0) + len(rows)
    produce(b, [(topic, partition, [{"records": rows, "codec": b.choose(0, 1, 2, 3, 4)}])])


def unknown_topic(b: Builder) -> None:
    topic = Topic("absent", 1, "s0")
    produce(b, [(topic, 0, [batch(b)])])


def init_idempotent(b: Builder) -> Producer:
    fields = {
        "transactional_id": None,
        "transaction_timeout": b.choose(60_000, -1, 0),
        "producer_id": -1,
        "producer_epoch": -1,
    }
    label = b.ask("InitProducerId", fields)
    made = Producer(
        "c0", ref(label, "producer_id", otherwise=4711), ref(label, "producer_epoch", otherwise=0)
    )
    b.producers.append(made)
    return made


def idempotent(b: Builder) -> None:
    """One or several batches of a producer, in order, again, or with wrong numbers."""
    mine = [producer for producer in b.producers if producer.transactional_id is None]
    producer = b.choose(*mine) if mine and b.chance(0.8) else init_idempotent(b)
    topic = b.topic()
    partition = b.random.randrange(topic.partitions)
    place = (topic.alias, partition)
    count = b.choose(1, 1, 2, 3)
    for number in range(count):
        sequence = producer.sequences.get(place, 0)
        rows = records(b)
        epoch = producer.epoch
        how = b.choose("next", "next", "next", "next", "again", "gap", "new epoch", "far back", "negative")
        if how == "next":
            producer.sequences[place] = sequence + len(rows)
        elif how == "again":
            sequence = max(0, sequence - len(rows))
        elif how == "gap":
            sequence += b.choose(1, 5, 2**31 - 10 - sequence)
        elif how == "new epoch":
            epoch = {"$ref": [*epoch["$ref"][:3], 1]}
            sequence = b.choose(0, sequence)
        elif how == "far back":
            sequence = 0
        else:
            sequence = -1
        one = {
            "records": rows,
            "producer_id": producer.id,
            "producer_epoch": epoch,
            "base_sequence": sequence,
        }
        produce(b, [(topic, partition, [one])], acks=b.choose(-1, -1, 1), later=number < count - 1)


def bump(b: Builder) -> None:
    """A producer asks for the next epoch, or with one that it does not have."""
    producer = b.choose(*b.producers) if b.producers else init_idempotent(b)
    if producer.transactional_id is not None:
        return
    wrong = b.chance(0.4)
    fields = {
        "transactional_id": None,
        "transaction_timeout": 60_000,
        "producer_id": 99_999 if wrong else producer.id,
        "producer_epoch": 3 if wrong else producer.epoch,
    }
    # before version 3 the id and the epoch are not sent
    version = b.version("InitProducerId", 3)
    label = b.ask("InitProducerId", fields, version=version)
    if not wrong:
        producer.id = ref(label, "producer_id", otherwise=producer.id)
        producer.epoch = ref(label, "producer_epoch", otherwise=0)
        producer.sequences.clear()


def describe_producers(b: Builder) -> None:
    topic = b.topic()
    b.ask(
        "DescribeProducers",
        {
            "topics": [
                {
                    "name": b.choose(name(topic.alias), b.some_topic_name()),
                    "partition_indexes": [0, b.partition(topic)],
                }
            ]
        },
    )


ACTIVITIES: list[tuple[float, Activity]] = [
    (3.0, plain),
    (2.0, odd),
    (0.3, recompressed),
    (0.3, unknown_topic),
    (3.0, idempotent),
    (0.4, bump),
    (0.5, describe_producers),
]
