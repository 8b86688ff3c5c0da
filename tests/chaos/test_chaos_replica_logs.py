"""Comparing replicas on disk: what may differ passes, what may not is found."""

from pathlib import Path

import pytest

from tests.chaos.kafka_wire import batch_of
from tests.chaos.replica_logs import differences, stored_batches
from tidelog.records.batch import patch_offset_and_epoch


def store(folder: Path, values: list[bytes], *, epoch: int = 0, first: int = 0) -> Path:
    """One segment with a batch for each value."""
    place = folder / "t-0"
    place.mkdir(parents=True, exist_ok=True)
    written = bytearray()
    for offset, value in enumerate(values, first):
        batch = bytearray(batch_of(value, timestamp_ms=1))
        patch_offset_and_epoch(memoryview(batch), 0, offset, epoch)
        written += batch
    (place / f"{first:020}.log").write_bytes(written)
    return folder


VALUES = [b"%d" % number for number in range(9)]


@pytest.fixture
def folders(tmp_path: Path) -> dict[int, Path]:
    return {number: store(tmp_path / str(number), VALUES) for number in (1, 2, 3)}


def test_equal_replicas(folders: dict[int, Path]) -> None:
    assert [batch.base_offset for batch in stored_batches(folders[1] / "t-0")] == list(range(9))
    assert differences(folders, "t", 0) == []


def test_a_replica_may_lack_the_end_and_the_beginning(folders: dict[int, Path]) -> None:
    store(folders[2], VALUES[:6])
    (folders[3] / "t-0" / f"{0:020}.log").unlink()
    store(folders[3], VALUES[4:], first=4)
    assert differences(folders, "t", 0) == []


@pytest.mark.parametrize(
    ("values", "epoch"),
    [
        ([*VALUES[:4], b"other", *VALUES[5:]], 0),
        (VALUES[:4] + VALUES[3:], 0),
        (VALUES, 1),
        ([*VALUES[:4], b"tail"], 0),
    ],
    ids=["changed", "repeated", "other epoch", "diverged tail"],
)
def test_what_may_not_differ(folders: dict[int, Path], values: list[bytes], epoch: int) -> None:
    store(folders[2], values, epoch=epoch)
    assert differences(folders, "t", 0)


def test_a_hole(folders: dict[int, Path]) -> None:
    store(folders[2], VALUES[:3])
    store(folders[2], VALUES[5:], first=5)
    assert "differ at [3, 4]" in differences(folders, "t", 0)[0]


def test_no_replica_at_all(tmp_path: Path) -> None:
    assert differences({1: tmp_path}, "t", 0) == ["t-0: there is no replica"]
