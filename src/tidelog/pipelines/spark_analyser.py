"""Spark's own analyser, without a Spark session: are these columns there, and of which types are these.

    with SparkAnalyser({"spark.sql.ansi.enabled": "false"}) as analyser:
        orders = analyser.columns_of("customer STRING, amount DOUBLE")
        analyser.analyse("SELECT customer, amount * 2 AS double FROM orders", {"orders": orders})

A session takes ten seconds to start, most of it for what a question about columns does not need. So a JVM
with Spark's jars is started bare, with one py4j gateway, and Catalyst is used in it as its own tests do: a
parser, a catalog in memory, an analyser. That takes two seconds and says word for word what Spark would say.

Tables are not views of that catalog: each query is analysed behind a WITH that has them as casts of null.
What it cannot know is what a session adds: catalogs, extensions, functions that were registered.
"""

import importlib.util
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tidelog.client.pipeline_places import state_directory
from tidelog.pipelines.java import java_home

_CATALYST = "org.apache.spark.sql.catalyst."
#: for a JVM that loads seven thousand classes, works for half a second and ends
_JAVA_OPTIONS = (
    "-Xshare:auto",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xmx512m",
    # A warning on its output would be read as the gateway's port.
    "-XX:+DisplayVMOutputToStderr",
    # The jars are those that Spark itself will run, and to verify them is a fifth of the time.
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
    # Nobody reads a log here, and Log4j takes half a second to start.
    "-Dslf4j.provider=org.slf4j.helpers.NOP_FallbackServiceProvider",
)
#: where most classes are; a class is looked for in one jar after the other, and there are 280
_FIRST_JARS = ("spark-catalyst_", "spark-sql-api_", "scala-library-", "spark-config_", "antlr4-runtime-")
#: what Spark's launcher opens of Java, as far as expressions need it
_OPENED = ("lang", "lang.invoke", "net", "nio", "time", "util")
_RESULT = "tidelog_result"
#: the user's SQL begins in this line of what is analysed
_FIRST_LINE = 2
_PLACE = re.compile(r"\(?;? ?\(?line (?P<line>\d+),? pos (?P<position>\d+)\)?")
_STATE = re.compile(r" *SQLSTATE: *\w+;?")
_CLASS = re.compile(r"^\s*\[(?P<name>[A-Z0-9_.]+)\]\s*")


class Column(NamedTuple):
    """A column of a table, its type in Spark's SQL."""

    name: str
    type: str


class CannotAnalyse(Exception):
    """Spark refuses a query; the text is one sentence of Spark's, without its plan."""

    def __init__(self, sentence: str, condition: str = "") -> None:
        super().__init__(sentence)
        #: Spark's name for what is wrong, such as UNRESOLVED_COLUMN.WITH_SUGGESTION
        self.condition = condition


def can_analyse() -> bool:
    """Whether Spark is installed here."""
    return importlib.util.find_spec("pyspark") is not None


class SparkAnalyser:
    """A JVM with Spark's analyser in it; a context manager. Raises CannotRun without Java."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self._settings = settings or {}
        self._gateway: Any = None
        self._parser: Any = None
        self._analyser: Any = None

    def __enter__(self) -> "SparkAnalyser":
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

        home = java_home(os.environ, state_directory()) or os.environ.get("JAVA_HOME")
        spec = importlib.util.find_spec("pyspark")
        assert spec is not None and spec.origin is not None, "ask can_analyse first"
        port, secret = launch_gateway(
            classpath=_classpath(Path(spec.origin).parent / "jars"),
            javaopts=[
                *_JAVA_OPTIONS,
                *(f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in _OPENED),
            ],
            java_path=str(Path(home) / "bin" / "java") if home else "java",
            die_on_exit=True,
            enable_auth=True,
        )
        self._gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=secret))
        try:
            self._prepare()
        except BaseException:
            self._gateway.shutdown()
            raise
        return self

    def _prepare(self) -> None:
        jvm = self._gateway.jvm
        catalyst = jvm.org.apache.spark.sql.catalyst
        self._parser = self._object(_CATALYST + "parser.CatalystSqlParser")
        conf = self._object("org.apache.spark.sql.internal.SQLConf").get()
        for name, value in self._settings.items():
            if name.startswith("spark.sql."):
                conf.setConfString(name, value)
        stored = catalyst.catalog.InMemoryCatalog(
            jvm.org.apache.spark.SparkConf(False), jvm.org.apache.hadoop.conf.Configuration()
        )
        functions = self._object(_CATALYST + "analysis.FunctionRegistry").builtin()
        table_functions = self._object(_CATALYST + "analysis.TableFunctionRegistry").builtin()
        catalog = catalyst.catalog.SessionCatalog(stored, functions, table_functions)
        self._analyser = catalyst.analysis.Analyzer(catalog)

    def __exit__(self, *_: object) -> None:
        self._gateway.shutdown()

    def _object(self, name: str) -> Any:
        """A singleton of Scala."""
        return self._gateway.jvm.java.lang.Class.forName(f"{name}$").getField("MODULE$").get(None)

    def columns_of(self, schema: str) -> tuple[Column, ...]:
        """The columns that a schema in Spark's words has; raises CannotAnalyse."""
        with _explained():
            return _columns(self._parser.parseTableSchema(schema))

    def analyse(self, query: str, tables: Mapping[str, Sequence[Column]]) -> tuple[Column, ...]:
        """The columns of a query's result; raises CannotAnalyse."""
        with _explained():
            self._parser.parsePlan(query)
        parts = [f"`{name}` AS ({_nothing(columns)})" for name, columns in tables.items()]
        text = f"WITH {', '.join([*parts, f'{_RESULT} AS ('])}\n{query}\n) SELECT * FROM {_RESULT}"
        with _explained(_FIRST_LINE - 1):
            plan = self._analyser.execute(self._parser.parsePlan(text))
            self._analyser.checkAnalysis(plan)
            return _columns(plan.schema())


def _classpath(jars: Path) -> str:
    """All jars of Spark; what a version does not have is left out."""
    first = (str(one) for name in _FIRST_JARS for one in jars.glob(f"{name}*.jar"))
    return os.pathsep.join([*first, str(jars / "*")])


def _nothing(columns: Sequence[Column]) -> str:
    """A query that has these columns."""
    return "SELECT " + ", ".join(f"CAST(NULL AS {one.type}) AS {quoted(one.name)}" for one in columns)


def quoted(name: str) -> str:
    """A column's name in SQL."""
    return "`" + name.replace("`", "``") + "`"


def _columns(schema: Any) -> tuple[Column, ...]:
    return tuple(Column(str(field.name()), str(field.dataType().sql())) for field in schema.fields())


@contextmanager
def _explained(lines_before: int = 0) -> Iterator[None]:
    """Turn Spark's exceptions into CannotAnalyse; `lines_before` are not the user's."""
    from py4j import java_gateway, protocol

    # A session of this process has exceptions of every gateway looked up in its own JVM: not those of here.
    before = java_gateway.get_return_value
    java_gateway.get_return_value = protocol.get_return_value
    try:
        yield
    except protocol.Py4JJavaError as fault:
        text = str(fault.java_exception.getMessage() or fault.java_exception.toString())
        raise CannotAnalyse(*spark_sentence(text, lines_before)) from None
    finally:
        java_gateway.get_return_value = before


def spark_sentence(text: str, lines_before: int = 0) -> tuple[str, str]:
    """What Spark says of a mistake as one sentence, and Spark's name for it."""
    said = []
    for line in text.partition("\n\nJVM stacktrace")[0].strip().splitlines():
        if line.lstrip().startswith(("'", "+-", "== SQL", "at ")):
            break
        said.append(line.strip())
    whole = " ".join(filter(None, said))
    named = _CLASS.match(whole)
    place = _PLACE.search(text)
    sentence = _STATE.sub("", _PLACE.sub("", whole if named is None else whole[named.end() :]))
    sentence = re.sub(r"\s+([.;,])", r"\1", sentence).strip().rstrip(";.").strip()
    number = 0 if place is None else int(place["line"]) - lines_before
    if number > 1:
        sentence += f" (line {number} of the SQL)"
    return sentence, "" if named is None else named["name"]
