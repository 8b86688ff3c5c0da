"""Producer ids, handed out from blocks that the controller reserved durably.

A broker that crashes loses the rest of its block; ids are never handed out twice.
"""

from collections import deque
from collections.abc import Callable, Sequence

from tidelog.broker.metadata.metadata import Metadata
from tidelog.controller.commands import AllocateProducerIds, ProducerIdBlock, Result

Give = Callable[[int | None], None]


class ProducerIds:
    """The producer ids of this broker."""

    def __init__(self, metadata: Metadata, node_id: int) -> None:
        self._metadata = metadata
        self._node_id = node_id
        self._next_id = 0
        self._end_id = 0
        self._waiting: deque[Give] = deque()

    def take(self, give: Give) -> None:
        """Call `give` with a producer id, now or when a new block is there; None if none could be had."""
        if self._next_id < self._end_id and not self._waiting:
            self._next_id += 1
            give(self._next_id - 1)
            return
        self._waiting.append(give)
        if len(self._waiting) == 1:
            self._metadata.submit(AllocateProducerIds(self._node_id), self._receive)

    def _receive(self, results: Sequence[Result]) -> None:
        block = results[0]
        if not isinstance(block, ProducerIdBlock):
            refused, self._waiting = self._waiting, deque()
            for give in refused:
                give(None)
            return
        self._next_id, self._end_id = block.first_id, block.first_id + block.count
        while self._waiting and self._next_id < self._end_id:
            give = self._waiting.popleft()
            self._next_id += 1
            give(self._next_id - 1)
        if self._waiting:
            self._metadata.submit(AllocateProducerIds(self._node_id), self._receive)
