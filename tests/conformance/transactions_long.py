"""Many transactions with several batches in flight, on three brokers with three replicas: none may fail.

    python -m tests.conformance.transactions_long [--count 200] [--clients java,librdkafka] [--bootstrap HOST]

For each client: `count` new producers with one transaction of 40 batches over six partitions each, and
`count` times a commit followed at once by a transaction that is begun, written to and aborted (see
java/TransactionLoad.java and transaction_load.py). What was committed is read back in order. The exit code
is 1 if anything failed. `--bootstrap` names another cluster, such as Apache Kafka.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.conformance import transaction_load
from tests.conformance.drivers.contract import new_name

PARTITIONS = 6
SHAPES = ("in-flight", "commit-abort")


@contextmanager
def cluster(bootstrap: str | None) -> Iterator[str]:
    if bootstrap is not None:
        yield bootstrap
        return
    from tidelog.testing.cluster import RunningCluster

    with RunningCluster(3, {"min.insync.replicas": "2"}) as running:
        yield running.bootstrap


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--clients", default=",".join(transaction_load.CLIENTS))
    parser.add_argument("--bootstrap")
    options = parser.parse_args()
    failed = 0.0
    with cluster(options.bootstrap) as bootstrap:
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        for client in options.clients.split(","):
            for shape in SHAPES:
                topic = new_name("long")
                admin.create_topics([NewTopic(topic, PARTITIONS, 3)])[topic].result(30)
                began = time.monotonic()
                counted, complaints = transaction_load.run(
                    client, bootstrap, topic, PARTITIONS, new_name(client), shape, options.count
                )
                failed += counted["failures"] + counted["wrong"]
                numbers = " ".join(f"{name}={value:.0f}" for name, value in counted.items())
                seconds = time.monotonic() - began
                print(
                    f"{client:<11} {shape:<13} {options.count} times in {seconds:.0f} s: {numbers}",
                    flush=True,
                )
                if counted["failures"] or counted["wrong"]:
                    print(complaints[-2000:], flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
