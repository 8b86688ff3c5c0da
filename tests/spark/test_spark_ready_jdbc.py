"""jdbc-source and jdbc-sink on a real Spark and a real PostgreSQL, by content."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.spark.postgres_server import PostgresServer
from tests.spark.ready_runs import definition, received, run_ready, send, start_ready, values, wait_for
from tidelog.client.faults import ClientFault
from tidelog.pipelines.ready import jdbc_sink

MakeTopic = Callable[..., str]

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as running:
        yield running


def test_rows_into_a_topic(
    spark: Any, bootstrap: str, make_topic: MakeTopic, server: PostgresServer, tmp_path: Path
) -> None:
    target = make_topic(2)
    server.execute(
        "CREATE TABLE orders (id bigserial PRIMARY KEY, country text, price numeric(9,2), at timestamptz)"
    )
    server.execute(
        "INSERT INTO orders (country, price, at)"
        " SELECT 'DE', n * 1.25, TIMESTAMPTZ '2026-01-01 12:00+00' + n * interval '1 s'"
        " FROM generate_series(1, 1000) AS n"
    )
    given = definition(
        bootstrap,
        tmp_path,
        "jdbc-source",
        url=server.url,
        table="public.orders",
        cursor="id",
        key="id",
        to=target,
        rows_per_batch=300,
    )
    run_ready(spark, given)
    server.execute("INSERT INTO orders (country) SELECT 'FR' FROM generate_series(1, 50)")
    run_ready(spark, given)
    run_ready(spark, given)
    found = received(bootstrap, target)
    rows = {int(message.key()): json.loads(message.value()) for message in found}
    assert len(found) == len(rows) == 1_050
    assert rows[4] == {"id": 4, "country": "DE", "price": 5.0, "at": "2026-01-01T12:00:04+00:00"}
    assert rows[1_050] == {"id": 1_050, "country": "FR", "price": None, "at": None}


def test_rows_that_commit_late_are_not_lost(
    spark: Any, bootstrap: str, make_topic: MakeTopic, server: PostgresServer, tmp_path: Path
) -> None:
    target = make_topic(1)
    server.execute("CREATE TABLE events (id bigserial, name text)")
    given = definition(
        bootstrap, tmp_path, "jdbc-source", url=server.url, table="events", cursor="id", to=target
    )
    slow = psycopg.connect(server.url)
    slow.execute("INSERT INTO events (name) VALUES ('slow')")
    server.execute("INSERT INTO events (name) VALUES ('fast')")
    timer = threading.Timer(4.0, slow.commit)
    timer.start()
    started = time.monotonic()
    run_ready(spark, given)
    timer.join()
    slow.close()
    assert time.monotonic() - started >= 3.5
    assert [row["name"] for row in values(bootstrap, target)] == ["slow", "fast"]


def test_a_query_is_followed_as_it_grows(
    spark: Any, bootstrap: str, make_topic: MakeTopic, server: PostgresServer, tmp_path: Path
) -> None:
    target = make_topic(1)
    server.execute("CREATE TABLE changes (id int PRIMARY KEY, changed_at timestamptz, secret text)")
    query = "SELECT id, changed_at FROM changes WHERE id < 100"
    given = definition(
        bootstrap,
        tmp_path,
        "jdbc-source",
        url=f"jdbc:{server.url}",
        query=query,
        cursor="changed_at",
        to=target,
    )
    work = start_ready(spark, {**given, "trigger": "continuous"})
    try:
        for change in range(3):
            server.execute(
                "INSERT INTO changes VALUES (7, now(), 'x'), (100, now(), 'x')"
                " ON CONFLICT (id) DO UPDATE SET changed_at = excluded.changed_at"
            )
            deadline = time.monotonic() + 60
            while len(rows := values(bootstrap, target)) <= change:
                assert time.monotonic() < deadline
                assert work[0].failure() is None, work[0].failure()
                time.sleep(0.2)
    finally:
        for one in work:
            one.stop()
    assert [(row["id"], set(row)) for row in rows] == [(7, {"id", "changed_at"})] * 3


def test_a_topic_into_a_table(
    spark: Any, bootstrap: str, make_topic: MakeTopic, server: PostgresServer, tmp_path: Path
) -> None:
    topic, dead = make_topic(3), make_topic(1)
    server.execute(
        "CREATE TABLE stock (product text PRIMARY KEY, pieces int, changed timestamptz DEFAULT now())"
    )
    given = definition(
        bootstrap,
        tmp_path,
        "jdbc-sink",
        dead,
        topic=topic,
        url=server.url,
        table="stock",
        columns=["product", "pieces"],
        deletes=True,
    )
    for pieces in range(5):
        send(bootstrap, topic, [stock(n, pieces * 10 + n) for n in range(100)])
    send(bootstrap, topic, [{"key": "p3", "value": None}, {"key": "p4", "value": "no JSON"}, {"value": None}])
    run_ready(spark, given)
    expected = {f"p{n}": 40 + n for n in range(100) if n != 3}
    assert dict(server.rows("SELECT product, pieces FROM stock")) == expected
    assert sorted(str(message.value()) for message in received(bootstrap, dead)) == ["None", "b'no JSON'"]
    # Removed and back in one batch; removed in the next.
    send(bootstrap, topic, [{"key": "p5", "value": None}, stock(5, 1), stock(3, 3)])
    run_ready(spark, given)
    send(bootstrap, topic, [{"key": "p6", "value": None}])
    run_ready(spark, given)
    expected |= {"p5": 1, "p3": 3}
    del expected["p6"]
    assert dict(server.rows("SELECT product, pieces FROM stock")) == expected
    assert server.rows("SELECT count(*) FROM pg_class WHERE relname LIKE 'tidelog_copy%'") == [(0,)]


def stock(number: int, pieces: int) -> dict[str, Any]:
    return {"key": f"p{number}", "value": {"product": f"p{number}", "pieces": pieces}}


def test_every_record_as_a_row(
    spark: Any, bootstrap: str, make_topic: MakeTopic, server: PostgresServer, tmp_path: Path
) -> None:
    topic = make_topic(2)
    server.execute("CREATE TABLE log (id int, body jsonb, tags text[])")
    given = definition(
        bootstrap, tmp_path, "jdbc-sink", topic=topic, url=server.url, table="log", mode="insert"
    )
    send(
        bootstrap,
        topic,
        [{"value": {"id": n % 10, "body": {"n": n}, "tags": ["a", "b"]}} for n in range(200)],
    )
    run_ready(spark, given)
    run_ready(spark, given)
    rows = server.rows("SELECT id, body, tags FROM log")
    assert sorted(body["n"] for _, body, _ in rows) == list(range(200))
    assert all(tags == ["a", "b"] for _, _, tags in rows)
    send(bootstrap, topic, [{"value": "no JSON"}])
    with pytest.raises(RuntimeError, match="not a JSON object"):
        wait_for(start_ready(spark, given))


def test_records_without_a_key_are_not_taken_for_the_same(
    spark: Any, bootstrap: str, make_topic: MakeTopic, server: PostgresServer, tmp_path: Path
) -> None:
    topic, dead = make_topic(1), make_topic(1)
    server.execute("CREATE TABLE keys (product text PRIMARY KEY, pieces int)")
    given = definition(
        bootstrap, tmp_path, "jdbc-sink", dead, topic=topic, url=server.url, table="keys", deletes=True
    )
    keyless = [{"value": record["value"]} for record in (stock(1, 1), stock(2, 2), stock(3, 3))]
    send(bootstrap, topic, [*keyless, stock(4, 4), {"key": "p4", "value": None}, stock(5, 5)])
    run_ready(spark, given)
    assert server.rows("SELECT product, pieces FROM keys") == [("p5", 5)]
    found = received(bootstrap, dead)
    assert sorted(json.loads(message.value())["pieces"] for message in found) == [1, 2, 3]
    reasons = {dict(message.headers())["tidelog.dlq.reason"] for message in found}
    assert reasons == {b"there is no key"}


def test_a_crash_of_the_database_loses_nothing(
    spark: Any,
    bootstrap: str,
    make_topic: MakeTopic,
    server: PostgresServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = make_topic(2)
    server.execute("CREATE TABLE crashed (product text PRIMARY KEY, pieces int)")
    given = definition(bootstrap, tmp_path, "jdbc-sink", topic=topic, url=server.url, table="crashed")
    send(bootstrap, topic, [stock(n, n) for n in range(100)])
    merge = jdbc_sink._Target._merge

    def crash_and_merge(*arguments: Any) -> None:
        server.crash()
        merge(*arguments)

    monkeypatch.setattr(jdbc_sink._Target, "_merge", crash_and_merge)
    with pytest.raises(RuntimeError, match=r"100 records were copied to tidelog_copy_\w+ and 0 are there"):
        wait_for(start_ready(spark, given))
    assert server.rows("SELECT count(*) FROM crashed") == [(0,)]
    monkeypatch.setattr(jdbc_sink._Target, "_merge", merge)
    run_ready(spark, given)
    assert dict(server.rows("SELECT product, pieces FROM crashed")) == {f"p{n}": n for n in range(100)}


def test_tables_that_do_not_fit_are_told(
    spark: Any, bootstrap: str, make_topic: MakeTopic, server: PostgresServer, tmp_path: Path
) -> None:
    server.execute("CREATE TABLE keyless (id int)")

    def trouble(**options: Any) -> str:
        given = definition(bootstrap, tmp_path, "jdbc-sink", topic=make_topic(1), url=server.url, **options)
        with pytest.raises(ValueError) as raised:
            start_ready(spark, given)
        return str(raised.value)

    assert "no table nowhere" in trouble(table="nowhere")
    assert "no primary key" in trouble(table="keyless")
    assert "no column x; it has id" in trouble(table="keyless", mode="insert", columns="x")


def test_what_a_database_refuses_is_told_without_a_password(
    spark: Any, bootstrap: str, make_topic: MakeTopic, server: PostgresServer, tmp_path: Path
) -> None:
    server.execute("CREATE TABLE private (id int PRIMARY KEY)")
    server.execute("CREATE ROLE reader LOGIN PASSWORD 'sesame'")
    url = server.url.replace("tidelog@", "reader:sesame@")
    given = definition(bootstrap, tmp_path, "jdbc-sink", topic=make_topic(1), url=url, table="private")
    with pytest.raises(ClientFault, match="permission denied for schema public") as refused:
        start_ready(spark, given)
    assert "reader@127.0.0.1" in str(refused.value) and "sesame" not in str(refused.value)


def test_a_batch_is_read_once(
    spark: Any, bootstrap: str, make_topic: MakeTopic, server: PostgresServer, tmp_path: Path
) -> None:
    """Spark counts what it reads. Without dead letters a record that is no row is told, with its place."""
    topic = make_topic(1)
    server.execute("CREATE TABLE read_once (id bigint PRIMARY KEY)")
    given = definition(bootstrap, tmp_path, "jdbc-sink", topic=topic, url=server.url, table="read_once")
    send(bootstrap, topic, [{"value": {"id": number}} for number in range(400)])
    (work,) = run_ready(spark, given)
    assert work.progress().rows == 400
    assert server.rows("SELECT count(*) FROM read_once") == [(400,)]
    send(bootstrap, topic, [{"value": {"id": 400}}, {"value": "no JSON"}, {"value": {"id": 401}}])
    with pytest.raises(
        RuntimeError, match=f"{topic}-0@401: the value is not a JSON object; set dead_letters"
    ):
        run_ready(spark, given)
    assert server.rows("SELECT count(*) FROM read_once") == [(400,)]
