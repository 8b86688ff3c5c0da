"""The Spark session of a pipeline, with the settings it needs, and a clear word when Spark cannot run."""

import importlib.util
import os
import sys
from typing import Any

from tidelog.client.pipeline_places import state_directory
from tidelog.pipelines.java import WITHOUT_SPARK, CannotRun, java_home
from tidelog.pipelines.run_settings import RunSettings

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
    """A session for the pipeline; raises CannotRun."""
    check_environment()
    # Workers of this machine run the same Python, whether or not its environment is activated.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(run.master).appName(f"tidelog {run.name}")
    settings = {**DEFAULTS, **run.spark}
    if run.master.startswith("local"):
        settings.setdefault("spark.driver.host", "127.0.0.1")
        warehouse = state_directory() / run.name / "warehouse"
        settings.setdefault("spark.sql.warehouse.dir", str(warehouse))
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
