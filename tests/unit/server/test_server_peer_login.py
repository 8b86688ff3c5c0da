"""Links between brokers with TLS and SASL: the login, a refusal, authentications that end one by one."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.broker.runtime.peers import PeerFault
from tidelog.client.requests import decode_response, encode_request
from tidelog.model.metadata import Endpoint
from tidelog.model.settings import BrokerSettings
from tidelog.security.certificates import Authority, write_secret
from tidelog.server.peer_login import PeerSecurity
from tidelog.server.peers import AsyncPeers
from tidelog.testing.broker import RunningBroker

METADATA = 3
SESSION_MS = 400


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("peers")
    authority = Authority.create()
    write_secret(made / "ca.pem", authority.certificate)
    write_secret(made / "broker.pem", authority.issue("broker", ["127.0.0.1"]).keystore)
    write_secret(made / "stranger.pem", Authority.create().certificate)
    return made


def settings(folder: Path, password: str = "right", trust: str = "ca.pem") -> dict[str, str]:
    return {
        "listeners": "SASL_SSL://127.0.0.1:0",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "ssl.truststore.location": str(folder / trust),
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.jaas.config": f'x required username="broker" password="{password}" user_broker="right";',
        "connections.max.reauth.ms": str(SESSION_MS),
    }


@pytest.fixture(scope="module")
def endpoint(folder: Path) -> Iterator[Endpoint]:
    with RunningBroker(settings(folder), data_directory=folder / "data") as broker:
        host, port = broker.bootstrap.split(":")
        yield Endpoint(host, int(port))


async def ask(peers: AsyncPeers) -> bytes | PeerFault:
    """One Metadata request; its answer's bytes."""
    answered: asyncio.Future[bytes | PeerFault] = asyncio.get_running_loop().create_future()

    def then(answer: memoryview | PeerFault) -> None:
        answered.set_result(answer if isinstance(answer, PeerFault) else bytes(answer))

    body = encode_request(METADATA, 9, {"topics": ()})
    peers.request(1, METADATA, 9, body, then, timeout_ms=10_000)
    return await answered


def with_peers(folder: Path, endpoint: Endpoint, count: int = 1, **changes: str) -> list[bytes | PeerFault]:
    async def main() -> list[bytes | PeerFault]:
        security = PeerSecurity(BrokerSettings.resolve(settings(folder, **changes)))
        peers = AsyncPeers(asyncio.get_running_loop(), 2, security)
        peers.find_endpoint = lambda broker_id: endpoint
        try:
            answers = []
            for _ in range(count):
                answers.append(await ask(peers))
                if count > 1:
                    await asyncio.sleep(0.02)
            return answers
        finally:
            peers.close()

    return asyncio.run(main())


def test_a_link_logs_in_before_its_first_request(folder: Path, endpoint: Endpoint) -> None:
    [answer] = with_peers(folder, endpoint)
    assert isinstance(answer, bytes) and decode_response(METADATA, 9, memoryview(answer)).brokers


def test_a_wrong_password_faults_what_waits(folder: Path, endpoint: Endpoint) -> None:
    [answer] = with_peers(folder, endpoint, password="wrong")
    assert isinstance(answer, PeerFault) and "no authentication" in answer.reason
    assert "wrong" not in repr(PeerSecurity(BrokerSettings.resolve(settings(folder, password="wrong"))))


def test_a_broker_of_another_authority_is_not_talked_to(folder: Path, endpoint: Endpoint) -> None:
    [answer] = with_peers(folder, endpoint, trust="stranger.pem")
    assert isinstance(answer, PeerFault) and "CERTIFICATE_VERIFY_FAILED" in answer.reason


def test_authentications_end_and_nobody_notices(folder: Path, endpoint: Endpoint) -> None:
    """Sixty requests over more than three sessions: a new connection is made before each ends."""
    answers = with_peers(folder, endpoint, count=60)
    assert [answer for answer in answers if isinstance(answer, PeerFault)] == []


def test_what_cannot_work_is_told(folder: Path) -> None:
    wrong = {**settings(folder), "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512"}
    with pytest.raises(ValueError, match="not among the mechanisms"):
        PeerSecurity(BrokerSettings.resolve(wrong))


def test_certificates_of_links_follow_the_settings(folder: Path) -> None:
    first = BrokerSettings.resolve(settings(folder))
    security = PeerSecurity(first)
    before = security.context
    assert security.context is before
    security.find_settings = lambda: first.with_dynamic(
        {}, {"ssl.truststore.location": str(folder / "stranger.pem")}
    )
    assert security.context is not before
    security.find_settings = lambda: first.with_dynamic({}, {"ssl.truststore.location": "/nothing.pem"})
    kept = security.context
    assert kept is not None and security.context is kept
