"""PostgreSQL as pipelines see it: addresses, connections, names in SQL, and when rows have settled.

The driver is psycopg, which comes from pip (`pip install 'tidelog[postgres]'`) and needs no jar. Passwords
are best left to libpq: `PGPASSWORD`, or a password file, on the machines of driver and executors.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tidelog.client.faults import BadOption, ClientFault
from tidelog.client.masking import masked_text

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.sql import Composable

PREFIXES = ("postgresql://", "postgres://")
# user and password before '@', hosts and database behind; an '@' that stands elsewhere may be in a password
_REST = re.compile(r"(?:(?P<user>[^:@/?]*)(?::[^@/?]*)?@)?(?P<where>[\w.,:%\[\]-]*(?:/[^@?:]*)?)(?:\?[^@]*)?")
CONNECT_SECONDS_MAX = 20
# Texts of times are the same everywhere, so they can be offsets.
SESSION = "-c timezone=UTC -c datestyle=ISO,YMD"
# Who holds a virtual transaction id is in a transaction; their rows may appear later, below what was seen.
OPEN_TRANSACTIONS = """
    SELECT coalesce(array_agg(lock.virtualtransaction), '{}')
    FROM pg_locks AS lock JOIN pg_stat_activity AS activity USING (pid)
    WHERE lock.locktype = 'virtualxid' AND lock.granted AND lock.virtualxid = lock.virtualtransaction
      AND activity.datname = current_database() AND pid <> pg_backend_pid()
"""


class DatabaseFault(ClientFault):
    """The database cannot be reached, or refuses what is asked; the text says what it said."""


def address(url: str) -> str:
    """The address as libpq takes it; JDBC's spelling is accepted. Raises BadOption."""
    plain = url.removeprefix("jdbc:")
    if not plain.startswith(PREFIXES):
        # What was written may be an address with a password, of another database.
        raise BadOption("url is like postgresql://user@host:5432/database: only PostgreSQL is served")
    return plain


def shown(url: str) -> str:
    """The address without what is secret, for plans; of one that is written oddly, next to nothing."""
    scheme, _, rest = url.removeprefix("jdbc:").partition("://")
    found = _REST.fullmatch(rest)
    if found is None:
        return f"{scheme}://…"
    user = "" if found["user"] is None else f"{found['user']}@"
    return f"{scheme}://{user}{found['where']}"


def check_driver() -> None:
    """Raises DatabaseFault when psycopg is not there."""
    try:
        import psycopg  # noqa: F401
    except ImportError as fault:
        raise DatabaseFault(f"PostgreSQL needs psycopg: pip install 'tidelog[postgres]' ({fault})") from None


@contextmanager
def told(url: str) -> Iterator[None]:
    """What psycopg raises inside becomes a DatabaseFault, without passwords."""
    check_driver()
    import psycopg

    try:
        yield
    except psycopg.Error as fault:
        raise DatabaseFault(f"{shown(url)}: {masked_text(' '.join(str(fault).split()))}") from fault


def connect(url: str, *, autocommit: bool = False) -> "Connection[Any]":
    """A connection; times are texts of UTC. Raises DatabaseFault."""
    with told(url):
        import psycopg

        return psycopg.connect(
            address(url), autocommit=autocommit, connect_timeout=CONNECT_SECONDS_MAX, options=SESSION
        )


def identifier(name: str) -> "Composable":
    """A table's or a column's name, `schema.table` too, quoted for SQL."""
    from psycopg import sql

    return sql.Identifier(*name.split("."))


class SettledRows:
    """Up to which value of a growing column no row can appear any more.

    Sequences give out numbers before transactions commit, so a smaller number may appear after a larger one.
    The highest value that was seen is told when all transactions that were open at that moment have ended.
    """

    def __init__(self, relation: "Composable", column: "Composable", *, wait: bool) -> None:
        from psycopg import sql

        self._ask = sql.SQL("SELECT (SELECT max({})::text FROM {}), ({})").format(
            column, relation, sql.SQL(OPEN_TRANSACTIONS)
        )
        self._wait = wait
        self._seen: str | None = None
        self._open: frozenset[str] = frozenset()
        self.settled: str | None = None

    def look(self, connection: "Connection[Any]") -> bool:
        """Ask once; True when everything that was there at the first look since the last True has settled."""
        row = connection.execute(self._ask).fetchone()
        assert row is not None
        highest, running = row[0], frozenset(row[1])
        if not self._open:
            self._seen, self._open = highest, running if self._wait else frozenset()
        else:
            self._open &= running
        if self._open:
            return False
        self.settled = self._seen
        return True
