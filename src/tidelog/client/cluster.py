"""A cluster as a blocking client sees it: who leads, who coordinates, links to them, and trying again.

    with Cluster(ClientSettings.from_options({"bootstrap.servers": "localhost:9092"})) as cluster:
        cluster.topics(["orders"])                          # partitions and leaders, fresh
        cluster.list_offsets({TopicPartition("orders", 0): EARLIEST})
        cluster.commit_offsets("my-group", {TopicPartition("orders", 0): 42})

Metadata is kept for `metadata.max.age.ms` and asked for again as soon as a broker says that it is not the
leader, or a link breaks. `persist` runs an operation until it succeeds, cannot succeed, or its time is over
(`default.api.timeout.ms`), with growing pauses; everything here goes through it. Topics are never created by
asking for them.

A cluster belongs to one thread at a time. It is not pickled: its settings are.
"""

import contextlib
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from types import TracebackType
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from tidelog.client.api_keys import (
    FIND_COORDINATOR,
    LIST_GROUPS,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
)
from tidelog.client.client_settings import ClientSettings
from tidelog.client.faults import MOVED, LinkFault, Refusal, known_code
from tidelog.client.link import Link
from tidelog.client.requests import encode_request
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import TopicPartition

LATEST = -1
EARLIEST = -2

#: a topic that was just made may be unknown to some broker for so long
UNKNOWN_TOPIC_MS_MAX = 3_000
_NO_LEADER = -1

Result = TypeVar("Result")


class CoordinatorKind(IntEnum):
    """What is coordinated: the key of FindCoordinator is a group id or a transactional id."""

    GROUP = 0
    TRANSACTION = 1


class MetadataPartition(NamedTuple):
    """One partition as Metadata tells of it; leader -1 when there is none now."""

    partition: int
    leader: int
    leader_epoch: int


class MetadataTopic(NamedTuple):
    """A topic as Metadata tells of it."""

    name: str
    #: None from brokers before 2.8
    topic_id: UUID | None
    internal: bool
    partitions: tuple[MetadataPartition, ...]


class ListedOffset(NamedTuple):
    """An answer of ListOffsets; offset -1 when no record is as late as the timestamp asked for."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


class OffsetAndMetadata(NamedTuple):
    """A committed offset, and the text that was committed with it."""

    offset: int
    metadata: str


class Cluster:
    """The door to a cluster; opens links when they are needed."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self.cluster_id: str | None = None
        self._addresses: dict[int, tuple[str, int]] = {}
        self._links: dict[int, Link] = {}
        self._bootstrap_link: Link | None = None
        self._topics: dict[str, MetadataTopic] = {}
        self._asked_at: dict[str, float] = {}
        self._coordinators: dict[tuple[CoordinatorKind, str], int] = {}

    def __repr__(self) -> str:
        return f"<Cluster {self.cluster_id} brokers={sorted(self._addresses)} links={sorted(self._links)}>"

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every link; the next use opens them again."""
        for link in (*self._links.values(), self._bootstrap_link):
            if link is not None:
                link.close()
        self._links.clear()
        self._bootstrap_link = None

    # Trying again

    def persist(self, operation: Callable[[], Result], timeout_ms: int | None = None) -> Result:
        """Run an operation until it returns; raises its last fault when it cannot succeed in time.

        An operation raises LinkFault, or Refusal with a code that may pass, to be run again; what was known
        of leaders and coordinators is forgotten where the fault says that it is stale.
        """
        started = time.monotonic()
        deadline = started + (self.settings.api_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        backoff_ms = self.settings.retry_backoff_ms
        while True:
            try:
                return operation()
            except Refusal as fault:
                if not fault.retriable:
                    raise
                limit = deadline
                if fault.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    limit = min(deadline, started + UNKNOWN_TOPIC_MS_MAX / 1000)
                if fault.code in MOVED:
                    self.forget_places()
                pause = self._pause_seconds(backoff_ms, limit)
                if pause is None:
                    raise
            except LinkFault:
                self.forget_places()
                pause = self._pause_seconds(backoff_ms, deadline)
                if pause is None:
                    raise
            time.sleep(pause)
            backoff_ms = min(2 * backoff_ms, self.settings.retry_backoff_max_ms)

    def _pause_seconds(self, backoff_ms: int, deadline: float) -> float | None:
        """How long to wait before the next try; None when there is no time for one."""
        seconds = backoff_ms / 1000 * random.uniform(0.8, 1.2)
        return None if time.monotonic() + seconds >= deadline else seconds

    def forget_places(self) -> None:
        """Who leads and who coordinates is asked again before the next request."""
        self._topics.clear()
        self._asked_at.clear()
        self._coordinators.clear()

    # Links

    def link_to(self, broker_id: int) -> Link:
        """The link to a broker, opened if it is not; raises LinkFault."""
        link = self._links.get(broker_id)
        if link is not None and not link.closed:
            return link
        if broker_id not in self._addresses:
            self._refresh(())
        address = self._addresses.get(broker_id)
        if address is None:
            raise LinkFault(f"broker {broker_id} is not known in the cluster now")
        link = Link.open(*address, self.settings)
        self._links[broker_id] = link
        return link

    def any_link(self) -> Link:
        """A link to some broker, one that is open if there is any."""
        for link in (*self._links.values(), self._bootstrap_link):
            if link is not None and not link.closed:
                return link
        known = list(self._addresses.values())
        first = list(self.settings.bootstrap_servers)
        random.shuffle(known)
        random.shuffle(first)
        faults: list[str] = []
        for host, port in dict.fromkeys((*first, *known)):
            try:
                self._bootstrap_link = Link.open(host, port, self.settings)
            except LinkFault as fault:
                faults.append(str(fault))
                continue
            return self._bootstrap_link
        raise LinkFault("no broker can be reached: " + "; ".join(faults))

    # Metadata

    def topics(self, names: Iterable[str] | None = None) -> dict[str, MetadataTopic]:
        """The topics of these names, or all, asked for now; those that do not exist are left out."""
        wanted = None if names is None else tuple(dict.fromkeys(names))
        return self.persist(lambda: self._refresh(wanted))

    def topic(self, name: str) -> MetadataTopic:
        """A topic, from memory while that is fresh; raises Refusal if it does not exist."""
        return self.persist(lambda: self._known_topic(name))

    def _known_topic(self, name: str) -> MetadataTopic:
        asked_at = self._asked_at.get(name)
        if asked_at is None or time.monotonic() - asked_at > self.settings.metadata_max_age_ms / 1000:
            self._refresh((name,))
        found = self._topics.get(name)
        if found is None:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r}")
        return found

    def _refresh(self, names: Sequence[str] | None) -> dict[str, MetadataTopic]:
        asked = None if names is None else [{"name": name, "topic_id": None} for name in names]
        fields = {"topics": asked, "allow_auto_topic_creation": False}
        answer = self.any_link().request(METADATA, fields, lowest=4, highest=12)
        self.cluster_id = answer.cluster_id
        if answer.brokers:
            self._adopt_addresses({row.node_id: (row.host, row.port) for row in answer.brokers})
        found: dict[str, MetadataTopic] = {}
        for row in answer.topics:
            code = known_code(row.error_code)
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._topics.pop(row.name, None)
                continue
            if code not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
                raise Refusal(code, f"topic {row.name!r}")
            found[row.name] = _described(row)
        self._topics.update(found)
        now = time.monotonic()
        self._asked_at.update(dict.fromkeys(found if names is None else names, now))
        return found

    def _adopt_addresses(self, addresses: dict[int, tuple[str, int]]) -> None:
        for broker_id, link in list(self._links.items()):
            if addresses.get(broker_id) != link.address:
                link.close("the broker has moved or left")
                del self._links[broker_id]
        self._addresses = addresses

    def leader_of(self, topic: str, partition: int) -> int:
        """The id of the broker that leads a partition; raises Refusal while there is none. One try."""
        for found in self._known_topic(topic).partitions:
            if found.partition == partition:
                if found.leader == _NO_LEADER:
                    raise Refusal(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition}")
                return found.leader
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{partition}")

    # Offsets

    def list_offsets(
        self,
        positions: Mapping[TopicPartition, int],
        isolation_level: int | None = None,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, ListedOffset]:
        """The offset at a time in ms, EARLIEST or LATEST, of each partition.

        LATEST is the last stable offset for read_committed, else the high watermark.
        """
        isolation = self.settings.isolation_level if isolation_level is None else isolation_level
        found: dict[TopicPartition, ListedOffset] = {}

        def list_missing() -> dict[TopicPartition, ListedOffset]:
            by_leader: dict[int, dict[TopicPartition, int]] = {}
            for where, timestamp in positions.items():
                if where not in found:
                    leader = self.leader_of(where.topic, where.partition)
                    by_leader.setdefault(leader, {})[where] = timestamp
            sent = [
                (link := self.link_to(leader), *_send_list_offsets(link, wanted, isolation))
                for leader, wanted in by_leader.items()
            ]
            refusals: list[Refusal] = []
            for link, ticket, version in sent:
                answer = link.receive_decoded(ticket, LIST_OFFSETS, version)
                refusals += _collect_listed(answer, found)
            if refusals:
                # One that will not pass says more than one that may.
                raise next((refusal for refusal in refusals if not refusal.retriable), refusals[0])
            return found

        return self.persist(list_missing, timeout_ms)

    def list_offsets_at(
        self, leaders: Mapping[int, Mapping[TopicPartition, int]], isolation_level: int
    ) -> dict[TopicPartition, ListedOffset]:
        """The same of those who are said to lead, with one try: what one does not tell is left out."""
        found: dict[TopicPartition, ListedOffset] = {}
        sent: list[tuple[Link, int, int]] = []
        for leader, wanted in leaders.items():
            with contextlib.suppress(LinkFault):
                link = self.link_to(leader)
                sent.append((link, *_send_list_offsets(link, wanted, isolation_level)))
        for link, ticket, version in sent:
            with contextlib.suppress(LinkFault):
                _collect_listed(link.receive_decoded(ticket, LIST_OFFSETS, version), found)
        return found

    def commit_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int],
        metadata: str = "",
        timeout_ms: int | None = None,
    ) -> None:
        """Commit for a group without members, as a consumer that assigns itself partitions does."""
        topics: dict[str, list[dict[str, Any]]] = {}
        for (topic, partition), offset in offsets.items():
            row = {
                "partition_index": partition,
                "committed_offset": offset,
                "committed_leader_epoch": -1,
                "committed_metadata": metadata,
            }
            topics.setdefault(topic, []).append(row)
        fields = {
            "group_id": group_id,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [{"name": topic, "partitions": rows} for topic, rows in topics.items()],
        }

        def commit() -> None:
            link = self.coordinator_link(CoordinatorKind.GROUP, group_id)
            answer = link.request(OFFSET_COMMIT, fields, lowest=2, highest=9)
            for row in answer.topics:
                for committed in row.partitions:
                    if committed.error_code:
                        where = f"committing {row.name}-{committed.partition_index} for group {group_id!r}"
                        raise Refusal(committed.error_code, where)

        self.persist(commit, timeout_ms)

    def committed_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None, *, stable: bool = True
    ) -> dict[TopicPartition, int]:
        """What a group has committed; partitions without a commit are left out.

        `stable` waits for open transactions that commit for the group.
        """
        found = self.commits(group_id, partitions, stable=stable)
        return {where: row.offset for where, row in found.items()}

    def commits(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None, *, stable: bool = True
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The same with what was written beside the offsets."""
        topics: dict[str, list[int]] = {}
        for topic, partition in partitions or ():
            topics.setdefault(topic, []).append(partition)
        rows = [{"name": topic, "partition_indexes": indexes} for topic, indexes in topics.items()]
        fields = {
            "group_id": group_id,
            "topics": None if partitions is None else rows,
            "require_stable": stable,
        }

        def fetch() -> dict[TopicPartition, OffsetAndMetadata]:
            link = self.coordinator_link(CoordinatorKind.GROUP, group_id)
            answer = link.request(OFFSET_FETCH, fields, lowest=2, highest=7)
            if answer.error_code:
                raise Refusal(answer.error_code, f"offsets of group {group_id!r}")
            committed: dict[TopicPartition, OffsetAndMetadata] = {}
            for row in answer.topics:
                for found in row.partitions:
                    if found.error_code:
                        where = f"offset of {row.name}-{found.partition_index} in group {group_id!r}"
                        raise Refusal(found.error_code, where)
                    if found.committed_offset >= 0:
                        where_found = TopicPartition(row.name, found.partition_index)
                        committed[where_found] = OffsetAndMetadata(
                            found.committed_offset, found.metadata or ""
                        )
            return committed

        return self.persist(fetch)

    def group_ids(self) -> list[str]:
        """The ids of all groups that we may see, from every broker."""

        def list_groups() -> list[str]:
            found: set[str] = set()
            for broker_id in self.broker_ids():
                answer = self.link_to(broker_id).request(LIST_GROUPS, {}, highest=4)
                if answer.error_code:
                    raise Refusal(answer.error_code, "listing groups")
                found.update(str(row.group_id) for row in answer.groups)
            return sorted(found)

        return self.persist(list_groups)

    def broker_ids(self) -> list[int]:
        """The brokers that live, asked for now. One try."""
        self._refresh(())
        return sorted(self._addresses)

    # Coordinators

    def coordinator_link(self, kind: CoordinatorKind, key: str) -> Link:
        """The link to whoever coordinates a group or a transactional id. One try: call it in `persist`."""
        return self.link_to(self.coordinator_of(kind, key))

    def coordinator_of(self, kind: CoordinatorKind, key: str) -> int:
        """The id of the broker that does. One try as well."""
        broker_id = self._coordinators.get((kind, key))
        if broker_id is None:
            broker_id = self._find_coordinator(kind, key)
            self._coordinators[kind, key] = broker_id
        return broker_id

    def _find_coordinator(self, kind: CoordinatorKind, key: str) -> int:
        fields = {"key": key, "key_type": int(kind)}
        answer = self.any_link().request(FIND_COORDINATOR, fields, lowest=1, highest=3)
        if answer.error_code:
            what = f"coordinator of {kind.name.lower()} {key!r}"
            raise Refusal(answer.error_code, what, answer.error_message)
        broker_id = int(answer.node_id)
        self._addresses[broker_id] = (answer.host, int(answer.port))
        return broker_id


def _described(row: Any) -> MetadataTopic:
    partitions = sorted(
        MetadataPartition(int(one.partition_index), int(one.leader_id), int(getattr(one, "leader_epoch", -1)))
        for one in row.partitions
    )
    return MetadataTopic(
        str(row.name), getattr(row, "topic_id", None), bool(row.is_internal), tuple(partitions)
    )


def _send_list_offsets(link: Link, wanted: Mapping[TopicPartition, int], isolation: int) -> tuple[int, int]:
    """Send, and return the ticket and the version of the answer to come."""
    topics: dict[str, list[dict[str, int]]] = {}
    for (topic, partition), timestamp in wanted.items():
        row = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": timestamp}
        topics.setdefault(topic, []).append(row)
    version = link.version_of(LIST_OFFSETS, 2, 7)
    fields = {
        "replica_id": -1,
        "isolation_level": isolation,
        "topics": [{"name": topic, "partitions": rows} for topic, rows in topics.items()],
    }
    return link.send(LIST_OFFSETS, version, encode_request(LIST_OFFSETS, version, fields)), version


def _collect_listed(answer: Any, found: dict[TopicPartition, ListedOffset]) -> list[Refusal]:
    refusals: list[Refusal] = []
    for topic in answer.topics:
        for row in topic.partitions:
            if row.error_code:
                refusals.append(Refusal(row.error_code, f"offsets of {topic.name}-{row.partition_index}"))
                continue
            listed = ListedOffset(int(row.offset), int(row.timestamp), int(getattr(row, "leader_epoch", -1)))
            found[TopicPartition(topic.name, int(row.partition_index))] = listed
    return refusals
