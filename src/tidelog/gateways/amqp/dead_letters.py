"""Where the dead letters of a queue go: to its dead letter exchange, with RabbitMQ's `x-death` headers."""

import datetime
import time
from collections.abc import Callable
from typing import Any

from tidelog.client.faults import ClientFault
from tidelog.gateways.amqp.definitions import Definitions, Queue
from tidelog.gateways.amqp.messages import BadMessage, from_record, to_record
from tidelog.gateways.amqp.metrics import Metrics
from tidelog.gateways.amqp.record_writer import RecordWriter
from tidelog.gateways.amqp.routing import route
from tidelog.records.record import Record

_DEATHS_MAX = 20
Then = Callable[["ClientFault | None"], None]


class DeadLetters:
    """Writes dead letters."""

    def __init__(self, definitions: Definitions, metrics: Metrics) -> None:
        self._definitions = definitions
        self._metrics = metrics

    def write(self, queue: Queue, record: Record, reason: str, writer: RecordWriter, then: Then) -> None:
        """Write a record of `queue` to where its dead letters go, then say so.

        Without such an exchange, or one that leads nowhere, there is nothing to write: as in RabbitMQ the
        message is gone.
        """
        exchange = self._definitions.exchanges.get(queue.dead_letter_exchange or "")
        message = from_record(record, queue.topic)
        headers = dict(message.headers)
        headers["x-death"] = deaths = _deaths(headers.get("x-death"), message, queue, reason)
        for name in ("queue", "reason", "exchange"):
            headers.setdefault(f"x-first-death-{name}", deaths[0][name])
        message.properties.headers = headers
        message.properties.expiration = None
        message.exchange = queue.dead_letter_exchange or ""
        message.routing_key = queue.dead_letter_routing_key or message.routing_key
        targets = (
            []
            if exchange is None
            else [
                target
                for target in route(self._definitions, exchange, message.routing_key, headers)
                if not _goes_round(deaths, target.name)
            ]
        )
        if not targets:
            then(None)
            return
        try:
            letter = to_record(message, int(time.time() * 1000))
        except BadMessage:
            then(None)
            return
        waiting = len(targets)
        first_fault: ClientFault | None = None

        def written(result: ClientFault | int) -> None:
            nonlocal waiting, first_fault
            waiting -= 1
            if isinstance(result, ClientFault):
                first_fault = first_fault or result
            else:
                self._metrics.dead_lettered += 1
            if not waiting:
                then(first_fault)

        for target in targets:
            writer.write(target.topic, letter, written)


def _deaths(known: Any, message: Any, queue: Queue, reason: str) -> list[dict[str, Any]]:
    """The history with this death first; a death of the same kind in the same queue is counted."""
    rows = [dict(row) for row in known if isinstance(row, dict)] if isinstance(known, list) else []
    count = 1
    for row in rows:
        if row.get("queue") == queue.name and row.get("reason") == reason:
            counted = row.get("count")
            count = counted + 1 if isinstance(counted, int) else 1
            rows.remove(row)
            break
    death: dict[str, Any] = {
        "count": count,
        "reason": reason,
        "queue": queue.name,
        "time": datetime.datetime.now(tz=datetime.UTC).replace(microsecond=0),
        "exchange": message.exchange,
        "routing-keys": [message.routing_key],
    }
    if message.properties.expiration:
        death["original-expiration"] = message.properties.expiration
    return [death, *rows][:_DEATHS_MAX]


def _goes_round(deaths: list[dict[str, Any]], queue: str) -> bool:
    """A message that only expires, in a circle, would go round for ever: as in RabbitMQ it is dropped."""
    been = [row for row in deaths if row.get("queue") == queue]
    return bool(been) and all(row.get("reason") != "rejected" for row in deaths)
