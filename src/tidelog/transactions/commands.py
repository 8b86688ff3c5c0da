"""What can be asked of the transaction machine, and what it sends out.

`token` names the request whose answer the machine gives with `Reply(token, …)`. Producer ids come from
outside: `TransactionMachine.needs_producer_id` says whether a command needs one, and it is then given as
`spare_producer_id`.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition

NO_TIMEOUT_MS = 2**31 - 1
"""The stored timeout of transactions that are never aborted for their age (two-phase commit, as in Kafka)."""


@dataclass(frozen=True, slots=True)
class InitProducerId:
    """`producer_id` and `producer_epoch` are those of a producer that recovers (KIP-360), else -1.

    With `two_phase` the transactions have no timeout (KIP-939), and `timeout_ms` means nothing.
    """

    token: int
    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    spare_producer_id: int | None = None
    two_phase: bool = False

    @property
    def stored_timeout_ms(self) -> int:
        return NO_TIMEOUT_MS if self.two_phase else self.timeout_ms


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """AddPartitionsToTxn, AddOffsetsToTxn, and the implicit adding of transactions v2."""

    token: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    client_version: int = 0


@dataclass(frozen=True, slots=True)
class EndTransaction:
    token: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    client_version: int = 0
    spare_producer_id: int | None = None


@dataclass(frozen=True, slots=True)
class MarkersWritten:
    """What the partitions' leaders answered to a `MarkersToWrite` of the same producer and epoch."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    results: Mapping[TopicPartition, ErrorCode]


@dataclass(frozen=True, slots=True)
class AbortTimedOut:
    """The tick that looks for transactions that took too long."""


@dataclass(frozen=True, slots=True)
class ExpireTransactionalIds:
    """The tick that forgets ids which nobody used for long."""


@dataclass(frozen=True, slots=True)
class TimerFired:
    key: Hashable


Command = (
    InitProducerId
    | AddPartitions
    | EndTransaction
    | MarkersWritten
    | AbortTimedOut
    | ExpireTransactionalIds
    | TimerFired
)


@dataclass(frozen=True, slots=True)
class MarkersToWrite:
    """The message of a `Send`: write the end of a transaction to these partitions, and tell us
    (`MarkersWritten`). It may be lost or come twice; the machine sends again until all have answered.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    committed: bool
    partitions: frozenset[TopicPartition]
    transaction_version: int
