"""Creating topics and adding partitions: the checks in Kafka's order, then the records."""

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from uuid import UUID

from tidelog.controller.commands import (
    USE_DEFAULT,
    CreatePartitions,
    CreateTopics,
    Decision,
    Done,
    PartitionsSpec,
    Result,
    TopicCreated,
    TopicSpec,
)
from tidelog.controller.placement import DirectoryLoads, place
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.identifiers import MIGRATING_DIRECTORY, topic_name_fault
from tidelog.model.image import ClusterImage
from tidelog.model.metadata import TOPIC_RESOURCE, ConfigRecord, MetadataRecord, PartitionRecord, TopicRecord
from tidelog.model.settings import BrokerSettings, topic_config_faults

Replicas = tuple[int, ...]


def create_topics(
    command: CreateTopics,
    image: ClusterImage,
    settings: BrokerSettings,
    random: Random,
    new_uuid: Callable[[Random], UUID],
) -> Decision:
    """Decide each topic; those refused leave no record."""
    records: list[MetadataRecord] = []
    results: list[Result] = []
    named = Counter(topic.name for topic in command.topics)
    loads = DirectoryLoads(image)
    colliding = _CollidingNames(image)
    partition_room = settings.get_int("tidelog.partitions.max") - image.partition_count
    for topic in command.topics:
        if named[topic.name] > 1:
            results.append(
                Refused(ErrorCode.INVALID_REQUEST, f"topic {topic.name!r} is named more than once")
            )
            continue
        refused = _check_name(topic.name, image, colliding) or _check_configs(topic)
        placed = refused or _place_topic(topic, image, settings, random, partition_room)
        if isinstance(placed, Refused):
            results.append(placed)
            continue
        colliding.add(topic.name)
        partition_room -= len(placed)
        topic_id = new_uuid(random)
        configs = {name: value for name, value in topic.configs.items() if value is not None}
        records.append(TopicRecord(topic.name, topic_id))
        if configs:
            records.append(ConfigRecord(TOPIC_RESOURCE, topic.name, configs))
        records += _partition_records(topic.name, 0, placed, image, loads)
        results.append(TopicCreated(topic.name, topic_id, len(placed), len(placed[0]), configs))
    return Decision(() if command.validate_only else tuple(records), tuple(results))


class _CollidingNames:
    """Names that differ only in `.` and `_`: they share a metric name, so Kafka refuses the second."""

    def __init__(self, image: ClusterImage) -> None:
        self._image = image
        self._by_unified: dict[str, str] | None = None

    def add(self, name: str) -> None:
        if self._by_unified is not None:
            self._by_unified[name.replace(".", "_")] = name

    def other(self, name: str) -> str | None:
        if "." not in name and "_" not in name:
            return None
        if self._by_unified is None:
            self._by_unified = {existing.replace(".", "_"): existing for existing in self._image.topics}
        return self._by_unified.get(name.replace(".", "_"))


def _check_name(name: str, image: ClusterImage, colliding: _CollidingNames) -> Refused | None:
    fault = topic_name_fault(name)
    if fault is not None:
        return Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
    if name in image.topics:
        return Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} already exists")
    other = colliding.other(name)
    if other is not None:
        return Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {name!r} collides with topic {other!r}")
    return None


def _check_configs(topic: TopicSpec) -> Refused | None:
    faults = topic_config_faults(topic.configs, topic.name)
    return Refused(ErrorCode.INVALID_CONFIG, "; ".join(faults)) if faults else None


def _place_topic(
    topic: TopicSpec, image: ClusterImage, settings: BrokerSettings, random: Random, partition_room: int
) -> list[Replicas] | Refused:
    if topic.assignments:
        return _place_by_hand(topic, image, partition_room)
    if topic.replication_factor < USE_DEFAULT or topic.replication_factor == 0:
        message = (
            f"the replication factor must be above 0, or -1 for the default, not {topic.replication_factor}"
        )
        return Refused(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    if topic.partition_count < USE_DEFAULT or topic.partition_count == 0:
        message = (
            f"the number of partitions must be above 0, or -1 for the default, not {topic.partition_count}"
        )
        return Refused(ErrorCode.INVALID_PARTITIONS, message)
    partition_count = topic.partition_count
    if partition_count == USE_DEFAULT:
        partition_count = settings.get_int("num.partitions")
    replication_factor = topic.replication_factor
    if replication_factor == USE_DEFAULT:
        replication_factor = settings.get_int("default.replication.factor")
    return _place_evenly(image, partition_count, replication_factor, random, partition_room)


def _place_evenly(
    image: ClusterImage,
    partition_count: int,
    replication_factor: int,
    random: Random,
    partition_room: int,
    first_partition: int = 0,
) -> list[Replicas] | Refused:
    if partition_count > partition_room:
        return _no_room(partition_count, partition_room)
    racks = {broker.id: broker.rack for broker in image.brokers.values()}
    if replication_factor > len(racks):
        message = f"{replication_factor} replicas need as many brokers, and {len(racks)} are registered"
        return Refused(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    active = {broker_id: rack for broker_id, rack in racks.items() if image.brokers[broker_id].active}
    if not active:
        return Refused(ErrorCode.INVALID_REPLICATION_FACTOR, "all brokers are dead or shutting down")
    absent = {broker_id: rack for broker_id, rack in racks.items() if broker_id not in active}
    start, shift = random.randrange(len(racks)), random.randrange(len(racks))
    present_factor = min(replication_factor, len(active))
    placed = place(
        active, partition_count, present_factor, first_partition=first_partition, start=start, shift=shift
    )
    if present_factor == replication_factor:
        return placed
    # Brokers that are away get what the others cannot hold: they will catch up when they are back.
    rest = place(
        absent,
        partition_count,
        replication_factor - present_factor,
        first_partition=first_partition,
        start=start,
        shift=shift,
    )
    return [present + away for present, away in zip(placed, rest, strict=True)]


def _no_room(partition_count: int, partition_room: int) -> Refused:
    message = f"{partition_count} more partitions would exceed tidelog.partitions.max by "
    return Refused(ErrorCode.INVALID_PARTITIONS, message + str(partition_count - partition_room))


def _place_by_hand(topic: TopicSpec, image: ClusterImage, partition_room: int) -> list[Replicas] | Refused:
    if topic.replication_factor != USE_DEFAULT or topic.partition_count != USE_DEFAULT:
        message = "with a manual assignment, partitions and replication factor must both be -1"
        return Refused(ErrorCode.INVALID_REQUEST, message)
    indexes = sorted(index for index, _ in topic.assignments)
    if indexes != list(range(len(indexes))):
        message = "the partitions of a manual assignment must be numbered 0, 1, 2, … without gaps or repeats"
        return Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    if len(indexes) > partition_room:
        return _no_room(len(indexes), partition_room)
    placed = [replicas for _, replicas in sorted(topic.assignments)]
    fault = assignment_fault(placed, len(placed[0]), image) or _dead_fault(placed, image)
    return placed if fault is None else Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, fault)


def assignment_fault(placed: Sequence[Replicas], replication_factor: int, image: ClusterImage) -> str | None:
    """Say in words what is wrong with replicas that somebody chose, or return None; they may be dead."""
    for replicas in placed:
        if not replicas:
            return "a partition of the manual assignment has no brokers"
        if len(set(replicas)) != len(replicas):
            return f"the manual assignment {list(replicas)} names a broker more than once"
        unknown = sorted(set(replicas) - image.brokers.keys())
        if unknown:
            return f"the manual assignment names brokers that are not there: {unknown}"
        if len(replicas) != replication_factor:
            return (
                f"the manual assignment has partitions with {replication_factor} and {len(replicas)} brokers"
            )
    return None


def _dead_fault(placed: Sequence[Replicas], image: ClusterImage, first_index: int = 0) -> str | None:
    for index, replicas in enumerate(placed, first_index):
        if not _active(replicas, image):
            return f"all brokers of the manual assignment of partition {index} are dead or shutting down"
    return None


def _active(replicas: Replicas, image: ClusterImage) -> Replicas:
    alive = image.alive_brokers
    return tuple(replica for replica in replicas if replica in alive and alive[replica].active)


def _partition_records(
    topic: str, first_index: int, placed: Sequence[Replicas], image: ClusterImage, loads: DirectoryLoads
) -> list[MetadataRecord]:
    """Records of new partitions: whoever is active is in sync, since there is nothing to have yet."""
    records: list[MetadataRecord] = []
    brokers = image.brokers
    for index, replicas in enumerate(placed, first_index):
        isr = _active(replicas, image)
        directories = tuple(loads.choose(brokers[replica].directories) for replica in replicas)
        if all(directory == MIGRATING_DIRECTORY for directory in directories):
            directories = ()
        records.append(PartitionRecord(topic, index, isr[0], 0, replicas, isr, directories=directories))
    return records


def create_partitions(
    command: CreatePartitions, image: ClusterImage, settings: BrokerSettings, random: Random
) -> Decision:
    """Decide each topic's growth; those refused leave no record."""
    records: list[MetadataRecord] = []
    results: list[Result] = []
    named = Counter(topic.name for topic in command.topics)
    loads = DirectoryLoads(image)
    partition_room = settings.get_int("tidelog.partitions.max") - image.partition_count
    for spec in command.topics:
        if named[spec.name] > 1:
            results.append(Refused(ErrorCode.INVALID_REQUEST, f"topic {spec.name!r} is named more than once"))
            continue
        placed = _place_growth(spec, image, random, partition_room)
        if isinstance(placed, Refused):
            results.append(placed)
            continue
        partition_room -= len(placed)
        first_index = len(image.topics[spec.name].partitions)
        records += _partition_records(spec.name, first_index, placed, image, loads)
        results.append(Done())
    return Decision(() if command.validate_only else tuple(records), tuple(results))


def _place_growth(
    spec: PartitionsSpec, image: ClusterImage, random: Random, partition_room: int
) -> list[Replicas] | Refused:
    topic = image.topics.get(spec.name)
    if topic is None:
        return Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {spec.name!r} does not exist")
    present = len(topic.partitions)
    if spec.partition_count <= present:
        message = f"topic {spec.name!r} has {present} partitions; {spec.partition_count} would not be more"
        return Refused(ErrorCode.INVALID_PARTITIONS, message)
    added = spec.partition_count - present
    replication_factor = len(topic.partitions[0].target_replicas)
    if spec.assignments is None:
        return _place_evenly(image, added, replication_factor, random, partition_room, present)
    if len(spec.assignments) != added:
        message = f"{added} partitions are to be added, but brokers are given for {len(spec.assignments)}"
        return Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    if added > partition_room:
        return _no_room(added, partition_room)
    fault = assignment_fault(spec.assignments, replication_factor, image)
    fault = fault or _dead_fault(spec.assignments, image, present)
    return list(spec.assignments) if fault is None else Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, fault)
