"""On disk: folders, segments, sparse indexes, two lookups through the files, and a batch byte by byte."""

import bisect
from pathlib import Path

from confluent_kafka import TopicPartition

from tidelog.lab import log_files
from tidelog.lab.clients import client_config
from tidelog.lab.lab import Lab
from tidelog.lab.scenario import Observation, Scenario, Topic
from tidelog.records.batch import HEADER_SIZE, crc_matches, read_header
from tidelog.records.record import iterate_records
from tidelog.storage.index_entries import read_offset_entries, read_time_entries

RECORDS = 600
START_MS = 1_700_000_000_000
STEP_MS = 1_000
WANTED_OFFSET = 437
INDEXES = (".index", ".timeindex")

SCENARIO = Scenario(
    name="on-disk",
    title="What is on disk",
    minutes=7,
    learn=(
        "a partition is a folder; a log is a row of segment files named by their first offset",
        "two small indexes per segment: offset to position, and time to offset; both are sparse",
        "a lookup is: the right file by its name, a binary search in the index, a short scan",
        "a batch is 61 bytes of header and the records, guarded by a checksum",
    ),
    brokers=1,
    topics=(
        Topic(
            "orders",
            # small, so that a lesson has several segments and several index entries in each
            configs={"segment.bytes": "16384", "index.interval.bytes": "1024", "retention.ms": "-1"},
        ),
    ),
    summary="append-only files with sparse indexes: writing is appending, reading is a range of a file",
)


@SCENARIO.step(
    "A folder of segments",
    narration="The broker appends to the newest segment. When it is full (segment.bytes, 16 KiB here, 1"
    " GiB by default) a new one begins. Whole old segments can then be deleted or compacted. Beside each"
    " .log lie its two indexes, .index and .timeindex, from the first records on, empty at first.",
    action=f"send {RECORDS} orders in batches of ten, one second apart, and list the folder",
    prediction="several segments, each named by the offset of the first record in it, each with two indexes",
)
def segments(lab: Lab, see: Observation) -> None:
    sender = lab.sender(batch_num_messages=10, linger_ms=20)
    for number in range(RECORDS):
        text = f'{{"order": {number}, "city": "Leiden", "amount": {number * 7 % 1000}}}'
        sender.send("orders", text, f"customer-{number % 17}", timestamp=START_MS + number * STEP_MS)
    sender.flush()
    lab.faults.restart(1)  # a clean stop writes the indexes of the newest segment to disk as well
    folder = lab.partition_folder(1, "orders")
    rows = [(path.name, path.stat().st_size) for path in sorted(folder.iterdir())]
    see.table(("file", "bytes"), rows, title=f"broker-1/{folder.name}/")
    found = log_files.segments(folder)
    see.figure("segments", len(found))
    see.check("there are several segments", len(found) >= 3, len(found))
    first_offsets = [read_header(path.read_bytes()).base_offset for path in found if path.stat().st_size]
    names = [int(path.stem) for path in found if path.stat().st_size]
    see.check("each is named by the first offset in it", names == first_offsets, (names, first_offsets))
    alone = [path.name for path in found for kind in INDEXES if not path.with_suffix(kind).exists()]
    see.check("each has both indexes beside it", not alone, alone)


@SCENARIO.step(
    "Sparse indexes",
    narration="An .index entry is 8 bytes: an offset (counted from the segment's name) and a position in"
    " the .log file. There is one per index.interval.bytes, not one per record. A .timeindex entry is 12"
    " bytes: the largest timestamp so far, and an offset.",
    action="decode the index files of the second segment",
    prediction="far fewer entries than records, both rising, and each position is the start of a batch",
)
def indexes(lab: Lab, see: Observation) -> None:
    segment = log_files.segments(lab.partition_folder(1, "orders"))[1]
    base = int(segment.stem)
    places = offset_entries(segment)
    times = time_entries(segment)
    see.table(
        (".index offset", "position", ".timeindex ms", "offset"),
        [(*place, *moment) for place, moment in zip(places[:5], times[:5], strict=False)],
        title=f"the first entries of {segment.name}",
    )
    stored = [item for item in log_files.batches(segment.parent) if item.path == segment]
    records = sum(item.header.records_count for item in stored)
    starts = {item.position for item in stored}
    see.figure("records_in_segment", records)
    see.figure("index_entries", len(places))
    see.check("fewer entries than records", 0 < len(places) < records / 4, (len(places), records))
    rising = places == sorted(places) and times == sorted(times)
    see.check("both indexes rise", rising, (places, times))
    see.check("every position is the start of a batch", {place[1] for place in places} <= starts, places)
    see.check("the offsets lie in this segment", all(offset >= base for offset, _ in places), places)


def offset_entries(segment: Path) -> list[tuple[int, int]]:
    """(offset, position) of every entry of a segment's .index."""
    content = read_offset_entries(segment.with_suffix(".index").read_bytes(), int(segment.stem))
    return [(entry.offset, entry.file_position) for entry in content.entries]


def time_entries(segment: Path) -> list[tuple[int, int]]:
    """(timestamp, offset) of every entry of a segment's .timeindex."""
    content = read_time_entries(segment.with_suffix(".timeindex").read_bytes(), int(segment.stem))
    return [(entry.timestamp_ms, entry.offset) for entry in content.entries]


def find_offset(folder: Path, offset: int) -> tuple[Path, int, int, str]:
    """By hand: the segment, the position the index gives, the batch's position, and the record's value."""
    found = log_files.segments(folder)
    segment = found[bisect.bisect_right([int(path.stem) for path in found], offset) - 1]
    floor = max((place for place in offset_entries(segment) if place[0] <= offset), default=(0, 0))
    data = segment.read_bytes()
    position = floor[1]
    while (header := read_header(data, position)).last_offset < offset:
        position += header.size_bytes
    batch = memoryview(data)[position : position + header.size_bytes]
    value = next(record.value for record in iterate_records(batch) if record.offset == offset)
    return segment, floor[1], position, bytes(value or b"").decode()


@SCENARIO.step(
    "A lookup by offset",
    narration="A consumer asks for an offset. Follow the broker: choose the file by its name, search the"
    " index for the last entry at or before the offset, then read batch headers forward from there.",
    action=f"look offset {WANTED_OFFSET} up in the files by hand, then ask the broker for it",
    prediction="both find the same record",
)
def lookup_by_offset(lab: Lab, see: Observation) -> None:
    folder = lab.partition_folder(1, "orders")
    segment, indexed, position, value = find_offset(folder, WANTED_OFFSET)
    see.lines(
        f"names     the last name <= {WANTED_OFFSET} is {segment.name}\n"
        f"index     its last entry <= {WANTED_OFFSET} says: position {indexed}\n"
        f"scan      {position - indexed} bytes of headers further, at {position}, is the batch\n"
        f"record    {value}"
    )
    see.figure("bytes_scanned", position - indexed)
    asked = lab.read("orders", start_offset=WANTED_OFFSET)[0]
    see.check("the broker gives that offset", asked.offset == WANTED_OFFSET, asked)
    see.check("and the same record", asked.value == value, (asked.value, value))


@SCENARIO.step(
    "A lookup by time",
    narration="'Everything since noon' needs an offset first: the first record that is not older. The"
    " time index leads near it, a scan of the records finds it.",
    action="look the time of record 300 (minus half a second) up by hand, then ask with offsets_for_times",
    prediction="both say offset 300",
)
def lookup_by_time(lab: Lab, see: Observation) -> None:
    from confluent_kafka import Consumer

    wanted_ms = START_MS + 300 * STEP_MS - STEP_MS // 2
    folder = lab.partition_folder(1, "orders")
    found = log_files.segments(folder)
    segment = next(path for path in found if (entries := time_entries(path)) and entries[-1][0] >= wanted_ms)
    floor = max(
        (entry for entry in time_entries(segment) if entry[0] < wanted_ms), default=(0, int(segment.stem))
    )
    by_hand = -1
    for item in log_files.batches(folder):
        if item.header.last_offset < floor[1] or item.header.max_timestamp_ms < wanted_ms:
            continue
        data = memoryview(item.path.read_bytes())[item.position : item.position + item.header.size_bytes]
        by_hand = next(record.offset for record in iterate_records(data) if record.timestamp_ms >= wanted_ms)
        break
    see.lines(
        f"segment   {segment.name} has the first later entry\n"
        f"timeindex its last earlier entry is {floor[0]} ms at offset {floor[1]}\n"
        f"scan      from there, the first record that is not older: offset {by_hand}"
    )
    consumer = Consumer(client_config(lab.bootstrap, {"group_id": "lab-reader"}))
    try:
        [answer] = consumer.offsets_for_times([TopicPartition("orders", 0, wanted_ms)], timeout=10)
    finally:
        consumer.close()
    see.check("by hand it is offset 300", by_hand == 300, by_hand)
    see.check("the broker says the same", answer.offset == 300, answer.offset)


FIELDS = (
    ("base offset", 8, "the broker writes it"),
    ("batch length", 4, "bytes that follow"),
    ("leader epoch", 4, "the broker writes it too"),
    ("magic", 1, "format 2, since 2017"),
    ("CRC-32C", 4, "over everything behind it"),
    ("attributes", 2, "codec, time type, transaction"),
    ("last offset delta", 4, "last offset minus first"),
    ("base timestamp", 8, "of the first record, in ms"),
    ("max timestamp", 8, "the latest of the records"),
    ("producer id", 8, "-1: not idempotent"),
    ("producer epoch", 2, "fences older ones"),
    ("base sequence", 4, "finds duplicates and gaps"),
    ("record count", 4, ""),
)


@SCENARIO.step(
    "A batch, byte by byte",
    narration="The same bytes travel from the producer to the disk, to the followers and to the"
    " consumers. The broker writes into only two fields, and the checksum does not cover those.",
    action="print the header of the first batch with its fields; then flip one bit of a record",
    prediction="the fields say what was sent; the checksum fits, and no longer fits with one bit flipped",
)
def batch_bytes(lab: Lab, see: Observation) -> None:
    segment = log_files.segments(lab.partition_folder(1, "orders"))[0]
    data = bytearray(segment.read_bytes())
    header = read_header(data)
    lines, position = [], 0
    for (name, size, meaning), value in zip(FIELDS, header, strict=True):
        raw = data[position : position + size].hex(" ")
        lines.append(f"{position:>3}  {raw:<24} {name:<18} {value:<14} {meaning}")
        position += size
    see.lines("\n".join(lines))
    see.figure("header_bytes", position)
    see.check("the header has 61 bytes", position == HEADER_SIZE, position)
    facts = (header.base_offset, header.records_count, header.base_timestamp_ms)
    see.check(
        "first offset, count and time are those of the first ten orders", facts == (0, 10, START_MS), facts
    )
    see.check("the checksum fits", crc_matches(data, 0, header.size_bytes))
    data[HEADER_SIZE + 10] ^= 1
    see.check("with one bit flipped it does not", not crc_matches(data, 0, header.size_bytes))
