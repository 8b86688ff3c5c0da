"""A PostgreSQL server of its own for a test: fresh data in a temporary folder, gone when the test ends.

    with PostgresServer() as server:
        server.execute("CREATE TABLE orders (id bigint PRIMARY KEY)")
        rows = server.rows("SELECT * FROM orders")

PostgreSQL refuses to run as root, so for root it runs as the user `postgres` that its package makes.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import psycopg
from psycopg import sql

from tidelog.testing.ports import ReservedPort

START_SECONDS_MAX = 60.0
PACKAGED = Path("/usr/lib/postgresql")


def program(name: str) -> str:
    """Where a program of PostgreSQL is; Debian keeps them out of PATH."""
    found = shutil.which(name) or next(iter(sorted(PACKAGED.glob(f"*/bin/{name}"), reverse=True)), None)
    if found is None:
        raise FileNotFoundError(f"there is no {name}: run tests/spark/setup")
    return str(found)


class PostgresServer:
    """One server; a context manager."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tidelog-postgres-"))
        self._as_user: dict[str, Any] = {}
        if os.getuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(self._folder, user.pw_uid, user.pw_gid)
            self._as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self._port = ReservedPort()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://tidelog@127.0.0.1:{self._port.port}/postgres"

    def __enter__(self) -> "PostgresServer":
        data = str(self._folder / "data")
        made = [program("initdb"), "-D", data, "-U", "tidelog", "-A", "trust", "-E", "UTF8", "--no-sync"]
        subprocess.run(
            made,
            check=True,
            capture_output=True,
            timeout=START_SECONDS_MAX,
            cwd=self._folder,
            **self._as_user,
        )
        self._start()
        return self

    def _start(self) -> None:
        data = str(self._folder / "data")
        command = [program("postgres"), "-D", data, "-p", str(self._port.port), "-k", str(self._folder)]
        settings = ["listen_addresses=127.0.0.1", "fsync=off", "shared_buffers=32MB"]
        for setting in settings:
            command += ["-c", setting]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self._folder, **self._as_user
            )
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                psycopg.connect(self.url).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    log_text = (self._folder / "log").read_text(errors="replace")
                    self.close()
                    raise RuntimeError(f"PostgreSQL did not start:\n{log_text}") from None
                time.sleep(0.1)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def crash(self) -> None:
        """End it at once, and start it again: it recovers as after the fall of its machine."""
        self._end()
        self._start()

    def _end(self) -> None:
        if self._process is not None:
            # SIGQUIT: all of its processes end without waiting for clients.
            self._process.send_signal(3)
            self._process.wait(30)

    def close(self) -> None:
        """End it at once, and remove its data."""
        self._end()
        self._port.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def execute(self, statement: str, *values: Any, database: str = "postgres") -> None:
        """Run something and commit it."""
        with psycopg.connect(self.url, dbname=database) as connection:
            connection.execute(statement, values or None)

    def create_database(self, name: str) -> None:
        """Make a database beside the first."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))

    def rows(self, query: str, database: str = "postgres") -> list[Any]:
        """All rows of a query."""
        with psycopg.connect(self.url, dbname=database) as connection:
            return connection.execute(query).fetchall()
