"""Brokers tell in which of their log directories replicas are, and which directories have failed (KIP-858).

What a broker says counts for its own replicas only, and only in its present life. A replica that comes into
an online directory may be what its partition waits for; one whose directory fails leaves the ISR at once, and
its leadership goes to another; so does one of which the broker says that its log is in doubt. All of it is
decided with the same rules as the death of a broker.
"""

from dataclasses import replace
from uuid import UUID

from tidelog.controller.brokers import Found, broker_record, settle_partitions
from tidelog.controller.commands import (
    AssignReplicas,
    Decision,
    Done,
    FailDirectories,
    ReplicaPlacement,
    Result,
)
from tidelog.controller.elections import min_isr_of
from tidelog.controller.partition_change import Lives, PartitionDraft
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.identifiers import LOST_DIRECTORY
from tidelog.model.image import BrokerImage, ClusterImage
from tidelog.model.metadata import MetadataRecord, PartitionRecord
from tidelog.model.settings import BrokerSettings


def _sender(broker_id: int, broker_epoch: int, image: ClusterImage) -> BrokerImage | Refused:
    sender = image.brokers.get(broker_id)
    if sender is None or sender.epoch != broker_epoch:
        return Refused(
            ErrorCode.STALE_BROKER_EPOCH, f"broker {broker_id} has another epoch than {broker_epoch}"
        )
    return sender


def assign_replicas(command: AssignReplicas, image: ClusterImage, settings: BrokerSettings) -> Decision:
    """Note where replicas are (Kafka's AssignReplicasToDirs)."""
    sender = _sender(command.broker_id, command.broker_epoch, image)
    if isinstance(sender, Refused):
        return Decision((), (sender,) * command.item_count)
    lives = Lives.in_image(image)
    records: list[MetadataRecord] = []
    results: list[Result] = []
    named: set[tuple[UUID, int]] = set()
    for placement in command.placements:
        outcome = _assign(placement, sender, image, settings, lives, named)
        if isinstance(outcome, PartitionRecord):
            records.append(outcome)
        results.append(outcome if isinstance(outcome, Refused) else Done())
    return Decision(tuple(records), tuple(results))


def _assign(
    placement: ReplicaPlacement,
    sender: BrokerImage,
    image: ClusterImage,
    settings: BrokerSettings,
    lives: Lives,
    named: set[tuple[UUID, int]],
) -> PartitionRecord | Refused | None:
    topic = image.topic_by_id(placement.topic_id)
    if topic is None:
        return Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {placement.topic_id}")
    partition = image.partition(topic.name, placement.partition)
    name = f"{topic.name}-{placement.partition}"
    if partition is None:
        return Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name} does not exist")
    if sender.id not in partition.replicas:
        message = f"broker {sender.id} has no replica of {name}"
        return Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)
    if (placement.topic_id, placement.partition) in named:
        return Refused(ErrorCode.INVALID_REQUEST, f"{name} is named more than once")
    named.add((placement.topic_id, placement.partition))
    draft = PartitionDraft(topic.name, placement.partition, partition)
    if placement.doubtful:
        draft.doubtful = frozenset({sender.id})
        return draft.settle(lives, min_isr_of(topic, image, settings))
    online = placement.directory in sender.directories
    # It may be in one that has failed: then it is offline, and comes back with its directory.
    if not online and placement.directory != LOST_DIRECTORY and not sender.offline_directories:
        message = f"broker {sender.id} has no directory {placement.directory} online"
        return Refused(ErrorCode.LOG_DIR_NOT_FOUND, message)
    draft.places[sender.id] = placement.directory
    return draft.settle(lives, min_isr_of(topic, image, settings))


def fail_directories(command: FailDirectories, image: ClusterImage, settings: BrokerSettings) -> Decision:
    """Take directories of a broker offline, and all replicas in them.

    `lost` names the replicas in there of which the cluster believed that they were elsewhere, or nowhere in
    particular: in the same decision, so that no crash of the broker comes between.
    """
    sender = _sender(command.broker_id, command.broker_epoch, image)
    if isinstance(sender, Refused):
        return Decision((), (sender,))
    failed = [each for each in sender.directories if each in command.directories]
    left = replace(
        sender,
        directories=tuple(each for each in sender.directories if each not in failed),
        offline_directories=sender.offline_directories + len(failed),
    )
    if failed and not left.directories:
        message = f"broker {sender.id} has no other directory: it stops"
        return Decision((), (Refused(ErrorCode.INVALID_REQUEST, message),))
    found = Found()
    found.add_placements(sender.id, command.lost)
    lives = Lives.of({**image.brokers, sender.id: left})
    records = settle_partitions(image, settings, lives, (sender.id,), found)
    # The partitions first: nobody is seen to lead from a directory that is offline.
    return Decision((*records, broker_record(left)) if failed else tuple(records), (Done(),))
