"""Kappa: there is one pipeline, and history is put right by reading the log again with a new version of it.

    python examples/kappa/run.py

1. `totals-v1.yaml` adds up orders; readers find its topic in `serving`, compacted, a record per view.
2. It turns out that v1 takes the time of arrival for the time of the order. `totals-v2.yaml` is right.
3. v2 reads the log from its beginning into a topic of its own, while orders come and v1 goes on serving.
4. When v2 has caught up, both are compared: no order may be lost, only windows may differ.
5. One record in `serving` switches readers over, and v1 is stopped. It is switched back in the same way.

The exit code is 0 when readers see what was really ordered, 1 when not: then nothing is switched.
"""

import json
import sys
from datetime import timedelta
from pathlib import Path

from confluent_kafka import Producer
from rich.console import Console

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "demo"))

from demo_report import WIDTH, Found, by_country, table_of  # noqa: E402
from order_windows import watermark_of  # noqa: E402
from pipeline_files import Stage, arrivals, read_records, send, stage, start_file, totals_of, wait  # noqa: E402
from shop_orders import HOUR_SECONDS, OPENING, TICKS, OrderStream, Truth  # noqa: E402

ORDERS = 6_000
SEED = 21
SERVING, VIEW = "serving", "totals"
#: of the hour, what comes before v2 is started
BEFORE = TICKS * 2 // 3


def serve(bootstrap: str, topic: str) -> None:
    """Have readers of the view use this topic from now on."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    producer.produce(SERVING, json.dumps({"topic": topic}), VIEW)
    if producer.flush(30):
        raise RuntimeError("the switch was not acknowledged")


def served(bootstrap: str) -> Found:
    """What a reader sees: it asks which topic has the view, and reads that."""
    return totals_of(bootstrap, dict(read_records(bootstrap, SERVING))[VIEW]["topic"])


def compare(old: Found, new: Found) -> list[str]:
    """Why the new version must not be served: an order that one has and the other has not."""
    before, after = by_country(old.cells), by_country(new.cells)
    return [
        f"{country}: {old.name} has {before.get(country)}, {new.name} has {after.get(country)}"
        for country in sorted(before.keys() | after.keys())
        if before.get(country) != after.get(country)
    ]


def reprocess(place: Stage, truth: Truth) -> list[str]:
    """The five steps; what stands in the way of the switch."""
    bootstrap, screen = place.bootstrap, place.screen
    stream = OrderStream(ORDERS, SEED)
    ticks = list(stream.ticks())
    for orders in ticks:
        for order in orders:
            truth.add(order)
    screen.say("v1 adds up orders as they come, and is served")
    first = arrivals(ticks[:BEFORE])
    send(bootstrap, "orders", first)
    old = start_file(place, HERE / "totals-v1.yaml")
    serve(bootstrap, "totals-v1")
    with screen.busy("v1 reads"):
        wait("v1 to have read what is there", lambda: old[0].progress().rows >= len(first), old)
    screen.say("v2 reads the log from its beginning, orders go on coming")
    new = start_file(place, HERE / "totals-v2.yaml")
    closing = OPENING + timedelta(hours=12)
    send(bootstrap, "orders", [*arrivals(ticks[BEFORE:], BEFORE), (stream.at(12 * 3_600), closing)])
    end = OPENING + timedelta(seconds=HOUR_SECONDS)
    queries = [work.query for work in (*old, *new)]  # type: ignore[attr-defined]
    with screen.busy("v2 catches up"):
        wait(
            "both to have written every window",
            lambda: all((watermark_of(query) or OPENING) > end for query in queries),
            [*old, *new],
        )
    before, after = totals_of(bootstrap, "totals-v1"), totals_of(bootstrap, "totals-v2")
    moved = sum(before.cells.get(cell) != total for cell, total in after.cells.items())
    screen.say(f"compared: {moved} of {len(after.cells)} windows differ")
    faults = compare(before, after)
    if not faults:
        serve(bootstrap, "totals-v2")
        screen.say("the same orders in both: readers are switched to v2, v1 is stopped")
    for work in (*old, *new):
        work.stop()
    return faults


def main() -> int:
    """Run it all."""
    console = Console(width=WIDTH)
    truth = Truth()
    topics = {
        "orders": {"partitions": 3, "retention_ms": -1},
        "totals-v1": {"partitions": 2},
        "totals-v2": {"partitions": 2},
        SERVING: {"cleanup_policy": "compact"},
    }
    with stage(console, topics) as place:
        faults = reprocess(place, truth)
        old, found = totals_of(place.bootstrap, "totals-v1"), served(place.bootstrap)
    console.print(table_of(truth, found))
    faults += found.differences(truth)
    for fault in faults:
        console.print(fault, style="red", soft_wrap=True, highlight=False)
    wrong = len(old.differences(truth))
    if not faults:
        console.print(f"{found.name} is served and right; v1 had {wrong} totals wrong.", style="bold green")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
