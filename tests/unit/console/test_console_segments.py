"""Segments on disk: of a real broker through the page and the API, and of damaged or forbidden folders."""

import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import Producer
from starlette.testclient import TestClient

from tidelog.console.application import create_application
from tidelog.console.console import Console, ConsoleSettings
from tidelog.console.faults import ConsoleFault
from tidelog.console.segment_files import SegmentFiles
from tidelog.testing.broker import RunningBroker

RECORDS = 4_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    folder = tmp_path_factory.mktemp("segments")
    with RunningBroker(data_directory=folder / "data") as running:
        configs = {"segment.bytes": "65536", "index.interval.bytes": "1024"}
        running.create_topic("cut", partitions=1, **configs)
        producer = Producer({"bootstrap.servers": running.bootstrap, "batch.num.messages": 20})
        for number in range(RECORDS):
            producer.produce("cut", f"{number:060d}", timestamp=1_700_000_000_000 + number)
        assert producer.flush(30) == 0
        yield running


def client_of(broker: RunningBroker, *folders: Path) -> TestClient:
    console = Console(ConsoleSettings(broker.bootstrap, poll_seconds=60, data_folders=folders))
    return TestClient(create_application(console), base_url="http://localhost")


def test_segments_and_their_index_entries(broker: RunningBroker) -> None:
    with client_of(broker, broker.data_directory) as client:
        told = client.get("/api/topics/cut/segments").json()
        segments = told["segments"]
        assert len(segments) > 2
        assert segments[0]["base_offset"] == 0
        assert segments[-1]["active"] and segments[-1]["last_offset"] == RECORDS - 1
        for first, second in pairwise(segments):
            assert first["last_offset"] + 1 == second["base_offset"]
            assert 0 < first["size_bytes"] <= 65_536 + 4_096
            assert first["offset_entries"] > 5
        closed = segments[1]["base_offset"]
        indexes = client.get(f"/api/topics/cut/segments?base={closed}").json()["indexes"]
        assert indexes["problems"] == []
        assert indexes["offsets_count"] == segments[1]["offset_entries"]
        for entry in indexes["offsets"]:
            assert closed <= entry["offset"] <= segments[1]["last_offset"]
            assert 1_024 < entry["step_bytes"] < 1_024 + 4_096
        # Timestamps were given to offsets one by one, so an entry of the time index can be checked.
        assert indexes["times"]
        for entry in indexes["times"]:
            assert entry["timestamp_ms"] == 1_700_000_000_000 + entry["offset"]
        page = client.get(f"/topics/cut/segments?partition=0&base={closed}")
        assert page.status_code == 200
        assert "Indexes of segment" in page.text and "active" in page.text


def test_without_a_folder_the_page_says_what_to_do(broker: RunningBroker) -> None:
    with client_of(broker) as client:
        assert "Segments are files of a broker" in client.get("/topics/cut/segments").text
        assert client.get("/api/topics/cut/segments").status_code == 404


def test_no_other_folder_is_read(broker: RunningBroker, tmp_path: Path) -> None:
    with client_of(broker, tmp_path) as client:
        page = client.get("/topics/cut/segments")
        assert page.status_code == 200 and "outside the folders" in page.text
        assert client.get("/api/topics/cut/segments").status_code == 404
        assert "did not describe its log dirs" in client.get("/topics/cut/segments?broker=77").text


def test_names_and_links_lead_nowhere_else(tmp_path: Path) -> None:
    inside, outside = tmp_path / "data", tmp_path / "secret-0"
    inside.mkdir()
    outside.mkdir()
    files = SegmentFiles((inside,))
    (inside / "link-0").symlink_to(outside)
    for log_dir, topic in ((str(tmp_path), "secret"), (str(inside), "../secret"), (str(inside), "link")):
        with pytest.raises(ConsoleFault, match="outside"):
            files.folder(log_dir, topic, 0)
    with pytest.raises(ConsoleFault, match="no folder"):
        files.folder(str(inside), "absent", 0)


def test_damaged_indexes_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    folder.mkdir()
    stem = folder / f"{5:020d}"
    stem.with_suffix(".log").write_bytes(b"x" * 10)
    files = SegmentFiles((tmp_path,))
    assert files.indexes(folder, 5).problems == (
        f"{stem.name}.index is not there yet",
        f"{stem.name}.timeindex is not there yet",
    )
    stem.with_suffix(".index").write_bytes(struct.pack(">iiii", 9, 500, 3, 100) + b"odd")
    # As Kafka leaves it while the segment is active: zeros behind the entries.
    stem.with_suffix(".timeindex").write_bytes(struct.pack(">qi", 77, 2) + bytes(24))
    found = files.indexes(folder, 5)
    assert [entry.offset for entry in found.offsets] == [14, 8]
    assert found.times_count == 1 and found.times[0].offset == 7
    assert len(found.problems) == 2 and "3 bytes" in found.problems[0] and "out of order" in found.problems[1]
    with pytest.raises(ConsoleFault, match="no segment 6"):
        files.indexes(folder, 6)
