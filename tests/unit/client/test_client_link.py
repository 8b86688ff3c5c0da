"""A link against a scripted broker: versions, pipelining, timeouts, hostile answers, TLS, SASL."""

import shutil
import socket
import ssl
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.unit.client.scripted_broker import ScriptedBroker, make_certificate, versions_answer
from tidelog.client.api_keys import SASL_AUTHENTICATE, SASL_HANDSHAKE
from tidelog.client.client_settings import ClientSettings
from tidelog.client.faults import AuthenticationFailed, LinkFault, UnsupportedVersion
from tidelog.client.link import Link
from tidelog.protocol.apis import API_VERSIONS, METADATA

ECHO = 1000
OFFERED = {
    API_VERSIONS: (0, 4),
    METADATA: (0, 9),
    SASL_HANDSHAKE: (0, 1),
    SASL_AUTHENTICATE: (0, 1),
    ECHO: (0, 0),
}

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")


def settings(**options: object) -> ClientSettings:
    defaults = {"request_timeout_ms": 2_000, "connection_timeout_ms": 2_000}
    return ClientSettings(bootstrap_servers=(("localhost", 1),), **{**defaults, **options})  # type: ignore[arg-type]


def plain_script(api_key: int, version: int, body: bytes) -> bytes | None:
    if api_key == API_VERSIONS:
        return versions_answer(version, OFFERED)
    return None if body == b"silence" else body


def test_versions_are_agreed_on() -> None:
    with ScriptedBroker(plain_script) as broker:
        link = Link.open("127.0.0.1", broker.port, settings())
        assert link.offers(METADATA) == (0, 9)
        assert link.version_of(METADATA, 4, 12) == 9
        with pytest.raises(UnsupportedVersion, match="0 to 9 of Metadata, versions 10 to 12 are needed"):
            link.version_of(METADATA, 10, 12)
        with pytest.raises(UnsupportedVersion, match="none of ListOffsets"):
            link.version_of(2, 0, 1)
        link.close()


def test_an_old_broker_answers_api_versions_with_version_0() -> None:
    def script(api_key: int, version: int, body: bytes) -> bytes:
        if version > 0:
            return struct.pack(">hi", 35, 0)
        return versions_answer(0, OFFERED)

    with ScriptedBroker(script) as broker:
        link = Link.open("127.0.0.1", broker.port, settings())
        assert link.offers(METADATA) == (0, 9)
        assert broker.requests == [(API_VERSIONS, 3), (API_VERSIONS, 0)]
        link.close()


def test_requests_are_pipelined_and_answers_keep_for_their_receivers() -> None:
    with ScriptedBroker(plain_script) as broker:
        link = Link.open("127.0.0.1", broker.port, settings())
        tickets = [link.send(ECHO, 0, [b"piece-", b"%d" % number]) for number in range(10)]
        large = link.send(ECHO, 0, [bytes(200_000), memoryview(b"end")])
        assert bytes(link.receive(large))[-3:] == b"end"
        for number in reversed(range(10)):
            assert bytes(link.receive(tickets[number])) == b"piece-%d" % number
        link.close()


def test_silence_ends_the_link() -> None:
    with ScriptedBroker(plain_script) as broker:
        link = Link.open("127.0.0.1", broker.port, settings())
        ticket = link.send(ECHO, 0, b"silence")
        with pytest.raises(LinkFault, match="no answer in time"):
            link.receive(ticket, timeout_ms=50)
        assert link.closed
        with pytest.raises(LinkFault, match="is gone"):
            link.send(ECHO, 0, b"again")


def test_an_answer_that_nobody_wants_any_more() -> None:
    with ScriptedBroker(plain_script) as broker:
        link = Link.open("127.0.0.1", broker.port, settings())
        first, second = link.send(ECHO, 0, b"1"), link.send(ECHO, 0, b"2")
        link.receive(second)
        link.forget(first)
        assert not link.closed
        link.forget(link.send(ECHO, 0, b"silence"))
        assert link.closed


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (struct.pack(">ii", 4, 12345), "came where"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "Kafka port"),
        (struct.pack(">i", -5), "Kafka port"),
        (b"", "closed the connection"),
    ],
)
def test_answers_that_make_no_sense(answer: bytes, words: str) -> None:
    class Hostile(ScriptedBroker):
        def _converse(self, connection, stream) -> None:  # type: ignore[no-untyped-def]
            stream.read(10)
            connection.sendall(answer)

    with Hostile(plain_script) as broker, pytest.raises(LinkFault, match=words):
        Link.open("127.0.0.1", broker.port, settings())


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        # Bound, so that nobody else gets the port, but not listening.
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(LinkFault, match=f"127.0.0.1:{port}: connection refused"):
            Link.open("127.0.0.1", port, settings())


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


@needs_openssl
def test_tls(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "localhost")
    with ScriptedBroker(plain_script, server_context(certificate, key)) as broker:
        for trusting in (
            settings(security_protocol="SSL", ca_location=str(certificate)),
            settings(security_protocol="SSL", ca_pem=certificate.read_text()),
            settings(security_protocol="SSL", verify_certificate=False),
        ):
            link = Link.open("localhost", broker.port, trusting)
            assert bytes(link.receive(link.send(ECHO, 0, b"secret"))) == b"secret"
            link.close()
        with pytest.raises(AuthenticationFailed, match=r"ssl\.ca\.location"):
            Link.open("localhost", broker.port, settings(security_protocol="SSL"))
        with pytest.raises(LinkFault):
            Link.open("localhost", broker.port, settings())


@needs_openssl
def test_tls_for_another_host_is_refused_unless_switched_off(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "elsewhere.example")
    with ScriptedBroker(plain_script, server_context(certificate, key)) as broker:
        trusting = settings(security_protocol="SSL", ca_location=str(certificate))
        with pytest.raises(AuthenticationFailed, match=r"not valid for|doesn't match"):
            Link.open("localhost", broker.port, trusting)
        loose = settings(security_protocol="SSL", ca_location=str(certificate), check_hostname=False)
        Link.open("localhost", broker.port, loose).close()


@needs_openssl
def test_a_client_shows_its_certificate(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "localhost")
    mine, my_key = make_certificate(tmp_path, "client.example")
    context = server_context(certificate, key)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(mine)
    base = {"security_protocol": "SSL", "ca_location": str(certificate)}
    with ScriptedBroker(plain_script, context) as broker:
        for known in (
            settings(**base, certificate_location=str(mine), key_location=str(my_key)),
            settings(**base, certificate_pem=mine.read_text(), key_pem=my_key.read_text()),
        ):
            Link.open("localhost", broker.port, known).close()
        with pytest.raises(LinkFault):
            Link.open("localhost", broker.port, settings(**base))


def sasl_script(mechanisms: tuple[str, ...], password: bytes):  # type: ignore[no-untyped-def]
    from tidelog.protocol import messages
    from tidelog.protocol.apis import Api

    handshake = Api(SASL_HANDSHAKE, "SaslHandshake", 0, 1, None)
    authenticate = Api(SASL_AUTHENTICATE, "SaslAuthenticate", 0, 2, 2)

    def script(api_key: int, version: int, body: bytes) -> bytes | None:
        if api_key == SASL_HANDSHAKE:
            asked = messages.decode_request(handshake, version, memoryview(body), 0).mechanism
            code = 0 if asked in mechanisms else 33
            return messages.encode_response(
                handshake, version, {"error_code": code, "mechanisms": mechanisms}
            )
        if api_key == SASL_AUTHENTICATE:
            token = messages.decode_request(authenticate, version, memoryview(body), 0).auth_bytes
            fields: dict[str, Any] = {"error_code": 0, "error_message": None, "auth_bytes": b""}
            if token != b"\0ann\0" + password:
                fields |= {"error_code": 58, "error_message": "wrong password"}
            return messages.encode_response(authenticate, version, fields)
        return plain_script(api_key, version, body)

    return script


def test_sasl_plain() -> None:
    asked = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_username": "ann"}
    with ScriptedBroker(sasl_script(("PLAIN",), b"right")) as broker:
        Link.open("127.0.0.1", broker.port, settings(**asked, sasl_password="right")).close()
        with pytest.raises(AuthenticationFailed, match="'ann': wrong password"):
            Link.open("127.0.0.1", broker.port, settings(**asked, sasl_password="wrong"))
    with (
        ScriptedBroker(sasl_script(("GSSAPI", "SCRAM-SHA-512"), b"")) as broker,
        pytest.raises(AuthenticationFailed, match="the broker offers GSSAPI, SCRAM-SHA-512"),
    ):
        Link.open("127.0.0.1", broker.port, settings(**asked))
