"""What confluent-kafka does not offer, asked with our own client: log dirs, transactions, quotas, batches.
And the users: librdkafka 2.16 crashes where it may not read them.

Ordinary requests of the Kafka protocol, so any cluster answers that knows them; where one does not, callers
get a ConsoleFault to show in place of the figures. One blocking client serves everyone, a call at a time,
with short time limits: a page does not wait for a broker that hangs.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tidelog.client.client_settings import ClientSettings
from tidelog.client.cluster import Cluster
from tidelog.client.faults import ClientFault, LinkFault, Refusal, known_code
from tidelog.console.faults import BAD_GATEWAY, ConsoleFault, explained
from tidelog.model.errors import ErrorCode
from tidelog.protocol import consumer_fetch
from tidelog.protocol.apis import FETCH
from tidelog.protocol.consumer_fetch import WantedPartition

DESCRIBE_LOG_DIRS = 35
DESCRIBE_CLIENT_QUOTAS = 48
DESCRIBE_USER_SCRAM_CREDENTIALS = 50
DESCRIBE_TRANSACTIONS = 65
LIST_TRANSACTIONS = 66
REQUEST_TIMEOUT_MS = 5_000
BATCH_BYTES_MAX = 1 << 20
TRANSACTIONS_DESCRIBED_MAX = 200
SCRAM_MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class LogDirView:
    """A folder of a broker; figures are -1 where the broker does not tell or was not asked."""

    broker: int
    path: str
    error: str
    total_bytes: int
    usable_bytes: int
    replicas: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class ReplicaSize:
    broker: int
    topic: str
    partition: int
    size_bytes: int
    offset_lag: int


@dataclass(frozen=True, slots=True)
class TransactionView:
    """A transactional id; the last four are known once it was described."""

    transactional_id: str
    state: str
    producer_id: int
    coordinator: int
    producer_epoch: int | None = None
    timeout_ms: int | None = None
    start_ms: int | None = None
    partitions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QuotaView:
    entity: str
    limits: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class UserView:
    name: str
    credentials: tuple[str, ...]


class WireClient:
    """Our own client behind a lock; made at the first question."""

    def __init__(self, bootstrap: str, properties: Mapping[str, str]) -> None:
        self._options = {
            "client.id": "tidelog-console",
            **properties,
            "bootstrap.servers": bootstrap,
            "request.timeout.ms": str(REQUEST_TIMEOUT_MS),
            "socket.connection.setup.timeout.ms": "3000",
            "default.api.timeout.ms": str(REQUEST_TIMEOUT_MS),
        }
        self._lock = threading.Lock()
        self._cluster: Cluster | None = None

    def close(self) -> None:
        with self._lock:
            if self._cluster is not None:
                self._cluster.close()

    def asked(self, what: str, operation: Callable[[Cluster], Result]) -> Result:
        """Run an operation on the cluster, again where that may help; trouble is a ConsoleFault."""
        with self._lock, explained(what):
            cluster = self._made()
            return cluster.persist(lambda: operation(cluster))

    def once(self, what: str, operation: Callable[[Cluster], Result]) -> Result:
        """The same with one try: a look of the watcher does not wait for a broker that is away."""
        with self._lock, explained(what):
            try:
                return operation(self._made())
            except (LinkFault, Refusal):
                self._made().forget_places()
                raise

    def _made(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(ClientSettings.from_options(self._options))
        return self._cluster

    def probe(self) -> None:
        """Raise a ConsoleFault unless some broker can be spoken to."""
        self.asked("no broker can be reached", lambda cluster: cluster.any_link().address)

    def log_dirs(
        self, brokers: Iterable[int], topics: Mapping[str, list[int]] | None = None
    ) -> tuple[list[LogDirView], list[ReplicaSize]]:
        """Folders and sizes of replicas, of all topics or of some."""
        places = self.replica_places(brokers, topics)
        return [folder for folder, _ in places], [size for _, sizes in places for size in sizes]

    def replica_places(
        self, brokers: Iterable[int], topics: Mapping[str, list[int]] | None
    ) -> list[tuple[LogDirView, list[ReplicaSize]]]:
        """The same, each folder with the replicas in it."""
        asked = (
            None
            if topics is None
            else [{"topic": name, "partitions": tuple(numbers)} for name, numbers in topics.items()]
        )
        places: list[tuple[LogDirView, list[ReplicaSize]]] = []
        for broker in brokers:

            def ask(cluster: Cluster, broker: int = broker) -> Any:
                link = cluster.link_to(broker)
                return link.request(DESCRIBE_LOG_DIRS, {"topics": asked}, lowest=1, highest=4)

            answer = self.asked(f"broker {broker} did not describe its log dirs", ask)
            places += [_log_dir(broker, folder, told=topics != {}) for folder in answer.results]
        return places

    def transactions(self, brokers: Iterable[int]) -> list[TransactionView]:
        """Every transactional id, those with open transactions described and first."""
        found: list[TransactionView] = []
        for broker in brokers:

            def ask(cluster: Cluster, broker: int = broker) -> list[TransactionView]:
                link = cluster.link_to(broker)
                fields = {"state_filters": (), "producer_id_filters": ()}
                listed = link.request(LIST_TRANSACTIONS, fields, highest=0)
                ids = [
                    row.transactional_id
                    for row in listed.transaction_states
                    if not str(row.transaction_state).startswith(("Complete", "Empty"))
                ][:TRANSACTIONS_DESCRIBED_MAX]
                described = {}
                if ids:
                    answer = link.request(DESCRIBE_TRANSACTIONS, {"transactional_ids": tuple(ids)}, highest=0)
                    described = {row.transactional_id: row for row in answer.transaction_states}
                return [
                    _transaction(row, broker, described.get(row.transactional_id))
                    for row in listed.transaction_states
                ]

            found += self.asked(f"broker {broker} did not list its transactions", ask)
        return sorted(found, key=lambda view: (view.start_ms is None, view.start_ms, view.transactional_id))

    def quotas(self) -> list[QuotaView]:
        """The quotas of users, client ids and addresses."""

        def ask(cluster: Cluster) -> Any:
            fields = {"components": (), "strict": False}
            return cluster.any_link().request(DESCRIBE_CLIENT_QUOTAS, fields, highest=1)

        try:
            answer = self.asked("quotas cannot be read", ask)
        except KeyError as failure:
            # The table of our client has the APIs that Tidelog serves; a build without quotas has no row.
            raise ConsoleFault("this console cannot ask for quotas", "", BAD_GATEWAY) from failure
        code = known_code(answer.error_code)
        if code != ErrorCode.NONE:
            raise ConsoleFault(f"quotas cannot be read: {code.name}", "", BAD_GATEWAY)
        found = []
        for entry in answer.entries or ():
            entity = ", ".join(
                f"{part.entity_type}={'<default>' if part.entity_name is None else part.entity_name}"
                for part in entry.entity
            )
            limits = tuple((value.key, float(value.value)) for value in entry.values)
            found.append(QuotaView(entity, limits))
        return sorted(found, key=lambda quota: quota.entity)

    def users(self) -> list[UserView]:
        """Who has a password, and for which mechanisms."""

        def ask(cluster: Cluster) -> Any:
            return cluster.any_link().request(DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": None}, highest=0)

        answer = self.asked("users cannot be read", ask)
        code = known_code(answer.error_code)
        if code != ErrorCode.NONE:
            raise ConsoleFault(f"users cannot be read: {code.name}", "", BAD_GATEWAY)
        found = []
        for result in answer.results:
            mechanisms = sorted((info.mechanism, info.iterations) for info in result.credential_infos)
            credentials = tuple(
                f"{SCRAM_MECHANISMS.get(number, f'mechanism {number}')} ({iterations} iterations)"
                for number, iterations in mechanisms
            )
            found.append(UserView(result.user, credentials))
        return sorted(found, key=lambda user: user.name)

    def batch_at(self, topic: str, partition: int, offset: int) -> bytes:
        """The bytes from the batch that holds an offset on, about BATCH_BYTES_MAX of them."""

        def ask(cluster: Cluster) -> bytes:
            link = cluster.link_to(cluster.leader_of(topic, partition))
            version = link.version_of(FETCH, consumer_fetch.VERSION_MIN, consumer_fetch.VERSION_MAX)
            wanted = [WantedPartition(topic, partition, offset, BATCH_BYTES_MAX)]
            body = consumer_fetch.encode_request(
                version,
                wanted,
                max_wait_ms=100,
                min_bytes=1,
                max_bytes=BATCH_BYTES_MAX,
                isolation=0,
            )
            answer = consumer_fetch.decode_response(version, link.receive(link.send(FETCH, version, body)))
            for row in answer.partitions:
                if known_code(row.error) != ErrorCode.NONE:
                    raise ClientFault(known_code(row.error).name)
                return bytes(row.records)
            return b""

        return self.asked(f"the batch at {topic}-{partition} offset {offset} cannot be read", ask)


def _log_dir(broker: int, folder: Any, *, told: bool) -> tuple[LogDirView, list[ReplicaSize]]:
    sizes = [
        ReplicaSize(broker, topic.name, row.partition_index, row.partition_size, row.offset_lag)
        for topic in folder.topics
        for row in topic.partitions
        if not row.is_future_key
    ]
    code = known_code(folder.error_code)
    view = LogDirView(
        broker,
        folder.log_dir,
        "" if code == ErrorCode.NONE else code.name,
        getattr(folder, "total_bytes", -1),
        getattr(folder, "usable_bytes", -1),
        len(sizes) if told else -1,
        sum(size.size_bytes for size in sizes) if told else -1,
    )
    return view, sizes


def _transaction(row: Any, broker: int, described: Any) -> TransactionView:
    if described is None or known_code(described.error_code) != ErrorCode.NONE:
        return TransactionView(row.transactional_id, row.transaction_state, row.producer_id, broker)
    start = described.transaction_start_time
    timeout = described.transaction_timeout
    return TransactionView(
        row.transactional_id,
        described.transaction_state,
        described.producer_id,
        broker,
        described.producer_epoch,
        round(timeout.total_seconds() * 1000),
        None if start is None else round(start.timestamp() * 1000),
        tuple(f"{topic.topic}-{index}" for topic in described.topics for index in topic.partitions),
    )
