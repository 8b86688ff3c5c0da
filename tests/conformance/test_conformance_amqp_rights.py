"""The AMQP gateway before a secured cluster: its users, its ACLs, and TLS towards AMQP clients."""

import ssl
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from confluent_kafka.admin import AclOperation, AdminClient, ResourceType  # type: ignore[attr-defined]
from pika.exceptions import AMQPConnectionError, ChannelClosedByBroker

from tests.conformance.test_conformance_acls import SETTINGS, acl, outcome, properties_of
from tests.support.amqp_gateway import RunningGateway
from tidelog.security.certificates import Authority
from tidelog.testing.broker import RunningBroker

pytestmark = pytest.mark.xdist_group("amqp")
DEFINITIONS = "__amqp_definitions"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.create()


@pytest.fixture(scope="module")
def secured() -> Iterator[str]:
    with RunningBroker(SETTINGS, mode="process") as broker:
        yield broker.bootstrap


@pytest.fixture(scope="module")
def gateway(
    secured: str, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningGateway]:
    file = tmp_path_factory.mktemp("tls") / "gateway.pem"
    file.write_text(authority.issue("gateway", ["localhost", "127.0.0.1"]).keystore)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(file)
    options = {name: value for name, value in properties_of("admin", secured).items() if "." in name}
    with RunningGateway(secured, tls=tls, options=options) as running:
        yield running


def connected(gateway: RunningGateway, authority: Authority, user: str, password: str) -> Any:
    context = ssl.create_default_context(cadata=authority.certificate)
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            "127.0.0.1",
            gateway.port,
            credentials=pika.PlainCredentials(user, password),
            ssl_options=pika.SSLOptions(context, "localhost"),
        )
    )


def test_a_login_is_the_clusters(gateway: RunningGateway, authority: Authority) -> None:
    for user, password in (("alice", "wrong"), ("nobody", "secret of nobody"), ("", "")):
        with pytest.raises(AMQPConnectionError):
            connected(gateway, authority, user, password)
    connected(gateway, authority, "alice", "secret of alice").close()
    assert gateway.gateway is not None and gateway.gateway.metrics.logins_failed >= 2


def test_each_right_is_asked_of_the_cluster(
    secured: str, gateway: RunningGateway, authority: Authority
) -> None:
    admin = AdminClient(properties_of("admin", secured))
    connection = connected(gateway, authority, "bob", "secret of bob")

    def refused(work: Any) -> int:
        with pytest.raises(ChannelClosedByBroker) as fault:
            channel = connection.channel()
            channel.confirm_delivery()
            work(channel)
        assert isinstance(fault.value.reply_code, int)
        return fault.value.reply_code

    def allow(kind: Any, name: str, *operations: Any) -> None:
        for operation in operations:
            assert outcome(admin.create_acls([acl(kind, name, "bob", operation)])) is None

    topic, group = ResourceType.TOPIC, ResourceType.GROUP
    assert refused(lambda channel: channel.queue_declare("jobs")) == 403
    allow(topic, "jobs", AclOperation.CREATE)
    assert refused(lambda channel: channel.queue_declare("jobs")) == 403
    allow(group, "amqp.jobs", AclOperation.ALTER_CONFIGS)
    allow(topic, "jobs", AclOperation.DESCRIBE, AclOperation.DELETE)
    assert refused(lambda channel: channel.queue_declare("jobs")) == 403
    allow(topic, DEFINITIONS, AclOperation.WRITE)
    channel = connection.channel()
    channel.queue_declare("jobs")
    assert refused(lambda channel: channel.basic_publish("", "jobs", b"1")) == 403
    allow(topic, "jobs", AclOperation.WRITE)
    channel.confirm_delivery()
    channel.basic_publish("", "jobs", b"2", mandatory=True)
    assert refused(lambda channel: channel.basic_get("jobs")) == 403
    allow(group, "amqp.jobs", AclOperation.READ)
    allow(topic, "jobs", AclOperation.READ)
    assert channel.basic_get("jobs", auto_ack=True)[2] == b"2"
    connection.close()
