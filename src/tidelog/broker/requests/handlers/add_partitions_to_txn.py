"""AddPartitionsToTxn (key 24), versions 0 to 5: these partitions belong to the transaction from here on.

Versions up to 3 come from producers, one transaction each. From version 4 on brokers ask for several at once,
and may only want to know whether the partitions are in the transaction (`verify_only`, KIP-890); version 5
adds on behalf of producers of transactions v2. If one partition does not exist none is added: the others get
OPERATION_NOT_ATTEMPTED. PRODUCER_FENCED is for versions from 2 on.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.group_answers import Gathered
from tidelog.broker.requests.request import Request
from tidelog.broker.requests.transaction_answers import for_version
from tidelog.broker.runtime.deferred import Deferred
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import TopicPartition
from tidelog.transactions.commands import AddPartitions

if TYPE_CHECKING:
    from tidelog.broker.coordinators.transactions import Transactions

FENCED_SINCE_VERSION = 2
BATCHED_SINCE_VERSION = 4
TRANSACTIONS_V2_SINCE_VERSION = 5

Results = Mapping[TopicPartition, ErrorCode]


class Asked(NamedTuple):
    """One transaction of a request."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    verify_only: bool
    places: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Handler:
    """Ask the coordinator of each transaction and put the answers together."""

    metadata: Metadata
    transactions: "Deferred[Transactions]"

    def handle(self, request: Request) -> Mapping[str, object] | DelayedAnswer:
        body, version = request.body, request.version
        if version >= BATCHED_SINCE_VERSION:
            gathered = Gathered(len(body.transactions), lambda parts: {"results_by_transaction": parts})
            for index, one in enumerate(body.transactions):
                asked = Asked(
                    one.transactional_id,
                    one.producer_id,
                    one.producer_epoch,
                    one.verify_only,
                    _places(one.topics),
                )
                self._ask(version, asked, partial(_put_batched, gathered, index, one.transactional_id))
            return gathered.delayed
        delayed = DelayedAnswer()
        asked = Asked(
            body.v3_and_below_transactional_id,
            body.v3_and_below_producer_id,
            body.v3_and_below_producer_epoch,
            False,
            _places(body.v3_and_below_topics),
        )
        self._ask(
            version,
            asked,
            lambda results: delayed.answer({"results_by_topic_v3_and_below": _by_topic(results)}),
        )
        return delayed

    def _ask(self, version: int, asked: Asked, put: Callable[[Results], None]) -> None:
        transactional_id, producer_id, producer_epoch, verify_only, places = asked
        unknown = [place for place in places if self.metadata.image.partition(*place) is None]
        if unknown:
            missing = frozenset(unknown)
            put(
                {
                    place: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    if place in missing
                    else ErrorCode.OPERATION_NOT_ATTEMPTED
                    for place in places
                }
            )
            return
        if verify_only:
            machine = self.transactions.get().coordinator.machine_for(transactional_id)
            if isinstance(machine, ErrorCode):
                put(dict.fromkeys(places, machine))
            else:
                asked_for = frozenset(places)
                self.transactions.get().offset_commits.asked(transactional_id, asked_for)
                put(machine.verify(transactional_id, producer_id, producer_epoch, asked_for))
            return

        def answer(response: Mapping[str, object]) -> None:
            error = response["error_code"]
            assert isinstance(error, ErrorCode)
            put(dict.fromkeys(places, for_version(error, version, fenced_since=FENCED_SINCE_VERSION)))

        client_version = 2 if version >= TRANSACTIONS_V2_SINCE_VERSION else 0
        error = self.transactions.get().coordinator.ask(
            transactional_id,
            lambda token: AddPartitions(
                token,
                transactional_id,
                producer_id,
                producer_epoch,
                frozenset(places),
                client_version,
            ),
            answer,
        )
        if error:
            put(dict.fromkeys(places, error))


def _places(topics: Any) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic.name, index) for topic in topics for index in topic.partitions)


def _put_batched(gathered: Gathered, index: int, transactional_id: str, results: Results) -> None:
    gathered.put(index, {"transactional_id": transactional_id, "topic_results": _by_topic(results)})


def _by_topic(results: Results) -> list[Mapping[str, object]]:
    by_topic: dict[str, list[Mapping[str, object]]] = {}
    for (topic, index), error in results.items():
        by_topic.setdefault(topic, []).append({"partition_index": index, "partition_error_code": error})
    return [{"name": topic, "results_by_partition": rows} for topic, rows in by_topic.items()]
