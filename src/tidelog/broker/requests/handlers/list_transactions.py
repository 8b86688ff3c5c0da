"""ListTransactions (key 66), versions 0 to 2: the transactional ids this broker coordinates.

Filters narrow by state and producer id, from version 1 on by how long the transaction runs (KIP-994), from
version 2 on by a pattern of the whole transactional id (KIP-1152). Unknown states are named in the answer; a
pattern that is none gets INVALID_REGULAR_EXPRESSION. Patterns are compiled and matched away from the loop.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.deferred import Deferred
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.groups.topic_regex import InvalidRegex
from tidelog.model.errors import ErrorCode
from tidelog.model.ports import Clock
from tidelog.transactions.states import STATES_BY_NAME
from tidelog.transactions.transaction import Transaction

if TYPE_CHECKING:
    from tidelog.broker.coordinators.topic_expressions import Matched, TopicExpressions
    from tidelog.broker.coordinators.transactions import Transactions

Fields = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Handler:
    """Show what passes every filter."""

    clock: Clock
    transactions: "Deferred[Transactions]"
    topic_expressions: "Deferred[TopicExpressions]"

    def handle(self, request: Request) -> Fields | DelayedAnswer:
        body = request.body
        machines = self.transactions.get().coordinator.machines()
        if isinstance(machines, ErrorCode):
            return {"error_code": machines}
        longer_than_ms = getattr(body, "duration_filter", -1)
        now_ms = self.clock.now_ms()
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
        delayed = DelayedAnswer()
        self.topic_expressions.get().match(
            pattern, list(shown), lambda matched: delayed.answer(answer(matched))
        )
        return delayed


def _passes(transaction: Transaction, body: Any, longer_than_ms: int, now_ms: int) -> bool:
    if body.producer_id_filters and transaction.producer_id not in body.producer_id_filters:
        return False
    if body.state_filters and str(transaction.state) not in body.state_filters:
        return False
    return longer_than_ms < 0 or now_ms - transaction.start_ms > longer_than_ms
