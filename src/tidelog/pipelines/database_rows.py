"""A growing table of a database as a stream: the rows above the highest value of a column that was read.

An offset is the text of that value, `{"cursor": "4711"}`. A micro-batch is the rows between two offsets,
read in the order of the column, each as JSON. The same offsets give the same rows unless they were changed
or removed in between.

Registered as `tidelog-rows` by the pipeline that uses it. Looks at the table at most once in
`POLL_SECONDS`: Spark asks an idle source about 80 times a second.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from tidelog.pipelines.java import CannotRun
from tidelog.pipelines.postgres import SettledRows, connect, identifier
from tidelog.pipelines.spark_api import HAS_ADMISSION_CONTROL, SupportsTriggerAvailableNow

POLL_SECONDS = 0.5
SETTLE_SECONDS_MAX = 60.0
FETCH_ROWS = 10_000
SCHEMA = pa.schema([("key", pa.string()), ("value", pa.string())])
Offset = dict[str, Any]


class OpenTransaction(RuntimeError):
    """A transaction has been open for so long that nobody can say which rows there are."""


class DatabaseRows(DataSource):
    """Options: url, table or query, cursor, key, rows_per_batch, wait_for_transactions."""

    @classmethod
    def name(cls) -> str:
        """What stands in `format(…)`."""
        return "tidelog-rows"

    def schema(self) -> str:
        """A row is a key and JSON."""
        return "key STRING, value STRING"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        """The reader of `spark.readStream`; raises CannotRun where Spark does not say where batches begin."""
        if not HAS_ADMISSION_CONTROL:
            raise CannotRun(
                "jdbc-source needs Spark 4.2 or later: sources in Python are not told before that "
                "where a batch begins"
            )
        return DatabaseRowsReader(dict(self.options))


class RowsBetween(InputPartition):
    """The rows of one task: above the first value, up to the second."""

    def __init__(self, start: str | None, end: str) -> None:
        super().__init__((start, end))


class DatabaseRowsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads rows as they are added."""

    def __init__(self, options: dict[str, str]) -> None:
        self._url = options["url"]
        self._table = options.get("table")
        self._query = options.get("query")
        self._cursor_column = options["cursor"]
        self._key_column = options.get("key")
        self._rows_max = int(options["rows_per_batch"])
        self._wait = options.get("wait_for_transactions", "true") == "true"
        self._asked_at = float("-inf")
        self._settled: SettledRows | None = None
        self._connection: Any = None
        self._stop_at: Offset | None = None

    def __getstate__(self) -> dict[str, Any]:
        # The connection stays in the driver.
        return {**self.__dict__, "_connection": None, "_settled": None}

    def initialOffset(self) -> Offset:  # noqa: N802 (Spark's name)
        """Before all rows."""
        return {"cursor": None}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Rows that are added from now on are for the next run."""
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while not self._look():
            if time.monotonic() > deadline:
                raise OpenTransaction(
                    f"a transaction has been open for {SETTLE_SECONDS_MAX:.0f} s, which may still add rows: "
                    "end it, or set wait_for_transactions to false and lose what comes late"
                )
            time.sleep(POLL_SECONDS / 5)
        assert self._settled is not None
        self._stop_at = {"cursor": self._settled.settled}

    def latestOffset(self, start: Offset, limit: Any) -> Offset:  # noqa: N802
        """Where the next micro-batch ends."""
        if self._stop_at is not None:
            highest = self._stop_at["cursor"]
        else:
            if time.monotonic() - self._asked_at >= POLL_SECONDS:
                self._asked_at = time.monotonic()
                self._look()
            highest = None if self._settled is None else self._settled.settled
        if highest is None or highest == start["cursor"]:
            return start
        return {"cursor": self._limited(start["cursor"], highest)}

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """Nothing that would be cheap."""
        return None

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """One task: the rows are one sequence."""
        return [] if start == end else [RowsBetween(start["cursor"], end["cursor"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows as Arrow, a piece at a time."""
        from psycopg import sql

        start, end = partition.value
        key = sql.SQL("NULL") if self._key_column is None else identifier(self._key_column)
        statement = sql.SQL("SELECT ({})::text, row_to_json(rows)::text FROM {}{} ORDER BY {}").format(
            key, self._relation(), self._between(start), identifier(self._cursor_column)
        )
        values = (end,) if start is None else (end, start)
        with connect(self._url) as connection, connection.cursor("rows") as cursor:
            cursor.execute(statement, values)
            while rows := cursor.fetchmany(FETCH_ROWS):
                keys, texts = zip(*rows, strict=True)
                yield pa.RecordBatch.from_arrays(
                    [pa.array(keys, pa.string()), pa.array(texts, pa.string())], schema=SCHEMA
                )

    def commit(self, end: Offset) -> None:
        """The table stays as it is."""

    def stop(self) -> None:
        """Close the driver's connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _opened(self) -> Any:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._url, autocommit=True)
        return self._connection

    def _look(self) -> bool:
        if self._settled is None:
            column = identifier(self._cursor_column)
            self._settled = SettledRows(self._relation(), column, wait=self._wait)
        return self._settled.look(self._opened())

    def _relation(self) -> Any:
        from psycopg import sql

        if self._query is not None:
            return sql.SQL("({}) AS rows").format(sql.SQL(self._query))
        assert self._table is not None
        return sql.SQL("{} AS rows").format(identifier(self._table))

    def _between(self, start: str | None) -> Any:
        from psycopg import sql

        column = identifier(self._cursor_column)
        above = sql.SQL("") if start is None else sql.SQL(" AND {} > %s").format(column)
        return sql.SQL(" WHERE {} <= %s{}").format(column, above)

    def _limited(self, start: str | None, highest: str) -> str:
        """The end of the next batch: at most so many rows, and all that have the last one's value."""
        from psycopg import sql

        column = identifier(self._cursor_column)
        statement = sql.SQL(
            "SELECT max(piece.value)::text FROM (SELECT {} AS value FROM {}{} ORDER BY 1 LIMIT %s) AS piece"
        ).format(column, self._relation(), self._between(start))
        bounds = (highest,) if start is None else (highest, start)
        row = self._opened().execute(statement, (*bounds, self._rows_max)).fetchone()
        # Rows may have been removed since the highest was seen.
        return highest if row[0] is None else str(row[0])
