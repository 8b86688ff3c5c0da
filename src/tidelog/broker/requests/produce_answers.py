"""How a log's refusal of a batch is told to its producer."""

from tidelog.broker.replicas.partition import Partition
from tidelog.model.errors import ErrorCode, Refused
from tidelog.protocol.produce import PartitionProduced
from tidelog.records.validation import unframed

#: refusals of a log that do not tell where it starts
START_UNKNOWN = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


def refused_batch(partition: Partition, refused: Refused, records: memoryview | None) -> PartitionProduced:
    """Why a log did not take a batch, with its start where the batch and the disk can be trusted."""
    unknown_start = refused.code in START_UNKNOWN or (records is not None and unframed(records) is not None)
    return PartitionProduced(
        partition.index,
        refused.code,
        log_start_offset=-1 if unknown_start else partition.log.log_start_offset,
        record_errors=refused.record_errors,
        error_message=refused.message,
    )
