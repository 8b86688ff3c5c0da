"""What Spark's driver does with a query over a share group, without Spark, as a process to be killed.

    python -m tests.chaos.queue_query BOOTSTRAP TOPIC GROUP FOLDER SECONDS

FOLDER/log has what Spark has in its checkpoint, and what was processed, as lines of JSON in this order:

    ["planned", OFFSET]            the offset of a micro-batch, before it runs
    ["processed", BATCH, NUMBERS]  its records, after SECONDS of work
    ["committed", BATCH]

A micro-batch that was planned and not committed runs again first. It ends when what was there has been read.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from tidelog.client.cluster import Cluster
from tidelog.pipelines.queue_batches import QueueBatches
from tidelog.pipelines.queue_records import read_spans
from tidelog.pipelines.source_options import SourceOptions


class Query:
    """One life of the driver."""

    def __init__(self, options: SourceOptions, log: Path, seconds: float) -> None:
        self.options, self.log, self.seconds = options, log, seconds
        self.batches = QueueBatches(options, Cluster(options.client))

    def note(self, *words: Any) -> None:
        with self.log.open("a") as output:
            output.write(json.dumps(words) + "\n")

    def run(self) -> None:
        lines = [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []
        planned = [line[1] for line in lines if line[0] == "planned"]
        committed = {line[1] for line in lines if line[0] == "committed"}
        self.batches.stop_at_present()
        start = planned[-1] if planned else self.batches.initial()
        if planned and start["batch"] not in committed:
            self.process(start)
        while (end := self.batches.next_end(start, limited=True)) != start:
            self.note("planned", end)
            self.process(end)
            start = end
        self.batches.close()

    def process(self, end: dict[str, Any]) -> None:
        numbers = [
            int(value)
            for task in self.batches.tasks(end)
            for batch in read_spans(self.options, task)
            for value in batch.column("value").to_pylist()
        ]
        time.sleep(self.seconds)
        self.note("processed", end["batch"], numbers)
        self.note("committed", end["batch"])


def main() -> None:
    bootstrap, topic, group, folder, seconds = sys.argv[1:]
    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "share.group": group}
    given |= {"maxOffsetsPerTrigger": "200", "minPartitions": "3"}
    options = SourceOptions.read(given, streaming=True)
    Query(options, Path(folder) / "log", float(seconds)).run()


if __name__ == "__main__":
    main()
