"""What the transaction handlers share: error codes that older clients understand."""

from tidelog.model.errors import ErrorCode


def for_version(error: ErrorCode, version: int, *, fenced_since: int) -> ErrorCode:
    """PRODUCER_FENCED came with a later version of each API (KIP-588); older clients know another code."""
    if error is ErrorCode.PRODUCER_FENCED and version < fenced_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error
