"""Share groups with a real client through TLS and a login, and of a user without rights."""

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, ShareConsumer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclOperation,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tests.conformance.secured_clients import librdkafka_properties
from tests.conformance.secured_cluster import SecuredBroker, secured_broker
from tests.conformance.test_conformance_acls import SETTINGS, acl, outcome, properties_of
from tidelog.testing.broker import RunningBroker

SECONDS_MAX = 60.0
QUIET_SECONDS = 3.0
COUNT = 50
Properties = dict[str, Any]


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory, oracle: bool) -> Iterator[SecuredBroker]:
    if oracle:
        pytest.skip("the foreign broker has other listeners")
    with secured_broker(tmp_path_factory.mktemp("secured")) as running:
        yield running


@pytest.fixture(scope="module")
def guarded(oracle: bool) -> Iterator[str]:
    if oracle:
        pytest.skip("needs a broker with users of its own")
    with RunningBroker(SETTINGS, mode="process") as broker:
        yield broker.bootstrap


def fill(properties: Properties, queue: str) -> None:
    """A topic with records, whose group, of the same name, begins at the start."""
    admin = AdminClient(properties)
    assert outcome(admin.create_topics([NewTopic(queue, 2, 1)])) is None
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, queue, incremental_configs=[entry])
    assert outcome(admin.incremental_alter_configs([resource])) is None
    producer = Producer(properties)
    for number in range(COUNT):
        producer.produce(queue, b"%d" % number, partition=number % 2)
    assert producer.flush(SECONDS_MAX) == 0


def read(properties: Properties, queue: str, seconds: float = SECONDS_MAX) -> tuple[Counter[int], set[int]]:
    """What a member of the group gets, and the codes of what it is told instead."""
    seen: Counter[int] = Counter()
    codes: set[int] = set()
    with ShareConsumer({**properties, "group.id": queue, "log_level": 0}) as consumer:
        consumer.subscribe([queue])
        until = time.monotonic() + seconds
        while seen.total() < COUNT and not codes and time.monotonic() < until:
            try:
                messages = list(consumer.poll(0.5))
            except KafkaException as refused:
                codes.add(refused.args[0].code())
                break
            codes.update(fault.code() for each in messages if (fault := each.error()) is not None)
            seen.update(int(each.value() or b"") for each in messages if each.error() is None)
        if not codes:
            consumer.commit_sync(SECONDS_MAX)
    return seen, codes


@pytest.mark.parametrize(("listener", "mechanism"), [("MTLS", ""), ("SASL_SSL", "SCRAM-SHA-256")])
def test_a_queue_through_tls(encrypted: SecuredBroker, listener: str, mechanism: str) -> None:
    queue = f"queue-{listener.lower().replace('_', '-')}"
    properties = librdkafka_properties(encrypted.access(listener, mechanism))
    fill(properties, queue)
    assert read(properties, queue) == (Counter(range(COUNT)), set())
    assert read(properties, queue, QUIET_SECONDS) == (Counter(), set())


@pytest.mark.parametrize(
    ("lacks", "code"),
    [
        (ResourceType.GROUP, KafkaError.GROUP_AUTHORIZATION_FAILED),
        (ResourceType.TOPIC, KafkaError.TOPIC_AUTHORIZATION_FAILED),
    ],
)
def test_a_member_needs_to_read_the_group_and_the_topic(guarded: str, lacks: ResourceType, code: int) -> None:
    user = {ResourceType.GROUP: "alice", ResourceType.TOPIC: "bob"}[lacks]
    queue = f"queue-{lacks.name.lower()}"
    fill(properties_of("admin", guarded), queue)
    admin = AdminClient(properties_of("admin", guarded))
    [has] = {ResourceType.GROUP, ResourceType.TOPIC} - {lacks}
    _allow(admin, has, queue, user)
    seen, codes = read(properties_of(user, guarded), queue, 10.0)
    assert not seen
    assert codes == {code}
    _allow(admin, lacks, queue, user)
    assert read(properties_of(user, guarded), queue) == (Counter(range(COUNT)), set())


def _allow(admin: AdminClient, kind: ResourceType, name: str, user: str) -> None:
    for operation in (AclOperation.READ, AclOperation.DESCRIBE):
        assert outcome(admin.create_acls([acl(kind, name, user, operation)])) is None
