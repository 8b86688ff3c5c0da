"""What the steps of a scenario work with: a real cluster, real clients, the files on disk, and faults.

    lab.produce("orders", ["a", "b"], acks="all")      confluent-kafka; what became of each record
    lab.read("orders")                                 every record that is there now
    lab.start_consumer("anna", group="g", topics=[…])  a consumer in a process of its own
    lab.start_gateway("mqtt")                          a gateway in a process of its own
    lab.wire(lab.leader("orders"))                     a raw connection (tidelog.client.link.Link)
    lab.partition_folder(broker, "orders", 0)          files on disk
    lab.faults.kill(lab.leader("orders"))              see `faults`
    lab.wait("the ISR is whole", lambda: …)            bounded; raises TimeoutError in words

`lab.notes` carries what later steps need, `lab.events` tells pages what happens. Everything a lab started
ends with `close`.
"""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tidelog.client.api_keys import LIST_OFFSETS
from tidelog.client.client_settings import READ_COMMITTED, READ_UNCOMMITTED, ClientSettings
from tidelog.client.cluster import EARLIEST, LATEST, Cluster
from tidelog.client.faults import LinkFault, Refusal
from tidelog.client.link import Link
from tidelog.lab import log_files
from tidelog.lab.clients import Delivery, ReadRecord, Sender, client_config, pairs_of, read_topic
from tidelog.lab.consumers import ConsumerPlan, ConsumerProcess
from tidelog.lab.events import EventStream
from tidelog.lab.faults import FaultNotPossible, Faults
from tidelog.lab.lab_cluster import LabCluster
from tidelog.lab.network import Network
from tidelog.lab.scenario import Scenario, Topic
from tidelog.records.batch import BatchHeader
from tidelog.server.cluster_view import NoView, PartitionView
from tidelog.server.local_cluster import REPLICAS_MAX
from tidelog.testing.serving_command import ServingCommand

WAIT_SECONDS = 30.0
POLL_SECONDS = 0.05
EARLIEST_OFFSET = -2

Found = TypeVar("Found")


class Replica(NamedTuple):
    """One copy of a partition: its log end is read from its files, so a dead broker has one too."""

    broker: int
    partition: int
    log_end: int
    leads: bool
    in_sync: bool
    alive: bool


class Positions(NamedTuple):
    """Where a partition begins and ends for consumers, as its leader says."""

    log_start: int
    high_watermark: int
    last_stable: int


class Lab:
    """A scenario's world, from `start` to `close`; usable as a context manager."""

    def __init__(self, scenario: Scenario, *, events: EventStream | None = None) -> None:
        self.scenario = scenario
        self.events = events or EventStream()
        self.notes: dict[str, Any] = {}
        # Goes with the process if it does not come to `close`.
        self._temporary = tempfile.TemporaryDirectory(prefix="tidelog-lab-", ignore_cleanup_errors=True)
        self.folder = Path(self._temporary.name)
        self.cluster = LabCluster(
            scenario.brokers,
            scenario.settings,
            settings_of=scenario.settings_of,
            gates=scenario.gates,
            users=scenario.users,
            data_directory=self.folder,
        )
        self.faults = Faults(self)
        self.consumers: dict[str, ConsumerProcess] = {}
        #: by protocol
        self.gateways: dict[str, ServingCommand] = {}
        self.topics: list[str] = []
        self._links: list[Link] = []
        self._wire_cluster: Cluster | None = None
        self._admin: AdminClient | None = None
        self._direct_settings = ClientSettings.from_options(
            {"bootstrap.servers": self.bootstrap, "client.id": "lab-watcher", "request.timeout.ms": "3000"}
        )

    def __repr__(self) -> str:
        return f"<Lab {self.scenario.name} {self.cluster!r}>"

    def __enter__(self) -> "Lab":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> "Lab":
        """Start the brokers, side by side, and make the topics of the start state."""
        self.events.emit(
            "cluster-starts",
            "a broker starts" if self.scenario.brokers == 1 else f"{self.scenario.brokers} brokers start",
        )
        try:
            self.cluster.start()
            for topic in self.scenario.topics:
                self.create_topic(topic)
        except BaseException:
            self.close()
            raise
        self.events.emit("cluster-ready", f"the cluster is at {self.bootstrap}", bootstrap=self.bootstrap)
        return self

    def close(self) -> None:
        """End consumers, gateways and brokers, and remove their files."""
        for consumer in self.consumers.values():
            consumer.close()
        for gateway in self.gateways.values():
            gateway.close()
        for link in self._links:
            link.close()
        if self._wire_cluster is not None:
            self._wire_cluster.close()
        self.cluster.close()
        self._temporary.cleanup()
        self.events.emit("cluster-gone", "the cluster is gone")

    # The cluster

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap

    @property
    def network(self) -> Network:
        """The gates; raises FaultNotPossible where the scenario has none."""
        if self.cluster.network is None:
            raise FaultNotPossible(
                f"{self.scenario.name} measures, so its brokers have no gates to cut or slow"
            )
        return self.cluster.network

    def create_topic(
        self,
        topic: Topic | str,
        partitions: int = 1,
        replication_factor: int | None = None,
        **configs: Any,
    ) -> str:
        """Create a topic, a `Topic` or a name, and wait for it; `retention_ms=1` sets retention.ms."""
        if isinstance(topic, str):
            named = {name.replace("_", "."): str(value) for name, value in configs.items()}
            topic = Topic(topic, partitions, replication_factor, named)
        replicas = topic.replication_factor or min(self.scenario.brokers, REPLICAS_MAX)
        wanted = NewTopic(topic.name, topic.partitions, replicas, config=dict(topic.configs))
        self.admin().create_topics([wanted])[topic.name].result(WAIT_SECONDS)
        self.cluster.wait_in_sync([topic.name])
        self.topics.append(topic.name)
        self.events.emit("topic-created", f"topic {topic.name} is there", topic=topic.name)
        return topic.name

    def partition(self, topic: str, partition: int = 0) -> PartitionView:
        """Leader, replicas and ISR, as a broker that answers says now."""
        return self.cluster.partition(topic, partition)

    def leader(self, topic: str, partition: int = 0) -> int:
        """The broker that leads a partition, -1 if none does."""
        return self.cluster.leader(topic, partition)

    def followers(self, topic: str, partition: int = 0) -> list[int]:
        """The brokers with a copy that do not lead."""
        found = self.partition(topic, partition)
        return [broker for broker in found.replicas if broker != found.leader]

    def wait_leader(
        self, topic: str, partition: int = 0, *, other_than: int = -1, timeout_seconds: float = WAIT_SECONDS
    ) -> int:
        """The leader, as soon as there is one that is not `other_than`."""

        def leads() -> int | None:
            found = self.leader(topic, partition)
            return None if found in (-1, other_than) else found

        return self.wait_value(f"{topic}-{partition} has another leader", leads, timeout_seconds)

    def wait_isr(
        self, topic: str, brokers: Iterable[int], partition: int = 0, *, timeout_seconds: float = WAIT_SECONDS
    ) -> None:
        """Return when the ISR is exactly these brokers."""
        wanted = set(brokers)
        self.wait(
            f"the ISR of {topic}-{partition} is {sorted(wanted)}",
            lambda: set(self.partition(topic, partition).isr) == wanted,
            timeout_seconds,
        )

    def wait_committed(self, topic: str, partition: int = 0) -> None:
        """Return when everything in the leader's log can be read.

        A leader that has just been elected learns the high watermark from its followers' next fetches.
        """

        def whole() -> bool:
            ends = [replica.log_end for replica in self.replicas(topic, partition) if replica.leads]
            return ends == [self.positions(topic, partition).high_watermark]

        self.wait(f"all of {topic}-{partition} can be read", whole)

    def set_topic_config(self, topic: str, name: str, value: str) -> None:
        """Set one setting of a topic."""
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        for future in self.admin().incremental_alter_configs([resource]).values():
            future.result(WAIT_SECONDS)

    def set_group_config(self, group: str, settings: Mapping[str, str]) -> None:
        """Set settings of a group, which need not be there yet."""
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
        for future in self.admin().incremental_alter_configs([resource]).values():
            future.result(WAIT_SECONDS)

    def elect_preferred_leader(self, topic: str, partition: int = 0) -> None:
        """Ask for the first replica to lead, and wait until it does."""
        first = self.partition(topic, partition).replicas[0]
        place = [TopicPartition(topic, partition)]
        self.admin().elect_leaders(ElectionType.PREFERRED, place).result(WAIT_SECONDS)
        self.wait(f"broker {first} leads", lambda: self.leader(topic, partition) == first)

    # Clients

    def admin(self) -> AdminClient:
        """confluent-kafka's admin client."""
        if self._admin is None:
            self._admin = AdminClient(client_config(self.bootstrap, {}))
        return self._admin

    def sender(self, **options: Any) -> Sender:
        """A producer that keeps what became of its records; `linger_ms=5` sets linger.ms."""
        return Sender(self.bootstrap, self.events, **options)

    def produce(
        self,
        topic: str,
        records: Iterable[str | tuple[str | None, str | None]],
        *,
        partition: int | None = None,
        timeout_seconds: float = WAIT_SECONDS,
        **options: Any,
    ) -> list[Delivery]:
        """Send values, or (key, value) pairs, and wait for their fate, in the order in which it was known.

        Raises TimeoutError when nobody tells it, which says who is away.
        """
        sender = self.sender(**options)
        for key, value in pairs_of(records):
            sender.send(topic, value, key, partition=partition)
        try:
            return sender.fates(timeout_seconds)
        except TimeoutError as unknown:
            states = {broker: self.cluster.state(broker) for broker in self.cluster.broker_ids}
            away = [f"broker {broker} is {state}" for broker, state in states.items() if state != "running"]
            raise TimeoutError("; ".join((str(unknown), *away))) from unknown

    def read(
        self,
        topic: str,
        *,
        partitions: Sequence[int] | None = None,
        start_offset: int = EARLIEST_OFFSET,
        **options: Any,
    ) -> list[ReadRecord]:
        """Every record that a consumer gets up to the present end; `isolation_level="read_committed"`, …"""
        chosen = partitions
        if chosen is None:
            chosen = [found.partition for found in self.cluster.view().partitions if found.topic == topic]
        return read_topic(self.bootstrap, topic, partitions=chosen, start_offset=start_offset, **options)

    def start_consumer(
        self,
        name: str,
        *,
        group: str = "",
        topics: Sequence[str] = (),
        partitions: Sequence[tuple[str, int, int]] | None = None,
        commit: str = "after",
        commit_every: int = 1,
        work_ms: float = 0,
        crash_at: int = 0,
        **options: Any,
    ) -> ConsumerProcess:
        """A consumer in a process of its own (see `consumers.ConsumerPlan`)."""
        if name in self.consumers and self.consumers[name].state != "down":
            raise FaultNotPossible(f"consumer {name} runs already")
        config = client_config(
            self.bootstrap,
            {
                "group_id": group or f"lab-{name}",
                "client_id": name,
                "auto_offset_reset": "earliest",
                "enable_auto_commit": commit == "auto",
                "session_timeout_ms": 3000,
                "heartbeat_interval_ms": 500,
                **options,
            },
        )
        if config.get("group.protocol") == "consumer":
            # the broker decides about these in the new protocol, and librdkafka refuses to be told
            del config["session.timeout.ms"], config["heartbeat.interval.ms"]
        del config["error_cb"]  # functions do not travel to another process
        plan = ConsumerPlan(config, topics, partitions, commit, commit_every, work_ms, crash_at)
        if name in self.consumers:
            self.consumers[name].close()
        self.consumers[name] = ConsumerProcess(name, plan, self.events)
        return self.consumers[name]

    def consumer_process(self, name: str) -> ConsumerProcess:
        """A consumer that was started, by name; LookupError otherwise."""
        if name not in self.consumers:
            raise LookupError(f"there is no consumer {name!r}")
        return self.consumers[name]

    def start_gateway(self, protocol: str, *options: str) -> ServingCommand:
        """A gateway for `mqtt` or `amqp` in a process of its own, of which there may be one each."""
        if protocol in self.gateways:
            raise FaultNotPossible(f"the {protocol} gateway runs already")
        gateway = self.gateways[protocol] = ServingCommand(
            ("gateway", protocol), self.bootstrap, options=options
        )
        gateway.start()
        self.events.emit("gateway-started", f"the {protocol.upper()} gateway listens", port=gateway.port)
        return gateway

    # The wire

    def wire(self, broker_id: int, *, client_id: str = "lab-wire") -> Link:
        """A raw connection to one broker, through its gate; closed with the lab."""
        host, _, port = self.cluster.advertised_address(broker_id).rpartition(":")
        settings = ClientSettings.from_options({"bootstrap.servers": self.bootstrap, "client.id": client_id})
        link = Link.open(host, int(port), settings)
        self._links.append(link)
        return link

    def wire_cluster(self) -> Cluster:
        """tidelog's own blocking client for the whole cluster."""
        if self._wire_cluster is None:
            self._wire_cluster = Cluster(ClientSettings.from_options({"bootstrap.servers": self.bootstrap}))
        return self._wire_cluster

    def positions(self, topic: str, partition: int = 0) -> Positions:
        """Log start, high watermark and last stable offset, as the leader says now.

        A new leader does not tell before it knows (OFFSET_NOT_AVAILABLE, KIP-207), so it is asked again.
        """

        def asked() -> Positions | None:
            try:
                return self.positions_at(self.wait_leader(topic, partition), topic, partition)
            except LinkFault:
                return None
            except Refusal as refused:
                if not refused.retriable:
                    raise
                return None

        return self.wait_value(f"the leader of {topic}-{partition} tells its positions", asked)

    def positions_at(self, broker_id: int, topic: str, partition: int) -> Positions:
        """The same asked of one broker, past its gate; raises ClientFault if it does not lead or answer."""
        link = Link.open("127.0.0.1", self.cluster.port(broker_id), self._direct_settings)
        try:
            asked = ((EARLIEST, READ_UNCOMMITTED), (LATEST, READ_UNCOMMITTED), (LATEST, READ_COMMITTED))
            return Positions(*(self._listed(link, topic, partition, *question) for question in asked))
        finally:
            link.close()

    def _listed(self, link: Link, topic: str, partition: int, timestamp: int, isolation: int) -> int:
        fields = {
            "replica_id": -1,
            "isolation_level": isolation,
            "topics": [
                {"name": topic, "partitions": [{"partition_index": partition, "timestamp": timestamp}]}
            ],
        }
        answer = link.request(LIST_OFFSETS, fields, lowest=2, highest=6)
        row = answer.topics[0].partitions[0]
        if row.error_code:
            raise Refusal(row.error_code, f"asking for the offsets of {topic}-{partition}")
        return int(row.offset)

    # Files

    def broker_folder(self, broker_id: int) -> Path:
        """Everything a broker keeps."""
        return self.cluster.data_directory_of(broker_id)

    def partition_folder(self, broker_id: int, topic: str, partition: int = 0) -> Path:
        """The files of one replica."""
        return self.broker_folder(broker_id) / f"{topic}-{partition}"

    def log_bytes(self, broker_id: int, topic: str, partition: int = 0) -> bytes:
        """Everything that the segments of one replica hold, one behind the other."""
        folder = self.partition_folder(broker_id, topic, partition)
        return b"".join(path.read_bytes() for path in log_files.segments(folder))

    def headers(self, broker_id: int, topic: str, partition: int = 0) -> list[BatchHeader]:
        """The headers of the batches of one replica, in order."""
        folder = self.partition_folder(broker_id, topic, partition)
        return [batch.header for batch in log_files.batches(folder)]

    def replicas(self, topic: str, partition: int = 0) -> list[Replica]:
        """Every copy of a partition, the first of them the preferred leader."""
        return self.replicas_of(self.partition(topic, partition))

    def replicas_of(self, found: PartitionView) -> list[Replica]:
        """Every copy of a partition that was asked for already."""
        return [
            Replica(
                broker,
                found.partition,
                log_files.log_end_offset(self.partition_folder(broker, found.topic, found.partition)),
                broker == found.leader,
                broker in found.isr,
                self.cluster.state(broker) == "running",
            )
            for broker in found.replicas
        ]

    # Waiting

    def wait(self, what: str, ready: Callable[[], bool], timeout_seconds: float = WAIT_SECONDS) -> float:
        """Wait until `ready()`; how many seconds it took. TimeoutError says what did not come."""
        started = time.monotonic()
        self.wait_value(what, lambda: ready() or None, timeout_seconds)
        return time.monotonic() - started

    def wait_value(
        self, what: str, find: Callable[[], Found | None], timeout_seconds: float = WAIT_SECONDS
    ) -> Found:
        """Wait until `find()` is not None, and return that."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            with contextlib.suppress(NoView, LookupError):
                found = find()
                if found is not None:
                    return found
            if time.monotonic() >= deadline:
                raise TimeoutError(f"waited {timeout_seconds:g} s in vain until {what}")
            time.sleep(POLL_SECONDS)
