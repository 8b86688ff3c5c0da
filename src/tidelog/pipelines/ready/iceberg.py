"""`iceberg`: a topic into an Iceberg table, exactly once, without Spark.

Every batch is a snapshot of the table that has the rows and the offsets after them (`lake.positions`), so a
run that was killed goes on where the table is; there is no checkpoint. Rows are records, or the fields of
values with schemas of a registry; columns are added when a record is written with a schema that has more.
Records that cannot be rows go to the table `<table>_dlq` with the reason.
"""

from typing import Any

from tidelog.client.cluster import Cluster
from tidelog.client.faults import BadOption
from tidelog.pipelines.lake.catalogs import CatalogOptions, described, identifier
from tidelog.pipelines.lake.partitioning import partition_fields
from tidelog.pipelines.lake.uses import LakeUse, ValueSchemas
from tidelog.pipelines.local_work import LocalWork
from tidelog.pipelines.pipeline_options import Option, Options, OptionType, check_one_topic
from tidelog.pipelines.plan import Plan, PlannedQuery
from tidelog.pipelines.problems import Misplaced
from tidelog.pipelines.run_settings import RunSettings, TriggerKind
from tidelog.pipelines.source_options import SourceOptions, parse_duration_ms
from tidelog.pipelines.topic_uses import read_option
from tidelog.pipelines.work import Work
from tidelog.schemas.registered import AVRO, JSON_SCHEMA, PROTOBUF

QUERY = "iceberg"
NONE = "none"
APPEND, UPSERT = "append", "upsert"
_MEGABYTE = 1 << 20


class Iceberg:
    """The ready pipeline."""

    name = "iceberg"
    summary = "A topic into an Iceberg table, exactly once, without Spark."
    options = (
        Option("topic", OptionType.TEXT, "The topic, or topics with commas.", required=True, identity=True),
        Option("table", OptionType.TEXT, "The table: namespace.name.", required=True, identity=True),
        Option(
            "mode",
            OptionType.TEXT,
            "A row for each record (append), or the newest of each key (upsert).",
            APPEND,
            choices=(APPEND, UPSERT),
        ),
        Option("warehouse", OptionType.TEXT, "The folder of the tables: a path or s3://…."),
        Option("catalog", OptionType.TEXT, "The catalog's name.", "tidelog"),
        Option(
            "catalog_options",
            OptionType.MAP,
            "Of catalog and files, in pyiceberg's words: type=rest,uri=http://…; "
            "default: SQLite in the warehouse.",
            {},
        ),
        Option(
            "decode",
            OptionType.TEXT,
            "Values with schemas of a registry.",
            NONE,
            choices=(NONE, AVRO, PROTOBUF, JSON_SCHEMA),
        ),
        Option("registry", OptionType.TEXT, "The schema registry: http://host:8081."),
        Option("registry_user_info", OptionType.TEXT, "Its login: name:password.", ""),
        Option("subject", OptionType.TEXT, "Whose latest schema gives the first columns; <topic>-value."),
        Option("message", OptionType.TEXT, "The message of a Protobuf schema; the first."),
        Option(
            "partition_by",
            OptionType.LIST,
            "Of a table that is made: columns, day(column), bucket(16, column) ….",
            (),
        ),
        Option("properties", OptionType.MAP, "Of a table that is made: Iceberg's table properties.", {}),
        Option("batch_records", OptionType.INTEGER, "At most so many records in a commit.", 1_000_000),
        Option(
            "commit_seconds", OptionType.NUMBER, "Between commits, where the trigger is continuous.", 10.0
        ),
        Option(
            "compact_files",
            OptionType.INTEGER,
            "Merge the small files of a partition when there are so many; 0: never.",
            16,
        ),
        Option("file_megabytes", OptionType.INTEGER, "A file of this size is no longer small.", 64),
        Option("expire_hours", OptionType.NUMBER, "Forget snapshots that are older; 0: never.", 120.0),
        Option("source", OptionType.MAP, "More options of the source.", {}),
    )

    def plan(self, options: Options, run: RunSettings) -> Plan:
        """One query: topic to table."""
        use = _use(options, run)
        if options["mode"] == UPSERT:
            check_one_topic(options, of=f"{self.name} with mode: upsert")
        if run.dead_letters is not None:
            raise BadOption(
                f"iceberg: records that cannot be rows go to table {use.dead_letters}; leave out dead_letters"
            )
        with_topic = _source(options, run)
        if with_topic.decode is not None:
            raise Misplaced("iceberg: decode is an option of the pipeline, not of its source", ("source",))
        does = ["rows are records"]
        if use.values is not None:
            does = [f"values are {use.values.kind}, with the schemas of {use.values.registry_url}"]
        if options["mode"] == UPSERT:
            does.append("the newest row of each key stays; no value takes the key away")
        if use.partition_by:
            does.append(f"partitioned by {', '.join(map(str, use.partition_by))}, if the table is made")
        if options["compact_files"]:
            megabytes = options["file_megabytes"]
            does.append(f"{options['compact_files']} files below {megabytes} MB in a partition are merged")
        query = PlannedQuery(
            QUERY,
            reads=f"topic {options['topic']}",
            writes=f"table {options['table']} of {described(options)}",
            does=tuple(does),
        )
        return Plan(self.name, run, options, (query,), uses=read_option(run, options, query=QUERY), lake=use)

    def start(self, spark: Any, plan: Plan) -> list[Work]:
        """Start the loop."""
        return [LocalWork(QUERY, lambda work: _load(work, plan))]


def _use(options: Options, run: RunSettings) -> LakeUse:
    identifier(options["table"])
    if options["warehouse"] is None and not options["catalog_options"] and "catalog" not in options.given:
        raise BadOption(
            "iceberg needs a warehouse (a folder or s3://…), or catalog_options: {type: rest, uri: http://…}"
        )
    catalog = CatalogOptions(options["catalog"], options["warehouse"], options["catalog_options"])
    catalog.properties()
    if options["batch_records"] < 1:
        raise Misplaced("batch_records is at least 1", ("batch_records",))
    try:
        partition_by = partition_fields(options["partition_by"])
    except BadOption as fault:
        raise Misplaced(str(fault), ("partition_by",)) from None
    return LakeUse(run.name, catalog, options["table"], _values(options), partition_by)


def _values(options: Options) -> ValueSchemas | None:
    kind = options["decode"]
    if kind == NONE:
        for name in ("registry", "subject", "message"):
            if options[name] is not None:
                raise Misplaced(f"iceberg: {name} goes with decode: avro, protobuf or json-schema", (name,))
        return None
    if options["registry"] is None:
        raise Misplaced("iceberg: decode needs the option registry: http://host:8081", ("decode",))
    if options["message"] is not None and kind != PROTOBUF:
        raise Misplaced("iceberg: message is for decode: protobuf", ("message",))
    subject = options["subject"]
    if subject is None and "," not in options["topic"]:
        subject = f"{options['topic']}-value"
    return ValueSchemas(kind, options["registry"], options["registry_user_info"], subject, options["message"])


def _source(options: Options, run: RunSettings) -> SourceOptions:
    chosen = {
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(options["batch_records"]),
        "group.id": run.group_of(QUERY),
        **run.kafka,
        **options["source"],
    }
    if not {"subscribe", "subscribepattern", "assign"} & {name.lower() for name in chosen}:
        chosen["subscribe"] = options["topic"]
    return SourceOptions.read(chosen, streaming=True)


def _load(work: LocalWork, plan: Plan) -> None:
    from tidelog.pipelines.lake.first_columns import first_columns, row_maker
    from tidelog.pipelines.lake.iceberg_table import IcebergTable, TableToMake
    from tidelog.pipelines.lake.loading import Loading
    from tidelog.pipelines.lake.table_rows import DEAD, KeyedRows
    from tidelog.pipelines.lake.upkeep import Upkeep, UpkeepOptions

    options, run, use = plan.options, plan.run, plan.lake
    assert use is not None
    catalog = use.catalog.open()
    table = IcebergTable.find(catalog, use.table, run.name)
    if table is None:
        wanted = TableToMake(first_columns(use.values), use.partition_by, options["properties"])
        table = IcebergTable.make(catalog, use.table, run.name, wanted)

    def dead_letters(make: bool) -> IcebergTable | None:
        if make:
            return IcebergTable.make(catalog, use.dead_letters, run.name, TableToMake(DEAD))
        return IcebergTable.find(catalog, use.dead_letters, run.name)

    source = _source(options, run)
    upkeep = Upkeep(
        table.table,
        UpkeepOptions(
            options["compact_files"], options["file_megabytes"] * _MEGABYTE, options["expire_hours"]
        ),
    )
    with Cluster(source.client) as cluster:
        maker = row_maker(use.values)
        key = None
        if options["mode"] == UPSERT:
            maker, key = KeyedRows(maker), "key" if use.values is None else "_key"
        pace = _pace(options, run)
        Loading(work, cluster, source, maker, table, dead_letters, pace, upkeep, key).run()


def _pace(options: Options, run: RunSettings) -> "Any":
    from tidelog.pipelines.lake.loading import Pace

    seconds = options["commit_seconds"]
    if run.trigger.interval is not None:
        seconds = parse_duration_ms(run.trigger.interval) / 1000
    return Pace(seconds, options["batch_records"], run.trigger.kind is TriggerKind.AVAILABLE_NOW)


pipeline = Iceberg()
