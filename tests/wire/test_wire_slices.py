"""Long requests in slices over real connections: everything in order, nothing kept, others served between."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from tests.chaos.kafka_wire import WireClient, batch_of, fetch_frame, frame, produce_frame, request_frame
from tidelog.records.builder import build_batch
from tidelog.records.compression import Codec
from tidelog.records.record import Record
from tidelog.server import connection as connection_module
from tidelog.server import sliced_calls
from tidelog.server.connection import Connection
from tidelog.server.process import BrokerThread
from tidelog.server.socket_server import SocketServer

NAMES = 2_000


@pytest.fixture
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices and turns that are over at once, so that everything that can be put aside is."""
    monkeypatch.setattr(sliced_calls, "SLICE_NS", 0)
    monkeypatch.setattr(connection_module, "TURN_NS", 0)


@pytest.fixture
def socket_server(broker: BrokerThread) -> Iterator[SocketServer]:
    assert broker.node is not None
    socket_server = broker.node.socket_server
    assert socket_server is not None
    yield socket_server
    deadline = time.monotonic() + 40
    while (socket_server.receive_bytes or len(socket_server.long_work)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (socket_server.receive_bytes, len(socket_server.long_work)) == (0, 0)


def open_stream(broker: BrokerThread) -> socket.socket:
    host, port = broker.bootstrap.rsplit(":", 1)
    return socket.create_connection((host, int(port)), 30)


def metadata(correlation_id: int, names: int = NAMES, length: int = 20) -> bytes:
    fields = {
        "topics": [{"name": f"{number:06d}".ljust(length, "n")} for number in range(names)],
        "allow_auto_topic_creation": False,
    }
    return request_frame("metadata", 12, correlation_id, fields)


def receive(stream: socket.socket) -> bytes:
    size = struct.unpack(">i", exactly(stream, 4))[0]
    return exactly(stream, size)


def exactly(stream: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = stream.recv(count - len(data))
        assert part, "closed"
        data += part
    return bytes(data)


@pytest.mark.usefixtures("short_slices")
def test_answers_come_in_the_order_of_requests(
    broker: BrokerThread, socket_server: SocketServer, topic: str
) -> None:
    frames = []
    for number in range(0, 60, 6):
        frames += [
            metadata(number),
            produce_frame(topic, 0, batch_of(b"x" * 9_000), correlation_id=number + 1),
            frame(18, 0, number + 2, b"", flexible=False),
            fetch_frame(topic, 0, 0, correlation_id=number + 3),
            metadata(number + 4, 10),
            produce_frame(topic, 1, batch_of(b"y"), correlation_id=number + 5),
        ]
    with open_stream(broker) as stream:
        sender = threading.Thread(target=stream.sendall, args=(b"".join(frames),))
        sender.start()
        answers = [receive(stream) for _ in frames]
        sender.join(10)
    assert [struct.unpack_from(">i", answer)[0] for answer in answers] == list(range(60))
    assert all(b"%06d" % (NAMES - 1) in answer for answer in answers[::6])


@pytest.mark.usefixtures("short_slices")
def test_many_long_requests_at_once_are_all_answered(
    broker: BrokerThread, socket_server: SocketServer
) -> None:
    streams = [open_stream(broker) for _ in range(12)]
    try:
        for number, stream in enumerate(streams):
            stream.sendall(metadata(number))
        for number, stream in enumerate(streams):
            answer = receive(stream)
            assert struct.unpack_from(">i", answer)[0] == number and len(answer) > NAMES * 20
    finally:
        for stream in streams:
            stream.close()


@pytest.mark.usefixtures("short_slices")
def test_connections_that_go_leave_nothing_behind(
    broker: BrokerThread, socket_server: SocketServer, client: WireClient
) -> None:
    for _ in range(10):
        streams = [open_stream(broker) for _ in range(5)]
        for stream in streams:
            stream.sendall(metadata(1) * 3)
        for stream in streams:
            stream.close()
    assert client.ask("metadata", 12, topics=[]).brokers


@pytest.mark.usefixtures("short_slices")
def test_a_long_request_that_is_malformed_at_its_end_closes_its_connection(
    broker: BrokerThread, socket_server: SocketServer
) -> None:
    body = bytearray(metadata(1))
    body[body.rindex(b"%06d" % (NAMES - 1))] = 0xFF  # the last name is no text any more
    with open_stream(broker) as stream:
        stream.sendall(metadata(0) + bytes(body) + metadata(2))
        assert struct.unpack_from(">i", receive(stream))[0] == 0
        with contextlib.suppress(ConnectionResetError):
            assert stream.recv(1) == b""


@pytest.mark.usefixtures("short_slices")
def test_a_long_request_whose_batch_is_checked_elsewhere_is_served_from_its_beginning(
    broker: BrokerThread, socket_server: SocketServer, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It pauses while it is read, then waits for a thread: the frame must still be there afterwards."""
    offered: list[Connection] = []
    offer_again = Connection._offer_again

    def noted(self: Connection) -> None:
        offered.append(self)
        offer_again(self)

    monkeypatch.setattr(Connection, "_offer_again", noted)
    client.create_topic("checked", 130, **{"cleanup.policy": "compact"})
    records = [Record(i, 1_700_000_000_000, b"key %d" % i, b"v" * 20, ()) for i in range(2_100)]
    batch = bytes(build_batch(records, codec=Codec.GZIP))
    partitions = b"".join(struct.pack(">ii", index, len(batch)) + batch for index in range(130))
    body = struct.pack(">hhii", -1, -1, 30_000, 1) + struct.pack(">h", 7) + b"checked"
    produce = frame(0, 7, 5, body + struct.pack(">i", 130) + partitions, flexible=False)
    with open_stream(broker) as stream:
        stream.sendall(produce + metadata(6, 10))
        answer = receive(stream)
        assert struct.unpack_from(">i", answer)[0] == 5
        rows = [struct.unpack_from(">ihq", answer, 4 + 4 + 2 + 7 + 4 + 30 * index) for index in range(130)]
        assert rows == [(index, 0, 0) for index in range(130)]
        assert struct.unpack_from(">i", receive(stream))[0] == 6
    assert offered


def test_others_are_served_while_a_long_request_is(
    broker: BrokerThread, socket_server: SocketServer, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who asks while a long request is under way gets the answer before that is over."""
    monkeypatch.setattr(sliced_calls, "SLICE_NS", 100_000)
    with open_stream(broker) as stream:
        stream.sendall(metadata(7, 40_000, 6))
        while not len(socket_server.long_work):
            time.sleep(0.0005)
        served_meanwhile = 0
        while len(socket_server.long_work):
            assert client.ask("metadata", 12, topics=[]).brokers
            served_meanwhile += bool(len(socket_server.long_work))
        assert struct.unpack_from(">i", receive(stream))[0] == 7
    # How many depends on how the machine shares its time; in one step it would be none.
    assert served_meanwhile
