"""Moving replicas: the new ones are added, they catch up, then the old ones are dropped.

While a move is under way the partition has the target's replicas first and those to be removed behind them.
Taking it back leaves what was there before. A new target replaces a running one: what the old target would
have added and the new one does not want goes at once, unless nobody else is in sync. While a partition has no
leader nobody of the ELR and last known ELR is dropped: each may have the only copy of something committed. A
cancellation that would is refused, as in Kafka one that needs an unclean election; a new target keeps them.

Deliberate difference: Kafka counts the replicas that a running move is adding as if they had always been
there, so that a second target followed by a cancellation leaves them behind. Here "before" stays what it was.
"""

from collections import Counter

from tidelog.controller.commands import AlterReassignments, Decision, Done, Reassignment, Result
from tidelog.controller.elections import election_of, min_isr_of
from tidelog.controller.partition_change import Election, Lives, PartitionDraft
from tidelog.controller.topics import assignment_fault
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.identifiers import NO_LEADER
from tidelog.model.image import ClusterImage, PartitionImage, TopicImage
from tidelog.model.metadata import MetadataRecord, PartitionRecord
from tidelog.model.settings import BrokerSettings


def alter_reassignments(
    command: AlterReassignments, image: ClusterImage, settings: BrokerSettings
) -> Decision:
    """Decide each partition; those refused go on as before."""
    lives = Lives.in_image(image)
    records: list[MetadataRecord] = []
    results: list[Result] = []
    named = Counter((item.topic, item.partition) for item in command.items)
    for item in command.items:
        topic = image.topics.get(item.topic)
        partition = image.partition(item.topic, item.partition)
        outcome: PartitionRecord | Refused | None
        if topic is None or partition is None:
            message = f"partition {item.topic}-{item.partition} does not exist"
            outcome = Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        elif named[item.topic, item.partition] > 1:
            message = f"partition {item.topic}-{item.partition} is named more than once"
            outcome = Refused(ErrorCode.INVALID_REQUEST, message)
        elif item.replicas is None:
            election = election_of(topic, image, settings)
            min_isr = min_isr_of(topic, image, settings)
            outcome = _cancel(topic, item.partition, partition, lives, election, min_isr)
        else:
            outcome = _check_target(item.replicas, partition, image, command.allow_replication_factor_change)
            outcome = outcome or _start(
                item, item.replicas, partition, lives, min_isr_of(topic, image, settings)
            )
        if isinstance(outcome, PartitionRecord):
            records.append(outcome)
        results.append(outcome if isinstance(outcome, Refused) else Done())
    return Decision(tuple(records), tuple(results))


def _check_target(
    target: tuple[int, ...], partition: PartitionImage, image: ClusterImage, factor_may_change: bool
) -> Refused | None:
    fault = assignment_fault([target], len(target), image)
    if fault is not None:
        return Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, fault)
    factor = len(partition.target_replicas)
    if not factor_may_change and len(target) != factor:
        message = f"the replication factor would change from {factor} to {len(target)}"
        return Refused(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    return None


def _start(
    item: Reassignment, target: tuple[int, ...], partition: PartitionImage, lives: Lives, min_isr: int
) -> PartitionRecord | None:
    original = tuple(replica for replica in partition.replicas if replica not in partition.adding)
    removing = tuple(replica for replica in original if replica not in target)
    unwanted = tuple(replica for replica in partition.adding if replica not in target)
    # Until others have everything they stay.
    removing += _needed(unwanted, partition)
    draft = PartitionDraft(item.topic, item.partition, partition)
    draft.replicas = target + removing
    draft.adding = tuple(replica for replica in target if replica not in original)
    draft.removing = removing
    draft.isr = tuple(replica for replica in partition.isr if replica in draft.replicas)
    return draft.settle(lives, min_isr)


def _holders(partition: PartitionImage) -> tuple[int, ...]:
    """Who leads or may lead next: the members in sync, and while nobody leads all that are waited for."""
    if partition.leader != NO_LEADER:
        return partition.isr
    return (*partition.isr, *partition.elr, *partition.last_known_elr)


def _needed(dropped: tuple[int, ...], partition: PartitionImage) -> tuple[int, ...]:
    """Of the replicas to be dropped those that may have what nobody else has.

    While somebody leads, the members in sync have everything: one that stays is enough. If nobody does, any
    of those who had everything may be the only one whose disk has kept it.
    """
    holders = _holders(partition)
    if partition.leader != NO_LEADER and any(replica not in dropped for replica in holders):
        return ()
    return tuple(replica for replica in dropped if replica in holders)


def _cancel(
    topic: TopicImage, index: int, partition: PartitionImage, lives: Lives, election: Election, min_isr: int
) -> PartitionRecord | Refused | None:
    if not partition.reassigning:
        message = f"no reassignment of {topic.name}-{index} is in progress"
        return Refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, message)
    draft = PartitionDraft(topic.name, index, partition)
    draft.replicas = tuple(replica for replica in partition.replicas if replica not in partition.adding)
    draft.isr = tuple(replica for replica in partition.isr if replica not in partition.adding)
    draft.adding = draft.removing = ()
    needed = _needed(partition.adding, partition)
    if needed:
        active = tuple(replica for replica in draft.replicas if replica in lives.active)
        if election is not Election.UNCLEAN or not active:
            message = (
                f"the new replicas {list(needed)} of {topic.name}-{index} may have records that no other has:"
                " going back would need an unclean election"
            )
            return Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
        if all(replica in partition.adding for replica in _holders(partition)):
            # Whoever has a copy of any age goes before one that has none.
            draft.give_up_to(min(active, key=lambda replica: not draft.is_online(replica, lives)))
    return draft.settle(lives, min_isr)
