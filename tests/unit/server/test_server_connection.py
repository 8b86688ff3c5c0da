"""One turn of a connection: how often what arrived is looked at."""

import struct
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "broker"))

from node import NodeUnderTest, batch, produce_frame

from tidelog.server.connection import Connection


class Counting:
    """A dispatcher that counts how often a run was tried."""

    def __init__(self, node: NodeUnderTest) -> None:
        self._dispatcher = node.dispatcher
        self.runs = 0

    def handle_run(self, *arguments: Any) -> Any:
        self.runs += 1
        return self._dispatcher.handle_run(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dispatcher, name)


def test_a_run_with_a_bad_batch_is_not_checked_again_for_every_frame() -> None:
    node = NodeUnderTest()
    node.create_topic("t")
    node.handle(produce_frame(9, batch(b"first")))
    frames = [bytearray(produce_frame(9, batch(b"x"), correlation_id=number)) for number in range(60)]
    frames[-1][-10] ^= 1
    arrived = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
    counting = Counting(node)
    edge: Any = SimpleNamespace(frame_bytes_max=1 << 20, dispatcher=counting)
    connection = Connection(edge, "PLAINTEXT")
    connection.context = node.context
    node.context.frame_bytes_max = edge.frame_bytes_max
    connection._end = len(arrived)
    connection._serve(memoryview(bytearray(arrived)))
    assert counting.runs == 1
    assert node.broker.partitions["t", 0].log.log_end_offset == 60, "all but the bad one"
