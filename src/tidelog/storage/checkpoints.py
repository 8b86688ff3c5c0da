"""Checkpoint files: small text files that remember one number per partition, in Kafka's format.

    0                           the version of the format
    2                           how many rows follow
    orders 0 1500               <topic> <partition> <offset>
    orders 1 1472

One data directory holds one file per kind of offset (see the names below). A file is replaced as a whole, so
after a crash it has its old rows or its new ones. Reading is strict: anything but a complete file (every line
ended, the count right, every row readable) raises `CheckpointMalformed`, because a torn number that still
looks like a number is worse than none. A missing or empty file has no rows.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from tidelog.model.identifiers import TopicPartition, topic_name_fault
from tidelog.storage.disk import Disk

RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT = "log-start-offset-checkpoint"
REPLICATION_OFFSET_CHECKPOINT = "replication-offset-checkpoint"
CLEANER_OFFSET_CHECKPOINT = "cleaner-offset-checkpoint"

FORMAT_VERSION = 0
# 200,000 partitions with long names: more than a broker can hold, and small enough to read at once.
CHECKPOINT_BYTES_MAX = 64 << 20

Row = TypeVar("Row")


class CheckpointMalformed(Exception):
    """A checkpoint file is not what this module writes; says which file and what is wrong."""


def write_offsets(disk: Disk, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace the offset checkpoint at `path`, durably and in one step."""
    rows = (f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items()))
    disk.replace_atomically(path, encode(rows))


def read_offsets(disk: Disk, path: str) -> dict[TopicPartition, int]:
    """Return the offsets of the checkpoint at `path`; a missing file has none."""
    offsets: dict[TopicPartition, int] = {}
    for topic_partition, offset in read_rows(disk, path, _offset_row):
        if topic_partition in offsets:
            raise CheckpointMalformed(f"{path}: {topic_partition} has two rows")
        offsets[topic_partition] = offset
    return offsets


def encode(rows: Iterable[str]) -> bytes:
    """Return the file content for these rows, which hold no line breaks."""
    lines = list(rows)
    return "".join(f"{line}\n" for line in (FORMAT_VERSION, len(lines), *lines)).encode()


def read_rows(disk: Disk, path: str, parse_row: Callable[[list[str]], Row]) -> list[Row]:
    """Return the parsed rows of a checkpoint file.

    `parse_row` gets the words of a line and raises `ValueError` for words it cannot use.
    """
    try:
        file = disk.open(path, create=False)
    except FileNotFoundError:
        return []
    try:
        if file.size_bytes > CHECKPOINT_BYTES_MAX:
            raise CheckpointMalformed(f"{path}: {file.size_bytes} bytes is too large for a checkpoint")
        data = file.read(0, file.size_bytes)
    finally:
        file.close()
    return parse(data, path, parse_row)


def parse(data: bytes, path: str, parse_row: Callable[[list[str]], Row]) -> list[Row]:
    """Return the parsed rows of a checkpoint's content; `path` is only for the message."""
    if not data:
        return []
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise CheckpointMalformed(f"{path}: not text: {error}") from error
    lines = text.split("\n")
    if lines.pop() != "":
        raise CheckpointMalformed(f"{path}: the last line is cut off")
    if len(lines) < 2:
        raise CheckpointMalformed(f"{path}: the count of rows is missing")
    try:
        version, count = whole_number(lines[0]), whole_number(lines[1])
        if version != FORMAT_VERSION:
            raise CheckpointMalformed(f"{path}: version {version} is not known (expected {FORMAT_VERSION})")
        if count != len(lines) - 2:
            raise CheckpointMalformed(f"{path}: {count} rows announced, {len(lines) - 2} found")
        return [parse_row(line.split(" ")) for line in lines[2:]]
    except ValueError as error:
        raise CheckpointMalformed(f"{path}: {error}") from error


def whole_number(word: str) -> int:
    """Parse a decimal number of at most 19 digits; `int` alone would also take spaces and underscores."""
    digits = word.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 19):
        raise ValueError(f"{word[:40]!r} is not a number")
    return int(word)


def _offset_row(words: list[str]) -> tuple[TopicPartition, int]:
    if len(words) != 3:
        raise ValueError(f"{' '.join(words)[:80]!r} is not '<topic> <partition> <offset>'")
    topic, partition, offset = words
    fault = topic_name_fault(topic)
    if fault is not None:
        raise ValueError(fault)
    return TopicPartition(topic, whole_number(partition)), whole_number(offset)
