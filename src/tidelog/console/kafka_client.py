"""Questions to a cluster through confluent-kafka's admin client, answered with values of `snapshot`.

Calls block and may be made from any thread: one librdkafka client serves all of them. Every answer is waited
for with a bound, and trouble is a ConsoleFault.
"""

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import (
    IsolationLevel,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    ConfigSource,
    OffsetSpec,
    ResourceType,
)

from tidelog.console.faults import explained
from tidelog.console.snapshot import (
    BrokerView,
    GroupView,
    PartitionView,
    Snapshot,
    TopicPartitionKey,
    TopicView,
)

CLIENT_ID = "tidelog-console"
OUTCOME_MARGIN_SECONDS = 2.0
#: for the questions of every look: a broker that hangs must not keep the others from being seen
LOOK_SECONDS_MAX = 3.0
LIST_OFFSETS_BATCH = 5_000

_log = logging.getLogger("tidelog.console.client")
_log.addHandler(logging.NullHandler())
_log.propagate = False

_SOURCES = {
    ConfigSource.DYNAMIC_TOPIC_CONFIG.value: "topic",
    ConfigSource.DYNAMIC_BROKER_CONFIG.value: "broker (dynamic)",
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG.value: "cluster (dynamic)",
    ConfigSource.STATIC_BROKER_CONFIG.value: "broker (start)",
    ConfigSource.DEFAULT_CONFIG.value: "default",
}


@dataclass(frozen=True, slots=True)
class SettingView:
    """One setting as a broker tells of it."""

    name: str
    value: str | None
    source: str
    read_only: bool
    sensitive: bool
    default: str | None

    @property
    def overridden(self) -> bool:
        """Whether the resource itself has a value of its own, which can be taken back."""
        return self.source in ("topic", "broker (dynamic)")


class KafkaClient:
    """One cluster, reached with the properties of librdkafka."""

    def __init__(
        self, bootstrap: str, properties: Mapping[str, str] | None = None, timeout_seconds: float = 10.0
    ) -> None:
        self.bootstrap = bootstrap
        self.properties = dict(properties or {})
        self.timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._admin: AdminClient | None = None

    def __repr__(self) -> str:
        return f"<KafkaClient {self.bootstrap}>"

    def client_properties(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        """The properties for another librdkafka client of this cluster."""
        return {
            "client.id": CLIENT_ID,
            # Brokers come and go; the watcher tells of it once, librdkafka would for every connection.
            "log_level": 0,
            **extra,
            **self.properties,
            "bootstrap.servers": self.bootstrap,
            "error_cb": _ignore_error,
        }

    @property
    def admin(self) -> AdminClient:
        with self._lock:
            if self._admin is None:
                with explained("the client properties were refused"):
                    self._admin = AdminClient(self.client_properties({}), logger=_log)
            return self._admin

    def outcome(self, future: "Future[Any]") -> Any:
        return future.result(timeout=self.timeout_seconds + OUTCOME_MARGIN_SECONDS)

    # The cluster

    def snapshot(self, groups: Mapping[str, GroupView]) -> Snapshot:
        """Brokers and topics now, with the groups that are given: `group_client` asks for those apart."""
        with explained(f"the cluster at {self.bootstrap} did not answer"):
            metadata = self.admin.list_topics(timeout=self.timeout_seconds)
        brokers = {
            broker.id: BrokerView(broker.id, str(broker.host), broker.port)
            for broker in metadata.brokers.values()
        }
        problems: list[str] = []
        controller = metadata.controller_id
        try:
            described = self.outcome(self.admin.describe_cluster(request_timeout=LOOK_SECONDS_MAX))
            brokers = {
                node.id: BrokerView(node.id, node.host, node.port, node.rack) for node in described.nodes
            }
            controller = described.controller.id if described.controller is not None else controller
        except (KafkaException, TimeoutError) as failure:
            problems.append(f"racks are not known: {failure}")
        topics = {name: _topic_view(topic) for name, topic in sorted(metadata.topics.items())}
        return Snapshot(
            metadata.cluster_id or "", controller, brokers, topics, dict(groups), time.time(), tuple(problems)
        )

    # Offsets

    def offsets(
        self,
        partitions: Iterable[TopicPartitionKey],
        *,
        timestamp_ms: int | None = None,
        earliest: bool = False,
        committed_only: bool = False,
    ) -> dict[TopicPartitionKey, int]:
        """Where logs end, begin, or were at a time; partitions that cannot be asked are left out.

        At a time after the last record the answer is -1.
        """
        spec: Any = OffsetSpec.earliest() if earliest else OffsetSpec.latest()  # type: ignore[no-untyped-call]
        if timestamp_ms is not None:
            spec = OffsetSpec.for_timestamp(timestamp_ms)
        isolation = IsolationLevel.READ_COMMITTED if committed_only else IsolationLevel.READ_UNCOMMITTED
        wanted = list(partitions)
        found: dict[TopicPartitionKey, int] = {}
        for start in range(0, len(wanted), LIST_OFFSETS_BATCH):
            asked = {TopicPartition(*key): spec for key in wanted[start : start + LIST_OFFSETS_BATCH]}
            with explained("the offsets cannot be listed"):
                futures = self.admin.list_offsets(
                    asked, isolation_level=isolation, request_timeout=LOOK_SECONDS_MAX
                )
            for item, future in futures.items():
                try:
                    found[(item.topic, item.partition)] = self.outcome(future).offset
                except (KafkaException, TimeoutError):
                    continue
        return found

    # Topics

    def topic(self, name: str) -> TopicView:
        """One topic, asked for now; asking creates nothing."""
        with explained(f"topic {name!r} cannot be described"):
            futures = self.admin.describe_topics(
                TopicCollection([name]), request_timeout=self.timeout_seconds
            )
            described = self.outcome(futures[name])
        return TopicView(
            name,
            tuple(
                PartitionView(
                    item.id,
                    item.leader.id if item.leader is not None else -1,
                    tuple(node.id for node in item.replicas),
                    tuple(node.id for node in item.isr),
                )
                for item in sorted(described.partitions, key=lambda item: item.id)
            ),
        )

    def topic_settings(self, name: str) -> list[SettingView]:
        return self._settings(ResourceType.TOPIC, name)

    def broker_settings(self, broker_id: int) -> list[SettingView]:
        return self._settings(ResourceType.BROKER, str(broker_id))

    def _settings(self, kind: ResourceType, name: str) -> list[SettingView]:
        resource = ConfigResource(kind, name)
        with explained(f"the settings of {name!r} cannot be read"):
            futures = self.admin.describe_configs([resource], request_timeout=self.timeout_seconds)
            entries = self.outcome(futures[resource])
        return [_setting_view(entry) for entry in sorted(entries.values(), key=lambda entry: entry.name)]


def _ignore_error(error: Any) -> None:
    """librdkafka reports every lost connection here; calls have their own errors."""


def _topic_view(topic: Any) -> TopicView:
    return TopicView(
        topic.topic,
        tuple(
            PartitionView(item.id, item.leader, tuple(item.replicas), tuple(item.isrs))
            for _, item in sorted(topic.partitions.items())
        ),
    )


def _setting_view(entry: Any) -> SettingView:
    source = entry.source if isinstance(entry.source, int) else entry.source.value
    return SettingView(
        entry.name,
        entry.value,
        _SOURCES.get(source, "unknown"),
        bool(entry.is_read_only),
        bool(entry.is_sensitive),
        _default(entry, source),
    )


def _default(entry: Any, source: int) -> str | None:
    """What would hold if nobody had set anything, as far as the broker tells."""
    if source == ConfigSource.DEFAULT_CONFIG.value:
        return str(entry.value) if entry.value is not None else None
    # Synonyms go from the nearest to the farthest place.
    for synonym in reversed(list((entry.synonyms or {}).values())):
        if synonym.source == ConfigSource.DEFAULT_CONFIG.value and synonym.value is not None:
            # log.retention.hours is a default of retention.ms, in another unit.
            same = synonym.name.removeprefix("log.") == entry.name
            return str(synonym.value) if same else f"{synonym.name}={synonym.value}"
    return None
