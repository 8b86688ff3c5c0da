"""How far partitions go, wherever they are led: the high watermark, as ListOffsets tells it."""

from collections.abc import Callable, Iterable, Mapping

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.replicas.replicas import Replicas
from tidelog.broker.runtime.peers import PeerFault, Peers
from tidelog.client.api_keys import LIST_OFFSETS
from tidelog.client.requests import MalformedAnswer, decode_response, encode_request
from tidelog.model.identifiers import NO_LEADER

VERSION = 7
LATEST = -1
#: what a request that is not a replica's says of itself
NO_REPLICA = -1

Place = tuple[str, int]
Ends = dict[Place, int]


def ends_request(topics: Mapping[str, Iterable[int]]) -> bytes:
    """The body of a ListOffsets request for the ends of partitions."""
    rows = [
        {
            "name": topic,
            "partitions": [
                {"partition_index": index, "current_leader_epoch": -1, "timestamp": LATEST}
                for index in indexes
            ],
        }
        for topic, indexes in topics.items()
    ]
    fields = {"replica_id": NO_REPLICA, "isolation_level": 0, "topics": rows}
    return encode_request(LIST_OFFSETS, VERSION, fields)


def ends_of(answer: memoryview | PeerFault) -> Ends:
    """What a leader told; nothing where it did not."""
    if isinstance(answer, PeerFault):
        return {}
    try:
        response = decode_response(LIST_OFFSETS, VERSION, answer)
    except MalformedAnswer:
        return {}
    return {
        (str(topic.name), int(partition.partition_index)): int(partition.offset)
        for topic in response.topics
        for partition in topic.partitions
        if not partition.error_code
    }


class LogEnds:
    """Asks leaders, here and on other brokers, as often as somebody wants to know."""

    __slots__ = ("_metadata", "_peers", "_replicas", "_timeout_ms")

    def __init__(
        self, metadata: Metadata, replicas: Replicas, peers: Peers, timeout_ms: Callable[[], int]
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._peers = peers
        self._timeout_ms = timeout_ms

    def ask(self, places: Iterable[Place], then: Callable[[Ends], None]) -> None:
        """`then`, perhaps at once, with what could be found out."""
        found: Ends = {}
        elsewhere: dict[int, dict[str, list[int]]] = {}
        for topic, index in places:
            partition = self._replicas.leader(topic, index)
            state = self._metadata.image.partition(topic, index)
            if partition is not None:
                if partition.knows_its_watermark:
                    found[topic, index] = partition.high_watermark
            elif state is not None and state.leader not in (NO_LEADER, self._metadata.node_id):
                elsewhere.setdefault(state.leader, {}).setdefault(topic, []).append(index)
        missing = set(elsewhere)
        if not missing:
            then(found)
            return

        def answered(leader_id: int, answer: memoryview | PeerFault) -> None:
            found.update(ends_of(answer))
            missing.discard(leader_id)
            if not missing:
                then(found)

        for leader_id, topics in elsewhere.items():
            self._peers.request(
                leader_id,
                LIST_OFFSETS,
                VERSION,
                ends_request(topics),
                lambda answer, leader_id=leader_id: answered(leader_id, answer),  # type: ignore[misc]
                timeout_ms=self._timeout_ms(),
            )
