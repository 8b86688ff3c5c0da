"""A micro-batch that takes longer than its transactions may last: exactly once, and who waits for how long.

On a broker of its own, or on whatever TIDELOG_TEST_BOOTSTRAP names: Apache Kafka, for example.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.patient_runs import run_to_its_end
from tidelog.client.client_settings import READ_COMMITTED, READ_UNCOMMITTED, ClientSettings
from tidelog.client.cluster import LATEST, Cluster
from tidelog.client.transactional_writer import open_transactions
from tidelog.model.identifiers import TopicPartition

TIMEOUT_MS = 5_000
#: how often brokers look for transactions whose time is over
BROKER_LOOKS_MS = 10_000
#: what a machine under load may add
GRACE_SECONDS = 3.0
#: of tasks that are done at once, and of tasks that go on for more than three timeouts
QUICK_SECONDS, SLOW_SECONDS = 0.0, 3.4 * TIMEOUT_MS / 1000
PARTITIONS = 4
RECORDS = 2_000
PADDING_BYTES = 2_000
SECONDS_MAX = 200

pytestmark = pytest.mark.timeout(400)


class Reader(threading.Thread):
    """How long readers with read_committed wait for records that are in the log."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._settings = ClientSettings.from_options({"bootstrap.servers": bootstrap})
        self._places = dict.fromkeys([TopicPartition(topic, number) for number in range(PARTITIONS)], LATEST)
        self._stopping = threading.Event()
        self.longest_seconds = 0.0

    def run(self) -> None:
        #: since when readers stand before this offset
        waiting: dict[TopicPartition, tuple[int, float]] = {}
        with Cluster(self._settings) as cluster:
            while not self._stopping.wait(0.05):
                now = time.monotonic()
                stable = cluster.list_offsets(self._places, READ_COMMITTED)
                for place, end in cluster.list_offsets(self._places, READ_UNCOMMITTED).items():
                    offset = stable[place].offset
                    if offset >= end.offset:
                        waiting.pop(place, None)
                        continue
                    if waiting.get(place, (-1, 0.0))[0] != offset:
                        waiting[place] = (offset, now)
                    self.longest_seconds = max(self.longest_seconds, now - waiting[place][1])

    def stop(self) -> None:
        self._stopping.set()
        self.join()


def slowly(quick_partitions: int) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """A step of a plan whose tasks take their time, all along, but for the first few."""

    def step(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        rows = [batch for batch in batches if batch.num_rows]
        count = sum(batch.num_rows for batch in rows)
        pieces = 20
        pause = QUICK_SECONDS if context.partitionId() < quick_partitions else SLOW_SECONDS / pieces
        for batch in rows:
            size = -(-batch.num_rows // pieces)
            for start in range(0, batch.num_rows, size):
                time.sleep(pause * batch.num_rows / count)
                yield batch.slice(start, size)

    return step


@pytest.mark.parametrize("kind", ["stream", "job"])
def test_a_batch_that_takes_more_than_three_timeouts(
    spark: Any,
    bootstrap: str,
    make_topic: Callable[..., str],
    fill: Callable[..., None],
    tmp_path: Path,
    kind: str,
) -> None:
    source, target = make_topic(PARTITIONS), make_topic(PARTITIONS)
    fill(source, range(RECORDS), PARTITIONS)
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": source, "startingOffsets": "earliest"}
    frame = (spark.readStream if kind == "stream" else spark.read).format("tidelog").options(**options).load()
    padded = frame.selectExpr("key", f"concat(CAST(value AS STRING), repeat('x', {PADDING_BYTES})) AS value")
    # Two tasks are done at once, and wait for the others with their transactions open; two take long.
    slow = padded.mapInArrow(slowly(quick_partitions=2), padded.schema)
    chosen = {
        "kafka.bootstrap.servers": bootstrap,
        "topic": target,
        "kafka.transaction.timeout.ms": str(TIMEOUT_MS),
    }
    began = time.monotonic()
    reader = Reader(bootstrap, target)
    reader.start()
    if kind == "stream":
        writer = slow.writeStream.format("tidelog").options(**chosen)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = run_to_its_end(writer.trigger(availableNow=True), SECONDS_MAX)
        assert [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]] == [RECORDS]
    else:
        slow.write.format("tidelog").options(**chosen).mode("append").save()
    seconds = time.monotonic() - began
    reader.stop()
    print(f"\n{kind}: the batch took {seconds:.1f} s, readers waited {reader.longest_seconds:.1f} s at most")
    assert seconds > 3 * TIMEOUT_MS / 1000
    assert reader.longest_seconds < (TIMEOUT_MS + BROKER_LOOKS_MS) / 1000 + GRACE_SECONDS
    found = (
        spark.read.format("tidelog")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", target)
        .load()
        .selectExpr("CAST(key AS STRING) AS key", "rtrim('x', CAST(value AS STRING)) AS value")
        .collect()
    )
    assert Counter((row.key, row.value) for row in found) == Counter(
        (str(number), str(number)) for number in range(RECORDS)
    )
    with Cluster(ClientSettings.from_options({"bootstrap.servers": bootstrap})) as cluster:
        assert open_transactions(cluster, "") == []
