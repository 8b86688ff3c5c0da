"""InitProducerId (key 22), versions 0 to 6: a producer id, for an idempotent or a transactional producer.

Without a transactional id every request gets a new producer id with epoch 0, as in Kafka, also when the
client names the one it had (KIP-360). Ids come from blocks that are durable before the first id of a block
is handed out.

With one, the coordinator bumps the epoch, which fences whoever used the id before, and aborts what that one
left open (the client is told CONCURRENT_TRANSACTIONS and asks again). Since version 3 a producer that
recovers from an error names its id and epoch. PRODUCER_FENCED is for versions from 4 on; 5 may be answered
TRANSACTION_ABORTABLE.

Version 6 may ask for transactions without a timeout (KIP-939), which `transaction.two.phase.commit.enable`
allows, else TRANSACTIONAL_ID_AUTHORIZATION_FAILED. To keep the open transaction over an InitProducerId is not
supported (UNSUPPORTED_VERSION): who remembers id and epoch can end it with EndTxn.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.broker.metadata.producer_ids import ProducerIds
from tidelog.broker.requests.group_answers import milliseconds
from tidelog.broker.requests.request import Request
from tidelog.broker.requests.transaction_answers import for_version
from tidelog.broker.runtime.deferred import Deferred
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from tidelog.transactions.commands import InitProducerId

if TYPE_CHECKING:
    from tidelog.broker.coordinators.transactions import Transactions

FENCED_SINCE_VERSION = 4


@dataclass(frozen=True, slots=True)
class Handler:
    """Hand out a producer id and epoch."""

    producer_ids: ProducerIds
    transactions: "Deferred[Transactions]"

    def handle(self, request: Request) -> Mapping[str, object] | DelayedAnswer:
        body = request.body
        producer_id = getattr(body, "producer_id", NO_PRODUCER_ID)
        producer_epoch = getattr(body, "producer_epoch", NO_PRODUCER_EPOCH)
        if (producer_id == NO_PRODUCER_ID) != (producer_epoch == NO_PRODUCER_EPOCH):
            return _refused(ErrorCode.INVALID_REQUEST)
        if getattr(body, "keep_prepared_txn", False):
            return _refused(ErrorCode.UNSUPPORTED_VERSION)
        two_phase = getattr(body, "enable2_pc", False)
        if two_phase and body.transactional_id is None:
            return _refused(ErrorCode.INVALID_REQUEST)
        delayed = DelayedAnswer()
        if body.transactional_id is None:
            self._take_producer_id(delayed)
            return delayed

        def answer(response: Mapping[str, object]) -> None:
            error = response["error_code"]
            assert isinstance(error, ErrorCode)
            shown = for_version(error, request.version, fenced_since=FENCED_SINCE_VERSION)
            delayed.answer({**response, "error_code": shown})

        error = self.transactions.get().coordinator.ask(
            body.transactional_id,
            lambda token: InitProducerId(
                token,
                body.transactional_id,
                milliseconds(body.transaction_timeout),
                producer_id,
                producer_epoch,
                two_phase=two_phase,
            ),
            answer,
        )
        return _refused(error) if error else delayed

    def _take_producer_id(self, delayed: DelayedAnswer) -> None:
        def give(producer_id: int | None) -> None:
            if producer_id is None:
                delayed.answer(_refused(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            else:
                delayed.answer({"producer_id": producer_id, "producer_epoch": 0})

        self.producer_ids.take(give)


def _refused(error: ErrorCode) -> Mapping[str, object]:
    return {"error_code": error, "producer_id": NO_PRODUCER_ID, "producer_epoch": NO_PRODUCER_EPOCH}
