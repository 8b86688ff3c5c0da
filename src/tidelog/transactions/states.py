"""The states of a transactional id and the ways between them, as a table.

The table is what the machine obeys (`Transaction._moved_to` refuses anything else) and what `mermaid` draws
for docs/transactions.md. The numbers are those stored in `__transaction_state`.

Dead and PrepareEpochFence are Kafka's names for moments between two records: an id whose tombstone is on its
way, and a transaction whose producer is being fenced. They are never stored. Fencing is one step here, from
Ongoing to PrepareAbort under the next epoch.
"""

from enum import IntEnum


class TransactionState(IntEnum):
    """Kafka's states; `name_in_kafka` is what ListTransactions and DescribeTransactions show."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def name_in_kafka(self) -> str:
        return "".join(word.capitalize() for word in self.name.split("_"))

    def __str__(self) -> str:
        return self.name_in_kafka


_EMPTY = TransactionState.EMPTY
_ONGOING = TransactionState.ONGOING
_PREPARE_COMMIT = TransactionState.PREPARE_COMMIT
_PREPARE_ABORT = TransactionState.PREPARE_ABORT
_COMPLETE_COMMIT = TransactionState.COMPLETE_COMMIT
_COMPLETE_ABORT = TransactionState.COMPLETE_ABORT
_DEAD = TransactionState.DEAD

PREPARED = frozenset({_PREPARE_COMMIT, _PREPARE_ABORT})
"""The outcome is decided and durable; markers are being written."""
IDLE = frozenset({_EMPTY, _COMPLETE_COMMIT, _COMPLETE_ABORT})
"""Nothing is open: the id may be given to a new producer, start a transaction, or expire."""

STATES_BY_NAME = {state.name_in_kafka: state for state in TransactionState}

TRANSITIONS: dict[tuple[TransactionState, TransactionState], str] = {
    (_EMPTY, _EMPTY): "InitProducerId again",
    (_EMPTY, _ONGOING): "the first partition is added",
    (_ONGOING, _ONGOING): "another partition is added",
    (_ONGOING, _PREPARE_COMMIT): "EndTxn commits",
    (_ONGOING, _PREPARE_ABORT): "EndTxn aborts, the time is up, or a new producer fences this one",
    (_PREPARE_COMMIT, _COMPLETE_COMMIT): "every partition has its marker",
    (_PREPARE_ABORT, _COMPLETE_ABORT): "every partition has its marker",
    (_COMPLETE_COMMIT, _ONGOING): "the first partition of the next transaction is added",
    (_COMPLETE_ABORT, _ONGOING): "the first partition of the next transaction is added",
    (_COMPLETE_COMMIT, _EMPTY): "InitProducerId",
    (_COMPLETE_ABORT, _EMPTY): "InitProducerId",
    (_EMPTY, _PREPARE_ABORT): "EndTxn aborts with nothing added (transactions v2)",
    (_COMPLETE_COMMIT, _PREPARE_ABORT): "EndTxn aborts with nothing added (transactions v2)",
    (_COMPLETE_ABORT, _PREPARE_ABORT): "EndTxn aborts with nothing added (transactions v2)",
    (_EMPTY, _DEAD): "unused for transactional.id.expiration.ms",
    (_COMPLETE_COMMIT, _DEAD): "unused for transactional.id.expiration.ms",
    (_COMPLETE_ABORT, _DEAD): "unused for transactional.id.expiration.ms",
}


def mermaid() -> str:
    """Draw the table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {_EMPTY}: InitProducerId"]
    lines += [f"    {source} --> {target}: {reason}" for (source, target), reason in TRANSITIONS.items()]
    return "\n".join([*lines, f"    {_DEAD} --> [*]"])
