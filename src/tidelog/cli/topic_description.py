"""What `tidelog topic describe` shows: gathered from the cluster into values, then printed."""

from dataclasses import asdict, dataclass
from typing import Any

import click

from tidelog.cli.connection import Connection
from tidelog.cli.eligible_leaders import DESCRIBE_TOPIC_PARTITIONS, Eligible, eligible_leaders
from tidelog.cli.errors import CommandError, explained
from tidelog.cli.listed_offsets import list_offsets
from tidelog.cli.output import bytes_text, print_fields, print_table
from tidelog.cli.positions import Position, PositionKind
from tidelog.model.addresses import address_text


def id_text(value: Any) -> str:
    """A topic's id as Kafka writes it: with '-' and '_', where librdkafka has '+' and '/'."""
    return str(value).translate(str.maketrans("+/", "-_"))


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


def describe_topics(connection: Connection, names: list[str]) -> list[TopicDescription]:
    """Ask the cluster for everything about the topics named."""
    from confluent_kafka import TopicCollection, TopicPartition

    admin = connection.admin()
    known = connection.metadata(admin)
    missing = [name for name in names if name not in known.topics]
    if missing:
        raise CommandError(f"there is no topic {', '.join(missing)}", "'tidelog topic list' shows the topics")
    futures = admin.describe_topics(TopicCollection(names), request_timeout=connection.timeout_seconds)
    partitions = [
        TopicPartition(name, number)
        for name in names
        for number, partition in known.topics[name].partitions.items()
        if partition.leader >= 0
    ]
    earliest = list_offsets(connection, admin, partitions, Position(PositionKind.BEGINNING))
    latest = list_offsets(connection, admin, partitions, Position(PositionKind.END))
    sizes = _sizes(connection, names, known)
    eligible = _eligible(connection, names, known)
    alive = list(known.brokers)
    descriptions = []
    for name in dict.fromkeys(names):
        with explained(f"topic {name!r} cannot be described"):
            described = connection.outcome(futures[name])
        rows, waiting = [], []
        for partition in described.partitions:
            leader = partition.leader.id if partition.leader is not None else None
            may_lead = eligible.get((name, partition.id), Eligible())
            if leader is None and may_lead.sentence(alive):
                waiting.append(f"partition {partition.id} {may_lead.sentence(alive)}")
            rows.append(
                PartitionDescription(
                    partition.id,
                    leader,
                    [node.id for node in partition.replicas],
                    [node.id for node in partition.isr],
                    list(may_lead.elr),
                    list(may_lead.last_known_elr),
                    _offset(earliest, name, partition.id),
                    _offset(latest, name, partition.id),
                    sizes.get((leader, name, partition.id)) if leader is not None else None,
                )
            )
        topic_id = None if described.topic_id is None else id_text(described.topic_id)
        configs = _changed_configs(connection, admin, name)
        descriptions.append(TopicDescription(name, topic_id, described.is_internal, configs, rows, waiting))
    return descriptions


def _offset(found: dict[tuple[str, int], Any], name: str, partition: int) -> int | None:
    listed = found.get((name, partition))
    return listed.offset if listed is not None else None


def _eligible(connection: Connection, names: list[str], known: Any) -> dict[tuple[str, int], Eligible]:
    """Who may lead next, where replicas are missing; confluent-kafka does not tell."""
    from tidelog.cli.access_requests import ask

    wanted = [
        name
        for name in names
        if any(len(each.isrs) < len(each.replicas) for each in known.topics[name].partitions.values())
    ]
    try:
        return eligible_leaders(lambda fields: ask(connection, DESCRIBE_TOPIC_PARTITIONS, fields), wanted)
    except CommandError:
        return {}  # a cluster without the API


def _sizes(connection: Connection, names: list[str], known: Any) -> dict[tuple[int, str, int], int]:
    # Sizes come from DescribeLogDirs, which confluent-kafka lacks; the rest is worth showing without.
    from tidelog.cli.wire import partition_sizes

    brokers = {broker.id: address_text(broker.host, broker.port) for broker in known.brokers.values()}
    wanted = {name: list(known.topics[name].partitions) for name in names}
    try:
        return partition_sizes(connection, brokers, wanted)
    except CommandError:
        return {}


def _changed_configs(connection: Connection, admin: Any, name: str) -> dict[str, str | None]:
    from tidelog.cli.config import describe_configs

    entries = describe_configs(connection, admin, "topic", name)
    return {entry.name: entry.value for entry in entries if entry.source == "topic"}


def print_description(description: TopicDescription) -> None:
    """Print one topic for a person."""
    sizes = [partition.size_bytes for partition in description.partitions]
    known_sizes = [size for size in sizes if size is not None]
    records = sum(
        partition.latest - partition.earliest
        for partition in description.partitions
        if partition.latest is not None and partition.earliest is not None
    )
    configs = [f"{name}={value}" for name, value in description.configs.items()]
    print_fields(
        [
            ("topic", description.name + (" (internal)" if description.internal else "")),
            ("topic id", description.topic_id),
            ("partitions", len(description.partitions)),
            ("offsets in use", records),
            ("size on leaders", bytes_text(sum(known_sizes)) if known_sizes else None),
            ("settings changed", " ".join(configs) or "none (all at the broker's defaults)"),
        ]
    )
    click.echo()
    shows_eligible = any(row.elr or row.last_known_elr for row in description.partitions)
    headings = ("elr", "last known elr") if shows_eligible else ()
    print_table(
        ("partition", "leader", "replicas", "isr", *headings, "earliest", "latest", "size"),
        [
            (
                row.partition,
                row.leader,
                row.replicas,
                row.isr,
                *((row.elr, row.last_known_elr) if shows_eligible else ()),
                row.earliest,
                row.latest,
                bytes_text(row.size_bytes),
            )
            for row in description.partitions
        ],
    )
    for sentence in description.waiting:
        click.echo(sentence)
