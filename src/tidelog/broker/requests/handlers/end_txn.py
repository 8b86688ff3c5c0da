"""EndTxn (key 26), versions 0 to 5: commit or abort a producer's transaction.

The answer comes when the outcome is durable; the markers follow. A retry is answered like the first time.
PRODUCER_FENCED is for versions from 2 on. Version 5 is transactions v2 (KIP-890): the end bumps the epoch,
and the answer names the producer id and epoch to go on with.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.broker.requests.request import Request
from tidelog.broker.requests.transaction_answers import for_version
from tidelog.broker.runtime.deferred import Deferred
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.model.errors import ErrorCode
from tidelog.transactions.commands import EndTransaction

if TYPE_CHECKING:
    from tidelog.broker.coordinators.transactions import Transactions

FENCED_SINCE_VERSION = 2
TRANSACTIONS_V2_SINCE_VERSION = 5


@dataclass(frozen=True, slots=True)
class Handler:
    """Ask the coordinator to end the transaction."""

    transactions: "Deferred[Transactions]"

    def handle(self, request: Request) -> Mapping[str, object] | DelayedAnswer:
        body = request.body
        client_version = 2 if request.version >= TRANSACTIONS_V2_SINCE_VERSION else 0
        delayed = DelayedAnswer()
        self.transactions.get().offset_commits.ended(body.transactional_id)

        def answer(response: Mapping[str, object]) -> None:
            error = response["error_code"]
            assert isinstance(error, ErrorCode)
            shown = for_version(error, request.version, fenced_since=FENCED_SINCE_VERSION)
            delayed.answer({**response, "error_code": shown})

        error = self.transactions.get().coordinator.ask(
            body.transactional_id,
            lambda token: EndTransaction(
                token,
                body.transactional_id,
                body.producer_id,
                body.producer_epoch,
                body.committed,
                client_version,
            ),
            answer,
        )
        return {"error_code": error, "producer_id": -1, "producer_epoch": -1} if error else delayed
