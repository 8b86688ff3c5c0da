"""Transactions on three brokers, beside Apache Kafka: the same programmes against both, in turn.

    python -m bench.transactions [--rounds 5] [--count 100] [--clients java,librdkafka] [--json FILE]

Both clusters run all the time: three Tidelog brokers, and three nodes of Apache Kafka in KRaft mode, with
replication factor 3 and min.insync.replicas 2 for the topic and for __transaction_state. Each round runs one
client against one and then the other: one producer commits `--count` transactions of ten batches over six
partitions, one after the other (shape `steady` of tests/conformance/transaction_load.py and its Java twin).
Printed are the medians over the rounds, and Tidelog's as a multiple of Kafka's. Nothing is asserted.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from bench.report import machine_facts
from tests.chaos.kafka_cluster import KafkaCluster
from tests.conformance.transaction_load import CLIENTS, run
from tidelog.testing import RunningCluster

PARTITIONS = 6
TOPIC_SECONDS_MAX = 60.0


def create_topic(bootstrap: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = NewTopic(name, PARTITIONS, 3, config={"min.insync.replicas": "2"})
    deadline = time.monotonic() + TOPIC_SECONDS_MAX
    while True:
        try:
            admin.create_topics([wanted], operation_timeout=10)[name].result(30)
            return
        except Exception:
            # Nodes that have just started are not all registered yet.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def measure(rounds: int, count: int, clients: list[str], shape: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    with KafkaCluster(3) as kafka, RunningCluster(3, {"min.insync.replicas": "2"}) as ours:
        clusters = {"tidelog": ours.bootstrap, "kafka": kafka.bootstrap}
        for name, bootstrap in clusters.items():
            create_topic(bootstrap, "bench")
            # The first transaction makes __transaction_state.
            run("librdkafka", bootstrap, "bench", PARTITIONS, f"first-{name}", "steady", 1)
        for number in range(rounds):
            # Who is first differs from round to round.
            order = list(clusters) if number % 2 else list(reversed(clusters))
            for client in clients:
                for name in order:
                    prefix = f"{client}-{number}-{name}"
                    seen, complaints = run(client, clusters[name], "bench", PARTITIONS, prefix, shape, count)
                    rows.append({"client": client, "cluster": name, "round": number, **seen})
                    print(rows[-1], complaints[-500:], file=sys.stderr, flush=True)
    return rows


def table(rows: list[dict[str, object]], clients: list[str]) -> str:
    lines = [
        "| client | Tidelog, ms | Kafka, ms | ratio of medians | ratio of p99 | retries, Tidelog / Kafka |",
        "|---|---|---|---|---|---|",
    ]

    def of(client: str, cluster: str, what: str) -> list[float]:
        return [
            float(str(row[what]))
            for row in rows
            if row["client"] == client and row["cluster"] == cluster and what in row
        ]

    for client in clients:
        ours, theirs = (statistics.median(of(client, name, "median_ms")) for name in ("tidelog", "kafka"))
        our_99, their_99 = (statistics.median(of(client, name, "p99_ms")) for name in ("tidelog", "kafka"))
        retries = " / ".join(f"{sum(of(client, name, 'retries')):.0f}" for name in ("tidelog", "kafka"))
        if not of(client, "kafka", "retries"):
            retries = "not counted"
        ratios = f"{ours / theirs:.2f} | {our_99 / their_99:.2f}"
        lines.append(f"| {client} | {ours:.1f} | {theirs:.1f} | {ratios} | {retries} |")
    failures = sum(int(float(str(row["failures"])) + float(str(row["wrong"]))) for row in rows)
    return "\n".join([*lines, "", f"failures: {failures}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--clients", default=",".join(CLIENTS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    clients = options.clients.split(",")
    rows = measure(options.rounds, options.count, clients, "steady")
    print(machine_facts())
    print(table(rows, clients))
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
