"""The Spark session of a pipeline, with the settings it needs, and a clear word when Spark cannot run."""

import importlib.util
import logging
import os
import sys
from typing import Any

from tidelog.client.pipeline_places import state_directory
from tidelog.pipelines.java import WITHOUT_SPARK, CannotRun, java_home
from tidelog.pipelines.python_files import neighbours_zip
from tidelog.pipelines.run_settings import RunSettings
from tidelog.pipelines.spark_cluster import is_local, prepare_cluster
from tidelog.pipelines.spark_versions import check_spark

#: what a file may set otherwise
DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Rates, state and watermark of queries in Spark's own metrics; they cost a few gauges.
    "spark.sql.streaming.metricsEnabled": "true",
    # 200 tasks for a shuffle take a minute on a small machine.
    "spark.sql.shuffle.partitions": "4",
    # Arrays (headers) go to Python in quadratic time otherwise.
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state."
    "RocksDBStateStoreProvider",
    # Killed while it wrote its first offsets, a query leaves a temporary file. Spark 4.3 then takes the
    # checkpoint for another query's and never starts again; whose it is, `begun_with` knows better.
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
}
#: the driver's log: what fails is told as one sentence, and is whole in the status of the pipeline
LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%xEx{3}%n
"""
#: these say once more, with stacks, what the pipeline says when it ends
TOLD_OTHERWISE = (
    "org.apache.spark.sql.execution.streaming",
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.datasources.v2",
    "org.apache.spark.api.python.PythonRunner",
    "org.apache.spark.util.Utils",
)
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"


def check_environment() -> None:
    """Raise CannotRun with what to install when Spark or Java is missing; choose the Java."""
    if importlib.util.find_spec("pyspark") is None:
        raise CannotRun(WITHOUT_SPARK)
    check_spark()
    home = java_home(os.environ, state_directory())
    if home is not None:
        os.environ["JAVA_HOME"] = home


def open_session(run: RunSettings) -> Any:
    """A session for the pipeline, here or on a cluster, which gets what it needs; raises CannotRun.

    The pipeline is planned by then: what its Python files have imported from beside them goes along.
    """
    check_environment()
    from pyspark.sql import SparkSession

    # Python's side of Spark logs every exception as a line of JSON, those that are handled too.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    builder = SparkSession.builder.master(run.master).appName(f"tidelog {run.name}")
    settings = {**DEFAULTS, **run.spark}
    if is_local(run.master):
        # Workers of this machine run the same Python, whether or not its environment is activated.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        settings.setdefault("spark.driver.host", "127.0.0.1")
        warehouse = state_directory() / run.name / "warehouse"
        settings.setdefault("spark.sql.warehouse.dir", str(warehouse))
    else:
        settings = prepare_cluster(run, settings, os.environ, state_directory())
    if "log4j" not in settings.get(_JAVA_OPTIONS, "") and "spark.log.level" not in settings:
        settings[_JAVA_OPTIONS] = f"{_quiet_log()} {settings.get(_JAVA_OPTIONS, '')}".strip()
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    imported = neighbours_zip(state_directory() / run.name / "imported.zip")
    if imported is not None:
        spark.sparkContext.addPyFile(str(imported))
    return spark


def _quiet_log() -> str:
    """The option for Java that has the driver log what nobody says otherwise."""
    path = state_directory() / "log4j2.properties"
    quiet = "".join(
        f"logger.n{number}.name = {name}\nlogger.n{number}.level = off\n"
        for number, name in enumerate(TOLD_OTHERWISE)
    )
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    waiting = path.with_name(f".{path.name}-{os.getpid()}")
    waiting.write_text(LOGGING + quiet)
    waiting.replace(path)
    return f"-Dlog4j2.configurationFile={path.as_uri()}"
