"""The writer of record batches against brokers that refuse, forget to answer and change places."""

import random
from typing import Any

import pytest

from tidelog.client import record_writer
from tidelog.client.client_settings import ClientSettings
from tidelog.client.faults import LinkFault, Refusal
from tidelog.client.produce_requests import BatchToSend, decode_response, encode_request
from tidelog.client.record_writer import RecordWriter
from tidelog.model.errors import ErrorCode
from tidelog.protocol import produce
from tidelog.records.batch import read_header
from tidelog.records.builder import build_batch
from tidelog.records.record import Record

PARTITIONS = 4
BROKERS = 2
_FRAME_PREFIX_BYTES = 8


class Logs:
    """The partitions with their sequence checks, who leads them, and how bad the day is."""

    def __init__(self, seed: int, trouble: float) -> None:
        self.choose = random.Random(seed)
        self.trouble = trouble
        self.logs: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
        self.leaders = {partition: partition % BROKERS for partition in range(PARTITIONS)}
        self.in_flight_seen = 0

    def write(self, broker_id: int, partition: int, data: memoryview) -> ErrorCode:
        if self.choose.random() < self.trouble / 4:
            self.leaders[partition] = self.choose.randrange(BROKERS)
        if self.leaders[partition] != broker_id:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self.choose.random() < self.trouble:
            return self.choose.choice([ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.CONCURRENT_TRANSACTIONS])
        sequence = read_header(data).base_sequence
        if sequence > len(self.logs[partition]):
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if sequence < len(self.logs[partition]):
            return self.choose.choice([ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER])
        self.logs[partition].append(sequence)
        return ErrorCode.NONE


class FakeLink:
    def __init__(self, logs: Logs, broker_id: int) -> None:
        self.logs, self.broker_id = logs, broker_id
        self.answers: dict[int, bytes] = {}
        self.closed = False
        self.ticket = 0

    def version_of(self, api_key: int, lowest: int, highest: int) -> int:
        return highest

    def send(self, api_key: int, version: int, pieces: list[Any]) -> int:
        if self.closed or self.logs.choose.random() < self.logs.trouble / 5:
            self.close("the cable")
            raise LinkFault("gone before the request")
        request = produce.decode_request(memoryview(bytearray(b"".join(pieces))), 0, version)
        rows = []
        for _, partitions in request.topics:
            for partition, data in partitions:
                assert data is not None
                error = self.logs.write(self.broker_id, partition, data)
                rows.append(produce.PartitionProduced(partition, error))
        self.ticket += 1
        self.answers[self.ticket] = produce.encode_response([("t", rows)], version, 0)
        self.logs.in_flight_seen = max(self.logs.in_flight_seen, len(self.answers))
        return self.ticket

    def receive(self, ticket: int, timeout_ms: int) -> memoryview:
        if self.closed or self.logs.choose.random() < self.logs.trouble / 5:
            self.close("the cable")
            raise LinkFault("gone before the answer")
        return memoryview(self.answers.pop(ticket))[_FRAME_PREFIX_BYTES:]

    def close(self, reason: str) -> None:
        self.closed = True


class FakeCluster:
    settings = ClientSettings(bootstrap_servers=(("localhost", 1),))

    def __init__(self, logs: Logs) -> None:
        self.logs = logs
        self.links: dict[int, FakeLink] = {}
        self.known = dict(logs.leaders)

    def leader_of(self, topic: str, partition: int) -> int:
        return self.known[partition]

    def forget_places(self) -> None:
        self.known = dict(self.logs.leaders)

    def link_to(self, broker_id: int) -> FakeLink:
        link = self.links.get(broker_id)
        if link is None or link.closed:
            link = self.links[broker_id] = FakeLink(self.logs, broker_id)
        return link


def batch_of(partition: int, sequence: int) -> BatchToSend:
    data = build_batch([Record(0, 0, None, b"v")], producer_id=1, producer_epoch=0, base_sequence=sequence)
    return BatchToSend("t", partition, data)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_writer.time, "sleep", lambda seconds: None)  # type: ignore[attr-defined]


@pytest.mark.parametrize("trouble", [0.0, 0.05, 0.3])
def test_every_batch_is_written_once_and_in_order(trouble: float) -> None:
    for seed in range(60):
        logs = Logs(seed, trouble)
        cluster = FakeCluster(logs)
        writer = RecordWriter(cluster, None, request_bytes_max=200, buffer_bytes_max=2_000)  # type: ignore[arg-type]
        for sequence in range(15):
            for partition in range(PARTITIONS):
                writer.send(batch_of(partition, sequence))
            if seed % 3 == 0:
                writer.pump()
        writer.flush()
        assert logs.logs == {partition: list(range(15)) for partition in range(PARTITIONS)}, f"seed {seed}"
        assert (writer.retries > 0) == (trouble > 0) or trouble == 0.05
        assert 1 < logs.in_flight_seen <= record_writer.REQUESTS_IN_FLIGHT_MAX


def test_what_cannot_pass_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = Logs(1, 0)
    monkeypatch.setattr(logs, "write", lambda *_: ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    writer = RecordWriter(FakeCluster(logs), None)  # type: ignore[arg-type]
    writer.send(batch_of(0, 0))
    with pytest.raises(Refusal, match=r"t-0.*TOPIC_AUTHORIZATION_FAILED"):
        writer.flush()


def test_a_gap_that_is_nobodys_fault_is_raised() -> None:
    writer = RecordWriter(FakeCluster(Logs(1, 0)), None)  # type: ignore[arg-type]
    writer.send(batch_of(0, 7))
    with pytest.raises(Refusal, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
        writer.flush()


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = Logs(1, 0)
    monkeypatch.setattr(logs, "write", lambda *_: ErrorCode.NOT_ENOUGH_REPLICAS)
    writer = RecordWriter(FakeCluster(logs), None, delivery_timeout_ms=20)  # type: ignore[arg-type]
    writer.send(batch_of(0, 0))
    with pytest.raises(Refusal, match="NOT_ENOUGH_REPLICAS"):
        writer.flush()


def test_requests_are_what_the_broker_reads_and_answers_what_it_writes() -> None:
    batches = [batch_of(0, 0), batch_of(1, 3)._replace(topic="u")]
    pieces = encode_request(batches, "tx", 5_000)
    request = produce.decode_request(memoryview(bytearray(b"".join(pieces))), 0, 7)
    assert (request.transactional_id, request.acks, request.timeout_ms) == ("tx", -1, 5_000)
    assert [(topic, partition) for topic, rows in request.topics for partition, _ in rows] == [
        ("t", 0),
        ("u", 1),
    ]
    rows = [
        produce.PartitionProduced(2, 87, 5, -1, 0, ((4, "bad"),), "no"),
        produce.PartitionProduced(3, 0, 9),
    ]
    for version in range(3, 9):
        body = memoryview(produce.encode_response([("t", rows)], version, 1))[_FRAME_PREFIX_BYTES:]
        first, second = decode_response(version, body)
        assert (first.partition, first.error, second.base_offset) == (2, 87, 9)
        assert first.message == ("no; record 4: bad" if version >= 8 else None)
