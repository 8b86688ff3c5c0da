"""`jdbc-source`: rows of a database into a topic.

Reads a table (or a query) of PostgreSQL by a column that only grows, such as a sequence or the time of the
last change. Each row is written once, as JSON, with the column `key` as key. A row whose column grows
again is written again; rows that are removed are not noticed, and rows without a value in the column are
not read.

A smaller value may become visible after a larger one, because transactions end in another order than they
take numbers. So rows are read when all transactions that were open when they were seen have ended.
"""

from typing import Any

from tidelog.client.faults import BadOption
from tidelog.pipelines import postgres
from tidelog.pipelines.pipeline_options import Option, Options, OptionType
from tidelog.pipelines.plan import Plan, PlannedQuery
from tidelog.pipelines.run_settings import RunSettings
from tidelog.pipelines.topic_frames import start_to_topic
from tidelog.pipelines.topic_uses import write_option
from tidelog.pipelines.work import Work


class JdbcSource:
    """See the module."""

    name = "jdbc-source"
    summary = "Rows of a database into a topic."
    options = (
        Option("url", OptionType.TEXT, "postgresql://user@host:5432/database", required=True, identity=True),
        Option("to", OptionType.TEXT, "The topic to write.", required=True, identity=True),
        Option("table", OptionType.TEXT, "The table to read, or a view.", identity=True),
        Option("query", OptionType.TEXT, "A SELECT in place of a table.", identity=True),
        Option("cursor", OptionType.TEXT, "The column that only grows.", required=True, identity=True),
        Option("key", OptionType.TEXT, "The column that becomes the key."),
        Option("rows_per_batch", OptionType.INTEGER, "About so many rows in a micro-batch.", default=100_000),
        Option(
            "wait_for_transactions",
            OptionType.FLAG,
            "Whether rows wait until the transactions that were open have ended.",
            default=True,
        ),
        Option("sink", OptionType.MAP, "More options of the sink.", default={}),
    )

    def plan(self, options: Options, run: RunSettings) -> Plan:
        """One query from the database to a topic."""
        postgres.address(options["url"])
        if (options["table"] is None) == (options["query"] is None):
            raise BadOption("jdbc-source: give a table or a query, one of them")
        if options["rows_per_batch"] < 1:
            raise BadOption("jdbc-source: rows_per_batch is at least 1")
        what = f"table {options['table']}" if options["table"] else "a query"
        query = PlannedQuery(
            "jdbc-source",
            reads=f"{what} of {postgres.shown(options['url'])} by {options['cursor']}",
            does=("rows as JSON",) if options["key"] is None else ("rows as JSON", f"key = {options['key']}"),
            writes=f"topic {options['to']}",
            checkpoint=run.checkpoint_of("jdbc-source"),
        )
        uses = write_option(run, options, keyless=options["key"] is None)
        return Plan(self.name, run, options, (query,), ("rows that are removed are not noticed",), uses=uses)

    def start(self, spark: Any, plan: Plan) -> list[Work]:
        """Start the query."""
        from tidelog.pipelines.database_rows import DatabaseRows

        postgres.check_driver()
        options, run = plan.options, plan.run
        spark.dataSource.register(DatabaseRows)
        names = ("url", "table", "query", "cursor", "key", "rows_per_batch")
        chosen = {name: str(options[name]) for name in names if options[name] is not None}
        chosen["wait_for_transactions"] = str(options["wait_for_transactions"]).lower()
        frame = spark.readStream.format("tidelog-rows").options(**chosen).load()
        return [start_to_topic(frame, run, "jdbc-source", options["to"], options["sink"])]


pipeline = JdbcSource()
