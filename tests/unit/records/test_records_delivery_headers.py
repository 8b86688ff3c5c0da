"""What headers say of the delivery of a record, and which batches are refused for it."""

from datetime import UTC, datetime

import pytest

from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.log_config import INT64_MAX, LogConfig
from tidelog.records.builder import build_batch
from tidelog.records.compression import Codec
from tidelog.records.delivery_headers import BadHeader, due_of, lenient_due_of
from tidelog.records.record import Record
from tidelog.records.validation import CheckedBatch, ProduceRules, TakesLong, check_produced

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
DELAYS = LogConfig(tidelog_delay_target="orders", tidelog_delay_ms=5_000, tidelog_delay_max_ms=DAY_MS)
RULES = ProduceRules.from_config(DELAYS)


def record(*headers: tuple[str, bytes | None], **fields: object) -> Record:
    made = Record(0, NOW_MS, b"k", b"v", headers)
    return made._replace(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("headers", "due_ms"),
    [
        ((), NOW_MS + 5_000),
        ((("other", b"x"),), NOW_MS + 5_000),
        ((("tidelog-delay-ms", b"0"),), NOW_MS),
        ((("tidelog-delay-ms", b"250"), ("trace", b"7")), NOW_MS + 250),
        ((("tidelog-delay-ms", b"9223372036854775807"),), INT64_MAX),
        ((("tidelog-deliver-at", b"1700000000001"),), NOW_MS + 1),
        ((("tidelog-deliver-at", b"0"),), 0),
        ((("tidelog-deliver-at", b"2023-11-14T22:13:20Z"),), NOW_MS),
        ((("tidelog-deliver-at", b"2023-11-14t23:13:20.5+01:00"),), NOW_MS + 500),
        # Never early: a part of a millisecond counts as a whole one.
        ((("tidelog-deliver-at", b"2023-11-14T22:13:20.000001Z"),), NOW_MS + 1),
        ((("tidelog-deliver-at", b"1900-01-01T00:00:00Z"),), 0),
        ((("tidelog-cancel", b""),), None),
        ((("tidelog-cancel", None),), None),
    ],
)
def test_what_a_record_says(headers: tuple[tuple[str, bytes | None], ...], due_ms: int | None) -> None:
    assert due_of(record(*headers), 5_000) == due_ms


def test_a_tombstone_cancels_unless_it_says_when() -> None:
    assert due_of(record(value=None), 5_000) is None
    assert due_of(record(("trace", b"1"), value=None), 5_000) is None
    assert due_of(record(("tidelog-delay-ms", b"1"), value=None), 5_000) == NOW_MS + 1
    assert due_of(record(value=None, key=None), 5_000) == NOW_MS + 5_000


BAD = [
    (("tidelog-delay-ms", b"-1"),),
    (("tidelog-delay-ms", b""),),
    (("tidelog-delay-ms", None),),
    (("tidelog-delay-ms", b"1.5"),),
    (("tidelog-delay-ms", b" 1"),),
    (("tidelog-delay-ms", b"9223372036854775808"),),
    (("tidelog-delay-ms", b"1" * 1_000),),
    (("tidelog-delay-ms", "\u0661".encode()),),
    (("tidelog-delay-ms", b"\xff"),),
    (("tidelog-deliver-at", b"tomorrow"),),
    (("tidelog-deliver-at", b"2023-11-14T22:13:20"),),
    (("tidelog-deliver-at", b"2023-02-30T22:13:20Z"),),
    (("tidelog-deliver-at", b"2023-11-14T25:13:20Z"),),
    (("tidelog-deliver-at", b"2023-W46-2T22:13:20Z"),),
    (("tidelog-delay-ms", b"1"), ("tidelog-deliver-at", b"1")),
    (("tidelog-delay-ms", b"1"), ("tidelog-delay-ms", b"1")),
    (("tidelog-delay-ms", b"1"), ("tidelog-cancel", b"")),
]


@pytest.mark.parametrize("headers", BAD)
def test_what_cannot_be_obeyed(headers: tuple[tuple[str, bytes | None], ...]) -> None:
    with pytest.raises(BadHeader):
        due_of(record(*headers), 0)
    assert lenient_due_of(record(*headers), 0) == 0


def test_a_delay_needs_a_timestamp_and_a_cancel_needs_a_key() -> None:
    for bad in (record(timestamp_ms=-1), record(("tidelog-cancel", b""), key=None)):
        with pytest.raises(BadHeader):
            due_of(bad, 0)
    assert due_of(record(("tidelog-deliver-at", b"7"), timestamp_ms=-1), 0) == 7


def check(*records: Record, rules: ProduceRules = RULES, codec: Codec = Codec.NONE) -> CheckedBatch | Refused:
    batch = bytearray(build_batch(records, codec=codec))
    return check_produced(memoryview(batch), rules, NOW_MS)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_a_bad_header_refuses_the_batch_and_names_the_record(codec: Codec) -> None:
    good, bad = record(("tidelog-delay-ms", b"1")), record(("tidelog-delay-ms", b"soon"))
    assert isinstance(check(good, good, codec=codec), CheckedBatch)
    answer = check(good, bad, good, bad, codec=codec)
    assert isinstance(answer, Refused)
    assert answer.code is ErrorCode.INVALID_RECORD
    assert [index for index, _ in answer.record_errors] == [1, 3]
    assert "'soon'" in answer.record_errors[0][1]


def test_too_far_ahead_is_refused() -> None:
    at = str(NOW_MS + DAY_MS).encode()
    later = str(NOW_MS + DAY_MS + 1).encode()
    assert isinstance(check(record(("tidelog-deliver-at", at))), CheckedBatch)
    assert isinstance(check(record(("tidelog-deliver-at", later))), Refused)
    ahead = record(timestamp_ms=NOW_MS + 60_000)
    long = ProduceRules.from_config(
        LogConfig(tidelog_delay_target="orders", tidelog_delay_ms=DAY_MS, tidelog_delay_max_ms=DAY_MS)
    )
    assert isinstance(check(record(), rules=long), CheckedBatch)
    assert isinstance(check(ahead, rules=long), Refused)


def test_with_log_append_time_a_delay_begins_at_arrival() -> None:
    stamping = ProduceRules.from_config(
        LogConfig(
            tidelog_delay_target="orders", tidelog_delay_max_ms=DAY_MS, message_timestamp_type="LogAppendTime"
        )
    )
    # By its own timestamp it would be due a day too late.
    late = record(("tidelog-delay-ms", b"86400000"), timestamp_ms=NOW_MS + DAY_MS)
    assert isinstance(check(late, rules=stamping), CheckedBatch)
    assert isinstance(check(record(("tidelog-delay-ms", b"86400001")), rules=stamping), Refused)


def test_other_topics_are_not_looked_into() -> None:
    rules = ProduceRules.from_config(LogConfig())
    assert not rules.walks and not rules.delays
    assert isinstance(check(record(("tidelog-delay-ms", b"soon")), rules=rules), CheckedBatch)


def test_many_records_are_checked_elsewhere() -> None:
    batch = bytearray(build_batch([record(("tidelog-delay-ms", b"1"))] * 3_000))
    with pytest.raises(TakesLong):
        check_produced(memoryview(batch), RULES, NOW_MS, quick=True)


def test_a_time_as_a_program_writes_it_is_read() -> None:
    moment = datetime(2031, 5, 6, 7, 8, 9, 123_000, tzinfo=UTC)
    said = record(("tidelog-deliver-at", moment.isoformat().encode()))
    assert due_of(said, 0) == int(moment.timestamp() * 1_000)
