"""What a forwarder of delayed records asks of the cluster, as any transactional client does.

InitProducerId 5, Produce 12, TxnOffsetCommit 5 and EndTxn 5 (transactions v2) and OffsetFetch 8, sent to
whoever leads or coordinates now, which may be this broker itself: it reaches itself as it reaches the others,
by the listener that brokers share. Every question has one answer:
what was asked for, or a `Trouble` that says why not.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tidelog.broker.coordinators.internal_topic import InternalTopic
from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.peers import PeerFault, Peers
from tidelog.client.api_keys import END_TXN, INIT_PRODUCER_ID, OFFSET_FETCH, TXN_OFFSET_COMMIT
from tidelog.client.requests import MalformedAnswer, api_name, decode_response, encode_request
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import NO_LEADER, TopicPartition
from tidelog.protocol.apis import PRODUCE

#: transactions wait for replicas: not before requests that do not
DELAYS_CHANNEL = "delays"
INIT_PRODUCER_ID_VERSION = 5
PRODUCE_VERSION = 12
TXN_OFFSET_COMMIT_VERSION = 5
END_TXN_VERSION = 5
OFFSET_FETCH_VERSION = 8
#: a transaction that nobody ends is aborted by its coordinator after this
TRANSACTION_TIMEOUT_MS = 60_000
ACKS_ALL = -1


class Trouble(NamedTuple):
    """Why there is no answer, for people; `error` is NETWORK_EXCEPTION where nobody answered."""

    error: ErrorCode
    reason: str


class Producer(NamedTuple):
    """Who writes."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class Committed(NamedTuple):
    """What a group has committed for a partition; the offset is -1 if nothing."""

    offset: int
    metadata: str


Batches = Mapping[TopicPartition, bytes]


class DelayClient:
    """Asks brokers, this one among them."""

    def __init__(
        self,
        metadata: Metadata,
        peers: Peers,
        settings: LiveSettings,
        group_topic: InternalTopic,
        transaction_topic: InternalTopic,
    ) -> None:
        self._metadata = metadata
        self._peers = peers
        self._settings = settings
        self._group_topic = group_topic
        self._transaction_topic = transaction_topic

    def __repr__(self) -> str:
        return f"<DelayClient of {self._metadata.node_id}>"

    # ------------------------------------------------------------ questions

    def init_producer(self, transactional_id: str, then: Callable[[Producer | Trouble], None]) -> None:
        """Fence whoever had the transactional id, and have what was left open finished."""

        def answered(answer: Any) -> None:
            if isinstance(answer, Trouble):
                then(answer)
            elif answer.error_code.value:
                then(_refused(answer.error_code.value, f"a producer id for {transactional_id}"))
            else:
                then(Producer(transactional_id, int(answer.producer_id), int(answer.producer_epoch)))

        fields = {
            "transactional_id": transactional_id,
            "transaction_timeout": TRANSACTION_TIMEOUT_MS,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        self._coordinator(
            self._transaction_topic,
            transactional_id,
            INIT_PRODUCER_ID,
            INIT_PRODUCER_ID_VERSION,
            fields,
            answered,
        )

    def committed(
        self, group_id: str, place: TopicPartition, then: Callable[[Committed | Trouble], None]
    ) -> None:
        """The offset that a group has committed, when no transaction is left that may change it."""

        def answered(answer: Any) -> None:
            if isinstance(answer, Trouble):
                then(answer)
                return
            [group] = answer.groups
            rows = [row for topic in group.topics for row in topic.partitions]
            error = group.error_code.value or next(
                (r.error_code.value for r in rows if r.error_code.value), 0
            )
            if error:
                then(_refused(error, f"the offset of {group_id}"))
            elif not rows:
                then(Committed(-1, ""))
            else:
                then(Committed(int(rows[0].committed_offset), rows[0].metadata or ""))

        topics = [{"name": place.topic, "partition_indexes": [place.partition]}]
        fields = {"groups": [{"group_id": group_id, "topics": topics}], "require_stable": True}
        self._coordinator(self._group_topic, group_id, OFFSET_FETCH, OFFSET_FETCH_VERSION, fields, answered)

    def commit(
        self,
        producer: Producer,
        group_id: str,
        place: TopicPartition,
        committed: Committed,
        then: Callable[[Trouble | None], None],
    ) -> None:
        """Commit an offset in the transaction."""

        def answered(answer: Any) -> None:
            if isinstance(answer, Trouble):
                then(answer)
                return
            error = answer.topics[0].partitions[0].error_code.value
            then(_refused(error, f"committing the offset of {group_id}") if error else None)

        row = {
            "partition_index": place.partition,
            "committed_offset": committed.offset,
            "committed_leader_epoch": -1,
            "committed_metadata": committed.metadata,
        }
        fields = {
            **producer._asdict(),
            "group_id": group_id,
            "topics": [{"name": place.topic, "partitions": [row]}],
        }
        self._coordinator(
            self._group_topic, group_id, TXN_OFFSET_COMMIT, TXN_OFFSET_COMMIT_VERSION, fields, answered
        )

    def end(
        self, producer: Producer, then: Callable[[Producer | Trouble], None], *, committed: bool = True
    ) -> None:
        """End the transaction; the answer is who writes the next one."""

        def answered(answer: Any) -> None:
            if isinstance(answer, Trouble):
                then(answer)
            elif answer.error_code.value:
                then(
                    _refused(
                        answer.error_code.value, f"ending the transaction of {producer.transactional_id}"
                    )
                )
            else:
                then(
                    producer._replace(
                        producer_id=int(answer.producer_id), producer_epoch=int(answer.producer_epoch)
                    )
                )

        fields = {**producer._asdict(), "committed": committed}
        self._coordinator(
            self._transaction_topic, producer.transactional_id, END_TXN, END_TXN_VERSION, fields, answered
        )

    def produce(
        self, transactional_id: str, batches: Batches, then: Callable[[Trouble | None], None]
    ) -> None:
        """Write one batch to each of some partitions; the first trouble is told when all have answered."""
        by_leader: dict[int, dict[str, list[dict[str, object]]]] = {}
        for place, batch in batches.items():
            state = self._metadata.image.partition(*place)
            if state is None or state.leader == NO_LEADER:
                then(Trouble(ErrorCode.LEADER_NOT_AVAILABLE, f"{place} has no leader"))
                return
            rows = by_leader.setdefault(state.leader, {}).setdefault(place.topic, [])
            rows.append({"index": place.partition, "records": batch})
        troubles: list[Trouble] = []
        waiting = len(by_leader)

        def answered(answer: Any) -> None:
            nonlocal waiting
            waiting -= 1
            if isinstance(answer, Trouble):
                troubles.append(answer)
            else:
                troubles.extend(_refused_rows(answer))
            if not waiting:
                then(troubles[0] if troubles else None)

        for leader, topics in by_leader.items():
            fields = {
                "transactional_id": transactional_id,
                "acks": ACKS_ALL,
                "timeout": self._timeout_ms,
                "topic_data": [{"name": name, "partition_data": rows} for name, rows in topics.items()],
            }
            self._ask(leader, PRODUCE, PRODUCE_VERSION, fields, answered)

    # ------------------------------------------------------------ asking

    @property
    def _timeout_ms(self) -> int:
        return self._settings.get_int("request.timeout.ms")

    def _coordinator(
        self,
        topic: InternalTopic,
        key: str,
        api_key: int,
        version: int,
        fields: dict[str, object],
        then: Callable[[Any], None],
    ) -> None:
        if topic.name not in self._metadata.image.topics:
            # The outcome is that it is there or not; both are found out by looking.
            topic.create(lambda: self._existing(topic, key, api_key, version, fields, then))
        else:
            self._existing(topic, key, api_key, version, fields, then)

    def _existing(
        self,
        topic: InternalTopic,
        key: str,
        api_key: int,
        version: int,
        fields: dict[str, object],
        then: Callable[[Any], None],
    ) -> None:
        state = self._metadata.image.partition(topic.name, topic.partition_for(key))
        if state is None or state.leader == NO_LEADER:
            then(Trouble(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{key} has no coordinator"))
        else:
            self._ask(state.leader, api_key, version, fields, then)

    def _ask(
        self,
        broker_id: int,
        api_key: int,
        version: int,
        fields: dict[str, object],
        then: Callable[[Any], None],
    ) -> None:
        def answered(answer: memoryview | PeerFault) -> None:
            if isinstance(answer, PeerFault):
                then(Trouble(ErrorCode.NETWORK_EXCEPTION, answer.reason))
                return
            try:
                decoded = decode_response(api_key, version, answer)
            except MalformedAnswer as fault:
                then(Trouble(ErrorCode.NETWORK_EXCEPTION, f"an answer to {api_name(api_key)}: {fault}"))
                return
            then(decoded)

        body = encode_request(api_key, version, fields)
        self._peers.request(
            broker_id, api_key, version, body, answered, timeout_ms=self._timeout_ms, channel=DELAYS_CHANNEL
        )


def _refused(code: int, what: str, message: str | None = None) -> Trouble:
    error = ErrorCode(code)
    return Trouble(error, f"{what}: {error.name}" + (f", {message}" if message else ""))


def _refused_rows(answer: Any) -> list[Trouble]:
    return [
        _refused(row.error_code.value, f"writing to {topic.name}-{row.index}", row.error_message)
        for topic in answer.responses
        for row in topic.partition_responses
        if row.error_code.value and row.error_code.value != ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    ]
