"""ACLs with real clients: a broker with SASL/PLAIN and an authorizer, and the page that explains them."""

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from tidelog.model.access_settings import STANDARD_AUTHORIZER
from tidelog.testing.broker import RunningBroker

PAGE = Path(__file__).parents[2] / "docs" / "acls.md"
USERS = ("admin", "alice", "bob", "mallory")
SECONDS_MAX = 60

SETTINGS = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="admin" password="secret of admin" '
        + " ".join(f'user_{user}="secret of {user}"' for user in USERS)
        + ";"
    ),
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:admin",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "2",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}


@pytest.fixture(scope="module")
def secured(oracle: bool) -> Iterator[str]:
    if oracle:
        pytest.skip("needs a broker with users of its own")
    with RunningBroker(SETTINGS, mode="process") as broker:
        yield broker.bootstrap


def properties_of(user: str, bootstrap: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": f"secret of {user}",
    }


Connect = Callable[..., dict[str, Any]]


@pytest.fixture
def as_user(secured: str) -> Connect:
    def connect(user: str, **more: Any) -> dict[str, Any]:
        extra = {name.replace("_", "."): value for name, value in more.items()}
        return {**properties_of(user, secured), **extra}

    return connect


def outcome(futures: Any) -> KafkaError | None:
    """The error of the one future there is, None if there is none."""
    [future] = futures.values()
    try:
        future.result(timeout=SECONDS_MAX)
    except KafkaException as failure:
        error: KafkaError = failure.args[0]
        return error
    return None


def acl(
    kind: ResourceType,
    name: str,
    user: str,
    operation: AclOperation,
    way: ResourcePatternType = ResourcePatternType.LITERAL,
    permission: AclPermissionType = AclPermissionType.ALLOW,
) -> AclBinding:
    return AclBinding(kind, name, way, f"User:{user}", "*", operation, permission)


@pytest.fixture
def admin(as_user: Connect) -> AdminClient:
    return AdminClient(as_user("admin"))


def produced(properties: dict[str, Any], topic: str, value: bytes = b"v") -> KafkaError | None:
    errors: list[KafkaError | None] = []
    producer = Producer({**properties, "message.timeout.ms": 20_000})
    producer.produce(topic, value, on_delivery=lambda error, message: errors.append(error))
    producer.flush(SECONDS_MAX)
    return errors[0]


def consumed(properties: dict[str, Any], topic: str, group: str) -> bytes | KafkaError:
    """The first value of a topic as a member of a group, or why there is none."""
    consumer = Consumer({**properties, "group.id": group, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        deadline = time.monotonic() + SECONDS_MAX
        while time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is None:
                continue
            if (error := message.error()) is not None:
                return error
            value = message.value()
            assert isinstance(value, bytes)
            consumer.commit(message, asynchronous=False)  # type: ignore[call-overload]
            return value
        raise AssertionError("neither a record nor an error came")
    finally:
        consumer.close()


def test_rights_are_given_and_taken_while_clients_are_connected(as_user: Connect, admin: AdminClient) -> None:
    topic, group = "life", "life-group"
    assert outcome(admin.create_topics([NewTopic(topic, 2)])) is None
    alice = as_user("alice")
    refused = produced(alice, topic)
    assert refused is not None and refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    rights = [
        acl(ResourceType.TOPIC, topic, "alice", AclOperation.WRITE),
        acl(ResourceType.TOPIC, topic, "alice", AclOperation.READ),
        acl(ResourceType.GROUP, group, "alice", AclOperation.READ),
    ]
    for future in admin.create_acls(rights).values():
        future.result(timeout=SECONDS_MAX)
    assert produced(alice, topic, b"first") is None
    assert consumed(alice, topic, group) == b"first"
    wrong_group = consumed(alice, topic, "other-group")
    assert isinstance(wrong_group, KafkaError)
    assert wrong_group.code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    # A producer that is at work loses its right.
    errors: list[KafkaError | None] = []
    producer = Producer({**alice, "linger.ms": 0, "enable.idempotence": False, "message.timeout.ms": 20_000})
    gone = AclBindingFilter(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        "User:alice",
        None,  # type: ignore[arg-type]
        AclOperation.WRITE,
        AclPermissionType.ANY,
    )
    for _ in range(100):
        producer.produce(topic, b"before", on_delivery=lambda e, m: errors.append(e))
        producer.poll(0)
    producer.flush(SECONDS_MAX)
    assert errors == [None] * 100
    [deleted] = admin.delete_acls([gone]).values()
    assert len(deleted.result(timeout=SECONDS_MAX)) == 1
    producer.produce(topic, b"after", on_delivery=lambda e, m: errors.append(e))
    producer.flush(SECONDS_MAX)
    assert errors[100] is not None and errors[100].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_admin_requests_need_rights(as_user: Connect, admin: AdminClient) -> None:
    mallory = AdminClient(as_user("mallory"))
    outcomes = [
        outcome(mallory.create_topics([NewTopic("mine", 1)])),
        outcome(mallory.delete_topics(["life"])),
        outcome(mallory.create_acls([acl(ResourceType.TOPIC, "*", "mallory", AclOperation.ALL)])),
    ]
    codes = [error.code() if error is not None else None for error in outcomes]
    assert codes[:2] == [KafkaError.TOPIC_AUTHORIZATION_FAILED] * 2
    assert codes[2] == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    assert mallory.list_topics(timeout=SECONDS_MAX).topics == {}
    everything = AclBindingFilter(
        ResourceType.ANY,
        None,  # type: ignore[arg-type]
        ResourcePatternType.ANY,
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    # This client takes a refusal for an empty list; the command line does not (see the page).
    assert outcome(admin.create_acls([acl(ResourceType.TOPIC, "x", "bob", AclOperation.READ)])) is None
    assert mallory.describe_acls(everything).result(timeout=SECONDS_MAX) == []
    assert len(admin.describe_acls(everything).result(timeout=SECONDS_MAX)) >= 1


def test_transactions_need_the_transactional_id(as_user: Connect, admin: AdminClient) -> None:
    outcome(admin.create_topics([NewTopic("paid", 1)]))
    admin.create_acls([acl(ResourceType.TOPIC, "paid", "bob", AclOperation.WRITE)])
    bob = as_user("bob", transactional_id="bob-1")
    with pytest.raises(KafkaException) as refused:
        Producer(bob).init_transactions(SECONDS_MAX)
    assert refused.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    right = acl(
        ResourceType.TRANSACTIONAL_ID, "bob-", "bob", AclOperation.WRITE, ResourcePatternType.PREFIXED
    )
    assert outcome(admin.create_acls([right])) is None
    producer = Producer(bob)
    producer.init_transactions(SECONDS_MAX)
    producer.begin_transaction()
    producer.produce("paid", b"x")
    producer.commit_transaction(SECONDS_MAX)


# -- the page


def console_lines(text: str) -> list[tuple[str, list[str]]]:
    """The commands of the console blocks, each with the output that is shown under it."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif line.strip():
                found[-1][1].append(line)
    return found


@pytest.fixture
def untouched(oracle: bool) -> Iterator[str]:
    """The address of a broker that no other test gave ACLs to."""
    if oracle:
        pytest.skip("needs a broker with users of its own")
    with RunningBroker(SETTINGS, mode="process") as broker:
        yield broker.bootstrap


def test_the_page_does_what_it_says(untouched: str, tmp_path: Path) -> None:
    for user in USERS:
        lines = [f"{name}={value}" for name, value in properties_of(user, untouched).items()]
        (tmp_path / f"{user}.properties").write_text("\n".join(lines) + "\n")
    commands = console_lines(PAGE.read_text(encoding="utf-8"))
    assert len(commands) >= 15
    runner = shlex.join([sys.executable, "-m", "tidelog.cli"])
    for command, expected in commands:
        done = subprocess.run(
            ["bash", "-c", re.sub(r"\btidelog (?=[a-z]+ )", f"{runner} ", command)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            env={**os.environ, "TIDELOG_BOOTSTRAP": untouched},
        )
        refused = [line for line in expected if line.startswith("error: ")]
        assert done.returncode == (1 if refused else 0), (command, done.stdout, done.stderr)
        shown = done.stderr if refused else done.stdout
        for line in expected:
            assert line.removeprefix("error: ") in shown, (command, done.stdout, done.stderr)
        if "topic list" in command:
            assert len(done.stdout.split("\n")) <= len(expected) + 4, (command, done.stdout)
