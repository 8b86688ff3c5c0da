"""Produce requests with transactional batches (KIP-890).

The first batch that a producer's transaction writes to a partition needs the coordinator's word: that the
partition was added to the transaction, or, from a producer of transactions v2 (Produce 12 on), that it is
added now. Once the transaction is open in the partition's log, further batches need nothing more.
`transactional_writes` asks, and keeps the batches of a producer in order meanwhile.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tidelog.broker.replicas.replicas import Replicas
from tidelog.broker.runtime.deferred import Deferred
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import TopicPartition
from tidelog.protocol.produce import ProduceRequest, decode_request
from tidelog.records.batch import is_transactional, read_header
from tidelog.records.validation import unframed

if TYPE_CHECKING:
    from tidelog.broker.coordinators.transactions import Transactions

ABORTABLE_SINCE_VERSION = 11
TRANSACTIONS_V2_SINCE_VERSION = 12
_RETRIABLE = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_COORDINATOR,
    }
)

Results = Mapping[TopicPartition, ErrorCode]
Answer = bytes | list[bytes] | DelayedAnswer | None
AppendAll = Callable[[memoryview, ProduceRequest, Results], Answer]


def has_transactional_records(request: ProduceRequest) -> bool:
    for _, partitions in request.topics:
        for _, records in partitions:
            if is_transactional(records):
                return True
    return False


class TransactionalProduce(DelayedAnswer):
    """A Produce request until its batches are appended; its answer, if they have to wait for that."""

    __slots__ = ("_append_all", "_frame", "_request", "outcome", "waits")

    def __init__(self, append_all: AppendAll, frame: memoryview, request: ProduceRequest) -> None:
        super().__init__()
        self._append_all: AppendAll | None = append_all
        self._frame = frame
        self._request = request
        self.waits = True
        #: what came of it, if it did not have to wait
        self.outcome: Answer = None

    def append(self, refused: Results) -> None:
        """Append what is not refused."""
        if self._append_all is None:
            return  # the connection is gone: the producer sends the batches again over another
        outcome = self._append_all(self._frame, self._request, refused)
        if self._deliver is None:
            self.waits = False
            self.outcome = outcome
        elif isinstance(outcome, DelayedAnswer):
            self.outcome = outcome
            outcome.deliver_to(self.answer)
        else:
            self.answer(outcome)

    def keep(self, position: int, version: int) -> None:
        """Own the request: the bytes that it came in are the connection's, and are used again."""
        self._frame = memoryview(bytearray(self._frame))
        self._request = decode_request(self._frame, position, version)

    def abandon(self) -> None:
        super().abandon()
        self._append_all = None
        self._frame = memoryview(b"")
        if isinstance(self.outcome, DelayedAnswer):
            self.outcome.abandon()


def submit(
    replicas: Replicas,
    transactions: "Deferred[Transactions]",
    request: ProduceRequest,
    version: int,
    append: Callable[[Results], None],
) -> None:
    """Have `append` called, perhaps at once, with the partitions whose batches must not be written."""
    assert request.transactional_id is not None
    producers: set[tuple[int, int]] = set()
    sequences: dict[TopicPartition, int] = {}
    for topic, partitions in request.topics:
        for index, records in partitions:
            partition, _ = replicas.find(topic, index)
            if partition is None or records is None or not is_transactional(records):
                continue
            if unframed(records) is not None:
                continue  # refused before anybody is asked
            header = read_header(records)
            if header.producer_id < 0:
                continue  # refused for its contents
            producers.add((header.producer_id, header.producer_epoch))
            sequences.setdefault(TopicPartition(partition.topic, index), header.base_sequence)
    if not producers:
        append({})
        return
    if len(producers) != 1:
        append(dict.fromkeys(sequences, ErrorCode.INVALID_PRODUCER_ID_MAPPING))
        return

    def append_shown(refused: Results) -> None:
        append({place: _shown(error, version) for place, error in refused.items()} if refused else refused)

    # Who writes no transactions starts without all that knows of them.
    from tidelog.broker.coordinators.transactional_writes import ProducerKey, Write

    ((producer_id, producer_epoch),) = producers
    transactions.get().writes.submit(
        Write(
            ProducerKey(request.transactional_id, producer_id, producer_epoch),
            sequences,
            2 if version >= TRANSACTIONS_V2_SINCE_VERSION else 0,
            append_shown,
        )
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
