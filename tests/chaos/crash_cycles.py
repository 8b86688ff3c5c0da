"""Kill -9 cycles under load: `crash_cycles.py --cycles 60 [--seed N]`; exit code 0 when every promise held.

A broker in a child process on a real folder is loaded by writers with acks=1, acks=all, idempotence (bare
protocol with its own retries, and confluent-kafka), on topics with small segments, retention, compaction
and `flush.messages=1`, and by a group that commits offsets. At a random moment it is killed, also while it
starts or recovers; sometimes it is stopped cleanly; sometimes the folder is damaged as a torn write would
(garbage behind the active segment, a lost or cut index). After every restart everything acknowledged must
be where it was acknowledged, in order and once, indexes must agree with the segments, and committed offsets
must be there.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.chaos.broker_process import BrokerDied, BrokerProcess
from tests.chaos.crash_checks import Checker, Violation, check_committed, check_indexes
from tests.chaos.crash_load import ClientWriter, Committer, Gate, Plan, Writer
from tests.chaos.kafka_wire import WireClient

SETTINGS = {
    "offsets.topic.num.partitions": "2",
    "log.cleaner.backoff.ms": "100",
    "log.retention.check.interval.ms": "150",
    "log.flush.offset.checkpoint.interval.ms": "300",
    "log.segment.delete.delay.ms": "100",
    "auto.create.topics.enable": "false",
}
TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    "plain": (2, {"segment_bytes": "60000", "index_interval_bytes": "512"}),
    "durable": (1, {"flush_messages": "1", "segment_bytes": "40000"}),
    "idempotent": (2, {"segment_bytes": "20000", "index_interval_bytes": "256"}),
    "short": (1, {"segment_bytes": "20000", "retention_bytes": "100000"}),
    "table": (
        1,
        {
            "cleanup_policy": "compact",
            "segment_bytes": "15000",
            "min_cleanable_dirty_ratio": "0.1",
            "delete_retention_ms": "500",
        },
    ),
    "client": (1, {"segment_bytes": "50000"}),
}
PLANS = (
    Plan("plain-leader", "plain", 0, acks=1),
    Plan("plain-all", "plain", 1, acks=-1),
    Plan("durable-all", "durable", 0, acks=-1),
    Plan("idempotent-0", "idempotent", 0, acks=-1, idempotent=True),
    Plan("idempotent-1", "idempotent", 1, acks=-1, idempotent=True),
    Plan("short-leader", "short", 0, acks=1),
    Plan("table-all", "table", 0, acks=-1, compacted=True),
)
CLIENT_PLAN = Plan("client-idempotent", "client", 0, acks=-1, idempotent=True)
EVERYTHING_EVERY = 20
CYCLE_SECONDS_MAX = 20.0
IDLE_SECONDS_MAX = 20.0


class CrashTest:
    """One run: a broker, its load, the cycles and the figures."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.broker = BrokerProcess(folder, SETTINGS)
        self.gate = Gate()
        bootstrap = self.broker.bootstrap
        self.writers: list[Writer | ClientWriter] = [
            Writer(plan, bootstrap, self.gate, seed * 1_000 + place) for place, plan in enumerate(PLANS)
        ]
        self.client_writer = ClientWriter(CLIENT_PLAN, bootstrap, self.gate)
        self.writers.append(self.client_writer)
        self.committer = Committer("plain", bootstrap, self.gate)
        self.checkers = [Checker(writer) for writer in self.writers]
        self.counts: Counter[str] = Counter()
        self.ready_seconds: list[float] = []

    # -- a run

    def begin(self) -> None:
        self.broker.start()
        with WireClient(self.broker.bootstrap) as client:
            for name, (partitions, configs) in TOPICS.items():
                client.create_topic(name, partitions, **configs)
        for thread in (*self.writers, self.committer):
            thread.start()

    def cycle(self, number: int) -> None:
        """Load, end the broker somehow, perhaps damage the folder, restart, check."""
        begun = time.monotonic()
        self.gate.open.set()
        # Now and then long enough for confluent-kafka to find the broker again, which takes it a second.
        long = number % 5 == 4
        time.sleep(self.random.uniform(1.0, 1.6) if long else self.random.uniform(0.05, 0.6))
        if not self.broker.running:
            raise BrokerDied(f"the broker ended by itself:\n{self.broker.log_tail()}")
        if self.random.random() < 0.06:
            self.counts["clean stops"] += 1
            if self.broker.stop() != 0:
                raise Violation(f"a clean stop ended with a failure:\n{self.broker.log_tail()}")
        else:
            self.counts["kills under load"] += 1
            self.broker.kill()
        self.gate.open.clear()
        self._wait_idle()
        self._damage()
        self._restart()
        self._check(everything=number % EVERYTHING_EVERY == EVERYTHING_EVERY - 1)
        if time.monotonic() - begun > CYCLE_SECONDS_MAX:
            raise Violation(f"cycle {number} took more than {CYCLE_SECONDS_MAX:.0f} s")

    def finish(self) -> None:
        """Let confluent-kafka deliver everything, then check all of it, also after a clean stop."""
        self.client_writer.finish(60)
        self.gate.stopped = True
        for thread in (*self.writers, self.committer):
            thread.join(30)
        self._check(everything=True)
        if self.broker.stop() != 0:
            raise Violation(f"the last stop ended with a failure:\n{self.broker.log_tail()}")
        self.broker.start()
        self._check(everything=True)
        self.broker.stop()
        if self.client_writer.memory.acknowledged_records != self.client_writer.memory.attempted:
            raise Violation("confluent-kafka did not get everything acknowledged")

    def check_log(self) -> None:
        """The broker must have met nothing that it calls an error."""
        faults = self.broker.tracebacks()
        faults += [line for line in self.broker.log_text().splitlines() if " ERROR " in line]
        if faults:
            raise Violation("in the broker's log:\n" + faults[0])

    # -- steps

    def _wait_idle(self) -> None:
        deadline = time.monotonic() + IDLE_SECONDS_MAX
        for thread in (*self.writers, self.committer):
            if not thread.idle.wait(max(deadline - time.monotonic(), 0)):
                raise Violation(f"{thread.name} did not come to rest")
        self._raise_faults()

    def _raise_faults(self) -> None:
        faults = [writer.memory.fault for writer in self.writers] + [self.committer.fault]
        for fault in faults:
            if fault is not None:
                raise Violation(fault)

    def _restart(self) -> None:
        """Start again, sometimes killed while starting."""
        while self.random.random() < 0.15:
            self.broker.start(wait=False)
            time.sleep(self.random.uniform(0.15, 0.7))
            self.broker.kill()
            self.counts["kills while starting"] += 1
        begun = time.monotonic()
        self.broker.start()
        self.ready_seconds.append(time.monotonic() - begun)

    def _damage(self) -> None:
        """What a torn write or a lost file leaves behind."""
        data = self.broker.log_dirs[0]
        topic = self.random.choice(
            ("plain-0", "plain-1", "idempotent-0", "idempotent-1", "short-0", "client-0")
        )
        logs = sorted((data / topic).glob("*.log"))
        chance = self.random.random()
        if chance < 0.15:
            with logs[-1].open("ab") as log:
                log.write(self.random.randbytes(self.random.randint(1, 300)))
            self.counts["garbage tails"] += 1
        elif chance < 0.25:
            self.random.choice(logs).with_suffix(self.random.choice((".index", ".timeindex"))).unlink(
                missing_ok=True
            )
            self.counts["lost indexes"] += 1
        elif chance < 0.32:
            index = self.random.choice(logs).with_suffix(self.random.choice((".index", ".timeindex")))
            if index.exists():
                index.write_bytes(index.read_bytes() + b"\x01\x02\x03")
                self.counts["torn indexes"] += 1

    def _check(self, *, everything: bool) -> None:
        self._raise_faults()
        for name, (partitions, _) in TOPICS.items():
            for partition in range(partitions):
                self._check_folder(f"{name}-{partition}", everything)
        with WireClient(self.broker.bootstrap, timeout_seconds=30) as client:
            for checker in self.checkers:
                self.counts["records compared"] += checker.check(client, everything=everything)
                self.counts["lookups"] += checker.check_lookups(client, self.random)
            check_committed(client, self.committer, "plain")

    def _check_folder(self, name: str, everything: bool) -> None:
        """Indexes against segments; files may be swapped meanwhile, so only a fault that stays counts."""
        for attempt in range(4):
            try:
                folder = self.broker.log_dirs[0] / name
                entries = check_indexes(folder, self.random, everything=everything)
                self.counts["index entries compared"] += entries
                return
            except Violation:
                if attempt == 3:
                    raise
                time.sleep(0.1)

    def report(self, seconds: float, cycles: int) -> None:
        """The figures of the run."""
        rows = dict(self.counts)
        rows["cycles"] = cycles
        for writer in self.writers:
            memory = writer.memory
            text = f"{memory.acknowledged_records} of {memory.attempted}"
            retried = f", {memory.retried_batches} batches sent again" if memory.retried_batches else ""
            print(f"  {writer.plan.name:24} acknowledged {text} records{retried}")
        print(f"  {'group commits':24} {self.committer.acknowledged + 1}")
        for name, count in sorted(rows.items()):
            print(f"  {name:24} {count}")
        if self.ready_seconds:
            ordered = sorted(self.ready_seconds)
            median = ordered[len(ordered) // 2]
            print(f"  {'process start to ready':24} median {median:.2f} s, worst {ordered[-1]:.2f} s")
        compactions = self.broker.log_text().count("log compacted:")
        deletions = self.broker.log_text().count("deleting segment")
        print(f"  {'compactions':24} {compactions}")
        print(f"  {'segments by retention':24} {deletions}")
        print(f"  {'seconds':24} {seconds:.0f}")


def run(cycles: int, seed: int, folder: Path) -> int:
    begun = time.monotonic()
    test = CrashTest(folder, seed)
    done = 0
    try:
        with test.broker:
            test.begin()
            for number in range(cycles):
                test.cycle(number)
                done += 1
                if done % 10 == 0:
                    print(f"{done} cycles, {time.monotonic() - begun:.0f} s", flush=True)
            test.finish()
            test.check_log()
    except (Violation, BrokerDied) as fault:
        kept = Path(tempfile.mkdtemp(prefix="tidelog-crash-failed-"))
        shutil.copytree(folder, kept, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock"))
        print(f"FAILED in cycle {done} with --seed {seed}: {fault}\nThe folder is kept in {kept}", flush=True)
        return 1
    finally:
        test.gate.stopped = True
        test.report(time.monotonic() - begun, done)
    print(f"passed: {cycles} cycles, seed {seed}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cycles", type=int, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"{options.cycles} cycles, seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tidelog-crash-") as folder:
        return run(options.cycles, options.seed, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
