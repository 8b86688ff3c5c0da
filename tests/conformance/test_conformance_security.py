"""Real clients by every way in: each works by each, and a wrong credential gets nobody in.

kcat has neither admin requests nor transactions, and can make up tokens but not be given one. What is refused
must be refused soon, with the client's error for it, and leave nothing behind.
"""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from tests.conformance.drivers.contract import new_name, require_program, unavailable
from tests.conformance.drivers.java import java_command
from tests.conformance.secured_clients import CLIENTS, EXPECTED, Refused, java_properties
from tests.conformance.secured_cluster import WAYS, Access, SecuredBroker, secured_broker
from tidelog.security.certificates import Authority, write_secret

HERE = Path(__file__).parent
REFUSED_SECONDS_MAX = 12.0
Attempt = Callable[[SecuredBroker], Access]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, oracle: bool) -> Iterator[SecuredBroker]:
    if oracle:
        pytest.skip("the foreign broker has other listeners")
    with secured_broker(tmp_path_factory.mktemp("secured")) as running:
        yield running


def topics(broker: SecuredBroker) -> set[str]:
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{broker.ports['PLAINTEXT']}"})
    return set(admin.list_topics(timeout=10).topics)


@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
@pytest.mark.parametrize("client", CLIENTS)
def test_every_client_by_every_way(client: str, listener: str, mechanism: str, broker: SecuredBroker) -> None:
    if client == "kcat" and mechanism == "OAUTHBEARER":
        listener = "TRYING_OUT"
    topic = new_name(f"secured-{client}")
    assert CLIENTS[client](broker.access(listener, mechanism), topic) == EXPECTED


def wrong_password(broker: SecuredBroker) -> Access:
    return replace(broker.access("SASL_SSL", "SCRAM-SHA-256"), password="not it")


def unknown_user(broker: SecuredBroker) -> Access:
    return replace(broker.access("SASL_PLAINTEXT", "PLAIN"), user="nobody")


def expired_token(broker: SecuredBroker) -> Access:
    return with_token(broker, broker.token(lifetime_seconds=-600))


def token_for_others(broker: SecuredBroker) -> Access:
    return with_token(broker, broker.token(aud="somebody else"))


def unsigned_token(broker: SecuredBroker) -> Access:
    header, claims, _ = broker.token().split(".")
    return with_token(broker, f"{header}.{claims}.{'A' * 342}")


def with_token(broker: SecuredBroker, token: str) -> Access:
    file = broker.folder / f"token-{time.monotonic_ns()}.jwt"
    file.write_text(token)
    return replace(broker.access("SASL_SSL", "OAUTHBEARER"), token=token, token_file=str(file))


def unknown_authority(broker: SecuredBroker) -> Access:
    path = broker.folder / "stranger.pem"
    write_secret(path, Authority.create().certificate)
    return replace(broker.access("SSL", ""), authority=str(path))


def no_certificate(broker: SecuredBroker) -> Access:
    return replace(broker.access("MTLS", ""), certificate="", key="", keystore="")


def foreign_certificate(broker: SecuredBroker) -> Access:
    own = Authority.create().issue("Mallory")
    for name, text in (("m.pem", own.certificate), ("m.key", own.key), ("m-store.pem", own.keystore)):
        write_secret(broker.folder / name, text)
    return replace(
        broker.access("MTLS", ""),
        certificate=str(broker.folder / "m.pem"),
        key=str(broker.folder / "m.key"),
        keystore=str(broker.folder / "m-store.pem"),
    )


ATTEMPTS: tuple[Attempt, ...] = (
    wrong_password,
    unknown_user,
    expired_token,
    token_for_others,
    unsigned_token,
    unknown_authority,
    no_certificate,
    foreign_certificate,
)


@pytest.mark.parametrize("attempt", ATTEMPTS)
@pytest.mark.parametrize("client", ["confluent-kafka", "kafka-python", "aiokafka"])
def test_nobody_comes_in_without_the_right_credentials(
    client: str, attempt: Attempt, broker: SecuredBroker
) -> None:
    topic = new_name("refused")
    started = time.monotonic()
    with pytest.raises(Refused):
        CLIENTS[client](attempt(broker), topic)
    assert time.monotonic() - started < REFUSED_SECONDS_MAX
    assert topic not in topics(broker)


def test_what_the_client_is_told(broker: SecuredBroker) -> None:
    with pytest.raises(Refused, match="invalid credentials for SCRAM-SHA-256"):
        CLIENTS["confluent-kafka"](wrong_password(broker), "x")
    with pytest.raises(Refused, match="invalid_token"):
        CLIENTS["confluent-kafka"](expired_token(broker), "x")
    with pytest.raises(Refused, match="certificate verify failed"):
        CLIENTS["confluent-kafka"](unknown_authority(broker), "x")


# -- kafkajs and Java: one process for all cases


def kafkajs_case(access: Access, topic: str) -> dict[str, Any]:
    ssl = {"ca": access.authority, "cert": access.certificate, "key": access.key}
    sasl = {
        "mechanism": access.mechanism,
        "username": access.user,
        "password": access.password,
        "token": access.token,
    }
    return {
        "bootstrap": access.bootstrap,
        "ssl": ssl if access.protocol.endswith("SSL") else None,
        "sasl": sasl if access.mechanism else None,
        "topic": topic,
    }


def run_kafkajs(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    node = require_program("node")
    if not (HERE / "kafkajs" / "node_modules" / "kafkajs").is_dir():
        unavailable("kafkajs is not installed")
    command = [node, str(HERE / "kafkajs" / "secured.js")]
    done = subprocess.run(
        command, input=json.dumps(cases), capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    outcomes: list[dict[str, Any]] = json.loads(done.stdout)
    return outcomes


def test_kafkajs_by_every_way(broker: SecuredBroker) -> None:
    cases = [kafkajs_case(broker.access(*way), new_name("secured-kafkajs")) for way in WAYS]
    outcomes = dict(zip(WAYS, run_kafkajs(cases), strict=True))
    expected = {"received": [value.decode() for value in EXPECTED]}
    assert outcomes == dict.fromkeys(WAYS, expected)


def test_kafkajs_is_refused(broker: SecuredBroker) -> None:
    cases = [kafkajs_case(attempt(broker), new_name("refused")) for attempt in ATTEMPTS]
    outcomes = run_kafkajs(cases)
    assert [
        attempt.__name__
        for attempt, outcome in zip(ATTEMPTS, outcomes, strict=True)
        if "error" not in outcome
    ] == []
    assert not {case["topic"] for case in cases} & topics(broker)


def run_secured_java(broker: SecuredBroker, accesses: list[Access], names: list[str]) -> list[str]:
    arguments = []
    urls = []
    for number, (access, topic) in enumerate(zip(accesses, names, strict=True)):
        path = broker.folder / f"{topic}-{number}.properties"
        java_properties(access, path)
        arguments += [str(path), topic]
        if access.token_file:
            urls.append(Path(access.token_file).as_uri())
    command = java_command(HERE / "java" / "Secured.java", *arguments)
    command.insert(1, f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={','.join(urls)}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def test_java_by_every_way(broker: SecuredBroker) -> None:
    names = [new_name("secured-java") for _ in WAYS]
    outcomes = run_secured_java(broker, [broker.access(*way) for way in WAYS], names)
    assert dict(zip(WAYS, outcomes, strict=True)) == dict.fromkeys(WAYS, "one,two,committed")


def test_java_is_refused(broker: SecuredBroker) -> None:
    names = [new_name("refused") for _ in ATTEMPTS]
    outcomes = run_secured_java(broker, [attempt(broker) for attempt in ATTEMPTS], names)
    told = dict(zip((attempt.__name__ for attempt in ATTEMPTS), outcomes, strict=True))
    assert [name for name, outcome in told.items() if not outcome.startswith("error")] == []
    seconds = {name: int(outcome.split()[2]) / 1000 for name, outcome in told.items()}
    print(f"seconds until the Java client says so: {seconds}")
    assert [name for name, taken in seconds.items() if taken >= REFUSED_SECONDS_MAX] == [], seconds
    assert "SaslAuthenticationException" in told["wrong_password"]
    assert "SslAuthenticationException" in told["unknown_authority"]
    assert not set(names) & topics(broker)
