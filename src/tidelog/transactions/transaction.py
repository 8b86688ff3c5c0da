"""One transactional id: its producer, its transaction, and the steps from one state to the next.

A `Transaction` is a value. Each step returns the next one, which becomes the state once its record is in the
log; nothing here changes in place.
"""

from dataclasses import dataclass, replace

from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP, TopicPartition
from tidelog.transactions.states import IDLE, PREPARED, TRANSITIONS, TransactionState

EPOCH_MAX = 2**15 - 1
TRANSACTIONS_V2 = 2
NO_PARTITIONS: frozenset[TopicPartition] = frozenset()


def is_epoch_exhausted(producer_epoch: int) -> bool:
    """No producer gets the largest epoch, so that whoever has one can always be fenced."""
    return producer_epoch >= EPOCH_MAX - 1


@dataclass(frozen=True, slots=True)
class Transaction:
    """The newest record of one transactional id."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition]
    start_ms: int
    update_ms: int
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    """Takes over when the transaction is complete, where the epochs of the current one are used up."""
    client_version: int = 0
    """The transaction.version that the producer of this transaction speaks."""
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    """The epoch before a bump that the producer asked for (KIP-360); not stored, as in Kafka."""

    def __repr__(self) -> str:
        return (
            f"<Transaction {self.transactional_id} {self.state} producer={self.producer_id} "
            f"epoch={self.producer_epoch} partitions={len(self.partitions)}>"
        )

    @property
    def is_prepared(self) -> bool:
        return self.state in PREPARED

    @property
    def is_idle(self) -> bool:
        return self.state in IDLE

    @property
    def is_epoch_exhausted(self) -> bool:
        return is_epoch_exhausted(self.producer_epoch)

    @property
    def bumps_epochs(self) -> bool:
        """Whether the record was made for a producer whose every transaction has an epoch of its own."""
        return self.client_version >= TRANSACTIONS_V2

    def stored(self) -> "Transaction":
        """As a replay of the log would know it."""
        return replace(self, last_producer_epoch=NO_PRODUCER_EPOCH)

    def _moved_to(self, state: TransactionState, now_ms: int, **changes: object) -> "Transaction":
        assert (self.state, state) in TRANSITIONS, f"{self!r} cannot become {state}"
        moved = replace(self, state=state, update_ms=now_ms, **changes)  # type: ignore[arg-type]
        assert 0 <= moved.producer_epoch <= EPOCH_MAX and moved.producer_id >= 0
        return moved

    # ------------------------------------------------------------ InitProducerId

    def with_bumped_epoch(
        self, timeout_ms: int, expected_epoch: int | None, now_ms: int
    ) -> "Transaction | ErrorCode":
        """The id for its next producer, or for the same one that recovers (`expected_epoch`, KIP-360)."""
        epoch, last_epoch = self.producer_epoch + 1, NO_PRODUCER_EPOCH
        if expected_epoch is not None:
            if expected_epoch == self.producer_epoch:
                last_epoch = self.producer_epoch
            elif expected_epoch == self.last_producer_epoch:
                # The answer to the bump was lost: give it again.
                epoch, last_epoch = self.producer_epoch, self.last_producer_epoch
            else:
                return ErrorCode.PRODUCER_FENCED
        if epoch >= EPOCH_MAX:
            return ErrorCode.PRODUCER_FENCED
        return self._initialized(self.producer_id, epoch, last_epoch, timeout_ms, now_ms)

    def with_new_producer_id(
        self, producer_id: int, timeout_ms: int, expected_epoch: int | None, now_ms: int
    ) -> "Transaction":
        """The epochs are used up: a new producer id starts at epoch 0."""
        last_epoch = NO_PRODUCER_EPOCH if expected_epoch is None else self.producer_epoch
        return self._initialized(producer_id, 0, last_epoch, timeout_ms, now_ms)

    def _initialized(
        self, producer_id: int, epoch: int, last_epoch: int, timeout_ms: int, now_ms: int
    ) -> "Transaction":
        return self._moved_to(
            TransactionState.EMPTY,
            now_ms,
            producer_id=producer_id,
            previous_producer_id=(
                self.previous_producer_id if producer_id == self.producer_id else self.producer_id
            ),
            next_producer_id=NO_PRODUCER_ID,
            producer_epoch=epoch,
            last_producer_epoch=last_epoch,
            timeout_ms=timeout_ms,
            partitions=NO_PARTITIONS,
            start_ms=NO_TIMESTAMP,
            client_version=0,
        )

    # ------------------------------------------------------------ the transaction

    def with_partitions(
        self, partitions: frozenset[TopicPartition], client_version: int, now_ms: int
    ) -> "Transaction":
        return self._moved_to(
            TransactionState.ONGOING,
            now_ms,
            partitions=self.partitions | partitions,
            start_ms=self.start_ms if self.state is TransactionState.ONGOING else now_ms,
            client_version=client_version,
        )

    def prepared(
        self, *, committed: bool, client_version: int, next_producer_id: int, now_ms: int
    ) -> "Transaction":
        """The outcome is decided; with transactions v2 the markers carry the next epoch."""
        state = TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT
        bumps = client_version >= TRANSACTIONS_V2
        return self._moved_to(
            state,
            now_ms,
            producer_epoch=self.producer_epoch + 1 if bumps else self.producer_epoch,
            last_producer_epoch=self.producer_epoch if bumps else self.last_producer_epoch,
            next_producer_id=next_producer_id,
            start_ms=self.start_ms if self.state is TransactionState.ONGOING else now_ms,
            client_version=client_version,
        )

    def fenced(self, client_version: int, now_ms: int, *, recovers: bool = False) -> "Transaction":
        """Abort under the next epoch, so that the producer that opened it cannot go on.

        One that `recovers` asked for this itself (KIP-360): it comes again with the epoch that it knows, and
        gets the next one.
        """
        return self._moved_to(
            TransactionState.PREPARE_ABORT,
            now_ms,
            producer_epoch=self.producer_epoch + 1,
            last_producer_epoch=self.producer_epoch if recovers else NO_PRODUCER_EPOCH,
            next_producer_id=NO_PRODUCER_ID,
            client_version=client_version,
        )

    def completed(self, now_ms: int) -> "Transaction":
        """Every partition has its marker."""
        committed = self.state is TransactionState.PREPARE_COMMIT
        overflowed = self.bumps_epochs and self.next_producer_id != NO_PRODUCER_ID
        return self._moved_to(
            TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT,
            now_ms,
            producer_id=self.next_producer_id if overflowed else self.producer_id,
            producer_epoch=0 if overflowed else self.producer_epoch,
            previous_producer_id=self.producer_id if overflowed else self.previous_producer_id,
            next_producer_id=NO_PRODUCER_ID,
            partitions=NO_PARTITIONS,
        )


def new_transaction(
    transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int, last_epoch: int = NO_PRODUCER_EPOCH
) -> Transaction:
    """The first record of a transactional id."""
    return Transaction(
        transactional_id,
        producer_id,
        0,
        timeout_ms,
        TransactionState.EMPTY,
        NO_PARTITIONS,
        NO_TIMESTAMP,
        now_ms,
        last_producer_epoch=last_epoch,
    )
