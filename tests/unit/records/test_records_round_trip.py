"""Properties: what is built is read back; whatever bytes come, only CorruptRecord or a refusal comes out."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.model.errors import Refused
from tidelog.model.log_config import LogConfig
from tidelog.records.batch import HEADER_SIZE, checksum, crc_matches, iterate_headers, read_header
from tidelog.records.builder import build_batch
from tidelog.records.compression import Codec, compress, decompress
from tidelog.records.record import CorruptRecord, Record, iterate_records
from tidelog.records.validation import CheckedBatch, ProduceRules, check_produced

BOUNDED = settings(max_examples=120, deadline=None, derandomize=True)
INT64 = st.integers(-(2**63), 2**63 - 1)

header_keys = st.one_of(
    st.text(max_size=8), st.binary(max_size=8).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
)
optional_bytes = st.none() | st.binary(max_size=300)
record_lists = st.lists(
    st.builds(
        Record,
        offset=st.just(0),
        timestamp_ms=INT64,
        key=optional_bytes,
        value=optional_bytes,
        headers=st.lists(st.tuples(header_keys, optional_bytes), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=20,
)
codecs = st.sampled_from(Codec)


@BOUNDED
@given(record_lists, codecs, st.integers(0, 2**62))
def test_records_come_back(records: list[Record], codec: Codec, base_offset: int) -> None:
    batch = build_batch(records, base_offset=base_offset, codec=codec)
    expected = [record._replace(offset=base_offset + index) for index, record in enumerate(records)]
    assert list(iterate_records(memoryview(batch))) == expected
    assert crc_matches(batch, 0, len(batch))
    assert [header for _, header in iterate_headers(memoryview(batch))] == [read_header(batch)]


@BOUNDED
@given(record_lists, codecs, st.data())
def test_sparse_offsets_come_back(records: list[Record], codec: Codec, data: st.DataObject) -> None:
    gaps = data.draw(st.lists(st.integers(0, 1000), min_size=len(records), max_size=len(records)))
    offset = 1000
    sparse = []
    for record, gap in zip(records, gaps, strict=True):
        sparse.append(record._replace(offset=offset + gap))
        offset += gap + 1
    horizon_ms = data.draw(st.none() | INT64)
    batch = build_batch(
        sparse, base_offset=1000, codec=codec, keep_offsets=True, last_offset_delta=30_000,
        delete_horizon_ms=horizon_ms,
    )  # fmt: skip
    assert list(iterate_records(batch)) == sparse
    assert read_header(batch).last_offset == 31_000
    assert read_header(batch).delete_horizon_ms == horizon_ms


@BOUNDED
@given(st.binary(max_size=200_000), codecs)
def test_compression_comes_back(data: bytes, codec: Codec) -> None:
    assert bytes(decompress(codec, compress(codec, data), len(data))) == data


RULES = [
    ProduceRules.from_config(LogConfig()),
    ProduceRules.from_config(LogConfig(), walk_always=True, decompressed_bytes_max=1 << 20),
    ProduceRules.from_config(
        LogConfig(
            cleanup_policy=frozenset({"compact"}),
            compression_type="lz4",
            message_timestamp_type="LogAppendTime",
        ),
        decompressed_bytes_max=1 << 20,
    ),
]


def survives(raw: bytes) -> None:
    """Every reader either works or says what is wrong in its own words."""
    try:
        for _ in iterate_records(raw, limit_bytes=1 << 20):
            pass
    except CorruptRecord:
        pass
    list(iterate_headers(memoryview(raw)))
    for rules in RULES:
        answer = check_produced(memoryview(bytearray(raw)), rules, 10**12)
        assert isinstance(answer, CheckedBatch | Refused)
        if isinstance(answer, CheckedBatch):
            assert crc_matches(answer.view, 0, len(answer.view), answer.header.crc)
            assert read_header(answer.view) == answer.header


def with_right_crc(raw: bytearray) -> bytes:
    """Repair the checksum, so that the damage reaches the code behind it."""
    if len(raw) >= HEADER_SIZE:
        raw[17:21] = checksum(raw, 0, len(raw)).to_bytes(4, "big")
    return bytes(raw)


@BOUNDED
@given(record_lists, codecs, st.data())
def test_flipped_bits_never_crash(records: list[Record], codec: Codec, data: st.DataObject) -> None:
    raw = bytearray(build_batch(records, codec=codec))
    for position in data.draw(st.lists(st.integers(0, len(raw) * 8 - 1), min_size=1, max_size=6)):
        raw[position // 8] ^= 1 << (position % 8)
    survives(bytes(raw))
    survives(with_right_crc(raw))


@BOUNDED
@given(record_lists, codecs, st.data())
def test_replaced_contents_never_crash(records: list[Record], codec: Codec, data: st.DataObject) -> None:
    raw = bytearray(build_batch(records, codec=codec))
    raw[HEADER_SIZE:] = data.draw(st.binary(max_size=100))
    raw[8:12] = (len(raw) - 12).to_bytes(4, "big")
    survives(with_right_crc(raw))


@BOUNDED
@given(st.binary(max_size=200))
def test_random_bytes_never_crash(raw: bytes) -> None:
    survives(raw)


def test_every_torn_length_is_refused() -> None:
    for codec in Codec:
        batch = build_batch([Record(0, 10**12, b"k", b"v" * 50, (("h", b"x"),))], codec=codec)
        for size in range(len(batch)):
            survives(batch[:size])
            assert isinstance(check_produced(memoryview(bytearray(batch[:size])), RULES[0], 10**12), Refused)
            torn = bytearray(batch[:size])
            if size >= HEADER_SIZE:
                torn[8:12] = (size - 12).to_bytes(4, "big")
                survives(with_right_crc(torn))
