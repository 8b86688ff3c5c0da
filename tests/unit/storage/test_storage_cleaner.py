"""Compaction, compared with a model that simply looks at every record."""

from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.storage.compacted_logs import CONFIG, filled, simulated
from tidelog.records.batch import crc_matches, read_header
from tidelog.records.builder import build_batch
from tidelog.records.compression import Codec
from tidelog.records.record import Record, iterate_records
from tidelog.storage.cleaner import (
    OffsetMap,
)


@dataclass
class Model:
    """What a log of batches must hold after each round: every record is looked at, nothing is clever."""

    batches: list[list[tuple[int, bytes, bytes | None]]] = field(default_factory=list)
    horizons: dict[int, int] = field(default_factory=dict)

    def clean(self, end_offset: int, now_ms: int, delete_retention_ms: int) -> None:
        last = {key: offset for batch in self.batches for offset, key, _ in batch if offset < end_offset}
        for number, batch in enumerate(self.batches):
            horizon_ms = self.horizons.get(number)
            batch[:] = [
                (offset, key, value)
                for offset, key, value in batch
                if offset >= end_offset
                or (last[key] == offset and (value is not None or horizon_ms is None or now_ms < horizon_ms))
            ]
            if horizon_ms is None and any(
                value is None and offset < end_offset for offset, _, value in batch
            ):
                self.horizons[number] = now_ms + delete_retention_ms

    def rows(self) -> list[tuple[int, bytes, bytes | None]]:
        return [row for batch in self.batches for row in batch]


KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])
VALUES = st.one_of(st.none(), st.binary(max_size=60))
STEPS = st.one_of(
    st.tuples(
        st.just("append"),
        st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=6),
        st.sampled_from(list(Codec)),
    ),
    st.tuples(st.just("roll"), st.none(), st.none()),
    st.tuples(st.just("clean"), st.integers(0, 1500), st.none()),
    st.tuples(st.just("reopen"), st.none(), st.none()),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_any_history_of_appends_rolls_and_rounds_matches_the_model(
    steps: list[tuple[str, object, object]],
) -> None:
    table, model = simulated(segment_bytes=600), Model()
    for action, argument, codec in steps:
        if action == "append":
            base_offset = table.log.log_end_offset
            rows = argument
            assert isinstance(rows, list) and isinstance(codec, Codec)
            table.append(*rows, codec=codec)
            model.batches.append([(base_offset + n, key, value) for n, (key, value) in enumerate(rows)])
        elif action == "roll":
            table.roll()
        elif action == "reopen":
            end_offset = table.log.log_end_offset
            table.log.close()
            table.open()
            assert table.log.log_end_offset == end_offset
        else:
            assert isinstance(argument, int)
            table.now_ms += argument
            result = table.clean()
            if result is not None:
                model.clean(result.first_dirty_offset, table.now_ms, CONFIG.delete_retention_ms)
                assert result.first_dirty_offset == result.plan.first_uncleanable_offset
        assert table.rows() == model.rows()
        assert all(crc_matches(batch, 0, len(batch)) for _, batch in table.batches())
    assert table.files() == []


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 30), VALUES), min_size=1, max_size=4), min_size=1, max_size=40
    ),
    st.integers(6, 20),
)
def test_a_map_smaller_than_the_key_set_takes_more_rounds_and_loses_nothing(
    batches: list[list[tuple[int, bytes | None]]], slots: int
) -> None:
    table = simulated(segment_bytes=500, delete_retention_ms=10**9)
    for batch in batches:
        table.append(*((b"key-%d" % key, value) for key, value in batch))
    table.roll()
    before, rows = table.table(), table.rows()
    for _ in range(1000):
        dirty_before = table.first_dirty_offset or 0
        if table.clean(dedupe_buffer_bytes=slots * OffsetMap.ENTRY_BYTES) is None:
            break
        assert table.first_dirty_offset is not None
        assert table.first_dirty_offset > dirty_before, "every round makes progress"
        assert table.table() == before
        assert set(table.rows()) <= set(rows)
    assert table.first_dirty_offset == table.log.active.base_offset
    last = {key: offset for offset, key, _ in rows}
    assert table.rows() == [row for row in rows if last[row[1]] == row[0]]


def test_a_batch_with_more_keys_than_the_map_holds_is_left_alone() -> None:
    table = simulated()
    table.append(*((b"%d" % n, b"x") for n in range(10)))
    table.roll()
    plan = table.plan()
    assert plan is not None
    result = plan.run(table.disk, table.open_files, dedupe_buffer_bytes=5 * OffsetMap.ENTRY_BYTES)
    assert (result.replacements, result.first_dirty_offset) == ((), 0)
    assert len(table.rows()) == 10
    with pytest.raises(ValueError, match="too small for one key"):
        plan.run(table.disk, table.open_files, dedupe_buffer_bytes=10)


def test_the_offset_map_is_a_map() -> None:
    random = Random(1)
    offset_map, model = OffsetMap(1000 * OffsetMap.ENTRY_BYTES, 0.9, 10**6), {}
    for offset in range(5000):
        key = b"%d" % random.randrange(850)
        assert offset_map.put(key, offset)
        model[key] = offset
    assert all(offset_map.get(b"%d" % n) == model.get(b"%d" % n, -1) for n in range(1000))
    assert offset_map.entries_count == len(model)
    extra = [offset_map.put(b"extra-%d" % n, n) for n in range(200)]
    assert extra == [True] * (900 - len(model)) + [False] * (200 - 900 + len(model))
    assert offset_map.put(b"0", 9999)
    assert offset_map.get(b"0") == 9999


# -- what a round leaves


def test_batches_that_keep_all_records_are_copied_byte_for_byte() -> None:
    table = simulated()
    table.append((b"a", b"1"), (b"b", b"1"), codec=Codec.ZSTD)
    table.append((b"c", b"1"), (b"d", b"1"), codec=Codec.GZIP)
    table.append((b"a", b"2"), (b"e", b"1"), codec=Codec.LZ4)
    before = table.batches()
    table.roll()
    result = table.clean()
    after = table.batches()
    assert after[1:] == before[1:]
    assert after[0] != before[0]
    assert [len(list(iterate_records(batch, header))) for header, batch in after] == [1, 2, 2]
    assert result is not None
    statistics = result.statistics
    assert (statistics.records_read, statistics.records_kept) == (6, 5)
    assert statistics.bytes_read == sum(len(batch) for _, batch in before)
    assert statistics.bytes_written == sum(len(batch) for _, batch in after)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_rebuilt_batch_keeps_its_span_its_producer_and_its_codec(codec: Codec) -> None:
    table = simulated()
    table.append(
        (b"a", b"old"),
        (b"b", b"kept"),
        (b"c", b"old"),
        codec=codec,
        producer_id=7,
        producer_epoch=3,
        base_sequence=5,
    )
    table.append((b"a", b"new"), (b"c", b"new"))
    (old, _), *_ = table.batches()
    table.roll()
    table.clean()
    (new, batch), *_ = table.batches()
    assert new.records_count == 1
    assert [record.offset for record in iterate_records(batch, new)] == [1]
    unchanged = (
        "base_offset",
        "last_offset_delta",
        "producer_id",
        "producer_epoch",
        "base_sequence",
        "codec",
    )
    assert all(getattr(new, name) == getattr(old, name) for name in unchanged)
    assert new.partition_leader_epoch == old.partition_leader_epoch
    assert crc_matches(batch, 0, len(batch))


def test_headers_timestamps_and_append_time_survive() -> None:
    table = simulated()
    records = [
        Record(0, 111, b"a", b"x", (("h", b"1"), ("h", None))),
        Record(1, 333, b"b", b"y", (("trace", b"id"),)),
    ]
    table.append_batch(build_batch(records, base_offset=0, leader_epoch=0))
    table.append_batch(build_batch(records, base_offset=2, leader_epoch=0, log_append_time_ms=777))
    table.append((b"a", b"z"))
    table.roll()
    table.clean()
    assert table.records() == [
        Record(3, 777, b"b", b"y", (("trace", b"id"),)),
        Record(4, table.now_ms, b"a", b"z"),
    ]
    assert table.batches()[0][0].log_append_time


def test_records_without_a_key_go() -> None:
    table = simulated()
    table.append((None, b"lost"), (b"a", b"1"))
    table.roll()
    result = table.clean()
    assert table.rows() == [(1, b"a", b"1")]
    assert result is not None
    assert result.statistics.keyless_records == 1


def test_a_tombstone_goes_only_after_its_horizon_which_the_first_round_sets() -> None:
    table = simulated(delete_retention_ms=1000)
    table.append((b"a", b"1"), (b"b", b"1"))
    table.append((b"a", None))
    table.roll()
    table.now_ms += 5000  # the age of the record does not count
    table.clean()
    assert table.rows() == [(1, b"b", b"1"), (2, b"a", None)]
    horizon_ms = table.now_ms + 1000
    assert table.batches()[1][0].delete_horizon_ms == horizon_ms
    assert table.records()[1].timestamp_ms == 10_000
    for now_ms, expected in ((horizon_ms - 1, [1, 2]), (horizon_ms, [1])):
        table.now_ms = now_ms
        table.append((b"filler", b"%d" % now_ms))
        table.roll()
        table.clean()
        assert [offset for offset, key, _ in table.rows() if key != b"filler"] == expected


def test_the_end_of_a_round_does_not_move_even_if_its_last_batch_is_emptied() -> None:
    table = simulated(delete_retention_ms=0)
    table.append((b"a", b"1"))
    table.append((b"a", None))
    table.roll()
    table.clean()
    assert table.rows() == [(1, b"a", None)]
    table.first_dirty_offset = 0
    table.clean()
    assert table.rows() == []
    (header, batch) = table.batches()[0]
    assert (header.base_offset, header.last_offset, header.records_count, len(batch)) == (1, 1, 0, 61)
    table.log.close()
    table.open()
    assert table.log.log_end_offset == 2


def test_small_segments_are_merged_up_to_the_segment_size() -> None:
    table = simulated(segment_bytes=1000)
    for n in range(20):
        table.append((b"%d" % n, b"x" * 30))
        table.roll()
    assert len(table.log.segments) == 21
    table.clean()
    assert len(table.log.segments) < 7
    assert all(segment.size_bytes <= 1000 for segment in table.log.segments)
    assert [offset for offset, _, _ in table.rows()] == list(range(20))
    for offset in range(20):
        found = table.log.read(offset, 1, table.log.log_end_offset)
        assert found is not None
        assert read_header(found.file.read(found.position, 61)).base_offset == offset


# -- when, and how far


def test_the_active_segment_is_never_cleaned() -> None:
    table = filled()
    plan = table.plan()
    assert plan is not None
    assert plan.first_uncleanable_offset == table.log.active.base_offset == 3
    table.clean()
    assert [offset for offset, _, _ in table.rows()] == [2, 3]
    assert table.plan() is None


def test_a_log_that_is_not_compacted_is_not_cleaned() -> None:
    assert filled(cleanup_policy=frozenset({"delete"})).plan() is None
    assert filled(cleanup_policy=frozenset({"compact", "delete"})).plan() is not None


def test_nothing_at_or_behind_the_last_stable_offset_is_cleaned() -> None:
    table = filled()
    for last_stable_offset, expected in ((0, None), (1, 1), (2, 2), (3, 3), (4, 3)):
        plan = table.plan(last_stable_offset)
        assert (plan.first_uncleanable_offset if plan else None) == expected


def test_young_segments_wait_for_min_compaction_lag() -> None:
    # The records are 4, 3 and 2 seconds old.
    for lag_ms, expected in ((0, 3), (2000, 3), (2001, 2), (3001, 1), (4001, None)):
        plan = filled(min_compaction_lag_ms=lag_ms).plan()
        assert (plan.first_uncleanable_offset if plan else None) == expected, lag_ms


def test_a_round_waits_for_the_dirty_ratio() -> None:
    table = filled(min_cleanable_dirty_ratio=0.5)
    plan = table.plan()
    assert plan is not None
    assert plan.dirty_ratio == 1.0
    table.append(*((b"%d" % n, b"x" * 50) for n in range(20)))
    table.roll()
    table.clean()
    assert table.plan() is None
    table.append((b"a", b"x"))
    table.roll()
    assert table.plan() is None, "a few dirty bytes behind many clean ones"
    table.log.reconfigure(replace(table.config, min_cleanable_dirty_ratio=0.01))
    plan = table.plan()
    assert plan is not None
    assert 0.01 < plan.dirty_ratio < 0.5
    assert "bytes are dirty" in plan.explain()[0]


def test_max_compaction_lag_overrides_the_dirty_ratio() -> None:
    table = filled(min_cleanable_dirty_ratio=0.99, max_compaction_lag_ms=60_000)
    table.clean()
    table.append((b"b", b"x"))
    table.roll()
    assert table.plan() is None
    table.now_ms = 13_000 + 60_000  # the first dirty record is of 13,000
    assert table.plan() is None
    table.now_ms += 1
    plan = table.plan()
    assert plan is not None
    assert plan.overdue


@pytest.mark.parametrize("checkpoint", [0, 1000])
def test_a_checkpoint_outside_of_the_log_starts_again(checkpoint: int) -> None:
    table = filled()
    table.log.advance_log_start(2)
    table.first_dirty_offset = checkpoint
    plan = table.plan()
    assert plan is not None
    assert plan.first_dirty_offset == 2


# -- with everything else going on
