"""AddOffsetsToTxn (key 25), versions 0 to 4: a group's offsets will be committed in this transaction.

Adds the group's partition of `__consumer_offsets` to the transaction. PRODUCER_FENCED is for versions from 2
on; producers of transactions v2 do not send this request, TxnOffsetCommit does it for them. After version 0
the coordinator watches whether the offsets come (see offset_commit_watch).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.broker.coordinators.internal_topic import InternalTopic
from tidelog.broker.coordinators.offset_commit_watch import WATCHED_VERSION
from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.request import Request
from tidelog.broker.requests.transaction_answers import for_version
from tidelog.broker.runtime.deferred import Deferred
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import GROUP_METADATA_TOPIC, TopicPartition
from tidelog.transactions.commands import AddPartitions

if TYPE_CHECKING:
    from tidelog.broker.coordinators.transactions import Transactions

FENCED_SINCE_VERSION = 2


@dataclass(frozen=True, slots=True)
class Handler:
    """Ask the coordinator of the transactional id, with the groups' topic made first if need be."""

    metadata: Metadata
    transactions: "Deferred[Transactions]"
    group_topic: InternalTopic

    def handle(self, request: Request) -> Mapping[str, object] | DelayedAnswer:
        delayed = DelayedAnswer()
        if GROUP_METADATA_TOPIC in self.metadata.image.topics:
            self._ask(request, delayed)
        else:
            self.group_topic.create(lambda: self._ask(request, delayed))
        return delayed

    def _ask(self, request: Request, delayed: DelayedAnswer) -> None:
        body = request.body
        place = TopicPartition(GROUP_METADATA_TOPIC, self.group_topic.partition_for(body.group_id))

        def answer(response: Mapping[str, object]) -> None:
            error = response["error_code"]
            assert isinstance(error, ErrorCode)
            transactions = self.transactions.get()
            if request.version == WATCHED_VERSION and not error:
                transactions.offset_commits.announced(body.transactional_id, place, request.context)
            delayed.answer(
                {"error_code": for_version(error, request.version, fenced_since=FENCED_SINCE_VERSION)}
            )

        error = self.transactions.get().coordinator.ask(
            body.transactional_id,
            lambda token: AddPartitions(
                token, body.transactional_id, body.producer_id, body.producer_epoch, frozenset({place})
            ),
            answer,
        )
        if error:
            delayed.answer({"error_code": error})
