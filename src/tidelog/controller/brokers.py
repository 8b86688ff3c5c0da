"""Brokers come, die, come back, shut down and are forgotten; their partitions follow in the same decision.

A broker that dies stays registered: its replicas wait for it. Whoever begins a new life gets a larger epoch.
When an end was not noticed before the new beginning, the broker counts as one that died and came back.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from tidelog.controller.commands import (
    BrokersChanged,
    BrokerShuttingDown,
    Decision,
    Done,
    LiveBroker,
    ShutDownBroker,
    UnregisterBroker,
)
from tidelog.controller.elections import min_isr_of
from tidelog.controller.partition_change import Lives, PartitionDraft
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.identifiers import NO_LEADER
from tidelog.model.image import BrokerImage, ClusterImage
from tidelog.model.metadata import BrokerRecord, MetadataRecord, RemoveBrokerRecord
from tidelog.model.settings import BrokerSettings


def brokers_changed(command: BrokersChanged, image: ClusterImage, settings: BrokerSettings) -> Decision:
    """Bring the registrations and all partitions in line with who lives now."""
    live = {broker.broker_id: broker for broker in command.live}
    after: dict[int, BrokerImage] = {}
    restarted: set[int] = set()
    lost_disks: dict[int, str] = {}
    unclean: set[int] = set()
    for broker_id, registered in image.brokers.items():
        if broker_id not in live:
            after[broker_id] = replace(registered, alive=False) if registered.alive else registered
    for broker_id, begun in live.items():
        known = image.brokers.get(broker_id)
        after[broker_id] = _registered(begun, known, command.sequence)
        if begun.unclean_shutdown and (known is None or known.incarnation != begun.incarnation):
            unclean.add(broker_id)
        if known is None:
            continue
        if known.alive and known.incarnation != begun.incarnation:
            restarted.add(broker_id)
        if known.disk_id and begun.disk_id and known.disk_id != begun.disk_id:
            lost_disks[broker_id] = known.disk_id
    lives = Lives.of(after, frozenset(restarted), lost_disks, frozenset(unclean))
    unfit = frozenset(after) - frozenset(lives.steady) | lost_disks.keys() | unclean
    first: list[MetadataRecord] = []
    last: list[MetadataRecord] = []
    for broker_id, broker in sorted(after.items()):
        known = image.brokers.get(broker_id)
        if broker != known:
            arrives = known is None or (broker.alive and not known.alive)
            (first if arrives else last).append(broker_record(broker))
    # A large decision becomes visible in parts, in this order. So nobody is seen to lead who is not alive,
    # and no new life sees itself registered while it still seems to lead what its last life led.
    return Decision((*first, *settle_partitions(image, settings, lives, unfit), *last), (Done(),))


def _registered(broker: LiveBroker, known: BrokerImage | None, sequence: int) -> BrokerImage:
    disk_id = broker.disk_id or (known.disk_id if known is not None else "")
    if known is not None and known.incarnation == broker.incarnation:
        return replace(known, endpoints=broker.endpoints, rack=broker.rack, alive=True, disk_id=disk_id)
    epoch = sequence if known is None else max(sequence, known.epoch + 1)
    return BrokerImage(
        broker.broker_id, broker.endpoints, broker.rack, epoch, broker.incarnation, disk_id=disk_id
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
        broker.disk_id,
    )


def settle_partitions(
    image: ClusterImage, settings: BrokerSettings, lives: Lives, unfit: Collection[int]
) -> list[MetadataRecord]:
    """Settle every partition that has no leader, or one of `unfit` in its ISR or ELR, in one pass."""
    records: list[MetadataRecord] = []
    unfit = frozenset(unfit)
    for topic in image.topics.values():
        min_isr = 0
        for index, partition in enumerate(topic.partitions):
            if (
                partition.leader != NO_LEADER
                and unfit.isdisjoint(partition.isr)
                and unfit.isdisjoint(partition.elr)
            ):
                continue
            min_isr = min_isr or min_isr_of(topic, image, settings)
            record = PartitionDraft(topic.name, index, partition).settle(lives, min_isr)
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
    # With the registration goes the id of its disk: where it has the last copy, the partition remembers it.
    lives = Lives.of(others, lost_disks={broker_id: known.disk_id})
    records = settle_partitions(image, settings, lives, (broker_id,))
    return Decision((*records, RemoveBrokerRecord(broker_id)), (Done(),))
