"""The HTTP side of metrics, against a broker with real sockets."""

import base64
import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.support.prometheus_text import read, value
from tidelog.broker.runtime.liveness import NEVER_NS
from tidelog.broker.telemetry.metric_families import FAMILIES
from tidelog.broker.telemetry.scrape import IdentityFamilies
from tidelog.model.settings import BrokerSettings
from tidelog.security.certificates import write_secret
from tidelog.server.metrics_endpoint import CONNECTIONS_MAX, REQUEST_BYTES_MAX, HttpConnection
from tidelog.server.node import ListenError
from tidelog.server.process import BrokerThread
from tidelog.storage.log_directory import OfflineDirectory

TIMEOUT_SECONDS = 10


def settings(folder: Path, **more: str) -> BrokerSettings:
    values = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(folder), "tidelog.metrics.port": "0"}
    return BrokerSettings.resolve({**values, **{k.replace("_", "."): v for k, v in more.items()}})


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    thread = BrokerThread(settings(tmp_path_factory.mktemp("metrics")))
    thread.start()
    yield thread
    thread.stop()


@pytest.fixture
def address(broker: BrokerThread) -> tuple[str, int]:
    assert broker.info is not None
    host, _, port = broker.info.metrics.removeprefix("http://").removesuffix("/metrics").rpartition(":")
    return host, int(port)


@pytest.fixture
def client(address: tuple[str, int]) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(*address, timeout=TIMEOUT_SECONDS)
    yield connection
    connection.close()


def get(client: http.client.HTTPConnection, path: str, method: str = "GET") -> tuple[int, str, str]:
    client.request(method, path)
    response = client.getresponse()
    return response.status, response.getheader("Content-Type", ""), response.read().decode()


class TestPages:
    def test_every_metric_of_the_table_is_served(self, client: http.client.HTTPConnection) -> None:
        status, content_type, text = get(client, "/metrics")
        families = read(text)
        assert (status, content_type) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert set(families) == set(FAMILIES)
        for name, family in families.items():
            assert (family.kind, family.help) == (FAMILIES[name].kind.value, FAMILIES[name].meaning)

    def test_the_process_is_told_of(self, client: http.client.HTTPConnection, broker: BrokerThread) -> None:
        host, _, port = broker.bootstrap.partition(":")
        with socket.create_connection((host, int(port))):
            families = read(get(client, "/metrics")[2])
        assert value(families, "process_resident_memory_bytes") > 1 << 20
        assert value(families, "process_open_fds") > 3
        assert value(families, "process_cpu_seconds_total") > 0
        assert value(families, "process_start_time_seconds") > 1_600_000_000
        assert value(families, "tidelog_connections_accepted_total") >= 1

    def test_health(self, client: http.client.HTTPConnection) -> None:
        assert get(client, "/healthz") == (200, "text/plain; charset=utf-8", "ok\n")

    def test_health_tells_what_the_broker_cannot_do(
        self, client: http.client.HTTPConnection, broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert broker.node is not None and broker.node.broker is not None
        parts = broker.node.broker
        monkeypatch.setattr(parts.log_directories, "offline", [OfflineDirectory("/gone", "broken")])
        monkeypatch.setattr(parts.dirty_logs, "_uncleanable", {"a log": None, "another": None})
        text = get(client, "/healthz")[2]
        assert text == "ok, but failing: log directories (1 offline), compaction of 2 partitions\n"

    def test_readiness_names_its_conditions(
        self, client: http.client.HTTPConnection, broker: BrokerThread
    ) -> None:
        status, _, text = get(client, "/readyz")
        assert status == 200 and json.loads(text)["ready"] is True
        assert broker.node is not None and broker.node.broker is not None
        broker.node.broker.replication.unopened_topics.add("damaged")
        try:
            status, _, text = get(client, "/readyz")
        finally:
            broker.node.broker.replication.unopened_topics.clear()
        assert status == 503
        assert json.loads(text)["conditions"] == {
            "registered": True,
            "disks_answer": True,
            "logs_open": False,
            "not_stopping": True,
        }

    def test_a_broker_that_serves_is_watched(self, broker: BrokerThread) -> None:
        assert broker.node is not None and broker.node.broker is not None
        liveness = broker.node.broker.liveness
        deadline = time.monotonic() + 60
        while liveness.lease_end_ns == NEVER_NS:
            assert time.monotonic() < deadline, "nobody looks whether the loop moves"
            time.sleep(0.01)

    def test_events_after_a_number(self, client: http.client.HTTPConnection) -> None:
        page = json.loads(get(client, "/events")[2])
        kinds = [event["kind"] for event in page["events"]]
        assert "controller elected" in kinds and "broker came" in kinds
        later = json.loads(get(client, f"/events?after={page['last']}")[2])
        assert later["events"] == []

    @pytest.mark.parametrize("after", ["x", "-1", "²", "9" * 30])
    def test_events_after_nonsense(self, client: http.client.HTTPConnection, after: str) -> None:
        from urllib.parse import quote

        assert get(client, f"/events?after={quote(after)}")[0] == 400

    def test_other_paths_and_methods(self, client: http.client.HTTPConnection) -> None:
        assert get(client, "/")[0] == 404
        assert get(client, "/metrics", "POST")[0] == 405

    def test_head_has_no_body(self, client: http.client.HTTPConnection) -> None:
        status, _, text = get(client, "/healthz", "HEAD")
        assert (status, text) == (200, "")


class TestConnections:
    def test_one_connection_serves_many(self, client: http.client.HTTPConnection) -> None:
        get(client, "/healthz")
        sock = client.sock
        for _ in range(5):
            assert get(client, "/metrics")[0] == 200
        assert client.sock is sock

    def test_requests_may_come_together(self, address: tuple[str, int]) -> None:
        with socket.create_connection(address, timeout=TIMEOUT_SECONDS) as sock:
            sock.sendall(
                b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
                b"GET /nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            )
            received = b"".join(iter(lambda: sock.recv(1 << 16), b""))
        answers = received.split(b"HTTP/1.1 ")[1:]
        assert [answer[:3] for answer in answers] == [b"200", b"200", b"404"]

    def test_a_request_may_come_in_pieces(self, address: tuple[str, int]) -> None:
        with socket.create_connection(address, timeout=TIMEOUT_SECONDS) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for piece in (b"GET /hea", b"lthz HTTP/1.0\r", b"\n\r\n"):
                sock.sendall(piece)
            received = b"".join(iter(lambda: sock.recv(1 << 16), b""))
        assert received.startswith(b"HTTP/1.1 200 OK\r\n") and received.endswith(b"\r\n\r\nok\n")

    @pytest.mark.parametrize(
        "request_bytes",
        [
            b"nonsense\r\n\r\n",
            b"GET /\r\n\r\n",
            b"GET / SPDY/9\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: x\r\nHost : y\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nno number\r\n\r\n",
        ],
    )
    def test_what_is_not_http_is_refused(self, address: tuple[str, int], request_bytes: bytes) -> None:
        with socket.create_connection(address, timeout=TIMEOUT_SECONDS) as sock:
            sock.sendall(request_bytes)
            received = b"".join(iter(lambda: sock.recv(1 << 16), b""))
        assert received.startswith(b"HTTP/1.1 400 ")

    def test_a_request_with_a_body_is_the_last(self, address: tuple[str, int]) -> None:
        """What it carries is never read as another request."""
        hidden = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
        for head, status in (
            (b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(hidden), b"200 OK"),
            (b"GET /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n26\r\n", b"200 OK"),
            (b"POST /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"405 Method Not Allowed"),
        ):
            with socket.create_connection(address, timeout=TIMEOUT_SECONDS) as sock:
                sock.sendall(head + hidden)
                received = b"".join(iter(partial(sock.recv, 1 << 16), b""))
            assert received.count(b"HTTP/1.1 ") == 1 and received.startswith(b"HTTP/1.1 " + status)
            assert b"\r\nConnection: close\r\n" in received

    def test_an_endless_request_is_cut_off(self, address: tuple[str, int]) -> None:
        with (
            socket.create_connection(address, timeout=TIMEOUT_SECONDS) as sock,
            contextlib.suppress(ConnectionResetError, BrokenPipeError),
        ):
            sock.sendall(b"GET /" + b"a" * (2 * REQUEST_BYTES_MAX))
            assert sock.recv(100) == b""

    def test_there_is_a_limit(self, address: tuple[str, int]) -> None:
        opened = [socket.create_connection(address, timeout=TIMEOUT_SECONDS) for _ in range(CONNECTIONS_MAX)]
        try:
            opened[-1].sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert opened[-1].recv(100)  # all before it are counted by now
            with (
                socket.create_connection(address, timeout=TIMEOUT_SECONDS) as one_more,
                contextlib.suppress(ConnectionResetError),
            ):
                assert one_more.recv(100) == b""
        finally:
            for sock in opened:
                sock.close()

    def test_scrapes_at_the_same_time_all_get_an_answer(self, address: tuple[str, int]) -> None:
        texts: list[str] = []

        def scrape() -> None:
            connection = http.client.HTTPConnection(*address, timeout=TIMEOUT_SECONDS)
            texts.append(get(connection, "/metrics")[2])
            connection.close()

        threads = [threading.Thread(target=scrape) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT_SECONDS)
        assert len(texts) == 8 and all(set(read(text)) == set(FAMILIES) for text in texts)


class TestSettings:
    def test_nothing_is_served_unless_asked_for(self, tmp_path: Path) -> None:
        found = BrokerSettings.resolve({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)})
        thread = BrokerThread(found)
        info = thread.start()
        thread.stop()
        assert info.metrics == "" and thread.node is not None and thread.node.metrics is None

    def test_a_port_in_use_is_told(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(ListenError, match=f"cannot serve metrics on 127.0.0.1:{port}"):
                BrokerThread(settings(tmp_path, tidelog_metrics_port=str(port))).start()

    def test_it_goes_with_the_broker(self, tmp_path: Path) -> None:
        thread = BrokerThread(settings(tmp_path))
        info = thread.start()
        thread.stop()
        host, _, port = info.metrics.removeprefix("http://").removesuffix("/metrics").rpartition(":")
        with pytest.raises(OSError):
            socket.create_connection((host, int(port)), timeout=1).close()


class TestHostileReaders:
    def test_hundreds_of_requests_at_once_do_not_go_deep(
        self, address: tuple[str, int], caplog: pytest.LogCaptureFixture
    ) -> None:
        request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        count = REQUEST_BYTES_MAX // len(request) - 1
        with socket.create_connection(address, timeout=TIMEOUT_SECONDS) as sock:
            sock.sendall(request * count + b"GET /healthz HTTP/1.0\r\n\r\n")
            received = b"".join(iter(lambda: sock.recv(1 << 16), b""))
        assert received.count(b"200 OK") == count + 1
        assert "Traceback" not in caplog.text and not caplog.records

    def test_who_does_not_read_is_not_answered_without_end(
        self, address: tuple[str, int], broker: BrokerThread
    ) -> None:
        """More pages are asked for than the kernel takes; only as many are made as find room."""
        assert broker.node is not None and broker.node.metrics is not None
        endpoint = broker.node.metrics
        others = set(endpoint.connections)
        with socket.create_connection(address, timeout=TIMEOUT_SECONDS) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            request = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
            sock.sendall(request * (REQUEST_BYTES_MAX // len(request)))
            deadline = time.monotonic() + TIMEOUT_SECONDS
            asked: HttpConnection | None = None
            while time.monotonic() < deadline and (asked is None or not asked._full):
                asked = next(iter(endpoint.connections - others), None)
                time.sleep(0.01)
            assert asked is not None and asked._transport is not None
            # While others are served it would be as well, if it were.
            other = http.client.HTTPConnection(*address, timeout=TIMEOUT_SECONDS)
            for _ in range(60):
                assert get(other, "/metrics")[0] == 200
            other.close()
            assert asked._full and asked._transport.get_write_buffer_size() < 128 << 10
        assert value(read(get(http.client.HTTPConnection(*address), "/metrics")[2]), "process_open_fds") > 3


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    folder = tmp_path_factory.mktemp("guarded")
    write_secret(folder / "credentials", "prometheus:let me in\ntoken-of-today\n")
    more = {"tidelog_metrics_credentials_file": str(folder / "credentials")}
    thread = BrokerThread(settings(folder / "data", **more))
    info = thread.start()
    host, _, port = info.metrics.removeprefix("http://").removesuffix("/metrics").rpartition(":")
    yield host, int(port)
    thread.stop()


class TestAuthentication:
    @staticmethod
    def status(
        address: tuple[str, int], path: str, authorization: str | None
    ) -> tuple[int, list[str] | None]:
        client = http.client.HTTPConnection(*address, timeout=TIMEOUT_SECONDS)
        client.request("GET", path, headers={} if authorization is None else {"Authorization": authorization})
        response = client.getresponse()
        response.read()
        client.close()
        return response.status, response.headers.get_all("WWW-Authenticate")

    @pytest.mark.parametrize("path", ["/metrics", "/events", "/events?after=0", "/nothing", "//metrics"])
    def test_nothing_without_credentials(self, guarded: tuple[str, int], path: str) -> None:
        status, schemes = self.status(guarded, path, None)
        assert status == 401 and schemes is not None
        assert [scheme.split()[0] for scheme in schemes] == ["Basic", "Bearer"]
        for wrong in ("Bearer nothing", "Basic bm9ib2R5Om5vdGhpbmc=", "token-of-today"):
            assert self.status(guarded, path, wrong)[0] == 401

    def test_health_is_open(self, guarded: tuple[str, int]) -> None:
        assert [self.status(guarded, path, None)[0] for path in ("/healthz", "/readyz")] == [200, 200]

    def test_a_password_and_a_token(self, guarded: tuple[str, int]) -> None:
        password = "Basic " + base64.b64encode(b"prometheus:let me in").decode()
        for authorization in (password, "Bearer token-of-today"):
            assert self.status(guarded, "/metrics", authorization)[0] == 200
            assert self.status(guarded, "/events", authorization)[0] == 200

    def test_a_file_for_everybody_stops_the_start(self, tmp_path: Path) -> None:
        path = tmp_path / "credentials"
        path.write_text("token\n")
        path.chmod(0o644)
        with pytest.raises(ListenError, match="everybody"):
            BrokerThread(settings(tmp_path, tidelog_metrics_credentials_file=str(path))).start()

    def test_an_open_endpoint_beyond_the_loopback_is_warned_of(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        thread = BrokerThread(settings(tmp_path, tidelog_metrics_host="0.0.0.0"))
        thread.start()
        thread.stop()
        assert "tidelog.metrics.credentials.file" in caplog.text
        assert BrokerSettings.resolve({}).get("tidelog.metrics.host") == "127.0.0.1"


def test_a_scrape_that_fails_is_answered_and_not_the_last(
    broker: BrokerThread, client: http.client.HTTPConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who wait hear of it; health says so until one goes well."""

    def fail(section: IdentityFamilies) -> str:
        raise KeyError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr(IdentityFamilies, "run", fail)
        assert get(client, "/metrics")[0] == 500
        assert get(client, "/metrics")[0] == 500
        assert get(client, "/healthz")[2] == "ok, but failing: metrics scrape\n"
        assert json.loads(get(client, "/readyz")[2])["failing"] == ["metrics scrape"]
    assert get(client, "/metrics")[0] == 200
    assert get(client, "/healthz")[2] == "ok\n"


def test_errors_that_nobody_expected_are_counted(
    broker: BrokerThread, client: http.client.HTTPConnection
) -> None:
    assert broker.node is not None and broker.node.socket_server is not None
    before = value(read(get(client, "/metrics")[2]), "tidelog_unexpected_errors_total")

    def fail() -> None:
        raise KeyError("a bug")

    broker.node.socket_server.loop.call_soon_threadsafe(fail)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while value(read(get(client, "/metrics")[2]), "tidelog_unexpected_errors_total") != before + 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_health_counts_the_log_directories_that_are_offline(tmp_path: Path) -> None:
    """Their paths are nothing for everybody; `tidelog doctor` names them."""
    (tmp_path / "file").write_text("not a directory")
    thread = BrokerThread(settings(tmp_path, log_dirs=f"{tmp_path / 'good'},{tmp_path / 'file'}"))
    info = thread.start()
    with ExitStack() as stack:
        stack.callback(thread.stop)
        host, _, port = info.metrics.removeprefix("http://").removesuffix("/metrics").rpartition(":")
        client = http.client.HTTPConnection(host, int(port), timeout=TIMEOUT_SECONDS)
        stack.callback(client.close)
        assert get(client, "/healthz")[2] == "ok, but failing: log directories (1 offline)\n"
        assert json.loads(get(client, "/readyz")[2])["failing"] == ["log directories (1 offline)"]
