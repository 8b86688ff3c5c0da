"""Leader elections that somebody asked for, and those that a change of settings allows.

Elections after the death or return of a broker are decided with it, in `brokers`.
"""

from collections import Counter
from collections.abc import Collection

from tidelog.controller.commands import Decision, ElectionType, ElectLeaders, LeadersElected, RebalanceLeaders
from tidelog.controller.partition_change import Election, Lives, PartitionDraft
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.identifiers import NO_LEADER, TopicPartition
from tidelog.model.image import ClusterImage, TopicImage
from tidelog.model.metadata import ALL_BROKERS, MetadataRecord, PartitionRecord
from tidelog.model.setting_values import parse_value
from tidelog.model.settings import BrokerSettings
from tidelog.model.settings_table import TOPIC_SETTINGS

UNCLEAN_ELECTION = "unclean.leader.election.enable"
MIN_ISR = "min.insync.replicas"
# Leaders that move in one rebalancing, so that one decision stays small; the next tick goes on.
REBALANCED_MAX = 1000


def election_of(topic: TopicImage, image: ClusterImage, settings: BrokerSettings) -> Election:
    """The election that the settings allow for a topic: its own, those of all brokers, those at start."""
    text = topic.configs.get(UNCLEAN_ELECTION)
    if text is None:
        text = image.broker_configs.get(ALL_BROKERS, {}).get(UNCLEAN_ELECTION)
    allowed = (
        settings.get_bool(UNCLEAN_ELECTION)
        if text is None
        else parse_value(TOPIC_SETTINGS[UNCLEAN_ELECTION], text)
    )
    return Election.UNCLEAN if allowed else Election.CLEAN


def min_isr_of(topic: TopicImage, image: ClusterImage, settings: BrokerSettings) -> int:
    """`min.insync.replicas` of a topic: its own, that of all brokers, that at start."""
    text = topic.configs.get(MIN_ISR)
    if text is None:
        text = image.broker_configs.get(ALL_BROKERS, {}).get(MIN_ISR)
    return settings.get_int(MIN_ISR) if text is None else int(text)


def elect_offline(
    image: ClusterImage, settings: BrokerSettings, impatient: Collection[TopicPartition] = ()
) -> Decision:
    """Leaders for the partitions that have none, where an unclean election is allowed.

    The longest log leads: a partition waits until all its active replicas whose directories are online have
    said how long theirs is; those of `impatient` take the longest known. If there is no such replica nobody
    is elected: nothing is begun anew unasked.
    """
    records: list[MetadataRecord] = []
    outcomes: list[tuple[TopicPartition, Refused | None]] = []
    waiting: list[TopicPartition] = []
    lives = Lives.in_image(image)
    for topic in image.topics.values():
        offline = [index for index, found in enumerate(topic.partitions) if found.leader == NO_LEADER]
        if not offline or election_of(topic, image, settings) is not Election.UNCLEAN:
            continue
        for index in offline:
            partition, name = topic.partitions[index], TopicPartition(topic.name, index)
            draft = PartitionDraft(topic.name, index, partition)
            silent = _silent(draft, lives)
            if silent and name not in impatient:
                outcomes.append((name, _refused_while_silent(name, silent)))
                waiting.append(name)
                continue
            if not draft.able(lives):
                continue
            record = draft.settle(lives, min_isr_of(topic, image, settings), Election.UNCLEAN)
            if record is not None:
                records.append(record)
                outcomes.append((name, None))
    return Decision(tuple(records), (LeadersElected(tuple(outcomes), tuple(waiting)),))


def _silent(draft: PartitionDraft, lives: Lives) -> list[int]:
    """The replicas that are there and have not said how long their logs are. Who is offline never will."""
    heard = {broker_id for broker_id, _ in draft.present.replica_logs}
    return sorted(replica for replica in draft.able(lives) if replica not in heard)


def _refused_while_silent(name: TopicPartition, silent: list[int]) -> Refused:
    message = f"brokers {silent} have not said how long their logs of {name} are"
    return Refused(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, message)


def settle_eligible(image: ClusterImage, settings: BrokerSettings) -> list[MetadataRecord]:
    """`min.insync.replicas` has changed: empty the ELRs of partitions that have enough in sync now."""
    lives = Lives.in_image(image)
    records: list[MetadataRecord] = []
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            if (partition.elr or partition.last_known_elr) and partition.leader != NO_LEADER:
                draft = PartitionDraft(topic.name, index, partition)
                record = draft.settle(lives, min_isr_of(topic, image, settings))
                if record is not None:
                    records.append(record)
    return records


def elect_leaders(command: ElectLeaders, image: ClusterImage, settings: BrokerSettings) -> Decision:
    """Elect by request: the preferred replica, or for a partition without a leader whoever is there.

    The longest log leads. Who asks patiently is told to ask again while a replica that is there has not said
    how long its log is; an impatient one takes the longest known.
    """
    lives = Lives.in_image(image)
    asked = command.partitions
    if asked is None:
        asked = tuple(
            TopicPartition(name, index)
            for name, topic in image.topics.items()
            for index in range(len(topic.partitions))
        )
    # A partition that was named twice is elected once and answered twice.
    silent = _waiting(command, asked, image, lives)
    outcomes: dict[TopicPartition, PartitionRecord | Refused] = {
        name: silent.get(name) or _elect(name, command.type, image, lives, settings)
        for name in dict.fromkeys(asked)
    }
    answered: list[tuple[TopicPartition, Refused | None]] = []
    for name in asked:
        outcome = outcomes[name]
        if not isinstance(outcome, Refused):
            answered.append((name, None))
        elif command.partitions is not None or outcome.code is not ErrorCode.ELECTION_NOT_NEEDED:
            answered.append((name, outcome))
    records = tuple(outcome for outcome in outcomes.values() if isinstance(outcome, PartitionRecord))
    return Decision(records, (LeadersElected(tuple(answered), tuple(silent)),))


def _waiting(
    command: ElectLeaders, asked: tuple[TopicPartition, ...], image: ClusterImage, lives: Lives
) -> dict[TopicPartition, Refused]:
    """The partitions that a patient election leaves as they are, for now."""
    found: dict[TopicPartition, Refused] = {}
    if not command.patient or command.type is not ElectionType.UNCLEAN:
        return found
    for name in asked:
        partition = image.partition(*name)
        if partition is not None and partition.leader == NO_LEADER:
            draft = PartitionDraft(*name, partition)
            silent = _silent(draft, lives)
            # There is nothing to compare the only one with.
            if silent and len(draft.able(lives)) > 1:
                found[name] = _refused_while_silent(name, silent)
    return found


def _elect(
    name: TopicPartition, type: ElectionType, image: ClusterImage, lives: Lives, settings: BrokerSettings
) -> PartitionRecord | Refused:
    partition = image.partition(name.topic, name.partition)
    if partition is None:
        return Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {name} does not exist")
    if type is ElectionType.PREFERRED:
        needed, election = partition.leader != partition.replicas[0], Election.PREFERRED
        unavailable = Refused(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"broker {partition.replicas[0]} is not alive and in sync",
        )
    else:
        needed, election = partition.leader == NO_LEADER, Election.UNCLEAN
        unavailable = Refused(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"none of the brokers {partition.replicas} is alive"
        )
    if not needed:
        return Refused(ErrorCode.ELECTION_NOT_NEEDED, f"broker {partition.leader} leads already")
    min_isr = min_isr_of(image.topics[name.topic], image, settings)
    record = PartitionDraft(name.topic, name.partition, partition).settle(lives, min_isr, election)
    return unavailable if record is None or record.leader == partition.leader else record


def rebalance_leaders(command: RebalanceLeaders, image: ClusterImage, settings: BrokerSettings) -> Decision:
    """Give leadership back to brokers that lead too few of the partitions they are preferred for."""
    lives = Lives.in_image(image)
    preferred: Counter[int] = Counter()
    elsewhere: dict[int, list[TopicPartition]] = {}
    for name, topic in image.topics.items():
        for index, partition in enumerate(topic.partitions):
            first = partition.replicas[0]
            preferred[first] += 1
            if partition.leader != first:
                elsewhere.setdefault(first, []).append(TopicPartition(name, index))
    allowed_percentage = settings.get_int("leader.imbalance.per.broker.percentage")
    records: list[MetadataRecord] = []
    moved: list[tuple[TopicPartition, Refused | None]] = []
    for broker_id in sorted(elsewhere):
        partitions = elsewhere[broker_id]
        balanced = len(partitions) * 100 <= allowed_percentage * preferred[broker_id]
        if balanced or broker_id not in lives.active:
            continue
        for one in partitions:
            outcome = _elect(one, ElectionType.PREFERRED, image, lives, settings)
            if isinstance(outcome, PartitionRecord) and len(records) < REBALANCED_MAX:
                records.append(outcome)
                moved.append((one, None))
    return Decision(tuple(records), (LeadersElected(tuple(moved)),))
