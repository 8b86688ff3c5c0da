"""ListTransactions (key 66), versions 0 to 2: the transactional ids this broker coordinates.

Filters narrow by state and producer id, from version 1 on by how long the transaction runs (KIP-994), from
version 2 on by a pattern of the whole transactional id (KIP-1152). Unknown states are named in the answer; a
pattern that is none gets INVALID_REGULAR_EXPRESSION. Patterns are compiled and matched away from the loop.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidelog.broker.parking import Parked
from tidelog.groups.topic_regex import InvalidRegex
from tidelog.model.errors import ErrorCode
from tidelog.transactions.states import STATES_BY_NAME
from tidelog.transactions.transaction import Transaction

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.dispatch import Request
    from tidelog.broker.topic_expressions import Matched

Fields = Mapping[str, object]


def handle(broker: "Broker", request: "Request") -> Fields | Parked:
    """Show what passes every filter."""
    body = request.body
    machines = broker.transactions.machines()
    if isinstance(machines, ErrorCode):
        return {"error_code": machines}
    longer_than_ms = getattr(body, "duration_filter", -1)
    now_ms = broker.clock.now_ms()
    shown = {
        transaction.transactional_id: {
            "transactional_id": transaction.transactional_id,
            "producer_id": transaction.producer_id,
            "transaction_state": str(transaction.state),
        }
        for machine in machines
        for transaction in machine.transactions.values()
        if _passes(transaction, body, longer_than_ms, now_ms)
    }
    unknown = [name for name in body.state_filters if name not in STATES_BY_NAME]

    def answer(matched: "Matched") -> Fields:
        if isinstance(matched, InvalidRegex):
            return {"error_code": ErrorCode.INVALID_REGULAR_EXPRESSION}
        return {
            "error_code": ErrorCode.NONE,
            "unknown_state_filters": unknown,
            "transaction_states": [shown[transactional_id] for transactional_id in matched],
        }

    pattern = getattr(body, "transactional_id_pattern", None)
    if not pattern:
        return answer(tuple(shown))
    parked = Parked()
    broker.topic_expressions.match(pattern, list(shown), lambda matched: parked.answer(answer(matched)))
    return parked


def _passes(transaction: Transaction, body: Any, longer_than_ms: int, now_ms: int) -> bool:
    if body.producer_id_filters and transaction.producer_id not in body.producer_id_filters:
        return False
    if body.state_filters and str(transaction.state) not in body.state_filters:
        return False
    return longer_than_ms < 0 or now_ms - transaction.start_ms > longer_than_ms
