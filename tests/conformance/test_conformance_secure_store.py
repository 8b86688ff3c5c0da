"""A broker whose metadata is in a real ZooKeeper that wants TLS, a certificate and a login (SASL).

Nobody else can read what is there: not without TLS, not without a certificate, not without the login.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.conformance.drivers.contract import DEADLINE_SECONDS, unavailable
from tidelog.coordination.store import StoreError
from tidelog.coordination.zookeeper import ZookeeperSecurity, ZookeeperStore
from tidelog.security.certificates import Authority, write_secret
from tidelog.server.zookeeper_process import ZookeeperError, ZookeeperServers, find_jars
from tidelog.testing.broker import RunningBroker
from tidelog.testing.ports import ReservedPort

# One worker for all: the strangers look at what the broker has left.
pytestmark = pytest.mark.xdist_group("secure-store")

PASSWORD = "of the brokers alone"
JAAS = (
    f'Server {{ org.apache.zookeeper.server.auth.DigestLoginModule required user_broker="{PASSWORD}"; }};\n'
)


class SecureStore:
    """A ZooKeeper with both."""

    def __init__(self, folder: Path, plain: int, encrypted: int) -> None:
        self.folder = folder
        self.connect = f"127.0.0.1:{encrypted}/secure"
        authority = Authority.create()
        write_secret(folder / "ca.pem", authority.certificate)
        write_secret(folder / "zookeeper.pem", authority.issue("zookeeper", ["127.0.0.1"]).keystore)
        write_secret(folder / "broker.pem", authority.issue("broker", ["127.0.0.1"]).keystore)
        write_secret(folder / "other.pem", authority.issue("other", ["127.0.0.1"]).keystore)
        write_secret(folder / "jaas.conf", JAAS)
        self.servers = ZookeeperServers(
            folder / "zookeeper",
            port=plain,
            properties={
                "secureClientPort": str(encrypted),
                "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
                "ssl.keyStore.location": str(folder / "zookeeper.pem"),
                "ssl.keyStore.type": "PEM",
                "ssl.trustStore.location": str(folder / "ca.pem"),
                "ssl.trustStore.type": "PEM",
                "ssl.clientAuth": "need",
                "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
            },
            java_options=(f"-Djava.security.auth.login.config={folder / 'jaas.conf'}",),
        )

    def settings(self) -> dict[str, str]:
        return {
            "zookeeper.connect": self.connect,
            "zookeeper.session.timeout.ms": "6000",
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.ssl.truststore.location": str(self.folder / "ca.pem"),
            "zookeeper.ssl.keystore.location": str(self.folder / "broker.pem"),
            "tidelog.zookeeper.sasl.mechanism": "DIGEST-MD5",
            "tidelog.zookeeper.sasl.username": "broker",
            "tidelog.zookeeper.sasl.password": PASSWORD,
            "zookeeper.set.acl": "true",
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "group.initial.rebalance.delay.ms": "0",
        }

    def security(self, **changes: object) -> ZookeeperSecurity:
        fields: dict[str, object] = {
            "tls": True,
            "truststore": str(self.folder / "ca.pem"),
            "keystore": str(self.folder / "broker.pem"),
            "check_hostname": True,
            "sasl_mechanism": "DIGEST-MD5",
            "sasl_username": "broker",
            "sasl_password": PASSWORD,
        }
        return ZookeeperSecurity(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, oracle: bool) -> Iterator[SecureStore]:
    if oracle:
        pytest.skip("this is about our own store")
    try:
        jars = find_jars()
    except ZookeeperError as error:
        unavailable(f"{error}; {error.hint}")
    if not any("netty-handler" in jar.name for jar in jars):
        unavailable("ZooKeeper's TLS needs Netty among its jars")
    plain, encrypted = ReservedPort(), ReservedPort()
    running = SecureStore(tmp_path_factory.mktemp("store"), plain.port, encrypted.port)
    running.servers.start()
    yield running
    running.servers.stop()
    for port in (plain, encrypted):
        port.close()


def test_a_broker_lives_in_it(store: SecureStore) -> None:
    with RunningBroker(store.settings(), mode="process", data_directory=store.folder / "data") as broker:
        properties = {"bootstrap.servers": broker.bootstrap}
        admin = AdminClient(properties)  # type: ignore[arg-type]
        admin.create_topics([NewTopic("kept", 1, 1)])["kept"].result(DEADLINE_SECONDS)
        producer = Producer(properties)
        producer.produce("kept", b"value")
        assert producer.flush(DEADLINE_SECONDS) == 0
        broker.restart()
        properties = {"bootstrap.servers": broker.bootstrap}
        consumer = Consumer({**properties, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["kept"])
        message = consumer.poll(DEADLINE_SECONDS)
        consumer.close()
        assert message is not None and message.value() == b"value"


@pytest.mark.parametrize(
    "changes",
    [
        {"tls": False},
        {"keystore": None},
        {"sasl_password": "wrong"},
        {"keystore": "other.pem", "sasl_mechanism": None, "sasl_username": None, "sasl_password": None},
    ],
)
def test_nobody_else_reads_it(store: SecureStore, changes: dict[str, object]) -> None:
    """ZooKeeper takes the certificate for a login too, so without SASL it is somebody else's."""
    if changes.get("keystore") is not None:
        changes = {**changes, "keystore": str(store.folder / "other.pem")}
    own = ZookeeperStore(store.connect, connection_timeout_ms=10_000, security=store.security(set_acl=True))
    assert own.load(), "the broker has left its metadata"
    own.close()
    with pytest.raises(StoreError):
        ZookeeperStore(store.connect, connection_timeout_ms=3_000, security=store.security(**changes)).load()
