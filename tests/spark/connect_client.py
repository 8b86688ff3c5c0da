"""A program of Spark Connect: no JVM of its own, only the server's address. Says what it found as JSON.

python -m tests.spark.connect_client sc://127.0.0.1:15002 '{"bootstrap": …, "topic": …, …}'
"""

import json
import sys
from collections.abc import Callable
from typing import Any

from pyspark.sql.connect.session import SparkSession

from tests.spark.patient_runs import run_to_its_end

SECONDS_MAX = 120


def batches(spark: SparkSession, given: dict[str, Any]) -> Any:
    """Topics read at once, filtered on the server, and written to another."""
    frame = _read(spark.read, given, includeHeaders="true")
    frame.where("CAST(CAST(value AS STRING) AS INT) >= 900").select("key", "value").write.format(
        "tidelog"
    ).mode("append").options(**_target(given)).save()
    return {
        "columns": frame.columns,
        "count": frame.count(),
        "some": [row.key.decode() for row in frame.where("offset < 2").orderBy("value").collect()],
    }


def stream(spark: SparkSession, given: dict[str, Any]) -> Any:
    """A topic into another, exactly once; a second start goes on."""
    for _ in range(2):
        frame = _read(spark.readStream, given, startingOffsets="earliest", maxOffsetsPerTrigger="400")
        writer = frame.select("key", "value").writeStream.format("tidelog").options(**_target(given))
        _run(writer, given)


def states(spark: SparkSession, given: dict[str, Any]) -> Any:
    """Counts that change, through `foreachBatch`; the function runs on the server. `name` names the query."""
    from tidelog.pipelines.foreach_batch import to_topic

    target = _target(given)
    if "name" in given:
        target["txnAppId"] = given["name"]
    frame = _read(spark.readStream, given, startingOffsets="earliest")
    counts = frame.selectExpr("CAST(CAST(value AS STRING) AS INT) % 3 AS rest").groupBy("rest").count()
    records = counts.selectExpr("CAST(rest AS STRING) AS key", "CAST(count AS STRING) AS value")
    _run(records.writeStream.outputMode("update").foreachBatch(to_topic(target)), given)


def _read(reader: Any, given: dict[str, Any], **options: str) -> Any:
    chosen = {"kafka.bootstrap.servers": given["bootstrap"], "subscribe": given["topic"], **options}
    return reader.format("tidelog").options(**chosen).load()


def _target(given: dict[str, Any]) -> dict[str, str]:
    return {"kafka.bootstrap.servers": given["bootstrap"], "topic": given["out"]}


def _run(writer: Any, given: dict[str, Any]) -> None:
    """Until it has done what is there."""
    writer = writer.option("checkpointLocation", given["checkpoint"]).trigger(availableNow=True)
    run_to_its_end(writer, SECONDS_MAX)


def main() -> None:
    address, what, text = sys.argv[1:]
    programs: dict[str, Callable[[SparkSession, dict[str, Any]], Any]] = {
        "batches": batches,
        "stream": stream,
        "states": states,
    }
    spark = SparkSession.builder.remote(address).create()
    try:
        print(json.dumps(programs[what](spark, json.loads(text))))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
