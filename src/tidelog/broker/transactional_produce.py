"""May these transactional batches be written? (KIP-890)

The first batch that a producer's transaction writes to a partition needs the coordinator's word: that the
partition was added to the transaction, or, from a producer of transactions v2 (Produce 12 on), that it is
added now. Once the transaction is open in the partition's log, further batches need nothing more.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.broker.transaction_verification import Asked, Results
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import TopicPartition
from tidelog.protocol.produce import ProduceRequest
from tidelog.records.batch import ATTRIBUTES_POSITION, HEADER_SIZE, TRANSACTIONAL_BIT, read_header

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

ABORTABLE_SINCE_VERSION = 11
TRANSACTIONS_V2_SINCE_VERSION = 12
_LAST_ATTRIBUTES_BYTE = ATTRIBUTES_POSITION + 1
_RETRIABLE = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_COORDINATOR,
    }
)


def is_transactional(records: memoryview | None) -> bool:
    """Whether a produced batch belongs to a transaction, by a look at one byte of its header."""
    return (
        records is not None
        and len(records) >= HEADER_SIZE
        and records[_LAST_ATTRIBUTES_BYTE] & TRANSACTIONAL_BIT != 0
    )


def has_transactional_records(request: ProduceRequest) -> bool:
    return any(is_transactional(records) for _, partitions in request.topics for _, records in partitions)


def permit(
    broker: "Broker", request: ProduceRequest, version: int, permitted: Callable[[Results], None]
) -> None:
    """Call `permitted`, perhaps at once, with the partitions whose batches must not be written, and why."""
    assert request.transactional_id is not None
    client_version = 2 if version >= TRANSACTIONS_V2_SINCE_VERSION else 0
    refused: dict[TopicPartition, ErrorCode] = {}
    unverified: dict[TopicPartition, None] = {}
    producers: set[tuple[int, int]] = set()
    verification = broker.transactions.verification
    for topic, partitions in request.topics:
        for index, records in partitions:
            partition, _ = broker.find_partition(topic, index)
            if partition is None or records is None or not is_transactional(records):
                continue
            header = read_header(records)
            producers.add((header.producer_id, header.producer_epoch))
            place = TopicPartition(partition.topic, index)
            known = partition.log.producers
            if known.has_open_transaction(
                header.producer_id, header.producer_epoch
            ) and not verification.is_asking(place, header.producer_id):
                continue
            if client_version >= 2 and header.base_sequence != 0 and not known.knows(header.producer_id):
                # Every transaction of theirs starts a new epoch at sequence 0: something before it is lost.
                refused[place] = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            else:
                unverified[place] = None
    if len(producers) > 1:
        permitted(dict.fromkeys([*unverified, *refused], ErrorCode.INVALID_PRODUCER_ID_MAPPING))
        return
    if not unverified:
        permitted(refused)
        return

    def answer(results: Results) -> None:
        errors = {place: _shown(error, version) for place, error in results.items() if error}
        permitted({**errors, **refused})

    ((producer_id, producer_epoch),) = producers
    verification.verify_or_add(
        Asked(request.transactional_id, producer_id, producer_epoch, frozenset(unverified), client_version),
        answer,
    )


def _shown(error: ErrorCode, version: int) -> ErrorCode:
    """The coordinator's verdict in words that producers of this version act on rightly."""
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_SINCE_VERSION:
        return ErrorCode.INVALID_TXN_STATE
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error in _RETRIABLE or (
        error is ErrorCode.CONCURRENT_TRANSACTIONS and version < TRANSACTIONS_V2_SINCE_VERSION
    ):
        # Retried by every client, and without a metadata refresh.
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return error
