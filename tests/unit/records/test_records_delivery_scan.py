"""The short look at delay batches finds what the long one finds, or nothing."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.model.errors import Refused
from tidelog.model.log_config import LogConfig
from tidelog.records.batch import HEADER_SIZE, read_header
from tidelog.records.builder import append_record, build_batch
from tidelog.records.delivery_headers import due_of
from tidelog.records.delivery_scan import (
    KEPT_BYTES_MAX,
    KEPT_FROM_RECORDS,
    KEPT_MAX,
    RecentScans,
    scan,
    scan_some,
)
from tidelog.records.record import Record, iterate_records
from tidelog.records.validation import ProduceRules, check_produced

NOW_MS = 1_700_000_000_000
DELAY_MS = 5_000
RULES = ProduceRules.from_config(
    LogConfig(tidelog_delay_target="orders", tidelog_delay_ms=DELAY_MS, tidelog_delay_max_ms=86_400_000)
)
NUMBERS = st.integers(0, 10**16).map(lambda number: str(number).encode())
VALUES = st.one_of(
    NUMBERS, st.sampled_from([b"", b"x", b"-1", "\u0661".encode(), None, b"2030-01-31T08:00:00Z"])
)
NAMES = st.sampled_from(
    ["tidelog-delay-ms", "tidelog-deliver-at", "tidelog-cancel", "trace", "", "tidelog-ttl-ms"]
)
RECORDS = st.builds(
    Record,
    st.just(0),
    st.integers(NOW_MS - 100_000, NOW_MS + 10_000),
    st.one_of(st.none(), st.binary(max_size=200)),
    st.one_of(st.none(), st.binary(max_size=300)),
    st.lists(st.tuples(NAMES, VALUES), max_size=3).map(tuple),
)


def body(batch: bytes) -> memoryview:
    return memoryview(batch)[HEADER_SIZE:]


@settings(max_examples=300, deadline=None)
@given(st.lists(RECORDS, min_size=1, max_size=6))
def test_both_ways_agree(records: list[Record]) -> None:
    batch = build_batch(records)
    header = read_header(batch)
    found = scan(body(batch), header.records_count, header.base_timestamp_ms, DELAY_MS)
    if found is not None:
        read = list(iterate_records(batch, header))
        assert found.due_ms == [due_of(each, DELAY_MS) for each in read]
        assert found.least_timestamp_ms == min(each.timestamp_ms for each in read)
        assert found.largest_timestamp_ms == max(each.timestamp_ms for each in read)
        for place, each in zip(found.places, read, strict=True):
            alone = bytearray()
            append_record(alone, each, each.offset, each.timestamp_ms - header.base_timestamp_ms)
            assert bytes(body(batch)[place : place + len(alone)]) == alone


@settings(max_examples=300, deadline=None)
@given(st.lists(RECORDS, min_size=1, max_size=6), st.integers(0, 2_000), st.integers(0, 255))
def test_no_damage_is_taken_for_a_batch(records: list[Record], place: int, byte: int) -> None:
    batch = bytearray(build_batch(records))
    header = read_header(batch)
    changed = HEADER_SIZE + place % (len(batch) - HEADER_SIZE)
    batch[changed] = byte
    found = scan(body(bytes(batch)), header.records_count, header.base_timestamp_ms, DELAY_MS)
    if found is not None:
        read = list(iterate_records(bytes(batch), header))
        assert found.due_ms == [due_of(each, DELAY_MS) for each in read]


@settings(max_examples=100, deadline=None)
@given(st.lists(RECORDS, min_size=2, max_size=6), st.data())
def test_a_batch_is_scanned_in_parts(records: list[Record], data: st.DataObject) -> None:
    batch = build_batch(records)
    header = read_header(batch)
    whole = scan(body(batch), header.records_count, header.base_timestamp_ms, DELAY_MS)
    count = data.draw(st.integers(1, len(records) - 1))
    first = scan_some(body(batch), 0, 0, count, header.base_timestamp_ms, DELAY_MS)
    if whole is None:
        return
    assert first is not None
    rest = scan_some(body(batch), first.end, count, len(records) - count, header.base_timestamp_ms, DELAY_MS)
    assert rest is not None
    assert first.due_ms + rest.due_ms == whole.due_ms
    assert first.places + rest.places == whole.places
    assert rest.end == whole.end == len(body(batch))


def usual(number: int, count: int = KEPT_FROM_RECORDS) -> bytes:
    due = (("tidelog-delay-ms", b"%d" % number),)
    return bytes(body(build_batch([Record(0, NOW_MS, b"k", b"v", due)] * count)))


def test_what_was_found_is_kept_for_the_second_time() -> None:
    scans = RecentScans()
    first, second = usual(1), usual(2)
    count = KEPT_FROM_RECORDS
    kept = [scans.keep(each, count, NOW_MS, 0, stamped=False) for each in (first, second)]
    again = bytes(bytearray(second))
    assert scans.take(again, count, NOW_MS, 0, stamped=False) is kept[1]
    assert scans.take(first, count, NOW_MS, 0, stamped=False) is kept[0]
    assert repr(scans) == "<RecentScans batches=0>"
    assert scans.take(first, count, NOW_MS, 0, stamped=False) == kept[0]


def test_what_is_asked_otherwise_is_found_anew() -> None:
    scans, data, count = RecentScans(), usual(1), KEPT_FROM_RECORDS
    scans.keep(data, count, NOW_MS, 0, stamped=False)
    moved = scans.take(data, count, NOW_MS + 5, 0, stamped=False)
    assert moved is not None
    assert moved.due_ms == [NOW_MS + 6] * count
    other = scans.take(usual(9), count, NOW_MS, 0, stamped=False)
    assert other is not None
    assert other.due_ms == [NOW_MS + 9] * count


def test_what_is_kept_is_bounded() -> None:
    scans = RecentScans()
    for number in range(3 * KEPT_MAX):
        scans.keep(usual(number), KEPT_FROM_RECORDS, NOW_MS, 0, stamped=False)
    assert repr(scans) == f"<RecentScans batches={KEPT_MAX + 1}>"
    large = Record(0, NOW_MS, b"k", bytes(KEPT_BYTES_MAX // 40))
    for number in range(4):
        data = bytes(body(build_batch([large._replace(key=b"%d" % number)] * KEPT_FROM_RECORDS)))
        scans.keep(data, KEPT_FROM_RECORDS, NOW_MS, 0, stamped=False)
    assert repr(scans) == "<RecentScans batches=2>"


def test_usual_batches_are_scanned() -> None:
    rows = [
        Record(0, NOW_MS, b"k", b"v" * 1_000, (("trace", b"1"), ("tidelog-delay-ms", b"250"))),
        Record(0, NOW_MS + 300, None, b"v", (("tidelog-deliver-at", b"1700000009999"),)),
        Record(0, NOW_MS - 70_000, b"k" * 9_000, b"v" * 20_000, ()),
    ]
    batch = build_batch(rows)
    found = scan(body(batch), 3, NOW_MS, DELAY_MS)
    assert found is not None
    assert found.due_ms == [NOW_MS + 250, 1_700_000_009_999, NOW_MS - 65_000]
    stamped = scan(body(batch), 3, NOW_MS + 7, DELAY_MS, stamped=True)
    assert stamped is not None
    assert stamped.due_ms == [NOW_MS + 257, 1_700_000_009_999, NOW_MS + 5_007]


def test_what_is_due_too_late_is_refused_whichever_way_it_is_found() -> None:
    late = Record(0, NOW_MS, b"k", b"v", (("tidelog-delay-ms", b"86400001"),))
    answer = check_produced(
        memoryview(bytearray(build_batch([late._replace(headers=()), late]))), RULES, NOW_MS
    )
    assert isinstance(answer, Refused)
    assert [index for index, _ in answer.record_errors] == [1]
