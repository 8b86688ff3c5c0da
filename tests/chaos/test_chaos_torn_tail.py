"""The last batch of a log torn at every byte, or changed in any: the broker cuts it off and goes on.

A broker is killed with ten batches in its log. For every length that a torn write can leave of the last
batch, and for a flipped bit in every one of its bytes, a broker opens a copy of the folder: all earlier
records are served, the next append gets the offset of the lost batch, and the producer may send that batch
again.
"""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.chaos.in_process import InProcessBroker, batch_now
from tests.support.simulated_store import SimulatedStore
from tidelog.records.batch import iterate_headers
from tidelog.records.compression import Codec
from tidelog.storage.disk import OsDisk

BATCHES = 10
RECORDS_PER_BATCH = 2
PRODUCER_ID = 7
#: The format's checksum does not cover the base offset and the leader epoch, so a change there may pass.
UNCHECKED_BYTES = (*range(8), *range(12, 16))


class Crashed(NamedTuple):
    """What a killed broker left: its folder, its metadata, the segment and where the last batch starts."""

    folder: Path
    store: SimulatedStore
    segment: Path
    last_batch: int
    data: bytes


def idempotent_batch(number: int, codec: Codec = Codec.NONE) -> bytes:
    return batch_now(
        b"value-%d" % number,
        b"tail",
        codec=codec,
        producer_id=PRODUCER_ID,
        producer_epoch=0,
        base_sequence=number * RECORDS_PER_BATCH,
    )


@pytest.fixture(scope="module", params=[Codec.NONE, Codec.ZSTD], ids=["plain", "zstd"])
def crashed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Crashed:
    folder = tmp_path_factory.mktemp("torn") / "data"
    store = SimulatedStore()
    node = InProcessBroker(str(folder), OsDisk(), store)
    node.create_topic("log", index_interval_bytes="100")
    size_before = 0
    segment = folder / "log-0" / "00000000000000000000.log"
    for number in range(BATCHES):
        size_before = segment.stat().st_size
        produced = node.produce("log", 0, idempotent_batch(number, request.param))
        assert (produced.error, produced.base_offset) == (0, number * RECORDS_PER_BATCH)
    return Crashed(folder, store, segment, size_before, segment.read_bytes())


def reopen(crashed: Crashed, copy: Path, change: Callable[[Path], None]) -> InProcessBroker:
    """A broker on a changed copy of the folder."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(crashed.folder, copy, ignore=shutil.ignore_patterns(".lock"))
    change(copy / "log-0" / crashed.segment.name)
    return InProcessBroker(str(copy), OsDisk(), crashed.store.reopen())


def check_recovered(node: InProcessBroker, crashed: Crashed, what: str) -> None:
    """Everything but the last batch is there; the last one can be sent again and is appended once."""
    fetched = node.fetch("log", 0, 0)
    expected_end = (BATCHES - 1) * RECORDS_PER_BATCH
    assert fetched.error == 0 and fetched.high_watermark == expected_end, what
    assert fetched.records == crashed.data[: crashed.last_batch], what
    again = idempotent_batch(BATCHES - 1)
    assert node.produce("log", 0, again).base_offset == expected_end, what
    assert node.produce("log", 0, again).base_offset == expected_end, "a retry is recognised"
    assert node.produce("log", 0, batch_now(b"after")).base_offset == expected_end + RECORDS_PER_BATCH
    headers = [
        header.base_offset for _, header in iterate_headers(memoryview(node.fetch("log", 0, 0).records))
    ]
    assert headers == [*range(0, expected_end + 1, RECORDS_PER_BATCH), expected_end + RECORDS_PER_BATCH], what


def test_torn_at_every_byte(crashed: Crashed, tmp_path: Path) -> None:
    for size in range(crashed.last_batch, len(crashed.data)):

        def cut(segment: Path, size: int = size) -> None:
            segment.write_bytes(crashed.data[:size])

        node = reopen(crashed, tmp_path / "copy", cut)
        check_recovered(node, crashed, f"cut at byte {size - crashed.last_batch} of the last batch")


def test_a_bit_flipped_in_every_byte(crashed: Crashed, tmp_path: Path) -> None:
    generator = random.Random(1)
    for place in range(crashed.last_batch, len(crashed.data)):

        def flip(segment: Path, place: int = place) -> None:
            data = bytearray(crashed.data)
            data[place] ^= 1 << generator.randrange(8)
            segment.write_bytes(bytes(data))

        node = reopen(crashed, tmp_path / "copy", flip)
        if place - crashed.last_batch in UNCHECKED_BYTES:
            assert node.fetch("log", 0, 0).records[: crashed.last_batch] == crashed.data[: crashed.last_batch]
            assert node.produce("log", 0, batch_now(b"after")).error == 0
            continue
        if node.fetch("log", 0, 0).high_watermark == BATCHES * RECORDS_PER_BATCH:
            raise AssertionError(f"byte {place - crashed.last_batch} was changed, and nobody noticed")
        check_recovered(node, crashed, f"a bit of byte {place - crashed.last_batch} flipped")


def test_garbage_behind_the_last_batch(crashed: Crashed, tmp_path: Path) -> None:
    generator = random.Random(2)
    tails = [bytes(n) for n in (1, 11, 12, 60, 61, 5_000)]
    tails += [generator.randbytes(n) for n in (1, 16, 61, 400, 5_000)]
    # A whole batch that a roll or truncation left behind: its offsets were used before.
    tails.append(crashed.data[crashed.last_batch :])
    for tail in tails:

        def append(segment: Path, tail: bytes = tail) -> None:
            segment.write_bytes(crashed.data + tail)

        node = reopen(crashed, tmp_path / "copy", append)
        fetched = node.fetch("log", 0, 0)
        assert fetched.records == crashed.data, f"{len(tail)} bytes of garbage"
        assert node.produce("log", 0, batch_now(b"after")).base_offset == BATCHES * RECORDS_PER_BATCH


def test_indexes_lost_or_torn(crashed: Crashed, tmp_path: Path) -> None:
    for suffix in (".index", ".timeindex"):
        for damage in (None, b"", b"\x00", b"\xff" * 7, b"\xff" * 24, bytes(4_000)):

            def spoil(segment: Path, suffix: str = suffix, damage: bytes | None = damage) -> None:
                index = segment.with_suffix(suffix)
                if damage is None:
                    index.unlink(missing_ok=True)
                else:
                    index.write_bytes(damage)

            node = reopen(crashed, tmp_path / "copy", spoil)
            assert node.fetch("log", 0, 0).records == crashed.data, f"{suffix} {damage!r}"
            for number in range(BATCHES):
                fetched = node.fetch("log", 0, number * RECORDS_PER_BATCH + 1)
                first = next(iterate_headers(memoryview(fetched.records)))[1]
                assert first.base_offset == number * RECORDS_PER_BATCH
