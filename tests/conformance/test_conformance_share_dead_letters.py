"""A real share group on a broker with users: its dead letters on the console and the command line, and who is
told what.
"""

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import AcknowledgeType, Producer, ShareConsumer
from starlette.testclient import TestClient

from tests.conformance.drivers.contract import DEADLINE_SECONDS, new_name
from tidelog.admin.cluster_admin import ClusterAdmin
from tidelog.admin.configs import ConfigResource, alter_configs
from tidelog.admin.topics import create_topic
from tidelog.cli.main import tidelog
from tidelog.client.client_settings import ClientSettings
from tidelog.console.application import create_application
from tidelog.console.console import Console, ConsoleSettings
from tidelog.model.access_settings import STANDARD_AUTHORIZER
from tidelog.testing.broker import RunningBroker

#: one broker for all of them; each test has a queue of its own
pytestmark = pytest.mark.xdist_group("share dead letters")

USERS = ("admin", "alice", "mallory")
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
    "offsets.topic.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}


@dataclass(frozen=True)
class Queue:
    """A topic, the share group of the same name that reads it, and the topic of its dead letters."""

    name: str
    letters: str


def properties_of(user: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": f"secret of {user}",
    }


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with RunningBroker(SETTINGS, mode="process") as broker:
        yield broker.bootstrap


@pytest.fixture
def queue(bootstrap: str) -> Queue:
    name = new_name("invoices")
    queue = Queue(name, f"dlq.{name}")
    settings = {
        "share.auto.offset.reset": "earliest",
        "errors.deadletterqueue.topic.name": queue.letters,
        "errors.deadletterqueue.copy.record.enable": "true",
    }
    options = {"bootstrap.servers": bootstrap, **properties_of("admin")}
    with ClusterAdmin(lambda: ClientSettings.from_options(options)) as admin:
        create_topic(admin, queue.name, 1)
        create_topic(admin, queue.letters, 1, configs={"errors.deadletterqueue.group.enable": "true"})
        alter_configs(admin, ConfigResource.GROUP, queue.name, settings)
    return queue


@pytest.fixture
def cli(bootstrap: str) -> Callable[..., Result]:
    def run(user: str, *words: str) -> Result:
        given = [word for pair in properties_of(user).items() for word in ("-X", "=".join(pair))]
        return CliRunner().invoke(tidelog, [*words, "--bootstrap", bootstrap, *given])

    return run


@pytest.fixture
def client(bootstrap: str, queue: Queue) -> Iterator[TestClient]:
    console = Console(ConsoleSettings(bootstrap, properties_of("admin"), poll_seconds=60))
    with TestClient(create_application(console), base_url="http://localhost") as made:
        yield made


@pytest.fixture
def member(bootstrap: str, queue: Queue) -> Iterator[Any]:
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": queue.name,
        "share.acknowledgement.mode": "explicit",
        **properties_of("admin"),
    }
    with ShareConsumer(settings) as consumer:
        consumer.subscribe([queue.name])
        yield consumer


def send(bootstrap: str, queue: Queue, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, **properties_of("admin")})
    producer.produce(queue.name, value, b"key", headers={"trace": "t"})
    assert producer.flush(DEADLINE_SECONDS) == 0


def take(member: Any, kind: AcknowledgeType) -> Any:
    """The next record, of which this is said."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (messages := list(member.poll(0.5))):
        assert time.monotonic() < deadline, "nothing came"
    for message in messages:
        member.acknowledge(message, kind)
    for fault in member.commit_sync(DEADLINE_SECONDS).values():
        assert fault is None
    (message,) = messages
    return message


def letters(cli: Callable[..., Result], queue: Queue) -> list[Any]:
    """Those that were not sent back, once the one that is on its way is there."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (found := json.loads(cli("admin", "dlq", "list", queue.letters, "--json").stdout)):
        assert time.monotonic() < deadline, "no dead letter came"
    return list(found)


def test_dead_letters_go_back_from_the_console_and_the_command_line(
    bootstrap: str, queue: Queue, cli: Callable[..., Result], client: TestClient, member: Any
) -> None:
    send(bootstrap, queue, b"bad")
    take(member, AcknowledgeType.REJECT)
    (letter,) = letters(cli, queue)
    assert (letter["group"], letter["deliveries"], letter["value"]) == (queue.name, 1, "bad")
    assert letter["headers"] == [["trace", "t"]] and "rejected" in letter["reason"]
    page = client.get(f"/group?id={queue.name}").text
    assert f'href="/topics/{queue.letters}/redrive"' in page
    page = client.get(f"/topics/{queue.letters}/redrive").text
    assert "Send 1 dead letter back" in page and queue.name in page and "rejected" in page
    picked, token = (re.search(rf'name="{name}" value="([^"]+)"', page) for name in ("picked", "token"))
    assert picked is not None and token is not None
    form = {"picked": picked[1], "token": token[1]}
    assert "1 dead letter sent back" in client.post(f"/topics/{queue.letters}/redrive", data=form).text
    again = take(member, AcknowledgeType.REJECT)
    assert (again.key(), again.value()) == (b"key", b"bad")
    assert again.headers() == [("trace", b"t"), ("tidelog.dlq.attempts", b"1")]
    (letter,) = letters(cli, queue)
    assert letter["attempts"] == 1
    assert (
        "sent back 1" in cli("admin", "dlq", "redrive", queue.letters, "--group", queue.name, "--yes").output
    )
    assert take(member, AcknowledgeType.ACCEPT).headers()[-1] == ("tidelog.dlq.attempts", b"2")
    counts = json.loads(cli("admin", "share", "describe", queue.name, "--json").stdout)["counts"]
    assert counts["acknowledgements"] == {"accept": 1, "reject": 2} and counts["dead_letters"] == 2


def test_a_user_is_told_as_much_as_he_may(
    bootstrap: str, queue: Queue, cli: Callable[..., Result], member: Any
) -> None:
    send(bootstrap, queue, b"bad")
    take(member, AcknowledgeType.REJECT)
    assert len(letters(cli, queue)) == 1
    for words in (("describe", queue.name), ("lag", queue.name), ("delete", queue.name, "--yes")):
        refused = cli("mallory", "share", *words)
        assert refused.exit_code == 1 and "GROUP_AUTHORIZATION_FAILED" in refused.output, words
    refused = cli("mallory", "share", "reset", queue.name, "--topic", queue.name, "--to-latest", "--execute")
    assert refused.exit_code == 1 and "AUTHORIZATION_FAILED" in refused.output
    assert queue.name not in cli("mallory", "share", "list").output
    for right in (("describe", "--group"), ("describe", "--topic")):
        assert cli("admin", "acl", "allow", "alice", *right, queue.name).exit_code == 0
    told = json.loads(cli("alice", "share", "describe", queue.name, "--json").stdout)
    assert len(told["members"]) == 1 and told["partitions"][0]["start"] > 0
    assert told["partitions"][0]["in_flight"] is None and told["counts"] is None
    assert cli("admin", "acl", "allow", "alice", "describe-configs", "--group", queue.name).exit_code == 0
    told = json.loads(cli("alice", "share", "describe", queue.name, "--json").stdout)
    assert told["partitions"][0]["in_flight"]["acquired"] == 0 and told["counts"]["dead_letters"] == 1
    refused = cli("alice", "share", "delete", queue.name, "--yes")
    assert refused.exit_code == 1 and "GROUP_AUTHORIZATION_FAILED" in refused.output
