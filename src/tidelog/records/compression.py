"""The five codecs of the record batch: compressing, and decompressing within a limit.

What is written is what Java clients read, and therefore everybody:
- gzip: one member.
- snappy: Xerial framing, as Java writes it. A 16-byte header (magic \\x82SNAPPY\\0, version 1, compatible 1),
  then blocks of an int32 length and raw snappy of at most 32 KiB of data.
- lz4: a frame of independent blocks of at most 64 KiB. Java refuses frames whose blocks depend on each
  other, which is what most libraries write by default.
- zstd: one frame.

What is read is wider: several gzip members, raw snappy, any lz4 frame, several zstd frames.

A few kilobytes can claim or really hold gigabytes. Decompression writes into a buffer that is never larger
than the caller's limit: snappy says its size ahead and is refused by it; for the others the buffer grows
from a guess to the limit, each attempt starting over. A zstd frame may ask for a window of up to 128 MiB
beside it, of which only as much is touched as was written out.
"""

import struct
from enum import IntEnum
from mmap import mmap

import cramjam

from tidelog.records.corrupt_record import CorruptRecord, DecompressedTooLarge


class Codec(IntEnum):
    """The codecs, by their number in the batch attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


GZIP_LEVEL_DEFAULT = 6
LZ4_LEVEL_DEFAULT = 9
_LZ4_FAST = 1  # the library's number for the fast compressor
ZSTD_LEVEL_DEFAULT = 3

_XERIAL_HEADER = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_MAGIC = _XERIAL_HEADER[:8]
_XERIAL_BLOCK_BYTES = 32 << 10

_GUESS_BYTES_MIN = 64 << 10
_MAPPED_BYTES_MIN = 1 << 20
_GUESS_RATIO = 8
_GROWTH = 8
_BUFFER_FULL = "failed to write whole buffer"  # how cramjam says that the output buffer is too small

_INT32 = struct.Struct(">i")

_STREAM_DECOMPRESSORS = {
    Codec.GZIP: cramjam.gzip.decompress_into,
    Codec.LZ4: cramjam.lz4.decompress_into,
    Codec.ZSTD: cramjam.zstd.decompress_into,
}


def compress(codec: Codec, data: bytes | bytearray | memoryview, level: int | None = None) -> bytes:
    """Compress `data`; `level` None is the codec's default, and so is gzip's -1. Snappy has no levels."""
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            return bytes(
                cramjam.gzip.compress(data, GZIP_LEVEL_DEFAULT if level is None or level < 0 else level)
            )
        case Codec.SNAPPY:
            return _compress_xerial(memoryview(data))
        case Codec.LZ4:
            return _compress_lz4(data, LZ4_LEVEL_DEFAULT if level is None else level)
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(data, ZSTD_LEVEL_DEFAULT if level is None else level))


def _compress_xerial(data: memoryview) -> bytes:
    output = bytearray(_XERIAL_HEADER)
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = memoryview(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        output += _INT32.pack(len(block))
        output += block
    return bytes(output)


def _compress_lz4(data: bytes | bytearray | memoryview, level: int) -> bytes:
    # As in Java: the default level stands for the fast compressor, which has no levels; others are thorough.
    if level == LZ4_LEVEL_DEFAULT:
        level = _LZ4_FAST
    compressor = cramjam.lz4.Compressor(level, content_checksum=False, block_linked=False)
    compressor.compress(bytes(data))  # it takes nothing else
    return bytes(compressor.finish())


def decompress(codec: Codec, data: bytes | bytearray | memoryview, limit_bytes: int) -> bytes | memoryview:
    """Decompress `data` to at most `limit_bytes`.

    Raises `DecompressedTooLarge` if there is more, `CorruptRecord` if `data` is not what the codec writes.
    """
    if codec is Codec.NONE:
        if len(data) > limit_bytes:
            raise DecompressedTooLarge(limit_bytes)
        return memoryview(data)
    if codec is Codec.SNAPPY:
        return _decompress_snappy(memoryview(data), limit_bytes)
    return _decompress_stream(codec, memoryview(data), limit_bytes)


def decompress_into(codec: Codec, data: bytes | memoryview, output: memoryview) -> int | None:
    """Decompress into a buffer of the caller's; the bytes written, or None when they do not fit.

    Raises `CorruptRecord` if `data` is not what the codec writes.
    """
    if codec in (Codec.NONE, Codec.SNAPPY):
        try:
            plain = decompress(codec, data, len(output))
        except DecompressedTooLarge:
            return None
        output[: len(plain)] = plain
        return len(plain)
    try:
        return int(_STREAM_DECOMPRESSORS[codec](data, output))
    except cramjam.DecompressionError as error:
        if _BUFFER_FULL in str(error):
            return None
        raise CorruptRecord(f"corrupt {codec.name.lower()} data: {error}") from error


def _decompress_stream(codec: Codec, data: memoryview, limit_bytes: int) -> memoryview:
    size_bytes = min(limit_bytes, max(_GUESS_BYTES_MIN, len(data) * _GUESS_RATIO))
    while True:
        output = _room(size_bytes)
        written = decompress_into(codec, data, output)
        if written is not None:
            return output[:written]
        if size_bytes >= limit_bytes:
            raise DecompressedTooLarge(limit_bytes)
        del output  # before the larger one is allocated
        size_bytes = min(limit_bytes, size_bytes * _GROWTH)


def _room(size_bytes: int) -> memoryview:
    """A buffer; large ones are taken from the system as they are filled, so that making one takes no time.

    A large bytearray is cleared first, which keeps all threads waiting for as long as that takes.
    """
    return memoryview(bytearray(size_bytes) if size_bytes < _MAPPED_BYTES_MIN else mmap(-1, size_bytes))


def _decompress_snappy(data: memoryview, limit_bytes: int) -> memoryview:
    blocks = _xerial_blocks(data) if data[:8] == _XERIAL_MAGIC else [data]
    try:
        sizes = [cramjam.snappy.decompress_raw_len(block) for block in blocks]
        total = sum(sizes)
        if total > limit_bytes:
            raise DecompressedTooLarge(limit_bytes)
        output = _room(total)
        position = 0
        for block, size in zip(blocks, sizes, strict=True):
            written = cramjam.snappy.decompress_raw_into(block, output[position : position + size])
            if written != size:
                raise CorruptRecord(f"a snappy block holds {written} bytes instead of {size}")
            position += size
    except cramjam.DecompressionError as error:
        raise CorruptRecord(f"corrupt snappy data: {error}") from error
    return output


def _xerial_blocks(data: memoryview) -> list[memoryview]:
    blocks = []
    size_bytes = len(data)
    position = 0
    while position < size_bytes:
        if data[position : position + 8] == _XERIAL_MAGIC:  # streams may be strung together
            position += len(_XERIAL_HEADER)
            continue
        if position + 4 > size_bytes:
            raise CorruptRecord("the length of a snappy block is cut off")
        (length,) = _INT32.unpack_from(data, position)
        position += 4
        if length < 0 or position + length > size_bytes:
            raise CorruptRecord(f"a snappy block of {length} bytes does not fit in its data")
        blocks.append(data[position : position + length])
        position += length
    if position != size_bytes:
        raise CorruptRecord("the header of the snappy data is cut off")
    return blocks
