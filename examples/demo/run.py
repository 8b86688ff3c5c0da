"""Orders through a cluster and Spark, a broker killed in the middle, and every cent accounted for.

    make demo
    python examples/demo/run.py --orders 90000 --seed 7

Three brokers start in a temporary folder. A shop's orders (late and out of order, as life has it) go into
a topic. Spark adds them up per five minutes of event time and country, into a topic exactly once and into
Parquet. Half-way a broker that leads a partition is killed with SIGKILL; it comes back later. At the end both
outputs are held against what the generator knows it sent.

The exit code is 0 when every total is right, 1 when one differs, 2 when something is missing on this
machine. Nothing is left behind: no process, and no file unless `--keep` names a folder.
"""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from demo_report import WIDTH, Found, Screen, Status, chart_of, errors_into, table_of
from pipeline_files import total_rows
from rich.console import Console
from shop_orders import HOUR_SECONDS, OPENING, Order, OrderFeed, OrderStream, window_of

from tidelog.pipelines.java import CannotRun
from tidelog.pipelines.session import check_environment
from tidelog.testing.cluster import RunningCluster

BROKERS = 3
PARTITIONS = 4
FEED_SECONDS = 60.0
#: of the orders, when the broker is killed: between these, as soon as both queries have written something
KILL_FROM, KILL_TO = 0.4, 0.7
DOWN_SECONDS = 8.0
TOO_LATE = 40
CLOSING_HOURS = 12
STEP_SECONDS = 0.25
WAIT_SECONDS_MAX = 150
CORRECT, WRONG, MISSING = 0, 1, 2


class Demo:
    """One run; `screen` shows it."""

    def __init__(self, arguments: argparse.Namespace, folder: Path, screen: Screen) -> None:
        self._orders: int = arguments.orders
        self._kills: bool = not arguments.no_kill
        self._folder = folder
        self._screen = screen
        self._stream = OrderStream(arguments.orders, arguments.seed)
        self._pace_seconds: float = arguments.seconds
        self._cluster = RunningCluster(BROKERS, data_directory=folder / "brokers")
        self._feed: OrderFeed | None = None
        self._queries: list[Any] = []
        self.notes: dict[datetime, str] = {}

    @property
    def feed(self) -> OrderFeed:
        assert self._feed is not None, "nothing is sent before the cluster runs"
        return self._feed

    def run(self) -> tuple[Found, Found]:
        """From the first broker to the last window; what is in the topic and in the files."""
        from order_windows import end_session, spark_session

        self._screen.say(f"starting {BROKERS} brokers; replicas on all of them, two must have every record")
        with self._cluster as cluster:
            cluster.create_topic("orders", PARTITIONS)
            cluster.create_topic("totals", 2)
            self._screen.say("starting Spark (10 to 20 seconds)")
            with self._screen.busy("Spark starts"):
                spark = spark_session(self._folder)
            try:
                return self._run_pipeline(spark)
            finally:
                if self._feed is not None:
                    self._feed.stop()
                for query in self._queries:
                    query.stop()
                end_session(spark)

    def _run_pipeline(self, spark: Any) -> tuple[Found, Found]:
        from order_windows import read_parquet, to_parquet, to_topic, totals

        bootstrap = self._cluster.bootstrap
        frame = totals(spark, bootstrap)
        self._queries = [to_topic(frame, bootstrap, self._folder), to_parquet(frame, self._folder)]
        self._feed = feed = OrderFeed(bootstrap, "orders", self._stream, self._pace_seconds)
        self._screen.say(
            f"an hour of the shop in about {self._pace_seconds:.0f} seconds: {self._orders:,} orders"
        )
        feed.start()
        if self._kills:
            self._break_a_broker()
        self._wait("orders to be sent", lambda: not feed.is_alive())
        self._screen.say(f"all sent; {feed.truth.late:,} came late, up to 100 seconds out of order")
        self._close_the_books()
        topic = Found.of("topic", total_rows(bootstrap, "totals"))
        parquet = Found.of("Parquet", read_parquet(spark, self._folder / "totals.parquet"))
        return topic, parquet

    def _break_a_broker(self) -> None:
        """SIGKILL for a leader in the middle; it comes back towards the end."""
        from order_windows import rows_read

        feed = self.feed

        def midway() -> bool:
            share = feed.sent / self._orders
            working = all(rows_read(query) for query in self._queries)
            return share >= KILL_TO or (share >= KILL_FROM and working) or not feed.is_alive()

        self._wait("half of the orders", midway)
        victim = self._cluster.leader("orders", 0)
        self._cluster.kill(victim)
        self.notes[window_of(feed.shop_time)] = f"broker {victim} killed"
        self._screen.say(f"kill -9 broker {victim}, which led orders-0", "bold red")
        before = feed.sent
        self._wait("orders to flow again", lambda: feed.sent > before or not feed.is_alive())
        self._screen.say(
            f"broker {self._cluster.leader('orders', 0)} leads orders-0 now, orders flow", "green"
        )
        due = time.monotonic() + DOWN_SECONDS
        self._wait("the broker to come back", lambda: time.monotonic() >= due)
        self._cluster.start(victim)
        self._screen.say(f"broker {victim} is back and catches up", "green")

    def _close_the_books(self) -> None:
        """An order of the next morning moves the watermark past the evening; what comes after is too late."""
        from order_windows import watermark_of

        self._send([self._stream.at(CLOSING_HOURS * 3_600)])
        end = OPENING + timedelta(seconds=HOUR_SECONDS)

        def closed() -> bool:
            return all((watermark_of(query) or OPENING) >= end for query in self._queries)

        self._wait("all windows to be written", closed)
        self._send(self._stream.too_late(TOO_LATE))
        self._screen.say(
            f"all windows are written; {TOO_LATE} orders come hours too late and must change nothing"
        )
        for query in self._queries:
            query.processAllAvailable()
        self._cluster.wait_in_sync()

    def _send(self, orders: list[Order]) -> None:
        if not self.feed.send(orders):
            raise RuntimeError(f"an order was not taken: {self.feed.fault}")

    def _wait(self, what: str, reached: Callable[[], bool]) -> None:
        """Show progress until it is reached; whatever failed meanwhile is raised."""
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not reached():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {WAIT_SECONDS_MAX} s for {what}")
            self._look()
            time.sleep(STEP_SECONDS)
        self._look()

    def _look(self) -> None:
        from order_windows import rows_read, watermark_of

        if self.feed.fault is not None:
            raise RuntimeError(f"orders were not taken: {self.feed.fault}")
        for query in self._queries:
            if not query.isActive:
                raise RuntimeError(f"'{query.name}' ended: {query.exception()}")
        brokers = {number: self._cluster.running(number) for number in self._cluster.broker_ids}
        queries = tuple((query.name, rows_read(query), watermark_of(query)) for query in self._queries)
        self._screen.show(Status(self.feed.sent, self._orders, self.feed.shop_time, brokers, queries))


def report(console: Console, demo: Demo, topic: Found, parquet: Found) -> int:
    """The table, the chart and the verdict."""
    truth = demo.feed.truth
    console.print(table_of(truth, topic, parquet))
    console.print()
    console.print(chart_of(topic, demo.notes))
    console.print()
    differences = [*topic.differences(truth), *parquet.differences(truth)]
    for difference in differences[:10]:
        console.print(difference, style="red", soft_wrap=True, highlight=False)
    if differences:
        console.print(f"{len(differences)} totals differ from what was sent.", style="bold red")
        return WRONG
    rows = f"{topic.rows} windows in the topic, {parquet.rows} in Parquet"
    console.print(f"Every total is right: {rows}, each exactly once.", style="bold green", highlight=False)
    return CORRECT


def last_errors(folder: Path) -> str:
    """The end of what Spark and the clients complained about."""
    return (folder / "errors.log").read_text(errors="replace")[-4_000:]


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--orders", type=int, default=90_000)
    parser.add_argument("--seconds", type=float, default=FEED_SECONDS, help="how long to send them")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--no-kill", action="store_true", help="leave the brokers alone")
    parser.add_argument("--keep", type=Path, help="a new folder for data, Parquet and logs, which stays")
    parser.add_argument(
        "--spoil", action="store_true", help="claim one order more than was sent: the check must notice"
    )
    return parser.parse_args()


def main() -> int:
    """Run it all."""
    arguments = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    console = Console(width=WIDTH)
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="tidelog-demo-"))
    (folder / "brokers").mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    try:
        check_environment()
        with Screen(console) as screen, errors_into(folder / "errors.log"):
            demo = Demo(arguments, folder, screen)
            topic, parquet = demo.run()
        if arguments.spoil:
            next(iter(demo.feed.truth.cells.values())).add(1, 1, 390)
        code = report(console, demo, topic, parquet)
        console.print(f"{time.monotonic() - started:.0f} seconds.", style="dim")
        return code
    except CannotRun as missing:
        console.print(str(missing), style="yellow", soft_wrap=True, highlight=False, markup=False)
        return MISSING
    except (RuntimeError, TimeoutError) as fault:
        console.print(f"The demonstration failed: {fault}", style="bold red", soft_wrap=True, markup=False)
        console.print(last_errors(folder), soft_wrap=True, markup=False, highlight=False)
        return WRONG
    finally:
        if arguments.keep is None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
