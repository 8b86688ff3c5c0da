"""The example in examples/priority: the urgent topic first, the others not never, nothing lost."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.conformance.drivers.contract import DEADLINE_SECONDS, new_name

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "examples" / "priority" / "worker.py"
NORMAL, URGENT = 200, 30
RUN_SECONDS_MAX = 100


def run(bootstrap: str, group: str, count: int, *topics: str) -> list[str]:
    command = [sys.executable, str(PROGRAM), "--bootstrap", bootstrap, "--group", group]
    done = subprocess.run(
        [*command, "--count", str(count), *topics],
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def send(bootstrap: str, topic: str, count: int) -> list[str]:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(topic, str(number), partition=0)
    assert producer.flush(DEADLINE_SECONDS) == 0
    return [f"{topic} {number}" for number in range(count)]


def test_urgent_records_come_first_and_the_others_get_their_share(bootstrap: str) -> None:
    name = new_name("jobs")
    topics = [f"{name}.p9", f"{name}.p1"]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for each in admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
        each.result(DEADLINE_SECONDS)
    normal = send(bootstrap, topics[1], NORMAL)
    first = run(bootstrap, name, 10, *topics)
    assert first == normal[:10], "nothing urgent is there"
    urgent = send(bootstrap, topics[0], URGENT)
    second = run(bootstrap, name, 2 * NORMAL, *topics)
    assert [each for each in second if each in urgent] == urgent
    assert [each for each in second if each in normal] == normal[10:], "what the first one stored counts"
    start = second.index(urgent[0])
    both = second[start : second.index(urgent[-1])]
    assert len(both) <= NORMAL // 2, "without priorities they would come behind all others"


def test_a_flood_of_urgent_records_leaves_a_quarter_to_the_others() -> None:
    """Which records have come by when depends on fetches, so the lanes are filled by hand here."""
    made = importlib.util.spec_from_file_location("priority_worker", PROGRAM)
    assert made is not None and made.loader is not None
    worker = importlib.util.module_from_spec(made)
    made.loader.exec_module(worker)
    lanes = worker.Lanes(Consumer({"bootstrap.servers": "localhost:1", "group.id": "g"}), ["p9", "p5", "p1"])
    for topic in ("p9", "p1"):
        lanes._lanes[topic].extend(topic for _ in range(8))
    assert [lanes.take() for _ in range(8)] == ["p9", "p9", "p9", "p1"] * 2
    assert [lanes.take() for _ in range(9)] == [*["p9"] * 2, "p1", "p1", *["p1"] * 4, None]
