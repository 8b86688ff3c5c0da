"""One turn of a connection: how often what arrived is looked at."""

import struct
import time
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.broker.node import NodeUnderTest, batch, produce_frame
from tidelog.server.connection import Connection


def test_a_run_with_a_bad_batch_is_not_checked_again_for_every_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    node = NodeUnderTest()
    node.create_topic("t")
    node.handle(produce_frame(9, batch(b"first")))
    frames = [bytearray(produce_frame(9, batch(b"x"), correlation_id=number)) for number in range(60)]
    frames[-1][-10] ^= 1
    arrived = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
    runs: list[Any] = []
    serve_run = node.dispatcher._produce_run

    def count(*arguments: Any) -> Any:
        runs.append(serve_run(*arguments))
        return runs[-1]

    monkeypatch.setattr(node.dispatcher, "_produce_run", count)
    endless_turn = SimpleNamespace(began_ns=1 << 62)
    server: Any = SimpleNamespace(frame_bytes_max=1 << 20, dispatcher=node.dispatcher, requests=endless_turn)
    connection = Connection(server, "PLAINTEXT")
    connection.context = node.context
    node.context.frame_bytes_max = server.frame_bytes_max
    connection._end = len(arrived)
    connection._serve(memoryview(bytearray(arrived)))
    assert runs == [None]
    assert node.broker.replicas.led["t", 0].log.log_end_offset == 60, "all but the bad one"


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
    liveness._on_lapse = lapsed.append
    liveness.lease_end_ns = 0
    server: Any = SimpleNamespace(
        frame_bytes_max=1 << 20, dispatcher=node.dispatcher, liveness=liveness, report=lambda *told: None
    )
    connection = Connection(server, "PLAINTEXT")
    connection.context = node.context
    node.context.frame_bytes_max = server.frame_bytes_max
    output: Any = Output()
    connection._output = output
    aborted: list[bool] = []
    transport: Any = SimpleNamespace(abort=lambda: aborted.append(True))
    connection._transport = transport
    frame = produce_frame(9, batch(b"first"))
    arrived = struct.pack(">i", len(frame)) + frame
    connection._end = len(arrived)
    connection._serve(memoryview(bytearray(arrived)))
    assert node.broker.replicas.led["t", 0].log.log_end_offset == 1
    assert (output.sent, aborted, len(lapsed)) == ([], [True], 1)


def test_the_clocks_of_leases_and_of_turns_are_one() -> None:
    """A connection compares the performance counter with what the monotonic clock said."""
    clocks = [time.get_clock_info(name) for name in ("perf_counter", "monotonic")]
    assert clocks[0].implementation == clocks[1].implementation
