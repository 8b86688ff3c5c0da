"""Every client doing the same small piece of work by one way in: admin, produce, a group, a transaction.

Each function returns what the consumer read, and raises what the client raises.
"""

import asyncio
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.conformance.drivers.contract import DEADLINE_SECONDS, require_program
from tests.conformance.secured_cluster import Access

PLAIN_VALUES = [b"one", b"two"]
COMMITTED = b"committed"
EXPECTED = [*PLAIN_VALUES, COMMITTED]
SESSION_MS = 10_000


class Refused(Exception):
    """The client was refused; the text is what it says."""


def librdkafka_properties(access: Access) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "bootstrap.servers": access.bootstrap,
        "security.protocol": access.protocol,
        "ssl.ca.location": access.authority,
    }
    if access.certificate:
        properties |= {"ssl.certificate.location": access.certificate, "ssl.key.location": access.key}
    if access.mechanism:
        properties["sasl.mechanisms"] = access.mechanism
    if access.mechanism not in ("", "OAUTHBEARER"):
        properties |= {"sasl.username": access.user, "sasl.password": access.password}
    return properties


def confluent(access: Access, topic: str) -> list[bytes]:
    from confluent_kafka import Consumer, KafkaException, Producer
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    errors: list[str] = []
    properties = librdkafka_properties(access)
    properties["error_cb"] = lambda error: errors.append(str(error))
    if access.mechanism == "OAUTHBEARER":
        properties["oauth_cb"] = lambda _: (access.token, time.time() + 300)
    admin = AdminClient(properties)
    deadline = time.monotonic() + DEADLINE_SECONDS
    future = admin.create_topics([NewTopic(topic, 1, 1)], request_timeout=5)[topic]
    while not future.done() and time.monotonic() < deadline:
        admin.poll(0.05)
        if any("_AUTHENTICATION" in error or "_SSL" in error for error in errors):
            raise Refused(errors[0])
    try:
        future.result(1)
    except KafkaException as refused:
        raise Refused(f"{refused} {errors}") from refused
    producer = Producer({**properties, "linger.ms": 0})
    for value in PLAIN_VALUES:
        producer.produce(topic, value)
    assert producer.flush(DEADLINE_SECONDS) == 0
    writer = Producer({**properties, "transactional.id": f"{topic}-id"})
    writer.init_transactions(DEADLINE_SECONDS)
    for value, end in ((COMMITTED, writer.commit_transaction), (b"aborted", writer.abort_transaction)):
        writer.begin_transaction()
        writer.produce(topic, value)
        assert writer.flush(DEADLINE_SECONDS) == 0
        end(DEADLINE_SECONDS)
    consumer = Consumer({**properties, "group.id": f"{topic}-group", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    received: list[bytes] = []
    while len(received) < len(EXPECTED) and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and not message.error():
            received.append(message.value() or b"")
    consumer.commit(asynchronous=False)
    consumer.close()
    return received


def kafka_python_options(access: Access) -> dict[str, Any]:
    options: dict[str, Any] = {
        "bootstrap_servers": access.bootstrap,
        "security_protocol": access.protocol,
        "ssl_cafile": access.authority,
    }
    if access.certificate:
        options |= {"ssl_certfile": access.certificate, "ssl_keyfile": access.key}
    if access.mechanism:
        options["sasl_mechanism"] = access.mechanism
    if access.mechanism not in ("", "OAUTHBEARER"):
        options |= {"sasl_plain_username": access.user, "sasl_plain_password": access.password}
    return options


def kafka_python(access: Access, topic: str) -> list[bytes]:
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
    from kafka.admin import NewTopic
    from kafka.errors import KafkaError
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Given(AbstractTokenProvider):
        def token(self) -> str:
            return access.token

    options = kafka_python_options(access)
    if access.mechanism == "OAUTHBEARER":
        options["sasl_oauth_token_provider"] = Given()
    try:
        admin = KafkaAdminClient(**options, bootstrap_timeout_ms=5_000)
    except KafkaError as refused:
        raise Refused(repr(refused)) from refused
    admin.create_topics([NewTopic(topic, 1, 1)])
    admin.close()
    producer = KafkaProducer(**options)
    for value in PLAIN_VALUES:
        producer.send(topic, value).get(DEADLINE_SECONDS)
    producer.close()
    writer = KafkaProducer(**options, transactional_id=f"{topic}-id")
    writer.init_transactions()
    for value, end in ((COMMITTED, writer.commit_transaction), (b"aborted", writer.abort_transaction)):
        writer.begin_transaction()
        writer.send(topic, value).get(DEADLINE_SECONDS)
        end()
    writer.close()
    consumer = KafkaConsumer(
        topic,
        **options,
        group_id=f"{topic}-group",
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        session_timeout_ms=SESSION_MS,
        consumer_timeout_ms=int(DEADLINE_SECONDS * 1000),
    )
    received = []
    for message in consumer:
        received.append(message.value)
        if len(received) == len(EXPECTED):
            break
    consumer.commit()
    consumer.close()
    return received


def aiokafka(access: Access, topic: str) -> list[bytes]:
    return asyncio.run(asyncio.wait_for(_aiokafka(access, topic), DEADLINE_SECONDS))


async def _aiokafka(access: Access, topic: str) -> list[bytes]:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.abc import AbstractTokenProvider
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic
    from aiokafka.errors import KafkaError
    from aiokafka.helpers import create_ssl_context

    class Given(AbstractTokenProvider):
        async def token(self) -> str:
            return access.token

    options: dict[str, Any] = {"bootstrap_servers": access.bootstrap, "security_protocol": access.protocol}
    if access.protocol.endswith("SSL"):
        options["ssl_context"] = create_ssl_context(
            cafile=access.authority, certfile=access.certificate or None, keyfile=access.key or None
        )
    if access.mechanism == "OAUTHBEARER":
        options |= {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": Given()}
    elif access.mechanism:
        options |= {
            "sasl_mechanism": access.mechanism,
            "sasl_plain_username": access.user,
            "sasl_plain_password": access.password,
        }
    admin = AIOKafkaAdminClient(**options)
    try:
        await admin.start()
    except KafkaError as refused:
        raise Refused(repr(refused)) from refused
    finally:
        if admin._client.cluster.brokers() == set():
            await admin.close()
    await admin.create_topics([NewTopic(topic, 1, 1)])
    await admin.close()
    producer = AIOKafkaProducer(**options)
    await producer.start()
    for value in PLAIN_VALUES:
        await producer.send_and_wait(topic, value)
    await producer.stop()
    writer = AIOKafkaProducer(**options, transactional_id=f"{topic}-id")
    await writer.start()
    async with writer.transaction():
        await writer.send_and_wait(topic, COMMITTED)
    await writer.begin_transaction()
    await writer.send_and_wait(topic, b"aborted")
    await writer.abort_transaction()
    await writer.stop()
    consumer = AIOKafkaConsumer(
        topic,
        **options,
        group_id=f"{topic}-group",
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    await consumer.start()
    received = [(await consumer.getone()).value for _ in EXPECTED]
    await consumer.commit()
    await consumer.stop()
    return received


def kcat(access: Access, topic: str) -> list[bytes]:
    """kcat has neither admin requests nor transactions: topics come by themselves, all values are plain."""
    properties = librdkafka_properties(access)
    if access.mechanism == "OAUTHBEARER":
        # It can be given no token of ours, only make up one that nobody signed.
        properties |= {
            "enable.sasl.oauthbearer.unsecure.jwt": "true",
            "sasl.oauthbearer.config": "principal=carol",
        }
    flags = [part for name, value in properties.items() for part in ("-X", f"{name}={value}")]
    program = require_program("kcat")
    group = [
        "-G",
        f"{topic}-group",
        "-X",
        "auto.offset.reset=earliest",
        "-c",
        str(len(EXPECTED)),
        "-u",
        topic,
    ]
    sent = b"\n".join(EXPECTED) + b"\n"
    steps: list[tuple[list[str], bytes]] = [([program, "-P", "-t", topic, *flags], sent)]
    steps.append(([program, *flags, "-q", *group], b""))
    output = b""
    for command, stdin in steps:
        try:
            done = subprocess.run(
                command, input=stdin, capture_output=True, timeout=DEADLINE_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as late:
            raise Refused(str(late.stderr)) from late
        if done.returncode or b"Delivery failed" in done.stderr:
            raise Refused(done.stderr.decode(errors="replace"))
        output = done.stdout
    return output.split()


CLIENTS: dict[str, Callable[[Access, str], list[bytes]]] = {
    "confluent-kafka": confluent,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
    "kcat": kcat,
}


def java_properties(access: Access, path: Path) -> None:
    """What the Java client is given."""

    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    lines = {
        "bootstrap.servers": access.bootstrap,
        "security.protocol": access.protocol,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": access.authority,
    }
    if access.keystore:
        lines |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": access.keystore}
    package = "org.apache.kafka.common.security"
    if access.mechanism:
        lines["sasl.mechanism"] = access.mechanism
    if access.mechanism == "OAUTHBEARER":
        lines |= {
            "sasl.jaas.config": f"{package}.oauthbearer.OAuthBearerLoginModule required;",
            "sasl.login.callback.handler.class": f"{package}.oauthbearer.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": Path(access.token_file).as_uri(),
        }
    elif access.mechanism:
        module = "plain.PlainLoginModule" if access.mechanism == "PLAIN" else "scram.ScramLoginModule"
        user = f"username={quoted(access.user)} password={quoted(access.password)}"
        lines["sasl.jaas.config"] = f"{package}.{module} required {user};"
    escaped = {name: value.replace("\\", "\\\\") for name, value in lines.items()}
    path.write_text("".join(f"{name}={value}\n" for name, value in escaped.items()))
