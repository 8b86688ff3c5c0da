"""How one partition gets from its present state to the next: who is in sync, who leads, under which epochs.

Every decision about a partition ends here. A `PartitionDraft` starts as the partition is; the caller changes
the replicas, the ISR or the reassignment; `settle` then applies these rules, in this order:

1. A copy whose disk is gone does not count. If it was the last one that had everything committed, the ELR
   keeps its name and `lost_disk_id` says which disk has the data.
2. Members of the ISR and ELR whose machine may have lost the end of their logs (a power cut) leave both; they
   are the last known ELR. The only replica of a partition is as good as any.
3. Members that are dead, shutting down or newly started leave the ISR as long as a better one stays. When
   nobody is alive the ISR is empty.
4. A reassignment ends when all replicas of its target are in sync.
5. The leader stays if it can. Otherwise the first replica, in order of assignment, that is active and in sync
   leads; if nobody is in sync, the first that is active and in the ELR. If the ELR is empty too, everybody of
   the last known ELR is waited for, and the longest log leads (unclean recovery). In an unclean election the
   longest log among the active replicas does, at once.
6. Whoever left the ISR is in the ELR as long as the ISR has fewer than `min.insync.replicas` members: nothing
   is committed meanwhile, so they all have everything committed (KIP-966).
7. The leader epoch grows when the leader changes or begins a new life, and when a member was shut out of the
   ISR or of the replicas. It does not when a leader shrinks or expands its own ISR. The partition epoch grows
   with every change.

Settling twice changes nothing more.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from tidelog.model.identifiers import NO_EPOCH, NO_LEADER, NO_OFFSET
from tidelog.model.image import BrokerImage, ClusterImage, PartitionImage
from tidelog.model.metadata import PartitionRecord, ReplicaLogInfo

_NOBODY: frozenset[int] = frozenset()
_UNKNOWN_LOG = ReplicaLogInfo(NO_EPOCH, NO_OFFSET)


class Election(Enum):
    """Whom an election may choose."""

    #: an active replica in the ISR or ELR, the present leader before all others
    CLEAN = auto()
    #: the same, but the preferred replica before all others
    PREFERRED = auto()
    #: as CLEAN, and if there is none, the active replica with the longest log
    UNCLEAN = auto()


@dataclass(frozen=True, slots=True)
class Lives:
    """Which brokers can be relied on while a decision is made."""

    #: alive and not shutting down
    active: frozenset[int]
    alive: frozenset[int]
    #: disk ids of the brokers that are alive
    disks: Mapping[int, str]
    #: active ones that ended and began again before anybody noticed: what they had in memory is gone
    restarted: frozenset[int] = _NOBODY
    #: brokers whose copies are out of reach, with the id of the disk that holds them
    lost_disks: Mapping[int, str] = field(default_factory=dict)
    #: active and not restarted
    steady: frozenset[int] = _NOBODY
    #: those whose machine may have lost the end of their logs before this life of theirs began
    unclean: frozenset[int] = _NOBODY

    @classmethod
    def of(
        cls,
        brokers: Mapping[int, BrokerImage],
        restarted: frozenset[int] = _NOBODY,
        lost_disks: Mapping[int, str] | None = None,
        unclean: frozenset[int] = _NOBODY,
    ) -> "Lives":
        active = frozenset(broker.id for broker in brokers.values() if broker.active)
        return cls(
            active,
            frozenset(broker.id for broker in brokers.values() if broker.alive),
            {broker.id: broker.disk_id for broker in brokers.values() if broker.alive},
            restarted,
            lost_disks or {},
            active - restarted,
            unclean,
        )

    @classmethod
    def in_image(cls, image: ClusterImage) -> "Lives":
        return cls.of(image.alive_brokers)


class PartitionDraft:
    """A partition on its way to its next state: set what shall change, then `settle`."""

    __slots__ = (
        "_distrusted",
        "_fenced",
        "_unclean",
        "adding",
        "elr",
        "index",
        "isr",
        "last_known_elr",
        "lost_disk_id",
        "present",
        "removing",
        "replica_logs",
        "replicas",
        "topic",
    )

    def __init__(self, topic: str, index: int, present: PartitionImage) -> None:
        self.topic = topic
        self.index = index
        self.present = present
        self.replicas = present.replicas
        self.isr = present.isr
        self.elr = present.elr
        self.last_known_elr = present.last_known_elr
        self.replica_logs = present.replica_logs
        self.adding = present.adding
        self.removing = present.removing
        self.lost_disk_id = present.lost_disk_id
        if self.lost_disk_id and not self.elr:
            # As it was written before there was an ELR.
            self.isr, self.elr = (), self.isr
        self._fenced = False
        self._unclean = False
        #: members that left the ISR and cannot be relied on to have everything committed
        self._distrusted: frozenset[int] = _NOBODY

    def __repr__(self) -> str:
        return (
            f"<PartitionDraft {self.topic}-{self.index} replicas={self.replicas} isr={self.isr} "
            f"elr={self.elr} last_known_elr={self.last_known_elr}>"
        )

    def give_up_to(self, replica: int) -> None:
        """Have a replica lead that was not in sync: whatever else was committed is given up."""
        self.isr, self.elr, self.last_known_elr, self.lost_disk_id = (replica,), (), (), ""
        self._unclean = True

    def settle(
        self, lives: Lives, min_insync_replicas: int, election: Election = Election.CLEAN
    ) -> PartitionRecord | None:
        """The record of the next state, or None if nothing changes."""
        self._drop_old_logs(lives)
        self._drop_lost_disks(lives)
        self._drop_unclean(lives)
        self._drop_unfit(lives)
        self._finish_reassignment(lives)
        self._keep_eligible(min_insync_replicas)
        leader = self._elect(lives, election)
        if leader != NO_LEADER:
            self.replica_logs = ()
            if leader not in self.isr or self.lost_disk_id:
                self.isr = (leader,)
                self.lost_disk_id = ""
                self._finish_reassignment(lives)
            self._keep_eligible(min_insync_replicas)
        return self._record(leader, lives)

    def _drop_old_logs(self, lives: Lives) -> None:
        """What a broker said of its log counts as long as that life of it goes on."""
        if self.replica_logs:
            self.replica_logs = tuple(
                said for said in self.replica_logs if said[0] in lives.steady and said[0] in self.replicas
            )

    def _drop_lost_disks(self, lives: Lives) -> None:
        if self.lost_disk_id:
            if lives.disks.get(self.elr[0]) == self.lost_disk_id:
                self.lost_disk_id = ""
            return
        lost = lives.lost_disks
        holders = (*self.isr, *self.elr)
        if not lost or lost.keys().isdisjoint((*holders, *self.last_known_elr)):
            return
        # Who is unregistered is not waited for any more, unless there is nobody else.
        known = tuple(member for member in self.last_known_elr if member not in lost or member in lives.alive)
        known = known or self.last_known_elr
        kept = tuple(member for member in holders if member not in lost)
        self._distrusted |= lost.keys()
        if kept or not holders:
            self._fenced = self._fenced or not lost.keys().isdisjoint(self.isr)
            self.isr = tuple(member for member in self.isr if member in kept)
            self.elr = tuple(member for member in self.elr if member in kept)
            self.last_known_elr = known
        else:
            # The leader was never behind the others.
            holder = self.present.leader if self.present.leader in holders else holders[0]
            self.isr, self.elr = (), (holder,)
            self.last_known_elr = tuple(member for member in known if member != holder)
            self.lost_disk_id = lost[holder]

    def _drop_unclean(self, lives: Lives) -> None:
        unclean = lives.unclean
        members = (*self.isr, *self.elr)
        if not unclean or unclean.isdisjoint(members) or self.lost_disk_id or len(self.replicas) == 1:
            return
        self._fenced = self._fenced or not unclean.isdisjoint(self.isr)
        self._distrusted |= unclean
        self.last_known_elr += tuple(member for member in members if member in unclean)
        self.isr = tuple(member for member in self.isr if member not in unclean)
        self.elr = tuple(member for member in self.elr if member not in unclean)

    def _drop_unfit(self, lives: Lives) -> None:
        for fit in (lives.steady, lives.active, lives.alive, _NOBODY):
            staying = tuple(replica for replica in self.isr if replica in fit)
            if staying or fit is _NOBODY:
                self._fenced = self._fenced or len(staying) < len(self.isr)
                self.isr = staying
                return

    def _keep_eligible(self, min_insync_replicas: int) -> None:
        """Let the ELR and the last known ELR follow from the ISR as it is now."""
        if self._unclean or len(self.isr) >= min(min_insync_replicas, len(self.replicas)):
            self.elr = self.last_known_elr = ()
            return
        replicas, in_sync = self.replicas, self.isr
        left = (*self.present.isr, *self.elr)
        if left or self.last_known_elr:
            distrusted = () if self.lost_disk_id else self._distrusted
            if not self.lost_disk_id:
                self.elr = tuple(
                    replica
                    for replica in replicas
                    if replica in left and replica not in in_sync and replica not in distrusted
                )
            self.last_known_elr = tuple(
                replica
                for replica in replicas
                if replica in self.last_known_elr and replica not in in_sync and replica not in self.elr
            )

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
            eligible = [replica for replica in self.replicas if replica in self.elr and replica in active]
            if eligible:
                return eligible[0]
            if not self.elr and (recovered := self._recover(lives)) != NO_LEADER:
                return recovered
        return self._longest_log(lives) if election is Election.UNCLEAN else NO_LEADER

    def _recover(self, lives: Lives) -> int:
        """Nobody is left who certainly has everything: the longest log leads once all that may are back."""
        active, said = lives.active, dict(self.replica_logs)
        if any(member not in active for member in self.last_known_elr):
            return NO_LEADER
        candidates = [replica for replica in self.replicas if replica in active]
        if len(candidates) > 1 and any(replica not in said for replica in candidates):
            return NO_LEADER
        return self._longest_log(lives)

    def _longest_log(self, lives: Lives) -> int:
        """The active replica whose log is the longest, as far as they have said."""
        candidates = [replica for replica in self.replicas if replica in lives.active]
        if not candidates:
            return NO_LEADER
        said = dict(self.replica_logs)
        # Whoever has a copy of any age goes before one that is known to have lost it.
        empty = self.elr if self.lost_disk_id else ()
        self._unclean = True
        return max(
            candidates,
            key=lambda replica: (
                replica not in empty and replica not in lives.lost_disks,
                said.get(replica, _UNKNOWN_LOG),
            ),
        )

    def _record(self, leader: int, lives: Lives) -> PartitionRecord | None:
        present = self.present
        leader_epoch = present.leader_epoch
        if leader != present.leader:
            leader_epoch += 1
        elif leader != NO_LEADER:
            shut_out = self._fenced or not set(self.replicas).issuperset(present.replicas)
            if shut_out or leader in lives.restarted:
                leader_epoch += 1
        unclean_leader_epoch = leader_epoch if self._unclean else present.unclean_leader_epoch
        if (
            leader_epoch == present.leader_epoch
            and self.isr == present.isr
            and self.replicas == present.replicas
            and self.adding == present.adding
            and self.removing == present.removing
            and self.lost_disk_id == present.lost_disk_id
            and self.elr == present.elr
            and self.last_known_elr == present.last_known_elr
            and self.replica_logs == present.replica_logs
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
            self.elr,
            self.last_known_elr,
            unclean_leader_epoch,
            self.replica_logs,
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
        record.elr,
        record.last_known_elr,
        record.unclean_leader_epoch,
        record.replica_logs,
    )
