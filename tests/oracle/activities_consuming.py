"""Records read: fetches with and without sessions, offsets by time, epochs, deletes."""

from tests.oracle.batches import BASE_TIME_MS
from tests.oracle.generator import UNKNOWN_ID, Activity, Builder, Topic
from tests.oracle.session import Json, name, ref


def fetch_partition(b: Builder, partition: int, offset: int | None = None) -> Json:
    if offset is None:
        offset = b.choose(0, 0, 0, 1, 2, 3, 5, 10, 100, -1)
    return {
        "partition": partition,
        "fetch_offset": offset,
        "current_leader_epoch": b.choose(-1, -1, -1, 0, 0, 1, 9),
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": b.choose(1 << 20, 1 << 20, 100, 1, 0),
    }


def fetch_topic(b: Builder, topic: Topic) -> Json:
    numbers = {b.partition(topic) for _ in range(b.choose(1, 1, 2))}
    return {
        "topic": name(topic.alias),
        "topic_id": topic.id,
        "partitions": [fetch_partition(b, number) for number in sorted(numbers)],
    }


def fetch_fields(b: Builder, topics: list[Json]) -> dict[str, Json]:
    return {
        "replica_id": -1,
        "replica_state": {"replica_id": -1, "replica_epoch": -1},
        "max_wait": b.choose(0, 5),
        "min_bytes": b.choose(0, 1, 1, 1000),
        "max_bytes": b.choose(1 << 20, 1 << 20, 1 << 20, 150, 1),
        "isolation_level": b.choose(0, 1),
        "session_id": 0,
        "session_epoch": -1,
        "topics": topics,
        "forgotten_topics_data": [],
        "rack_id": "",
    }


def fetch(b: Builder) -> None:
    """One fetch without a session."""
    topics = [b.topic()]
    if b.chance(0.3):
        other = b.neighbour(topics[0])
        if other.alias != topics[0].alias:
            topics.append(other)
    if b.chance(0.08):
        topics = [Topic("absent", 1, "s0")]
    b.ask("Fetch", fetch_fields(b, [fetch_topic(b, topic) for topic in topics]), connection=b.connection())


def fetch_session(b: Builder) -> None:
    """A session: made, asked again, changed, forgotten; with right and wrong epochs."""
    version = b.version("Fetch", 7)
    connection = b.connection()
    topic = b.topic()
    fields = fetch_fields(b, [fetch_topic(b, topic)])
    fields |= {"session_epoch": 0, "max_wait": 0, "min_bytes": 1}
    where: dict[str, Json] = {"broker": topic.leader, "elsewhere": False} if b.several else {}
    first = b.ask("Fetch", fields, version=version, connection=connection, **where)
    epoch = 1
    for _ in range(b.choose(1, 2, 3)):
        more = [fetch_topic(b, b.neighbour(topic))] if b.chance(0.3) else []
        gone: list[Json] = []
        if b.chance(0.2):
            gone = [{"topic": name(topic.alias), "topic_id": topic.id, "partitions": [0]}]
        now = b.choose(epoch, epoch, epoch, epoch + 2, -1, 0)
        fields = {
            **fetch_fields(b, more),
            "session_id": ref(first, "session_id", otherwise=77) if b.chance(0.93) else 123,
            "session_epoch": now,
            "forgotten_topics_data": gone,
            "max_wait": 0,
            "min_bytes": b.choose(0, 1),
        }
        b.ask("Fetch", fields, version=version, connection=connection, **where)
        if now in (-1, 0):
            return
        epoch += now == epoch


def list_offsets(b: Builder) -> None:
    """The first, the last, the one of a time; of versions that do not know some of them too."""
    topic = b.topic()
    times = [
        b.choose(
            -1, -1, -2, -2, -3, -4, -5, -6, -7, 0, BASE_TIME_MS, BASE_TIME_MS + 5_000, BASE_TIME_MS + 10**9
        )
        for _ in range(b.choose(1, 2))
    ]
    partitions = [
        {
            "partition_index": number if b.chance(0.9) else 9,
            "timestamp": time,
            "current_leader_epoch": b.choose(-1, -1, 0, 3),
            "max_num_offsets": 1,
        }
        for number, time in enumerate(times)
    ]
    fields = {
        "replica_id": -1,
        "isolation_level": b.choose(0, 1),
        "topics": [
            {"name": b.some_topic_name() if b.chance(0.2) else name(topic.alias), "partitions": partitions}
        ],
        "timeout": 5_000,
    }
    b.ask("ListOffsets", fields, connection=b.connection())


def leader_epochs(b: Builder) -> None:
    topic = b.topic()
    row = {
        "partition": b.partition(topic),
        "current_leader_epoch": b.choose(-1, 0, 5),
        "leader_epoch": b.choose(0, 0, -1, 1, 7),
    }
    b.ask(
        "OffsetForLeaderEpoch",
        {"replica_id": b.choose(-2, -1), "topics": [{"topic": name(topic.alias), "partitions": [row]}]},
    )


def delete_records(b: Builder) -> None:
    """The log begins later."""
    topic = b.topic()
    partition = b.partition(topic)
    row = {"partition_index": partition, "offset": b.choose(0, 1, 2, -1, 1000, -2)}
    b.ask(
        "DeleteRecords",
        {
            "topics": [
                {"name": b.choose(name(topic.alias), name(topic.alias), name("absent")), "partitions": [row]}
            ],
            "timeout": 5_000,
        },
    )


def log_dirs(b: Builder) -> None:
    """Sizes on disk."""
    topic = b.topic()
    wanted = b.choose(
        None,
        [{"topic": name(topic.alias), "partitions": [0, b.partition(topic)]}],
        [{"topic": name("absent"), "partitions": [0]}],
    )
    b.ask("DescribeLogDirs", {"topics": wanted})


def unknown_ids(b: Builder) -> None:
    """Topics by an id that nobody has, in versions that know ids."""
    topic = {"topic": "", "topic_id": b.choose(UNKNOWN_ID, None), "partitions": [fetch_partition(b, 0)]}
    b.ask("Fetch", fetch_fields(b, [topic]), version=b.version("Fetch", 13))


ACTIVITIES: list[tuple[float, Activity]] = [
    (3.0, fetch),
    (2.0, fetch_session),
    (2.0, list_offsets),
    (0.8, leader_epochs),
    (1.0, delete_records),
    (0.4, log_dirs),
    (0.3, unknown_ids),
]
