"""A broker with every kind of listener in a child process, and who stands beside an attack on it.

`AttackedBroker` is the child; `HealthyUser` logs in by TLS and SCRAM, and then writes a record and reads it
back, again and again, with its times taken; `Watch` samples the broker's memory. `Siege` puts them together:
run an attack inside of it, then ask for the `Figures`.
"""

import contextlib
import ssl
import struct
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tests.chaos.broker_process import PreparedBroker
from tests.chaos.kafka_wire import batch_of
from tidelog.client.client_settings import ClientSettings
from tidelog.client.faults import ClientFault
from tidelog.client.link import Link
from tidelog.records.record import iterate_records
from tidelog.security.certificates import Authority, write_secret
from tidelog.security.scram import salted_password

LISTENERS = {
    "PLAINTEXT": "PLAINTEXT",
    "SSL": "SSL",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "SASL_SSL": "SASL_SSL",
    "TOKENS": "SASL_PLAINTEXT",
}
PRODUCE, FETCH, CREATE_TOPICS, SCRAM_CREDENTIALS = 0, 1, 19, 51
HEALTHY_PAUSE_SECONDS = 0.005
#: for whoever has not authenticated
TIMEOUT_MS = 4_000
USER, PASSWORD = "healthy", "of good health"


class AttackedBroker(PreparedBroker):
    """The child process, its authority and its ports."""

    def __init__(self, folder: Path) -> None:
        authority = Authority.create()
        write_secret(folder / "ca.pem", authority.certificate)
        write_secret(folder / "broker.pem", authority.issue("broker", ["127.0.0.1"]).keystore)
        settings = {
            "node.id": "1",
            "listener.security.protocol.map": ",".join(f"{a}:{b}" for a, b in LISTENERS.items()),
            "inter.broker.listener.name": "PLAINTEXT",
            "tidelog.coordination.path": str(folder / "cluster.sqlite"),
            "ssl.keystore.location": str(folder / "broker.pem"),
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.tokens.sasl.enabled.mechanisms": "OAUTHBEARER",
            "listener.name.tokens.tidelog.sasl.oauthbearer.unsecured.tokens": "true",
            "tidelog.connection.authentication.timeout.ms": str(TIMEOUT_MS),
            "auto.create.topics.enable": "false",
            "offsets.topic.num.partitions": "1",
        }
        super().__init__(folder, settings, listeners=tuple(LISTENERS))

    def _prepare(self) -> None:
        link = self.link("PLAINTEXT")
        topics = [
            {"name": name, "num_partitions": 1, "replication_factor": 1, "configs": configs}
            for name, configs in (
                ("healthy", []),
                ("plain", []),
                ("table", [{"name": "cleanup.policy", "value": "compact"}]),
            )
        ]
        made = link.request(CREATE_TOPICS, {"topics": topics, "timeout": 30_000}, lowest=5, highest=5)
        assert [int(topic.error_code) for topic in made.topics] == [0, 0, 0]
        upsertion = {"name": USER, "mechanism": 1, "iterations": 4096, "salt": b"salt"}
        upsertion["salted_password"] = salted_password("SCRAM-SHA-256", PASSWORD, b"salt", 4096)
        fields = {"deletions": [], "upsertions": [upsertion]}
        [result] = link.request(SCRAM_CREDENTIALS, fields, lowest=0, highest=0).results
        assert int(result.error_code) == 0
        link.close()

    def link(self, listener: str, **fields: object) -> Link:
        settings = ClientSettings(
            (),
            security_protocol=LISTENERS[listener],
            ca_location=str(self.folder / "ca.pem"),
            request_timeout_ms=60_000,
            connection_timeout_ms=30_000,
            **fields,  # type: ignore[arg-type]
        )
        return Link.open("127.0.0.1", self.ports[listener], settings)

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.folder / "ca.pem"))


class HealthyUser(threading.Thread):
    """Writes a record, reads it back, and times both, until told to stop."""

    def __init__(self, broker: AttackedBroker) -> None:
        super().__init__(name="healthy", daemon=True)
        self._broker = broker
        self.seconds: list[float] = []
        self.fault = ""
        self.stopping = threading.Event()
        self.ready = threading.Event()

    def run(self) -> None:
        try:
            link = self._broker.link(
                "SASL_SSL", sasl_mechanism="SCRAM-SHA-256", sasl_username=USER, sasl_password=PASSWORD
            )
            self._round(link, b"first")
            self.ready.set()
            while not self.stopping.wait(HEALTHY_PAUSE_SECONDS):
                begun = time.perf_counter()
                self._round(link, b"%d" % len(self.seconds))
                self.seconds.append(time.perf_counter() - begun)
            link.close()
        except (ClientFault, AssertionError, OSError) as fault:
            self.fault = f"the healthy user was not served: {fault!r}"
        finally:
            self.ready.set()

    @staticmethod
    def _round(link: Link, value: bytes) -> None:
        answer = bytes(link.receive(link.send(PRODUCE, 7, produce_body("healthy", batch_of(value)))))
        error, offset = struct.unpack_from(">hq", answer, 4 + 2 + len("healthy") + 4 + 4)
        assert error == 0, f"produce: {error}"
        records = bytes(link.receive(link.send(FETCH, 4, fetch_body("healthy", offset))))
        batch = records[-struct.unpack_from(">i", records, records.index(b"healthy") + 7 + 4 + 26)[0] :]
        assert [record.value for record in iterate_records(memoryview(batch))] == [value]


def produce_body(topic: str, records: bytes) -> bytes:
    """Produce v7 for partition 0."""
    name = topic.encode()
    head = struct.pack(">hhii", -1, -1, 10_000, 1) + struct.pack(">h", len(name)) + name
    return head + struct.pack(">iii", 1, 0, len(records)) + records


def fetch_body(topic: str, offset: int, max_bytes: int = 1 << 20) -> bytes:
    """Fetch v4 of partition 0."""
    name = topic.encode()
    head = struct.pack(">iiiibi", -1, 100, 1, max_bytes, 0, 1) + struct.pack(">h", len(name)) + name
    return head + struct.pack(">iiqi", 1, 0, offset, max_bytes)


class Watch(threading.Thread):
    """Samples the broker's resident memory."""

    def __init__(self, broker: AttackedBroker) -> None:
        super().__init__(name="watch", daemon=True)
        self._broker = broker
        self.largest_bytes = 0
        self.stopping = threading.Event()

    def run(self) -> None:
        with contextlib.suppress(OSError):  # the broker died, which the healthy user notices
            while not self.stopping.wait(0.02):
                self.largest_bytes = max(self.largest_bytes, self._broker.resident_bytes())


@dataclass(frozen=True)
class Figures:
    """What an attack did to the broker and to the healthy user."""

    before_mib: int
    largest_mib: int
    after_mib: int
    rounds: int
    p50_ms: float
    p99_ms: float
    worst_ms: float
    seconds: float

    def __str__(self) -> str:
        return (
            f"memory {self.before_mib} MiB before, {self.largest_mib} at most, {self.after_mib} after; "
            f"{self.rounds} rounds of a healthy user, p50 {self.p50_ms:.1f} ms, p99 {self.p99_ms:.0f} ms, "
            f"worst {self.worst_ms:.0f} ms; {self.seconds:.1f} s"
        )


class Siege:
    """A healthy user and a watch beside whatever happens inside of the `with`."""

    def __init__(self, broker: AttackedBroker) -> None:
        self._broker = broker

    def __enter__(self) -> "Siege":
        self._before = self._broker.resident_bytes()
        self._user, self._watch = HealthyUser(self._broker), Watch(self._broker)
        self._user.start()
        self._watch.start()
        assert self._user.ready.wait(60) and not self._user.fault, self._user.fault
        self._begun = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._seconds = time.monotonic() - self._begun
        # However short the attack was, some rounds tell how the broker is afterwards.
        time.sleep(0.3)
        for thread in (self._user, self._watch):
            thread.stopping.set()
            thread.join(60)

    def figures(self) -> Figures:
        """The figures; raises AssertionError where the healthy user was not served or the broker is gone."""
        assert self._broker.running, f"the broker died:\n{self._broker.log_text()[-4000:]}"
        assert not self._user.fault, self._user.fault
        assert "Traceback" not in self._broker.log_text(), self._broker.log_text()[-4000:]
        times = sorted(self._user.seconds)
        assert times, "the healthy user came to nothing"
        return Figures(
            self._before >> 20,
            self._watch.largest_bytes >> 20,
            self._broker.resident_bytes() >> 20,
            len(times),
            times[len(times) // 2] * 1000,
            times[int(len(times) * 0.99)] * 1000,
            times[-1] * 1000,
            self._seconds,
        )
