"""Ready pipelines whose driver is killed with SIGKILL at random moments, and started again: content is exact.

Several pipelines share a driver process, because a session takes many seconds to start. Each has its turn:
it is started first, and the driver is killed at a moment, chosen from a seed, while that pipeline is in the
middle of its small batches. The last driver may go to its end.
"""

import json
import random
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.spark.postgres_server import PostgresServer
from tests.spark.ready_runs import definition, join_options, send, values
from tests.spark.spark_driver import Driver
from tests.support.child_programs import environment, program

MakeTopic = Callable[..., str]
RUNS = "tests.spark.ready_runs"
RECORDS = 3_000
#: the last batch has a part of each partition, so that the record of the end, which closes windows, is in it
PER_BATCH = {"maxOffsetsPerTrigger": "260"}
START_MS = 1_750_000_000_000 // 300_000 * 300_000
#: the driver is killed up to so long after a batch has begun
DELAY_SECONDS_MAX = 3.0
DRIVER_SECONDS_MAX = 300

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as running:
        yield running


class Scene:
    """Topics, files and tables of one test, and the definitions that work on them."""

    def __init__(self, bootstrap: str, make_topic: MakeTopic, folder: Path) -> None:
        self.bootstrap = bootstrap
        self.make_topic = make_topic
        self.folder = folder
        self.definitions: list[dict[str, Any]] = []

    def add(self, name: str, kind: str, **options: Any) -> str:
        """One more pipeline; returns the topic it writes to, if it does."""
        output = ""
        if kind not in ("file-sink", "jdbc-sink"):
            output = options.get("to") or self.make_topic(2)
            options["to"] = output
        given = definition(self.bootstrap, self.folder / name, kind, **options)
        self.definitions.append({**given, "name": name})
        return output

    def run(self, seed: int) -> None:
        """Run them all; for each the driver is killed once while it is at work, perhaps with others."""
        choose = random.Random(seed)
        for number, target in enumerate(self.definitions):
            before = batches_begun(target)
            driver = self._start(self.definitions[number:] + self.definitions[:number])
            try:
                deadline = time.monotonic() + DRIVER_SECONDS_MAX
                while batches_begun(target) == before:
                    assert driver.running and time.monotonic() < deadline, driver.log_tail()
                    time.sleep(0.02)
                time.sleep(choose.uniform(0, DELAY_SECONDS_MAX))
                assert driver.running, f"it ended before {target['name']} could be killed"
                driver.kill(jvm_alone=choose.random() < 0.5)
            finally:
                driver.close()
        driver = self._start(self.definitions)
        try:
            assert driver.wait(DRIVER_SECONDS_MAX) == 0, driver.log_tail()
        finally:
            driver.close()

    def _start(self, definitions: list[dict[str, Any]]) -> Driver:
        file = self.folder / "definitions.json"
        file.write_text(json.dumps(definitions))
        return Driver([*program(RUNS), str(file)], self.folder / "driver.log", environment())


def batches_begun(given: dict[str, Any]) -> int:
    """How many batches the queries of a pipeline have noted down, which is what each begins with."""
    return len(list(Path(given["checkpoint"]).glob("*/offsets/[0-9]*")))


@pytest.fixture
def scene(bootstrap: str, make_topic: MakeTopic, tmp_path: Path) -> Scene:
    return Scene(bootstrap, make_topic, tmp_path)


def test_windows_joins_and_repetitions(scene: Scene) -> None:
    orders, payments, repeated = scene.make_topic(3), scene.make_topic(3), scene.make_topic(3)
    end = {"n": RECORDS, "at": iso(START_MS + 36_000_000)}
    for topic, delay_ms in ((orders, 0), (payments, 60_000)):
        send(
            scene.bootstrap,
            topic,
            [at(n, START_MS + n * 1_000 + delay_ms) for n in range(RECORDS)] + [{"value": end}],
        )
    numbers = [n if n % 4 else max(0, n - 40) for n in range(RECORDS)]
    send(scene.bootstrap, repeated, [{"key": str(n), "value": {"n": n}} for n in numbers])
    schema = "n INT, at TIMESTAMP"
    over_orders = {"topic": orders, "schema": schema, "event_time": "at", "source": PER_BATCH}
    windows = scene.add(
        "windows",
        "aggregate",
        **over_orders,
        sql="SELECT unix_seconds(window.start) AS start, count(*) AS orders, sum(n) AS total"
        " FROM records GROUP BY window(at, '5 minutes')",
    )
    sums = scene.add(
        "sums",
        "aggregate",
        **over_orders,
        output="update",
        sql="SELECT n % 7 AS class, count(*) AS orders, sum(n) AS total FROM records GROUP BY n % 7",
        key="class",
    )
    times: dict[str, Any] = {"left_time": "at", "right_time": "at", "within": "5 minutes"}
    both = join_options((orders, schema), (payments, schema), "n", select="l.n AS n", source=PER_BATCH)
    joined = scene.add("joined", "join", **both, **times)
    unique = scene.add("unique", "dedupe", topic=repeated, source=PER_BATCH)
    scene.run(seed=1)
    truth = [
        {"start": START_MS // 1000 + first, "orders": 300, "total": sum(range(first, first + 300))}
        for first in range(0, RECORDS, 300)
    ]
    assert sorted(values(scene.bootstrap, windows), key=lambda row: int(row["start"])) == truth
    assert_sums(values(scene.bootstrap, sums))
    # The two records of the end met as well.
    assert sorted(row["n"] for row in values(scene.bootstrap, joined)) == list(range(RECORDS + 1))
    assert sorted(row["n"] for row in values(scene.bootstrap, unique)) == sorted(set(numbers))


def assert_sums(found: list[dict[str, int]]) -> None:
    """Every class has grown with each of its records, which are all there in the end, and none twice."""
    for number in range(7):
        rows = [row for row in found if row["class"] == number]
        orders = [row["orders"] for row in rows]
        assert all(before < after for before, after in pairwise(orders)), f"class {number}: {orders}"
        numbers = range(number, RECORDS + 1, 7)
        assert rows[-1] == {"class": number, "orders": len(numbers), "total": sum(numbers)}


def iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


def at(number: int, at_ms: int) -> dict[str, Any]:
    return {"value": {"n": number, "at": iso(at_ms)}, "partition": number % 3, "timestamp": at_ms}


def test_order_tables_files_and_a_database(scene: Scene, server: PostgresServer, spark: Any) -> None:
    bootstrap = scene.bootstrap
    events, customers, inbox = scene.make_topic(4), scene.make_topic(2), scene.folder / "inbox"
    choose = random.Random(9)
    times = [START_MS + n * 100 - choose.randrange(20_000) for n in range(RECORDS)]
    send(
        bootstrap,
        events,
        [
            {"value": {"n": n, "who": f"c{n % 50}"}, "partition": n % 4, "timestamp": at_ms}
            for n, at_ms in enumerate([*times, START_MS + 36_000_000])
        ],
    )
    send(bootstrap, customers, [{"key": f"c{n}", "value": {"name": f"name {n}"}} for n in range(50)])
    inbox.mkdir()
    for number in range(30):
        lines = (f'{{"n": {n}}}\n' for n in range(number * 100, number * 100 + 100))
        (inbox / f"{number}.json").write_text("".join(lines))
    server.execute("CREATE TABLE source_rows (id serial PRIMARY KEY, n int)")
    server.execute(f"INSERT INTO source_rows (n) SELECT generate_series(0, {RECORDS - 1})")
    server.execute("CREATE TABLE target_rows (n int, who text)")
    one_partition = scene.make_topic(1)
    scene.add("ordered", "order", topic=events, to=one_partition, lateness="60 seconds", source=PER_BATCH)
    sides = (events, "n INT, who STRING"), (customers, "name STRING")
    table: dict[str, Any] = {"with": "table", "select": ["l.n AS n", "r.name AS name"], "source": PER_BATCH}
    named = scene.add("named", "join", **join_options(*sides, "who", **table))
    from_files = scene.add("from-files", "file-source", path=str(inbox), files_per_batch=3)
    scene.add(
        "to-files",
        "file-sink",
        topic=events,
        path=str(scene.folder / "out"),
        format="parquet",
        schema="n INT, who STRING",
        source=PER_BATCH,
    )
    from_database = scene.add(
        "from-database", "jdbc-source", url=server.url, table="source_rows", cursor="id", rows_per_batch=250
    )
    scene.add(
        "to-database",
        "jdbc-sink",
        topic=events,
        url=server.url,
        table="target_rows",
        mode="insert",
        source=PER_BATCH,
    )
    scene.run(seed=2)
    in_order = sorted(range(RECORDS), key=lambda n: (times[n], n % 4, n))
    assert [row["n"] for row in values(bootstrap, one_partition)] == in_order
    everything = list(range(RECORDS + 1))
    found = values(bootstrap, named)
    assert sorted(row["n"] for row in found) == everything
    assert all(row["name"] == f"name {row['n'] % 50}" for row in found)
    assert sorted(row["n"] for row in values(bootstrap, from_files)) == list(range(RECORDS))
    files = spark.read.parquet(str(scene.folder / "out")).collect()
    assert sorted(row.n for row in files) == everything
    assert sorted(row["n"] for row in values(bootstrap, from_database)) == list(range(RECORDS))
    assert sorted(row[0] for row in server.rows("SELECT n FROM target_rows")) == everything
