"""A worker of the lab: an AMQP client in a thread that takes messages of a queue one by one."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from types import TracebackType
from typing import Any

PREFETCH_COUNT = 1
TURN_SECONDS = 0.05
WAIT_SECONDS = 30.0


class Answer(StrEnum):
    """What a worker says of a message."""

    ACKNOWLEDGE = "acknowledge"
    REQUEUE = "requeue"
    #: it keeps the message and says nothing
    KEEP = "keep"


#: what becomes of a message, given its value and whether it was delivered before
Decision = Callable[[str, bool], Answer]


def done(value: str, again: bool) -> Answer:
    """A worker that can do everything."""
    return Answer.ACKNOWLEDGE


def connect(port: int) -> Any:
    """A blocking connection of pika."""
    import pika

    return pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", port, blocked_connection_timeout=WAIT_SECONDS)
    )


@contextmanager
def _channel(port: int) -> Iterator[Any]:
    """A channel of a connection of its own; what goes wrong there is a RuntimeError."""
    from pika.exceptions import AMQPError

    try:
        connection = connect(port)
        try:
            yield connection.channel()
        finally:
            connection.close()
    except AMQPError as failure:
        raise RuntimeError(f"the AMQP gateway: {failure!r}") from failure


def declare(port: int, queue: str, arguments: Mapping[str, Any]) -> None:
    """Make the queue, if it is not there."""
    with _channel(port) as channel:
        channel.queue_declare(queue, durable=True, arguments=dict(arguments))


def publish(port: int, queue: str, values: list[str], headers: Mapping[str, Any]) -> None:
    """Send to a queue; returns when everything was confirmed."""
    import pika

    properties = pika.BasicProperties(headers=dict(headers))
    with _channel(port) as channel:
        channel.confirm_delivery()
        for value in values:
            # A message that no queue takes, or that is not confirmed, raises.
            channel.basic_publish("", queue, value.encode(), properties, mandatory=True)


class QueueWorker:
    """Consumes from `__enter__` to `__exit__`; what it has not acknowledged by then is given to others."""

    def __init__(self, port: int, queue: str, decide: Decision = done) -> None:
        self.fault: str | None = None
        self._decide = decide
        self._taken: list[tuple[str, bool]] = []
        self._stop = threading.Event()
        self._connection = connect(port)
        self._channel = self._connection.channel()
        self._channel.basic_qos(prefetch_count=PREFETCH_COUNT)
        self._channel.basic_consume(queue, self._came)
        self._thread = threading.Thread(target=self._run, name=f"lab-{queue}", daemon=True)

    def __repr__(self) -> str:
        return f"<QueueWorker {len(self._taken)} deliveries>"

    def __enter__(self) -> "QueueWorker":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(WAIT_SECONDS)

    @property
    def taken(self) -> list[tuple[str, bool]]:
        """Value of every delivery so far, and whether the gateway said that it was delivered before."""
        return list(self._taken)

    def _came(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        value = body.decode()
        answer = self._decide(value, method.redelivered)
        self._taken.append((value, method.redelivered))
        if answer is Answer.ACKNOWLEDGE:
            channel.basic_ack(method.delivery_tag)
        elif answer is Answer.REQUEUE:
            channel.basic_nack(method.delivery_tag, requeue=True)

    def _run(self) -> None:
        from pika.exceptions import AMQPError

        try:
            while not self._stop.is_set():
                self._connection.process_data_events(TURN_SECONDS)
            self._connection.close()
        except AMQPError as failure:
            self.fault = repr(failure)
