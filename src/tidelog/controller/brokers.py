"""Brokers come, die, come back, shut down and are forgotten; their partitions follow in the same decision.

A broker that dies stays registered: its replicas wait for it. Whoever begins a new life gets a larger epoch.
When an end was not noticed before the new beginning, the broker counts as one that died and came back.

A registration names the log directories that are online. A replica that was in one that is not there any more
is offline; one that the broker found elsewhere is where it found it; one of which it says that records are
missing is in doubt, as all are after an unclean shutdown. Of a replica that has no known directory
(UNASSIGNED, MIGRATING) the worst is believed when a directory is gone: that it was in there. A directory that
somebody has given up (`tidelog.lost.directories`) is not waited for as long as there are others.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID

from tidelog.controller.commands import (
    BrokersChanged,
    BrokerShuttingDown,
    Decision,
    Done,
    LiveBroker,
    ReplicaPlacement,
    ShutDownBroker,
    UnregisterBroker,
)
from tidelog.controller.elections import min_isr_of
from tidelog.controller.partition_change import Lives, PartitionDraft
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.identifiers import (
    LOST_DIRECTORY,
    MIGRATING_DIRECTORY,
    NO_LEADER,
    RESERVED_DIRECTORIES,
    UNASSIGNED_DIRECTORY,
)
from tidelog.model.image import BrokerImage, ClusterImage, PartitionImage
from tidelog.model.metadata import BrokerRecord, MetadataRecord, RemoveBrokerRecord
from tidelog.model.settings import BrokerSettings


def brokers_changed(command: BrokersChanged, image: ClusterImage, settings: BrokerSettings) -> Decision:
    """Bring the registrations and all partitions in line with who lives now."""
    live = {broker.broker_id: broker for broker in command.live}
    after: dict[int, BrokerImage] = {}
    restarted: set[int] = set()
    begun_anew: set[int] = set()
    found = Found()
    unclean: set[int] = set()
    for broker_id, registered in image.brokers.items():
        if broker_id not in live:
            after[broker_id] = replace(registered, alive=False) if registered.alive else registered
    for broker_id, begun in live.items():
        known = image.brokers.get(broker_id)
        after[broker_id] = _registered(begun, known, command.sequence)
        if known is not None and known.incarnation == begun.incarnation:
            continue
        begun_anew.add(broker_id)
        if begun.unclean_shutdown:
            unclean.add(broker_id)
        found.add_placements(broker_id, begun.placements)
        found.given_up.update(dict.fromkeys(begun.lost_directories, broker_id))
        if known is not None:
            if known.alive:
                restarted.add(broker_id)
            found.add_missing(broker_id, known.directories, after[broker_id].directories)
    lives = Lives.of(after, frozenset(restarted), unclean=frozenset(unclean))
    # Whoever begins may lack a directory again that it lacked before: dead, it might have come back with it.
    unfit = frozenset(after) - frozenset(lives.steady) | unclean | begun_anew
    first: list[MetadataRecord] = []
    last: list[MetadataRecord] = []
    for broker_id, broker in sorted(after.items()):
        known = image.brokers.get(broker_id)
        if broker != known:
            arrives = known is None or (broker.alive and not known.alive)
            (first if arrives else last).append(broker_record(broker))
            if not arrives and known is not None and broker.alive:
                gained = tuple(each for each in broker.directories if each not in known.directories)
                if gained:
                    first.append(broker_record(replace(known, directories=known.directories + gained)))
    # A large decision becomes visible in parts, in this order. So nobody is seen to lead who is not alive,
    # and no new life sees itself registered while it still seems to lead what its last life led.
    # Nor is anybody seen to lead from a directory that is not known to be there.
    return Decision((*first, *settle_partitions(image, settings, lives, unfit, found), *last), (Done(),))


@dataclass(slots=True)
class Found:
    """What brokers tell of where their replicas are."""

    #: by topic id and partition: the brokers that told, each with the directory
    placements: dict[tuple[UUID, int], dict[int, str]] = field(default_factory=dict)
    #: brokers that miss a directory: where replicas are if that was not known before
    missing: dict[int, str] = field(default_factory=dict)
    #: by topic id and partition: the brokers whose log may lack records that it had
    doubtful: dict[tuple[UUID, int], set[int]] = field(default_factory=dict)
    #: directories that are lost for good, and whose they were
    given_up: dict[str, int] = field(default_factory=dict)

    def add_placements(self, broker_id: int, placements: Collection[ReplicaPlacement]) -> None:
        for placement in placements:
            place = self.placements.setdefault((placement.topic_id, placement.partition), {})
            place[broker_id] = placement.directory
            if placement.doubtful:
                self.doubtful.setdefault((placement.topic_id, placement.partition), set()).add(broker_id)

    def add_missing(self, broker_id: int, before: Collection[str], after: Collection[str]) -> None:
        """Note that directories are gone, if any is."""
        gone = [each for each in before if each not in after and each not in RESERVED_DIRECTORIES]
        if gone and after:
            self.missing[broker_id] = gone[0] if len(gone) == 1 else LOST_DIRECTORY

    def place(self, topic_id: UUID, index: int, draft: PartitionDraft) -> None:
        """Put the replicas of a partition where they are."""
        told = self.placements.get((topic_id, index), {})
        draft.doubtful = frozenset(self.doubtful.get((topic_id, index), ()))
        for replica in draft.replicas:
            if replica in told:
                draft.places[replica] = told[replica]
            elif self.given_up.get(draft.places.get(replica, "")) == replica:
                draft.given_up |= {replica}
            elif replica in self.missing and draft.places.get(replica, MIGRATING_DIRECTORY) in _NOWHERE:
                draft.places[replica] = self.missing[replica]

    def concerns(self, topic_id: UUID, index: int, partition: PartitionImage) -> bool:
        """Whether one of the partition's replicas may be elsewhere than it was thought."""
        if not self.missing and not self.placements and not self.given_up:
            return False
        return (
            (topic_id, index) in self.placements
            or not self.missing.keys().isdisjoint(partition.replicas)
            or not self.given_up.keys().isdisjoint(partition.directories)
        )


_NOWHERE = frozenset({UNASSIGNED_DIRECTORY, MIGRATING_DIRECTORY})


def _registered(broker: LiveBroker, known: BrokerImage | None, sequence: int) -> BrokerImage:
    if known is not None and known.incarnation == broker.incarnation:
        registered = replace(known, endpoints=broker.endpoints, rack=broker.rack, alive=True)
        if not set(known.directories) <= set(broker.directories):
            # What a controller of an older version did not keep. Otherwise directories only fail in one life.
            registered = replace(
                registered,
                directories=broker.directories,
                offline_directories=broker.offline_directories,
            )
        return registered
    epoch = sequence if known is None else max(sequence, known.epoch + 1)
    directories = broker.directories or (known.directories if known is not None else ())
    return BrokerImage(
        broker.broker_id,
        broker.endpoints,
        broker.rack,
        epoch,
        broker.incarnation,
        directories=directories,
        offline_directories=broker.offline_directories,
    )


def broker_record(broker: BrokerImage) -> BrokerRecord:
    """The record that makes a broker what this image says."""
    return BrokerRecord(
        broker.id,
        broker.endpoints,
        broker.rack,
        broker.epoch,
        broker.incarnation,
        broker.alive,
        broker.shutting_down,
        directories=broker.directories,
        offline_directories=broker.offline_directories,
    )


def settle_partitions(
    image: ClusterImage,
    settings: BrokerSettings,
    lives: Lives,
    unfit: Collection[int],
    found: Found | None = None,
) -> list[MetadataRecord]:
    """Settle every partition that has no leader, one of `unfit` in its ISR or ELR, or a replica that was
    `found` elsewhere, in one pass over all."""
    records: list[MetadataRecord] = []
    unfit = frozenset(unfit)
    found = found or Found()
    for topic in image.topics.values():
        min_isr = 0
        for index, partition in enumerate(topic.partitions):
            moved = found.concerns(topic.topic_id, index, partition)
            if (
                partition.leader != NO_LEADER
                and not moved
                and unfit.isdisjoint(partition.isr)
                and unfit.isdisjoint(partition.elr)
            ):
                continue
            min_isr = min_isr or min_isr_of(topic, image, settings)
            draft = PartitionDraft(topic.name, index, partition)
            if moved:
                found.place(topic.topic_id, index, draft)
            record = draft.settle(lives, min_isr)
            if record is not None:
                records.append(record)
    return records


def shut_down_broker(command: ShutDownBroker, image: ClusterImage, settings: BrokerSettings) -> Decision:
    """Controlled shutdown: leadership and ISR membership go elsewhere while the broker still serves.

    Deliberate difference: partitions that nobody else can lead keep their leader until it ends, where Kafka
    takes it from them at once.
    """
    broker_id = command.broker_id
    known = image.brokers.get(broker_id)
    if known is None:
        message = f"broker {broker_id} is not registered"
        return Decision((), (Refused(ErrorCode.BROKER_ID_NOT_REGISTERED, message),))
    if known.epoch != command.broker_epoch:
        message = f"broker {broker_id} has the epoch {known.epoch}, not {command.broker_epoch}"
        return Decision((), (Refused(ErrorCode.STALE_BROKER_EPOCH, message),))
    leaving = replace(known, shutting_down=True)
    records: list[MetadataRecord] = [] if known.shutting_down else [broker_record(leaving)]
    lives = Lives.of({**image.brokers, broker_id: leaving})
    records += settle_partitions(image, settings, lives, (broker_id,))
    after = image.apply(records) if records else image
    led = sum(
        partition.leader == broker_id for topic in after.topics.values() for partition in topic.partitions
    )
    return Decision(tuple(records), (BrokerShuttingDown(led),))


def unregister_broker(command: UnregisterBroker, image: ClusterImage, settings: BrokerSettings) -> Decision:
    """Forget a broker that is gone. Its replicas stay assigned until they are moved; it may come back as new.

    Deliberate difference: one that is alive is refused, since what it leads would be without a leader while
    it goes on believing that it serves.
    """
    broker_id = command.broker_id
    known = image.brokers.get(broker_id)
    if known is None:
        message = f"broker {broker_id} is not registered"
        return Decision((), (Refused(ErrorCode.BROKER_ID_NOT_REGISTERED, message),))
    if known.alive:
        message = f"broker {broker_id} is alive; stop it first"
        return Decision((), (Refused(ErrorCode.INVALID_REQUEST, message),))
    others: Mapping[int, BrokerImage] = {
        other_id: other for other_id, other in image.brokers.items() if other_id != broker_id
    }
    # With the registration go the ids of its directories: a replica must be in one of them to count again.
    found = Found()
    found.add_missing(broker_id, known.directories, (LOST_DIRECTORY,))
    lives = Lives.of(others, forgotten=frozenset({broker_id}))
    records = settle_partitions(image, settings, lives, (broker_id,), found)
    return Decision((*records, RemoveBrokerRecord(broker_id)), (Done(),))
