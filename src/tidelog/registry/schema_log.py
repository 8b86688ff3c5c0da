"""The topic that holds the schemas: it is made if it is not there, and read from its first record for ever.

`SchemaLog` owns a thread that reads records in committed transactions and hands them to the state.
`caught_up` waits until everything is applied that the topic held when it was asked: what any instance has
acknowledged is then known here.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tidelog.client.client_settings import READ_COMMITTED, ClientSettings
from tidelog.client.cluster import LATEST, Cluster
from tidelog.client.faults import ClientFault
from tidelog.model.identifiers import TopicPartition
from tidelog.registry.faults import STORE_FAULT, TIMED_OUT, RegistryFault

_log = logging.getLogger("tidelog.registry")

POLL_SECONDS = 0.5
RECORDS_AT_ONCE = 500
REQUEST_SECONDS_MAX = 10.0
REPLICATION_FACTOR_MAX = 3
_FETCH_WAIT_MS = 250
_AGAIN_SECONDS = 0.5

Apply = Callable[[bytes | None, bytes | None], None]


class UnfitTopic(Exception):
    """The topic is there, and schemas would be lost in it."""


def ensure_topic(properties: Mapping[str, Any], topic: str) -> None:
    """Make the topic, or check that the one that is there keeps everything; raises UnfitTopic."""
    admin = AdminClient({**properties, "client.id": "tidelog-registry"})
    # All topics: asking for one by its name could make it, with settings that delete.
    cluster = admin.list_topics(timeout=REQUEST_SECONDS_MAX)
    found = cluster.topics.get(topic)
    if found is None or found.error is not None:
        factor = min(REPLICATION_FACTOR_MAX, len(cluster.brokers))
        wanted = NewTopic(
            topic, num_partitions=1, replication_factor=factor, config={"cleanup.policy": "compact"}
        )
        try:
            admin.create_topics([wanted], request_timeout=REQUEST_SECONDS_MAX)[topic].result(
                REQUEST_SECONDS_MAX
            )
        except KafkaException as fault:
            if fault.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        _log.info("made the topic %s with %d replicas", topic, factor)
        return
    if len(found.partitions) != 1:
        raise UnfitTopic(f"topic {topic} has {len(found.partitions)} partitions, and one is needed")
    resource = ConfigResource(ResourceType.TOPIC, topic)
    configs = admin.describe_configs([resource], request_timeout=REQUEST_SECONDS_MAX)[resource].result(
        REQUEST_SECONDS_MAX
    )
    policy = configs["cleanup.policy"].value
    if policy != "compact":
        raise UnfitTopic(
            f"topic {topic} has cleanup.policy={policy}, which would delete schemas; set it to compact"
        )


class SchemaLog:
    """Reads the topic into a state."""

    def __init__(
        self, properties: Mapping[str, Any], client: ClientSettings, topic: str, apply: Apply
    ) -> None:
        self._properties = properties
        self.topic = topic
        self._apply = apply
        self._moved = threading.Condition()
        #: everything before this offset is applied
        self._position = 0
        self._stopping = False
        self.fault: str | None = None
        self._thread = threading.Thread(target=self._run, name="registry-log", daemon=True)
        self._cluster = Cluster(replace(client, client_id="tidelog-registry-reader"))
        self._asking = threading.Lock()

    def __repr__(self) -> str:
        return f"<SchemaLog {self.topic} position={self._position}>"

    @property
    def position(self) -> int:
        return self._position

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._thread.join(REQUEST_SECONDS_MAX)
        with self._asking:
            self._cluster.close()

    def wait_for(self, offset: int, seconds: float) -> None:
        """Return when the record at an offset is applied; raises RegistryFault."""
        with self._moved:
            if not self._moved.wait_for(lambda: self._position > offset, seconds):
                raise RegistryFault(TIMED_OUT, "what was written was not read back in time")

    def caught_up(self, seconds: float) -> None:
        """Return when everything is applied that is in the topic now; raises RegistryFault."""
        deadline = time.monotonic() + seconds
        end = self._end(seconds)
        if end > 0:
            self.wait_for(end - 1, max(0.0, deadline - time.monotonic()))

    def _end(self, seconds: float) -> int:
        """Where the committed records end; asked beside the consumer, which serves one thread alone."""
        where = TopicPartition(self.topic, 0)
        timeout_ms = max(1, int(seconds * 1000))
        with self._asking:
            try:
                found = self._cluster.list_offsets({where: LATEST}, READ_COMMITTED, timeout_ms)
            except ClientFault as fault:
                raise RegistryFault(STORE_FAULT, f"the topic cannot be asked: {fault}") from fault
        return found[where].offset

    # The thread

    def _run(self) -> None:
        # The assigned position is ours: no offset is committed, so the group's name only fills its place.
        consumer = Consumer(
            {
                **self._properties,
                "client.id": "tidelog-registry-reader",
                "group.id": f"{self.topic}-reader",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": _FETCH_WAIT_MS,
                "allow.auto.create.topics": False,
                "error_cb": lambda error: None,
            }
        )
        try:
            consumer.assign([confluent_kafka.TopicPartition(self.topic, 0, 0)])
            while not self._stopping:
                try:
                    first = consumer.poll(POLL_SECONDS)
                    if first is not None:
                        # What else has arrived: consume alone would wait until its list is full.
                        self._take([first, *consumer.consume(RECORDS_AT_ONCE, 0)])
                except KafkaException as fault:
                    self.fault = fault.args[0].str()
                    time.sleep(_AGAIN_SECONDS)
        finally:
            consumer.close()

    def _take(self, messages: list[Any]) -> None:
        position = self._position
        for message in messages:
            error = message.error()
            if error is None:
                self._apply(message.key(), message.value())
                position = message.offset() + 1
                self.fault = None
            elif error.code() == KafkaError._PARTITION_EOF:
                # The end of what is committed: markers of transactions lie before it and come as no record.
                position = max(position, message.offset())
                self.fault = None
            else:
                self.fault = error.str()
                _log.warning("reading %s: %s", self.topic, self.fault)
        if position > self._position:
            with self._moved:
                self._position = position
                self._moved.notify_all()
