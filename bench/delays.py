"""What delays cost a producer: an ordinary topic beside delay topics, by turns, in one run.

    python -m bench.delays [--rounds 7] [--records 100000] [--size 1000] [--json]

One broker and confluent-kafka with records of 1 KB. The topics take turns round by round, each round in
another order, so that a busy moment hits all of them:

    ordinary    no settings; the same records, with the header
    header      a delay topic, each record with `tidelog-delay-ms`, an hour and a random part of one
    fixed       a delay topic with `tidelog.delay.ms`, records without headers

Said are the medians of records a second, from the first one to the answer to the last one, the median of the
ratios to the ordinary topic of the same round, and the processor time of the broker for a record: until the
answers are there, and until a second after them, when what came is in the index. It asserts nothing.
"""

import argparse
import json
import os
import random
import statistics
import time
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.report import machine_facts
from tidelog.testing.broker import RunningBroker

ORDINARY, HEADER, FIXED = "ordinary", "header", "fixed"
KINDS = {
    ORDINARY: {},
    HEADER: {"tidelog.delay.target": "target"},
    FIXED: {"tidelog.delay.target": "target", "tidelog.delay.ms": "3600000"},
}
HOUR_MS = 3_600_000
WAIT_SECONDS = 120.0
INDEXED_SECONDS = 1.0


class Measured(NamedTuple):
    """One round of one topic."""

    kind: str
    records_per_second: float
    broker_us: float
    broker_us_indexed: float


def cpu_seconds(process_id: int) -> float:
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def one_round(broker: RunningBroker, kind: str, number: int, records: int, size: int) -> Measured:
    """Produce into a new topic, and delete it."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topic = f"{kind}-{number}"
    admin.create_topics([NewTopic(topic, 1, 1, config=KINDS[kind])])[topic].result(WAIT_SECONDS)
    process_id = broker.process_id
    assert process_id is not None
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "linger.ms": 20,
            "queue.buffering.max.messages": 200_000,
            "queue.buffering.max.kbytes": 1 << 19,
        }
    )
    refused: list[object] = []

    def reported(error: object, _: object) -> None:
        if error is not None:
            refused.append(error)

    value, chance = os.urandom(size), random.Random(number)
    rows: list[dict[str, str | bytes | None] | None] = [
        None if kind == FIXED else {"tidelog-delay-ms": str(HOUR_MS + chance.randrange(HOUR_MS))}
        for _ in range(records)
    ]
    producer.list_topics(topic, WAIT_SECONDS)  # connected before the clock runs
    cpu, began = cpu_seconds(process_id), time.monotonic()
    for row in rows:
        while True:
            try:
                producer.produce(topic, value, headers=row, on_delivery=reported)
                break
            except BufferError:
                producer.poll(0.05)
    assert producer.flush(WAIT_SECONDS) == 0 and not refused, refused[:3]
    took = time.monotonic() - began
    answered = cpu_seconds(process_id) - cpu
    time.sleep(INDEXED_SECONDS)
    indexed = cpu_seconds(process_id) - cpu
    admin.delete_topics([topic])[topic].result(WAIT_SECONDS)
    return Measured(kind, records / took, answered / records * 1e6, indexed / records * 1e6)


def measure(rounds: int, records: int, size: int) -> list[Measured]:
    rows: list[Measured] = []
    kinds = list(KINDS)
    with RunningBroker({"log.segment.delete.delay.ms": "100"}, mode="process") as broker:
        for kind in kinds:
            one_round(broker, kind, -1, records // 10, size)  # the first one warms up
        for number in range(rounds):
            order = kinds[number % len(kinds) :] + kinds[: number % len(kinds)]
            rows += [one_round(broker, kind, number, records, size) for kind in order]
    return rows


def table(rows: list[Measured]) -> str:
    lines = [
        "| topic | records/s | of ordinary | lowest to highest | broker, us a record | until in the index |",
        "|---|---|---|---|---|---|",
    ]
    of = {kind: [each for each in rows if each.kind == kind] for kind in KINDS}
    ordinary = sorted(of[ORDINARY], key=rows.index)
    for kind, measured in of.items():
        ratios = [
            one.records_per_second / other.records_per_second
            for one, other in zip(measured, ordinary, strict=True)
        ]
        middle = [statistics.median(each[field] for each in measured) for field in (1, 2, 3)]
        lines.append(
            f"| {kind} | {middle[0]:,.0f} | {statistics.median(ratios):.2f}"
            f" | {min(ratios):.2f} to {max(ratios):.2f} | {middle[1]:.1f} | {middle[2]:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=1_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = measure(options.rounds, options.records, options.size)
    if options.json:
        print(json.dumps([each._asdict() for each in rows], indent=1))
        return
    print(machine_facts())
    print(f"load: {', '.join(f'{each:.1f}' for each in os.getloadavg())}\n")
    print(table(rows))


if __name__ == "__main__":
    main()
