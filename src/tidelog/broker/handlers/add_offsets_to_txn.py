"""AddOffsetsToTxn (key 25), versions 0 to 4: a group's offsets will be committed in this transaction.

Adds the group's partition of `__consumer_offsets` to the transaction. PRODUCER_FENCED is for versions from 2
on; producers of transactions v2 do not send this request, TxnOffsetCommit does it for them. After version 0
the coordinator watches whether the offsets come (see offset_commit_watch).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidelog.broker.offset_commit_watch import WATCHED_VERSION
from tidelog.broker.parking import Parked
from tidelog.broker.transaction_answers import for_version
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import GROUP_METADATA_TOPIC, TopicPartition
from tidelog.transactions.commands import AddPartitions

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.dispatch import Request

FENCED_SINCE_VERSION = 2


def handle(broker: "Broker", request: "Request") -> Mapping[str, object] | Parked:
    """Ask the coordinator of the transactional id, with the groups' topic made first if need be."""
    parked = Parked()
    if GROUP_METADATA_TOPIC in broker.image.topics:
        _ask(broker, request, parked)
    else:
        broker.groups.create_topic(lambda: _ask(broker, request, parked))
    return parked


def _ask(broker: "Broker", request: "Request", parked: Parked) -> None:
    body = request.body
    place = TopicPartition(GROUP_METADATA_TOPIC, broker.groups.partition_for(body.group_id))

    def answer(response: Mapping[str, object]) -> None:
        error = response["error_code"]
        assert isinstance(error, ErrorCode)
        transactions = broker.transactions
        if request.version == WATCHED_VERSION and not error and transactions.verifies:
            transactions.offset_commits.announced(body.transactional_id, place, request.context)
        parked.answer({"error_code": for_version(error, request.version, fenced_since=FENCED_SINCE_VERSION)})

    error = broker.transactions.ask(
        body.transactional_id,
        lambda token: AddPartitions(
            token, body.transactional_id, body.producer_id, body.producer_epoch, frozenset({place})
        ),
        answer,
    )
    if error:
        parked.answer({"error_code": error})
