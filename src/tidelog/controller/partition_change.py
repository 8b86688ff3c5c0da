"""How one partition gets from its present state to the next: who is in sync, who leads, under which epochs.

Every decision about a partition ends here. A `PartitionDraft` starts as the partition is; the caller changes
the replicas, the ISR or the reassignment; `settle` then applies these rules, in this order:

1. A replica whose log directory is not among the online ones of its broker is offline (KIP-858). It leaves
   the ISR and ELR as long as another stays there that is alive and did not lose the end of its log: who is
   dead may come back without it, and then the directory that is away has the only copy. If all who
   certainly had everything committed are offline, they are the ELR, and the partition waits for one of
   their directories. A directory that was given up is not waited for as long as there are others: its replica
   leaves ISR, ELR and last known ELR.
2. Members of the ISR and ELR whose logs may lack what they had leave both, since their machine may have lost
   the ends of all (a power cut) or the broker says so of this one; they are the last known ELR. The only
   replica of a partition is as good as any.
3. Members that are dead, shutting down or newly started leave the ISR as long as a better one stays. When
   nobody is alive the ISR is empty.
4. A reassignment ends when all replicas of its target are in sync.
5. The leader stays if it can. Otherwise the first replica, in order of assignment, that is active and in sync
   leads; if nobody is in sync, the first that is active and in the ELR. If the ELR is empty too, everybody of
   the last known ELR is waited for, and the longest log leads (unclean recovery). In an unclean election the
   longest known log among the active replicas does, at once; one of which nothing is known goes before an
   empty one. Nobody leads who is offline, unless nobody else is there in an unclean election: then it begins
   anew, in another directory.
6. Whoever left the ISR is in the ELR as long as the ISR has fewer than `min.insync.replicas` members: nothing
   is committed meanwhile, so they all have everything committed (KIP-966). The last known ELR stays until the
   leader has said that it lives: a session outlives its broker by some seconds.
7. The leader epoch grows when the leader changes or begins a new life, and when a member was shut out of the
   ISR or of the replicas. It does not when a leader shrinks or expands its own ISR. The partition epoch grows
   with every change.

Settling twice changes nothing more.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from tidelog.controller.placement import DirectoryLoads
from tidelog.model.identifiers import (
    LOST_DIRECTORY,
    MIGRATING_DIRECTORY,
    NO_EPOCH,
    NO_LEADER,
    NO_OFFSET,
)
from tidelog.model.image import BrokerImage, ClusterImage, PartitionImage, is_online
from tidelog.model.metadata import PartitionRecord, ReplicaLogInfo

_NOBODY: frozenset[int] = frozenset()
_UNKNOWN_LOG = ReplicaLogInfo(NO_EPOCH, NO_OFFSET)
_EMPTY_LOG = ReplicaLogInfo(NO_EPOCH, 0)


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
    #: the online directories of the brokers that are alive
    directories: Mapping[int, tuple[str, ...]]
    #: active ones that ended and began again before anybody noticed: what they had in memory is gone
    restarted: frozenset[int] = _NOBODY
    #: brokers that are forgotten with this decision: their copies are out of reach
    forgotten: frozenset[int] = _NOBODY
    #: active and not restarted
    steady: frozenset[int] = _NOBODY
    #: those whose machine may have lost the end of their logs before this life of theirs began
    unclean: frozenset[int] = _NOBODY
    #: all directories of the brokers, dead or alive, as they last told; and where new replicas go
    told: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    loads: DirectoryLoads = field(default_factory=lambda: DirectoryLoads(ClusterImage()))

    @classmethod
    def of(
        cls,
        brokers: Mapping[int, BrokerImage],
        restarted: frozenset[int] = _NOBODY,
        forgotten: frozenset[int] = _NOBODY,
        unclean: frozenset[int] = _NOBODY,
    ) -> "Lives":
        active = frozenset(broker.id for broker in brokers.values() if broker.active)
        return cls(
            active,
            frozenset(broker.id for broker in brokers.values() if broker.alive),
            {broker.id: broker.directories for broker in brokers.values() if broker.alive},
            restarted,
            forgotten,
            active - restarted,
            unclean,
            {broker.id: broker.directories for broker in brokers.values()},
        )

    @classmethod
    def in_image(cls, image: ClusterImage) -> "Lives":
        return replace(cls.of(image.brokers), loads=DirectoryLoads(image))

    def choose_directory(self, replica: int) -> str:
        """The directory for a new replica."""
        return self.loads.choose(self.told.get(replica, ()))

    def reaches(self, replica: int, directory: str) -> bool:
        """Whether a replica in this directory is online; of a dead broker's nothing worse is known."""
        if replica in self.forgotten:
            return False
        known = self.directories.get(replica)
        return directory != LOST_DIRECTORY if known is None else is_online(directory, known)


class PartitionDraft:
    """A partition on its way to its next state: set what shall change, then `settle`."""

    __slots__ = (
        "_distrusted",
        "_fenced",
        "_unclean",
        "adding",
        "confirmed",
        "doubtful",
        "elr",
        "given_up",
        "index",
        "isr",
        "last_known_elr",
        "places",
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
        #: the directory of each replica that was there before, where it is known
        self.places = dict(zip(present.replicas, present.directories, strict=False))
        #: the leader itself asks for this, so it lives, and has everything committed
        self.confirmed = False
        #: replicas of which their brokers say that the log may lack records that it had
        self.doubtful: frozenset[int] = _NOBODY
        #: replicas whose directories are lost for good, as somebody has just said
        self.given_up: frozenset[int] = _NOBODY
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
        self.isr, self.elr, self.last_known_elr = (replica,), (), ()
        self._unclean = True

    def settle(
        self, lives: Lives, min_insync_replicas: int, election: Election = Election.CLEAN
    ) -> PartitionRecord | None:
        """The record of the next state, or None if nothing changes."""
        self._drop_old_logs(lives)
        self._drop_given_up()
        self._drop_offline(lives)
        self._drop_unclean(lives)
        self._drop_unfit(lives)
        self._finish_reassignment(lives)
        self._keep_eligible(min_insync_replicas)
        leader = self._elect(lives, election)
        if leader != NO_LEADER:
            self.replica_logs = ()
            if not self.is_online(leader, lives):
                self.places[leader] = lives.choose_directory(leader)
            if leader not in self.isr:
                self.isr = (leader,)
                self._finish_reassignment(lives)
            self._keep_eligible(min_insync_replicas)
        return self._record(leader, lives)

    def is_online(self, replica: int, lives: Lives) -> bool:
        """Whether the replica's directory can be reached, as far as the cluster knows."""
        return lives.reaches(replica, self.places.get(replica, MIGRATING_DIRECTORY))

    def able(self, lives: Lives) -> list[int]:
        """The replicas that could lead if they have what it takes: active and online."""
        return [
            replica for replica in self.replicas if replica in lives.active and self.is_online(replica, lives)
        ]

    def _drop_old_logs(self, lives: Lives) -> None:
        """What a broker said of its log counts as long as that life of it goes on, and the directory."""
        if self.replica_logs:
            able = [replica for replica in self.able(lives) if replica in lives.steady]
            self.replica_logs = tuple(said for said in self.replica_logs if said[0] in able)

    def _drop_given_up(self) -> None:
        """Whose directory is lost for good is not waited for as long as there are others."""
        gone = self.given_up
        if not gone or gone.issuperset((*self.isr, *self.elr, *self.last_known_elr)):
            return
        self._fenced = self._fenced or not gone.isdisjoint(self.isr)
        self._distrusted |= gone
        self.isr = tuple(member for member in self.isr if member not in gone)
        self.elr = tuple(member for member in self.elr if member not in gone)
        self.last_known_elr = tuple(member for member in self.last_known_elr if member not in gone)

    def _drop_offline(self, lives: Lives) -> None:
        holders = (*self.isr, *self.elr)
        if lives.forgotten and (holders or not lives.forgotten.issuperset(self.last_known_elr)):
            # Who is unregistered is not waited for any more.
            self.last_known_elr = tuple(
                member for member in self.last_known_elr if member not in lives.forgotten
            )
        online = tuple(member for member in holders if self.is_online(member, lives))
        if len(online) == len(holders):
            return
        self._fenced = self._fenced or any(member not in online for member in self.isr)
        self.isr = tuple(member for member in self.isr if member in online)
        if online:
            awaited = self._awaited(holders, online, lives)
            self._distrusted |= set(holders).difference(online, awaited)
            self.elr = (*(member for member in self.elr if member in online), *awaited)
        else:
            self.elr = holders

    def _awaited(self, holders: tuple[int, ...], online: tuple[int, ...], lives: Lives) -> tuple[int, ...]:
        """Of those who hold everything committed in a directory that is away: all who may be needed yet."""
        unclean = lives.unclean | self.doubtful
        if any(member in lives.alive and member not in unclean for member in online):
            return ()
        return tuple(
            member
            for member in holders
            if member not in online
            and member not in lives.forgotten
            and self.places.get(member) != LOST_DIRECTORY
        )

    def _drop_unclean(self, lives: Lives) -> None:
        unclean = lives.unclean | self.doubtful
        members = (*self.isr, *self.elr)
        if not unclean or unclean.isdisjoint(members) or len(self.replicas) == 1:
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
            # Members that seem to be alive may have lost power too: the leader's word is waited for.
            kept = () if self._unclean or self.confirmed else self.last_known_elr
            self.elr = ()
            self.last_known_elr = tuple(
                replica for replica in self.replicas if replica in kept and replica not in self.isr
            )
            return
        replicas, in_sync = self.replicas, self.isr
        left = (*self.present.isr, *self.elr)
        if left or self.last_known_elr:
            self.elr = tuple(
                replica
                for replica in replicas
                if replica in left and replica not in in_sync and replica not in self._distrusted
            )
            self.last_known_elr = tuple(
                replica
                for replica in replicas
                if replica in self.last_known_elr and replica not in in_sync and replica not in self.elr
            )

    def _finish_reassignment(self, lives: Lives) -> None:
        if not self.adding and not self.removing:
            return
        isr = tuple(replica for replica in self.isr if replica not in self.removing)
        target = tuple(replica for replica in self.replicas if replica not in self.removing)
        # Copies of dead brokers are no ground to give up others.
        if all(replica in isr and replica in lives.active for replica in target):
            self.isr, self.replicas = isr, target
            self.adding = self.removing = ()

    def _elect(self, lives: Lives, election: Election) -> int:
        present, able = self.present.leader, self.able(lives)
        in_sync = [replica for replica in able if replica in self.isr]
        if election is Election.PREFERRED and in_sync and in_sync[0] == self.replicas[0]:
            return in_sync[0]
        if present in in_sync:
            return present
        if in_sync:
            return in_sync[0]
        if present in self.isr and present in lives.alive:
            # It is shutting down and nobody can take over: it leads to its end.
            return present
        eligible = [replica for replica in able if replica in self.elr]
        if eligible:
            return eligible[0]
        if not self.elr:
            recovered = self._recover(lives)
            if recovered != NO_LEADER:
                return recovered
        return self._longest_log(lives) if election is Election.UNCLEAN else NO_LEADER

    def _recover(self, lives: Lives) -> int:
        """Nobody is left who certainly has everything: the longest log leads once all that may are back."""
        able, said = self.able(lives), dict(self.replica_logs)
        members = self.last_known_elr
        awaited = [member for member in members if self.places.get(member) != LOST_DIRECTORY]
        if not able or (members and not awaited) or any(member not in able for member in awaited):
            return NO_LEADER
        if len(able) > 1 and any(replica not in said for replica in able):
            return NO_LEADER
        return self._longest_log(lives)

    def _longest_log(self, lives: Lives) -> int:
        """The active replica whose log is the longest, as far as they have said."""
        candidates = [replica for replica in self.replicas if replica in lives.active]
        if not candidates:
            return NO_LEADER
        said = dict(self.replica_logs)
        self._unclean = True

        def rank(replica: int) -> tuple[bool, int, ReplicaLogInfo]:
            # Whoever has a copy of any age goes before one that has none.
            return self.is_online(replica, lives), *_rank(said.get(replica))

        longest = max(candidates, key=rank)
        members = [replica for replica in candidates if replica in self.last_known_elr]
        if not members or longest in members:
            return longest
        # A member followed the last leader, so its log is a beginning of what was committed. Another log is a
        # longer one for certain if it ends in the same epoch; a later epoch may have come to nothing.
        member = max(members, key=rank)
        known, other = said.get(member, _EMPTY_LOG), said.get(longest, _EMPTY_LOG)
        if known <= _EMPTY_LOG or not self.is_online(member, lives):
            return longest
        same_epoch = known.last_written_leader_epoch == other.last_written_leader_epoch
        return longest if same_epoch else member

    def _directories(self, lives: Lives) -> tuple[str, ...]:
        """Where each replica is; none at all if nothing is known of any."""
        found = tuple(
            self.places.get(replica, MIGRATING_DIRECTORY)
            if replica in self.present.replicas
            else lives.choose_directory(replica)
            for replica in self.replicas
        )
        return found if any(directory != MIGRATING_DIRECTORY for directory in found) else ()

    def _record(self, leader: int, lives: Lives) -> PartitionRecord | None:
        present = self.present
        leader_epoch = present.leader_epoch
        if leader != present.leader:
            leader_epoch += 1
        elif leader != NO_LEADER:
            shut_out = self._fenced or not set(self.replicas).issuperset(present.replicas)
            if shut_out or leader in lives.restarted:
                leader_epoch += 1
        directories = present.directories
        if self.replicas != present.replicas or self.places:
            directories = self._directories(lives)
        unclean_leader_epoch = leader_epoch if self._unclean else present.unclean_leader_epoch
        if (
            leader_epoch == present.leader_epoch
            and self.isr == present.isr
            and self.replicas == present.replicas
            and self.adding == present.adding
            and self.removing == present.removing
            and directories == present.directories
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
            directories,
            self.elr,
            self.last_known_elr,
            unclean_leader_epoch,
            self.replica_logs,
        )


def _rank(said: ReplicaLogInfo | None) -> tuple[int, ReplicaLogInfo]:
    """The longest log first; one of which nothing is known may have more than an empty one."""
    if said is None:
        return 1, _UNKNOWN_LOG
    return (2 if said > _EMPTY_LOG else 0), said


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
        record.directories,
        record.elr,
        record.last_known_elr,
        record.unclean_leader_epoch,
        record.replica_logs,
    )
