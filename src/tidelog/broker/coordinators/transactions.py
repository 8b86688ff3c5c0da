"""What a broker has to do with transactions: it coordinates some, and takes part in all that write to it."""

from dataclasses import dataclass

from tidelog.broker.coordinators.offset_commit_watch import OffsetCommitWatch
from tidelog.broker.coordinators.transaction_coordinator import TransactionCoordinator
from tidelog.broker.coordinators.transaction_markers import MarkerWriter
from tidelog.broker.coordinators.transaction_verification import TransactionVerification
from tidelog.broker.coordinators.transactional_writes import TransactionalWrites


@dataclass(frozen=True, slots=True)
class Transactions:
    """The parts that know of transactions."""

    #: of the transactional ids that belong to partitions led here
    coordinator: TransactionCoordinator
    #: asks the coordinators of transactions, here or on other brokers
    verification: TransactionVerification
    #: transactional batches on their way into partitions led here
    writes: TransactionalWrites
    #: the ends of transactions, into partitions led here
    marker_writer: MarkerWriter
    #: producers that announced offsets to a coordinator here
    offset_commits: OffsetCommitWatch
