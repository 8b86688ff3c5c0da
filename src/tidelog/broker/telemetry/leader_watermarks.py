"""High watermarks of partitions without a replica here, as their leaders last told them.

Groups are coordinated wherever their partition of `__consumer_offsets` is led, which may be far from the
partitions they read. So after a scrape the leaders are asked for the ends of what it missed, one ListOffsets
per broker, and the next scrape has them. Nobody is asked unless somebody scrapes, nor more often than every
`INTERVAL_MS`.
"""

from tidelog.broker.coordinators.log_ends import VERSION, ends_of, ends_request
from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.runtime.peers import PeerFault, Peers
from tidelog.broker.runtime.timers import Timers
from tidelog.client.api_keys import LIST_OFFSETS
from tidelog.model.identifiers import NO_LEADER

INTERVAL_MS = 5_000
PARTITIONS_PER_REQUEST = 2_000
PARTITIONS_MAX = 50_000

Place = tuple[str, int]


class LeaderWatermarks:
    """What the leaders elsewhere told."""

    def __init__(self, metadata: Metadata, peers: Peers, timers: Timers) -> None:
        self._metadata = metadata
        self._peers = peers
        self._timers = timers
        self._known: dict[Place, int] = {}
        self._wanted: dict[Place, None] = {}
        self._asking: set[int] = set()
        self._asked_ms = -INTERVAL_MS

    def __repr__(self) -> str:
        return f"<LeaderWatermarks known={len(self._known)} asking={sorted(self._asking)}>"

    def begin(self) -> None:
        """A scrape begins: note what it wants."""
        self._wanted.clear()

    def get(self, topic: str, index: int) -> int | None:
        """The high watermark of a partition as last told; None if nobody did yet."""
        place = (topic, index)
        if len(self._wanted) < PARTITIONS_MAX:
            self._wanted[place] = None
        return self._known.get(place)

    def ask(self) -> None:
        """Ask the leaders about everything the scrape wanted, and forget the rest."""
        self._known = {place: end for place, end in self._known.items() if place in self._wanted}
        now_ms = self._timers.monotonic_ms()
        if now_ms - self._asked_ms < INTERVAL_MS:
            return
        self._asked_ms = now_ms
        by_leader: dict[int, dict[str, list[int]]] = {}
        counts: dict[int, int] = {}
        for topic, index in self._wanted:
            state = self._metadata.image.partition(topic, index)
            if state is None or state.leader == self._metadata.node_id:
                self._known.pop((topic, index), None)
                continue
            if state.leader == NO_LEADER:
                continue  # what the last one told still counts
            counts[state.leader] = counts.get(state.leader, 0) + 1
            if counts[state.leader] <= PARTITIONS_PER_REQUEST:
                by_leader.setdefault(state.leader, {}).setdefault(topic, []).append(index)
        for leader_id, topics in by_leader.items():
            if leader_id not in self._asking:
                self._send(leader_id, topics)

    def _send(self, leader_id: int, topics: dict[str, list[int]]) -> None:
        self._asking.add(leader_id)
        self._peers.request(
            leader_id,
            LIST_OFFSETS,
            VERSION,
            ends_request(topics),
            lambda answer: self._answered(leader_id, answer),
            timeout_ms=INTERVAL_MS,
        )

    def _answered(self, leader_id: int, answer: memoryview | PeerFault) -> None:
        self._asking.discard(leader_id)
        # Of what was not told now, what was told before still counts; the next scrape asks again.
        for place, end in ends_of(answer).items():
            if place in self._wanted:
                self._known[place] = end
