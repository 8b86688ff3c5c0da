"""The Celery application of `test_conformance_amqp_celery.py`, which workers import.

Where the gateway is, and the file to which tasks write what they did, are in the environment.
"""

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery
from kombu.entity import Queue

app = Celery("shop", broker=os.environ.get("AMQP_URL", "amqp://"), backend="rpc://")
app.conf.update(
    task_queues=[Queue("celery"), Queue("urgent", queue_arguments={"x-max-priority": 9})],
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
)


def note(text: str) -> None:
    with Path(os.environ["AMQP_NOTES"]).open("a") as file:
        file.write(f"{text}\n")


@app.task
def add(first: int, second: int) -> int:
    return first + second


@app.task(bind=True, max_retries=3)
def comes_through_later(self: Any, number: int) -> int:
    if self.request.retries < 2:
        raise self.retry(countdown=0.2)
    return number


@app.task
def slow(number: int) -> int:
    time.sleep(0.1)
    note(str(number))
    return number


@app.task
def stamped(sent_at: float) -> float:
    return time.time() - sent_at
