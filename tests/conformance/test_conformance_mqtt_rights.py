"""Logins and rights of an MQTT gateway are those of the cluster; it has itself what its docs say, no more."""

import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.conformance.drivers.contract import DEADLINE_SECONDS
from tests.support.mqtt_client import V5, V311, MqttClient
from tests.support.mqtt_process import MqttProcess
from tidelog.model.access_settings import STANDARD_AUTHORIZER
from tidelog.security.certificates import Authority
from tidelog.testing.broker import RunningBroker

pytestmark = pytest.mark.xdist_group("mqtt-rights")

USERS = ("admin", "gateway", "alice", "bob")
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
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
}
TOPIC, GROUP, TRANSACTION = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
LITERAL, PREFIXED = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
ALLOW = AclPermissionType.ALLOW
#: what docs/gateways-mqtt.md says that the gateway's user needs
OWN = (
    *(
        (TOPIC, name, LITERAL, operation)
        for name in ("open", "closed", "__tidelog_mqtt_sessions", "__tidelog_mqtt_retained")
        for operation in ("READ", "WRITE", "DESCRIBE", "CREATE")
    ),
    *((TRANSACTION, "tidelog-mqtt-one", LITERAL, operation) for operation in ("WRITE", "DESCRIBE")),
    *((GROUP, "tidelog-mqtt", LITERAL, operation) for operation in ("READ", "DESCRIBE")),
    *((GROUP, "mqtt/", PREFIXED, operation) for operation in ("READ", "DESCRIBE")),
)
#: alice publishes and reads in the open, bob reads there; nobody has rights in the closed
PEOPLE = (("alice", "WRITE"), ("alice", "READ"), ("bob", "READ"))
RULES = '[[rule]]\nfilter = "open/#"\ntopic = "open"\n[[rule]]\nfilter = "closed/#"\ntopic = "closed"\n'


def client_of(user: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": f"secret of {user}",
    }


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.create()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[MqttProcess]:
    folder = tmp_path_factory.mktemp("mqtt")
    issued = authority.issue("gateway", ["127.0.0.1"])
    for name, text in (("own", issued.certificate), ("key", issued.key), ("rules", RULES)):
        (folder / name).write_text(text)
    options = ["--map", str(folder / "rules")]
    options += ["--tls-certificate", str(folder / "own"), "--tls-key", str(folder / "key")]
    with RunningBroker(SETTINGS, mode="process") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, **client_of("admin")})
        wanted = [
            AclBinding(kind, name, pattern, "User:gateway", "*", AclOperation[what], ALLOW)
            for kind, name, pattern, what in OWN
        ]
        wanted += [
            AclBinding(
                TOPIC, "open", LITERAL, f"User:{user}", "*", AclOperation[what], AclPermissionType.ALLOW
            )
            for user, what in PEOPLE
        ]
        for future in admin.create_acls(wanted, request_timeout=DEADLINE_SECONDS).values():
            future.result(DEADLINE_SECONDS)
        with MqttProcess(broker.bootstrap, client_of("gateway"), options) as running:
            yield running


@pytest.fixture
def trusting(authority: Authority, tmp_path: Path) -> ssl.SSLContext:
    path = tmp_path / "ca.pem"
    path.write_text(authority.certificate)
    return ssl.create_default_context(cafile=str(path))


def client(
    gateway: MqttProcess, trusting: ssl.SSLContext, user: str | None, password: str = "", version: int = V5
) -> MqttClient:
    text = password or f"secret of {user}"
    made = MqttClient(
        gateway.port,
        version=version,
        user=user,
        password=text if user else None,
        prepare=lambda paho: paho.tls_set_context(trusting),
    )
    made.paho.reconnect_delay_set(60, 60)
    return made


def test_a_login_is_one_of_the_cluster(gateway: MqttProcess, trusting: ssl.SSLContext) -> None:
    with client(gateway, trusting, "alice") as alice:
        assert alice.reason.value == 0
    with client(gateway, trusting, "alice", "wrong") as wrong:
        assert wrong.reason.value == 0x86
    with client(gateway, trusting, None, version=V311) as nobody:
        # paho shows the reasons of 3.1.1 by their names of 5.
        assert nobody.reason.value == 0x86
    assert "secret of" not in gateway.log() and "wrong" not in gateway.log().replace("is wrong", "")


def test_rights_are_those_of_the_cluster(gateway: MqttProcess, trusting: ssl.SSLContext) -> None:
    with client(gateway, trusting, "alice") as alice, client(gateway, trusting, "bob") as bob:
        assert bob.subscribe("open/#", "closed/#", "#", "$share/g/closed/#", qos=1) == [1, 0x87, 1, 0x87]
        # Of "#" bob gets what he may read, once for both filters.
        alice.publish("open/a", b"from alice", 1)
        assert bob.expect(1) == [("open/a", b"from alice")]
        reasons: list[int] = []
        bob.paho.on_publish = lambda _, __, ___, reason, ____: reasons.append(int(reason.value))
        bob.publish("open/a", b"from bob", 1)
        bob.publish("closed/a", b"from bob", 1)
        bob.publish("nowhere/a", b"from bob", 1)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while len(reasons) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert reasons == [0x87, 0x87, 0x87]
        assert alice.subscribe("open/#", qos=1) == [1]
        bob.expect_no_more(1, 0.3)
    with client(gateway, trusting, "bob", version=V311) as old:
        assert old.subscribe("closed/#", qos=1) == [0x80]
        old.paho.publish("open/a", b"from bob", 1)
        old.wait(lambda: old.disconnected is not None, "end of the connection")


def test_a_will_needs_the_right_to_publish(gateway: MqttProcess, trusting: ssl.SSLContext) -> None:
    bob = client(gateway, trusting, "bob")
    bob.paho.will_set("open/will", b"bye", 1)
    with bob:
        assert bob.reason.value == 0x87
