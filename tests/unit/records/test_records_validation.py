"""Each rule for produced batches: what is refused and how, what is accepted and how it is changed."""

import random
import struct
from dataclasses import replace
from typing import Any

import pytest

from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.log_config import LogConfig
from tidelog.records.batch import HEADER, HEADER_SIZE, BatchHeader, checksum, crc_matches, read_header
from tidelog.records.builder import build_batch, build_control_batch
from tidelog.records.compression import Codec, compress
from tidelog.records.record import Record, iterate_records
from tidelog.records.validation import (
    RECORD_ERRORS_MAX,
    CheckedBatch,
    ProduceRules,
    check_built,
    check_produced,
    ends_of_plain,
)

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
DEFAULT = ProduceRules.from_config(LogConfig())
WALKING = ProduceRules.from_config(LogConfig(), walk_always=True)
COMPACTED = ProduceRules.from_config(LogConfig(cleanup_policy=frozenset({"compact"})))


def records(count: int = 3, **fields: object) -> list[Record]:
    base = [Record(index, NOW_MS + index, b"k%d" % index, b"v" * 40) for index in range(count)]
    return [record._replace(**fields) for record in base]  # type: ignore[arg-type]


def check(batch: bytes | bytearray, rules: ProduceRules = DEFAULT, **options: Any) -> CheckedBatch | Refused:
    return check_produced(memoryview(bytearray(batch)), rules, NOW_MS, **options)


def accepted(batch: bytes | bytearray, rules: ProduceRules = DEFAULT, **options: Any) -> CheckedBatch:
    answer = check(batch, rules, **options)
    assert isinstance(answer, CheckedBatch), answer
    assert read_header(answer.view) == answer.header
    assert crc_matches(answer.view, 0, len(answer.view))
    assert not answer.view.readonly, "the leader still has to write the offset"
    return answer


def refused(batch: bytes | bytearray, rules: ProduceRules = DEFAULT, **options: Any) -> Refused:
    answer = check(batch, rules, **options)
    assert isinstance(answer, Refused), answer
    assert answer.message
    return answer


def code_for(batch: bytes | bytearray, rules: ProduceRules = DEFAULT) -> ErrorCode:
    return refused(batch, rules).code


def altered(batch: bytes, payload: bytes | None = None, **fields: int) -> bytes:
    """The batch with other header fields or contents, and a checksum that is right for them."""
    header = read_header(batch)._replace(**fields)
    changed = bytearray(batch if payload is None else batch[:HEADER_SIZE] + payload)
    if payload is not None:
        header = header._replace(batch_length=len(changed) - 12)
    HEADER.pack_into(changed, 0, *header)
    HEADER.pack_into(changed, 0, *header._replace(crc=checksum(changed, 0, len(changed))))
    return bytes(changed)


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"cleanup_policy": frozenset({"compact"})},
        {"compression_type": "zstd"},
        {"compression_type": "uncompressed"},
        {"message_timestamp_type": "LogAppendTime"},
        {"message_timestamp_before_max_ms": 0, "message_timestamp_after_max_ms": 0},
        {"max_message_bytes": 100},
    ],
)
def test_what_the_broker_builds_is_found_to_be_what_a_check_finds(
    settings: dict[str, Any], transactional: bool
) -> None:
    rules = ProduceRules.from_config(LogConfig(**settings))
    producer = {"producer_id": 7, "producer_epoch": 0} if transactional else {}
    batch = build_batch(records(timestamp_ms=NOW_MS), transactional=transactional, **producer)  # type: ignore[arg-type]
    checked = check(batch, rules, from_client=not transactional)
    built = check_built(bytearray(batch), rules)
    changes = settings.keys() & {"message_timestamp_type", "max_message_bytes"}
    assert (built is None) == bool(changes or rules.codec is Codec.ZSTD)
    if built is not None:
        assert built == checked
        assert not built.view.readonly


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("rules", [DEFAULT, WALKING, COMPACTED])
def test_a_good_batch_is_left_as_it_is(codec: Codec, rules: ProduceRules) -> None:
    batch = build_batch(records(), codec=codec, producer_id=5, producer_epoch=0, base_sequence=0)
    view = memoryview(bytearray(batch))
    answer = check_produced(view, rules, NOW_MS)
    assert isinstance(answer, CheckedBatch)
    assert answer.view is view
    assert bytes(view) == batch
    assert answer.header == read_header(batch)
    assert answer.log_append_time_ms == -1


class TestFraming:
    def test_no_batch_at_all(self) -> None:
        for size in (0, 5, 11):
            assert code_for(build_batch(records())[:size]) is ErrorCode.INVALID_RECORD

    def test_a_batch_cut_off(self) -> None:
        batch = build_batch(records())
        for size in range(12, len(batch)):
            assert code_for(batch[:size]) is ErrorCode.INVALID_RECORD

    def test_two_batches(self) -> None:
        assert code_for(build_batch(records()) * 2) is ErrorCode.INVALID_RECORD

    def test_bytes_after_the_batch(self) -> None:
        assert code_for(build_batch(records()) + b"x") is ErrorCode.INVALID_RECORD

    @pytest.mark.parametrize("length", [-(2**31), -1, 0, 13])
    def test_impossible_length(self, length: int) -> None:
        assert code_for(altered(build_batch(records()), batch_length=length)) is ErrorCode.CORRUPT_MESSAGE

    def test_a_batch_shorter_than_its_header(self) -> None:
        batch = bytearray(build_batch(records())[:50])
        batch[8:12] = struct.pack(">i", 50 - 12)
        assert code_for(batch) is ErrorCode.CORRUPT_MESSAGE

    @pytest.mark.parametrize(
        ("magic", "code"),
        [
            (0, ErrorCode.INVALID_RECORD),
            (1, ErrorCode.INVALID_RECORD),
            (3, ErrorCode.CORRUPT_MESSAGE),
            (-1, ErrorCode.CORRUPT_MESSAGE),
        ],
    )
    def test_other_magic(self, magic: int, code: ErrorCode) -> None:
        assert code_for(altered(build_batch(records()), magic=magic)) is code

    def test_wrong_checksum(self) -> None:
        batch = bytearray(build_batch(records()))
        batch[-1] ^= 1
        assert code_for(batch) is ErrorCode.CORRUPT_MESSAGE

    def test_max_message_bytes_counts_the_whole_batch(self) -> None:
        batch = build_batch(records())
        assert accepted(batch, replace(DEFAULT, max_message_bytes=len(batch)))
        rules = replace(DEFAULT, max_message_bytes=len(batch) - 1)
        assert code_for(batch, rules) is ErrorCode.MESSAGE_TOO_LARGE


class TestHeader:
    @pytest.mark.parametrize(
        "fields",
        [
            {"base_offset": 1},
            {"base_offset": -1},
            {"records_count": 0},
            {"records_count": -1},
            {"records_count": 2},
            {"last_offset_delta": 3},
            {"last_offset_delta": -1},
            {"last_offset_delta": -1, "records_count": 0},
            {"last_offset_delta": 2**31 - 2, "records_count": 2**31 - 1},
            {"attributes": 0b100000},
            {"attributes": 0b010000},
            {"producer_id": 4, "producer_epoch": 0, "base_sequence": -1},
            {"producer_id": 4, "producer_epoch": 0, "base_sequence": -7},
        ],
    )
    def test_nonsense_is_an_invalid_record(self, fields: dict[str, int]) -> None:
        assert code_for(altered(build_batch(records()), **fields)) is ErrorCode.INVALID_RECORD  # type: ignore[arg-type]

    def test_negative_producer_epoch(self) -> None:
        batch = altered(build_batch(records()), producer_id=4, producer_epoch=-1, base_sequence=0)
        assert code_for(batch) is ErrorCode.INVALID_PRODUCER_EPOCH

    @pytest.mark.parametrize("number", [5, 6, 7])
    def test_unknown_codec(self, number: int) -> None:
        batch = altered(build_batch(records()), attributes=number)
        assert code_for(batch) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE

    def test_a_client_must_not_claim_log_append_time(self) -> None:
        batch = build_batch(records(), log_append_time_ms=NOW_MS)
        assert code_for(batch) is ErrorCode.INVALID_TIMESTAMP

    def test_control_batches_come_from_the_broker_only(self) -> None:
        batch = build_control_batch(True, 4, 0, 1, NOW_MS)
        assert "control" in str(refused(batch).message)
        assert accepted(batch, from_client=False).header.control

    def test_the_broker_may_append_at_an_offset_with_gaps(self) -> None:
        sparse = [record._replace(offset=record.offset * 5 + 100) for record in records()]
        batch = build_batch(sparse, base_offset=100, keep_offsets=True, last_offset_delta=20)
        assert accepted(batch, WALKING, from_client=False).header.last_offset == 120
        assert code_for(batch) is ErrorCode.INVALID_RECORD


class TestTimestamps:
    def test_after_bound(self) -> None:
        good = build_batch(records(2, timestamp_ms=NOW_MS + HOUR_MS))
        bad = build_batch([records()[0], Record(1, NOW_MS + HOUR_MS + 1, b"k", b"v")])
        assert accepted(good)
        answer = refused(bad)
        assert answer.code is ErrorCode.INVALID_TIMESTAMP
        assert [index for index, _ in answer.record_errors] == [1]
        assert str(NOW_MS + HOUR_MS + 1) in answer.record_errors[0][1]

    @pytest.mark.parametrize("codec", Codec)
    def test_before_bound(self, codec: Codec) -> None:
        rules = ProduceRules.from_config(LogConfig(message_timestamp_before_max_ms=1000))
        times = [NOW_MS - 1001, NOW_MS - 1000, NOW_MS, NOW_MS - 5000, -1]
        batch = build_batch([Record(0, timestamp_ms, None, b"v") for timestamp_ms in times], codec=codec)
        answer = refused(batch, rules)
        assert answer.code is ErrorCode.INVALID_TIMESTAMP
        assert [index for index, _ in answer.record_errors] == [0, 3]
        assert accepted(batch, DEFAULT)

    def test_bounds_do_not_matter_under_log_append_time(self) -> None:
        rules = ProduceRules.from_config(
            LogConfig(
                message_timestamp_type="LogAppendTime",
                message_timestamp_before_max_ms=0,
                message_timestamp_after_max_ms=0,
            )
        )
        assert not rules.walks
        assert accepted(build_batch(records(timestamp_ms=NOW_MS * 2)), rules).log_append_time_ms == NOW_MS

    @pytest.mark.parametrize("codec", Codec)
    @pytest.mark.parametrize("walk", [False, True])
    def test_log_append_time_is_stamped_in_place(self, codec: Codec, walk: bool) -> None:
        rules = ProduceRules.from_config(LogConfig(message_timestamp_type="LogAppendTime"), walk_always=walk)
        view = memoryview(bytearray(build_batch(records(timestamp_ms=5), codec=codec)))
        answer = check_produced(view, rules, NOW_MS)
        assert isinstance(answer, CheckedBatch)
        assert answer.view is view
        assert answer.log_append_time_ms == NOW_MS
        assert answer.header == read_header(view)
        assert answer.header.log_append_time
        assert crc_matches(view, 0, len(view))
        assert {record.timestamp_ms for record in iterate_records(view)} == {NOW_MS}

    def test_a_walk_corrects_the_largest_timestamp(self) -> None:
        batch = altered(build_batch(records()), max_timestamp_ms=NOW_MS + 2 * HOUR_MS)
        assert accepted(batch).header.max_timestamp_ms == NOW_MS + 2
        batch = altered(build_batch(records()), max_timestamp_ms=7)
        assert accepted(batch, WALKING).header.max_timestamp_ms == NOW_MS + 2

    def test_timestamps_beyond_64_bits(self) -> None:
        """They wrap to the far past, as in Java, and are then out of bounds."""
        rules = replace(WALKING, after_max_ms=2**63 - 1)
        batch = altered(build_batch(records()), base_timestamp_ms=2**63 - 1)
        answer = refused(batch, rules)
        assert answer.code is ErrorCode.INVALID_TIMESTAMP
        assert [index for index, _ in answer.record_errors] == [1, 2]


class TestKeys:
    @pytest.mark.parametrize("codec", Codec)
    def test_keyless_records_on_a_compacted_topic_are_named(self, codec: Codec) -> None:
        mixed = [record._replace(key=None) if record.offset in (1, 4) else record for record in records(6)]
        answer = refused(build_batch(mixed, codec=codec), COMPACTED)
        assert answer.code is ErrorCode.INVALID_RECORD
        assert [index for index, _ in answer.record_errors] == [1, 4]
        assert "key" in answer.record_errors[0][1]
        assert accepted(build_batch(mixed, codec=codec))

    def test_an_empty_key_is_a_key(self) -> None:
        assert accepted(build_batch(records(key=b"")), COMPACTED)

    def test_a_bad_timestamp_decides_the_code(self) -> None:
        mixed = [Record(0, NOW_MS, None, b""), Record(1, NOW_MS * 2, b"k", b"")]
        answer = refused(build_batch(mixed), COMPACTED)
        assert answer.code is ErrorCode.INVALID_TIMESTAMP
        assert [index for index, _ in answer.record_errors] == [0, 1]

    def test_the_named_records_are_limited(self) -> None:
        answer = refused(build_batch(records(RECORD_ERRORS_MAX + 50, key=None)), COMPACTED)
        assert len(answer.record_errors) == RECORD_ERRORS_MAX
        assert str(RECORD_ERRORS_MAX + 50) in str(answer.message)


class TestContents:
    def test_offset_deltas_must_count_up(self) -> None:
        sparse = [record._replace(offset=record.offset * 2) for record in records()]
        batch = altered(build_batch(sparse, keep_offsets=True), last_offset_delta=2)
        assert accepted(batch), "the header alone does not show it"
        assert code_for(batch, WALKING) is ErrorCode.INVALID_RECORD

    @pytest.mark.parametrize("codec", Codec)
    def test_count_must_match(self, codec: Codec) -> None:
        batch = build_batch(records(5), codec=codec)
        for count in (4, 6):
            wrong = altered(batch, records_count=count, last_offset_delta=count - 1)
            assert code_for(wrong, WALKING) is ErrorCode.INVALID_RECORD

    @pytest.mark.parametrize(
        "payload",
        [
            pytest.param(b"", id="nothing"),
            pytest.param(b"\xff" * 5 + b"\x01" * 10, id="length-too-long"),
            pytest.param(b"\x80" * 20, id="endless-varint"),
            pytest.param(b"\x01" + b"\x00" * 10, id="negative-length"),
            pytest.param(b"\x0c\x00\x00\x00\x03\x01\x00", id="key-length-minus-2"),
            pytest.param(b"\x0c\x00\x00\x00\x01\x03\x00", id="value-length-minus-2"),
            pytest.param(b"\x0c\x00\x00\x00\x50\x01\x00", id="key-over-the-end"),
            pytest.param(b"\x0c\x00\x00\x00\x01\x01\x01", id="negative-headers-count"),
            pytest.param(b"\x0c\x00\x00\x00\x01\x01\x50", id="headers-over-the-end"),
            pytest.param(b"\x10\x00\x00\x00\x01\x01\x02\x01\x00", id="header-without-key"),
            pytest.param(b"\x0e\x00\x00\x00\x01\x01\x00\x00", id="longer-than-its-fields"),
            pytest.param(b"\x0a\x00\x00\x00\x01\x01\x00", id="shorter-than-its-fields"),
            pytest.param(b"\x0c\x00\x00\x00\x01\x01\x00\x00", id="bytes-after-the-last"),
        ],
    )
    @pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
    def test_malformed_records(self, payload: bytes, codec: Codec) -> None:
        good = b"\x0c\x00\x00\x00\x01\x01\x00"
        batch = build_batch([Record(0, NOW_MS, None, None)], codec=codec)
        assert accepted(altered(batch, compress(codec, good)), WALKING)
        assert code_for(altered(batch, compress(codec, payload)), WALKING) is ErrorCode.INVALID_RECORD

    def test_data_that_does_not_decompress(self) -> None:
        for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
            batch = altered(build_batch(records(), codec=codec), b"not compressed, but plain text")
            assert code_for(batch, WALKING) is ErrorCode.INVALID_RECORD

    @pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
    def test_a_bomb_is_too_large(self, codec: Codec) -> None:
        batch = build_batch([Record(0, NOW_MS, b"k", bytes(2 << 20))], codec=codec)
        rules = replace(WALKING, decompressed_bytes_max=1 << 20)
        assert len(batch) < 200_000
        assert code_for(batch, rules) is ErrorCode.MESSAGE_TOO_LARGE


class TestRecompression:
    @pytest.mark.parametrize("source", Codec)
    @pytest.mark.parametrize("target", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
    def test_the_topic_decides_the_codec(self, source: Codec, target: str) -> None:
        rules = ProduceRules.from_config(LogConfig(compression_type=target))
        sent = build_batch(
            records(200), codec=source, producer_id=8, producer_epoch=1, base_sequence=3, transactional=True
        )
        answer = accepted(sent, rules)
        header = answer.header
        assert header.codec is (Codec.NONE if target == "uncompressed" else Codec[target.upper()])
        assert list(iterate_records(answer.view)) == list(iterate_records(sent))
        assert _but_for_compression(header) == _but_for_compression(read_header(sent))
        assert (bytes(answer.view) == sent) is (header.codec is source)

    def test_levels_come_from_the_topic(self) -> None:
        chance = random.Random(3)
        words = [bytes(chance.choices(b"abcdefghij", k=chance.randint(2, 9))) for _ in range(3000)]
        text = b" ".join(chance.choices(words, k=30_000))
        sent = build_batch([Record(0, NOW_MS, b"k", text)])
        # 9, the default of lz4, stands for its fast compressor, as in Java.
        for name, thorough in (("gzip", 9), ("lz4", 12), ("zstd", 9)):
            sizes = [
                len(
                    accepted(
                        sent,
                        ProduceRules.from_config(
                            replace(LogConfig(compression_type=name), **{f"compression_{name}_level": level})  # type: ignore[arg-type]
                        ),
                    ).view
                )
                for level in (1, thorough)
            ]
            assert sizes[1] < sizes[0], name

    def test_log_append_time_and_another_codec(self) -> None:
        rules = ProduceRules.from_config(
            LogConfig(compression_type="zstd", message_timestamp_type="LogAppendTime")
        )
        answer = accepted(build_batch(records()), rules)
        assert (answer.log_append_time_ms, answer.header.codec) == (NOW_MS, Codec.ZSTD)
        assert {record.timestamp_ms for record in iterate_records(answer.view)} == {NOW_MS}

    def test_size_is_checked_again(self) -> None:
        sent = build_batch([Record(0, NOW_MS, b"k", bytes(10_000))], codec=Codec.ZSTD)
        rules = ProduceRules.from_config(LogConfig(compression_type="uncompressed", max_message_bytes=5000))
        assert len(sent) < 5000
        assert code_for(sent, rules) is ErrorCode.MESSAGE_TOO_LARGE

    def test_end_markers_stay_uncompressed(self) -> None:
        rules = ProduceRules.from_config(LogConfig(compression_type="gzip"))
        marker = build_control_batch(False, 4, 0, 1, NOW_MS)
        assert bytes(accepted(marker, rules, from_client=False).view) == marker


def _but_for_compression(header: BatchHeader) -> BatchHeader:
    return header._replace(batch_length=0, crc=0, attributes=header.attributes & ~7)


def test_a_compressed_batch_cannot_claim_offsets_without_end() -> None:
    """Its records are not looked at, but what they could be at most is known."""
    batch = build_batch(records(), codec=Codec.LZ4)
    for count in (2**31 - 1, DEFAULT.records_max + 1):
        claiming = altered(batch, records_count=count, last_offset_delta=count - 1)
        assert code_for(claiming) is ErrorCode.INVALID_RECORD
        assert ends_of_plain([memoryview(claiming)], DEFAULT, NOW_MS) is None


@pytest.mark.parametrize("seed", range(200))
def test_the_short_check_knows_what_the_long_one_refuses(seed: int) -> None:
    """For batches of producers without ids: the same verdict, the same ends."""
    chance = random.Random(seed)
    batch = bytearray(build_batch(records(chance.randint(1, 5)), codec=chance.choice(list(Codec))))
    kind = chance.randrange(4)
    if kind == 1:
        field = chance.choice(BatchHeader._fields[1:])
        values = (-2, -1, 0, 1, 2, 5, 8, 16, 32, 64, 127)
        batch = bytearray(altered(bytes(batch), **{field: chance.choice(values)}))  # type: ignore[arg-type]
    elif kind == 2:
        batch[chance.randrange(len(batch))] ^= 1 << chance.randrange(8)
    elif kind == 3:
        del batch[chance.randrange(len(batch)) :]
    ends = ends_of_plain([memoryview(batch)], DEFAULT, NOW_MS)
    verdict = check(batch)
    if ends is not None:
        assert isinstance(verdict, CheckedBatch)
        header = verdict.header
        assert ends == [(header.last_offset_delta, header.max_timestamp_ms)]
        assert header.producer_id < 0 and not header.transactional
    elif isinstance(verdict, CheckedBatch):
        assert verdict.header.producer_id >= 0 or verdict.header.attributes > Codec.ZSTD
