"""May this EndTxn end the transaction now, is it a retry, or what is wrong with it?

Producers before transactions v2 end a transaction under the epoch they keep, so that a retry is told from the
next call by the state alone. With transactions v2 every end bumps the epoch: a retry comes with the epoch
before the current one, or, where the epochs were used up, with the producer id before the current one.

With transactions v2 a producer may be ahead of the stored state: it has its next epoch, or its next producer
id, from the answer to EndTxn, while the markers of that end are still being written. So nothing is said of
who asks before the step under way is done (CONCURRENT_TRANSACTIONS), as in Kafka.
"""

from tidelog.model.errors import ErrorCode
from tidelog.transactions.commands import EndTransaction
from tidelog.transactions.states import TransactionState
from tidelog.transactions.transaction import EPOCH_MAX, TRANSACTIONS_V2, Transaction

_COMPLETE = {TransactionState.COMPLETE_COMMIT: True, TransactionState.COMPLETE_ABORT: False}


def end_verdict(
    command: EndTransaction, transaction: Transaction | None, in_transition: bool
) -> ErrorCode | None:
    """None: end it. NONE: it was ended so before. Anything else is the error to answer."""
    if transaction is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if command.client_version >= TRANSACTIONS_V2:
        return _verdict_v2(command, transaction, in_transition)
    return _verdict_v1(command, transaction, in_transition)


def _verdict_v1(command: EndTransaction, transaction: Transaction, in_transition: bool) -> ErrorCode | None:
    if transaction.producer_id != command.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if transaction.producer_epoch != command.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    if in_transition or transaction.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if transaction.state is TransactionState.ONGOING:
        return None
    if _COMPLETE.get(transaction.state) is command.committed:
        return ErrorCode.NONE
    return ErrorCode.INVALID_TXN_STATE


def _verdict_v2(command: EndTransaction, transaction: Transaction, in_transition: bool) -> ErrorCode | None:
    if in_transition or transaction.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    is_overflow_retry = (
        transaction.bumps_epochs
        and transaction.state in _COMPLETE
        and transaction.previous_producer_id == command.producer_id
        and command.producer_epoch == EPOCH_MAX - 1
        and transaction.producer_epoch == 0
    )
    if transaction.producer_id != command.producer_id and not is_overflow_retry:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    is_retry = is_overflow_retry or (
        transaction.bumps_epochs
        and transaction.state is not TransactionState.ONGOING
        and transaction.producer_epoch == command.producer_epoch + 1
    )
    if not is_retry and transaction.producer_epoch != command.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    if is_retry:
        is_same = _COMPLETE.get(transaction.state) is command.committed
        return ErrorCode.NONE if is_same else ErrorCode.INVALID_TXN_STATE
    if transaction.state is TransactionState.ONGOING or not command.committed:
        return None
    return ErrorCode.INVALID_TXN_STATE
