"""Delay topics by TLS, with users and rights: who needs which, and what waits without."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclOperation,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from tests.conformance.drivers.kcat import run_kcat
from tests.conformance.test_conformance_acls import SECONDS_MAX, SETTINGS, acl
from tidelog.security.certificates import Authority, write_secret
from tidelog.testing.broker import RunningBroker

#: how brokers are known where they reach each other without a login: with one they are super users
BROKERS = "ANONYMOUS"
PATIENCE_SECONDS = 60.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("delays")
    authority = Authority.create()
    write_secret(folder / "ca.pem", authority.certificate)
    write_secret(folder / "broker.pem", authority.issue("broker", ["localhost", "127.0.0.1"]).keystore)
    return folder


@pytest.fixture(scope="module")
def secured(folder: Path, oracle: bool) -> Iterator[str]:
    if oracle:
        pytest.skip("delay topics are Tidelog's own")
    settings = {
        **SETTINGS,
        "listeners": "SASL_SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "security.inter.broker.protocol": "PLAINTEXT",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "ssl.truststore.location": str(folder / "ca.pem"),
    }
    with RunningBroker(settings, mode="process") as broker:
        yield broker.bootstrap


def properties_of(user: str, bootstrap: str, folder: Path) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(folder / "ca.pem"),
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": f"secret of {user}",
    }


def test_rights(secured: str, folder: Path) -> None:
    admin = AdminClient(properties_of("admin", secured, folder))
    topics = [NewTopic("orders", 1, 1), NewTopic("later", 1, 1, config={"tidelog.delay.target": "orders"})]
    for each in admin.create_topics(topics).values():
        each.result(SECONDS_MAX)
    prefixed = ResourcePatternType.PREFIXED
    # What docs/delays.md says that brokers need, but for the target.
    rights = [
        acl(ResourceType.BROKER, "kafka-cluster", BROKERS, AclOperation.CLUSTER_ACTION),
        acl(ResourceType.TRANSACTIONAL_ID, "__tidelog_delay.", BROKERS, AclOperation.WRITE, prefixed),
        acl(ResourceType.GROUP, "__tidelog_delay.", BROKERS, AclOperation.READ, prefixed),
        acl(ResourceType.TOPIC, "later", BROKERS, AclOperation.READ),
        acl(ResourceType.TOPIC, "later", "alice", AclOperation.WRITE),
    ]
    for each in admin.create_acls(rights).values():
        each.result(SECONDS_MAX)

    errors: list[KafkaError | None] = []
    alice = Producer(properties_of("alice", secured, folder))
    headers: dict[str, str | bytes | None] = {"tidelog-delay-ms": "100"}
    for topic in ("later", "orders"):
        alice.produce(topic, b"1", b"k", headers=headers, on_delivery=lambda error, _: errors.append(error))
        alice.flush(SECONDS_MAX)
    assert errors[0] is None, "who sends to a delay topic needs the right to write there"
    assert errors[1] is not None, "and none for its target"
    assert errors[1].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    words = [f"-X{name}={value}" for name, value in properties_of("alice", secured, folder).items()]
    run_kcat("-P", "-t", "later", "-p", "0", "-H", "tidelog-delay-ms=200", *words, stdin=b"2")

    reason = until(lambda: described(secured, folder)["reason"])
    assert "TOPIC_AUTHORIZATION_FAILED" in reason
    assert described(secured, folder)["waiting"] == 2

    [allowed] = admin.create_acls([acl(ResourceType.TOPIC, "orders", BROKERS, AclOperation.WRITE)]).values()
    allowed.result(SECONDS_MAX)
    assert read(secured, folder, 2) == [b"1", b"2"]
    until(lambda: not described(secured, folder)["reason"])


def until(look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.3)
    raise AssertionError("it did not come to pass in time")


def described(bootstrap: str, folder: Path) -> dict[str, Any]:
    """What `tidelog delay list` says of the partition."""
    file = folder / "client.properties"
    properties = properties_of("admin", bootstrap, folder)
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    command = [sys.executable, "-m", "tidelog.cli", "delay", "list", "--json"]
    environment = {**os.environ, "TIDELOG_CLIENT_CONFIG": str(file)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    [row] = json.loads(done.stdout)
    return dict(row)


def read(bootstrap: str, folder: Path, count: int) -> list[bytes]:
    settings = {"group.id": "g", "isolation.level": "read_committed"}
    consumer = Consumer({**properties_of("admin", bootstrap, folder), **settings})
    consumer.assign([TopicPartition("orders", 0, 0)])
    found: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(found) < count and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            found.append(message.value() or b"")
    consumer.close()
    return found
