"""Addresses of databases: what is shown of them, and what is told when a database is not there."""

import sys

import pytest

from tidelog.client.faults import BadOption, ClientFault
from tidelog.pipelines import postgres
from tidelog.testing.ports import ReservedPort


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u@db:5432/shop", "postgresql://u@db:5432/shop"),
        ("jdbc:postgresql://u:SECRET@db/shop?sslmode=require", "postgresql://u@db/shop"),
        ("postgresql://[::1]:5432/shop?password=SECRET", "postgresql://[::1]:5432/shop"),
        ("postgres://u:SE%40CRET@a:1,b:2/shop", "postgres://u@a:1,b:2/shop"),
        ("postgresql:///shop?host=/run", "postgresql:///shop"),
        ("postgresql://u:SECRET@SECRET@db/shop", "postgresql://…"),
        ("postgresql://u:SECRET?SECRET@db/shop", "postgresql://…"),
        ("postgresql://u:SECRET/SECRET@db/shop", "postgresql://…"),
        ("postgresql://db/shop?user=u&password=x@SECRET", "postgresql://…"),
    ],
)
def test_what_is_shown_of_an_address(url: str, shown: str) -> None:
    assert postgres.shown(url) == shown


def test_another_database_is_refused_without_its_password() -> None:
    with pytest.raises(BadOption, match="only PostgreSQL is served") as refused:
        postgres.address("mysql://root:SECRET@db/shop")
    assert "SECRET" not in str(refused.value)


def test_a_database_that_is_away_is_told_in_words() -> None:
    pytest.importorskip("psycopg")  # an extra
    port = ReservedPort()
    try:
        with pytest.raises(ClientFault, match=r"refused|failed") as away:
            postgres.connect(f"postgresql://u:SECRET@127.0.0.1:{port.port}/shop")
    finally:
        port.close()
    assert f"postgresql://u@127.0.0.1:{port.port}/shop: " in str(away.value)
    assert "SECRET" not in str(away.value)


def test_a_missing_driver_is_told_with_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ClientFault, match=r"pip install 'tidelog\[postgres\]'"):
        postgres.connect("postgresql://u@db/shop")
