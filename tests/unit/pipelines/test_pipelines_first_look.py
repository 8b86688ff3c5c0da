"""Which tables a query reads, and what it may be."""

import duckdb
import pyarrow as pa
import pytest

from tidelog.pipelines.lake import first_look
from tidelog.pipelines.lake.first_look import BadQuery, tables_of


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("SELECT 1", []),
        ("FROM orders", [("", "orders")]),
        ('SELECT * FROM lake.orders JOIN "a-b.c" USING (id)', [("lake", "orders"), ("", "a-b.c")]),
        ("SELECT * FROM a.b.orders", [("a.b", "orders")]),
        ("WITH x AS (SELECT * FROM orders) SELECT * FROM X, x AS y", [("", "orders")]),
        ("SELECT * FROM x WHERE id IN (WITH x AS (FROM y) SELECT id FROM x)", [("", "x"), ("", "y")]),
        ("SELECT (SELECT max(id) FROM a) FROM b, b AS c", [("", "a"), ("", "b")]),
    ],
)
def test_tables_of_a_query(sql: str, wanted: list[tuple[str, str]]) -> None:
    with duckdb.connect() as database:
        assert sorted(tables_of(database, sql)) == sorted(wanted)


@pytest.mark.parametrize(
    "sql", ["SELEC 1", "SELECT 1; SELECT 2", "COPY (SELECT 1) TO '/tmp/x'", "DROP TABLE x", ""]
)
def test_only_one_select_is_run(sql: str) -> None:
    with duckdb.connect() as database, pytest.raises(BadQuery):
        tables_of(database, sql)


def test_bytes_are_text_or_digits() -> None:
    rows = pa.table({"key": pa.array([b"a", None, b"\xff"]), "value": pa.array([b"1", b"2", "ü".encode()])})
    assert first_look._with_texts(rows).to_pydict() == {"key": ["a", None, "0xff"], "value": ["1", "2", "ü"]}
