"""The Spark session of a pipeline, with the settings it needs, and a clear word when Spark cannot run."""

import importlib.util
import os
import sys
from typing import Any

from tidelog.client.pipeline_places import state_directory
from tidelog.pipelines.java import WITHOUT_SPARK, CannotRun, java_home
from tidelog.pipelines.python_files import neighbours_zip
from tidelog.pipelines.run_settings import RunSettings
from tidelog.pipelines.spark_cluster import is_local, prepare_cluster

#: what a file may set otherwise
DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # 200 tasks for a shuffle take a minute on a small machine.
    "spark.sql.shuffle.partitions": "4",
    # Arrays (headers) go to Python in quadratic time otherwise.
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state."
    "RocksDBStateStoreProvider",
    # Killed while it wrote its first offsets, a query leaves a temporary file. Spark 4.3 then takes the
    # checkpoint for another query's and never starts again; whose it is, `begun_with` knows better.
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
    "spark.log.level": "ERROR",
}


def check_environment() -> None:
    """Raise CannotRun with what to install when Spark or Java is missing; choose the Java."""
    if importlib.util.find_spec("pyspark") is None:
        raise CannotRun(WITHOUT_SPARK)
    home = java_home(os.environ, state_directory())
    if home is not None:
        os.environ["JAVA_HOME"] = home


def open_session(run: RunSettings) -> Any:
    """A session for the pipeline, here or on a cluster, which gets what it needs; raises CannotRun.

    The pipeline is planned by then: what its Python files have imported from beside them goes along.
    """
    check_environment()
    from pyspark.sql import SparkSession

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
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    imported = neighbours_zip(state_directory() / run.name / "imported.zip")
    if imported is not None:
        spark.sparkContext.addPyFile(str(imported))
    return spark
