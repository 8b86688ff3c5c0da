"""Lambda: a batch layer that is right in the end, a speed layer that is quick, and a view that has both.

    python examples/lambda/run.py

1. `speed.yaml` keeps totals per five minutes up to date in a topic. `archive.yaml` keeps all orders in files.
2. A night's worth of orders arrives too late for the speed layer: it leaves them out.
3. A batch job reads all files and works out every window that ended before a boundary, late orders and all.
4. A query is answered from the batch view before the boundary and from the speed layer after it.

The exit code is 0 when the answer is what was really ordered, 1 when not.
"""

import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)
from rich.console import Console

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "demo"))

from demo_report import WIDTH, Found, table_of  # noqa: E402
from order_windows import added_up, read_parquet, watermark_of  # noqa: E402
from pipeline_files import Row, Stage, arrivals, send, stage, start_file, total_rows, wait  # noqa: E402
from shop_orders import OPENING, OrderStream, Truth  # noqa: E402

ORDERS = 6_000
TOO_LATE = 200
SEED = 33
#: windows before this are answered by the batch layer
BOUNDARY = OPENING + timedelta(minutes=30)


def batch_view(spark: Any, files: Path, view: Path) -> None:
    """The batch job: all windows before the boundary, worked out from the files and written as a new view."""
    orders = spark.read.parquet(str(files)).where(F.col("ordered_at") < F.lit(BOUNDARY))
    added_up(orders).write.mode("overwrite").parquet(str(view))


def latest(rows: list[Row]) -> list[Row]:
    """The last row of each window and country: the speed layer writes one whenever a total changes."""
    return list({(row[0], row[1]): row for row in rows}.values())


def answer(spark: Any, bootstrap: str, view: Path) -> Found:
    """A query of the totals: batch before the boundary, speed after it."""
    boundary = int(BOUNDARY.timestamp())
    batch = read_parquet(spark, view)
    speed = [row for row in latest(total_rows(bootstrap, "speed")) if row[0] >= boundary]
    return Found.of("batch + speed", [*batch, *speed])


def run(place: Stage, truth: Truth) -> tuple[Found, Found]:
    """Both layers over one evening; what they answer together, and what speed alone has."""
    bootstrap, screen = place.bootstrap, place.screen
    stream = OrderStream(ORDERS, SEED)
    on_time = arrivals(stream.ticks())
    late = [(order, datetime.now(OPENING.tzinfo)) for order in stream.too_late(TOO_LATE)]
    for order, _ in (*on_time, *late):
        truth.add(order)
    files, view = place.folder / "orders.parquet", place.folder / "view.parquet"
    archive = start_file(place, HERE / "archive.yaml", {"path": str(files)})
    speed = start_file(place, HERE / "speed.yaml")
    work = [*archive, *speed]
    screen.say(f"{len(on_time):,} orders of an evening go through both layers")
    send(bootstrap, "orders", on_time)
    with screen.busy("both layers read"):
        passed = OPENING + timedelta(minutes=20)
        query = speed[0].query  # type: ignore[attr-defined]
        wait("the speed layer to move on", lambda: (watermark_of(query) or OPENING) > passed, work)
    screen.say(f"{TOO_LATE} orders from the first minute arrive hours late; speed leaves them out")
    send(bootstrap, "orders", late)
    total = len(on_time) + len(late)
    with screen.busy("both layers read"):
        wait("both to have read all", lambda: all(one.progress().rows >= total for one in work), work)
    for one in work:
        one.stop()
    screen.say(f"the batch job works out all that was before {BOUNDARY:%H:%M} from the files")
    with screen.busy("the batch job"):
        batch_view(place.spark, files, view)
    alone = Found.of("speed alone", latest(total_rows(bootstrap, "speed")))
    return answer(place.spark, bootstrap, view), alone


def main() -> int:
    """Run it all."""
    console = Console(width=WIDTH)
    truth = Truth()
    topics = {"orders": {"partitions": 3, "retention_ms": -1}, "speed": {"partitions": 2}}
    with stage(console, topics) as place:
        found, alone = run(place, truth)
    console.print(table_of(truth, found))
    faults = found.differences(truth)
    for fault in faults:
        console.print(fault, style="red", soft_wrap=True, highlight=False)
    missing = sum(total.orders for total in truth.cells.values()) - sum(
        total.orders for total in alone.cells.values()
    )
    if not faults:
        words = f"Both layers together are right; the speed layer alone lacks {missing} orders."
        console.print(words, style="bold green", highlight=False)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
