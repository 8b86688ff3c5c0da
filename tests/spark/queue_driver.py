"""A Spark program that reads a share group, as a process to be killed: notes what each micro-batch had.

    python -m tests.spark.queue_driver BOOTSTRAP TOPIC GROUP FOLDER [SECONDS]

Each micro-batch is a line of JSON in FOLDER/batches: its number and its records, written when it has been
worked on for SECONDS. It runs until everything that is there was read.
"""

import json
import os
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

RUN_SECONDS_MAX = 360


def main() -> None:
    bootstrap, topic, group, name, *more = sys.argv[1:]
    folder, seconds = Path(name), float(more[0]) if more else 0.0
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart", "false")
        .getOrCreate()
    )

    def process(frame: DataFrame, batch: int) -> None:
        found = [int(row.value) for row in frame.select("value").collect()]
        time.sleep(seconds)
        with (folder / "batches").open("a") as output:
            output.write(json.dumps([batch, found]) + "\n")

    query = (
        spark.readStream.format("tidelog")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("share.group", group)
        .option("maxOffsetsPerTrigger", "300")
        .option("minPartitions", "4")
        .load()
        .writeStream.foreachBatch(process)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    if not query.awaitTermination(RUN_SECONDS_MAX):
        sys.exit("the query did not end")


if __name__ == "__main__":
    main()
