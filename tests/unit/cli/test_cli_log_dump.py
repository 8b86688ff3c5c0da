"""`tidelog log dump`: whole files, torn files and changed bytes, in words and as JSON."""

import json
import struct
from pathlib import Path

import crc32c
import pytest
from click.testing import CliRunner

from tidelog.cli.log import log
from tidelog.cli.log_entries import Batch, BatchRecord, Damage, Summary, read_log
from tidelog.cli.log_text import preview
from tidelog.records.builder import build_batch
from tidelog.records.compression import Codec
from tidelog.records.record import Record

TIME_MS = 1_700_000_000_000
FIRST = build_batch(
    [
        Record(0, TIME_MS, b"ann", b"3 apples", (("source", b"web"), ("empty", None))),
        Record(1, TIME_MS + 1, None, b"\xff\x00", ()),
        Record(2, TIME_MS + 2, b"bob", None, ()),
    ],
    base_offset=5,
    leader_epoch=2,
)
SECOND = build_batch(
    [Record(0, TIME_MS, b"k", b"x" * 500, ())],
    base_offset=8,
    codec=Codec.ZSTD,
    producer_id=77,
    producer_epoch=1,
    base_sequence=30,
    transactional=True,
)


def dump(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(log, ["dump", *arguments])
    return result.exit_code, result.output


def segment(folder: Path, data: bytes) -> Path:
    path = folder / "00000000000000000005.log"
    path.write_bytes(data)
    return path


def test_a_whole_segment_in_words(tmp_path: Path) -> None:
    code, text = dump(str(segment(tmp_path, FIRST + SECOND)))
    assert code == 0
    assert "begins at offset 5" in text
    assert "batch at position 0: offsets 5 to 7, 3 records" in text
    assert f"batch at position {len(FIRST)}: offset 8, 1 record" in text
    assert text.count("CRC ok") == 2
    assert "codec zstd" in text
    assert "producer 77 epoch 1, sequence from 30, transactional" in text
    assert 'key "ann" (3 B)  value "3 apples" (8 B)  headers source="web" (3 B) empty=null' in text
    assert "key null  value 0xff00 (2 B)" in text
    assert 'key "bob" (3 B)  value null' in text
    assert "2 batches with 4 records, offsets 5 to 8; no damage" in text


def test_a_whole_segment_as_json(tmp_path: Path) -> None:
    code, text = dump("--json", str(segment(tmp_path, FIRST + SECOND)))
    entries = [json.loads(line) for line in text.splitlines()]
    assert code == 0
    assert [entry["type"] for entry in entries] == ["batch", *["record"] * 3, "batch", "record", "summary"]
    assert entries[1]["key"] == "ann" and entries[2]["value_base64"] == "/wA="
    assert entries[5]["value"] == "x" * 500


def test_no_records_and_limit(tmp_path: Path) -> None:
    path = str(segment(tmp_path, FIRST + SECOND))
    assert "apples" not in dump("--no-records", path)[1]
    assert "position 0:" in dump("--limit", "1", path)[1]
    assert f"position {len(FIRST)}" not in dump("--limit", "1", path)[1]


@pytest.mark.parametrize("cut", range(1, len(SECOND)))
def test_a_torn_tail_at_every_byte(tmp_path: Path, cut: int) -> None:
    entries = list(read_log(segment(tmp_path, FIRST + SECOND[:cut])))
    assert [type(entry) for entry in entries] == [Batch, *[BatchRecord] * 3, Damage, Summary]
    damage = entries[4]
    assert isinstance(damage, Damage)
    assert (damage.position, damage.size_bytes) == (len(FIRST), cut)


def test_changed_bytes_are_found(tmp_path: Path) -> None:
    changed = bytearray(FIRST + SECOND)
    changed[FIRST.index(b"apples")] ^= 1
    code, text = dump(str(segment(tmp_path, bytes(changed))))
    assert code == 1
    assert text.count("CRC BAD") == 1 and text.count("CRC ok") == 1
    assert "DAMAGED in 1 place" in text


def test_zeros_at_the_end_and_an_empty_file(tmp_path: Path) -> None:
    assert "zeros where a batch should begin" in dump(str(segment(tmp_path, FIRST + bytes(100))))[1]
    code, text = dump(str(segment(tmp_path, b"")))
    assert code == 0 and "the file is empty" in text


def test_indexes_with_preallocated_zeros(tmp_path: Path) -> None:
    index = tmp_path / "00000000000000000100.index"
    index.write_bytes(struct.pack(">iiii", 10, 4096, 20, 9000) + bytes(80))
    assert "offset 110 → position 4096" in dump(str(index))[1]
    assert "2 entries of 8 bytes; no damage" in dump(str(index))[1]
    index.write_bytes(struct.pack(">iiii", 20, 4096, 10, 9000) + b"x")
    code, text = dump(str(index))
    assert code == 1 and "goes backwards" in text and "incomplete entry" in text
    time_index = tmp_path / "00000000000000000100.timeindex"
    time_index.write_bytes(struct.pack(">qi", TIME_MS, 7))
    assert "up to 2023-11-14T22:13:20.000Z → offset 107" in dump(str(time_index))[1]


@pytest.mark.parametrize("size_bytes", [0, 96])
def test_indexes_without_entries_say_when_there_will_be_some(tmp_path: Path, size_bytes: int) -> None:
    """As they are from the first record on; those of Kafka are full of zeros then."""
    for kind, words in ((".index", "index.interval.bytes"), (".timeindex", "when the segment or the broker")):
        path = tmp_path / f"{0:020d}{kind}"
        path.write_bytes(bytes(size_bytes))
        code, text = dump(str(path))
        assert code == 0 and "no entries yet" in text and words in text and "no damage" in text


def test_snapshot_transaction_index_and_epochs(tmp_path: Path) -> None:
    body = struct.pack(">i", 1) + struct.pack(">qhiqiqiq", 77, 1, 34, 12, 4, TIME_MS, -1, 9)
    snapshot = tmp_path / "00000000000000000013.snapshot"
    snapshot.write_bytes(struct.pack(">hI", 1, crc32c.crc32c(body)) + body)
    text = dump(str(snapshot))[1]
    assert "producer 77 epoch 1: last batch offsets 8 to 12, last sequence 34" in text
    assert "transaction open since offset 9" in text
    snapshot.write_bytes(struct.pack(">hI", 1, 5) + body)
    assert dump(str(snapshot))[0] == 1
    aborted = tmp_path / "00000000000000000013.txnindex"
    aborted.write_bytes(struct.pack(">hqqqq", 0, 77, 20, 25, 26))
    assert "producer 77 aborted offsets 20 to 25" in dump(str(aborted))[1]
    epochs = tmp_path / "leader-epoch-checkpoint"
    epochs.write_text("0\n2\n0 0\n3 120\n")
    assert "epoch 3 begins at offset 120" in dump(str(epochs))[1]
    epochs.write_text("0\n3\n0 0\nx\n")
    assert dump(str(epochs))[0] == 1


def test_a_folder_and_mistakes(tmp_path: Path) -> None:
    segment(tmp_path, FIRST)
    (tmp_path / "partition.metadata").write_text("version: 0\n")
    assert "3 records" in dump(str(tmp_path))[1]
    assert dump(str(tmp_path / "absent.log"))[0] == 1
    assert "not a kind of file" in dump(str(tmp_path / "partition.metadata"))[1]


def test_preview() -> None:
    assert preview(b"", 5) == '"" (0 B)'
    assert preview("äöü".encode(), 3) == '"ä"… (6 B)'
    assert preview(b"\x00\x01", 5) == "0x0001 (2 B)"
