"""The places where examples of the docs are run: real brokers, with what an example takes for granted.

`World.prepare` brings a world back to its beginning before each example: the topics `orders` (four
partitions, 24 records with keys) and `payments`, and whatever `with_…` functions of this module add. `names`
are the words that stand for a place in rewritten examples: `{bootstrap}`, `{folder}`, `{producer_id}`, ….
"""

import json
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.conformance.example_runs import Started, run
from tests.conformance.secured_cluster import secured_broker
from tests.support.registry_process import RegistryProcess
from tidelog.admin.transactions import open_producers
from tidelog.cli.connection import Connection
from tidelog.client.pipeline_places import RUNNING
from tidelog.pipelines.running import Place, Status
from tidelog.pipelines.work import Progress
from tidelog.schemas.registry_client import RegistryClient
from tidelog.testing.broker import RunningBroker
from tidelog.testing.cluster import RunningCluster
from tidelog.testing.ports import ReservedPort

SECONDS_MAX = 30
CLUSTER_BROKERS = 4
SETTINGS = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
}


class World:
    """Somewhere to run examples; `stack` closes what a preparation has opened."""

    def __init__(self, folder: Path, bootstrap: str = "", replicas: int = 1) -> None:
        self.root = folder
        self.bootstrap = bootstrap
        self.replicas = replicas
        self.names = {"bootstrap": bootstrap}
        self.variables = {"PASSWORD": "correct horse"}
        if bootstrap:
            self.variables["TIDELOG_BOOTSTRAP"] = bootstrap
        self.place_in(folder)
        self.client: dict[str, str] = {"bootstrap.servers": bootstrap}
        self.stack = ExitStack()
        self._admin: AdminClient | None = None
        self.wait_in_sync: Callable[[], None] = lambda: None

    def place_in(self, folder: Path) -> None:
        """Run examples in this folder, and keep everything of theirs there."""
        self.folder = folder
        self.names["folder"] = str(folder)
        self.variables |= {
            "HOME": str(folder),
            "XDG_STATE_HOME": str(folder / "state"),
            "TIDELOG_PIPELINES": str(folder / "pipelines"),
        }

    @property
    def admin(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient(self.client)  # type: ignore[arg-type]
        return self._admin

    def prepare(self) -> None:
        """Only the topics and records that examples begin with."""
        self.stack.close()
        if not self.bootstrap:
            return
        admin = self.admin
        groups = [row.group_id for row in admin.list_consumer_groups().result(SECONDS_MAX).valid]
        if groups:
            for future in admin.delete_consumer_groups(groups).values():
                future.result(SECONDS_MAX)
        known = [name for name in admin.list_topics(timeout=SECONDS_MAX).topics if not name.startswith("__")]
        if known:
            for future in admin.delete_topics(known).values():
                future.result(SECONDS_MAX)
        self.create("orders", 4)
        self.create("payments", 1)
        self.send("orders", 24)

    def create(self, name: str, partitions: int, replicas: int | None = None, **configs: str) -> None:
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        made = self.admin.create_topics(
            [NewTopic(name, partitions, replicas or self.replicas, config=settings)]
        )
        made[name].result(SECONDS_MAX)
        self.wait_in_sync()

    def delete(self, *names: str) -> None:
        for future in self.admin.delete_topics(list(names)).values():
            future.result(SECONDS_MAX)

    def send(self, topic: str, count: int) -> None:
        producer = Producer(self.client)
        for number in range(count):
            producer.produce(topic, f"value-{number}".encode(), f"key-{number}".encode())
        assert producer.flush(SECONDS_MAX) == 0


# What examples need besides


def without_topics(world: World) -> None:
    world.delete("orders", "payments")


def with_group(world: World) -> None:
    """The group billing, which has read a part of orders."""
    consumer = Consumer({**world.client, "group.id": "billing"})
    consumer.commit(offsets=[TopicPartition("orders", number, 2) for number in range(4)], asynchronous=False)
    consumer.close()


def with_transaction(world: World) -> None:
    """The transactional id billing-1, with a transaction open in orders-0."""
    producer = Producer({**world.client, "transactional.id": "billing-1"})
    producer.init_transactions(SECONDS_MAX)
    producer.begin_transaction()
    producer.produce("orders", b"undecided", partition=0)
    assert producer.flush(SECONDS_MAX) == 0
    (opened,) = open_producers(Connection(world.bootstrap).cluster_admin(), "orders", 0)
    world.names["producer_id"] = str(opened.producer_id)
    world.names["start_offset"] = str(opened.start_offset)
    world.stack.callback(producer.abort_transaction, SECONDS_MAX)


def with_more_topics(world: World) -> None:
    """What `produce` writes to, and a file to read."""
    world.create("customers", 1)
    world.create("copy", 4)
    (world.folder / "access.log").write_text("GET /\nGET /favicon.ico\n")


def with_load(world: World) -> None:
    world.create("load", 1)
    world.send("load", 2_000)


def with_log(world: World) -> None:
    """The log that the page shows: three records in one batch of orders-0."""
    world.delete("orders")
    world.create("orders", 3, retention_ms="3600000")
    producer = Producer({**world.client, "linger.ms": 500})
    headers = [("s", b"web")]
    for key, value in ((b"a", b"1"), (b"c", None), (None, b"nokey")):
        producer.produce("orders", value, key, partition=0, headers=headers)  # type: ignore[arg-type]
    assert producer.flush(SECONDS_MAX) == 0


def with_dead_letters(world: World, letters: int = 3) -> None:
    """The topic orders-dead, with letters from orders."""
    world.create("orders-dead", 1)
    producer = Producer(world.client)
    for number in range(letters):
        told = {
            "pipeline": "totals",
            "step": "orders",
            "reason": "the value is not JSON of customer STRING, amount DOUBLE",
            "stack": "Traceback",
            "topic": "orders",
            "partition": "1",
            "offset": str(number),
        }
        headers = [(f"tidelog.dlq.{name}", text.encode()) for name, text in told.items()]
        producer.produce("orders-dead", b"broken", b"ann", headers=headers)  # type: ignore[arg-type]
    assert producer.flush(SECONDS_MAX) == 0


def with_many_dead_letters(world: World) -> None:
    with_dead_letters(world, 18)


def with_two_replicas(world: World) -> None:
    """A topic orders that a plan has something to do for."""
    world.delete("orders")
    world.create("orders", 4, replicas=2)


def with_plan(world: World) -> None:
    """The same, and that plan."""
    with_two_replicas(world)
    prepared_by("tidelog cluster reassign --topic orders --replication-factor 3 --json > plan.json")(world)


def with_pipeline(world: World) -> None:
    """The pipeline archive-orders, running as far as its files say, and willing to stop."""
    place = Place("archive-orders", Path(world.variables["TIDELOG_PIPELINES"]))
    over = threading.Event()
    held = threading.Event()

    def hold() -> None:
        with place:
            progress = (Progress("archive", 4, 91_000, 1_200.5, 12, 900, 0),)
            place.tell(
                Status(
                    "archive-orders",
                    "archive",
                    RUNNING,
                    17_250,
                    1_769_860_800_000,
                    1_769_860_900_000,
                    progress=progress,
                )
            )
            held.set()
            while not place.stop_asked() and not over.wait(0.05):
                pass

    thread = threading.Thread(target=hold)
    thread.start()
    world.stack.callback(thread.join, SECONDS_MAX)
    world.stack.callback(over.set)
    assert held.wait(SECONDS_MAX)


def with_properties(world: World) -> None:
    """A server.properties as `tidelog up` and `tidelog broker` take it."""
    (world.folder / "server.properties").write_text(
        "node.id=7\nlisteners=PLAINTEXT://127.0.0.1:0\nnum.partitions=3\nlog.dirs=data-of-7\n"
        "tidelog.coordination.path=coordination.sqlite\n"
    )


def with_mistaken_topic(world: World) -> None:
    world.delete("payments")
    world.create("payments", 1, min_insync_replicas="3")


def with_pipeline_file(world: World) -> None:
    """The file totals.yaml, and orders of JSON for it."""
    (world.folder / "totals.yaml").write_text(
        f"bootstrap: {world.bootstrap}\ntrigger: available_now\n"
        "sources:\n  orders: {topic: orders, decode: json, schema: 'customer STRING, amount DOUBLE'}\n"
        "steps:\n  - {name: big, sql: 'SELECT customer, amount FROM orders WHERE amount > 100'}\n"
        "sinks:\n  - {from: big, topic: payments, key: customer}\n"
    )
    world.delete("orders")
    world.create("orders", 4)
    producer = Producer(world.client)
    producer.produce("orders", json.dumps({"customer": "ann", "amount": 120}).encode())
    assert producer.flush(SECONDS_MAX) == 0


def prepared_by(*commands: str) -> Callable[[World], None]:
    """Command lines that must succeed first."""

    def prepare(world: World) -> None:
        for command in commands:
            done = run(command, world.folder, world.variables)
            assert done.code == 0, (command, done)

    return prepare


# The worlds


class Nowhere(World):
    """No cluster at all, and a folder of its own for each example."""

    def prepare(self) -> None:
        self.stack.close()
        self.place_in(Path(tempfile.mkdtemp(dir=self.root)))
        port = ReservedPort()
        self.stack.callback(port.close)
        self.names["port"] = str(port.port)


@contextmanager
def nowhere(folder: Path) -> Iterator[World]:
    world = Nowhere(folder)
    yield world
    world.stack.close()


@contextmanager
def one_broker(folder: Path) -> Iterator[World]:
    with RunningBroker(SETTINGS, mode="process") as broker:
        world = World(folder, broker.bootstrap)
        (folder / "tidelog-data").symlink_to(broker.data_directory)
        yield world
        world.stack.close()


@contextmanager
def several_brokers(folder: Path) -> Iterator[World]:
    with RunningCluster(CLUSTER_BROKERS, SETTINGS) as cluster:
        world = World(folder, cluster.bootstrap, replicas=3)
        world.wait_in_sync = cluster.wait_in_sync
        yield world
        world.stack.close()
        assert cluster.tracebacks() == []


@contextmanager
def tls_broker(folder: Path) -> Iterator[World]:
    with secured_broker(folder) as broker:
        world = World(folder)
        world.names["tls"] = f"127.0.0.1:{broker.ports['SSL']}"
        yield world


@contextmanager
def started(folder: Path, command: str, ready: str) -> Iterator[Started]:
    process = Started(command, folder, {})
    try:
        process.wait_ready(ready)
        yield process
        assert process.stop() == 0, process.text
    finally:
        process.close()


@contextmanager
def secured(folder: Path) -> Iterator[World]:
    with started(folder, "tidelog up --secure --port 0 --console-port 0", "Ctrl-C stops"):
        world = World(folder)
        world.variables["TIDELOG_CLIENT_CONFIG"] = str(folder / "tidelog-data/security/client.properties")
        yield world


@contextmanager
def supervised(folder: Path) -> Iterator[World]:
    with started(folder, "tidelog up --brokers 3 --port 0 --console-port 0", "Ctrl-C stops"):
        yield World(folder)


@contextmanager
def zookeeper(folder: Path) -> Iterator[World]:
    """A ZooKeeper server, `{zookeeper}`, and no broker yet."""
    reserved = ReservedPort()
    command = f"tidelog zookeeper start --port {reserved.port} --data zookeeper-data"
    try:
        with started(folder, command, "ready at"):
            world = Nowhere(folder)
            world.names["zookeeper"] = f"127.0.0.1:{reserved.port}"
            yield world
    finally:
        reserved.close()


@contextmanager
def with_schemas(folder: Path) -> Iterator[World]:
    """A broker, a registry and a subject in it; `order.avsc` is the schema."""
    with RunningBroker() as broker, RegistryProcess(broker.bootstrap) as registry:
        world = SchemaWorld(folder)
        world.variables |= {"TIDELOG_REGISTRY": registry.url, "TIDELOG_BOOTSTRAP": broker.bootstrap}
        yield world


class SchemaWorld(Nowhere):
    """Each example finds the subject `orders-value`."""

    def prepare(self) -> None:
        super().prepare()
        (self.folder / "order.avsc").write_text('"string"')
        client = RegistryClient(self.variables["TIDELOG_REGISTRY"])
        client.ask("POST", "/subjects/orders-value/versions", {"schema": '"string"'})


WORLDS = {
    "registry": with_schemas,
    "ZooKeeper": zookeeper,
    "nowhere": nowhere,
    "one broker": one_broker,
    "several brokers": several_brokers,
    "TLS": tls_broker,
    "secured": secured,
    "supervised": supervised,
}
