"""The cluster as one user of the gateway sees it: who leads, who coordinates, links, and trying again.

All connections of one AMQP user with one password share one `KafkaAccess`: its links are logged in as that
user, so the cluster's own ACLs decide what the user may do. `persist` runs an operation until it succeeds,
cannot succeed, or its time is over.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from tidelog.client.api_keys import (
    CREATE_TOPICS,
    DELETE_GROUPS,
    DELETE_TOPICS,
    DESCRIBE_SHARE_GROUP_OFFSETS,
    FETCH,
    FIND_COORDINATOR,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_OFFSETS,
    METADATA,
    SHARE_GROUP_DESCRIBE,
)
from tidelog.client.client_settings import ClientSettings
from tidelog.client.faults import MOVED, LinkFault, Refusal, known_code
from tidelog.gateways.amqp.kafka_link import KafkaLink
from tidelog.model.errors import ErrorCode
from tidelog.protocol import fetch_client
from tidelog.protocol.primitives import MalformedRequest

Result = TypeVar("Result")
#: the type of the resource in requests for settings
_GROUP = 32
_SET = 0
FETCH_BYTES_MAX = 1 << 20
_EARLIEST, _LATEST = -2, -1
_UNKNOWN_TOPIC_SECONDS = 3.0


class Topic(NamedTuple):
    """A topic: its id, and who leads each partition (-1: nobody now)."""

    topic_id: UUID
    leaders: tuple[int, ...]
    known_at: float


class KafkaAccess:
    """The links of one user; one event loop."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self._addresses: dict[int, tuple[str, int]] = {}
        self._links: dict[int, KafkaLink] = {}
        self._bootstrap: KafkaLink | None = None
        self._opening: dict[int, asyncio.Lock] = {}
        self._topics: dict[str, Topic] = {}
        self._coordinators: dict[str, int] = {}
        #: how many AMQP connections use it
        self.users = 0

    def __repr__(self) -> str:
        return f"<KafkaAccess {self.settings.sasl_username or 'anonymous'} links={sorted(self._links)}>"

    def close(self) -> None:
        for link in (*self._links.values(), self._bootstrap):
            if link is not None:
                link.close()
        self._links.clear()
        self._bootstrap = None

    async def persist(
        self, operation: Callable[[], Awaitable[Result]], timeout_ms: int | None = None
    ) -> Result:
        """Run an operation until it returns; raises its last fault when it cannot succeed in time."""
        started = time.monotonic()
        deadline = started + (timeout_ms or self.settings.api_timeout_ms) / 1000
        backoff_ms = self.settings.retry_backoff_ms
        while True:
            try:
                return await operation()
            except (LinkFault, Refusal) as fault:
                limit = deadline
                if isinstance(fault, Refusal):
                    if not fault.retriable:
                        raise
                    if fault.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                        limit = min(limit, started + _UNKNOWN_TOPIC_SECONDS)
                if not isinstance(fault, Refusal) or fault.code in MOVED:
                    self.forget_places()
                pause = backoff_ms / 1000 * random.uniform(0.8, 1.2)
                if time.monotonic() + pause >= limit:
                    raise
            await asyncio.sleep(pause)
            backoff_ms = min(2 * backoff_ms, self.settings.retry_backoff_max_ms)

    def forget_places(self) -> None:
        self._topics.clear()
        self._coordinators.clear()

    # Links

    async def any_link(self) -> KafkaLink:
        for link in (*self._links.values(), self._bootstrap):
            if link is not None and not link.closed:
                return link
        places = list(dict.fromkeys((*self.settings.bootstrap_servers, *self._addresses.values())))
        random.shuffle(places)
        faults: list[str] = []
        for host, port in places:
            try:
                self._bootstrap = await KafkaLink.open(host, port, self.settings)
            except LinkFault as fault:
                faults.append(str(fault))
                continue
            return self._bootstrap
        raise LinkFault("no broker can be reached: " + "; ".join(faults))

    async def link_to(self, broker_id: int) -> KafkaLink:
        """The shared link to a broker; raises LinkFault."""
        async with self._opening.setdefault(broker_id, asyncio.Lock()):
            link = self._links.get(broker_id)
            if link is None or link.closed:
                link = self._links[broker_id] = await self.own_link(broker_id)
            return link

    async def own_link(self, broker_id: int) -> KafkaLink:
        """Another link, of the caller alone: what waits on it makes nobody else wait."""
        if broker_id not in self._addresses:
            await self._refresh(())
        address = self._addresses.get(broker_id)
        if address is None:
            raise LinkFault(f"broker {broker_id} is not known in the cluster now")
        return await KafkaLink.open(*address, self.settings)

    async def coordinator(self, group_id: str) -> KafkaLink:
        """The link to the coordinator of a group. One try."""
        broker_id = self._coordinators.get(group_id)
        if broker_id is None:
            link = await self.any_link()
            version = link.version_of(FIND_COORDINATOR, 0, 4)
            fields: dict[str, Any] = {"key": group_id, "key_type": 0, "coordinator_keys": [group_id]}
            answer = await link.request(FIND_COORDINATOR, fields, highest=version)
            row = answer.coordinators[0] if version >= 4 else answer
            if row.error_code:
                raise Refusal(row.error_code, f"finding the coordinator of group {group_id!r}")
            self._addresses.setdefault(row.node_id, (row.host, row.port))
            broker_id = self._coordinators[group_id] = row.node_id
        return await self.link_to(broker_id)

    # Topics

    async def topic(self, name: str) -> Topic:
        """A topic, from memory while that is fresh; raises Refusal. One try."""
        known = self._topics.get(name)
        if known is None or time.monotonic() - known.known_at > self.settings.metadata_max_age_ms / 1000:
            await self._refresh((name,))
            known = self._topics.get(name)
            if known is None:
                raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r}")
        return known

    def known_topic(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def forget_topic(self, name: str) -> None:
        self._topics.pop(name, None)

    async def _refresh(self, names: tuple[str, ...]) -> None:
        link = await self.any_link()
        fields = {
            "topics": [{"name": name, "topic_id": None} for name in names],
            "allow_auto_topic_creation": False,
        }
        answer = await link.request(METADATA, fields, lowest=10, highest=12)
        if answer.brokers:
            self._addresses = {row.node_id: (row.host, row.port) for row in answer.brokers}
        now = time.monotonic()
        for row in answer.topics:
            code = known_code(row.error_code)
            if code not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
                self._topics.pop(row.name, None)
                raise Refusal(code, f"topic {row.name!r}")
            leaders = [-1] * len(row.partitions)
            for partition in row.partitions:
                leaders[partition.partition_index] = partition.leader_id
            self._topics[row.name] = Topic(row.topic_id, tuple(leaders), now)

    async def leader_of(self, topic: str, partition: int) -> int:
        """Who leads; raises Refusal while nobody does. One try."""
        leaders = (await self.topic(topic)).leaders
        if partition >= len(leaders):
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{partition}")
        if leaders[partition] < 0:
            self.forget_topic(topic)
            raise Refusal(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition}")
        return leaders[partition]

    async def create_topic(self, name: str, partitions: int, configs: dict[str, str]) -> bool:
        """Make a topic; False if it was there already."""
        fields = {
            "topics": [
                {
                    "name": name,
                    "num_partitions": partitions,
                    "replication_factor": -1,
                    "assignments": [],
                    "configs": [{"name": key, "value": value} for key, value in configs.items()],
                }
            ],
            "timeout": self.settings.request_timeout_ms,
            "validate_only": False,
        }

        async def create() -> bool:
            # Any broker of Tidelog takes it; that of Kafka passes it on to its controller.
            answer = await (await self.any_link()).request(CREATE_TOPICS, fields, lowest=4, highest=7)
            row = answer.topics[0]
            if row.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
                return False
            _check(row, f"creating topic {name!r}")
            return True

        made = await self.persist(create)
        self.forget_topic(name)
        return made

    async def delete_topic(self, name: str) -> None:
        fields: dict[str, Any] = {
            "topics": [{"name": name, "topic_id": None}],
            "topic_names": [name],
            "timeout": self.settings.request_timeout_ms,
        }

        async def delete() -> None:
            answer = await (await self.any_link()).request(DELETE_TOPICS, fields, lowest=4, highest=6)
            row = answer.responses[0]
            if row.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                _check(row, f"deleting topic {name!r}")

        await self.persist(delete)
        self.forget_topic(name)

    async def log_size(self, topic: str) -> int:
        """How many offsets a topic spans."""
        count = len((await self.topic(topic)).leaders)
        total = 0
        for partition in range(count):
            ends = [await self.list_offset(topic, partition, which) for which in (_EARLIEST, _LATEST)]
            total += ends[1] - ends[0]
        return total

    async def list_offset(self, topic: str, partition: int, timestamp: int = _LATEST) -> int:
        """The end of a partition, or its offset at a time. One try."""
        link = await self.link_to(await self.leader_of(topic, partition))
        row = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": timestamp}
        fields = {
            "replica_id": -1,
            "isolation_level": 1,
            "topics": [{"name": topic, "partitions": [row]}],
        }
        answer = await link.request(LIST_OFFSETS, fields, lowest=2, highest=6)
        found = answer.topics[0].partitions[0]
        _check(found, f"asking for the end of {topic}-{partition}")
        return int(found.offset)

    # Groups

    async def configure_group(self, group_id: str, configs: dict[str, str]) -> None:
        """Change settings of a group."""
        rows = [{"name": name, "config_operation": _SET, "value": value} for name, value in configs.items()]
        resource = {"resource_type": _GROUP, "resource_name": group_id, "configs": rows}

        async def configure() -> None:
            link = await self.any_link()
            fields = {"resources": [resource], "validate_only": False}
            answer = await link.request(INCREMENTAL_ALTER_CONFIGS, fields, highest=1)
            _check(answer.responses[0], f"changing the settings of group {group_id!r}")

        await self.persist(configure)

    async def delete_group(self, group_id: str) -> None:
        """Delete a group that has no members; one that is not there is as well."""

        async def delete() -> None:
            link = await self.coordinator(group_id)
            answer = await link.request(DELETE_GROUPS, {"groups_names": [group_id]}, highest=2)
            row = answer.results[0]
            if row.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
                _check(row, f"deleting group {group_id!r}")

        await self.persist(delete)

    async def members(self, group_id: str) -> int:
        """How many members a share group has."""

        async def describe() -> int:
            link = await self.coordinator(group_id)
            fields = {"group_ids": [group_id], "include_authorized_operations": False}
            answer = await link.request(SHARE_GROUP_DESCRIBE, fields, lowest=1, highest=1)
            row = answer.groups[0]
            if row.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
                return 0
            _check(row, f"describing group {group_id!r}")
            return len(row.members)

        return await self.persist(describe)

    async def share_offsets(self, group_id: str, topic: str) -> dict[int, tuple[int, int]] | None:
        """By partition, where a share group begins and how many records it has not done with.

        None while it has read nothing.
        """

        async def ask() -> dict[int, tuple[int, int]] | None:
            link = await self.coordinator(group_id)
            partitions = list(range(len((await self.topic(topic)).leaders)))
            group = {"group_id": group_id, "topics": [{"topic_name": topic, "partitions": partitions}]}
            fields = {"groups": [group]}
            answer = await link.request(DESCRIBE_SHARE_GROUP_OFFSETS, fields, lowest=1, highest=1)
            found = answer.groups[0]
            if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
                return None
            _check(found, f"asking for the offsets of group {group_id!r}")
            rows = [row for each in found.topics for row in each.partitions]
            if not rows or any(row.start_offset < 0 or row.lag < 0 for row in rows):
                return None
            return {row.partition_index: (row.start_offset, row.lag) for row in rows}

        return await self.persist(ask)


async def fetch(
    link: KafkaLink,
    topic: str,
    partition: int,
    offset: int,
    *,
    wait_ms: int,
    bytes_max: int = FETCH_BYTES_MAX,
) -> fetch_client.AnsweredPartition[str]:
    """What an ordinary consumer reads of one partition. One try."""
    version = link.version_of(FETCH, fetch_client.CONSUMER_VERSION_MIN, fetch_client.CONSUMER_VERSION_MAX)
    request = fetch_client.consumer_request(
        topic,
        partition,
        offset,
        bytes_max,
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=bytes_max,
        isolation=0,
        rack_id="",
    )
    body = await link.answer(link.send(FETCH, version, fetch_client.encode_request(version, request)))
    try:
        answer = fetch_client.decode_response(version, body)
    except MalformedRequest as fault:
        link.close("its answer to Fetch could not be read")
        raise LinkFault(f"the answer to Fetch cannot be read: {fault}") from fault
    if answer.error or not answer.partitions:
        raise LinkFault(f"Fetch answered {answer.error}")
    return answer.partitions[0]


def _check(row: Any, what: str) -> None:
    if row.error_code:
        raise Refusal(row.error_code, what, getattr(row, "error_message", None))
