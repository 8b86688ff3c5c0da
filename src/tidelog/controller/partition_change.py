"""How one partition gets from its present state to the next: who is in sync, who leads, under which epochs.

Every decision about a partition ends here. A `PartitionDraft` starts as the partition is; the caller changes
the replicas, the ISR or the reassignment; `settle` then applies these rules, in this order:

1. A copy whose disk is gone does not count. If it was the last one in sync, the ISR keeps its name and
   `lost_disk_id` says which disk has the data.
2. Members that are dead, shutting down or newly started leave the ISR as long as a better one stays. The ISR
   is never emptied: when nobody better is left, all of them stay, since each has everything committed.
3. A reassignment ends when all replicas of its target are in sync.
4. The leader stays if it can. Otherwise the first replica, in order of assignment, that is active and in sync
   leads; or nobody; or, in an unclean election, the first that is active at all, alone in its ISR.
5. The leader epoch grows when the leader changes or begins a new life, and when a member was shut out of the
   ISR or of the replicas. It does not when a leader shrinks or expands its own ISR. The partition epoch grows
   with every change.

Settling twice changes nothing more.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from tidelog.model.identifiers import NO_LEADER
from tidelog.model.image import BrokerImage, ClusterImage, PartitionImage
from tidelog.model.metadata import PartitionRecord

_NOBODY: frozenset[int] = frozenset()


class Election(Enum):
    """Whom an election may choose."""

    #: an active replica in the ISR, the present leader before all others
    CLEAN = auto()
    #: the same, but the preferred replica before all others
    PREFERRED = auto()
    #: as CLEAN, and if there is none, any active replica
    UNCLEAN = auto()


@dataclass(frozen=True, slots=True)
class Lives:
    """Which brokers can be relied on while a decision is made."""

    #: alive and not shutting down
    active: Collection[int]
    alive: Collection[int]
    #: disk ids of the brokers that are alive
    disks: Mapping[int, str]
    #: active ones that ended and began again before anybody noticed: what they had in memory is gone
    restarted: frozenset[int] = _NOBODY
    #: brokers whose copies are out of reach, with the id of the disk that holds them
    lost_disks: Mapping[int, str] = field(default_factory=dict)
    #: active and not restarted
    steady: Collection[int] = ()

    @classmethod
    def of(
        cls,
        brokers: Mapping[int, BrokerImage],
        restarted: frozenset[int] = _NOBODY,
        lost_disks: Mapping[int, str] | None = None,
    ) -> "Lives":
        active = frozenset(broker.id for broker in brokers.values() if broker.active)
        return cls(
            active,
            frozenset(broker.id for broker in brokers.values() if broker.alive),
            {broker.id: broker.disk_id for broker in brokers.values() if broker.alive},
            restarted,
            lost_disks or {},
            active - restarted,
        )

    @classmethod
    def in_image(cls, image: ClusterImage) -> "Lives":
        return cls.of(image.alive_brokers)


class PartitionDraft:
    """A partition on its way to its next state: set what shall change, then `settle`."""

    __slots__ = (
        "_fenced",
        "adding",
        "index",
        "isr",
        "lost_disk_id",
        "present",
        "removing",
        "replicas",
        "topic",
    )

    def __init__(self, topic: str, index: int, present: PartitionImage) -> None:
        self.topic = topic
        self.index = index
        self.present = present
        self.replicas = present.replicas
        self.isr = present.isr
        self.adding = present.adding
        self.removing = present.removing
        self.lost_disk_id = present.lost_disk_id
        self._fenced = False

    def __repr__(self) -> str:
        return f"<PartitionDraft {self.topic}-{self.index} replicas={self.replicas} isr={self.isr}>"

    def settle(self, lives: Lives, election: Election = Election.CLEAN) -> PartitionRecord | None:
        """The record of the next state, or None if nothing changes."""
        self._drop_lost_disks(lives)
        self._drop_unfit(lives)
        self._finish_reassignment(lives)
        leader = self._elect(lives, election)
        if leader != NO_LEADER and (leader not in self.isr or self.lost_disk_id):
            self.isr = (leader,)
            self.lost_disk_id = ""
            self._finish_reassignment(lives)
        return self._record(leader, lives)

    def _drop_lost_disks(self, lives: Lives) -> None:
        if self.lost_disk_id:
            if lives.disks.get(self.isr[0]) == self.lost_disk_id:
                self.lost_disk_id = ""
            return
        lost = lives.lost_disks
        if not lost or lost.keys().isdisjoint(self.isr):
            return
        kept = tuple(replica for replica in self.isr if replica not in lost)
        if kept:
            self._fenced = True
            self.isr = kept
        else:
            # The leader was never behind the others.
            holder = self.present.leader if self.present.leader in self.isr else self.isr[0]
            self.isr = (holder,)
            self.lost_disk_id = lost[holder]

    def _drop_unfit(self, lives: Lives) -> None:
        for fit in (lives.steady, lives.active, lives.alive):
            staying = tuple(replica for replica in self.isr if replica in fit)
            if staying:
                self._fenced = self._fenced or len(staying) < len(self.isr)
                self.isr = staying
                return

    def _finish_reassignment(self, lives: Lives) -> None:
        if (not self.adding and not self.removing) or self.lost_disk_id:
            return
        isr = tuple(replica for replica in self.isr if replica not in self.removing)
        target = tuple(replica for replica in self.replicas if replica not in self.removing)
        # Copies of dead brokers are no ground to give up others.
        if all(replica in isr and replica in lives.active for replica in target):
            self.isr, self.replicas = isr, target
            self.adding = self.removing = ()

    def _elect(self, lives: Lives, election: Election) -> int:
        present, active = self.present.leader, lives.active
        if not self.lost_disk_id:
            in_sync = [replica for replica in self.replicas if replica in self.isr and replica in active]
            if election is Election.PREFERRED and in_sync and in_sync[0] == self.replicas[0]:
                return in_sync[0]
            if present in in_sync:
                return present
            if in_sync:
                return in_sync[0]
            if present in self.isr and present in lives.alive:
                # It is shutting down and nobody can take over: it leads to its end.
                return present
        if election is Election.UNCLEAN:
            candidates = [replica for replica in self.replicas if replica in active]
            # Whoever has a copy of any age goes before one that is known to have lost it.
            empty = self.isr if self.lost_disk_id else ()
            candidates.sort(key=lambda replica: replica in empty or replica in lives.lost_disks)
            if candidates:
                return candidates[0]
        return NO_LEADER

    def _record(self, leader: int, lives: Lives) -> PartitionRecord | None:
        present = self.present
        leader_epoch = present.leader_epoch
        if leader != present.leader:
            leader_epoch += 1
        elif leader != NO_LEADER:
            shut_out = self._fenced or not set(self.replicas).issuperset(present.replicas)
            if shut_out or leader in lives.restarted:
                leader_epoch += 1
        if (
            leader_epoch == present.leader_epoch
            and self.isr == present.isr
            and self.replicas == present.replicas
            and self.adding == present.adding
            and self.removing == present.removing
            and self.lost_disk_id == present.lost_disk_id
        ):
            return None
        return PartitionRecord(
            self.topic,
            self.index,
            leader,
            leader_epoch,
            self.replicas,
            self.isr,
            present.partition_epoch + 1,
            self.adding,
            self.removing,
            self.lost_disk_id,
        )


def image_of(record: PartitionRecord) -> PartitionImage:
    """The partition as the record will make it."""
    return PartitionImage(
        record.leader,
        record.leader_epoch,
        record.replicas,
        record.isr,
        record.partition_epoch,
        record.adding,
        record.removing,
        record.lost_disk_id,
    )
