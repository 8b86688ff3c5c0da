"""InitProducerId (key 22), versions 0 to 5: a producer id for an idempotent producer.

Every request without a transactional id gets a new producer id with epoch 0, as in Kafka, also when the
client names the one it had (KIP-360). Ids come from blocks that are durable before the first id of a block
is handed out.

Not supported: transactional ids (answered UNSUPPORTED_VERSION, which clients report at once).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidelog.broker.parking import Parked
from tidelog.model.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.dispatch import Request


def handle(broker: "Broker", request: "Request") -> Mapping[str, object] | Parked:
    """Hand out a producer id, after fetching a new block where the last is used up."""
    if request.body.transactional_id is not None:
        return {"error_code": ErrorCode.UNSUPPORTED_VERSION, "producer_id": -1, "producer_epoch": -1}
    parked = Parked()

    def give(producer_id: int | None) -> None:
        if producer_id is None:
            parked.answer(
                {"error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE, "producer_id": -1, "producer_epoch": -1}
            )
        else:
            parked.answer({"producer_id": producer_id, "producer_epoch": 0})

    broker.producer_ids.take(give)
    return parked
