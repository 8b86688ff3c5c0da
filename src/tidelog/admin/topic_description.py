"""Everything about a topic: partitions, who may lead them, offsets, sizes, and the settings that differ."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from tidelog.admin.cluster_admin import ClusterAdmin
from tidelog.admin.cluster_state import PartitionState, cluster_state
from tidelog.admin.configs import ConfigResource, ConfigSource, describe_configs
from tidelog.admin.eligible_leaders import Eligible, eligible_leaders
from tidelog.admin.log_dirs import known_sizes
from tidelog.admin.offset_reset import LogEnds
from tidelog.admin.offsets import log_ends
from tidelog.client.api_keys import DESCRIBE_TOPIC_PARTITIONS
from tidelog.client.cluster import Cluster
from tidelog.client.faults import ClientFault


def id_text(topic_id: UUID | None) -> str | None:
    """A topic's id as Kafka writes it."""
    return None if topic_id is None else base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition; sizes and offsets are None where the cluster would not say."""

    partition: int
    leader: int | None
    replicas: list[int]
    isr: list[int]
    elr: list[int]
    last_known_elr: list[int]
    earliest: int | None
    latest: int | None
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """One topic with the settings that differ from the broker's defaults."""

    name: str
    topic_id: str | None
    internal: bool
    configs: dict[str, str | None]
    partitions: list[PartitionDescription]
    #: what partitions without a leader wait for
    waiting: list[str]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def describe_topics(admin: ClusterAdmin, names: Sequence[str]) -> list[TopicDescription]:
    """Ask the cluster for everything about the topics named; AdminFault where one is not there."""
    wanted = list(dict.fromkeys(names))
    state = cluster_state(admin)
    state.of_topics(tuple(wanted))
    rows = {name: state.of_topics((name,)) for name in wanted}
    known = admin.asked("the topics cannot be described", lambda cluster: cluster.topics(wanted))
    led = [(row.topic, row.partition) for found in rows.values() for row in found if not row.offline]
    ends = log_ends(admin, led)
    alive = list(state.alive_racks)
    numbers = {name: [row.partition for row in found] for name, found in rows.items()}
    sizes = known_sizes(admin, alive, numbers)
    eligible = _eligible(admin, [name for name in wanted if any(row.under_replicated for row in rows[name])])
    return [
        TopicDescription(
            name,
            id_text(known[name].topic_id),
            known[name].internal,
            _changed_configs(admin, name),
            [
                _partition(row, eligible.get((name, row.partition), Eligible()), ends, sizes)
                for row in rows[name]
            ],
            [
                f"partition {row.partition} {sentence}"
                for row in rows[name]
                if row.offline
                and (sentence := eligible.get((name, row.partition), Eligible()).sentence(alive))
            ],
        )
        for name in wanted
    ]


def _partition(
    row: PartitionState,
    may_lead: Eligible,
    ends: Mapping[tuple[str, int], LogEnds],
    sizes: Mapping[tuple[int, str, int], int],
) -> PartitionDescription:
    log = ends.get((row.topic, row.partition))
    return PartitionDescription(
        row.partition,
        None if row.offline else row.leader,
        list(row.replicas),
        list(row.isr),
        list(may_lead.elr),
        list(may_lead.last_known_elr),
        None if log is None else log.earliest,
        None if log is None else log.latest,
        sizes.get((row.leader, row.topic, row.partition)),
    )


def _eligible(admin: ClusterAdmin, names: Sequence[str]) -> dict[tuple[str, int], Eligible]:
    """Who may lead next, where replicas are missing; nothing from a cluster without the API."""

    def ask(cluster: Cluster) -> dict[tuple[str, int], Eligible]:
        link = cluster.any_link()
        return eligible_leaders(
            lambda fields: link.request(DESCRIBE_TOPIC_PARTITIONS, fields, highest=0), names
        )

    try:
        return admin.once(ask)
    except ClientFault:
        return {}


def _changed_configs(admin: ClusterAdmin, name: str) -> dict[str, str | None]:
    found = describe_configs(admin, ConfigResource.TOPIC, name)
    return {entry.name: entry.value for entry in found if entry.source is ConfigSource.TOPIC}
