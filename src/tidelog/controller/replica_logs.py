"""Replicas of partitions without a leader say how long their logs are; the longest may lead (KIP-966).

While a partition has no leader nobody's log grows or is cut. So what a broker said under the partition's
leader epoch stays true as long as that life of the broker goes on, and it is kept with the partition: a new
controller knows what the last one did. Kafka means to ask the brokers when it needs to know
(GetReplicaLogInfo); here they say it by themselves as soon as they see that nobody leads.
"""

from uuid import UUID

from tidelog.controller.commands import Decision, Done, ReplicaLog, ReportReplicaLogs, Result
from tidelog.controller.elections import min_isr_of
from tidelog.controller.partition_change import Lives, PartitionDraft
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.identifiers import NO_LEADER
from tidelog.model.image import ClusterImage, PartitionImage
from tidelog.model.metadata import MetadataRecord, ReplicaLogInfo
from tidelog.model.settings import BrokerSettings


def report_replica_logs(
    command: ReportReplicaLogs, image: ClusterImage, settings: BrokerSettings
) -> Decision:
    """Take note of the logs of one broker, and elect where nobody else has to be waited for."""
    broker_id = command.broker_id
    sender = image.brokers.get(broker_id)
    if sender is None or not sender.alive or sender.epoch != command.broker_epoch:
        message = f"broker {broker_id} has another epoch than {command.broker_epoch}"
        return Decision((), (Refused(ErrorCode.STALE_BROKER_EPOCH, message),) * command.item_count)
    lives = Lives.in_image(image)
    records: list[MetadataRecord] = []
    results: list[Result] = []
    told: set[tuple[UUID, int]] = set()
    for log in command.logs:
        topic = image.topic_by_id(log.topic_id)
        partition = None if topic is None else image.partition(topic.name, log.partition)
        if topic is None or partition is None:
            results.append(Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {log.topic_id}"))
            continue
        name = f"{topic.name}-{log.partition}"
        refused = _check(name, log, broker_id, partition)
        if refused is None and (log.topic_id, log.partition) in told:
            refused = Refused(ErrorCode.INVALID_REQUEST, f"{name} is named more than once")
        if refused is not None:
            results.append(refused)
            continue
        told.add((log.topic_id, log.partition))
        draft = PartitionDraft(topic.name, log.partition, partition)
        said = {**dict(draft.replica_logs), broker_id: ReplicaLogInfo(log.last_epoch, log.log_end_offset)}
        draft.replica_logs = tuple(sorted(said.items()))
        record = draft.settle(lives, min_isr_of(topic, image, settings))
        if record is not None:
            records.append(record)
        results.append(Done())
    return Decision(tuple(records), tuple(results))


def _check(name: str, log: ReplicaLog, broker_id: int, partition: PartitionImage) -> Refused | None:
    if broker_id not in partition.replicas:
        return Refused(ErrorCode.INVALID_REQUEST, f"broker {broker_id} has no replica of {name}")
    if partition.leader != NO_LEADER or log.leader_epoch < partition.leader_epoch:
        message = f"{name} is led by {partition.leader}, epoch {partition.leader_epoch}"
        return Refused(ErrorCode.FENCED_LEADER_EPOCH, message)
    if log.leader_epoch > partition.leader_epoch:
        return Refused(ErrorCode.NOT_CONTROLLER, "the broker knows more than this controller")
    return None
