"""Topic → Spark → topic under faults: does every record come out once?

    python tests/spark/exactly_once_spark.py run --records 200000 --driver-kills 3 --broker-kills 1 --seed 7
    python tests/spark/exactly_once_spark.py run --records 1000000 --runs 10
    python tests/spark/exactly_once_spark.py run --delivery at_least_once          # shows duplicates

The query is a process of its own (`drive`), started again from its checkpoint until it has read everything.
Faults, all from one seed:
- tasks whose first attempt fails when part of its rows has been handed on (`--task-failures`, a probability);
- SIGKILL of the driver with everything it started, or of Spark's JVM alone, which leaves Python workers
  behind that go on writing for a while. It strikes at a phase that is seen from outside, in the offsets of
  the commit log: a decision being written (1), decided but not all ended (2), or at any time (0);
- SIGKILL of a broker, which comes back two seconds later.

The judge reads the output with read_committed and compares it with the input: numbers that are missing,
numbers that come more than once, and values that are not the input's.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tidelog.client.client_settings import READ_UNCOMMITTED, ClientSettings
from tidelog.client.cluster import LATEST, Cluster
from tidelog.client.faults import ClientFault
from tidelog.client.partition_reader import PartitionReader
from tidelog.client.produce_requests import BatchToSend
from tidelog.client.transactional_writer import TransactionalWriter, init_producer, open_transactions
from tidelog.model.identifiers import TopicPartition
from tidelog.pipelines.commit_protocol import COMMIT_LOG_TOPIC
from tidelog.pipelines.record_batches import Rows, Stamp, choose_partitions, encode_batches
from tidelog.pipelines.record_columns import AbortedTransaction, decode
from tidelog.testing.cluster import RunningCluster

PARTITIONS = 4
INPUT, OUTPUT = "numbers", "copies"
VALUE_BYTES = 100
ANY_TIME, WRITING, DECIDED = 0, 1, 2
#: offsets that a commit takes in the log: the decision, its marker, the done mark
OFFSETS_PER_COMMIT = 3
RUN_SECONDS_MAX = 1_500
DRIVER_SECONDS_MAX = 400


@dataclass
class Verdict:
    """What the judge found, and what was done to the query."""

    delivery: str
    records: int
    seed: int
    missing: int = 0
    duplicated: int = 0
    wrong: int = 0
    seconds: float = 0.0
    driver_starts: int = 0
    left_open: int = 0
    faults: dict[str, int] = field(default_factory=dict)

    @property
    def exact(self) -> bool:
        return not (self.missing or self.duplicated or self.wrong)


def value_of(number: int) -> bytes:
    return (b"%d:" % number).ljust(VALUE_BYTES, b"x")


def settings_of(bootstrap: str, isolation: str = "read_committed") -> ClientSettings:
    return ClientSettings.from_options({"bootstrap.servers": bootstrap, "isolation.level": isolation})


def fill(bootstrap: str, records: int) -> None:
    """Write the numbers, each once."""
    with Cluster(settings_of(bootstrap)) as cluster:
        producer = init_producer(cluster, None)
        writer = TransactionalWriter(cluster, producer)
        sequences: dict[int, int] = {}
        for start in range(0, records, 50_000):
            numbers = range(start, min(records, start + 50_000))
            keys = pa.array([b"%d" % number for number in numbers])
            values = pa.array([value_of(number) for number in numbers])
            # of now: retention takes what is old
            rows = Rows(keys, values, np.full(len(keys), int(time.time() * 1000), dtype=np.int64))
            partitions = choose_partitions(keys, PARTITIONS, 0)
            stamp = Stamp(producer.producer_id, producer.producer_epoch)
            batches = encode_batches(rows, partitions, sequences, stamp, batch_bytes=128 << 10)
            writer.send([BatchToSend(INPUT, batch.partition, batch.data) for batch in batches])
        writer.flush()


def judge(bootstrap: str, verdict: Verdict) -> None:
    """Read the output and compare."""
    counts = np.zeros(verdict.records, dtype=np.int64)
    with Cluster(settings_of(bootstrap)) as cluster:
        verdict.left_open = len(open_transactions(cluster, ""))
        places = [TopicPartition(OUTPUT, partition) for partition in range(PARTITIONS)]
        for place, listed in cluster.list_offsets(dict.fromkeys(places, LATEST)).items():
            offset = 0
            for piece in PartitionReader(cluster, place).slices(0, listed.offset, 60_000):
                aborted = [AbortedTransaction(*one) for one in piece.aborted or ()]
                columns, offset = decode(piece.records, offset, listed.offset, aborted=aborted)
                for key, value in zip(columns.keys.to_pylist(), columns.values.to_pylist(), strict=True):
                    number = int(key)
                    if value != value_of(number):
                        verdict.wrong += 1
                    counts[number] += 1
    verdict.missing = int((counts == 0).sum())
    verdict.duplicated = int(np.maximum(counts - 1, 0).sum())


# ---------------------------------------------------------------- the query


def failing_tasks(probability: float, seed: int) -> Any:
    """A step that hands rows on and, in some first attempts, fails in the middle."""

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        lot = random.Random(f"{seed} {batch_id} {context.partitionId()}").random()
        fails = context.attemptNumber() == 0 and lot < probability
        for number, batch in enumerate(batches):
            if fails and number:
                raise RuntimeError("this task was chosen to fail")
            if fails and batch.num_rows > 1:
                yield batch.slice(0, batch.num_rows // 2)
                raise RuntimeError("this task was chosen to fail")
            yield batch

    return step


def drive(arguments: argparse.Namespace) -> None:
    """The driver process: copy until everything that was there at the start is copied."""
    # Workers run the same Python, whether or not its environment is activated.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    source = (
        spark.readStream.format("tidelog")
        .option("kafka.bootstrap.servers", arguments.bootstrap)
        .option("subscribe", INPUT)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(arguments.records_per_batch))
        .load()
        .select("key", "value")
    )
    if arguments.task_failures:
        step = failing_tasks(arguments.task_failures, arguments.seed)
        source = source.mapInArrow(step, source.schema)
    query = (
        source.writeStream.format("tidelog")
        .option("kafka.bootstrap.servers", arguments.bootstrap)
        .option("topic", OUTPUT)
        .option("delivery", arguments.delivery)
        .option("checkpointLocation", arguments.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


class Driver:
    """The driver as a process group of its own."""

    def __init__(self, command: list[str], log: Path) -> None:
        with log.open("ab") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)

    def kill(self, *, jvm_alone: bool) -> None:
        """SIGKILL; the group is the driver and its JVM, while Python workers have a group of their own."""
        if jvm_alone:
            for child in _children(self.process.pid):
                if "java" in _command_of(child):
                    os.kill(child, signal.SIGKILL)
            try:
                self.process.wait(10)
                return
            except subprocess.TimeoutExpired:
                pass
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _children(process_id: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == process_id:
            child = int(path.parent.name)
            found += [child, *_children(child)]
    return found


def _command_of(process_id: int) -> str:
    try:
        return Path(f"/proc/{process_id}/cmdline").read_bytes().split(b"\0")[0].decode()
    except OSError:
        return ""


# ---------------------------------------------------------------- faults


class Watch:
    """Looks at the ends of the commit log and of the output, as often as it can."""

    def __init__(self, bootstrap: str) -> None:
        self._cluster = Cluster(settings_of(bootstrap, "read_uncommitted"))
        self._places: dict[str, list[TopicPartition]] = {}

    def close(self) -> None:
        self._cluster.close()

    def sum_of(self, topic: str) -> int:
        if topic not in self._places:
            found = self._cluster.topics([topic])
            if topic not in found:
                return 0
            self._places[topic] = [TopicPartition(topic, one.partition) for one in found[topic].partitions]
        listed = self._cluster.list_offsets(dict.fromkeys(self._places[topic], LATEST), READ_UNCOMMITTED)
        return sum(one.offset for one in listed.values())

    def wait(self, driver: Driver, phase: int, delivery: str, delay_seconds: float) -> str | None:
        """Wait for progress and then for the phase; None when the driver ends before."""
        topic = COMMIT_LOG_TOPIC if delivery == "exactly_once" else OUTPUT
        deadline = time.monotonic() + DRIVER_SECONDS_MAX
        start = self._sum_or_none(topic)
        while time.monotonic() < deadline and driver.process.poll() is None:
            now = self._sum_or_none(topic)
            if now is None or start is None:
                start = now
                continue
            if topic == OUTPUT or phase == ANY_TIME:
                if now > start:
                    time.sleep(delay_seconds)
                    return "any time"
            elif now > start and now % OFFSETS_PER_COMMIT == phase:
                return "decision being written" if phase == WRITING else "decided, not ended"
            time.sleep(0.05 if phase == ANY_TIME else 0.002)
        return None

    def _sum_or_none(self, topic: str) -> int | None:
        try:
            return self.sum_of(topic)
        except ClientFault:
            return None


def run(arguments: argparse.Namespace, seed: int) -> Verdict:
    """One query from the first record to the last, with faults on the way."""
    choose = random.Random(seed)
    verdict = Verdict(arguments.delivery, arguments.records, seed)
    faults: Counter[str] = Counter()
    started = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="tidelog-exactly-once-") as folder,
        RunningCluster(arguments.brokers) as cluster,
    ):
        for topic in (INPUT, OUTPUT):
            cluster.create_topic(topic, partitions=PARTITIONS)
        fill(cluster.bootstrap, arguments.records)
        log = Path(arguments.log or f"{folder}/driver.log")
        command = [
            *(sys.executable, __file__, "drive", "--bootstrap", cluster.bootstrap),
            *("--checkpoint", f"{folder}/checkpoint", "--delivery", arguments.delivery),
            *("--records-per-batch", str(arguments.records_per_batch), "--seed", str(seed)),
            *("--task-failures", str(arguments.task_failures)),
        ]
        kills, broker_kills = arguments.driver_kills, arguments.broker_kills
        watch = Watch(cluster.bootstrap)
        while True:
            verdict.driver_starts += 1
            driver = Driver(command, log)
            try:
                if broker_kills:
                    broker_kills -= _kill_a_broker(cluster, choose, faults, watch, driver, arguments)
                if kills:
                    phase = choose.choice((ANY_TIME, WRITING, DECIDED))
                    seen = watch.wait(driver, phase, arguments.delivery, choose.uniform(0, 1.5))
                    if seen is not None:
                        kills -= 1
                        jvm_alone = choose.random() < 0.5
                        driver.kill(jvm_alone=jvm_alone)
                        faults[f"driver killed: {seen}{', workers left' if jvm_alone else ''}"] += 1
                        continue
                code = driver.process.wait(DRIVER_SECONDS_MAX)
            finally:
                if driver.process.poll() is None:
                    driver.kill(jvm_alone=False)
            if code == 0:
                break
            faults["driver failed and was started again"] += 1
            if time.monotonic() - started > RUN_SECONDS_MAX:
                raise TimeoutError(f"the query does not end; the last of {log}:\n{_tail(log)}")
        watch.close()
        cluster.wait_in_sync()
        judge(cluster.bootstrap, verdict)
        faults["task attempts failed"] = log.read_bytes().count(b"Exception in task")
    verdict.faults = {name: count for name, count in faults.items() if count > 0}
    verdict.seconds = round(time.monotonic() - started, 1)
    return verdict


def _kill_a_broker(
    cluster: RunningCluster,
    choose: random.Random,
    faults: Counter[str],
    watch: Watch,
    driver: Driver,
    arguments: argparse.Namespace,
) -> int:
    """Kill a broker when the query has begun to write; it comes back two seconds later."""
    if watch.wait(driver, ANY_TIME, arguments.delivery, choose.uniform(0, 1)) is None:
        return 0
    broker_id = choose.choice(cluster.broker_ids)
    cluster.kill(broker_id)
    timer = threading.Timer(2.0, lambda: cluster.start(broker_id))
    timer.start()
    timer.join()
    faults["broker killed"] += 1
    return 1


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-3_000:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("command", choices=("run", "drive"))
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--records-per-batch", type=int, default=25_000)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--driver-kills", type=int, default=3)
    parser.add_argument("--broker-kills", type=int, default=1)
    parser.add_argument("--task-failures", type=float, default=0.15)
    parser.add_argument("--delivery", default="exactly_once")
    parser.add_argument("--bootstrap")
    parser.add_argument("--checkpoint")
    parser.add_argument("--log", help="keep the driver's output here")
    arguments = parser.parse_args()
    if arguments.command == "drive":
        drive(arguments)
        return 0
    all_exact = True
    for number in range(arguments.runs):
        verdict = run(arguments, arguments.seed + number)
        print(json.dumps({**asdict(verdict), "exact": verdict.exact}), flush=True)
        all_exact &= verdict.exact
    return 0 if all_exact else 1


if __name__ == "__main__":
    sys.exit(main())
