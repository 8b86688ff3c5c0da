"""What may happen to a transaction while its coordinator is asked about it (KIP-890).

The coordinator's answer takes its time. A marker that is written to the partition meanwhile may end the very
transaction that was asked about, and there may be another leader in between; a write on the word of the
answer would then open a transaction that nobody ends. So every question has a guard, which such a marker
breaks.

Not every marker does. The markers of a producer's last transaction may arrive while its next one asks, since
the producer goes on when the outcome is stored. With transactions v2 they carry the epoch of the next
transaction; those that end it carry a higher one.
"""

from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import TopicPartition

TRANSACTIONS_V2 = 2


class Guard:
    """Stands while a question is open; knows in which epochs it was asked."""

    __slots__ = ("broken", "leader_epoch", "producer_epoch")

    def __init__(self, producer_epoch: int, leader_epoch: int | None) -> None:
        self.producer_epoch = producer_epoch
        self.leader_epoch = leader_epoch
        self.broken = False


class Guards:
    """The guards of all open questions, by partition and producer id."""

    def __init__(self) -> None:
        self._guards: dict[tuple[TopicPartition, int], list[Guard]] = {}

    def __len__(self) -> int:
        return len(self._guards)

    def set(
        self, place: TopicPartition, producer_id: int, producer_epoch: int, leader_epoch: int | None
    ) -> Guard:
        """A question is asked; `leader_epoch` is None where the partition is not led here."""
        guard = Guard(producer_epoch, leader_epoch)
        self._guards.setdefault((place, producer_id), []).append(guard)
        return guard

    def end(
        self,
        place: TopicPartition,
        producer_id: int,
        guard: Guard,
        error: ErrorCode,
        leader_epoch: int | None,
    ) -> ErrorCode:
        """The question was answered with `error`: what that is worth now."""
        guards = self._guards[place, producer_id]
        guards.remove(guard)
        if not guards:
            del self._guards[place, producer_id]
        if error:
            return error
        if leader_epoch is None or leader_epoch != guard.leader_epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.INVALID_TXN_STATE if guard.broken else ErrorCode.NONE

    def transaction_ended(
        self, place: TopicPartition, producer_id: int, marker_epoch: int, transaction_version: int
    ) -> None:
        """A marker of the producer is in the partition's log."""
        for guard in self._guards.get((place, producer_id), ()):
            if marker_epoch > guard.producer_epoch or (
                marker_epoch == guard.producer_epoch and transaction_version < TRANSACTIONS_V2
            ):
                guard.broken = True
