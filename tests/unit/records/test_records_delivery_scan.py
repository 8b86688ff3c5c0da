"""The short look at delay batches finds what the long one finds, or nothing."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.model.errors import Refused
from tidelog.model.log_config import LogConfig
from tidelog.records.batch import HEADER_SIZE, read_header
from tidelog.records.builder import append_record, build_batch
from tidelog.records.delivery_headers import due_of
from tidelog.records.delivery_scan import scan
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
