"""Sessions of client operations from a seed: a few activities, then everything that they made is read back.

An activity is a function that adds operations and knows a little of what they should have made. To cover
more, add a function to one of the `clients_activities_*` and its weight to `ACTIVITIES`.
"""

import random
from collections.abc import Callable
from typing import Any

from tests.oracle.clients_session import ClientSession, Json, Operation

#: of records that say when they were made; before every clock
FIRST_TIMESTAMP_MS = 1_700_000_000_000


class Maker:
    """Adds operations to a session, and remembers names."""

    def __init__(self, seed: int, client: str, brokers: int) -> None:
        self.random = random.Random(f"clients {seed}")
        self.client = client
        self.java = client == "java"
        self.brokers = brokers
        self.operations: list[Operation] = []
        #: partitions by topic, of those that should be there
        self.topics: dict[str, int] = {}
        self.groups: list[str] = []
        self.transactional_ids: list[str] = []
        self.users: list[str] = []
        self._counts: dict[str, int] = {}
        self._values = 0

    def add(self, name: str, *, settle: bool = False, goes_on: str = "", **fields: Json) -> None:
        label = f"s{len(self.operations) + 1}"
        self.operations.append(Operation(label, name, fields, settle, goes_on))

    def add_for_absent(self, name: str, **fields: Json) -> None:
        """Ask for something that is not there: Java's admin client waits for it as long as it may."""
        hasty = {"default.api.timeout.ms": "2500", "request.timeout.ms": "2000"}
        self.add(name, **fields, **({"admin": "hasty", "settings": hasty} if self.java else {}))  # type: ignore[arg-type]

    def new(self, kind: str, prefix: str = "~") -> str:
        """A name that nothing of this session has."""
        self._counts[kind] = self._counts.get(kind, 0) + 1
        return f"{prefix}{kind}{self._counts[kind]}"

    def chance(self, part: float) -> bool:
        return self.random.random() < part

    def topic(self, partitions: int | None = None, **configs: Json) -> str:
        """Create a topic of the usual kind."""
        name = self.new("t")
        count = partitions or self.random.randint(1, 3)
        row: dict[str, Json] = {"name": name, "partitions": count}
        if configs:
            row["configs"] = {key.replace("_", "."): value for key, value in configs.items()}
        if self.brokers > 1:
            # the same leaders on both systems
            row = {key: value for key, value in row.items() if key != "partitions"}
            row["assignments"] = {
                str(index): [(index + place) % self.brokers + 1 for place in range(self.brokers)]
                for index in range(count)
            }
        self.add("create_topics", settle=True, topics=[row])
        self.topics[name] = count
        return name

    def some_topic(self) -> str:
        """One that is there, or a new one."""
        if self.topics and self.chance(0.6):
            return self.random.choice(list(self.topics))
        return self.topic()

    def partitions_of(self, topic: str) -> list[Json]:
        return [[topic, index] for index in range(self.topics[topic])]

    def group(self) -> str:
        name = self.new("g")
        self.groups.append(name)
        return name

    def record(self, topic: str, **options: Json) -> dict[str, Json]:
        """A record to a partition that is said or follows from its key."""
        self._values += 1
        row: dict[str, Json] = {"topic": topic, "value": f"v{self._values}"}
        if self.chance(0.5):
            row["key"] = f"k{self.random.randint(0, 9)}"
        if "key" not in row or self.chance(0.3):
            row["partition"] = self.random.randrange(self.topics.get(topic, 1))
        if self.chance(0.5):
            row["timestamp"] = FIRST_TIMESTAMP_MS + 1000 * self.random.randint(0, 50)
        if self.chance(0.3):
            row["headers"] = [["h", "1"], ["h", None]][: self.random.randint(1, 2)]
        if self.chance(0.1):
            row["value"] = None
        return row | options

    def records(self, topic: str, count_max: int = 6) -> list[Json]:
        return [self.record(topic) for _ in range(self.random.randint(1, count_max))]

    def producer(self, **settings: Json) -> str:
        name = self.new("p", "")
        self.add("new_producer", producer=name, settings=_dotted(settings))
        return name

    def filled(self, topic: str, count_max: int = 8) -> None:
        """Write something to a topic."""
        settings = self.random.choice(PRODUCER_SETTINGS)
        name = self.producer(**settings)
        # what only the leader has when it is answered is read a little later
        late = self.brokers > 1 and settings.get("acks") == "1"
        self.add("send", producer=name, records=self.records(topic, count_max), settle=late)
        self.add("close_producer", producer=name)

    def consumer(self, **settings: Json) -> str:
        name = self.new("c", "")
        self.add("new_consumer", consumer=name, settings=_dotted(settings))
        return name

    def poll(self, *consumers: str, assigned: int = -1, bound_ms: int = 10_000) -> None:
        self.add("poll", consumers=list(consumers), assigned=assigned, bound_ms=bound_ms)


def _dotted(settings: dict[str, Json]) -> dict[str, Json]:
    return {key.replace("_", "."): str(value) for key, value in settings.items()}


#: default settings more often than others
PRODUCER_SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {},
    {"enable_idempotence": "true"},
    {"enable_idempotence": "false"},
    {"acks": "1"},
    {"compression_type": "gzip"},
    {"compression_type": "zstd"},
    {"compression_type": "lz4"},
    {"compression_type": "snappy"},
    {"linger_ms": "0"},
)

Activity = Callable[[Maker], None]


def make_session(seed: int, client: str, brokers: int = 1) -> ClientSession:
    """A session of several activities, and the reading back."""
    from tests.oracle.clients_activities import ACTIVITIES

    maker = Maker(seed, client, brokers)
    able = [(activity, weight) for activity, weight, clients in ACTIVITIES if client in clients]
    wanted = maker.random.randint(2, 4)
    for activity in maker.random.choices(
        [activity for activity, _ in able], [weight for _, weight in able], k=wanted
    ):
        activity(maker)
    read_back(maker)
    return ClientSession(seed, client, tuple(maker.operations), brokers)


def read_back(maker: Maker) -> None:
    """What ended up in the logs, the groups and the transactions."""
    topics = list(maker.topics)
    if topics:
        maker.add("describe_topics", topics=topics)
        partitions = [pair for topic in topics for pair in maker.partitions_of(topic)]
        for level in ("read_uncommitted", "read_committed"):
            reader = maker.consumer(
                isolation_level=level,
                auto_offset_reset="earliest",
                enable_auto_commit="false",
                **({} if maker.java else {"group_id": "~reader"}),
            )
            maker.add("assign", consumer=reader, partitions=[[*pair, -2] for pair in partitions])
            maker.poll(reader, assigned=len(partitions))
            maker.add("close_consumer", consumer=reader)
        for committed in (False, True):
            maker.add(
                "list_offsets", partitions=[[*pair, "latest"] for pair in partitions], committed=committed
            )
        maker.add("list_offsets", partitions=[[*pair, "earliest"] for pair in partitions])
        if maker.java:
            maker.add("describe_producers", partitions=partitions)
    if maker.groups:
        maker.add("list_group_offsets", groups=maker.groups)
        maker.add("describe_groups", groups=maker.groups)
        maker.add("list_groups")
    if maker.java and maker.transactional_ids:
        maker.add("describe_transactions", ids=maker.transactional_ids)
        maker.add("list_transactions")
