"""Is this partition in the producer's transaction? Asked before a transactional write (KIP-890).

The coordinator of the transactional id knows: here, or on another broker (AddPartitionsToTxn, version 4 to
verify, version 5 to add on behalf of producers of transactions v2).

The answer may come later. A marker that is written to the partition meanwhile ends the very transaction that
was asked about, and so may another leader in between; a write on the word of the old answer would then open
a transaction that nobody ends. So every question has a guard, which a marker breaks.
"""

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.peers import PeerFault
from tidelog.client.requests import MalformedAnswer, decode_response, encode_request
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import NO_LEADER, TRANSACTION_STATE_TOPIC, TopicPartition
from tidelog.transactions.commands import AddPartitions

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.transaction_coordinator import TransactionCoordinator

log = logging.getLogger(__name__)

Results = Mapping[TopicPartition, ErrorCode]

ADD_PARTITIONS_TO_TXN = 24
VERIFY_VERSION = 4
ADD_VERSION = 5
#: the coordinator's own append may wait for replicas: not before requests that do not
TRANSACTIONS_CHANNEL = "transactions"
TRANSACTIONS_V2 = 2


class Asked(NamedTuple):
    """One question: these partitions, all led here, and the transaction of one producer."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    client_version: int


class _Guard:
    """Stands while a question is open; holds the leader epoch at which it was asked."""

    __slots__ = ("broken", "leader_epoch")

    def __init__(self, leader_epoch: int) -> None:
        self.leader_epoch = leader_epoch
        self.broken = False


class TransactionVerification:
    """Asks coordinators, and keeps the guards of what was asked."""

    def __init__(self, broker: "Broker", coordinator: "TransactionCoordinator") -> None:
        self._broker = broker
        self._coordinator = coordinator
        self._guards: dict[tuple[TopicPartition, int], list[_Guard]] = {}

    def __repr__(self) -> str:
        return f"<TransactionVerification guards={len(self._guards)}>"

    def transaction_ended(self, place: TopicPartition, producer_id: int) -> None:
        """A marker of the producer is in the partition's log."""
        for guard in self._guards.get((place, producer_id), ()):
            guard.broken = True

    def verify_or_add(self, asked: Asked, answer: Callable[[Results], None]) -> None:
        """Add the partitions to the transaction for producers of transactions v2; of others, check that they
        were added. `answer` is called once, perhaps at once; a permitted write must follow in the same call.
        """
        guards = {place: self._set_guard(place, asked.producer_id) for place in asked.partitions}

        def answered(results: Results) -> None:
            answer(
                {
                    place: self._end_guard(place, asked.producer_id, guard, results[place])
                    for place, guard in guards.items()
                }
            )

        machine = self._coordinator.machine_for(asked.transactional_id)
        if asked.client_version < TRANSACTIONS_V2 and not self._coordinator.verifies:
            answered(dict.fromkeys(asked.partitions, ErrorCode.NONE))
        elif machine is ErrorCode.NOT_COORDINATOR:
            self._ask_elsewhere(asked, answered)
        elif isinstance(machine, ErrorCode):
            answered(dict.fromkeys(asked.partitions, machine))
        elif asked.client_version < TRANSACTIONS_V2:
            self._coordinator.offset_commits.asked(asked.transactional_id, asked.partitions)
            answered(machine.verify(*asked[:4]))
        else:
            self._add_here(asked, answered)

    def _set_guard(self, place: TopicPartition, producer_id: int) -> _Guard:
        partition = self._broker.partition(*place)
        guard = _Guard(-1 if partition is None else partition.leader_epoch)
        self._guards.setdefault((place, producer_id), []).append(guard)
        return guard

    def _end_guard(
        self, place: TopicPartition, producer_id: int, guard: _Guard, error: ErrorCode
    ) -> ErrorCode:
        guards = self._guards[place, producer_id]
        guards.remove(guard)
        if not guards:
            del self._guards[place, producer_id]
        if error:
            return error
        partition = self._broker.partition(*place)
        if partition is None or partition.leader_epoch != guard.leader_epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.INVALID_TXN_STATE if guard.broken else ErrorCode.NONE

    def _add_here(self, asked: Asked, answered: Callable[[Results], None]) -> None:
        def added(response: Mapping[str, object]) -> None:
            error = response["error_code"]
            assert isinstance(error, ErrorCode)
            answered(dict.fromkeys(asked.partitions, error))

        error = self._coordinator.ask(
            asked.transactional_id, lambda token: AddPartitions(token, *asked), added
        )
        assert error is ErrorCode.NONE

    def _ask_elsewhere(self, asked: Asked, answered: Callable[[Results], None]) -> None:
        broker = self._broker
        index = self._coordinator.partition_for(asked.transactional_id)
        state = broker.image.partition(TRANSACTION_STATE_TOPIC, index)
        if state is None or state.leader == NO_LEADER or state.leader == broker.node_id:
            # Led here, but not loading yet: the image is ahead of the coordinator.
            answered(dict.fromkeys(asked.partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        adds = asked.client_version >= TRANSACTIONS_V2
        version = ADD_VERSION if adds else VERIFY_VERSION
        topics: dict[str, list[int]] = {}
        for topic, partition in sorted(asked.partitions):
            topics.setdefault(topic, []).append(partition)
        transaction = {
            "transactional_id": asked.transactional_id,
            "producer_id": asked.producer_id,
            "producer_epoch": asked.producer_epoch,
            "verify_only": not adds,
            "topics": [{"name": name, "partitions": indexes} for name, indexes in topics.items()],
        }
        broker.peers.request(
            state.leader,
            ADD_PARTITIONS_TO_TXN,
            version,
            encode_request(ADD_PARTITIONS_TO_TXN, version, {"transactions": [transaction]}),
            lambda body: answered(_results(body, version, asked)),
            timeout_ms=broker.settings.get_int("request.timeout.ms"),
            channel=TRANSACTIONS_CHANNEL,
        )


def _results(answer: memoryview | PeerFault, version: int, asked: Asked) -> Results:
    """What another broker's coordinator said of each partition."""
    if isinstance(answer, PeerFault):
        log.info("transaction of %r was not verified: %s", asked.transactional_id, answer.reason)
        return dict.fromkeys(asked.partitions, ErrorCode.NETWORK_EXCEPTION)
    try:
        response = decode_response(ADD_PARTITIONS_TO_TXN, version, answer)
    except MalformedAnswer as fault:
        log.warning("an answer to AddPartitionsToTxn could not be read: %s", fault)
        return dict.fromkeys(asked.partitions, ErrorCode.NETWORK_EXCEPTION)
    if response.error_code.value:
        error = ErrorCode(response.error_code.value)
        if error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            # That is between brokers; the producer only learns that nothing was verified.
            error = ErrorCode.INVALID_TXN_STATE
        return dict.fromkeys(asked.partitions, error)
    found = dict.fromkeys(asked.partitions, ErrorCode.NETWORK_EXCEPTION)
    for transaction in response.results_by_transaction:
        for topic in transaction.topic_results:
            for one in topic.results_by_partition:
                place = TopicPartition(topic.name, one.partition_index)
                if place in found:
                    found[place] = ErrorCode(one.partition_error_code.value)
    return found
