"""The codecs: what they write, what they read, and that bombs stay within their limit."""

import contextlib
import random
import resource
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import cramjam
import pytest

from tidelog.records.compression import Codec, compress, decompress
from tidelog.records.corrupt_record import CorruptRecord, DecompressedTooLarge

COMPRESSING = [codec for codec in Codec if codec is not Codec.NONE]
TEXT = b"".join(b"line %d of a text that compresses well\n" % number for number in range(20_000))
NOISE = random.Random(7).randbytes(200_000)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("data", [b"", b"x", TEXT, NOISE, bytes(1 << 20), NOISE[:65536], NOISE[:65537]])
def test_round_trip_and_exact_limit(codec: Codec, data: bytes) -> None:
    packed = compress(codec, memoryview(data))
    assert bytes(decompress(codec, packed, len(data))) == data
    if data:
        with pytest.raises(DecompressedTooLarge):
            decompress(codec, packed, len(data) - 1)


@pytest.mark.parametrize(
    ("codec", "levels"),
    [(Codec.GZIP, (-1, 1, 9)), (Codec.LZ4, (1, 2, 3, 9, 12, 17)), (Codec.ZSTD, (-131072, -5, 1, 3, 19, 22))],
)
def test_every_level_that_kafka_allows(codec: Codec, levels: tuple[int, ...]) -> None:
    text = TEXT[:150_000]
    sizes = []
    for level in levels:
        packed = compress(codec, text, level)
        assert bytes(decompress(codec, packed, len(text))) == text
        sizes.append(len(packed))
    assert sizes[-1] < sizes[1], "the highest level should beat a low one"


@pytest.mark.parametrize("level", [1, 9, 17])
def test_lz4_frames_are_what_java_reads(level: int) -> None:
    """Version 1, independent blocks, none above 64 KiB, no content size, no dictionary, an end mark."""
    packed = compress(Codec.LZ4, TEXT + NOISE, level)
    flags, block_descriptor = packed[4], packed[5]
    assert packed[:4].hex() == "04224d18"
    assert flags & 0b1110_1111 == 0b0110_0000
    assert block_descriptor == 0x40
    checksum_size = 4 if flags & 0b1_0000 else 0
    position = 7
    while length := struct.unpack_from("<I", packed, position)[0] & 0x7FFFFFFF:
        assert length <= 65536
        position += 4 + length + checksum_size
    assert position == len(packed) - 4
    assert bytes(cramjam.lz4.decompress(packed)) == TEXT + NOISE


def test_lz4_frames_of_other_libraries_are_read() -> None:
    linked = bytes(cramjam.lz4.compress(TEXT))
    assert not linked[4] & 0x20, "this library links blocks"
    assert bytes(decompress(Codec.LZ4, linked, len(TEXT))) == TEXT


def test_snappy_is_framed_and_read_with_or_without_frame() -> None:
    packed = compress(Codec.SNAPPY, TEXT)
    assert packed[:16] == b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    assert bytes(decompress(Codec.SNAPPY, packed + packed, 2 * len(TEXT))) == TEXT + TEXT
    raw = bytes(cramjam.snappy.compress_raw(TEXT))
    assert bytes(decompress(Codec.SNAPPY, raw, len(TEXT))) == TEXT


def test_strung_together_members_are_read() -> None:
    for codec in (Codec.GZIP, Codec.ZSTD, Codec.LZ4):
        packed = compress(codec, TEXT)
        assert bytes(decompress(codec, packed + packed, 2 * len(TEXT))) == TEXT + TEXT


@pytest.mark.parametrize("codec", COMPRESSING)
def test_torn_or_junk_data_is_corrupt(codec: Codec) -> None:
    packed = compress(codec, TEXT)
    for size in (0, 1, 5, 15, 17, 19, len(packed) // 2, len(packed) - 1):
        if codec is Codec.SNAPPY and size == 0:
            continue
        with pytest.raises(CorruptRecord):
            decompress(codec, packed[:size], 1 << 24)
    for junk in (b"\x00" * 40, b"\xff" * 40, b"not compressed at all, plain text"):
        with pytest.raises(CorruptRecord):
            decompress(codec, junk, 1 << 24)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_flipped_bits_are_corrupt_or_wrong_but_never_crash(codec: Codec) -> None:
    packed = compress(codec, TEXT[:5000])
    chance = random.Random(11)
    for _ in range(400):
        flipped = bytearray(packed)
        flipped[chance.randrange(len(flipped))] ^= 1 << chance.randrange(8)
        with contextlib.suppress(CorruptRecord):
            assert len(decompress(codec, flipped, 1 << 20)) <= 1 << 20


ZEROS = bytes(16 << 20)
XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)

# Small data that holds, or claims to hold, far more than the limit: up to a gigabyte, or 2**60 bytes.
BOMBS: dict[str, tuple[Codec, Callable[[], bytes]]] = {
    "gzip": (Codec.GZIP, lambda: compress(Codec.GZIP, ZEROS) * 64),
    "lz4": (Codec.LZ4, lambda: compress(Codec.LZ4, ZEROS) * 64),
    "lz4-linked": (Codec.LZ4, lambda: bytes(cramjam.lz4.compress(ZEROS * 4)) * 4),
    "zstd": (Codec.ZSTD, lambda: compress(Codec.ZSTD, ZEROS) * 64),
    "zstd-one-frame": (Codec.ZSTD, lambda: compress(Codec.ZSTD, ZEROS * 4)),
    # A frame header alone: single segment, a content size of 2**60, and an empty last block.
    "zstd-claim": (Codec.ZSTD, lambda: b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 2**60) + b"\x01\0\0"),
    "snappy-xerial": (Codec.SNAPPY, lambda: XERIAL_HEADER + compress(Codec.SNAPPY, ZEROS)[16:] * 8),
    "snappy-raw": (Codec.SNAPPY, lambda: bytes(cramjam.snappy.compress_raw(ZEROS))),
    "snappy-raw-claim": (Codec.SNAPPY, lambda: b"\xff\xff\xff\xff\x0f" + b"\x00a" * 10),
    "snappy-xerial-claim": (Codec.SNAPPY, lambda: XERIAL_HEADER + b"\0\0\0\x07\xff\xff\xff\xff\x0f\0a"),
}

LIMIT_BYTES = 4 << 20
CHILD = """
import resource, sys
from tidelog.records.compression import Codec, decompress
from tidelog.records.corrupt_record import CorruptRecord
codec, data = Codec(int(sys.argv[1])), open(sys.argv[2], "rb").read()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (48 << 20), resource.RLIM_INFINITY))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    decompress(codec, data, int(sys.argv[3]))
except CorruptRecord as error:
    grown_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    print(type(error).__name__, grown_bytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/statm")
@pytest.mark.parametrize("name", BOMBS)
def test_bombs_stay_within_the_limit(name: str, tmp_path: Path) -> None:
    """In a child that may map only 48 MiB more than it has: a bomb that unfolds would kill it."""
    codec, data = BOMBS[name]
    (tmp_path / "bomb").write_bytes(data())
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(int(codec)), str(tmp_path / "bomb"), str(LIMIT_BYTES)],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert child.returncode == 0, child.stderr
    kind, grown_bytes = child.stdout.split()
    assert kind == ("CorruptRecord" if name == "zstd-claim" else "DecompressedTooLarge")
    assert int(grown_bytes) < LIMIT_BYTES + (4 << 20) + resource.getpagesize()
