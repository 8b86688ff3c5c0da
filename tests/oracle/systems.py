"""The two systems, started with the same settings: Apache Kafka from Maven Central, and Tidelog.

Each has a listener without a login, whose anonymous user may everything, and one with SASL for users without
rights. Both are started once and serve many sessions. Kafka's jars come from `tests/conformance/oracle`.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.support.kafka_nodes import KafkaNodes, kafka_libraries, quorum_settings
from tidelog.client.client_settings import ClientSettings
from tidelog.server.zookeeper_process import ZookeeperServers
from tidelog.testing.broker import RunningBroker
from tidelog.testing.cluster import RunningCluster
from tidelog.testing.ports import ReservedPort

KAFKA_JAVA_OPTIONS = ("-Xmx1g", "-Xms256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
REQUEST_TIMEOUT_MS = 15_000
#: what brokers need to hear of a change that another one was asked for
SETTLE_SEVERAL_SECONDS = 0.12
USERS = ("alice", "bob")
_LOGIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    + " ".join(f'user_{user}="secret of {user}"' for user in USERS)
    + ";"
)

_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
_SCRAM_MECHANISMS = ("scram-sha-256", "scram-sha-512")

#: the same on both
SHARED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": _LOGIN,
    **{
        f"listener.name.sasl_plaintext.{mechanism}.sasl.jaas.config": _SCRAM
        for mechanism in _SCRAM_MECHANISMS
    },
    "inter.broker.listener.name": "PLAINTEXT",
    "delegation.token.secret.key": "a secret of all brokers",
    "num.partitions": "2",
    "auto.create.topics.enable": "true",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.session.timeout.ms": "30000",
    "group.consumer.min.heartbeat.interval.ms": "300",
    "group.consumer.heartbeat.interval.ms": "1000",
    # Tidelog assigns at once, Kafka once a second
    "group.consumer.assignment.interval.ms": "0",
    "group.share.assignment.interval.ms": "0",
    "group.share.min.record.lock.duration.ms": "1000",
    "share.coordinator.state.topic.num.partitions": "1",
    "log.retention.ms": "-1",
    "transaction.max.timeout.ms": "900000",
    "log.cleaner.enable": "false",
    "max.incremental.fetch.session.cache.slots": "10000",
}


def replication(brokers: int) -> dict[str, str]:
    """Settings that depend on how many brokers there are."""
    copies = str(min(brokers, 3))
    several = {
        # nobody moves leaders by himself; a follower asks for partitions that are new soon
        "auto.leader.rebalance.enable": "false",
        "replica.fetch.wait.max.ms": "50",
    }
    return {
        **(several if brokers > 1 else {}),
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": "1",
        "default.replication.factor": copies,
        "min.insync.replicas": "1",
    }


class System(NamedTuple):
    """A running system: its name, and where its brokers listen."""

    name: str
    #: by broker id: the port without a login, the port with one
    ports: Mapping[int, tuple[int, int]]
    #: how long a change takes to reach every part of it
    settle_seconds: float
    #: kills these brokers with SIGKILL and starts them again, without waiting for them
    crash: Callable[[Sequence[int]], None] | None = None

    def client(
        self, connection: str, broker_id: int, port: int | None = None
    ) -> tuple[str, int, ClientSettings]:
        """Where and how a connection is opened: those named after a user log in; others may have a port."""
        plain, login = self.ports[broker_id]
        plain = port or plain
        options = {"client.id": connection, "request.timeout.ms": str(REQUEST_TIMEOUT_MS)}
        user = connection.split("-")[0]
        if user in USERS:
            options |= {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": user,
                "sasl.password": f"secret of {user}",
            }
        port = login if user in USERS else plain
        return (
            "127.0.0.1",
            port,
            ClientSettings.from_options({"bootstrap.servers": f"127.0.0.1:{port}", **options}),
        )


def kafka_version() -> str:
    return next(kafka_libraries().glob("kafka_2.13-*.jar")).stem.removeprefix("kafka_2.13-")


@contextlib.contextmanager
def kafka(brokers: int = 1) -> Iterator[System]:
    """Apache Kafka with that many KRaft nodes, until the end of the block."""
    folder = Path(tempfile.mkdtemp(prefix="oracle-kafka-"))
    ids = tuple(range(1, brokers + 1))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        reserved = {number: [ReservedPort() for _ in range(3)] for number in ids}
        for each in reserved.values():
            for port in each:
                stack.callback(port.close)
        nodes = KafkaNodes(folder, java_options=KAFKA_JAVA_OPTIONS)
        stack.callback(nodes.close)
        controller_ports = {number: reserved[number][2].port for number in ids}
        for number in ids:
            plain, login, controller = (one.port for one in reserved[number])
            listeners = f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{login}"
            own = {
                **SHARED,
                **replication(brokers),
                **quorum_settings(number, controller_ports),
                "listener.security.protocol.map": (
                    "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"
                ),
                "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
                "advertised.listeners": listeners,
                "log.dirs": str(folder / f"node-{number}"),
            }
            nodes.add(number, own)
            nodes.launch(number)
        ports = {number: (reserved[number][0].port, reserved[number][1].port) for number in ids}
        for number, pair in ports.items():
            for one in pair:
                nodes.wait_port(number, one)
        settle_seconds = 0.04 if brokers == 1 else SETTLE_SEVERAL_SECONDS

        def crash(numbers: Sequence[int]) -> None:
            nodes.kill(*numbers)
            for number in numbers:
                nodes.launch(number)

        yield System("Kafka", ports, settle_seconds, crash)


@contextlib.contextmanager
def tidelog(
    brokers: int = 1, *, store: str = "embedded", in_thread: bool = False, killable: bool = False
) -> Iterator[System]:
    """Tidelog with that many brokers, until the end of the block; one may run in a thread of this process."""
    with contextlib.ExitStack() as stack:
        reserved = {number: [ReservedPort(), ReservedPort()] for number in range(1, brokers + 1)}
        for each in reserved.values():
            for port in each:
                stack.callback(port.close)
        ports = {number: (plain.port, login.port) for number, (plain, login) in reserved.items()}
        settings_of = {number: {"listeners": _listeners(*pair)} for number, pair in ports.items()}
        common = {**SHARED, **replication(brokers)}
        if brokers == 1 and store == "embedded" and not killable:
            settings = {**common, **settings_of[1]}
            stack.enter_context(RunningBroker(settings, mode="thread" if in_thread else "process"))
            yield System("Tidelog", ports, settle_seconds=0.0)
            return
        address = stack.enter_context(_zookeeper()) if store == "zookeeper" else None
        cluster = stack.enter_context(
            RunningCluster(brokers, common, settings_of=settings_of, zookeeper=address, log_level="warning")
        )
        pool = stack.enter_context(ThreadPoolExecutor(1, "restarts"))
        restarts: list[Future[RunningCluster]] = []

        def crash(numbers: Sequence[int]) -> None:
            while restarts:
                # those of the last crash are there, or why not
                restarts.pop().result()
            chosen = None if len(numbers) == brokers else numbers[0]
            cluster.kill(chosen)
            restarts.append(pool.submit(cluster.start, chosen))

        yield System("Tidelog", ports, 0.0 if brokers == 1 else SETTLE_SEVERAL_SECONDS, crash)


def _listeners(plain: int, login: int) -> str:
    return f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{login}"


@contextlib.contextmanager
def _zookeeper() -> Iterator[str]:
    folder = Path(tempfile.mkdtemp(prefix="oracle-zookeeper-"))
    try:
        with ZookeeperServers(folder) as servers:
            yield servers.connect_string
    finally:
        shutil.rmtree(folder, ignore_errors=True)
