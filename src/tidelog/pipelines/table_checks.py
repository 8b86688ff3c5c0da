"""The SQL, the columns and the types of a plan, checked by Spark's analyser before Spark starts.

A plan is a list of `Statement`s in the order in which they depend on each other: tables with a schema,
queries that make tables, expressions over a table. What a Python function of a data frame returns nobody
knows before it runs; what depends on it is not checked, and a note says so.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidelog.pipelines.java import CannotRun
from tidelog.pipelines.problems import Findings, Problem, Where
from tidelog.pipelines.run_settings import RunSettings
from tidelog.pipelines.spark_analyser import CannotAnalyse, Column, SparkAnalyser, can_analyse

_HEADERS = "ARRAY<STRUCT<key: STRING, value: BINARY>>"
#: the columns of the source, as pipelines read it
RECORD = (
    Column("key", "BINARY"),
    Column("value", "BINARY"),
    Column("topic", "STRING"),
    Column("partition", "INT"),
    Column("offset", "BIGINT"),
    Column("timestamp", "TIMESTAMP"),
    Column("timestampType", "INT"),
    Column("headers", _HEADERS),
)
RECORD_TEXT = tuple(Column(one.name, "STRING") if one.name in ("key", "value") else one for one in RECORD)
#: beside the fields of a decoded value
RECORD_OWN = tuple(Column(f"_{one.name}", one.type) for one in RECORD if one.name != "value")
TIME_TYPES = ("TIMESTAMP", "TIMESTAMP_NTZ")
#: a session with these may know tables and functions that the analyser does not
_ADDING = ("spark.sql.catalog", "spark.sql.extensions", "spark.jars", "spark.plugins", "spark.sql.warehouse")
#: packages of Maven with file systems: hadoop-aws, hadoop-azure, …
_FILE_SYSTEMS = "org.apache.hadoop:hadoop-"
#: of a catalog that is none
_UNSUPPORTED = "UNSUPPORTED_CALL.WITHOUT_SUGGESTION"
_UNKNOWN_TABLE = "TABLE_OR_VIEW_NOT_FOUND"
_UNKNOWN_COLUMN = "UNRESOLVED_COLUMN"
_NAMED_COLUMN = re.compile(r"with name (?P<name>`[^ ]+`) cannot be resolved")
_SUGGESTED = re.compile(r"`((?:[^`]|`\.`)+)`")
_NAMED_TABLE = re.compile(r"view `(?P<name>[^`]+)` cannot be found")


@dataclass(frozen=True, slots=True)
class Statement:
    """One thing to check: exactly one of `schema`, `sql` and `unknown`."""

    where: Where
    #: in words, before what is wrong
    what: str
    #: the name under which later statements know the result
    table: str | None = None
    schema: str | None = None
    #: columns that go with those of the schema
    columns: tuple[Column, ...] = ()
    sql: str | None = None
    #: what a Python function returns
    unknown: bool = False
    #: types that the one column of the result may have
    types: tuple[str, ...] = ()


def expression(where: Where, what: str, text: str, table: str, types: tuple[str, ...] = ()) -> Statement:
    """An expression over the rows of a table, of one of some types if that matters."""
    return Statement(where, what, sql=f"SELECT {text}\nAS x FROM `{table}`", types=types)


def check_statements(run: RunSettings, statements: Sequence[Statement]) -> Findings:
    """What Spark's analyser finds wrong. Without Spark or Java nothing is checked, and a note says so."""
    if not any(one.schema is not None or one.sql is not None for one in statements):
        return Findings()
    added = [name for name, value in run.spark.items() if _may_add(name, value)]
    if added:
        return Findings(notes=(f"SQL and columns are not checked: {added[0]} may add what only Spark knows",))
    if not can_analyse():
        return Findings(notes=("SQL and columns are not checked: pip install 'tidelog[spark]'",))
    try:
        with SparkAnalyser(run.spark) as analyser:
            return _Analysis(analyser).run(statements)
    except CannotRun as fault:
        return Findings(notes=(f"SQL and columns are not checked: {fault}",))


def _may_add(name: str, value: str) -> bool:
    """Whether a setting of Spark may bring tables or functions; file systems of Hadoop bring neither."""
    if name == "spark.jars.packages":
        return not all(one.strip().startswith(_FILE_SYSTEMS) for one in value.split(","))
    return name.startswith(_ADDING)


class _Analysis:
    def __init__(self, analyser: SparkAnalyser) -> None:
        self._analyser = analyser
        self._tables: dict[str, tuple[Column, ...]] = {}
        #: tables of which nobody knows the columns
        self._unknown: set[str] = set()
        self._problems: list[Problem] = []
        self._unchecked: list[str] = []

    def run(self, statements: Iterable[Statement]) -> Findings:
        for one in statements:
            columns = self._columns(one)
            if one.table is None:
                continue
            if columns is None:
                self._unknown.add(one.table)
            else:
                self._tables[one.table] = columns
        notes: tuple[str, ...] = ()
        if self._unchecked:
            notes = (f"only Spark can check {', '.join(dict.fromkeys(self._unchecked))}",)
        return Findings(tuple(self._problems), notes)

    def _columns(self, one: Statement) -> tuple[Column, ...] | None:
        if one.unknown or any(self._mentions(one.sql, name) for name in self._unknown):
            if not one.unknown:
                self._unchecked.append(one.what)
            return None
        try:
            if one.schema is not None:
                return self._analyser.columns_of(one.schema) + one.columns
            if one.sql is None:
                return one.columns
            columns = self._analyser.analyse(one.sql, self._tables)
        except CannotAnalyse as fault:
            self._tell(one, fault)
            return None
        if one.types and not columns[0].type.upper().startswith(one.types):
            words = " or ".join(one.types)
            self._problems.append(Problem(one.where, f"{one.what} is {columns[0].type}; it must be {words}"))
        return columns

    def _mentions(self, sql: str | None, table: str) -> bool:
        return sql is not None and re.search(rf"\b{re.escape(table)}\b", sql) is not None

    def _tell(self, one: Statement, fault: CannotAnalyse) -> None:
        sentence = str(fault)
        if fault.condition == _UNSUPPORTED:
            if "loadFunction" not in sentence:
                self._unchecked.append(one.what)
                return
            sentence = "it calls a function that Spark does not have"
        elif fault.condition.startswith(_UNKNOWN_TABLE):
            named = _NAMED_TABLE.search(sentence)
            if named is None:
                # A file, or a table of some catalog, which Spark may well find.
                self._unchecked.append(one.what)
                return
            known = ", ".join(self._tables) or "none"
            sentence = f"there is no table {named['name']}; before it there are {known}"
        elif fault.condition.startswith(_UNKNOWN_COLUMN) and (named := _NAMED_COLUMN.search(sentence)):
            near = [one.replace("`", "") for one in _SUGGESTED.findall(sentence.partition("following?")[2])]
            sentence = f"there is no column {named['name'].replace('`', '')}"
            sentence += f"; did you mean {near[0]}?" if near else ""
        self._problems.append(Problem(one.where, f"{one.what}: {sentence}"))
