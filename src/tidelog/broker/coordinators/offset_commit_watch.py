"""Producers that have announced a group's offsets and do not come to the group's coordinator with them.

librdkafka sends AddOffsetsToTxn and then, at once, TxnOffsetCommit to the group's coordinator that it knows.
If that broker has left the metadata, librdkafka (2.16 and earlier; confluentinc/librdkafka#5511) waits in
`send_offsets_to_transaction` past every timeout: it looks for the new coordinator only when the state of one
of its connections changes, and a broker that left has none. The transaction stands still until it is aborted
for its age, with this broker as with Apache Kafka.

A connection that ends is such a change. So where nothing has come of AddOffsetsToTxn for a while, the
transaction's coordinator closes the connection on which it came: the client connects again, asks where the
group's coordinator is, and goes on. To any other client a closed connection is nothing new.

What has come is known from the question that precedes every transactional write (`transaction_verification`),
and from EndTxn. Only AddOffsetsToTxn version 0 is watched, which is what librdkafka sends. When the group's
coordinator changes, the offsets have to come anew or the transaction to end, for they may have been lost with
the old one.

A coordinator that takes a transaction over does not know by which connection the offsets were announced, if
they were: the client waits for the group's coordinator, and says nothing to the new coordinator of its
transaction. But it connects. So while such a transaction is open and its offsets do not come, connections are
closed on which nothing was asked yet (`newcomers`), a few times. librdkafka looks for coordinators when a
connection goes, once a second, and only if another one is usable at that moment; that is why the connections
that it works with are left alone.
"""

import logging
from collections.abc import Callable
from itertools import islice
from typing import Protocol

from tidelog.broker.coordinators.transaction_coordinator import TransactionCoordinator
from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.timers import Timers
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import GROUP_METADATA_TOPIC, NO_LEADER, TopicPartition
from tidelog.transactions.machine import TransactionMachine
from tidelog.transactions.states import TransactionState

log = logging.getLogger(__name__)

WATCHED_VERSION = 0
#: a client that knows its coordinator takes milliseconds; librdkafka waits 500 ms before it tries again
PATIENCE_MS = 2_000
TICK_MS = 500
#: in one tick, the others in the next ones
LOOKED_AT_MAX = 1_000
#: who announces offsets while so many are watched is not
WATCHED_MAX = 10_000
#: how often newcomers are let go for the sake of one transaction that was taken over
LET_GO_MAX = 5
#: and for how long after that
TAKEN_OVER_MS_MAX = 120_000
_TICK = "offset commit watch"


class ClientConnection(Protocol):
    """A client's connection."""

    #: closes it in order; None when it is closed
    finish: Callable[[], None] | None


class _Announced:
    """A group's offsets that were announced for the open transaction of a transactional id."""

    __slots__ = ("began_ms", "commit_came", "context", "leader_epoch", "let_go_count", "place", "since_ms")

    def __init__(
        self, place: TopicPartition, context: ClientConnection | None, epoch: int, now_ms: int
    ) -> None:
        self.place = place
        #: None for a transaction that was taken over
        self.context = context
        self.leader_epoch = epoch
        self.began_ms = self.since_ms = now_ms
        self.commit_came = False
        self.let_go_count = 0


class OffsetCommitWatch:
    """Closes connections whose client waits for a coordinator that is gone."""

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        metadata: Metadata,
        settings: LiveSettings,
        timers: Timers,
        let_newcomers_go: Callable[[int], int],
    ) -> None:
        """`let_newcomers_go` closes connections that are so many milliseconds old and asked for nothing."""
        self._coordinator = coordinator
        self._metadata = metadata
        self._settings = settings
        self._timers = timers
        self._let_newcomers_go = let_newcomers_go
        self._announced: dict[str, _Announced] = {}

    def __repr__(self) -> str:
        return f"<OffsetCommitWatch announced={len(self._announced)}>"

    def __len__(self) -> int:
        return len(self._announced)

    def announced(self, transactional_id: str, place: TopicPartition, context: ClientConnection) -> None:
        """AddOffsetsToTxn was accepted on this connection."""
        self._watch(transactional_id, place, context)

    def taken_over(self, machine: TransactionMachine) -> None:
        """The transactions of a partition are coordinated here from now on."""
        for transactional_id, transaction in machine.transactions.items():
            if transaction.state is TransactionState.ONGOING:
                for place in transaction.partitions:
                    if place.topic == GROUP_METADATA_TOPIC:
                        self._watch(transactional_id, place, None)

    def _watch(self, transactional_id: str, place: TopicPartition, context: ClientConnection | None) -> None:
        # Without verification nobody would hear that the offsets came.
        if not self._settings.get_bool("transaction.partition.verification.enable"):
            return
        if len(self._announced) >= WATCHED_MAX and transactional_id not in self._announced:
            return
        if _TICK not in self._timers:
            self._timers.set_after(_TICK, TICK_MS, self._tick)
        now_ms = self._timers.monotonic_ms()
        self._announced[transactional_id] = _Announced(place, context, self._leader_epoch(place), now_ms)

    def asked(self, transactional_id: str, places: frozenset[TopicPartition]) -> None:
        """Somebody is about to write to these partitions in the transaction."""
        announced = self._announced.get(transactional_id)
        if announced is not None and announced.place in places:
            announced.commit_came = True
            announced.leader_epoch = self._leader_epoch(announced.place)

    def ended(self, transactional_id: str) -> None:
        """The producer ends the transaction: it waits for nobody."""
        self._announced.pop(transactional_id, None)

    def _leader_epoch(self, place: TopicPartition) -> int:
        """Of the group's coordinator; -1 while there is none."""
        image = self._metadata.image
        partition = image.partition(*place)
        if partition is None or partition.leader == NO_LEADER or partition.leader not in image.alive_brokers:
            return -1
        return partition.leader_epoch

    def _tick(self) -> None:
        now_ms = self._timers.monotonic_ms()
        for transactional_id in list(islice(self._announced, LOOKED_AT_MAX)):
            announced = self._announced.pop(transactional_id)
            context = announced.context
            if context is None:
                gone = now_ms - announced.began_ms > TAKEN_OVER_MS_MAX
            else:
                gone = context.finish is None
            if gone or not self._is_watchable(transactional_id, announced):
                continue
            if not self._waits_too_long(announced, now_ms):
                self._announced[transactional_id] = announced  # behind the others
                continue
            if context is None:
                self._look_for_client(transactional_id, announced, now_ms)
                continue
            log.info(
                "%s: the offsets of %.100r were announced and did not come to the group's coordinator; "
                "closing the connection so that the client looks for it",
                context,
                transactional_id,
            )
            assert context.finish is not None
            context.finish()
        if self._announced:
            self._timers.set_after(_TICK, TICK_MS, self._tick)

    def _look_for_client(self, transactional_id: str, announced: _Announced, now_ms: int) -> None:
        count = self._let_newcomers_go(PATIENCE_MS)
        if count:
            log.info(
                "the offsets of %.100r were announced to another coordinator and did not come; closing %d "
                "connections without requests so that its client looks for the group's coordinator",
                transactional_id,
                count,
            )
            announced.let_go_count += 1
            announced.since_ms = now_ms
        if announced.let_go_count < LET_GO_MAX:
            self._announced[transactional_id] = announced

    def _waits_too_long(self, announced: _Announced, now_ms: int) -> bool:
        epoch = self._leader_epoch(announced.place)
        if epoch != announced.leader_epoch:
            announced.leader_epoch, announced.commit_came, announced.since_ms = epoch, False, now_ms
        return epoch >= 0 and not announced.commit_came and now_ms - announced.since_ms >= PATIENCE_MS

    def _is_watchable(self, transactional_id: str, announced: _Announced) -> bool:
        """Not when another broker coordinates the transaction, or it is over and its client knows the group's
        coordinator; one that does not may still wait.
        """
        machine = self._coordinator.machine_for(transactional_id)
        if isinstance(machine, ErrorCode):
            return False
        transaction = machine.transactions.get(transactional_id)
        if transaction is None:
            return False
        return transaction.state is TransactionState.ONGOING or not announced.commit_came
