"""`jdbc-sink`: a topic into a table of a database.

Values are JSON objects; their fields go to the columns of the same name of a PostgreSQL table that is
there, converted as PostgreSQL does. With key columns (by default the table's primary key) a row takes the
place of the one with the same key; without, every record is a row more. With `deletes` a record without a
value removes the row whose key column is the record's key.

Each record counts once. Tasks copy a micro-batch to a table of its own; then one transaction merges that
into the target, notes the batch in the table `tidelog_batches` and drops the copy:

    tidelog_batches   pipeline text primary key, batch_id bigint     the last batch that is in the target

A batch that is repeated finds itself noted there and changes nothing. Copies are of records with partition
and offset, so rows that two attempts of a task copied count once too.
"""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

from tidelog.client.faults import BadOption, ClientFault
from tidelog.pipelines import postgres
from tidelog.pipelines.dead_letters import REASON, STACK, start_dead_letters, with_origin
from tidelog.pipelines.pipeline_options import Option, Options, OptionType, check_one_topic
from tidelog.pipelines.plan import Plan, PlannedQuery
from tidelog.pipelines.run_settings import RunSettings
from tidelog.pipelines.topic_frames import batch_application, stream_topic
from tidelog.pipelines.topic_uses import read_option
from tidelog.pipelines.work import StreamingWork, Work

BATCHES_TABLE = "tidelog_batches"
COPY_COLUMNS = ("partition", "offset", "key", "value")


class BadTable(BadOption):
    """The table cannot take what the pipeline would write."""


class LostCopy(ClientFault):
    """PostgreSQL lost what was copied before it was merged."""


class JdbcSink:
    """See the module."""

    name = "jdbc-sink"
    summary = "A topic into a table of a database."
    options = (
        Option("topic", OptionType.TEXT, "The topic to read.", required=True, identity=True),
        Option("url", OptionType.TEXT, "postgresql://user@host:5432/database", required=True, identity=True),
        Option("table", OptionType.TEXT, "The table to write, which is there.", required=True, identity=True),
        Option(
            "mode",
            OptionType.TEXT,
            "Rows in place of those with the same key (upsert), or always more (insert).",
            default="upsert",
            choices=("upsert", "insert"),
        ),
        Option("key_columns", OptionType.LIST, "The key for upsert; default: the primary key.", default=()),
        Option("columns", OptionType.LIST, "The columns to write; default: all.", default=()),
        Option("deletes", OptionType.FLAG, "Whether a null value removes a row.", default=False),
        Option("source", OptionType.MAP, "More options of the source.", default={}),
    )

    def plan(self, options: Options, run: RunSettings) -> Plan:
        """One query from a topic to the database, and one for dead letters."""
        postgres.address(options["url"])
        check_one_topic(options, of=self.name)
        if options["mode"] == "insert" and (options["key_columns"] or options["deletes"]):
            raise BadOption("jdbc-sink: key_columns and deletes are for the mode upsert")
        if options["deletes"] and len(options["key_columns"]) > 1:
            raise BadOption("jdbc-sink: deletes needs one key column, which is the key of the records")
        query = PlannedQuery(
            "jdbc-sink",
            reads=f"topic {options['topic']}",
            does=(options["mode"], *(("null values remove rows",) if options["deletes"] else ())),
            writes=f"table {options['table']} of {postgres.shown(options['url'])}",
            checkpoint=run.checkpoint_of("jdbc-sink"),
        )
        return Plan(self.name, run, options, (query,), uses=read_option(run, options, query="jdbc-sink"))

    def start(self, spark: Any, plan: Plan) -> list[Work]:
        """Start the queries."""
        options, run = plan.options, plan.run
        frame = stream_topic(spark, run, "jdbc-sink", options["topic"], options["source"])
        bad = _bad(options["deletes"])
        target = _Target(options, run)
        with postgres.told(options["url"]):
            target.prepare()
        writer = (
            frame.withColumn(REASON, bad)
            .writeStream.queryName(f"{run.name}-jdbc-sink")
            .option("checkpointLocation", run.checkpoint_of("jdbc-sink"))
            .foreachBatch(target.batch)
        )
        work: list[Work] = [StreamingWork("jdbc-sink", run.trigger.on(writer).start())]
        if run.dead_letters is None:
            return work
        from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

        guard = "jdbc-sink-dead"
        again = stream_topic(spark, run, guard, options["topic"], options["source"], beside=True)
        dead = with_origin(again).withColumns({REASON: bad, STACK: F.lit(None).cast("string")})
        letters = start_dead_letters(dead.where(F.col(REASON).isNotNull()), run, guard)
        return work if letters is None else [*work, letters]


def _bad(deletes: bool) -> Any:
    """Why a record is no row, null for those that are."""
    from pyspark.sql import functions as F  # noqa: N812

    text = F.col("value").cast("string")
    # With deletes the record's key says which record of a batch is a row's last.
    nothing = F.col("key").isNull() if deletes else text.isNull()
    broken = text.isNotNull() & F.from_json(text, "map<string,string>").isNull()
    return (
        F.when(nothing, F.lit("there is no key" if deletes else "there is no value"))
        .when(broken, F.lit("the value is not a JSON object"))
        .when(text.contains("\\u0000"), F.lit("PostgreSQL has no place for the character 0"))
    )


def copier(url: str, table: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """A step that copies rows to a table in one transaction, and returns how many.

    The first that is no row is returned with its place and the reason, and nothing is copied behind it: what
    is read is read once.
    """

    def copy(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from psycopg import sql

        count, fault = 0, None
        statement = sql.SQL("COPY {} ({}) FROM STDIN").format(
            postgres.identifier(table), sql.SQL(", ").join(map(sql.Identifier, COPY_COLUMNS))
        )
        with (
            postgres.connect(url) as connection,
            connection.cursor() as cursor,
            cursor.copy(statement) as rows,
        ):
            for batch in batches:
                for *row, topic, reason in zip(
                    *(column.to_pylist() for column in batch.columns), strict=True
                ):
                    if fault is None and reason is not None:
                        fault = f"{topic}-{row[0]}@{row[1]}: {reason}"
                    if fault is None:
                        rows.write_row(row)
                        count += 1
        schema = pa.schema([("copied", pa.int64()), ("fault", pa.string())])
        yield pa.RecordBatch.from_pydict({"copied": [count], "fault": [fault]}, schema=schema)

    return copy


class _Target:
    """The table, and what is done with each micro-batch."""

    def __init__(self, options: Options, run: RunSettings) -> None:
        self._options, self._run = options, run
        self._url: str = options["url"]
        self._columns: list[str] = []
        self._key_columns: list[str] = []

    def prepare(self) -> None:
        """Look at the table, and make the one for batches; raises BadTable."""
        from psycopg import errors, sql

        table = self._options["table"]
        with postgres.connect(self._url) as connection:
            try:
                oid = connection.execute("SELECT %s::regclass::oid", (table,)).fetchone()
            except (errors.UndefinedTable, errors.InvalidSchemaName):
                raise BadTable(f"there is no table {table}: create it first") from None
            assert oid is not None
            found = connection.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = %s AND attnum > 0"
                " AND NOT attisdropped AND attgenerated = '' ORDER BY attnum",
                oid,
            ).fetchall()
            primary = connection.execute(
                "SELECT attname FROM pg_index JOIN pg_attribute ON attrelid = indrelid"
                " AND attnum = ANY (indkey) WHERE indrelid = %s AND indisprimary ORDER BY attnum",
                oid,
            ).fetchall()
            connection.execute(
                sql.SQL(
                    "CREATE TABLE IF NOT EXISTS {} (pipeline text PRIMARY KEY, batch_id bigint NOT NULL)"
                ).format(sql.Identifier(BATCHES_TABLE))
            )
        names = [row[0] for row in found]
        self._columns = list(self._options["columns"]) or names
        if unknown := [name for name in (*self._columns, *self._options["key_columns"]) if name not in names]:
            raise BadTable(f"{table} has no column {unknown[0]}; it has {', '.join(names)}")
        if self._options["mode"] == "upsert":
            self._key_columns = list(self._options["key_columns"]) or [row[0] for row in primary]
            if not self._key_columns:
                raise BadTable(
                    f"{table} has no primary key: name key_columns that are unique, or use mode insert"
                )
            if self._options["deletes"] and len(self._key_columns) != 1:
                raise BadTable(f"deletes needs one key column; {table} has {', '.join(self._key_columns)}")

    def batch(self, frame: Any, batch_id: int) -> None:
        """Copy, then merge and note in one transaction."""
        from pyspark.sql import functions as F  # noqa: N812

        application = batch_application(frame, self._run, "rows")
        if self._noted(application) >= batch_id:
            return
        copy_table = f"tidelog_copy_{hashlib.sha256(application.encode()).hexdigest()[:16]}_{batch_id}"
        self._make_copy_table(copy_table)
        if self._run.dead_letters is not None:
            frame = frame.where(F.col(REASON).isNull())
        text = (F.col(name).cast("string").alias(name) for name in ("key", "value"))
        rows = frame.select("partition", "offset", *text, "topic", REASON)
        copied = rows.mapInArrow(copier(self._url, copy_table), "copied LONG, fault STRING")
        (done,) = copied.agg(F.sum("copied").alias("copied"), F.min("fault").alias("fault")).collect()
        if done.fault is not None:
            raise ValueError(f"{done.fault}; set dead_letters to go on without")
        self._merge(copy_table, application, batch_id, int(done.copied or 0))

    def _noted(self, application: str) -> int:
        from psycopg import sql

        statement = sql.SQL("SELECT batch_id FROM {} WHERE pipeline = %s").format(
            sql.Identifier(BATCHES_TABLE)
        )
        with postgres.connect(self._url) as connection:
            row = connection.execute(statement, (application,)).fetchone()
        return -1 if row is None else int(row[0])

    def _make_copy_table(self, name: str) -> None:
        """An empty one: what an earlier try of the batch left is thrown away."""
        from psycopg import sql

        with postgres.connect(self._url) as connection:
            connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(name)))
            connection.execute(
                sql.SQL(
                    'CREATE UNLOGGED TABLE {} (partition integer, "offset" bigint, key text, value jsonb)'
                ).format(sql.Identifier(name))
            )

    def _merge(self, copy_table: str, application: str, batch_id: int, copied: int) -> None:
        from psycopg import sql

        note = sql.SQL(
            "INSERT INTO {0} AS noted VALUES (%s, %s) ON CONFLICT (pipeline)"
            " DO UPDATE SET batch_id = excluded.batch_id WHERE noted.batch_id < excluded.batch_id"
        ).format(sql.Identifier(BATCHES_TABLE))
        with postgres.connect(self._url) as connection:
            # The row is locked from here on: another driver of the same query waits, and then finds it noted.
            if connection.execute(note, (application, batch_id)).rowcount:
                self._check_copy(connection, copy_table, copied)
                for statement in self._statements(sql.Identifier(copy_table)):
                    connection.execute(statement)
            connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(copy_table)))

    @staticmethod
    def _check_copy(connection: Any, copy_table: str, copied: int) -> None:
        """All that tasks copied must be there: a crash of PostgreSQL empties tables without a log."""
        from psycopg import sql

        count = sql.SQL('SELECT count(*) FROM (SELECT DISTINCT partition, "offset" FROM {}) AS once')
        found = connection.execute(count.format(sql.Identifier(copy_table))).fetchone()[0]
        if found != copied:
            raise LostCopy(
                f"{copied} records were copied to {copy_table} and {found} are there: PostgreSQL was "
                "restarted in between. Nothing of the batch is in the table; the next start repeats it"
            )

    def _statements(self, copy_table: Any) -> Iterator[Any]:
        """What merges the copy into the target."""
        from psycopg import sql

        target = postgres.identifier(self._options["table"])
        columns = sql.SQL(", ").join(map(sql.Identifier, self._columns))
        row = sql.SQL("jsonb_populate_record(NULL::{}, copied.value) AS fields").format(target)
        picked = sql.SQL(", ").join(sql.SQL("fields.{}").format(sql.Identifier(n)) for n in self._columns)
        insert = sql.SQL("INSERT INTO {} ({}) ").format(target, columns)
        if not self._key_columns:
            yield insert + sql.SQL(
                'SELECT DISTINCT ON (partition, "offset") {} FROM {} AS copied, {}'
                ' ORDER BY partition, "offset"'
            ).format(picked, copy_table, row)
            return
        keys = sql.SQL(", ").join(sql.SQL("fields.{}").format(sql.Identifier(n)) for n in self._key_columns)
        source = sql.SQL("{}").format(copy_table)
        if self._options["deletes"]:
            # The last record of a key says whether there is a row.
            source = sql.SQL(
                '(SELECT DISTINCT ON (key) * FROM {} ORDER BY key, partition, "offset" DESC)'
            ).format(copy_table)
            yield sql.SQL(
                "DELETE FROM {} AS target USING {} AS copied"
                " WHERE copied.value IS NULL AND target.{}::text = copied.key"
            ).format(target, source, sql.Identifier(self._key_columns[0]))
        changed = [name for name in self._columns if name not in self._key_columns]
        sets = sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(sql.Identifier(n)) for n in changed)
        action = sql.SQL("DO UPDATE SET {}").format(sets) if changed else sql.SQL("DO NOTHING")
        yield insert + sql.SQL(
            "SELECT DISTINCT ON ({keys}) {picked} FROM {source} AS copied, {row}"
            ' WHERE copied.value IS NOT NULL ORDER BY {keys}, partition, "offset" DESC'
            " ON CONFLICT ({conflict}) {action}"
        ).format(
            keys=keys,
            picked=picked,
            source=source,
            row=row,
            conflict=sql.SQL(", ").join(map(sql.Identifier, self._key_columns)),
            action=action,
        )


pipeline = JdbcSink()
