"""The ZooKeeper store with a real ensemble of three: members die, connections break, sessions expire."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tidelog.coordination.store import (
    ABSENT,
    Committed,
    CommitUnknown,
    Entry,
    SessionLost,
    StoreError,
    Write,
)
from tidelog.coordination.zookeeper import ZookeeperSecurity, ZookeeperStore
from tidelog.server.zookeeper_process import (
    SESSION_TIMEOUT_MAX_MS,
    TICK_TIME_MS,
    ZookeeperError,
    ZookeeperServers,
    find_jars,
)

pytestmark = pytest.mark.xdist_group("zookeeper-ensemble")

WAIT_SECONDS = 30.0
SESSION_TIMEOUT_MS = 4000


def consecutive_free_ports(count: int) -> int:
    """The first of some ports in a row that are free now."""
    for _ in range(100):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            first: int = probe.getsockname()[1]
        others = [socket.socket() for _ in range(count)]
        try:
            for number, each in enumerate(others):
                each.bind(("127.0.0.1", first + number))
            return first
        except OSError:
            continue
        finally:
            for each in others:
                each.close()
    raise AssertionError("no free ports in a row")


def start_or_skip(servers: ZookeeperServers) -> ZookeeperServers:
    try:
        servers.start()
    except ZookeeperError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"{error}; {error.hint}")
    return servers


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperServers]:
    data = tmp_path_factory.mktemp("ensemble")
    servers = start_or_skip(ZookeeperServers(data, port=consecutive_free_ports(3), count=3))
    yield servers
    servers.stop()


@pytest.fixture
def opened(
    ensemble: ZookeeperServers, request: pytest.FixtureRequest
) -> Iterator[Callable[[], ZookeeperStore]]:
    stores: list[ZookeeperStore] = []

    def open_store() -> ZookeeperStore:
        connect = f"{ensemble.connect_string}/deep/{request.node.name}"
        stores.append(
            ZookeeperStore(connect, session_timeout_ms=SESSION_TIMEOUT_MS, connection_timeout_ms=20_000)
        )
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


def member_of(store: ZookeeperStore, ensemble: ZookeeperServers) -> int:
    """The index of the server that a store is connected to."""
    port = store._client._connection._socket.getpeername()[1]
    ports = [int(address.rsplit(":", 1)[1]) for address in ensemble.connect_string.split(",")]
    return ports.index(port)


def leader_of(ensemble: ZookeeperServers) -> int:
    return next(index for index in range(ensemble.count) if ensemble.mode(index) == "leader")


def restart(ensemble: ZookeeperServers, index: int) -> None:
    ensemble.restart(index)
    ensemble.wait_ready()


def test_the_chroot_is_created_and_shows_the_keys(
    ensemble: ZookeeperServers, opened: Callable[[], ZookeeperStore], request: pytest.FixtureRequest
) -> None:
    store = opened()
    store.commit([Write("changes", b"1"), Write("changes/1", b"{}"), Write("live/7", b"me", ephemeral=True)])
    client = KazooClient(hosts=ensemble.connect_string)
    client.start()
    root = f"/deep/{request.node.name}"
    assert set(client.get_children(root)) == {"changes", "changes:", "live:", "%sessions", "%commits"}
    assert client.get(f"{root}/changes:/1")[0] == b"{}"
    assert client.get(f"{root}/live:/7")[1].ephemeralOwner == store._client.client_id[0]
    client.stop()
    client.close()


@pytest.mark.parametrize("asked_ms", [1_000, SESSION_TIMEOUT_MS, 10_000_000])
def test_the_timeout_that_the_ensemble_grants_is_known(ensemble: ZookeeperServers, asked_ms: int) -> None:
    store = ZookeeperStore(
        f"{ensemble.connect_string}/granted", session_timeout_ms=asked_ms, connection_timeout_ms=20_000
    )
    granted_ms = store.session_timeout_ms
    store.close()
    assert granted_ms == min(max(asked_ms, 2 * TICK_TIME_MS), SESSION_TIMEOUT_MAX_MS)


def test_empty_folders_are_removed(
    ensemble: ZookeeperServers, opened: Callable[[], ZookeeperStore], request: pytest.FixtureRequest
) -> None:
    store = opened()
    for _ in range(3):
        store.commit([Write("partitions/orders/0", b"", ABSENT), Write("partitions/orders/1", b"", ABSENT)])
        store.commit([Write("partitions/orders/0", None), Write("partitions/orders/1", None)])
    store.get("partitions/orders/0")  # answered after the removal, which nobody waited for
    client = KazooClient(hosts=ensemble.connect_string)
    client.start()
    assert client.get_children(f"/deep/{request.node.name}/partitions:") == []
    client.stop()
    client.close()


@pytest.mark.parametrize("who", ["own", "leader"])
def test_commits_and_watches_survive_the_death_of_a_member(
    ensemble: ZookeeperServers, opened: Callable[[], ZookeeperStore], who: str
) -> None:
    writer, watcher = opened(), opened()
    lost, called = threading.Event(), threading.Event()
    for store in (writer, watcher):
        store.on_session_lost(lost.set)
    watcher.watch("counter", called.set)
    writer.commit([Write("live/1", b"", ephemeral=True)])
    stop = threading.Event()
    outcomes: list[object] = []

    def count() -> None:
        version = ABSENT
        while not stop.is_set():
            outcome = writer.commit([Write("counter", b"%d" % version, version)])
            outcomes.append(outcome)
            if not isinstance(outcome, Committed):
                return
            version += 1

    thread = threading.Thread(target=count)
    thread.start()
    index = member_of(writer, ensemble) if who == "own" else leader_of(ensemble)
    ensemble.kill(index)
    before = len(outcomes)
    deadline = time.monotonic() + WAIT_SECONDS
    while len(outcomes) < before + 50 and thread.is_alive() and time.monotonic() < deadline:
        called.wait(0.1)
        called.clear()
    stop.set()
    thread.join()
    restart(ensemble, index)
    # Every one happened exactly once, though answers were lost: the versions would tell otherwise.
    assert len(outcomes) >= before + 50
    assert all(isinstance(outcome, Committed) for outcome in outcomes)
    last = Entry("counter", b"%d" % (len(outcomes) - 1), len(outcomes))
    while watcher.get("counter") != last:
        assert called.wait(WAIT_SECONDS)
        called.clear()
    assert watcher.get("live/1") is not None
    assert not lost.is_set()


def test_without_a_majority_calls_fail_in_time_and_come_back(
    ensemble: ZookeeperServers, opened: Callable[[], ZookeeperStore], request: pytest.FixtureRequest
) -> None:
    store = opened()
    called = threading.Event()
    store.watch("a", called.set)
    store.commit([Write("a", b"1")])
    impatient = ZookeeperStore(
        f"{ensemble.connect_string}/deep/{request.node.name}",
        session_timeout_ms=30_000,
        connection_timeout_ms=1_500,
    )
    for index in (0, 1):
        ensemble.kill(index)
    started = time.monotonic()
    with pytest.raises(StoreError) as failed:
        impatient.commit([Write("b", b"1", ABSENT)])
    assert not isinstance(failed.value, SessionLost)
    with pytest.raises(StoreError):
        impatient.get("a")
    assert time.monotonic() - started < 15
    ensemble.restart(0)
    ensemble.restart(1)
    ensemble.wait_ready()
    # The commit that failed may have happened or not, but the session is the same and goes on.
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            found = impatient.get("b")
            impatient.commit([Write("b", b"2", ABSENT if found is None else found.version)])
            break
        except StoreError as error:
            assert not isinstance(error, SessionLost)
            assert time.monotonic() < deadline
    assert isinstance(failed.value, CommitUnknown) or found is None
    impatient.close()


CHILD = """
import sys, threading
from tidelog.coordination.store import SessionLost, Write
from tidelog.coordination.zookeeper import ZookeeperStore
store = ZookeeperStore(sys.argv[1], session_timeout_ms=int(sys.argv[2]))
lost = threading.Event()
store.on_session_lost(lost.set)
store.commit([Write("live/child", b"", ephemeral=True)])
print("open", flush=True)
sys.stdin.readline()
try:
    store.commit([Write("stale", b"")])
    print("committed", flush=True)
except SessionLost:
    print("lost", flush=True)
print("told" if lost.wait(20) else "not told", flush=True)
"""


def test_a_stopped_process_loses_its_session_and_finds_out(
    ensemble: ZookeeperServers, opened: Callable[[], ZookeeperStore], request: pytest.FixtureRequest
) -> None:
    store = opened()
    changed = threading.Event()
    store.watch("live/", changed.set)
    connect = f"{ensemble.connect_string}/deep/{request.node.name}"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, connect, "2000"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "open\n"
        child.send_signal(signal.SIGSTOP)
        # Brings the server that this store reads from up to date: it may not have the child's key yet.
        assert [entry.key for entry in store.load("live/")] == ["live/child"]
        deadline = time.monotonic() + WAIT_SECONDS
        while store.get("live/child") is not None:
            assert changed.wait(deadline - time.monotonic())
            changed.clear()
        child.stdin.write("go\n")
        child.stdin.flush()
        child.send_signal(signal.SIGCONT)
        assert child.stdout.readline() == "lost\n"
        assert child.stdout.readline() == "told\n"
        assert store.get("stale") is None
    finally:
        child.kill()
        child.wait()


def test_a_server_that_does_not_answer_is_named() -> None:
    port = consecutive_free_ports(1)
    with pytest.raises(StoreError, match=f"no ZooKeeper at 127.0.0.1:{port}/x answered within 1 s"):
        ZookeeperStore(f"127.0.0.1:{port}/x", connection_timeout_ms=1000)


def test_a_commit_that_the_server_finds_too_large_fails_and_says_so(
    opened: Callable[[], ZookeeperStore],
) -> None:
    store = opened()
    with pytest.raises(StoreError, match="broke the connection"):
        store.commit([Write(f"big/{number}", bytes(900_000)) for number in range(10)])
    assert store.load() == []
    assert isinstance(store.commit([Write("small", b"")]), Committed)


JAAS = 'Server { org.apache.zookeeper.server.auth.DigestLoginModule required user_broker="secret"; };'


def test_sasl_and_access_control(tmp_path: Path) -> None:
    (tmp_path / "jaas.conf").write_text(JAAS)
    servers = ZookeeperServers(
        tmp_path / "data",
        port=consecutive_free_ports(1),
        properties={"authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"},
        java_options=(f"-Djava.security.auth.login.config={tmp_path / 'jaas.conf'}",),
    )
    start_or_skip(servers)
    try:
        security = ZookeeperSecurity(
            sasl_mechanism="DIGEST-MD5", sasl_username="broker", sasl_password="secret", set_acl=True
        )
        store = ZookeeperStore(f"{servers.connect_string}/secure", security=security)
        store.commit([Write("topics/a", b"1")])
        assert store.get("topics/a") == Entry("topics/a", b"1", 1)
        store.close()
        with pytest.raises(StoreError):
            ZookeeperStore(f"{servers.connect_string}/secure").get("topics/a")
        wrong = ZookeeperSecurity(sasl_mechanism="DIGEST-MD5", sasl_username="broker", sasl_password="wrong")
        with pytest.raises(StoreError, match="credentials"):
            ZookeeperStore(f"{servers.connect_string}/secure", security=wrong)
    finally:
        servers.stop()


def make_certificates(folder: Path) -> Path:
    """A certificate authority, and one key and certificate for localhost that it signed, as PEM."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    subject = ("-subj", "/CN=localhost")
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", *subject)
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "request.pem", *subject)
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    openssl(
        *("x509", "-req", "-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
        *("-out", "certificate.pem", "-extfile", "names"),
    )
    both = folder / "keystore.pem"
    both.write_text((folder / "key.pem").read_text() + (folder / "certificate.pem").read_text())
    return both


def test_tls(tmp_path: Path) -> None:
    try:
        jars = find_jars()
    except ZookeeperError as error:
        pytest.skip(f"{error}; {error.hint}")
    if not any("netty-handler" in jar.name for jar in jars):
        pytest.skip("ZooKeeper's TLS needs Netty among its jars")
    keystore = make_certificates(tmp_path)
    port = consecutive_free_ports(2)
    servers = ZookeeperServers(
        tmp_path / "data",
        port=port,
        properties={
            "secureClientPort": str(port + 1),
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location": str(keystore),
            "ssl.keyStore.type": "PEM",
            "ssl.trustStore.location": str(tmp_path / "ca.pem"),
            "ssl.trustStore.type": "PEM",
            "ssl.clientAuth": "need",
        },
    )
    start_or_skip(servers)
    try:
        connect = f"127.0.0.1:{port + 1}/tls"
        security = ZookeeperSecurity(
            tls=True, truststore=str(tmp_path / "ca.pem"), keystore=str(keystore), check_hostname=True
        )
        store = ZookeeperStore(connect, security=security)
        assert store.commit([Write("a", b"1")]) == Committed({"a": 1})
        store.close()
        with pytest.raises(StoreError):
            ZookeeperStore(connect, connection_timeout_ms=1500)
    finally:
        servers.stop()
