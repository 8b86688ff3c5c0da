"""Schema registries under 20 clients that register, while instances are killed, paused and started again.

    python -m tests.chaos.registry_kills --seconds 60 --brokers 3
    python -m tests.chaos.registry_kills --bootstrap localhost:9092      a cluster that is there: Apache Kafka

Clients register schemas of their own and schemas that others register too, at any instance, and try again
until they are acknowledged. Every few seconds an instance is killed with SIGKILL, or stands still for
longer than its session and goes on, mostly the one that writes; with brokers of its own, a broker is killed
now and then. At the end everything is started anew. Then every instance, and the topic itself, must say the
same:

    what was acknowledged is there, under the id that was acknowledged
    no id has two schemas, no schema has two ids, no version of a subject was given twice
"""

import argparse
import json
import random
import signal
import sys
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.support.registry_process import RegistryProcess
from tidelog.registry.election import SESSION_MS
from tidelog.testing.cluster import RunningCluster

INSTANCES = 3
CLIENTS = 20
SHARED_SCHEMAS = 200
REQUEST_SECONDS = 20.0
PAUSE_SECONDS = SESSION_MS / 1000 + 4
SETTLE_SECONDS_MAX = 60.0
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
}


@dataclass
class History:
    """What was acknowledged."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    #: subject and schema, with the id and the version that were answered
    acknowledged: list[tuple[str, str, int, int]] = field(default_factory=list)
    retries: int = 0
    refused: list[str] = field(default_factory=list)
    slowest_seconds: float = 0.0


def schema_of(name: str) -> str:
    return json.dumps({"type": "record", "name": name, "fields": []}, separators=(",", ":"))


class Client(threading.Thread):
    """Registers one schema after the other until it is told to end."""

    def __init__(self, number: int, urls: list[str], history: History, seed: int) -> None:
        super().__init__(daemon=True)
        self._number = number
        self._urls = urls
        self._history = history
        self._random = random.Random(seed * 1_000 + number)
        self.ending = threading.Event()

    def run(self) -> None:
        count = 0
        with httpx2.Client(timeout=REQUEST_SECONDS) as http:
            while not self.ending.is_set():
                count += 1
                if self._random.random() < 0.5:
                    name = f"Shared{self._random.randrange(SHARED_SCHEMAS)}"
                else:
                    name = f"Own{self._number}x{count}"
                self._register(http, f"s{self._random.randrange(60)}-value", schema_of(name))

    def _register(self, http: httpx2.Client, subject: str, schema: str) -> None:
        began = time.monotonic()
        while True:
            url = self._random.choice(self._urls)
            try:
                answer = http.post(f"{url}/subjects/{subject}/versions", json={"schema": schema})
            except httpx2.HTTPError:
                answer = None
            if answer is not None and answer.status_code == 200:
                found = answer.json()
                with self._history.lock:
                    self._history.acknowledged.append((subject, schema, found["id"], found["version"]))
                    seconds = time.monotonic() - began
                    self._history.slowest_seconds = max(self._history.slowest_seconds, seconds)
                return
            with self._history.lock:
                self._history.retries += 1
                if answer is not None and answer.status_code < 500:
                    self._history.refused.append(answer.text)
                    return
            if self.ending.is_set():
                return
            time.sleep(0.1)


def primary(instances: list[RegistryProcess]) -> RegistryProcess | None:
    """The instance that says that it writes."""
    for instance in instances:
        try:
            text = httpx2.get(f"{instance.url}/metrics", timeout=1.0).text
        except httpx2.HTTPError:
            continue
        if "\ntidelog_registry_primary 1\n" in text:
            return instance
    return None


def disturb(
    instances: list[RegistryProcess],
    cluster: RunningCluster | None,
    brokers: int,
    chooser: random.Random,
    seconds: float,
) -> dict[str, int]:
    """Kill and pause for so long; what was done how often."""
    done: dict[str, int] = defaultdict(int)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(chooser.uniform(1.0, 4.0))
        writing = primary(instances)
        chosen = writing if writing is not None and chooser.random() < 0.8 else chooser.choice(instances)
        kind = "primary" if chosen is writing else "other"
        what = chooser.choice(["kill", "kill", "pause", "stop", *(["broker"] if cluster else [])])
        done[f"{what} {'' if what == 'broker' else kind}".strip()] += 1
        if what == "broker" and cluster is not None:
            number = chooser.choice(range(1, brokers + 1))
            cluster.kill(number)
            time.sleep(chooser.uniform(0.5, 3.0))
            cluster.start(number)
        elif what == "pause":
            chosen.signal(signal.SIGSTOP)
            time.sleep(PAUSE_SECONDS)
            chosen.signal(signal.SIGCONT)
        else:
            chosen.kill() if what == "kill" else chosen.stop()
            time.sleep(chooser.uniform(0.0, 3.0))
            chosen.start()
    return dict(done)


def check(instances: list[RegistryProcess], history: History, bootstrap: str, topic: str) -> list[str]:
    """What does not hold; empty if everything does."""
    wrong = [f"refused: {text[:200]}" for text in history.refused[:5]]
    ids: dict[int, set[str]] = defaultdict(set)
    texts: dict[str, set[int]] = defaultdict(set)
    versions: dict[tuple[str, int], set[str]] = defaultdict(set)
    for subject, schema, schema_id, version in history.acknowledged:
        ids[schema_id].add(schema)
        texts[schema].add(schema_id)
        versions[subject, version].add(schema)
    wrong += [
        f"acknowledged: id {found} is {len(rows)} schemas" for found, rows in ids.items() if len(rows) > 1
    ]
    wrong += [f"acknowledged: {found} has ids {rows}" for found, rows in texts.items() if len(rows) > 1]
    wrong += [
        f"acknowledged: {found} given {len(rows)} times" for found, rows in versions.items() if len(rows) > 1
    ]
    stored = read_topic(bootstrap, topic)
    by_id: dict[int, set[str]] = defaultdict(set)
    for row in stored.values():
        by_id[row["id"]].add(row["schema"])
    wrong += [f"topic: id {found} is {len(rows)} schemas" for found, rows in by_id.items() if len(rows) > 1]
    for instance in instances:
        rows = httpx2.get(f"{instance.url}/schemas", timeout=REQUEST_SECONDS).json()
        there = {(row["subject"], row["version"]): (row["id"], row["schema"]) for row in rows}
        expected = {key: (row["id"], row["schema"]) for key, row in stored.items()}
        if there != expected:
            wrong.append(f"{instance}: {len(there)} versions, the topic has {len(expected)}")
        for subject, schema, schema_id, version in history.acknowledged:
            if there.get((subject, version)) != (schema_id, schema):
                wrong.append(f"{instance}: {subject} v{version} id {schema_id} is lost or another")
    return wrong


def read_topic(bootstrap: str, topic: str) -> dict[tuple[str, int], dict[str, Any]]:
    """Every schema that a reader of committed records finds, by subject and version."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"check-{uuid.uuid4().hex}",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    found: dict[tuple[str, int], dict[str, Any]] = {}
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while True:
            message = consumer.poll(SETTLE_SECONDS_MAX)
            assert message is not None, "the topic does not answer"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return found
            key = json.loads(message.key() or b"{}")
            if key.get("keytype") == "SCHEMA" and message.value() is not None:
                value = json.loads(message.value() or b"{}")
                place = (value["subject"], value["version"])
                assert found.get(place, value) == value, f"{place} was written twice"
                found[place] = value
    finally:
        consumer.close()


@contextmanager
def a_cluster(brokers: int, bootstrap: str | None) -> Iterator[tuple[str, RunningCluster | None]]:
    if bootstrap is not None:
        yield bootstrap, None
        return
    with RunningCluster(brokers, SETTINGS) as cluster:
        yield cluster.bootstrap, cluster


def run(brokers: int, bootstrap: str | None, seconds: float, seed: int) -> list[str]:
    chooser = random.Random(seed)
    topic = f"_schemas-{uuid.uuid4().hex[:8]}"
    history = History()
    with a_cluster(brokers, bootstrap) as (address, cluster):
        options = ("--topic", topic, "--group", f"{topic}-group")
        instances = [RegistryProcess(address, options=options) for _ in range(INSTANCES)]
        try:
            for instance in instances:
                instance.start()
            urls = [instance.url for instance in instances]
            settled = httpx2.put(f"{urls[0]}/config", json={"compatibility": "NONE"}, timeout=REQUEST_SECONDS)
            assert settled.status_code == 200, settled.text
            clients = [Client(number, urls, history, seed) for number in range(CLIENTS)]
            began = time.monotonic()
            for client in clients:
                client.start()
            done = disturb(instances, cluster, brokers, chooser, seconds)
            for client in clients:
                client.ending.set()
            for client in clients:
                client.join(SETTLE_SECONDS_MAX)
            lasted = time.monotonic() - began
            for instance in instances:
                instance.kill()
            if cluster is not None:
                cluster.restart()
            for instance in instances:
                instance.start()
            wrong = check(instances, history, address, topic)
            distinct = len({row[2] for row in history.acknowledged})
            print(
                f"{len(history.acknowledged)} registrations acknowledged in {lasted:.0f} s, {distinct} ids,"
                f" {history.retries} tries in vain, slowest {history.slowest_seconds:.1f} s; {done}"
            )
            if wrong:
                for number, instance in enumerate(instances):
                    print(f"--- instance {number}\n{instance.log()[-2_000:]}", file=sys.stderr)
            return wrong
        finally:
            for instance in instances:
                instance.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Schema registries that are killed while clients register.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--bootstrap", help="a cluster that is there, in place of brokers of its own")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}")
    wrong = run(arguments.brokers, arguments.bootstrap, arguments.seconds, arguments.seed)
    for line in wrong[:20]:
        print(line)
    if wrong:
        raise SystemExit(f"{len(wrong)} things do not hold")


if __name__ == "__main__":
    main()
