"""One turn of a connection: how often what arrived is looked at."""

import struct
import sys
import time
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


class Output:
    """Where answers go."""

    closed = False
    queued_bytes = 0

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send_bytes(self, data: bytes) -> None:
        self.sent.append(data)

    def flush(self) -> None:
        """Nothing waits."""


def test_what_was_worked_out_before_a_stall_is_not_answered() -> None:
    """The request itself hung, in a write say: by the time it is done another broker may lead."""
    node = NodeUnderTest()
    node.create_topic("t")
    liveness = node.broker.liveness
    lapsed: list[str] = []
    liveness.on_lapse = lapsed.append
    liveness.lease_end_ns = 0
    edge: Any = SimpleNamespace(
        frame_bytes_max=1 << 20, dispatcher=node.dispatcher, liveness=liveness, report=lambda *told: None
    )
    connection = Connection(edge, "PLAINTEXT")
    connection.context = node.context
    node.context.frame_bytes_max = edge.frame_bytes_max
    output: Any = Output()
    connection._output = output
    aborted: list[bool] = []
    transport: Any = SimpleNamespace(abort=lambda: aborted.append(True))
    connection._transport = transport
    frame = produce_frame(9, batch(b"first"))
    arrived = struct.pack(">i", len(frame)) + frame
    connection._end = len(arrived)
    connection._serve(memoryview(bytearray(arrived)))
    assert node.broker.partitions["t", 0].log.log_end_offset == 1
    assert (output.sent, aborted, len(lapsed)) == ([], [True], 1)


def test_the_clocks_of_leases_and_of_turns_are_one() -> None:
    """A connection compares the performance counter with what the monotonic clock said."""
    clocks = [time.get_clock_info(name) for name in ("perf_counter", "monotonic")]
    assert clocks[0].implementation == clocks[1].implementation
