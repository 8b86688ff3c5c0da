"""The pipeline: orders → totals per five minutes and country → a topic, exactly once, and Parquet files.

Nothing here knows that it is a demonstration: the same lines read from and write to any cluster that speaks
the Kafka protocol. The windows are of event time, the moment of the order. A window is written once, when the
watermark says that nothing more can come for it.
"""

import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

ORDERS_TOPIC, TOTALS_TOPIC = "orders", "totals"
ORDER_SCHEMA = (
    "order BIGINT, customer STRING, country STRING, product STRING, quantity INT,"
    " amount_cents BIGINT, ordered_at TIMESTAMP"
)
WATERMARK, WINDOW = "10 minutes", "5 minutes"
TRIGGER = "2 seconds"


def spark_session(folder: Path) -> SparkSession:
    """A Spark for two cores."""
    # Workers run the same Python, whether or not its environment is activated.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark: SparkSession = (
        SparkSession.builder.master("local[2]")
        .appName("tidelog-demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def end_session(spark: SparkSession) -> None:
    """Stop Spark and wait until its Java has ended, so that nothing is left behind."""
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(30)


def added_up(orders: DataFrame) -> DataFrame:
    """Orders, of a stream or of a table, added up per window and country."""
    return (
        orders.groupBy(F.window("ordered_at", WINDOW).alias("window"), "country")
        .agg(
            F.count("*").alias("orders"),
            F.sum("quantity").alias("items"),
            F.sum("amount_cents").alias("revenue_cents"),
        )
        .selectExpr("window.start AS window_start", "country", "orders", "items", "revenue_cents")
    )


def totals(spark: SparkSession, bootstrap: str) -> DataFrame:
    """The totals of the orders in the topic, as they come."""
    orders = (
        spark.readStream.format("tidelog")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", ORDERS_TOPIC)
        .option("startingOffsets", "earliest")
        .load()
        .select(F.from_json(F.col("value").cast("string"), ORDER_SCHEMA).alias("order"))
        .select("order.*")
        .withWatermark("ordered_at", WATERMARK)
    )
    return added_up(orders)


def to_topic(frame: DataFrame, bootstrap: str, folder: Path) -> Any:
    """Start the query that writes to the topic; exactly once is what the sink does unless told otherwise."""
    return (
        frame.selectExpr("country AS key", "to_json(struct(*)) AS value")
        .writeStream.format("tidelog")
        .queryName("to topic")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", TOTALS_TOPIC)
        .option("checkpointLocation", str(folder / "checkpoint-topic"))
        .trigger(processingTime=TRIGGER)
        .start()
    )


def to_parquet(frame: DataFrame, folder: Path) -> Any:
    """Start the query that writes to files, one folder per country."""
    return (
        frame.writeStream.format("parquet")
        .queryName("to Parquet")
        .partitionBy("country")
        .option("path", str(folder / "totals.parquet"))
        .option("checkpointLocation", str(folder / "checkpoint-parquet"))
        .trigger(processingTime=TRIGGER)
        .start()
    )


def read_parquet(spark: SparkSession, files: Path) -> list[Any]:
    """The totals in files, window_start in seconds since 1970."""
    frame = spark.read.parquet(str(files))
    columns = ("unix_seconds(window_start) AS window_start", "country", "orders", "items", "revenue_cents")
    return list(frame.selectExpr(*columns).collect())


def rows_read(query: Any) -> int:
    """How many orders a query has read so far."""
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def watermark_of(query: Any) -> datetime | None:
    """Up to where the windows of a query are written; None before the first order."""
    progress = query.lastProgress
    if progress is None or "watermark" not in progress["eventTime"]:
        return None
    return datetime.fromisoformat(progress["eventTime"]["watermark"])
