"""What members say of records they acquired: whether that can be, and what becomes of the records.

`malformed` is about the request alone; `fault` holds it against the runs, before anything changes.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tidelog.model.errors import ErrorCode, Refused
from tidelog.shares.commands import AcknowledgementBatch
from tidelog.shares.runs import Runs
from tidelog.shares.states import AcknowledgeType, RecordState


class Said(NamedTuple):
    """One type for offsets side by side."""

    first: int
    last: int
    type: AcknowledgeType


def malformed(batches: Iterable[AcknowledgementBatch], *, is_renew: bool) -> Refused | None:
    """What is wrong with the batches of one partition in a request; renewals must be announced."""
    previous_last = -1
    for batch in batches:
        if not previous_last < batch.first_offset <= batch.last_offset:
            return Refused(ErrorCode.INVALID_REQUEST, "The batches are not in order, or overlap.")
        if len(batch.types) not in (1, batch.last_offset - batch.first_offset + 1):
            return Refused(ErrorCode.INVALID_REQUEST, "There must be one type, or one for each offset.")
        if any(not AcknowledgeType.GAP <= kind <= AcknowledgeType.RENEW for kind in batch.types):
            return Refused(ErrorCode.INVALID_REQUEST, "An acknowledge type is unknown.")
        if AcknowledgeType.RENEW in batch.types and not is_renew:
            return Refused(ErrorCode.INVALID_REQUEST, "Only a request with IsRenewAck may renew.")
        previous_last = batch.last_offset
    return None


def said(batch: AcknowledgementBatch) -> Iterator[Said]:
    """A batch as offsets side by side of one type."""
    if len(batch.types) == 1:
        yield Said(batch.first_offset, batch.last_offset, AcknowledgeType(batch.types[0]))
        return
    first = batch.first_offset
    for offset, kind in enumerate(batch.types, batch.first_offset):
        if offset == batch.last_offset or batch.types[offset - batch.first_offset + 1] != kind:
            yield Said(first, offset, AcknowledgeType(kind))
            first = offset + 1


def fault(
    runs: Runs, member_id: str, batches: Iterable[AcknowledgementBatch], *, may_renew: bool
) -> Refused | None:
    """Why the member cannot say this of these records. What lies before the start is nobody's any more, and
    no fault.
    """
    for batch in batches:
        if batch.last_offset < runs.start:
            continue
        if runs.start >= runs.end:
            return Refused(ErrorCode.INVALID_RECORD_STATE, "No records are acquired.")
        if batch.last_offset >= runs.end:
            message = "The batch ends after the records that were acquired."
            return Refused(ErrorCode.INVALID_REQUEST, message)
        for run in runs.covering(max(batch.first_offset, runs.start), batch.last_offset):
            if run.state is not RecordState.ACQUIRED:
                message = f"The records at {run.first} are not acquired."
            elif run.member_id != member_id:
                message = f"The records at {run.first} are acquired by another member."
            elif run.target is not None:
                message = f"The records at {run.first} are being acknowledged already."
            else:
                continue
            return Refused(ErrorCode.INVALID_RECORD_STATE, message)
        if AcknowledgeType.RENEW in batch.types and not may_renew:
            message = "Renewing acquisition locks is not enabled for the group."
            return Refused(ErrorCode.INVALID_RECORD_STATE, message)
    return None
