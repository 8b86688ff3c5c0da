"""Batches that take long to unpack and to look at: whoever else asks the broker something is served.

Each goes to a compacted topic, whose records must all be looked at. A client asks for Metadata all the time;
the bombs come one after the other: a broker that unpacks them on its event loop answers between two of them.
"""

import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.attacks import bombs, tiny_record_bombs
from tests.chaos.broker_process import BrokerProcess
from tests.chaos.kafka_wire import WireClient, batch_of, produce_frame, read_produced
from tidelog.model.errors import ErrorCode
from tidelog.records.builder import build_batch
from tidelog.records.compression import Codec
from tidelog.records.record import Record

BOMBED_SECONDS = 4.0
MEDIAN_SECONDS_MAX = 0.1
WORST_SECONDS_MAX = 0.25
RECORDS = 300_000
SETTINGS = {"offsets.topic.num.partitions": "1"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, SETTINGS) as process:
        process.start()
        with WireClient(process.bootstrap) as client:
            client.create_topic("table", **{"cleanup.policy": "compact"})  # type: ignore[arg-type]
        yield process


class Bomber(threading.Thread):
    """Sends batches, one after the other, until it is told to stop."""

    def __init__(self, bootstrap: str, batches: list[bytes]) -> None:
        super().__init__(daemon=True)
        self._address, self._batches = bootstrap, batches
        self.stopping = threading.Event()
        self.errors: list[int] = []
        self.fault: BaseException | None = None

    def run(self) -> None:
        try:
            with WireClient(self._address, 60.0) as client:
                while not self.stopping.is_set():
                    for batch in self._batches:
                        self.errors.append(client.produce("table", 0, batch, acks=1).error)
        except BaseException as fault:
            self.fault = fault


def many_records(count: int) -> bytes:
    """A batch of many small records, all of them fit."""
    now_ms = time.time_ns() // 1_000_000
    records = [Record(number, now_ms, b"", None) for number in range(count)]
    return bytes(build_batch(records, codec=Codec.ZSTD))


def metadata_seconds(bootstrap: str, seconds: float) -> list[float]:
    took = []
    with WireClient(bootstrap, 60.0) as client:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            begun = time.monotonic()
            client.ask("metadata", 12, topics=[])
            took.append(time.monotonic() - begun)
            time.sleep(0.002)
    return sorted(took)


def test_bombs_do_not_hold_up_whoever_asks_for_metadata(broker: BrokerProcess) -> None:
    made = bombs()
    batches = [batch for name, batch in made.items() if "snappy" not in name]
    bomber = Bomber(broker.bootstrap, batches)
    bomber.start()
    took = metadata_seconds(broker.bootstrap, BOMBED_SECONDS)
    bomber.stopping.set()
    bomber.join(60.0)
    assert bomber.fault is None and bomber.errors
    assert set(bomber.errors) <= {ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_RECORD}
    check(took, f"{len(bomber.errors)} bombs")


def test_many_records_do_not_hold_up_whoever_asks_for_metadata(broker: BrokerProcess) -> None:
    bomber = Bomber(broker.bootstrap, [many_records(RECORDS)])
    bomber.start()
    took = metadata_seconds(broker.bootstrap, BOMBED_SECONDS)
    bomber.stopping.set()
    bomber.join(60.0)
    assert bomber.fault is None and set(bomber.errors) == {0}
    check(took, f"{len(bomber.errors)} batches of {RECORDS} records")
    # In order, and nothing twice: the batches are where they were acknowledged, and so is what comes after.
    with WireClient(broker.bootstrap) as client:
        produced = client.produce("table", 0, batch_of(b"after", key=b"k"), acks=1)
        assert produced.base_offset == RECORDS * len(bomber.errors)


def test_bombs_of_tiny_records_on_several_connections_do_not_hold_up_others(broker: BrokerProcess) -> None:
    """One of each codec: 240,000 to 1,200,000 right records in a megabyte."""
    bombers = [Bomber(broker.bootstrap, [batch]) for batch in tiny_record_bombs().values()]
    for bomber in bombers:
        bomber.start()
    took = metadata_seconds(broker.bootstrap, BOMBED_SECONDS)
    for bomber in bombers:
        bomber.stopping.set()
    for bomber in bombers:
        bomber.join(120.0)
    assert all(bomber.fault is None and set(bomber.errors) == {0} for bomber in bombers)
    check(took, f"{sum(len(bomber.errors) for bomber in bombers)} batches of tiny records")


def check(took: list[float], what: str) -> None:
    late = took[int(len(took) * 0.95)]
    print(
        f"{what}: Metadata {len(took)} times, median {statistics.median(took) * 1000:.1f} ms, "
        f"95 % {late * 1000:.1f} ms, worst {took[-1] * 1000:.0f} ms"
    )
    assert statistics.median(took) < MEDIAN_SECONDS_MAX
    assert late < WORST_SECONDS_MAX


def test_long_and_short_batches_of_a_connection_are_appended_in_order(broker: BrokerProcess) -> None:
    long = many_records(50_000)
    frames = [long, batch_of(b"one"), long, batch_of(b"two"), batch_of(b"three"), long]
    with WireClient(broker.bootstrap, 60.0) as client:
        for number, batch in enumerate(frames):
            client.send(produce_frame("table", 0, batch, acks=-1, correlation_id=number))
        answers = [read_produced(client.receive()) for _ in frames]
    assert [answer.correlation_id for answer in answers] == list(range(len(frames)))
    assert [answer.error for answer in answers] == [0] * len(frames)
    assert [answer.base_offset for answer in answers] == [0, 50_000, 50_001, 100_001, 100_002, 100_003]
