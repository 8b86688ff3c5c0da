"""Every pipeline that the pages of the docs show is run: each YAML, and each command with a ready pipeline.

Only addresses and folders are put in place of those of the page, and the trigger, so that a run ends. A page
that shows one more pipeline fails here until somebody says what goes in and what must come out.
"""

import itertools
import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.spark.postgres_server import PostgresServer
from tests.spark.ready_runs import received, send, values
from tidelog.pipelines.checking import check_plan
from tidelog.pipelines.definition import Definition, Overrides, load_definition, read_definition
from tidelog.pipelines.planning import make_plan, start
from tidelog.pipelines.runner import wait_for_all
from tidelog.testing.broker import RunningBroker

SECONDS_MAX = 200
PAGES = Path(__file__).parents[2] / "docs"
#: what the pages say for what a reader has
ADDRESS, OTHER_ADDRESS, FOLDER, DATABASE = "localhost:9092", "other:9092", "/data/", "db.example:5432"
NOON_MS = 1_769_774_400_000  # 2026-01-30T12:00:00Z
MINUTE_MS, HOUR_MS = 60_000, 3_600_000

pytestmark = pytest.mark.timeout(400)


def documented_files() -> dict[str, str]:
    """The YAML of all pages, by the name of its file, or else the kind of pipeline."""
    found = {}
    for page in sorted(PAGES.glob("pipelines*.md")):
        for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL):
            if not ("kind:" in block or "sources:" in block):
                # Settings to put into a file: `test_spark_submit` and `test_spark_object_store` do.
                continue
            named = re.match(r"# (\S+)\.yaml\n", block) or re.search(r"^kind: (\S+)$", block, re.MULTILINE)
            assert named is not None, f"{page.name}: {block}"
            assert named[1] not in found, f"two pipelines called {named[1]}"
            found[named[1]] = block
    return found


def documented_commands() -> list[str]:
    """The runs of ready pipelines that their page shows, each once and in its order, but for mistakes."""
    text = (PAGES / "pipelines-ready.md").read_text()
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks if "error:" not in block for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ tidelog pipeline run ")]


@dataclass
class World:
    """Where one pipeline of the docs is run: a cluster of its own, folders, a database where it needs one."""

    bootstrap: str
    folder: Path
    spark: Any
    database: PostgresServer | None = None
    admin: AdminClient = field(init=False)

    def __post_init__(self) -> None:
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap})

    def topics(self, **partitions: int) -> None:
        wanted = [
            # The records below are from January: retention must not take them.
            NewTopic(name.replace("_", "-"), count, 1, config={"retention.ms": "-1"})
            for name, count in partitions.items()
        ]
        for future in self.admin.create_topics(wanted).values():
            future.result(60)

    def send(self, topic: str, *records: Any) -> None:
        send(self.bootstrap, topic, records)

    def values(self, topic: str) -> list[Any]:
        return values(self.bootstrap, topic)

    def received(self, topic: str) -> list[Any]:
        return received(self.bootstrap, topic)

    def here(self, text: str) -> str:
        """What a page shows, with the addresses and folders of this world."""
        places = {ADDRESS: self.bootstrap, OTHER_ADDRESS: self.bootstrap, FOLDER: f"{self.folder}/data/"}
        if self.database is not None:
            places[DATABASE] = self.database.url.rpartition("@")[2].partition("/")[0]
        for shown, real in places.items():
            text = text.replace(shown, real)
        return text

    def run_file(self, name: str) -> None:
        """Plan, check and run the YAML of this name until all that is there is done."""
        path = self.folder / f"{name}.yaml"
        path.write_text(self.here(documented_files()[name]))
        self._run(load_definition(path, Overrides(trigger="available_now")))

    def run_command(self, line: str) -> None:
        """The same for a command with a ready pipeline; what it says of options is for all of them."""
        kind, *words = shlex.split(self.here(line))[3:]
        given = [one for word, one in itertools.pairwise(words) if word == "-o"]
        assert words[: 2 * len(given)] == [part for one in given for part in ("-o", one)], line
        options = dict(one.split("=", 1) for one in given)
        over = Overrides(options=options, trigger="available_now", bootstrap_default=self.bootstrap)
        self._run(read_definition({"kind": kind}, over, stem=f"{kind}-{len(list(self.state.glob('*')))}"))

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def _run(self, definition: Definition) -> None:
        plan = make_plan(definition)
        assert check_plan(plan).problems == ()
        (self.state / definition.run.name).mkdir(parents=True, exist_ok=True)
        wait_for_all(start(self.spark, plan), SECONDS_MAX)


@pytest.fixture
def world(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("TIDELOG_PIPELINES", str(tmp_path / "state"))
    with RunningBroker(mode="process") as broker:
        yield World(broker.bootstrap, tmp_path, spark)


def at(minutes: float) -> str:
    """Minutes after noon, as JSON has it."""
    whole = round(minutes * 60)
    return f"2026-01-30T{12 + whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}Z"


def big_orders(world: World) -> None:
    world.topics(orders=2, big_orders=1, big_orders_dead=1)
    orders = [("ann", 150.5), ("ben", 50.0), ("cyd", -1.0), ("ann", 101.0), ("dee", 100.0)]
    world.send(
        "orders",
        *({"value": {"customer": who, "amount": amount, "at": at(0)}} for who, amount in orders),
        {"value": "broken"},
    )
    world.run_file("big-orders")
    big = {(row.key(), row.value()) for row in world.received("big-orders")}
    assert {(key, json.loads(value)["amount"]) for key, value in big} == {(b"ann", 150.5), (b"ann", 101.0)}
    letters = world.received("big-orders-dead")
    assert len(letters) == 2 and {b"broken"} < {one.value() for one in letters}
    steps = {dict(one.headers())["tidelog.dlq.step"] for one in letters}
    assert steps == {b"orders"}


def aggregate(world: World) -> None:
    world.topics(orders=2, totals=1, orders_dead=1)
    orders = [("DE", 5, 1), ("DE", 7, 4), ("FR", 1, 2), ("DE", 100, 6), ("FR", 2, 90)]
    world.send(
        "orders",
        *({"value": {"country": where, "amount": n, "ordered_at": at(when)}} for where, n, when in orders),
        {"value": {"country": "DE", "amount": "many", "ordered_at": at(1)}},
    )
    world.run_file("aggregate")
    found = [(row.key(), json.loads(row.value())) for row in world.received("totals")]
    assert sorted((key, row["start"][11:16], row["amount"]) for key, row in found) == [
        (b"DE", "12:00", 12),
        (b"DE", "12:05", 100),
        (b"FR", "12:00", 1),
    ]
    assert len(world.received("orders-dead")) == 1


def join(world: World) -> None:
    world.topics(orders=2, payments=2, paid_orders=1)

    def record(minutes: int, **value: Any) -> dict[str, Any]:
        return {"value": value, "timestamp": NOON_MS + minutes * MINUTE_MS}

    world.send("orders", record(0, order=1, country="DE"), record(1, order=2, country="FR"))
    world.send("orders", record(0, order=3, country="IT"), record(300, order=9, country="ES"))
    world.send("payments", record(30, order=1, amount=10), record(90, order=3, amount=30))
    world.send("payments", record(301, order=9, amount=90))
    world.run_file("join")
    found = sorted(world.values("paid-orders"), key=lambda row: row["left"]["order"])
    assert found == [
        {"left": {"order": 1, "country": "DE"}, "right": {"order": 1, "amount": 10}},
        {"left": {"order": 2, "country": "FR"}},
        # paid, but an hour and a half later
        {"left": {"order": 3, "country": "IT"}},
        {"left": {"order": 9, "country": "ES"}, "right": {"order": 9, "amount": 90}},
    ]


def dedupe(world: World) -> None:
    world.topics(clicks=1, clicks_once=1)
    clicks = [("s1", "/a"), ("s1", "/b"), ("s1", "/a"), ("s2", "/a"), ("s1", "/b")]
    for _ in range(2):
        world.send("clicks", *({"value": {"session": session, "page": page}} for session, page in clicks))
        world.run_file("dedupe")
        found = [(row["session"], row["page"]) for row in world.values("clicks-once")]
        assert sorted(found) == sorted(set(clicks))


def order(world: World) -> None:
    world.topics(trades=3, trades_in_order=1, trades_late=1)

    def trades(*minutes: float) -> None:
        world.send("trades", *({"value": {"at": at(one)}, "partition": int(one) % 3} for one in minutes))

    def times(topic: str) -> list[str]:
        return [row["at"] for row in world.values(topic)]

    trades(5, 1, 4, 2, 3, 6)
    world.run_file("order")
    assert times("trades-in-order") == [at(one) for one in (1, 2, 3, 4, 5)], "6 may still be overtaken"
    trades(5.75, 8, 2.5)
    world.run_file("order")
    assert times("trades-in-order") == [at(one) for one in (1, 2, 3, 4, 5, 5.75, 6)]
    assert times("trades-late") == [at(2.5)]


def jdbc_source(world: World) -> None:
    assert world.database is not None
    world.topics(orders=2)
    world.database.execute("CREATE ROLE reader LOGIN")
    world.database.execute("CREATE TABLE orders (id bigserial PRIMARY KEY, country text)", database="shop")
    world.database.execute("GRANT SELECT ON orders TO reader", database="shop")
    for expected in (20, 40):
        world.database.execute(
            "INSERT INTO orders (country) SELECT 'DE' FROM generate_series(1, 20)", database="shop"
        )
        world.run_file("jdbc-source")
        found = [(int(row.key()), json.loads(row.value())) for row in world.received("orders")]
        assert sorted(found, key=lambda pair: pair[0]) == [
            (number, {"id": number, "country": "DE"}) for number in range(1, expected + 1)
        ]


def jdbc_sink(world: World) -> None:
    assert world.database is not None
    world.topics(stock=2, stock_dead=1)
    world.database.execute("CREATE ROLE writer LOGIN")
    world.database.execute("GRANT CREATE ON SCHEMA public TO writer", database="shop")
    world.database.execute("CREATE TABLE stock (item text PRIMARY KEY, pieces int)", database="shop")
    world.database.execute("ALTER TABLE stock OWNER TO writer", database="shop")

    def stock(item: str, pieces: int) -> dict[str, Any]:
        return {"key": item, "value": {"item": item, "pieces": pieces, "unknown": 1}}

    world.send("stock", stock("apple", 3), stock("pear", 5), stock("fig", 7), stock("apple", 2))
    world.send("stock", {"key": "pear", "value": None}, {"key": "kiwi", "value": "none"})
    world.run_file("jdbc-sink")
    assert world.database.rows("SELECT item, pieces FROM stock ORDER BY item", database="shop") == [
        ("apple", 2),
        ("fig", 7),
    ]
    assert [row.value() for row in world.received("stock-dead")] == [b"none"]


def file_source(world: World) -> None:
    world.topics(orders=2)
    inbox = world.folder / "data" / "inbox"
    inbox.mkdir(parents=True)
    for number in range(3):
        (inbox / f"{number}.csv").write_text(f"order,country\n{number},DE\n{number + 10},FR\n")
        world.run_file("file-source")
    found = {row.key(): json.loads(row.value()) for row in world.received("orders")}
    assert len(world.received("orders")) == 6
    assert found[b"12"] == {"order": 12, "country": "FR"} and len(found) == 6
    assert not (inbox / "0.csv").exists(), "it is deleted when the batch after its own is complete"


def file_sink(world: World) -> None:
    world.topics(orders=2)
    orders = [{"order": number, "country": ("DE", "FR")[number % 2]} for number in range(20)]
    world.send("orders", *({"value": one} for one in orders))
    world.run_file("file-sink")
    folder = world.folder / "data" / "orders"
    assert {one.name for one in folder.glob("country=*")} == {"country=DE", "country=FR"}
    found = pq.read_table(folder, filters=[("country", "=", "FR")]).to_pylist()
    assert sorted(row["order"] for row in found) == list(range(1, 20, 2))
    assert pq.read_table(folder).num_rows == 20


EXAMPLES: dict[str, Callable[[World], None]] = {
    "big-orders": big_orders,
    "aggregate": aggregate,
    "join": join,
    "dedupe": dedupe,
    "order": order,
    "jdbc-source": jdbc_source,
    "jdbc-sink": jdbc_sink,
    "file-source": file_source,
    "file-sink": file_sink,
}


@pytest.mark.parametrize("name", documented_files())
def test_a_documented_file(name: str, world: World) -> None:
    if not name.startswith("jdbc"):
        EXAMPLES[name](world)
        return
    with PostgresServer() as database:
        database.create_database("shop")
        world.database = database
        EXAMPLES[name](world)


def test_documented_commands(world: World) -> None:
    """archive, replay, mirror and table, one after the other on the same topics."""
    world.topics(orders=3, payments=1, customers=2)
    moments = [NOON_MS + hours * HOUR_MS for hours in (-13, 0, 6, 30, 36, 40)]
    orders = [
        {"key": f"k{n}", "value": f"v{n}", "partition": n % 3, "timestamp": moment, "headers": [("n", b"1")]}
        for n, moment in enumerate(moments)
    ]
    world.send("orders", *orders)
    world.send("payments", {"value": "paid"})
    world.send("customers", *({"key": f"c{n % 5}", "value": f"{n}"} for n in range(20)))
    world.send("customers", {"key": "c4", "value": None})
    commands = documented_commands()
    for line in commands:
        if "since=" in line:
            # The page writes the same topic from an archive, and from a range.
            world.admin.delete_topics(["orders-v2"])["orders-v2"].result(60)
        world.run_command(line)
        if line.split()[3] == "archive":
            rows = pq.read_table(world.folder / "data" / "orders", columns=["value", "offset"]).to_pylist()
            assert sorted(row["value"] for row in rows) == [b"v%d" % n for n in range(6)]
        elif line.split()[3] == "replay":
            found = [(one.key(), one.partition(), one.timestamp()[1]) for one in world.received("orders-v2")]
            # The range: from the 30th on, and before noon of the 31st.
            kept = range(1, 3) if "since=" in line else range(6)
            assert sorted(found) == [(b"k%d" % n, n % 3, moments[n]) for n in kept], line
        elif line.split()[3] == "mirror":
            assert sorted(one.value() for one in world.received("eu.orders")) == [
                b"v%d" % n for n in range(6)
            ]
            assert [one.value() for one in world.received("eu.payments")] == [b"paid"]
        else:
            folder = "customers-today" if "snapshot" in line else "customers"
            table = pq.read_table(world.folder / "data" / folder, columns=["key", "value"]).to_pylist()
            assert sorted((row["key"], row["value"]) for row in table) == [
                (b"c%d" % n, b"%d" % (15 + n)) for n in range(4)
            ]
    assert [line.split()[3] for line in commands] == [
        "archive",
        "replay",
        "replay",
        "mirror",
        "table",
        "table",
    ]
