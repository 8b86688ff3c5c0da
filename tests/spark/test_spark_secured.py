"""A real Spark comes in to a broker by TLS and SCRAM, as its `kafka.` options say, and not without them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.spark.ready_runs import received, send
from tidelog.security.certificates import Authority, write_secret
from tidelog.testing.broker import RunningBroker
from tidelog.testing.ports import ReservedPort

SECONDS_MAX = 60
RECORDS = 2_000
USER, PASSWORD = "bob", 'p=a,s"s\\word'
JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="{}" password="{}";'

pytestmark = pytest.mark.timeout(300)


@dataclass(frozen=True)
class Secured:
    """A broker with an open listener for the test and a secured one for Spark."""

    plaintext: str
    sasl_ssl: str
    authority: str

    def options(self, **changes: str) -> dict[str, str]:
        """In the words of librdkafka."""
        given = {
            "bootstrap_servers": self.sasl_ssl,
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_username": USER,
            "sasl_password": PASSWORD,
            "ssl_ca_location": self.authority,
            **changes,
        }
        return {f"kafka.{name.replace('_', '.')}": value for name, value in given.items()}

    def java_options(self) -> dict[str, str]:
        """In the words of Java."""
        escaped = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
        return {
            "kafka.bootstrap.servers": self.sasl_ssl,
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "SCRAM-SHA-256",
            "kafka.sasl.jaas.config": JAAS.format(USER, escaped),
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": self.authority,
        }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority.create()
    write_secret(folder / "ca.pem", authority.certificate)
    write_secret(folder / "broker.pem", authority.issue("broker", ["127.0.0.1"]).keystore)
    ports = [ReservedPort(), ReservedPort()]
    plaintext, sasl_ssl = (f"127.0.0.1:{port.port}" for port in ports)
    settings = {
        "listeners": f"PLAINTEXT://{plaintext},SASL_SSL://{sasl_ssl}",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
    }
    try:
        with RunningBroker(settings, mode="process") as broker:
            admin = AdminClient({"bootstrap.servers": plaintext})
            for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
                login = UserScramCredentialUpsertion(
                    USER, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode()
                )
                admin.alter_user_scram_credentials([login])[USER].result(SECONDS_MAX)
            for topic in ("orders", "copy", "back"):
                broker.create_topic(topic, partitions=2)
            send(plaintext, "orders", [{"key": str(n), "value": str(n)} for n in range(RECORDS)])
            yield Secured(plaintext, sasl_ssl, str(folder / "ca.pem"))
    finally:
        for port in ports:
            port.close()


def test_a_query_and_a_batch_by_tls_and_scram(spark: Any, secured: Secured, tmp_path: Path) -> None:
    query = (
        spark.readStream.format("tidelog")
        .options(**secured.options(), subscribe="orders", startingOffsets="earliest")
        .load()
        .select("key", "value")
        .writeStream.format("tidelog")
        .options(**secured.java_options(), topic="copy", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(SECONDS_MAX)
    copied = spark.read.format("tidelog").options(**secured.java_options(), subscribe="copy").load()
    copied.select("key", "value").write.format("tidelog").options(**secured.options(), topic="back").mode(
        "append"
    ).save()
    for topic in ("copy", "back"):
        found = sorted(int(message.value()) for message in received(secured.plaintext, topic))
        assert found == list(range(RECORDS))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sasl_password": "wrong"}, "invalid credentials for SCRAM-SHA-512"),
        ({"ssl_ca_location": ""}, "is not accepted.*name its authority"),
    ],
)
def test_nobody_comes_in_without_the_right_password_or_authority(
    spark: Any, secured: Secured, changes: dict[str, str], words: str
) -> None:
    given = secured.options(**changes, default_api_timeout_ms="5000")
    with pytest.raises(Exception, match=words):
        spark.read.format("tidelog").options(**given, subscribe="orders").load().count()
