"""Expired records leave closed segments, and nothing else does: a model, failing disks, power cuts."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.simulated_disk import PowerCut, SimulatedDisk
from tests.unit.storage.compacted_logs import Table
from tests.unit.storage.test_storage_cleaning_process import segment_files
from tidelog.model.log_config import INT64_MAX, LogConfig
from tidelog.records.batch import crc_matches, read_header
from tidelog.records.builder import build_batch
from tidelog.records.compression import Codec
from tidelog.records.record import Record
from tidelog.storage.cleaner import CleaningPlan, CleaningResult
from tidelog.storage.cleaning_process import CleaningProcess
from tidelog.storage.disk import OsDisk
from tidelog.storage.expiry import LOOK_AGAIN_MS_MIN, ExpiryPlan, expires, plan_expiry
from tidelog.storage.producer_state import Duplicate

TTL_MS = 5_000
CONFIG = LogConfig(
    tidelog_ttl_enable=True,
    tidelog_ttl_ms=TTL_MS,
    segment_bytes=1 << 20,
    index_interval_bytes=200,
    min_cleanable_dirty_ratio=0.0,
)


@dataclass
class Expiring(Table):
    """A log whose records expire, under test."""

    config: LogConfig = CONFIG
    looks: dict[tuple[int, int], int] = field(default_factory=dict)

    def send(self, *ttls_ms: int | None, codec: Codec = Codec.NONE, **fields: object) -> int:
        """One batch: a record for each time to live, None for those that say nothing."""
        base_offset = self.log.log_end_offset
        records = [
            Record(0, self.now_ms, None, b"%d" % (base_offset + number), headers_of(ttl_ms))
            for number, ttl_ms in enumerate(ttls_ms)
        ]
        self.append_batch(
            build_batch(records, base_offset=base_offset, leader_epoch=0, codec=codec, **fields)  # type: ignore[arg-type]
        )
        return base_offset

    def plan(self, last_stable_offset: int | None = None) -> CleaningPlan | None:
        if last_stable_offset is None:
            last_stable_offset = self.log.last_stable_offset(self.log.log_end_offset)
        return plan_expiry(
            self.log, looks=self.looks, last_stable_offset=last_stable_offset, now_ms=self.now_ms
        )

    def apply(self, result: CleaningResult) -> None:
        super().apply(result)
        self.looks.update({(each.base_offset, each.size_bytes): each.not_before_ms for each in result.looks})

    def clean_all(self) -> None:
        """Rounds until no segment is to be looked at now."""
        for _ in range(100):
            if self.clean() is None:
                return
        raise AssertionError("rounds without an end")

    def offsets(self) -> list[int]:
        return [each.offset for each in self.records()]


def headers_of(ttl_ms: int | None) -> tuple[tuple[str, bytes], ...]:
    return () if ttl_ms is None else (("tidelog-ttl-ms", b"%d" % ttl_ms),)


def expiring(seed: int = 0, **config: object) -> Expiring:
    return Expiring(SimulatedDisk(seed), config=replace(CONFIG, **config))  # type: ignore[arg-type]


TTLS = st.one_of(st.none(), st.integers(0, 30_000))
STEPS = st.one_of(
    st.tuples(st.just("append"), st.lists(TTLS, min_size=1, max_size=6), st.sampled_from(list(Codec))),
    st.tuples(st.just("roll"), st.none(), st.none()),
    st.tuples(st.just("clean"), st.integers(0, 15_000), st.none()),
    st.tuples(st.just("reopen"), st.none(), st.none()),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_any_history_matches_the_model(steps: Sequence[tuple[str, object, object]]) -> None:
    log = expiring(segment_bytes=600)
    expiry: dict[int, int] = {}
    there: set[int] = set()
    for action, argument, codec in steps:
        if action == "append":
            assert isinstance(argument, list) and isinstance(codec, Codec)
            base_offset = log.send(*argument, codec=codec)
            for number, ttl_ms in enumerate(argument):
                expiry[base_offset + number] = log.now_ms + (TTL_MS if ttl_ms is None else ttl_ms)
                there.add(base_offset + number)
        elif action == "roll":
            log.roll()
        elif action == "reopen":
            log.log.close()
            log.open()
            log.looks = {}
        else:
            assert isinstance(argument, int)
            log.now_ms += argument
            log.looks = {}
            log.clean_all()
            active = log.log.active.base_offset
            there = {each for each in there if each >= active or expiry[each] > log.now_ms}
        assert log.offsets() == sorted(there)
        assert all(each.value == b"%d" % each.offset for each in log.records())
        assert all(crc_matches(batch, 0, len(batch)) for _, batch in log.batches())
        ends = [each.base_offset for each in log.log.segments[1:]]
        lasts = [
            max((h.next_offset for h, _ in log.batches() if h.base_offset < end), default=0) for end in ends
        ]
        assert lasts == ends, "each segment ends where the next one starts"
    assert log.files() == []


def test_only_what_is_worth_it_is_written_anew() -> None:
    log = expiring(min_cleanable_dirty_ratio=0.5)
    log.send(10, 10, None, None)
    log.roll()
    log.now_ms += 100
    result = log.clean()
    assert result is not None
    assert result.replacements == ()
    assert log.offsets() == [0, 1, 2, 3]
    assert log.clean() is None, "it is not looked at again before it can be worth it"
    log.now_ms += TTL_MS - 200
    assert log.clean() is None
    log.now_ms += LOOK_AGAIN_MS_MIN
    log.clean_all()
    assert log.offsets() == []


def test_what_never_expires_is_read_once() -> None:
    log = expiring(tidelog_ttl_ms=-1)
    log.send(None, None)
    log.roll()
    result = log.clean()
    assert result is not None
    assert [each.not_before_ms for each in result.looks] == [INT64_MAX]
    log.now_ms += 10**12
    assert log.clean() is None


@pytest.mark.parametrize("ttl_ms", [20_000, 86_400_000, 30 * 86_400_000])
def test_a_segment_is_read_a_few_times_until_it_expires(ttl_ms: int) -> None:
    log = expiring()
    log.send(ttl_ms)
    log.roll()
    end_ms, rounds = log.now_ms + ttl_ms, 0
    while log.offsets():
        result = log.clean()
        assert result is not None
        rounds += 1
        [look] = result.looks
        assert look.not_before_ms <= max(end_ms, log.now_ms + LOOK_AGAIN_MS_MIN) or not log.offsets()
        if log.offsets():
            log.now_ms = look.not_before_ms
    assert log.now_ms < end_ms + LOOK_AGAIN_MS_MIN
    assert rounds <= 8


def test_small_segments_are_joined() -> None:
    log = expiring(segment_bytes=4_000)
    for _ in range(20):
        log.send(*[10] * 30)
        log.roll()
        log.now_ms += 1_000
        log.clean_all()
    assert len(log.log.segments) < 6
    assert log.offsets() == []
    assert log.log.log_end_offset == 600


def test_what_is_open_young_or_active_is_left() -> None:
    log = expiring(min_compaction_lag_ms=1_000)
    log.send(0)
    log.roll()
    assert log.plan() is None, "its records are too young"
    log.now_ms += 2_000
    log.send(0, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    log.roll()
    log.now_ms += 2_000
    plan = log.plan()
    assert plan is not None
    assert [each.base_offset for each in plan.segments] == [0]
    log.clean_all()
    assert log.offsets() == [1]
    assert log.plan(last_stable_offset=0) is None


def test_transactions_stay_what_they_are() -> None:
    log = expiring(segment_bytes=10_000)
    aborted: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    log.send(0, None, base_sequence=0, **aborted)
    log.roll()
    log.send(0, base_sequence=2, **aborted)
    log.end_transaction(7, commit=False)
    log.roll()
    log.send(0, None, producer_id=8, producer_epoch=0, transactional=True, base_sequence=0)
    log.roll()
    log.end_transaction(8, commit=True)
    log.send(None)
    log.roll()
    log.now_ms += 100
    before = log.log.aborted_transactions(0, 100)
    assert [each.first_offset for each in before] == [0]
    markers = [header.base_offset for header, _ in log.batches() if header.control]
    log.clean_all()
    assert log.log.aborted_transactions(0, 100) == before
    assert [header.base_offset for header, _ in log.batches() if header.control] == markers
    for name in log.disk.list(log.directory):
        if name.endswith(".snapshot"):
            log.disk.remove(f"{log.directory}/{name}")
    log.log.close()
    log.open(clean_shutdown=False)
    assert log.log.last_stable_offset(log.log.log_end_offset) == log.log.log_end_offset


def test_the_last_batch_of_an_active_producer_keeps_its_header() -> None:
    log = expiring()
    log.send(0, 0, producer_id=7, producer_epoch=2, base_sequence=0)
    log.send(0, 0, producer_id=7, producer_epoch=2, base_sequence=2)
    log.send(None)
    log.roll()
    log.now_ms += 100
    log.clean_all()
    assert [(header.base_offset, header.records_count) for header, _ in log.batches()] == [(2, 0), (4, 1)]
    log.open(clean_shutdown=False)
    again = read_header(
        build_batch([Record(0, 10_000, None, b"2")] * 2, producer_id=7, producer_epoch=2, base_sequence=2)
    )
    assert isinstance(log.log.producers.check(again), Duplicate)


def test_topics_that_did_not_opt_in_have_no_rounds() -> None:
    assert expires(CONFIG)
    assert not expires(LogConfig())
    assert not expires(replace(CONFIG, tidelog_delay_target="orders"))
    compacted = replace(CONFIG, cleanup_policy=frozenset({"compact"}))
    assert not expires(compacted), "the rounds of compaction do it"


def test_compaction_leaves_expired_records_out() -> None:
    table = Table(
        SimulatedDisk(0), config=replace(CONFIG, cleanup_policy=frozenset({"compact"}), tidelog_ttl_ms=50)
    )
    table.append((b"a", b"1"), (b"b", b"1"))
    table.now_ms += 40
    table.append((b"b", b"2"))
    table.roll()
    table.now_ms += 20
    table.clean()
    assert table.table() == {b"b": b"2"}


def test_a_disk_that_fails_leaves_the_log_as_it_was() -> None:
    failures = 0
    for count in range(1, 60):
        log = filled(count)
        log.log.leader_epochs.flush()
        offsets, files = log.offsets(), log.disk.list(log.directory)
        plan = log.plan()
        assert plan is not None
        assert isinstance(log.disk, SimulatedDisk)
        log.disk.fail_operation(count)
        try:
            plan.run(log.disk, log.open_files)
        except OSError:
            failures += 1
            assert log.disk.list(log.directory) == files
        assert log.offsets() == offsets
    assert 10 < failures < 59


def filled(seed: int) -> Expiring:
    random = Random(seed)
    log = expiring(seed, segment_bytes=300)
    for _ in range(25):
        log.send(random.choice((None, 0, 500, 10**9)))
        if random.random() < 0.1:
            log.roll()
    log.roll()
    log.log.flush()
    log.now_ms += 1_000
    return log


@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_at_any_operation_takes_nothing_that_has_not_expired(seed: int) -> None:
    cuts = 0
    for count in range(1, 200):
        log = filled(seed * 1_000 + count)
        before, recovery_point = log.offsets(), log.log.recovery_point
        alive = [
            each.offset
            for each in log.records()
            if not each.headers or int(each.headers[0][1] or b"") > 1_000
        ]
        assert isinstance(log.disk, SimulatedDisk)
        log.disk.cut_power_at(count)
        try:
            log.clean_all()
            finished = True
        except PowerCut:
            finished = False
            cuts += 1
        log.disk = log.disk.crash()
        log.open(clean_shutdown=False, recovery_point=recovery_point)
        assert log.log.log_end_offset == 25
        assert set(alive) <= set(log.offsets()) <= set(before)
        assert log.files() == []
        log.looks = {}
        log.clean_all()
        assert log.offsets() == alive
        if finished:
            break
    assert cuts > 20


def test_a_round_in_a_child(tmp_path: object) -> None:
    log = Expiring(OsDisk(), f"{tmp_path}/t-0", config=replace(CONFIG, segment_bytes=4_096))
    for number in range(400):
        log.send(0 if number % 4 else None)
    log.now_ms += 100
    plan = log.plan()
    assert isinstance(plan, ExpiryPlan)
    process = CleaningProcess(log.disk, log.open_files)
    try:
        result = process.run(plan, dedupe_buffer_bytes=1 << 20, should_stop=lambda: False)
    finally:
        process.close()
    assert result.looks
    log.apply(result)
    closed = log.log.active.base_offset
    assert [each for each in log.offsets() if each < closed] == list(range(0, closed, 4))
    assert not [name for name in segment_files(log.log) if name.endswith((".cleaned", ".swap"))]
