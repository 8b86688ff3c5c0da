"""Records that are looked at without an object each: what is found is what reading them one by one finds."""

import random

import pytest

from tests.unit.records.test_records_validation import COMPACTED, DEFAULT, NOW_MS, WALKING, altered, check
from tidelog.model.log_config import LogConfig
from tidelog.records import validation
from tidelog.records.batch import HEADER_SIZE, read_header
from tidelog.records.builder import build_batch
from tidelog.records.corrupt_record import CorruptRecord
from tidelog.records.plain_records import timestamps_of
from tidelog.records.record import Record, parse_records
from tidelog.records.validation import ProduceRules

HOUR_MS = 3_600_000
BOUNDED = ProduceRules.from_config(
    LogConfig(message_timestamp_before_max_ms=HOUR_MS, message_timestamp_after_max_ms=1_000)
)
STAMPED = ProduceRules.from_config(
    LogConfig(message_timestamp_type="LogAppendTime", cleanup_policy=frozenset({"compact"}))
)
RULES = [COMPACTED, BOUNDED, STAMPED, WALKING, DEFAULT]
#: sizes around those at which a varint gets another byte
SIZES = (0, 1, 2, 60, 63, 64, 65, 200, 8_100, 8_191, 8_192)


def some_records(chance: random.Random, *, plain: bool) -> list[Record]:
    """Records as clients write them; or with anything that a record may have."""
    count = chance.choice((1, 2, 3, 63, 64, 65, 70, 140))
    sizes = SIZES[:8] if count > 3 or plain else SIZES
    spread_ms = 4_000 if plain else chance.choice((10, 8_192, 2**40))
    records = []
    for number in range(count):
        key: bytes | None = chance.randbytes(chance.choice(sizes))
        value: bytes | None = chance.randbytes(chance.choice(sizes)) if chance.random() < 0.9 else None
        headers: tuple[tuple[str, bytes | None], ...] = ()
        if not plain and chance.random() < 0.02:
            key = None
        if not plain and chance.random() < 0.02:
            headers = (("h", b"v"),)
        timestamp_ms = NOW_MS - chance.randrange(spread_ms) if number else NOW_MS - spread_ms // 2
        records.append(Record(number, timestamp_ms, key, value, headers))
    return records


def compare(payload: bytes, batch: bytes) -> bool:
    """Hold the short way against the long one; whether it had something to say."""
    header = read_header(batch)
    found = timestamps_of(payload, header.records_count, keys_needed=True)
    if found is None:
        return False
    read = list(parse_records(payload, header))
    assert [record.offset for record in read] == list(range(header.records_count))
    assert all(record.key is not None and not record.headers for record in read)
    deltas = [record.timestamp_ms - header.base_timestamp_ms for record in read]
    assert found == (min(deltas), max(deltas))
    return True


@pytest.mark.parametrize("seed", range(60))
def test_plain_records_are_all_looked_at_in_the_short_way(seed: int) -> None:
    batch = build_batch(some_records(random.Random(seed), plain=True))
    assert compare(batch[HEADER_SIZE:], batch)


@pytest.mark.parametrize("seed", range(200))
def test_whatever_the_short_way_takes_the_long_one_takes_too(seed: int) -> None:
    chance = random.Random(seed)
    batch = build_batch(some_records(chance, plain=chance.random() < 0.5))
    compare(batch[HEADER_SIZE:], batch)
    payload = bytearray(batch[HEADER_SIZE:])
    for _ in range(40):
        damaged = bytearray(payload)
        for _ in range(chance.choice((1, 1, 2))):
            damaged[chance.randrange(len(damaged))] = chance.choice((0, 1, 2, 0x7F, 0x80, 0x81, 0xFF))
        compare(bytes(damaged), batch)
        cut = chance.randrange(len(payload))
        compare(bytes(payload[:cut]), batch)
    assert not compare(bytes(payload) + b"\x00", batch)


def test_every_byte_changed() -> None:
    records = [
        Record(number, NOW_MS + 70 * number, b"k" * 3, b"v" * (number % 3), ()) for number in range(70)
    ]
    batch = build_batch(records)
    payload = batch[HEADER_SIZE:]
    for place in range(len(payload)):
        for byte in (0, 1, payload[place] ^ 0x80, payload[place] ^ 2):
            compare(payload[:place] + bytes((byte,)) + payload[place + 1 :], batch)


def test_numbers_of_three_bytes_are_left_to_the_long_way() -> None:
    many = [Record(number, NOW_MS, b"k", None, ()) for number in range(8_193)]
    batch = build_batch(many)
    assert timestamps_of(batch[HEADER_SIZE:], 8_193, keys_needed=True) is None
    assert timestamps_of(build_batch(many[:8_192])[HEADER_SIZE:], 8_192, keys_needed=True) == (0, 0)
    for record in (Record(0, NOW_MS, b"k" * 8_192, b""), Record(0, NOW_MS, b"k", b"v" * 8_192)):
        assert timestamps_of(build_batch([record])[HEADER_SIZE:], 1, keys_needed=True) is None
    late = [Record(0, NOW_MS, b"k", b""), Record(1, NOW_MS + 8_192, b"k", b"")]
    assert timestamps_of(build_batch(late)[HEADER_SIZE:], 2, keys_needed=True) is None


def test_keys_are_asked_for_where_they_are_needed() -> None:
    payload = build_batch([Record(0, NOW_MS, None, b"v")])[HEADER_SIZE:]
    assert timestamps_of(payload, 1, keys_needed=True) is None
    assert timestamps_of(payload, 1, keys_needed=False) == (0, 0)


@pytest.mark.parametrize("seed", range(120))
def test_a_check_finds_the_same_without_the_short_way(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    batch = build_batch(some_records(chance, plain=chance.random() < 0.5))
    cases = [batch]
    for _ in range(10):
        payload = bytearray(batch[HEADER_SIZE:])
        payload[chance.randrange(len(payload))] ^= 1 << chance.randrange(8)
        cases.append(altered(batch, bytes(payload)))
    for base_ms in (-1, -5, 0, 2**63 - 1, NOW_MS - HOUR_MS, NOW_MS + 1_000):
        cases.append(altered(batch, base_timestamp_ms=base_ms))
    cases.append(altered(batch, records_count=0))
    for rules in RULES:
        short = [check(case, rules) for case in cases]
        with monkeypatch.context() as patched:
            patched.setattr(validation, "timestamps_of", lambda *_, **__: None)
            long = [check(case, rules) for case in cases]
        assert short == long


def test_what_is_no_record_raises_nothing() -> None:
    chance = random.Random(1)
    header = read_header(build_batch([Record(0, NOW_MS, b"k", b"v")]))
    for size in range(64):
        payload = chance.randbytes(size)
        if timestamps_of(payload, 1, keys_needed=False) is not None:
            list(parse_records(payload, header))
    with pytest.raises(CorruptRecord):
        list(parse_records(b"\x00", header))
