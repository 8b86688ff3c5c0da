"""A cluster of three brokers: what replication costs, how far followers lag, how fast leaders are elected.

    python -m bench.cluster [--short] [--partitions 2000] [--json FILE]

In one run, on one machine that all brokers and the load share:
- the same load at acks=1 to a topic with one replica and at acks=all to one with three (min.insync 2),
  alternating; the followers copy while the leader serves, so with few cores the ratio shows mostly how much
  more work three copies are;
- how many bytes the followers' files are behind the leader's during the load at acks=1, sampled;
- many partitions with three replicas: memory per partition, then the death (SIGKILL) of a broker that leads
  a third of them: the time until a survivor names a living leader for each.
Nothing is asserted; the numbers are printed as tables.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from bench.cases import BATCHES
from bench.kafka_messages import batch_of_size, produce_request, produce_shape
from bench.report import machine_facts
from bench.servers import Load, Measurement, Programs, Server, run_load
from tidelog.server.cluster_view import ask
from tidelog.testing import RunningCluster

LOADS = (("1 KB", 8), ("16 KB", 8), ("100 KB", 8))
LAG_SAMPLE_SECONDS = 0.02
ELECTION_SECONDS_MAX = 60.0


def resident_bytes(cluster: RunningCluster, broker_id: int) -> int:
    process_id = cluster.process_id(broker_id)
    for line in Path(f"/proc/{process_id}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def log_bytes(cluster: RunningCluster, broker_id: int, topic: str) -> int:
    folder = cluster.data_directory_of(broker_id) / f"{topic}-0"
    return sum(path.stat().st_size for path in folder.glob("*.log"))


class LagSampler(threading.Thread):
    """Watches how many bytes the slowest follower's files are behind the leader's."""

    def __init__(self, cluster: RunningCluster, topic: str, leader: int) -> None:
        super().__init__(daemon=True)
        self._cluster, self._topic, self._leader = cluster, topic, leader
        self._ended = threading.Event()
        self.lags: list[int] = []

    def run(self) -> None:
        others = [each for each in (1, 2, 3) if each != self._leader]
        while not self._ended.wait(LAG_SAMPLE_SECONDS):
            copied = min(log_bytes(self._cluster, each, self._topic) for each in others)
            self.lags.append(max(0, log_bytes(self._cluster, self._leader, self._topic) - copied))

    def end(self) -> list[int]:
        self._ended.set()
        self.join()
        return sorted(self.lags) or [0]


def measure_load(
    cluster: RunningCluster,
    programs: Programs,
    folder: Path,
    batch_name: str,
    connections: int,
    *,
    replicas: int,
    acks: int,
    seconds: float,
) -> tuple[Measurement, list[int]]:
    """One load to one new topic; the lags of its followers, if it has any."""
    batch_bytes, value_bytes = BATCHES[batch_name]
    topic = f"bench-{replicas}-{acks + 1}-{time.monotonic_ns()}"
    cluster.create_topic(topic, 1, replicas)
    cluster.wait_in_sync()
    leader = cluster.leader(topic, 0)
    batch, _ = batch_of_size(batch_bytes, value_bytes, int(time.time() * 1000))
    requests = folder / "requests"
    requests.write_bytes(produce_request(topic, 0, batch, acks))
    shape = produce_shape(topic)
    server = Server(f"broker {leader}", None, "127.0.0.1", cluster.port(leader))
    with server.control() as control:
        response_bytes = len(control.probe(requests.read_bytes(), shape))
    sampler = LagSampler(cluster, topic, leader)
    if replicas > 1:
        sampler.start()
    load = Load(requests, connections, 5, response_bytes, shape, int(seconds * 1000), 300, 1 << 30)
    seen = run_load(programs, server, load, check=True)
    lags = sampler.end() if replicas > 1 else [0]
    with server.control() as control:
        control.delete_topic(topic)
    return seen, lags


def replication_rows(cluster: RunningCluster, rounds: int, seconds: float) -> list[dict[str, object]]:
    folder = Path(tempfile.mkdtemp(prefix="tidelog-bench-"))
    rows: list[dict[str, object]] = []
    try:
        programs = Programs.build(folder)
        for batch_name, connections in LOADS:
            one: list[float] = []
            three: list[float] = []
            lag: list[int] = []
            for _ in range(rounds):
                arguments = (cluster, programs, folder, batch_name, connections)
                seen, _ = measure_load(*arguments, replicas=1, acks=1, seconds=seconds)
                one.append(seen.requests_per_second)
                seen, _ = measure_load(*arguments, replicas=3, acks=-1, seconds=seconds)
                three.append(seen.requests_per_second)
                _, lags = measure_load(*arguments, replicas=3, acks=1, seconds=seconds)
                lag += lags
            lag.sort()
            rows.append(
                {
                    "load": f"produce {batch_name}, {connections} × 5",
                    "acks=1, 1 replica (req/s)": round(statistics.median(one)),
                    "acks=all, 3 replicas (req/s)": round(statistics.median(three)),
                    "ratio": round(statistics.median(b / a for a, b in zip(one, three, strict=True)), 2),
                    "lag p50 (KB)": lag[len(lag) // 2] // 1000,
                    "lag p99 (KB)": lag[len(lag) * 99 // 100] // 1000,
                }
            )
    finally:
        shutil.rmtree(folder)
    return rows


def election_row(cluster: RunningCluster, partitions: int) -> dict[str, object]:
    before = {each: resident_bytes(cluster, each) for each in (1, 2, 3)}
    begun = time.monotonic()
    cluster.create_topic("many", partitions, 3)
    created = time.monotonic() - begun
    cluster.wait_in_sync()
    in_sync = time.monotonic() - begun
    grown = [resident_bytes(cluster, each) - before[each] for each in (1, 2, 3)]
    controller = cluster.controller()
    victim = next(each for each in (1, 2, 3) if each != controller)
    survivor = next(each for each in (1, 2, 3) if each != victim)
    led = sum(each.leader == victim for each in cluster.view(survivor).partitions)
    begun = time.monotonic()
    cluster.kill(victim)
    while time.monotonic() < begun + ELECTION_SECONDS_MAX:
        view = ask(cluster.address(survivor))
        if all(each.leader not in (victim, -1) for each in view.partitions):
            break
    elected = time.monotonic() - begun
    return {
        "partitions": partitions,
        "replicas": 3,
        "created (s)": round(created, 2),
        "all in sync (s)": round(in_sync, 2),
        "memory per replica (KB)": round(statistics.mean(grown) / partitions / 1000, 1),
        "leaders lost": led,
        "new leaders (s)": round(elected, 2),
    }


def print_table(title: str, rows: list[dict[str, object]]) -> None:
    heads = list(rows[0])
    widths = [max(len(head), *(len(str(row[head])) for row in rows)) for head in heads]
    print(f"\n{title}\n{'-' * len(title)}")
    print("  ".join(head.ljust(width) for head, width in zip(heads, widths, strict=True)))
    for row in rows:
        print("  ".join(str(row[head]).ljust(width) for head, width in zip(heads, widths, strict=True)))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="one short round per load")
    parser.add_argument("--partitions", type=int, default=2000)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all measurements to FILE")
    options = parser.parse_args()
    rounds, seconds = (1, 1.0) if options.short else (5, 2.0)
    with RunningCluster(3) as cluster:
        rows = replication_rows(cluster, rounds, seconds)
        print_table("What three replicas cost", rows)
    with RunningCluster(3) as cluster:
        row = election_row(cluster, options.partitions)
        print_table("The death of a broker", [row])
    if options.json:
        facts = machine_facts()
        options.json.write_text(
            json.dumps({"machine": facts, "replication": rows, "election": row}, indent=1)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
