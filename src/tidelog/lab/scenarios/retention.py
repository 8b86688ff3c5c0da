"""Retention: old segments go by age or by size, whole, and readers that were slower find that out."""

import time

from confluent_kafka import TopicPartition

from tidelog.lab import log_files
from tidelog.lab.lab import Lab
from tidelog.lab.scenario import Observation, Scenario, Topic

HOUR_MS = 3_600_000
SMALL_SEGMENT = {"segment.bytes": "4096", "file.delete.delay.ms": "100"}

SCENARIO = Scenario(
    name="retention",
    title="Retention: what is kept, and for how long",
    minutes=5,
    learn=(
        "retention counts for whole segments: the newest record of a segment decides",
        "by age (retention.ms), by size (retention.bytes), or until you say so (DeleteRecords)",
        "the log start offset moves up; offsets are never given out again",
        "a consumer that was slower continues where auto.offset.reset says",
    ),
    brokers=1,
    topics=(
        Topic("by-age", configs={**SMALL_SEGMENT, "retention.ms": str(HOUR_MS)}),
        Topic("by-size", configs={**SMALL_SEGMENT, "retention.bytes": "10000", "retention.ms": "-1"}),
        Topic("by-hand", configs={**SMALL_SEGMENT, "retention.ms": "-1"}),
    ),
    settings={"log.retention.check.interval.ms": "300"},
    summary="retention is a floor, not a promise of deletion: segments go when all of them is old enough",
)


def _fill(lab: Lab, topic: str, count: int, *, age_ms: int = 0) -> None:
    """Records of about 120 bytes, in batches of five, with timestamps so long ago."""
    sender = lab.sender(batch_num_messages=5, linger_ms=10)
    stamp = int(time.time() * 1000) - age_ms
    for number in range(count):
        sender.send(topic, f"{topic} record {number} ".ljust(110, "."), timestamp=stamp + number)
    sender.flush()


def _names(lab: Lab, topic: str) -> list[str]:
    return [path.name for path in log_files.segments(lab.partition_folder(1, topic))]


@SCENARIO.step(
    "By age",
    narration="retention.ms is one hour here. The records carry timestamps, so we can have old ones at"
    " once: 100 of two hours ago, then 100 of now.",
    action="send 100 records with timestamps of two hours ago and 100 of now, wait for the broker's next"
    " look",
    prediction="segments with old records only are deleted; every record of now stays",
)
def by_age(lab: Lab, see: Observation) -> None:
    _fill(lab, "by-age", 100, age_ms=2 * HOUR_MS)
    _fill(lab, "by-age", 100)
    lab.wait("old segments are deleted", lambda: lab.positions("by-age").log_start >= 70)
    start = lab.positions("by-age").log_start
    read = lab.read("by-age")
    limit_ms = int(time.time() * 1000) - HOUR_MS
    young = sum(record.timestamp_ms > limit_ms for record in read)
    see.say(f"the log starts at offset {start}; {len(_names(lab, 'by-age'))} segments are left")
    see.figure("log_start", start)
    see.figure("old_records_left", len(read) - young)
    see.check("old segments are gone", start >= 70, start)
    see.check("all 100 young records are there", young == 100, young)
    see.check(
        "an old record stays at most as long as its segment has a young one",
        len(read) - young <= 30,
        len(read),
    )
    first = log_files.segments(lab.partition_folder(1, "by-age"))[0]
    see.check("the oldest file is where the log starts", int(first.stem) == start, (first.name, start))


@SCENARIO.step(
    "By size",
    narration="retention.bytes=10000 keeps about 10 kB of a partition, however old. The oldest segments"
    " go as long as what is left has at least so many bytes.",
    action="send 300 records, about 40 kB",
    prediction="about 10 kB are left, at most one segment more",
)
def by_size(lab: Lab, see: Observation) -> None:
    _fill(lab, "by-size", 300)
    lab.wait("the log is small", lambda: _stored_bytes(lab) <= 10_000 + 4_096)
    size = _stored_bytes(lab)
    positions = lab.positions("by-size")
    see.say(f"{size} bytes are left: offsets {positions.log_start} to {positions.high_watermark - 1}")
    see.figure("bytes_left", size)
    see.figure("log_start", positions.log_start)
    see.check("what is left is near the limit", 10_000 <= size <= 10_000 + 4_096, size)
    see.check("offsets go on counting", positions.high_watermark == 300, positions)
    read = [record.offset for record in lab.read("by-size")]
    see.check(
        "a consumer from the beginning gets what is left", read == list(range(positions.log_start, 300))
    )


def _stored_bytes(lab: Lab) -> int:
    return sum(item.header.size_bytes for item in log_files.batches(lab.partition_folder(1, "by-size")))


@SCENARIO.step(
    "A reader that was too slow",
    narration="A consumer comes back and asks for offset 0 of 'by-size', which is gone. The broker answers"
    " OFFSET_OUT_OF_RANGE; the client does what auto.offset.reset says.",
    action="read from offset 0 with auto.offset.reset=earliest, and with latest",
    prediction="earliest continues at the log start, latest at the end: both skip records without an error",
)
def too_slow(lab: Lab, see: Observation) -> None:
    start = lab.positions("by-size").log_start
    earliest = lab.read("by-size", start_offset=0, auto_offset_reset="earliest")
    latest = lab.read("by-size", start_offset=0, auto_offset_reset="latest")
    see.table(
        ("auto.offset.reset", "records", "first offset"),
        [
            ("earliest", len(earliest), earliest[0].offset if earliest else None),
            ("latest", len(latest), None),
        ],
    )
    see.check("earliest continues at the log start", bool(earliest) and earliest[0].offset == start, start)
    see.check("latest gets nothing of what is stored", latest == [], len(latest))


@SCENARIO.step(
    "By hand",
    narration="DeleteRecords moves the log start to an offset of your choice, for privacy or after a"
    " mistake. It is not bound to segments: records before it are unreadable at once, files go when all"
    " of them is before it.",
    action="send 100 records and delete those before offset 42",
    prediction="the log starts at 42 at once",
)
def by_hand(lab: Lab, see: Observation) -> None:
    _fill(lab, "by-hand", 100)
    before = len(_names(lab, "by-hand"))
    for future in lab.admin().delete_records([TopicPartition("by-hand", 0, 42)]).values():
        future.result(20)
    read = [record.offset for record in lab.read("by-hand")]
    lab.wait("whole segments before 42 are deleted", lambda: len(_names(lab, "by-hand")) < before)
    start = lab.positions("by-hand").log_start
    see.say(f"the log starts at {start}; segments: {before}, now {len(_names(lab, 'by-hand'))}")
    see.check("the log starts at 42", start == 42, start)
    see.check("a consumer gets 42 to 99", read == list(range(42, 100)), read[:3])
