"""Frames and connections: sizes, unknown requests, ApiVersions, splitting, pipelining, order of answers."""

import socket
import struct
import threading
import time

import pytest

from tests.chaos.kafka_wire import (
    CLIENT_ID,
    ConnectionClosed,
    WireClient,
    batch_of,
    fetch_frame,
    frame,
    produce_frame,
    read_fetched,
    read_produced,
    read_response,
    request_frame,
)
from tidelog.model.errors import ErrorCode
from tidelog.protocol.apis import APIS
from tidelog.server.connection import QUEUED_ANSWER_BYTES_MAX
from tidelog.server.process import BrokerThread

UNSUPPORTED_VERSION = 35
METADATA_ALL = frame(3, 1, 77, struct.pack(">i", -1), flexible=False)


def correlation_id(answer: bytes) -> int:
    return int(struct.unpack_from(">i", answer)[0])


def rows_of_version_0(answer: bytes) -> tuple[int, dict[int, tuple[int, int]]]:
    """Error and rows of an ApiVersions answer in version 0, read by hand."""
    error, count = struct.unpack_from(">hi", answer, 4)
    assert len(answer) == 10 + 6 * count
    rows = [struct.unpack_from(">hhh", answer, 10 + 6 * index) for index in range(count)]
    return error, {key: (low, high) for key, low, high in rows}


class TestApiVersions:
    @pytest.mark.parametrize("version", range(5))
    def test_every_version_answers_with_the_table_and_a_header_without_tags(
        self, client: WireClient, version: int
    ) -> None:
        fields = {"client_software_name": "test", "client_software_version": "1.0"} if version >= 3 else {}
        answer = client.exchange(request_frame("api_versions", version, 5, fields))
        response = read_response("api_versions", version, answer)
        assert int(response.error_code) == 0
        found = {int(row.api_key): (int(row.min_version), int(row.max_version)) for row in response.api_keys}
        assert found == {api.key: (api.min_version, api.max_version) for api in APIS.values()}

    def test_version_5_names_no_broker(self, client: WireClient) -> None:
        body = b"\x05test\x041.0" + b"\x00" + struct.pack(">i", -1) + b"\x00"
        answer = client.exchange(frame(18, 5, 9, body, flexible=True))
        assert read_response("api_versions", 4, answer).error_code == 0

    def test_version_5_for_another_broker_is_sent_away(self, client: WireClient) -> None:
        body = b"\x05test\x041.0" + b"\x06other" + struct.pack(">i", 1) + b"\x00"
        answer = client.exchange(frame(18, 5, 9, body, flexible=True))
        assert struct.unpack_from(">h", answer, 4)[0] == ErrorCode.REBOOTSTRAP_REQUIRED

    @pytest.mark.parametrize("version", [6, 99, 2**15 - 1, -1])
    def test_an_unknown_version_gets_a_version_0_body_with_error_35(
        self, client: WireClient, version: int
    ) -> None:
        answer = client.exchange(frame(18, version, 11, b"whatever", flexible=True))
        assert correlation_id(answer) == 11
        error, rows = rows_of_version_0(answer)
        assert error == UNSUPPORTED_VERSION
        assert rows[18] == (0, 5)
        # The connection goes on with a version both know.
        assert rows_of_version_0(client.exchange(frame(18, 0, 12, b"", flexible=False)))[0] == 0

    def test_old_clients_find_the_versions_they_look_for(self, client: WireClient) -> None:
        _, rows = rows_of_version_0(client.exchange(frame(18, 0, 1, b"", flexible=False)))
        for key, versions in {
            0: (0, 3, 7),
            1: (4, 10),
            2: (1,),
            8: (2,),
            9: (1,),
            10: (0,),
            11: (0,),
            22: (0,),
        }.items():
            assert all(rows[key][0] <= version <= rows[key][1] for version in versions), key

    def test_a_bad_software_name_is_an_invalid_request(self, client: WireClient) -> None:
        answer = client.exchange(
            request_frame(
                "api_versions", 3, 1, {"client_software_name": "  ", "client_software_version": "1"}
            )
        )
        assert int(read_response("api_versions", 3, answer).error_code) == ErrorCode.INVALID_REQUEST


class TestRefusedFrames:
    @pytest.mark.parametrize("key", [4, 17, 999, 2**15 - 1, -1])
    def test_an_unknown_api_closes_only_that_connection(
        self, broker: BrokerThread, client: WireClient, key: int
    ) -> None:
        with WireClient(broker.bootstrap) as other:
            other.send(frame(key, 0, 1, b"", flexible=False))
            assert other.closed_by_peer()
        assert correlation_id(client.exchange(METADATA_ALL)) == 77

    @pytest.mark.parametrize(
        ("key", "version"), [(0, 2), (0, 14), (1, 3), (1, 19), (3, 14), (3, -1), (19, 0)]
    )
    def test_an_unknown_version_closes_only_that_connection(
        self, broker: BrokerThread, client: WireClient, key: int, version: int
    ) -> None:
        with WireClient(broker.bootstrap) as other:
            other.send(frame(key, version, 1, b"\x00" * 20, flexible=False))
            assert other.closed_by_peer()
        assert correlation_id(client.exchange(METADATA_ALL)) == 77

    @pytest.mark.parametrize("size", [2_000_001, 2**31 - 1, -1, -(2**31), 0, 1, 7])
    def test_an_impossible_size_closes_at_once(
        self, broker: BrokerThread, client: WireClient, size: int
    ) -> None:
        with WireClient(broker.bootstrap) as other:
            other.send(struct.pack(">i", size))
            assert other.closed_by_peer()
        assert correlation_id(client.exchange(METADATA_ALL)) == 77

    def test_a_size_at_the_limit_is_read(self, broker: BrokerThread, topic: str) -> None:
        with WireClient(broker.bootstrap) as other:
            batch = batch_of(bytes(1_900_000))
            produced = other.produce(topic, 0, batch)
            assert produced.error == ErrorCode.MESSAGE_TOO_LARGE

    def test_a_body_cut_short_closes(self, broker: BrokerThread, topic: str) -> None:
        whole = produce_frame(topic, 0, batch_of(b"value"))
        for end in range(12, len(whole), 7):
            with WireClient(broker.bootstrap) as other:
                other.send(struct.pack(">i", end - 4) + whole[4:end])
                assert other.closed_by_peer(), f"cut at {end}"

    def test_answers_before_a_bad_frame_still_leave(self, broker: BrokerThread) -> None:
        with WireClient(broker.bootstrap) as other:
            other.send(METADATA_ALL)
            assert correlation_id(other.receive()) == 77
            other.send(METADATA_ALL + frame(999, 0, 1, b"", flexible=False))
            with pytest.raises(ConnectionClosed):
                while True:
                    other.receive()

    def test_a_client_id_may_be_missing_or_strange(self, client: WireClient) -> None:
        for length, text in ((-1, b""), (0, b""), (3, b"\xff\xfe\xfd")):
            head = struct.pack(">hhih", 18, 0, 21, length) + text
            client.send(struct.pack(">i", len(head)) + head)
            assert correlation_id(client.receive()) == 21


class TestOrder:
    def test_frames_may_be_split_at_every_byte(self, client: WireClient, topic: str) -> None:
        whole = produce_frame(topic, 0, batch_of(b"value"), correlation_id=3) + METADATA_ALL
        for cut in range(1, len(whole)):
            client.send(whole[:cut])
            # Without a pause the kernel would join the two pieces again.
            time.sleep(0.0005)
            client.send(whole[cut:])
            produced = read_produced(client.receive())
            assert (produced.correlation_id, produced.error) == (3, 0), f"cut at {cut}"
            assert correlation_id(client.receive()) == 77

    def test_single_bytes(self, client: WireClient) -> None:
        for byte in METADATA_ALL:
            client.send(bytes((byte,)))
        assert correlation_id(client.receive()) == 77

    def test_a_hundred_requests_at_once_are_answered_in_order(self, client: WireClient, topic: str) -> None:
        requests = []
        for number in range(100):
            if number % 3 == 0:
                requests.append(produce_frame(topic, 0, batch_of(b"%d" % number), correlation_id=number))
            elif number % 3 == 1:
                requests.append(fetch_frame(topic, 0, 0, correlation_id=number))
            else:
                requests.append(frame(3, 1, number, struct.pack(">i", -1), flexible=False))
        client.send(b"".join(requests))
        assert [correlation_id(client.receive()) for _ in range(100)] == list(range(100))
        assert client.fetch(topic, 0, 0).high_watermark == 34

    def test_an_answer_waits_behind_a_parked_one(self, client: WireClient, topic: str) -> None:
        begun = time.monotonic()
        client.send(fetch_frame(topic, 0, 0, max_wait_ms=300, correlation_id=1) + METADATA_ALL)
        fetched = read_fetched(client.receive())
        waited = time.monotonic() - begun
        assert (fetched.correlation_id, fetched.records) == (1, b"")
        assert correlation_id(client.receive()) == 77
        assert waited > 0.25

    def test_two_parked_ones_with_the_later_ready_first(
        self, broker: BrokerThread, client: WireClient, topic: str
    ) -> None:
        client.send(
            fetch_frame(topic, 0, 0, max_wait_ms=5_000, correlation_id=1)
            + fetch_frame(topic, 1, 0, max_wait_ms=5_000, correlation_id=2)
        )
        with WireClient(broker.bootstrap) as producer:
            producer.produce(topic, 1, batch_of(b"second"))
            client.socket.settimeout(0.2)
            with pytest.raises(TimeoutError):
                client.socket.recv(1)
            client.socket.settimeout(10)
            producer.produce(topic, 0, batch_of(b"first"))
        assert read_fetched(client.receive()).correlation_id == 1
        second = read_fetched(client.receive())
        assert second.correlation_id == 2 and b"second" in second.records

    def test_a_connection_that_goes_away_while_parked_leaves_nothing(
        self, broker: BrokerThread, client: WireClient, topic: str
    ) -> None:
        assert broker.node is not None and broker.node.broker is not None
        purgatory = broker.node.broker.purgatory
        for _ in range(20):
            with WireClient(broker.bootstrap) as other:
                other.send(fetch_frame(topic, 0, 0, max_wait_ms=60_000))
        deadline = time.monotonic() + 5
        while purgatory.count and time.monotonic() < deadline:
            client.exchange(METADATA_ALL)
        assert purgatory.count == 0


class TestPeersThatDoNotRead:
    """Requests of a few bytes have answers of hundreds; the broker must not keep them without end."""

    REQUESTS = 30_000

    def test_answers_wait_within_a_bound_and_all_arrive_in_order(self, broker: BrokerThread) -> None:
        largest = []
        with WireClient(broker.bootstrap) as greedy:
            greedy.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
            sender = threading.Thread(target=self._ask, args=(greedy,))
            sender.start()
            with WireClient(broker.bootstrap) as other:
                for _ in range(50):
                    assert correlation_id(other.exchange(METADATA_ALL)) == 77
                    largest.append(queued_bytes(broker))
                    time.sleep(0.01)
            answers = [correlation_id(greedy.receive()) for _ in range(self.REQUESTS)]
            sender.join(10)
        assert answers == list(range(self.REQUESTS))
        assert 0 < max(largest) <= QUEUED_ANSWER_BYTES_MAX + (64 << 10)

    def _ask(self, client: WireClient) -> None:
        for start in range(0, self.REQUESTS, 1_000):
            client.send(b"".join(frame(18, 0, start + n, b"", flexible=False) for n in range(1_000)))

    def test_parked_requests_wait_within_a_bound_and_are_all_answered(
        self, broker: BrokerThread, topic: str
    ) -> None:
        count = 3_000
        with WireClient(broker.bootstrap) as greedy, WireClient(broker.bootstrap) as other:
            greedy.send(
                b"".join(fetch_frame(topic, 0, 0, max_wait_ms=60_000, correlation_id=n) for n in range(count))
            )
            assert correlation_id(other.exchange(METADATA_ALL)) == 77
            assert broker.node is not None and broker.node.broker is not None
            assert 0 < broker.node.broker.purgatory.count <= 1_000
            other.produce(topic, 0, batch_of(b"x"))
            assert [read_fetched(greedy.receive()).correlation_id for _ in range(count)] == list(range(count))

    def test_what_was_left_is_served_when_the_answers_left_at_once(
        self, broker: BrokerThread, topic: str
    ) -> None:
        """The queue is full in the middle of a turn and empty at its end, and nothing new arrives."""
        count = 60
        with WireClient(broker.bootstrap) as client:
            client.produce(topic, 0, batch_of(bytes(30_000)))
            client.send(b"".join(fetch_frame(topic, 0, 0, correlation_id=n) for n in range(count)))
            answers = [read_fetched(client.receive()) for _ in range(count)]
        assert [answer.correlation_id for answer in answers] == list(range(count))
        assert {len(answer.records) for answer in answers} == {len(batch_of(bytes(30_000)))}

    def test_what_was_left_is_served_when_the_turn_itself_woke_who_waited(
        self, broker: BrokerThread, topic: str
    ) -> None:
        count = 200
        with WireClient(broker.bootstrap) as client:
            client.send(
                fetch_frame(topic, 0, 0, max_wait_ms=60_000, correlation_id=0)
                + produce_frame(topic, 0, batch_of(b"x"), correlation_id=1)
                + b"".join(frame(18, 0, n, b"", flexible=False) for n in range(2, count))
            )
            assert [correlation_id(client.receive()) for _ in range(count)] == list(range(count))


def queued_bytes(broker: BrokerThread) -> int:
    """The most that waits in memory for one peer."""
    assert broker.node is not None and broker.node.socket_server is not None
    outputs = [connection._output for connection in list(broker.node.socket_server.connections)]
    return max(int(output.queued_bytes) for output in outputs if output is not None)


class TestAcksZero:
    def test_there_is_no_answer(self, client: WireClient, topic: str) -> None:
        client.send(produce_frame(topic, 0, batch_of(b"quiet"), acks=0, correlation_id=1) + METADATA_ALL)
        assert correlation_id(client.receive()) == 77
        assert b"quiet" in client.fetch(topic, 0, 0).records

    def test_an_error_closes_the_connection(self, broker: BrokerThread, topic: str) -> None:
        for bad in (
            produce_frame("no-such-topic", 0, batch_of(b"x"), acks=0),
            produce_frame(topic, 99, batch_of(b"x"), acks=0),
            produce_frame(topic, 0, b"\x00" * 70, acks=0),
        ):
            with WireClient(broker.bootstrap) as other:
                other.send(bad)
                assert other.closed_by_peer()

    def test_an_impossible_acks_value_is_refused(self, client: WireClient, topic: str) -> None:
        assert client.produce(topic, 0, batch_of(b"x"), acks=2).error == ErrorCode.INVALID_REQUIRED_ACKS


def test_the_client_id_is_what_the_tests_send() -> None:
    assert METADATA_ALL[14 : 14 + len(CLIENT_ID)] == CLIENT_ID
