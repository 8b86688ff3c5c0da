"""What the leader of a partition knows of its followers, and what follows from it: watermark and ISR.

A follower tells where its log ends by the offset it fetches next. The high watermark is the smallest end
among the leader and the *maximal* ISR: the ISR that the controller knows, plus the followers that were
proposed to it and may be in already. So an offset below the watermark is in the log of everybody who could be
elected. A follower that is about to join (it was caught up a moment ago) is waited for as well, or it would
chase the watermark for ever. While fewer than `min.insync.replicas` are in sync the watermark stands still:
what only a few have must not count as committed. It stands still as well while the partition has eligible
leader replicas (KIP-966): they left the ISR and may lead later, so nothing may be committed without them.

A follower is caught up at the latest moment at which its end was the leader's. It falls out of the ISR when
that moment is longer ago than `replica.lag.time.max.ms` and its end is still behind; it may join when it
holds everything committed and everything from before this leadership.

Time, ends and who is alive are arguments. Time is monotonic: a clock that is set must neither empty an ISR
nor keep somebody in it. `partition_epoch` is the version of the partition's record that all of this is based
on: an ISR change is proposed under it, and an older record changes nothing.
"""

from collections.abc import Callable, Iterable

from tidelog.model.image import PartitionImage

UNKNOWN = -1
NEVER_MS = -(1 << 62)

MonotonicMs = Callable[[], int]
Eligible = Callable[[int, int], bool]
"""Whether a broker that fetched under this broker epoch may join an ISR: that life of it goes on."""


class Contact:
    """When a follower was last heard of, shared by all partitions that one of its fetch sessions holds.

    A session fetches its partitions without naming those that did not change, so the time of the last fetch
    counts for all of them.
    """

    __slots__ = ("last_fetch_ms",)

    def __init__(self, now_ms: int) -> None:
        self.last_fetch_ms = now_ms


class Follower:
    """One follower as its leader sees it."""

    __slots__ = (
        "broker_epoch",
        "broker_id",
        "contact",
        "last_caught_up_ms",
        "last_fetch_end_offset",
        "last_fetch_ms",
        "log_end_offset",
        "log_start_offset",
    )

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.log_end_offset = UNKNOWN
        self.log_start_offset = UNKNOWN
        self.broker_epoch = UNKNOWN
        self.last_caught_up_ms = NEVER_MS
        #: where the leader's log ended at the fetch before, and when that was
        self.last_fetch_end_offset = UNKNOWN
        self.last_fetch_ms = NEVER_MS
        self.contact: Contact | None = None

    def fetched(self, offset: int, log_start_offset: int, end_offset: int, now_ms: int) -> None:
        """It fetched from `offset` while the leader's log ended at `end_offset`."""
        if offset >= end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif offset >= self.last_fetch_end_offset >= 0:
            # It has all there was at its last fetch: with a steady stream it is never ahead of that.
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.log_end_offset = offset
        self.log_start_offset = log_start_offset
        self.last_fetch_end_offset = max(self.last_fetch_end_offset, end_offset)
        self.last_fetch_ms = now_ms

    def is_caught_up(self, end_offset: int, now_ms: int, lag_max_ms: int) -> bool:
        return self.log_end_offset >= end_offset or now_ms - self.last_caught_up_ms <= lag_max_ms

    def __repr__(self) -> str:
        return f"<Follower {self.broker_id} end={self.log_end_offset} caught_up={self.last_caught_up_ms}>"


class LeaderReplicas:
    """The followers of one led partition, and its ISR with a change that may be under way."""

    __slots__ = (
        "_eligible",
        "elr",
        "epoch_start_offset",
        "followers",
        "isr",
        "lag_max_ms",
        "leader_epoch",
        "node_id",
        "partition_epoch",
        "pending_isr",
        "replica_count",
    )

    def __init__(
        self,
        node_id: int,
        state: PartitionImage,
        *,
        epoch_start_offset: int,
        now_ms: int,
        lag_max_ms: int,
        eligible: Eligible,
    ) -> None:
        self.node_id = node_id
        self.lag_max_ms = lag_max_ms
        self._eligible = eligible
        self.epoch_start_offset = epoch_start_offset
        self.followers: dict[int, Follower] = {}
        self.isr: frozenset[int] = frozenset()
        #: proposed to the controller, and not yet decided as far as is known here
        self.pending_isr: frozenset[int] | None = None
        self.elr: tuple[int, ...] = ()
        self.partition_epoch = -1
        self.leader_epoch = -1
        self.replica_count = 0
        self.update(state, epoch_start_offset=epoch_start_offset, now_ms=now_ms)

    # -- the partition's record

    def update(self, state: PartitionImage, *, epoch_start_offset: int, now_ms: int) -> bool:
        """Take over a record of the partition, unless it is older than what is known; say whether it was.

        `epoch_start_offset` is where the log ends now: where a new epoch begins, if the record has one.
        """
        if state.partition_epoch < self.partition_epoch:
            return False
        if state.partition_epoch > self.partition_epoch:
            self.pending_isr = None
        skipped = state.partition_epoch > self.partition_epoch + 1
        self.partition_epoch = state.partition_epoch
        self.isr = frozenset(state.isr)
        self.elr = state.elr
        self.replica_count = len(state.replicas)
        self.followers = {
            replica: self.followers.get(replica) or Follower(replica)
            for replica in state.replicas
            if replica != self.node_id
        }
        if state.leader_epoch > self.leader_epoch:
            self.leader_epoch = state.leader_epoch
            self.epoch_start_offset = epoch_start_offset
            for follower in self.followers.values():
                if skipped or follower.broker_id not in self.isr:
                    # It may have begun anew, removed and assigned again by records that were not seen here.
                    # What it has it tells when it fetches in this epoch.
                    follower.log_end_offset = UNKNOWN
                # One in the ISR gets the time to show up; one outside must not hold the watermark back.
                follower.last_caught_up_ms = now_ms if follower.broker_id in self.isr else NEVER_MS
                follower.last_fetch_end_offset = epoch_start_offset
                follower.last_fetch_ms = now_ms if follower.broker_id in self.isr else NEVER_MS
        return True

    @property
    def maximal_isr(self) -> frozenset[int]:
        """Everybody who may be in the ISR, whatever the controller decides about a pending change."""
        return self.isr if self.pending_isr is None else self.isr | self.pending_isr

    def effective_min_isr(self, min_insync_replicas: int) -> int:
        """`min.insync.replicas`, but no more than there are replicas (as in Kafka 4)."""
        return min(min_insync_replicas, self.replica_count)

    def under_min_isr(self, min_insync_replicas: int) -> bool:
        """Whether too few are in sync, as far as this broker or, by the ELR, the controller knows."""
        return bool(self.elr) or len(self.isr) < self.effective_min_isr(min_insync_replicas)

    # -- followers and the watermark

    def fetched(
        self,
        broker_id: int,
        broker_epoch: int,
        offset: int,
        log_start_offset: int,
        *,
        end_offset: int,
        now_ms: int,
        contact: Contact | None = None,
    ) -> bool:
        """A follower fetches from `offset`; False when it is no replica, or an earlier life of one."""
        follower = self.followers.get(broker_id)
        if follower is None or 0 <= broker_epoch < follower.broker_epoch:
            return False
        follower.broker_epoch = broker_epoch
        follower.contact = contact
        follower.fetched(offset, log_start_offset, end_offset, now_ms)
        return True

    def appending(self, end_offset: int) -> None:
        """The log is about to grow beyond `end_offset`: note who had all of it at their last fetch."""
        for follower in self.followers.values():
            contact = follower.contact
            if contact is not None and follower.log_end_offset >= end_offset:
                follower.last_caught_up_ms = max(follower.last_caught_up_ms, contact.last_fetch_ms)

    def watermark(
        self, high_watermark: int, end_offset: int, min_insync_replicas: int, monotonic_ms: MonotonicMs
    ) -> int:
        """The high watermark now; never less than it was. The time is asked for only if it matters."""
        isr = self.isr
        if self.elr or (len(isr) < min_insync_replicas and self.under_min_isr(min_insync_replicas)):
            return high_watermark
        if self.pending_isr is not None:
            isr = self.maximal_isr
        lowest = end_offset
        for broker_id, follower in self.followers.items():
            end = follower.log_end_offset
            if end < lowest and (broker_id in isr or self._about_to_join(follower, end_offset, monotonic_ms)):
                lowest = end
        return max(lowest, high_watermark)

    def _about_to_join(self, follower: Follower, end_offset: int, monotonic_ms: MonotonicMs) -> bool:
        return (
            follower.log_end_offset >= 0
            and follower.is_caught_up(end_offset, monotonic_ms(), self.lag_max_ms)
            and self._eligible(follower.broker_id, follower.broker_epoch)
        )

    def low_watermark(self, log_start_offset: int, alive: Callable[[int], bool]) -> int:
        """The smallest start of a log among the leader and its living followers, for DeleteRecords."""
        starts = (each.log_start_offset for each in self.followers.values() if alive(each.broker_id))
        return min((log_start_offset, *starts))

    # -- the ISR

    def may_join(self, broker_id: int, high_watermark: int) -> bool:
        """Whether a follower outside the ISR belongs in it now."""
        follower = self.followers.get(broker_id)
        return (
            follower is not None
            and self.pending_isr is None
            and broker_id not in self.isr
            and follower.log_end_offset >= max(high_watermark, self.epoch_start_offset)
            and self._eligible(broker_id, follower.broker_epoch)
        )

    def fallen_behind(self, end_offset: int, now_ms: int) -> frozenset[int]:
        """The members of the ISR that do not keep up; none while a change is pending."""
        if self.pending_isr is not None:
            return frozenset()
        return frozenset(
            replica
            for replica in self.isr
            if replica != self.node_id
            and not (
                replica in self.followers
                and self.followers[replica].is_caught_up(end_offset, now_ms, self.lag_max_ms)
            )
        )

    def propose(self, isr: Iterable[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Hold a change as pending; return its members, and the lives they were seen in."""
        assert self.pending_isr is None, "one change at a time"
        self.pending_isr = frozenset(isr)
        return self.proposal()

    def proposal(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The pending ISR and the broker epochs of its members; -1 where it is not known."""
        assert self.pending_isr is not None
        members = tuple(sorted(self.pending_isr))
        epochs = tuple(
            follower.broker_epoch if (follower := self.followers.get(member)) is not None else UNKNOWN
            for member in members
        )
        return members, epochs

    def take_back(self) -> None:
        """The controller certainly did not make the pending change."""
        self.pending_isr = None

    def __repr__(self) -> str:
        pending = "" if self.pending_isr is None else f" pending={sorted(self.pending_isr)}"
        return f"<LeaderReplicas epoch={self.leader_epoch} isr={sorted(self.isr)}{pending}>"
