"""Topic → Spark → topic under faults: does every record come out once?

    python -m tests.spark.exactly_once_spark run --records 1000000 --seed 7
    python -m tests.spark.exactly_once_spark run --runs 10 --contrast-records 1000000
    python -m tests.spark.exactly_once_spark run --standalone --records 200000 --executor-kills 1

Three brokers, three replicas. The query is a process of its own (`drive`), started again from its checkpoint
until it has read everything. Faults, all from one seed, at moments that are chosen as shares of the output:
- tasks whose first attempt fails when part or all of its rows have been handed on (`--task-failures`, a
  probability);
- SIGKILL of a Python worker (`--worker-kills`), which leaves its transaction open;
- SIGKILL of the driver with everything it started, or of Spark's JVM alone, which leaves Python workers
  behind that go on writing for a while (`--driver-kills`). It may wait for a phase that is seen from outside,
  in the offsets of the commit log: a decision being written, or decided but not all ended;
- SIGKILL of a broker, which comes back some seconds later (`--broker-kills`);
- tasks that take longer than transactions may last (`--transaction-timeout-ms`, `--task-seconds`);
- with `--standalone`, on one master and two workers: SIGKILL of an executor (`--executor-kills`).

The judge reads the output with read_committed and compares it with the input: numbers that are missing,
numbers that come more than once, and values that are not the input's. Then the same faults strike a query
that writes at least once (`--contrast-records`; 0: not at all), which must show duplicates: a judge that
finds none there would find none anywhere, and the program fails.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tests.spark.spark_driver import Driver, Moment, Watch, kill_one, settings_of
from tests.spark.spark_standalone import SparkStandalone
from tests.support.child_programs import program
from tidelog.client.cluster import LATEST, Cluster
from tidelog.client.partition_reader import PartitionReader
from tidelog.client.produce_requests import BatchToSend
from tidelog.client.transactional_writer import TransactionalWriter, init_producer, open_transactions
from tidelog.model.identifiers import TopicPartition
from tidelog.pipelines.record_batches import Rows, Stamp, choose_partitions, encode_batches
from tidelog.pipelines.record_columns import AbortedTransaction, decode
from tidelog.testing.cluster import RunningCluster

PARTITIONS = 4
INPUT, OUTPUT = "numbers", "copies"
#: so that a task has more than the sink gathers before it writes, and fails with something written
VALUE_BYTES = 200
RUN_SECONDS_MAX = 1_500
DRIVER_SECONDS_MAX = 600
NOTHING_NOTICED = "at least once: no duplicates, so the check may notice none; more faults are needed"
EXACTLY_ONCE, AT_LEAST_ONCE = "exactly_once", "at_least_once"


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

    @property
    def as_promised(self) -> bool:
        """Exactly once is exact and leaves nothing open; at least once shows that the judge notices."""
        if self.delivery == EXACTLY_ONCE:
            return self.exact and not self.left_open
        return self.duplicated > 0 and not (self.missing or self.wrong)


# ---------------------------------------------------------------- input and judge


def values_of(numbers: pa.Array) -> pa.Array:
    """The value of each number: the number, then filled up."""
    texts = pc.binary_join_element_wise(numbers.cast(pa.string()), "", ":")
    return pc.ascii_rpad(texts, width=VALUE_BYTES, padding="x").cast(pa.binary())


def fill(bootstrap: str, records: int) -> None:
    """Write the numbers, each once."""
    with Cluster(settings_of(bootstrap)) as cluster:
        producer = init_producer(cluster, None)
        writer = TransactionalWriter(cluster, producer)
        sequences: dict[int, int] = {}
        for start in range(0, records, 50_000):
            numbers = pa.array(np.arange(start, min(records, start + 50_000)))
            keys = numbers.cast(pa.string()).cast(pa.binary())
            # of now: retention takes what is old
            rows = Rows(keys, values_of(numbers), np.full(len(keys), int(time.time() * 1000), dtype=np.int64))
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
                numbers = columns.keys.cast(pa.string()).cast(pa.int64())
                verdict.wrong += len(numbers) - (
                    pc.sum(pc.equal(columns.values, values_of(numbers))).as_py() or 0
                )
                np.add.at(counts, numbers.to_numpy(), 1)
    verdict.missing = int((counts == 0).sum())
    verdict.duplicated = int(np.maximum(counts - 1, 0).sum())


# ---------------------------------------------------------------- the query


def failing_tasks(probability: float, seed: int) -> Any:
    """A step that hands rows on and, in some first attempts, fails in the middle or at the end."""

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        choose = random.Random(f"{seed} {batch_id} {context.partitionId()}")
        fails = context.attemptNumber() == 0 and choose.random() < probability
        in_the_middle = choose.random() < 0.3
        for batch in batches:
            if fails and in_the_middle:
                yield batch.slice(0, batch.num_rows // 2)
                break
            yield batch
        if fails:
            raise RuntimeError("this task was chosen to fail")

    return step


def slow_tasks(seconds: float) -> Any:
    """A step that hands rows on piece by piece, for so many seconds in every other task."""

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            if batch.num_rows and context.partitionId() % 2:
                time.sleep(min(1.0, seconds / 10))
            yield batch
        if context.partitionId() % 2:
            time.sleep(seconds)

    return step


def drive(arguments: argparse.Namespace) -> None:
    """The driver process: copy until everything that was there at the start is copied."""
    # Workers run the same Python, whether or not its environment is activated.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master(arguments.master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.showConsoleProgress", "false")
        # A kill while the first offsets are written leaves a temporary file, which Spark would refuse.
        .config("spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart", "false")
    )
    for name, value in json.loads(arguments.spark_settings).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
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
    if arguments.task_seconds:
        source = source.mapInArrow(slow_tasks(arguments.task_seconds), source.schema)
    query = (
        source.writeStream.format("tidelog")
        .option("kafka.bootstrap.servers", arguments.bootstrap)
        .option("topic", OUTPUT)
        .option("delivery", arguments.delivery)
        .option("kafka.transaction.timeout.ms", str(arguments.transaction_timeout_ms))
        .option("checkpointLocation", arguments.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


# ---------------------------------------------------------------- faults


class Fault(NamedTuple):
    """When as much as `share` of the records has been written, `kind` strikes."""

    share: float
    kind: str
    moment: Moment = Moment.ANY
    #: of a driver: its JVM alone; of a broker: seconds until it is back
    jvm_alone: bool = False
    seconds_away: float = 0.0
    broker_id: int = 0


def planned_faults(arguments: argparse.Namespace, seed: int) -> list[Fault]:
    """The faults of a run in their order, from its seed."""
    choose = random.Random(seed)
    kinds = (
        ["driver"] * arguments.driver_kills
        + ["broker"] * arguments.broker_kills
        + ["worker"] * arguments.worker_kills
        + ["executor"] * arguments.executor_kills
    )
    return sorted(
        Fault(
            round(choose.uniform(0.03, 0.85), 3),
            kind,
            choose.choice(list(Moment)),
            choose.random() < 0.5,
            choose.uniform(3, 8),
            choose.randrange(1, arguments.brokers + 1),
        )
        for kind in kinds
    )


class Striker:
    """Carries the plan out, one fault after the other."""

    def __init__(
        self, cluster: RunningCluster, standalone: SparkStandalone | None, verdict: Verdict, plan: list[Fault]
    ) -> None:
        self._cluster = cluster
        self._standalone = standalone
        self._verdict = verdict
        self._left = list(plan)
        self._watch = Watch(cluster.bootstrap, OUTPUT)
        self._returning: threading.Thread | None = None
        self.struck: Counter[str] = Counter()

    def strike(self, driver: Driver) -> bool:
        """Strike until the driver has ended, by itself (False) or by our hand (True)."""
        while self._left and driver.running:
            fault = self._left[0]
            if self._watch.written() < fault.share * self._verdict.records:
                time.sleep(0.05)
                continue
            if fault.kind == "driver":
                seen = self._watch.wait_for(fault.moment, driver, self._verdict.delivery == EXACTLY_ONCE)
                if not driver.running:
                    break
                driver.kill(jvm_alone=fault.jvm_alone)
                self._done(f"driver killed: {seen}" + (", workers left behind" if fault.jvm_alone else ""))
                return True
            if fault.kind == "broker":
                self._kill_broker(fault)
            elif fault.kind == "worker" and not driver.kill_worker():
                time.sleep(0.05)  # there is none between two micro-batches
            elif fault.kind == "executor" and not self._kill_executor():
                time.sleep(0.05)
            else:
                self._done(f"{fault.kind} killed")
        return False

    def _done(self, what: str) -> None:
        self.struck[what] += 1
        del self._left[0]

    def _kill_executor(self) -> bool:
        assert self._standalone is not None, "executors of their own are there with --standalone only"
        pythons = self._standalone.executor_pythons()
        assert pythons <= {str(self._standalone.bare_python)}, f"executors have help from {pythons}"
        return bool(pythons) and kill_one(self._standalone.executors())

    def _kill_broker(self, fault: Fault) -> None:
        """Kill a broker; it comes back while the query goes on."""
        self.wait_brokers()
        self._cluster.wait_in_sync()
        self._cluster.kill(fault.broker_id)

        def come_back() -> None:
            time.sleep(fault.seconds_away)
            self._cluster.start(fault.broker_id)

        self._returning = threading.Thread(target=come_back)
        self._returning.start()
        self._done("broker killed")

    def wait_brokers(self) -> None:
        if self._returning is not None:
            self._returning.join()
            self._returning = None

    def close(self) -> None:
        self.wait_brokers()
        self._watch.close()

    @property
    def left(self) -> list[Fault]:
        return self._left


def run(arguments: argparse.Namespace, seed: int, delivery: str, records: int) -> Verdict:
    """One query from the first record to the last, with faults on the way."""
    verdict = Verdict(delivery, records, seed)
    started = time.monotonic()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tidelog-exactly-once-"))
        standalone = stack.enter_context(SparkStandalone()) if arguments.standalone else None
        cluster = stack.enter_context(RunningCluster(arguments.brokers))
        for topic in (INPUT, OUTPUT):
            cluster.create_topic(topic, partitions=PARTITIONS)
        fill(cluster.bootstrap, records)
        log = Path(arguments.log or f"{folder}/driver.log")
        command = [
            *(*program("tests.spark.exactly_once_spark"), "drive", "--bootstrap", cluster.bootstrap),
            *("--checkpoint", f"{folder}/checkpoint", "--delivery", delivery),
            *("--records-per-batch", str(arguments.records_per_batch), "--seed", str(seed)),
            *("--task-failures", str(arguments.task_failures)),
            *("--task-seconds", str(arguments.task_seconds)),
            *("--transaction-timeout-ms", str(arguments.transaction_timeout_ms)),
        ]
        if standalone is not None:
            command += ["--master", standalone.url, "--spark-settings", json.dumps(standalone.settings)]
        striker = Striker(cluster, standalone, verdict, planned_faults(arguments, seed))
        stack.callback(striker.close)
        _drive_to_the_end(command, log, striker, verdict, standalone)
        striker.wait_brokers()
        cluster.wait_in_sync()
        judge(cluster.bootstrap, verdict)
        striker.struck["task attempts failed"] = log.read_bytes().count(b"Exception in task")
        if standalone is not None:
            failed = standalone.log_text().count("Exception in task")
            striker.struck["task attempts failed"] += failed
    if striker.left:
        striker.struck["planned, but the query had ended"] = len(striker.left)
    verdict.faults = {name: count for name, count in striker.struck.items() if count > 0}
    verdict.seconds = round(time.monotonic() - started, 1)
    return verdict


def _drive_to_the_end(
    command: list[str], log: Path, striker: Striker, verdict: Verdict, standalone: SparkStandalone | None
) -> None:
    """Start the driver again and again until it ends by itself, with everything copied."""
    deadline = time.monotonic() + RUN_SECONDS_MAX
    environment = None if standalone is None else standalone.environment
    while True:
        verdict.driver_starts += 1
        driver = Driver(command, log, environment)
        try:
            if striker.strike(driver):
                continue
            code = driver.wait(DRIVER_SECONDS_MAX)
        finally:
            driver.close()
        if code == 0:
            return
        striker.struck["driver failed and was started again"] += 1
        if time.monotonic() > deadline:
            raise TimeoutError(f"the query does not end; the last of {log}:\n{driver.log_tail()}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("command", choices=("run", "drive"))
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--contrast-records", type=int, default=0, help="records of the at-least-once run")
    parser.add_argument("--records-per-batch", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--driver-kills", type=int, default=3)
    parser.add_argument("--broker-kills", type=int, default=1)
    parser.add_argument("--worker-kills", type=int, default=2)
    parser.add_argument("--executor-kills", type=int, default=0)
    parser.add_argument("--task-failures", type=float, default=0.15)
    parser.add_argument("--task-seconds", type=float, default=0.0)
    parser.add_argument("--transaction-timeout-ms", type=int, default=900_000)
    parser.add_argument("--standalone", action="store_true")
    parser.add_argument("--log", help="keep the driver's output here")
    parser.add_argument("--delivery", default=EXACTLY_ONCE, help="of drive")
    parser.add_argument("--bootstrap", help="of drive")
    parser.add_argument("--checkpoint", help="of drive")
    parser.add_argument("--master", default="local[2,4]", help="of drive")
    parser.add_argument("--spark-settings", default="{}", help="of drive")
    arguments = parser.parse_args()
    if arguments.command == "drive":
        drive(arguments)
        return 0
    plans = [(arguments.seed + number, EXACTLY_ONCE, arguments.records) for number in range(arguments.runs)]
    if arguments.contrast_records:
        plans.append((arguments.seed, AT_LEAST_ONCE, arguments.contrast_records))
    kept = True
    for seed, delivery, records in plans:
        verdict = run(arguments, seed, delivery, records)
        print(json.dumps({**asdict(verdict), "as_promised": verdict.as_promised}), flush=True)
        if delivery == AT_LEAST_ONCE:
            found = f"{verdict.duplicated} duplicates"
            print(f"at least once: {found}" if verdict.duplicated else NOTHING_NOTICED, flush=True)
        kept &= verdict.as_promised
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
