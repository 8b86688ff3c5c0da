"""Celery with its default worker over the AMQP gateway: results, retries, ETA, priorities, killed workers.

With TIDELOG_AMQP_TESTS=1 (`make amqp-test`): its workers take many seconds to start and to stop.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.support.amqp_gateway import RunningGateway
from tests.support.child_programs import environment, program
from tidelog.testing.broker import RunningBroker

PATIENCE_SECONDS = 90.0
pytestmark = [
    pytest.mark.skipif(os.environ.get("TIDELOG_AMQP_TESTS") != "1", reason="TIDELOG_AMQP_TESTS is not 1"),
    pytest.mark.timeout(200),
    pytest.mark.xdist_group("amqp"),
]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    notes = tmp_path_factory.mktemp("celery") / "notes"
    notes.touch()
    with RunningBroker() as broker, RunningGateway(broker.bootstrap) as gateway:
        os.environ["AMQP_URL"] = f"amqp://guest:guest@127.0.0.1:{gateway.port}//"
        os.environ["AMQP_NOTES"] = str(notes)
        from tests.conformance import amqp_tasks

        amqp_tasks.app.conf.broker_url = os.environ["AMQP_URL"]
        yield amqp_tasks
        amqp_tasks.app.close()
        del os.environ["AMQP_URL"], os.environ["AMQP_NOTES"]


@contextlib.contextmanager
def worker(*queues: str, processes: int = 2) -> Iterator[subprocess.Popen[bytes]]:
    """A worker as `celery worker` starts it, in a process group of its own."""
    command = [*program("celery"), "-A", "tests.conformance.amqp_tasks", "worker"]
    command += [
        "-c",
        str(processes),
        "-n",
        f"w-{uuid4().hex[:8]}@test",
        "-Q",
        ",".join(queues or ("celery",)),
    ]
    process = subprocess.Popen(
        command,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)


def test_results_retries_and_times(tasks: Any) -> None:
    with worker():
        results = [tasks.add.delay(number, number) for number in range(30)]
        assert [each.get(timeout=PATIENCE_SECONDS) for each in results] == [
            2 * number for number in range(30)
        ]
        assert tasks.comes_through_later.delay(7).get(timeout=PATIENCE_SECONDS) == 7
        later = tasks.stamped.apply_async((time.time(),), countdown=3)
        assert later.get(timeout=PATIENCE_SECONDS) >= 3.0
        answers = tasks.app.control.inspect(timeout=5).ping()
        assert [each["ok"] for each in answers.values()] == ["pong"]


def test_higher_priorities_first(tasks: Any) -> None:
    sent = {}
    for number in range(12):
        priority = number % 10
        sent[tasks.slow.apply_async((1000 + number,), queue="urgent", priority=priority)] = priority
    with worker("urgent", processes=1):
        for each in sent:
            each.get(timeout=PATIENCE_SECONDS)
    notes = map(int, Path(os.environ["AMQP_NOTES"]).read_text().split())
    priorities = [(number - 1000) % 10 for number in notes if number >= 1000]
    assert priorities == sorted(priorities, reverse=True)


def test_every_task_is_done_though_workers_are_killed(tasks: Any) -> None:
    numbers = set(range(60))
    for number in numbers:
        tasks.slow.apply_async((number,), ignore_result=True)
    until = time.monotonic() + PATIENCE_SECONDS

    def done() -> set[int]:
        return {int(line) for line in Path(os.environ["AMQP_NOTES"]).read_text().split()} & numbers

    killed = 0
    while done() != numbers and time.monotonic() < until:
        with worker() as process:
            before = len(done())
            while done() != numbers and time.monotonic() < until:
                time.sleep(0.1)
                if killed < 2 and len(done()) > before + 10:
                    os.killpg(process.pid, signal.SIGKILL)
                    killed += 1
                    break
    assert done() == numbers and killed == 2
