"""The answers of the transaction coordinator as field mappings."""

from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from tidelog.transactions.transaction import Transaction


def producer(error: ErrorCode, transaction: Transaction | None = None) -> dict[str, object]:
    if transaction is None:
        return {"error_code": error, "producer_id": NO_PRODUCER_ID, "producer_epoch": NO_PRODUCER_EPOCH}
    return {
        "error_code": error,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.producer_epoch,
    }
