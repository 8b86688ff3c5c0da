"""`tidelog up --secure --brokers 3` as a person meets it: files, users, rights, a killed broker, a restart.

The brokers reach each other by TLS and SCRAM, so whatever is replicated or decided here went that way. At the
end somebody throws bytes at it.
"""

import base64
import json
import os
import random
import select
import signal
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tidelog.client.client_settings import ClientSettings
from tidelog.client.faults import AuthenticationFailed
from tidelog.client.link import Link
from tidelog.model.errors import ErrorCode
from tidelog.security.certificates import Authority

DEADLINE_SECONDS = 60.0
RECORD_COUNT = 2_000
TOKEN_SECRET = "what-tokens-are-made-with"
ALTER_CONFIGS, CREATE_TOKEN = 44, 38


class SecureCluster:
    """The command under test."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.folder = data / "security"
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "tidelog.cli", "up", "--secure", "--brokers", "3", "--port", "0"]
        command += ["--json", "--data", str(self.data), "--set", "group.initial.rebalance.delay.ms=0"]
        command += ["--set", "offsets.topic.num.partitions=4", "--log-level", "debug"]
        command += ["--set", f"delegation.token.secret.key={TOKEN_SECRET}"]
        with (self.data.parent / "up.stderr").open("ab") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
        self.ready = self._wait_ready()

    def _wait_ready(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        deadline = time.monotonic() + DEADLINE_SECONDS
        received = b""
        while time.monotonic() < deadline:
            if not select.select([self.process.stdout], [], [], 1.0)[0]:
                continue
            piece = os.read(self.process.stdout.fileno(), 65536)
            assert piece, "the cluster did not start"
            received += piece
            for line in received.splitlines():
                event: dict[str, Any] = json.loads(line) if line.endswith(b"}") else {}
                if event.get("event") == "cluster_ready":
                    return event
        raise AssertionError("the cluster was not ready in time")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(DEADLINE_SECONDS) == 0

    def properties(self, **changes: str) -> dict[str, Any]:
        lines = (self.folder / "client.properties").read_text().splitlines()
        found = dict(line.split("=", 1) for line in lines)
        return {**found, **{name.replace("_", "."): value for name, value in changes.items()}}

    def command(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "TIDELOG_CLIENT_CONFIG": str(self.folder / "client.properties")}
        command = [sys.executable, "-m", "tidelog.cli", *words]
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, env=environment, timeout=60, check=False
        )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, oracle: bool) -> Iterator[SecureCluster]:
    if oracle:
        pytest.skip("this is about our own command")
    running = SecureCluster(tmp_path_factory.mktemp("secure"))
    yield running
    if running.process.poll() is None:
        running.stop()


def test_nobody_else_can_read_the_files(cluster: SecureCluster) -> None:
    assert cluster.folder.stat().st_mode & 0o777 == 0o700
    for path in [*cluster.folder.iterdir(), cluster.data / "cluster.sqlite"]:
        assert path.stat().st_mode & 0o077 == 0, path
    logs = "".join(path.read_text() for path in cluster.data.glob("*.log"))
    passwords = json.loads((cluster.folder / "credentials.json").read_text())
    state = (cluster.data / "cluster.json").read_text()
    assert not any(password in logs + state for password in passwords.values())


def test_replication_and_a_killed_broker(cluster: SecureCluster) -> None:
    properties = cluster.properties()
    admin = AdminClient(properties)
    admin.create_topics([NewTopic("orders", 3, 3)])["orders"].result(30)
    producer = Producer({**properties, "acks": "all", "enable.idempotence": True})
    for number in range(RECORD_COUNT):
        producer.produce("orders", b"%d" % number)
        if number == RECORD_COUNT // 2:
            producer.poll(0)
            os.kill(cluster.ready["brokers"][0]["pid"], signal.SIGKILL)
    assert producer.flush(DEADLINE_SECONDS) == 0
    consumer = Consumer({**properties, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    seen: set[bytes] = set()
    deadline = time.monotonic() + DEADLINE_SECONDS
    while len(seen) < RECORD_COUNT and time.monotonic() < deadline:
        seen |= {message.value() for message in consumer.consume(500, 1.0) if not message.error()}  # type: ignore[misc]
    consumer.close()
    assert len(seen) == RECORD_COUNT
    status = cluster.command("cluster", "status", "--wait", "60", "--json")
    assert status.returncode == 0, status.stderr


def test_a_user_comes_in_and_may_do_nothing_until_allowed(cluster: SecureCluster) -> None:
    made = cluster.command("user", "create", "alice", "--generate", "--json")
    assert made.returncode == 0, made.stderr
    password = json.loads(made.stdout)["password"]
    alice = cluster.properties(sasl_username="alice", sasl_password=password)
    admin = AdminClient(alice)
    assert "orders" not in admin.list_topics(timeout=20).topics
    future = admin.create_topics([NewTopic("mine", 1, 1)])["mine"]
    with pytest.raises(KafkaException, match="AUTHORIZATION_FAILED"):
        future.result(20)
    # The other brokers know the user as well.
    addresses = [broker["address"] for broker in cluster.ready["brokers"]]
    for address in addresses:
        assert AdminClient({**alice, "bootstrap.servers": address}).list_topics(timeout=20).brokers
    listed = json.loads(cluster.command("user", "list", "--json").stdout)
    assert [row["user"] for row in listed] == ["admin", "alice", "tidelog-broker"]
    assert cluster.command("user", "create", "alice", stdin="again\n").returncode == 1
    assert cluster.command("user", "delete", "alice", "--yes").returncode == 0
    refused = cluster.command("topic", "list", "-X", "sasl.username=alice", "-X", f"sasl.password={password}")
    assert refused.returncode == 1 and "invalid credentials" in refused.stderr


def test_whatever_is_thrown_at_it_others_are_served(cluster: SecureCluster) -> None:
    """Random frames before and inside of TLS, exchanges that are mangled; the broker answers as before."""
    chance = random.Random(20261115)
    host, port = cluster.ready["brokers"][0]["address"].rsplit(":", 1)
    context = ssl.create_default_context(cafile=str(cluster.folder / "ca.pem"))
    for attempt in range(120):
        stream: socket.socket = socket.create_connection((host, int(port)), 10)
        try:
            if attempt % 3:
                stream = context.wrap_socket(stream, server_hostname=host)
                key, version = chance.choice([(17, 1), (36, 2), (18, 3), (3, 9), (0, 9), (10_000, 0)])
                noise = chance.randbytes(chance.randrange(200))
                frame = struct.pack(">hhih", key, version, attempt, 1) + b"c" + noise
                stream.sendall(struct.pack(">i", len(frame)) + frame)
            stream.sendall(chance.randbytes(chance.randrange(1, 2_000)))
            stream.settimeout(0.05)
            stream.recv(100)
        except OSError:
            pass
        finally:
            stream.close()
    started = time.monotonic()
    assert AdminClient(cluster.properties()).list_topics(timeout=20).brokers
    assert time.monotonic() - started < 10


def test_everything_is_there_after_a_restart(cluster: SecureCluster) -> None:
    before = (cluster.folder / "credentials.json").read_text()
    admin = AdminClient(cluster.properties())
    admin.create_topics([NewTopic("kept", 3, 3)])["kept"].result(30)
    cluster.stop()
    cluster.start()
    assert (cluster.folder / "credentials.json").read_text() == before
    assert "kept" in AdminClient(cluster.properties()).list_topics(timeout=20).topics


def link_of(cluster: SecureCluster, user: str, password: str) -> Link:
    host, port = cluster.ready["brokers"][0]["address"].rsplit(":", 1)
    settings = ClientSettings(
        (),
        security_protocol="SASL_SSL",
        ca_location=str(cluster.folder / "ca.pem"),
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username=user,
        sasl_password=password,
    )
    return Link.open(host, int(port), settings)


def secrets_of(cluster: SecureCluster) -> dict[str, str]:
    """Every secret that is in a file, by where it is: passwords, and the lines of private keys."""
    found = {
        f"password of {user}": password
        for user, password in json.loads((cluster.folder / "credentials.json").read_text()).items()
    }
    for path in cluster.folder.iterdir():
        key = path.read_text().partition("PRIVATE KEY-----\n")[2].partition("-----END")[0]
        found |= {f"{path.name} {number}": line for number, line in enumerate(key.split()) if len(line) > 20}
    return found


def test_no_secret_is_told_to_anybody(cluster: SecureCluster) -> None:
    """All that the tests above did, and logins, keys and tokens by request, with the log at its wordiest."""
    passwords = json.loads((cluster.folder / "credentials.json").read_text())
    admin = link_of(cluster, "admin", passwords["admin"])
    made = cluster.command("user", "create", "carol", stdin="carols-own-password\n")
    assert made.returncode == 0, made.stderr
    link_of(cluster, "carol", "carols-own-password").close()
    with pytest.raises(AuthenticationFailed):
        link_of(cluster, "carol", "a-wrong-guess-of-carols")
    key = Authority.create().issue("by request").key
    changes = [{"name": "ssl.keystore.key", "config_operation": 0, "value": key}]
    resource = {"resource_type": 4, "resource_name": "1", "configs": changes}
    fields = {"resources": [resource], "validate_only": False}
    [answer] = admin.request(ALTER_CONFIGS, fields, lowest=1, highest=1).responses
    assert int(answer.error_code) == ErrorCode.INVALID_CONFIG, "a key without its certificate"
    token = admin.request(CREATE_TOKEN, {"renewers": (), "max_lifetime": -1}, lowest=2, highest=2)
    assert int(token.error_code) == 0
    admin.close()
    producer = Producer(cluster.properties())
    for number in range(RECORD_COUNT):
        producer.produce("kept", b"%d" % number)
    assert producer.flush(DEADLINE_SECONDS) == 0
    secrets = secrets_of(cluster) | {
        "password of carol": "carols-own-password",
        "a wrong password": "a-wrong-guess-of-carols",
        "the secret of tokens": TOKEN_SECRET,
        "a token": base64.b64encode(token.hmac).decode(),
        "a token in hexadecimals": token.hmac.hex(),
        "a key by request": key.splitlines()[1],
    }
    assert len(secrets) > 10
    told = {path.name: path.read_text(errors="replace") for path in cluster.data.glob("*.log")}
    assert len(told) == 3 and all("DEBUG" in text for text in told.values())
    told["up.stderr"] = (cluster.data.parent / "up.stderr").read_text(errors="replace")
    told["cluster.json"] = (cluster.data / "cluster.json").read_text()
    # Not as they were at the start: another test may have killed one, which was started again.
    for broker in json.loads(told["cluster.json"])["brokers"]:
        told[f"arguments of {broker['pid']}"] = Path(f"/proc/{broker['pid']}/cmdline").read_text()
    leaks = [
        (where, name) for where, text in told.items() for name, secret in secrets.items() if secret in text
    ]
    assert leaks == []
