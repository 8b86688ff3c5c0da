"""What is wrong with a request to a transaction coordinator, whoever coordinates the transactional id.

As in Kafka this is looked at first: a broker that does not coordinate the id says what is wrong with the
request rather than NOT_COORDINATOR, after which a client would look for another broker and ask in vain.
"""

from tidelog.model.effects import Reply
from tidelog.model.errors import ErrorCode
from tidelog.transactions.commands import AddPartitions, Command, EndTransaction, InitProducerId
from tidelog.transactions.responses import producer
from tidelog.transactions.settings import TransactionSettings


def refusal(command: Command, settings: TransactionSettings) -> Reply | None:
    """The answer to a request whose arguments can not be taken; None if they can."""
    match command:
        case AddPartitions() if not command.transactional_id:
            return Reply(command.token, {"error_code": ErrorCode.INVALID_REQUEST})
        case EndTransaction() if not command.transactional_id:
            return Reply(command.token, producer(ErrorCode.INVALID_REQUEST))
        case InitProducerId():
            error = _init_fault(command, settings)
            if error is not ErrorCode.NONE:
                return Reply(command.token, producer(error))
    return None


def _init_fault(command: InitProducerId, settings: TransactionSettings) -> ErrorCode:
    if not command.transactional_id:
        return ErrorCode.INVALID_REQUEST
    if command.two_phase:
        if not settings.two_phase_commit_enable:
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif not 0 < command.timeout_ms <= settings.transaction_max_timeout_ms:
        return ErrorCode.INVALID_TRANSACTION_TIMEOUT
    return ErrorCode.NONE
