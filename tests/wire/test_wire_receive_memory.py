"""Memory for requests that have not arrived whole: `queued.max.request.bytes` as docs/settings.md says it."""

import struct
import time
from collections.abc import Callable, Iterator

import pytest

from tests.chaos.kafka_wire import WireClient, batch_of, produce_frame, read_produced
from tidelog.model.settings import BrokerSettings
from tidelog.server.process import BrokerThread

REQUEST_BYTES_MAX = 2_000_000
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "message.max.bytes": str(REQUEST_BYTES_MAX),
    "socket.request.max.bytes": str(REQUEST_BYTES_MAX),
    "queued.max.request.bytes": str(REQUEST_BYTES_MAX),
}
WAIT_SECONDS_MAX = 10.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    """A broker with memory for one request of the largest size."""
    folder = tmp_path_factory.mktemp("receive-memory")
    thread = BrokerThread(BrokerSettings.resolve({**SETTINGS, "log.dirs": str(folder)}))
    thread.start()
    yield thread
    thread.stop()


def frame_of(topic: str, frame_bytes: int) -> bytes:
    """A Produce request of exactly this size, the four bytes of the size not counted."""
    around = len(produce_frame(topic, 0, batch_of(bytes(frame_bytes // 2)))) - 4 - frame_bytes // 2
    frame = produce_frame(topic, 0, batch_of(bytes(frame_bytes - around)))
    missing = frame_bytes - (len(frame) - 4)
    frame = produce_frame(topic, 0, batch_of(bytes(frame_bytes - around + missing)))
    assert struct.unpack_from(">i", frame) == (frame_bytes,)
    return frame


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def received_bytes(broker: BrokerThread) -> int:
    assert broker.node is not None and broker.node.socket_server is not None
    return broker.node.socket_server.receive_bytes


def test_one_request_of_the_largest_size_has_room(client: WireClient, topic: str) -> None:
    assert read_produced(client.exchange(frame_of(topic, REQUEST_BYTES_MAX))).error == 0


def test_who_would_need_more_is_closed_and_the_others_go_on(broker: BrokerThread, topic: str) -> None:
    frame = frame_of(topic, 1_900_000)
    begun = 1_200_000
    with WireClient(broker.bootstrap) as first, WireClient(broker.bootstrap) as second:
        first.send(frame[:begun])
        wait_until(lambda: received_bytes(broker) >= begun)
        second.send(frame[:begun])
        assert second.closed_by_peer()
        first.send(frame[begun:])
        assert read_produced(first.receive()).error == 0
    wait_until(lambda: received_bytes(broker) == 0)
    with WireClient(broker.bootstrap) as again:
        assert read_produced(again.exchange(frame)).error == 0


def test_a_connection_does_not_end_because_a_larger_buffer_would_be_handy(
    broker: BrokerThread, topic: str
) -> None:
    """After a large frame a connection keeps room for several, if there is any."""
    with WireClient(broker.bootstrap) as first, WireClient(broker.bootstrap) as second:
        first.send(frame_of(topic, 1_750_000)[:1_200_000])
        wait_until(lambda: received_bytes(broker) >= 1_200_000)
        small = frame_of(topic, 70_000)
        for _ in range(3):
            second.send(small[:66_000])
            time.sleep(0.02)
            second.send(small[66_000:])
            assert read_produced(second.receive()).error == 0
