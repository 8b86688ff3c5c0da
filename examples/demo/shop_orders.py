"""Orders of a shop that sells in six countries, from a seed, and what they add up to.

`OrderStream` makes the orders of one hour of the shop, tick by tick. Some come late (a phone without a
connection) and so out of order, but never later than `LATENESS_SECONDS_MAX`. `Truth` adds up what was
sent, per window and country: the pipeline must find the same.

`OrderFeed` is a thread that sends them to a topic, faster than life. It waits until all orders of a tick are
acknowledged before it goes on, so a broker that dies delays the shop's clock and never breaks the promise
about lateness.
"""

import bisect
import itertools
import json
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from confluent_kafka import KafkaError, Message, Producer

OPENING = datetime(2026, 11, 13, 18, 0, tzinfo=UTC)
HOUR_SECONDS = 3_600
TICK_SECONDS = 30
TICKS = HOUR_SECONDS // TICK_SECONDS
WINDOW_SECONDS = 300
LATENESS_SECONDS_MAX = 100
#: of all orders, how many come from a phone that was without a connection
LATE_SHARE = 0.08
FLUSH_SECONDS_MAX = 60

COUNTRIES = {"DE": 30, "FR": 22, "IT": 16, "ES": 14, "NL": 11, "SE": 7}
#: name, price in cents, how often it is bought
PRODUCTS = (
    ("espresso beans 1 kg", 1_890, 30),
    ("green tea 250 g", 1_150, 22),
    ("filter papers", 390, 40),
    ("hand grinder", 7_900, 6),
    ("moka pot", 3_450, 9),
    ("milk frother", 2_490, 8),
    ("espresso machine", 64_900, 1),
)
CUSTOMERS = 4_000


@dataclass(frozen=True, slots=True)
class Order:
    """One order; `ordered_at` is when the customer pressed the button, not when it arrived."""

    number: int
    customer: str
    country: str
    product: str
    quantity: int
    amount_cents: int
    ordered_at: datetime

    def to_json(self) -> bytes:
        """As it goes into the topic."""
        return json.dumps(
            {
                "order": self.number,
                "customer": self.customer,
                "country": self.country,
                "product": self.product,
                "quantity": self.quantity,
                "amount_cents": self.amount_cents,
                "ordered_at": self.ordered_at.isoformat(timespec="milliseconds"),
            },
            separators=(",", ":"),
        ).encode()


@dataclass(slots=True)
class Total:
    """What a window, a country or all of it adds up to."""

    orders: int = 0
    items: int = 0
    revenue_cents: int = 0

    def add(self, orders: int, items: int, revenue_cents: int) -> None:
        """Add some more."""
        self.orders += orders
        self.items += items
        self.revenue_cents += revenue_cents


#: (start of the window, country)
Cell = tuple[datetime, str]


def window_of(moment: datetime) -> datetime:
    """The start of the window that a moment is in."""
    return moment - timedelta(seconds=moment.timestamp() % WINDOW_SECONDS)


@dataclass(slots=True)
class Truth:
    """What was really sent."""

    cells: dict[Cell, Total] = field(default_factory=dict)
    late: int = 0

    def add(self, order: Order) -> None:
        """Count an order in the window of its own time."""
        cell = self.cells.setdefault((window_of(order.ordered_at), order.country), Total())
        cell.add(1, order.quantity, order.amount_cents)


class OrderStream:
    """The hour's orders, the same for the same seed."""

    def __init__(self, orders: int, seed: int) -> None:
        self._random = random.Random(seed)
        self._numbers = itertools.count(1)
        self._product_weights = list(itertools.accumulate(weight for _, _, weight in PRODUCTS))
        self._country_names = list(COUNTRIES)
        self._country_weights = list(itertools.accumulate(COUNTRIES.values()))
        # Evenings are busy in the middle: a hill of orders over the hour.
        hill = [1.0 + 1.5 * (1 - abs(2 * tick / TICKS - 1)) for tick in range(TICKS)]
        edges = [round(orders * part / sum(hill)) for part in itertools.accumulate(hill)]
        self._counts = [after - before for before, after in itertools.pairwise([0, *edges])]
        self.late = 0

    def ticks(self) -> Iterator[list[Order]]:
        """The orders in the order of their arrival, half a minute of the shop at a time."""
        for tick, count in enumerate(self._counts):
            begin = tick * TICK_SECONDS
            arrivals = sorted(self._random.uniform(begin, begin + TICK_SECONDS) for _ in range(count))
            yield [self._order(second) for second in arrivals]

    def too_late(self, count: int) -> list[Order]:
        """Orders of the first minute that arrive when the shop has long closed its books."""
        return [self.at(self._random.uniform(0, 60)) for _ in range(count)]

    def at(self, second: float) -> Order:
        """One order at this second after the opening."""
        chosen = self._random
        customer = chosen.randrange(CUSTOMERS)
        point = chosen.randrange(self._product_weights[-1])
        product, price_cents, _ = PRODUCTS[bisect.bisect_right(self._product_weights, point)]
        # A customer lives in one country.
        home = random.Random(customer).randrange(self._country_weights[-1])
        country = self._country_names[bisect.bisect_right(self._country_weights, home)]
        quantity = 1 if price_cents > 5_000 else chosen.choice((1, 1, 1, 2, 2, 3, 5))
        moment = OPENING + timedelta(milliseconds=int(second * 1_000))
        name = f"customer-{customer:04d}"
        return Order(next(self._numbers), name, country, product, quantity, quantity * price_cents, moment)

    def _order(self, second: float) -> Order:
        if self._random.random() >= LATE_SHARE:
            return self.at(second)
        delay = self._random.uniform(5, LATENESS_SECONDS_MAX - TICK_SECONDS)
        self.late += 1
        return self.at(max(0.0, second - delay))


class OrderFeed(threading.Thread):
    """Sends the orders to a topic at a steady pace; `truth` is what was acknowledged."""

    def __init__(self, bootstrap: str, topic: str, stream: OrderStream, seconds: float) -> None:
        super().__init__(name="order-feed", daemon=True)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "compression.type": "lz4",
                "linger.ms": 20,
                "log_level": 0,
            }
        )
        self._topic = topic
        self._stream = stream
        self._pause_seconds = seconds / TICKS
        self._stopping = threading.Event()
        self._refused: list[str] = []
        self.truth = Truth()
        self.sent = 0
        self.ticks_done = 0
        self.fault: str | None = None

    @property
    def shop_time(self) -> datetime:
        """What the clock in the shop shows."""
        return OPENING + timedelta(seconds=self.ticks_done * TICK_SECONDS)

    def run(self) -> None:
        """Send everything, then stop; trouble is in `fault`."""
        due = time.monotonic()
        for orders in self._stream.ticks():
            if self._stopping.wait(max(0.0, due - time.monotonic())):
                return
            due = max(due, time.monotonic() - 1) + self._pause_seconds
            if not self.send(orders):
                return
            for order in orders:
                self.truth.add(order)
            self.sent += len(orders)
            self.ticks_done += 1
        self.truth.late = self._stream.late

    def send(self, orders: list[Order]) -> bool:
        """Send some orders and wait until the cluster has them; False with `fault` set when it does not."""
        for order in orders:
            self._producer.produce(self._topic, order.to_json(), order.customer, on_delivery=self._delivered)
            self._producer.poll(0)
        left = self._producer.flush(FLUSH_SECONDS_MAX)
        if left or self._refused:
            self.fault = self._refused[0] if self._refused else f"{left} orders were not acknowledged"
            return False
        return True

    def stop(self) -> None:
        """End early, and let go of the connection."""
        self._stopping.set()
        if self.ident is not None:
            self.join(FLUSH_SECONDS_MAX)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._refused.append(str(error))
