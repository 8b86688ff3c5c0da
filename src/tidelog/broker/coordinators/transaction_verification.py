"""Is this partition in the producer's transaction? Asked before a transactional write (KIP-890).

The coordinator of the transactional id knows: here, or on another broker (AddPartitionsToTxn, version 4 to
verify, version 5 to add on behalf of producers of transactions v2).

The answer may come later; `transaction_guards` says what it is worth then.
"""

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tidelog.broker.coordinators.offset_commit_watch import OffsetCommitWatch
from tidelog.broker.coordinators.transaction_coordinator import TransactionCoordinator
from tidelog.broker.coordinators.transaction_guards import TRANSACTIONS_V2, Guards
from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.replicas.replicas import Replicas
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.peers import PeerFault, Peers
from tidelog.client.api_keys import ADD_PARTITIONS_TO_TXN
from tidelog.client.requests import MalformedAnswer, decode_response, encode_request
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import NO_LEADER, TopicPartition
from tidelog.transactions.commands import AddPartitions

log = logging.getLogger(__name__)

Results = Mapping[TopicPartition, ErrorCode]

VERIFY_VERSION = 4
ADD_VERSION = 5
#: the coordinator's own append may wait for replicas: not before requests that do not
TRANSACTIONS_CHANNEL = "transactions"


class Asked(NamedTuple):
    """One question: these partitions, all led here, and the transaction of one producer."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    client_version: int


class TransactionVerification:
    """Asks coordinators, and keeps the guards of what was asked."""

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        offset_commits: OffsetCommitWatch,
        metadata: Metadata,
        replicas: Replicas,
        peers: Peers,
        settings: LiveSettings,
        node_id: int,
    ) -> None:
        self._coordinator = coordinator
        self._offset_commits = offset_commits
        self._metadata = metadata
        self._replicas = replicas
        self._peers = peers
        self._settings = settings
        self._node_id = node_id
        self.guards = Guards()

    @property
    def _verifies(self) -> bool:
        """Whether leaders ask a coordinator before they take the first batch of a transaction."""
        return self._settings.get_bool("transaction.partition.verification.enable")

    def __repr__(self) -> str:
        return f"<TransactionVerification guards={len(self.guards)}>"

    def verify_or_add(self, asked: Asked, answer: Callable[[Results], None]) -> None:
        """Add the partitions to the transaction for producers of transactions v2; of others, check that they
        were added. `answer` is called once, perhaps at once; a permitted write must follow in the same call.
        """
        _, producer_id, producer_epoch, places, _ = asked
        guards = {
            place: self.guards.set(place, producer_id, producer_epoch, self._leader_epoch(place))
            for place in places
        }

        def answered(results: Results) -> None:
            answer(
                {
                    place: self.guards.end(
                        place, producer_id, guard, results[place], self._leader_epoch(place)
                    )
                    for place, guard in guards.items()
                }
            )

        machine = self._coordinator.machine_for(asked.transactional_id)
        if asked.client_version < TRANSACTIONS_V2 and not self._verifies:
            answered(dict.fromkeys(asked.partitions, ErrorCode.NONE))
        elif machine is ErrorCode.NOT_COORDINATOR:
            self._ask_elsewhere(asked, answered)
        elif isinstance(machine, ErrorCode):
            answered(dict.fromkeys(asked.partitions, machine))
        elif asked.client_version < TRANSACTIONS_V2:
            self._offset_commits.asked(asked.transactional_id, asked.partitions)
            answered(machine.verify(*asked[:4]))
        else:
            self._add_here(asked, answered)

    def _leader_epoch(self, place: TopicPartition) -> int | None:
        partition = self._replicas.leader(*place)
        return None if partition is None else partition.leader_epoch

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
        index = self._coordinator.topic.partition_for(asked.transactional_id)
        state = self._metadata.image.partition(self._coordinator.topic.name, index)
        if state is None or state.leader == NO_LEADER or state.leader == self._node_id:
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
        self._peers.request(
            state.leader,
            ADD_PARTITIONS_TO_TXN,
            version,
            encode_request(ADD_PARTITIONS_TO_TXN, version, {"transactions": [transaction]}),
            lambda body: answered(_results(body, version, asked)),
            timeout_ms=self._settings.get_int("request.timeout.ms"),
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
