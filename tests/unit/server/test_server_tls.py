"""TLS and SASL over real sockets: large answers, slow readers, slow loris, foreign bytes, reloading."""

import contextlib
import os
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tidelog.client.client_settings import ClientSettings
from tidelog.client.faults import AuthenticationFailed, LinkFault
from tidelog.client.link import Link
from tidelog.model.errors import ErrorCode
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.security.certificates import Authority, write_secret
from tidelog.server.connection_limits import ConnectionLimits, Rate
from tidelog.server.tls_connection import TlsConnection
from tidelog.testing.broker import RunningBroker

METADATA, PRODUCE, FETCH = 3, 0, 1
TIMEOUT_MS = 1_000
WAIT_SECONDS = 10.0


class Secured:
    """A broker in this process with TLS, with SASL over TLS, and without anything."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority.create()
        write_secret(folder / "ca.pem", self.authority.certificate)
        self.issue("broker")
        self.ports: dict[str, int] = {}
        self.broker = RunningBroker(
            {
                "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
                "ssl.keystore.location": str(folder / "broker.pem"),
                "sasl.enabled.mechanisms": "PLAIN",
                "sasl.jaas.config": 'x required user_bob="builder";',
                "sasl.server.max.receive.size": "4096",
                "tidelog.connection.authentication.timeout.ms": str(TIMEOUT_MS),
                "listener.name.ssl.max.connections": "20",
            },
            data_directory=folder / "data",
        )

    def issue(self, name: str) -> None:
        write_secret(self.folder / "broker.pem", self.authority.issue(name, ["127.0.0.1"]).keystore)

    def start(self) -> None:
        self.broker.start()
        thread = self.broker._thread
        assert thread is not None and thread.node is not None and thread.node.broker is not None
        self.ports = {name: endpoint.port for name, endpoint in thread.node.broker.endpoints.items()}

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.folder / "ca.pem"))

    def connect(self, listener: str) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.ports[listener]), WAIT_SECONDS)

    def settings(self, protocol: str, **fields: object) -> ClientSettings:
        return ClientSettings(
            bootstrap_servers=(),
            security_protocol=protocol,
            ca_location=str(self.folder / "ca.pem"),
            request_timeout_ms=10_000,
            **fields,  # type: ignore[arg-type]
        )

    def link(self, protocol: str = "SSL", **fields: object) -> Link:
        return Link.open("127.0.0.1", self.ports[protocol], self.settings(protocol, **fields))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(tmp_path_factory.mktemp("tls"))
    made.start()
    yield made
    made.broker.close()


def ended(stream: socket.socket, seconds: float = WAIT_SECONDS) -> bool:
    """Whether the other side closes within the time."""
    stream.settimeout(seconds)
    try:
        while stream.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def produce_body(topic: str, records: bytes) -> bytes:
    """Produce v7 for partition 0."""
    name = topic.encode()
    head = struct.pack(">hhii", -1, -1, 10_000, 1) + struct.pack(">h", len(name)) + name
    return head + struct.pack(">iii", 1, 0, len(records)) + records


def fetch_body(topic: str, offset: int, max_bytes: int) -> bytes:
    """Fetch v4 of partition 0."""
    name = topic.encode()
    head = struct.pack(">iiiibi", -1, 100, 1, max_bytes, 0, 1) + struct.pack(">h", len(name)) + name
    return head + struct.pack(">iiqi", 1, 0, offset, max_bytes)


def test_large_answers_arrive_whole_even_when_read_slowly(secured: Secured) -> None:
    topic = secured.broker.create_topic("large")
    payload = os.urandom(900_000)
    records = bytes(build_batch([Record(0, 1_700_000_000_000, None, payload, ())]))
    link = secured.link()
    for _ in range(12):
        link.receive(link.send(PRODUCE, 7, produce_body(topic, records)))
    # Several answers of ten megabytes are asked for before the first is read.
    tickets = [link.send(FETCH, 4, fetch_body(topic, 0, 10 << 20)) for _ in range(4)]
    time.sleep(0.3)
    for ticket in tickets:
        answer = bytes(link.receive(ticket))
        assert answer.count(payload) >= 11
    assert link.request(METADATA, {"topics": None}, highest=9).brokers
    link.close()


def test_both_versions_of_tls_and_none_before(secured: Secured) -> None:
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = secured.context()
        context.minimum_version = context.maximum_version = version
        with (
            secured.connect("SSL") as stream,
            context.wrap_socket(stream, server_hostname="127.0.0.1") as tls,
        ):
            assert tls.version() == version.name.replace("_", ".")
    context = secured.context()
    with pytest.warns(DeprecationWarning):
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with secured.connect("SSL") as stream, pytest.raises((ssl.SSLError, ConnectionResetError)):
        context.wrap_socket(stream, server_hostname="127.0.0.1")


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\x00\x00\x1a\x00\x12\x00\x00\x00\x00\x00\x01\x00\x00",
        Random(7).randbytes(300),
    ],
    ids=["http", "a request", "noise"],
)
def test_other_bytes_than_tls(secured: Secured, garbage: bytes) -> None:
    with secured.connect("SSL") as stream:
        stream.sendall(garbage)
        assert ended(stream)


def test_whoever_is_slow_to_authenticate_is_disconnected(secured: Secured) -> None:
    """A handshake that never comes, one that drips, and silence after it."""
    silent, dripping = secured.connect("SSL"), secured.connect("SASL_SSL")
    talker = secured.context().wrap_socket(secured.connect("SASL_SSL"), server_hostname="127.0.0.1")
    hello = b"\x16\x03\x01\x02\x00" + bytes(600)
    started = time.monotonic()
    with silent, dripping, talker, contextlib.suppress(OSError):
        for byte in hello:
            dripping.send(bytes([byte]))
            time.sleep(0.01)
            if time.monotonic() - started > 5 * TIMEOUT_MS / 1000:
                break
        else:
            pytest.fail("the dripping connection lives on")
    for stream in (silent, talker):
        with contextlib.suppress(OSError):
            assert ended(stream, 1.0)


def test_large_requests_wait_until_somebody_has_authenticated(secured: Secured) -> None:
    with secured.context().wrap_socket(secured.connect("SASL_SSL"), server_hostname="127.0.0.1") as tls:
        tls.sendall(struct.pack(">i", 1 << 20) + bytes(8192))
        assert ended(tls)
    link = secured.link("SASL_SSL", sasl_mechanism="PLAIN", sasl_username="bob", sasl_password="builder")
    name = "x" * 200
    topics = [{"name": f"{name}{number}"} for number in range(100)]
    assert (
        len(
            link.request(
                METADATA, {"topics": topics, "allow_auto_topic_creation": False}, lowest=4, highest=9
            ).topics
        )
        == 100
    )
    link.close()


def test_wrong_credentials_over_tls(secured: Secured) -> None:
    started = time.monotonic()
    with pytest.raises(AuthenticationFailed):
        secured.link("SASL_SSL", sasl_mechanism="PLAIN", sasl_username="bob", sasl_password="x")
    assert 0.1 <= time.monotonic() - started < 5
    with pytest.raises(AuthenticationFailed):
        Link.open("127.0.0.1", secured.ports["SSL"], ClientSettings((), security_protocol="SSL"))
    with pytest.raises(LinkFault):
        Link.open("127.0.0.1", secured.ports["PLAINTEXT"], secured.settings("SSL"))


def certificate_name(secured: Secured) -> str:
    """The name in the certificate that new connections get."""
    with (
        secured.connect("SSL") as stream,
        secured.context().wrap_socket(stream, server_hostname="127.0.0.1") as tls,
    ):
        peer = tls.getpeercert()
        assert peer is not None
        return str(dict(pair[0] for pair in peer["subject"])["commonName"])  # type: ignore[misc]


def await_certificate(secured: Secured, name: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while certificate_name(secured) != name:
        assert time.monotonic() < deadline, f"the certificate of {name} did not come"
        time.sleep(0.05)


def test_a_new_certificate_without_a_restart(secured: Secured) -> None:
    old = secured.link()
    secured.issue("renewed")
    await_certificate(secured, "renewed")
    assert old.request(METADATA, {"topics": None}, highest=9).brokers
    old.close()


ALTER_CONFIGS, INCREMENTAL = 33, 44


def altered(secured: Secured, broker: str, **configs: str | None) -> tuple[int, str | None]:
    """Change settings of a broker one by one; None takes one back."""
    changes = [
        {"name": name.replace("_", "."), "config_operation": int(value is None), "value": value}
        for name, value in configs.items()
    ]
    resource = {"resource_type": 4, "resource_name": broker, "configs": changes}
    return configs_answer(secured, INCREMENTAL, resource)


def configs_answer(secured: Secured, api_key: int, resource: dict[str, object]) -> tuple[int, str | None]:
    link = secured.link("PLAINTEXT")
    answer = link.request(api_key, {"resources": [resource], "validate_only": False}, lowest=1, highest=1)
    link.close()
    [row] = answer.responses
    return int(row.error_code), row.error_message


def test_certificates_by_request_are_tried_first(secured: Secured) -> None:
    """A keystore that cannot be used is refused, and the one from before stays."""
    secured.issue("before")
    await_certificate(secured, "before")
    folder, own = secured.folder, "1"
    write_secret(folder / "garbage.pem", "-----BEGIN PRIVATE KEY-----\nnonsense\n-----END PRIVATE KEY-----\n")
    pair, other = secured.authority.issue("mixed", ["127.0.0.1"]), secured.authority.issue("other")
    write_secret(folder / "mixed.pem", other.key + pair.certificate)
    for path in ("garbage.pem", "mixed.pem", "nothing.pem"):
        code, message = altered(secured, own, ssl_keystore_location=str(folder / path))
        assert code == ErrorCode.INVALID_CONFIG and message is not None and path in message
    unusable = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    assert altered(secured, own, ssl_truststore_certificates=unusable)[0] == ErrorCode.INVALID_CONFIG
    replaced = {
        "resource_type": 4,
        "resource_name": own,
        "configs": [{"name": "listener.name.ssl.ssl.keystore.location", "value": str(folder / "mixed.pem")}],
    }
    assert configs_answer(secured, ALTER_CONFIGS, replaced)[0] == ErrorCode.INVALID_CONFIG
    code, message = altered(secured, "99", ssl_keystore_location=str(folder / "broker.pem"))
    assert (code, message) == (
        ErrorCode.INVALID_REQUEST,
        "only broker 99 itself can tell whether it can use these certificates",
    )
    assert certificate_name(secured) == "before"
    new = secured.authority.issue("by request", ["127.0.0.1"])
    write_secret(folder / "new.pem", new.keystore)
    assert altered(secured, own, ssl_keystore_location=str(folder / "new.pem")) == (0, None)
    await_certificate(secured, "by request")
    # A file that is spoilt afterwards does not count either.
    (folder / "new.pem").write_text("spoilt")
    time.sleep(1.2)
    assert certificate_name(secured) == "by request"
    assert altered(secured, own, ssl_keystore_location=None) == (0, None)
    await_certificate(secured, "before")


def test_a_listener_has_a_limit_of_its_own(secured: Secured) -> None:
    streams = [secured.connect("SSL") for _ in range(25)]
    try:
        assert sum(ended(stream, 0.2) for stream in streams) >= 5
        with secured.connect("PLAINTEXT") as other:
            assert not ended(other, 0.2)
    finally:
        for stream in streams:
            stream.close()


def test_a_rate_and_limits_by_address() -> None:
    rate = Rate(10, 0)
    assert [rate.take(0) for _ in range(11)] == [True] * 10 + [False]
    assert [rate.take(100), rate.take(100)] == [True, False]
    from tidelog.model.settings import BrokerSettings

    settings = BrokerSettings.resolve(
        {
            "listeners": "A://:1,B://:2",
            "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT",
            "inter.broker.listener.name": "B",
            "max.connections": "2",
            "max.connections.per.ip": "3",
            "max.connections.per.ip.overrides": "10.0.0.9:1",
        }
    )
    limits = ConnectionLimits(settings, 0)
    assert limits.enter("10.0.0.9", "A", 0) is None
    assert "max.connections.per.ip" in (limits.enter("10.0.0.9", "A", 0) or "")
    assert limits.enter("10.0.0.1", "A", 0) is None
    assert "max.connections" in (limits.enter("10.0.0.1", "A", 0) or "")
    assert limits.enter("10.0.0.1", "B", 0) is None, "brokers are not kept from each other"
    limits.leave("10.0.0.9", "A")
    assert limits.enter("10.0.0.2", "A", 0) is None


def test_a_farewell_is_answered(secured: Secured) -> None:
    """Some clients (asyncio's) wait for the other side's before they let go of a connection."""
    with secured.connect("SSL") as stream:
        tls = secured.context().wrap_socket(stream, server_hostname="127.0.0.1")
        tls.settimeout(WAIT_SECONDS)
        plain = tls.unwrap()
        assert plain.recv(1) == b""
        plain.close()


class Chatty:
    """TLS that has much to say whenever something arrives, as to somebody who wants to renegotiate."""

    def __init__(self, tls: ssl.SSLObject, outgoing: ssl.MemoryBIO) -> None:
        self._tls, self._outgoing = tls, outgoing

    def read(self, size: int, buffer: memoryview) -> int:
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.read(size, buffer)
        self._outgoing.write(bytes(300 << 10))
        raise ssl.SSLWantReadError


def test_what_tls_says_by_itself_is_bounded_too(secured: Secured) -> None:
    thread = secured.broker._thread
    assert thread is not None and thread.node is not None and thread.node.socket_server is not None
    socket_server = thread.node.socket_server
    others = set(socket_server.connections)
    with secured.context().wrap_socket(secured.connect("SSL"), server_hostname="127.0.0.1") as tls:
        deadline = time.monotonic() + WAIT_SECONDS
        made: list[TlsConnection] = []
        while not made or not made[0].established:
            assert time.monotonic() < deadline
            made = [each for each in socket_server.connections - others if isinstance(each, TlsConnection)]
            time.sleep(0.01)
        [connection] = made
        connection._tls = Chatty(connection._tls, connection._outgoing)  # type: ignore[assignment]
        for _ in range(100):
            tls.sendall(b"x")
            time.sleep(0.005)
        # The kernel takes a few megabytes of the thirty; no more than a piece beyond the limit waits here.
        assert connection._output is not None
        assert connection._paused and connection._output.queued_bytes < 1 << 20
