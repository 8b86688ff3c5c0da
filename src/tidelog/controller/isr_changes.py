"""Leaders change the ISRs of their partitions (Kafka's AlterPartition); the checks are in Kafka's order.

Deliberate differences: a change that was made already (the answer was lost on the way) is answered like the
first time. A leader that is shutting down may still take others into the ISR; they take over from it at once.
"""

from uuid import UUID

from tidelog.controller.commands import ChangeIsr, Decision, IsrChange, IsrChanged, Result
from tidelog.controller.elections import min_isr_of
from tidelog.controller.partition_change import Lives, PartitionDraft, image_of
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.image import ClusterImage, PartitionImage
from tidelog.model.metadata import MetadataRecord
from tidelog.model.settings import BrokerSettings

_ANY_EPOCH = -1


def change_isr(command: ChangeIsr, image: ClusterImage, settings: BrokerSettings) -> Decision:
    """Decide each partition; a leader from an earlier life is refused as a whole."""
    sender = image.brokers.get(command.broker_id)
    if sender is None or sender.epoch != command.broker_epoch:
        message = f"broker {command.broker_id} has another epoch than {command.broker_epoch}"
        return Decision((), (Refused(ErrorCode.STALE_BROKER_EPOCH, message),) * command.item_count)
    lives = Lives.in_image(image)
    records: list[MetadataRecord] = []
    results: list[Result] = []
    changed: set[tuple[UUID, int]] = set()
    for change in command.changes:
        topic = image.topic_by_id(change.topic_id)
        if topic is None:
            results.append(Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {change.topic_id}"))
            continue
        name = f"{topic.name}-{change.partition}"
        partition = image.partition(topic.name, change.partition)
        if partition is None:
            results.append(Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name} does not exist"))
            continue
        if (change.topic_id, change.partition) in changed:
            results.append(Refused(ErrorCode.INVALID_UPDATE_VERSION, f"{name} is named more than once"))
            continue
        changed.add((change.topic_id, change.partition))
        if _made_already(change, command.broker_id, partition):
            results.append(IsrChanged(partition))
            continue
        refused = _check(change, command.broker_id, partition, image)
        if refused is not None:
            results.append(refused)
            continue
        draft = PartitionDraft(topic.name, change.partition, partition)
        draft.confirmed = True
        if set(change.isr) != set(partition.isr):
            draft.isr = change.isr
        record = draft.settle(lives, min_isr_of(topic, image, settings))
        if record is None:
            results.append(IsrChanged(partition))
            continue
        records.append(record)
        if record.leader != command.broker_id:
            # The end of a reassignment took the sender out; it did happen, but not under its leadership.
            results.append(Refused(ErrorCode.NEW_LEADER_ELECTED, f"broker {record.leader} leads {name} now"))
        else:
            results.append(IsrChanged(image_of(record)))
    return Decision(tuple(records), tuple(results))


def _made_already(change: IsrChange, broker_id: int, partition: PartitionImage) -> bool:
    return (
        partition.leader == broker_id
        and partition.leader_epoch == change.leader_epoch
        and partition.partition_epoch == change.partition_epoch + 1
        and partition.isr == change.isr
    )


def _check(
    change: IsrChange, broker_id: int, partition: PartitionImage, image: ClusterImage
) -> Refused | None:
    if change.leader_epoch > partition.leader_epoch or change.partition_epoch > partition.partition_epoch:
        return Refused(ErrorCode.NOT_CONTROLLER, "the leader knows more than this controller")
    if change.leader_epoch < partition.leader_epoch:
        message = f"the leader epoch is {partition.leader_epoch}, not {change.leader_epoch}"
        return Refused(ErrorCode.FENCED_LEADER_EPOCH, message)
    if broker_id != partition.leader:
        return Refused(ErrorCode.INVALID_REQUEST, f"broker {partition.leader} leads, not {broker_id}")
    if change.partition_epoch < partition.partition_epoch:
        message = f"the partition epoch is {partition.partition_epoch}, not {change.partition_epoch}"
        return Refused(ErrorCode.INVALID_UPDATE_VERSION, message)
    isr = set(change.isr)
    if len(isr) != len(change.isr) or not isr.issubset(partition.replicas) or broker_id not in isr:
        message = f"the ISR {change.isr} is not made of different replicas that include the leader"
        return Refused(ErrorCode.INVALID_REQUEST, message)
    if change.isr_broker_epochs and len(change.isr_broker_epochs) != len(change.isr):
        return Refused(ErrorCode.INVALID_REQUEST, "the epochs do not match the ISR one to one")
    return _check_eligible(change, broker_id, partition, image)


def _check_eligible(
    change: IsrChange, leader: int, partition: PartitionImage, image: ClusterImage
) -> Refused | None:
    epochs = change.isr_broker_epochs or (_ANY_EPOCH,) * len(change.isr)
    for member, epoch in zip(change.isr, epochs, strict=True):
        broker = image.brokers.get(member)
        if broker is None:
            fault = "is not registered"
        elif not broker.alive:
            fault = "is dead"
        elif broker.shutting_down and member != leader:
            fault = "is shutting down"
        elif epoch not in (_ANY_EPOCH, broker.epoch):
            fault = f"has the epoch {broker.epoch}, not {epoch}"
        elif not broker.has_online(partition.directory_of(member)):
            fault = f"has the replica in the directory {partition.directory_of(member)}, which is offline"
        else:
            continue
        return Refused(ErrorCode.INELIGIBLE_REPLICA, f"broker {member} {fault}")
    return None
