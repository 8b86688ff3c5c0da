"""Producer state: retries, gaps, epochs, transactions, expiry and snapshots."""

import struct

import crc32c
import pytest

from tests.support.simulated_disk import SimulatedDisk
from tidelog.model.errors import ErrorCode, Refused
from tidelog.records.batch import TRANSACTIONAL_BIT, BatchHeader
from tidelog.storage.producer_state import (
    CompletedTransaction,
    Duplicate,
    LastRecord,
    ProducerDescription,
    ProducerExpiration,
    ProducerState,
    SnapshotCorrupt,
    decode_snapshot,
    list_snapshots,
    remove_snapshots_before,
    snapshot_path,
)

PRODUCER = 42
SEQUENCE_MAX = 2**31 - 1


def batch(
    sequence: int,
    count: int = 1,
    *,
    epoch: int = 0,
    producer_id: int = PRODUCER,
    transactional: bool = False,
    timestamp_ms: int = 1000,
) -> BatchHeader:
    return BatchHeader(
        base_offset=0,
        batch_length=100,
        partition_leader_epoch=0,
        magic=2,
        crc=0,
        attributes=TRANSACTIONAL_BIT if transactional else 0,
        last_offset_delta=count - 1,
        base_timestamp_ms=timestamp_ms,
        max_timestamp_ms=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        records_count=count,
    )


def refusal(answer: Duplicate | Refused | None) -> ErrorCode:
    assert isinstance(answer, Refused), answer
    assert answer.message
    return answer.code


def written(*headers: BatchHeader, state: ProducerState | None = None, offset: int = 0) -> ProducerState:
    """Append batches one after the other, each of which must be accepted."""
    state = state or ProducerState()
    for header in headers:
        assert state.check(header) is None
        state.update(header, offset, now_ms=header.max_timestamp_ms)
        offset += header.last_offset_delta + 1
    return state


# -- sequences


@pytest.mark.parametrize("sequence", [0, 1, 17, SEQUENCE_MAX])
def test_an_unknown_producer_may_start_with_any_sequence(sequence: int) -> None:
    state = written(batch(sequence))
    assert state.check(batch((sequence + 1) % 2**31)) is None


def test_batches_follow_each_other() -> None:
    state = written(batch(0, 5), batch(5, 3))
    assert state.check(batch(8)) is None
    for gap in (9, 10, 7, 4, SEQUENCE_MAX):
        assert refusal(state.check(batch(gap))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_retry_of_the_last_five_batches_is_a_duplicate() -> None:
    state = written(*(batch(10 * n, 10, timestamp_ms=1000 + n) for n in range(7)))
    for n in range(2, 7):
        assert state.check(batch(10 * n, 10)) == Duplicate(10 * n, 10 * n + 9, 1000 + n)
    for n in range(2):
        assert refusal(state.check(batch(10 * n, 10))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_retry_with_other_bounds_is_no_duplicate() -> None:
    state = written(batch(0, 10), batch(10, 10))
    assert refusal(state.check(batch(10, 9))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(state.check(batch(11, 9))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_wrap_inside_a_batch_and_between_batches() -> None:
    state = written(batch(SEQUENCE_MAX - 1, 4))  # MAX - 1, MAX, 0, 1
    assert state.check(batch(SEQUENCE_MAX - 1, 4)) == Duplicate(0, 3, 1000)
    assert state.check(batch(2)) is None
    state = written(batch(SEQUENCE_MAX - 1, 2))
    assert state.check(batch(0)) is None
    assert refusal(state.check(batch(1))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_producers_do_not_disturb_each_other() -> None:
    state = written(batch(0), batch(0, producer_id=7), batch(1), batch(1, producer_id=7))
    assert state.check(batch(0, producer_id=7)) == Duplicate(1, 1, 1000)
    assert state.producers_count == 2


# -- epochs


def test_an_older_epoch_is_fenced() -> None:
    state = written(batch(0, epoch=3))
    assert refusal(state.check(batch(1, epoch=2))) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refusal(state.check(batch(0, epoch=2))) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refusal(state.check(batch(0, epoch=2), from_client=False)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_new_epoch_starts_at_sequence_zero_and_forgets_the_old_batches() -> None:
    state = written(batch(0, epoch=3), batch(1, epoch=3))
    assert refusal(state.check(batch(2, epoch=4))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    written(batch(0, epoch=4), state=state, offset=2)
    assert state.check(batch(0, epoch=4)) == Duplicate(2, 2, 1000)
    assert refusal(state.check(batch(1, epoch=3))) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_coordinators_batches_carry_no_sequence() -> None:
    state = ProducerState()
    for offset in range(3):
        header = batch(-1, transactional=True)
        assert state.check(header, from_client=False) is None
        state.update(header, offset, now_ms=0)
    assert state.describe()[0].last_sequence == -1


# -- transactions


def complete(
    state: ProducerState, offset: int, *, producer_id: int = PRODUCER, aborted: bool = False, epoch: int = 0
) -> CompletedTransaction | None:
    return state.complete_transaction(producer_id, epoch, 5, offset, aborted=aborted, now_ms=2000)


def test_a_transaction_holds_back_the_first_unstable_offset_until_its_marker_is_replicated() -> None:
    state = ProducerState()
    assert state.first_unstable_offset is None
    written(batch(0, 3, transactional=True), batch(3, 2, transactional=True), state=state, offset=10)
    assert state.first_unstable_offset == state.first_undecided_offset == 10
    assert state.has_open_transaction(PRODUCER)
    assert complete(state, 15) == CompletedTransaction(PRODUCER, 10, 15, False, 16)
    assert not state.has_open_transaction(PRODUCER)
    assert state.first_undecided_offset is None
    assert state.first_unstable_offset == 10
    state.advance_high_watermark(15)
    assert state.first_unstable_offset == 10
    state.advance_high_watermark(16)
    assert state.first_unstable_offset is None


def test_transactions_that_overlap() -> None:
    state = ProducerState()
    written(batch(0, transactional=True, producer_id=1), state=state, offset=0)
    written(batch(0, transactional=True, producer_id=2), state=state, offset=1)
    written(batch(0, transactional=True, producer_id=3), state=state, offset=2)
    assert complete(state, 3, producer_id=2, aborted=True) == CompletedTransaction(2, 1, 3, True, 0)
    assert complete(state, 4, producer_id=1) == CompletedTransaction(1, 0, 4, False, 2)
    assert state.first_undecided_offset == 2
    assert state.first_unstable_offset == 0
    state.advance_high_watermark(4)  # only the marker at 3 is replicated
    assert state.first_unstable_offset == 0
    state.advance_high_watermark(5)
    assert state.first_unstable_offset == 2
    assert complete(state, 5, producer_id=3, aborted=True) == CompletedTransaction(3, 2, 5, True, 6)


def test_a_marker_without_records_completes_nothing_but_fences() -> None:
    state = ProducerState()
    assert complete(state, 0, epoch=3) is None
    assert state.first_unstable_offset is None
    assert refusal(state.check(batch(0, epoch=2))) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert state.check(batch(0, epoch=3)) is None
    assert refusal(state.check(batch(1, epoch=3))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_go_on_after_a_marker_of_the_same_epoch_and_restart_after_a_bump() -> None:
    state = written(batch(0, 3, transactional=True))
    complete(state, 3)
    assert state.check(batch(3, transactional=True)) is None
    assert state.check(batch(0, 3, transactional=True)) == Duplicate(0, 2, 1000)
    complete(state, 4, epoch=1)
    assert (
        refusal(state.check(batch(3, epoch=1, transactional=True))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    )
    assert state.check(batch(0, epoch=1, transactional=True)) is None


def test_a_plain_batch_inside_a_transaction_is_refused() -> None:
    state = written(batch(0, transactional=True))
    assert refusal(state.check(batch(1))) is ErrorCode.INVALID_TXN_STATE
    assert state.check(batch(1, transactional=True)) is None


def test_markers_of_older_producers_and_coordinators_are_refused() -> None:
    state = written(batch(0, epoch=2, transactional=True))
    state.complete_transaction(PRODUCER, 2, 7, 1, aborted=False, now_ms=0)
    assert state.check_marker(batch(-1, epoch=2), 7) is None
    assert refusal(state.check_marker(batch(-1, epoch=2), 6)) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert refusal(state.check_marker(batch(-1, epoch=1), 8)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert state.check_marker(batch(-1, producer_id=99), 0) is None


# -- expiry, description


def test_idle_producers_expire_unless_their_transaction_is_open() -> None:
    state = ProducerState(ProducerExpiration(100))
    state.update(batch(0, producer_id=1), 0, now_ms=1000)
    state.update(batch(0, producer_id=2, transactional=True), 1, now_ms=1000)
    state.update(batch(0, producer_id=3), 2, now_ms=1050)
    assert state.expire(1099) == 0
    assert state.expire(1100) == 1
    assert [row.producer_id for row in state.describe()] == [2, 3]
    assert state.check(batch(77, producer_id=1)) is None
    complete(state, 3, producer_id=2)
    assert state.expire(1150) == 1
    assert state.expire(2099) == 0
    assert state.expire(2100) == 1


def test_expiry_counts_from_the_append_not_from_the_records_timestamp() -> None:
    state = ProducerState(ProducerExpiration(100))
    state.update(batch(0, timestamp_ms=5), 0, now_ms=1_000_000)
    assert state.expire(1_000_099) == 0
    assert state.check(batch(0)) == Duplicate(0, 0, 5)


def test_description() -> None:
    state = written(batch(4, 3, epoch=2, producer_id=9, transactional=True), batch(0), offset=100)
    assert state.describe() == [
        ProducerDescription(9, 2, 6, 1000, -1, 100),
        ProducerDescription(PRODUCER, 0, 0, 1000, -1, -1),
    ]
    complete(state, 104, producer_id=9, epoch=2)
    assert state.describe()[0] == ProducerDescription(9, 2, 6, 2000, 5, -1)
    assert state.last_records() == {9: LastRecord(102, 2), PRODUCER: LastRecord(103, 0)}


# -- snapshots


def sample() -> ProducerState:
    state = written(
        batch(5, 3), batch(8, 2), batch(0, 4, producer_id=7, epoch=1, transactional=True), offset=50
    )
    complete(state, 59, producer_id=8, epoch=2)
    return state


def test_a_snapshot_is_kafkas() -> None:
    data = sample().encode_snapshot()
    body = struct.pack(
        ">i" + "qhiqiqiq" * 3,
        3,
        *(42, 0, 9, 54, 1, 1000, -1, -1),
        *(7, 1, 3, 58, 3, 1000, -1, 55),
        *(8, 2, -1, -1, 0, 2000, 5, -1),
    )
    assert data == struct.pack(">hI", 1, crc32c.crc32c(body)) + body


def test_a_snapshot_brings_the_state_back_with_the_last_batch_of_each_producer() -> None:
    disk = SimulatedDisk()
    before = sample()
    before.write_snapshot(disk, "/", 60)
    after = ProducerState()
    assert after.load(disk, "/", 0, 60, now_ms=3000) == 60
    assert after.describe() == before.describe()
    assert after.first_unstable_offset == 55
    assert after.check(batch(8, 2)) == Duplicate(53, 54, 1000)
    assert after.check(batch(10)) is None
    assert refusal(after.check(batch(5, 3))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert complete(after, 60, producer_id=7, epoch=1) == CompletedTransaction(7, 55, 60, False, 61)


def test_the_first_sequence_of_a_wrapped_batch_survives_a_snapshot() -> None:
    disk = SimulatedDisk()
    written(batch(SEQUENCE_MAX - 1, 4)).write_snapshot(disk, "/", 4)
    after = ProducerState()
    after.load(disk, "/", 0, 4, now_ms=1000)
    assert after.check(batch(SEQUENCE_MAX - 1, 4)) == Duplicate(0, 3, 1000)


def test_open_transactions_are_in_order_after_loading() -> None:
    disk = SimulatedDisk()
    state = ProducerState()
    written(
        batch(0, transactional=True, producer_id=1), batch(0, transactional=True, producer_id=2), state=state
    )
    complete(state, 2, producer_id=1)
    written(batch(1, transactional=True, producer_id=1), state=state, offset=3)
    state.write_snapshot(disk, "/", 4)
    after = ProducerState()
    after.load(disk, "/", 0, 4, now_ms=1000)
    assert after.first_unstable_offset == 1


def test_loading_takes_the_newest_valid_snapshot_inside_the_log_and_removes_the_others() -> None:
    disk = SimulatedDisk()
    for offset in (10, 20, 30, 40, 50):
        written(batch(offset)).write_snapshot(disk, "/", offset)
    file = disk.open(snapshot_path("/", 40), create=False)
    file.truncate(file.size_bytes - 1)
    state = ProducerState()
    assert state.load(disk, "/", 10, 45, now_ms=1000) == 30
    assert state.describe()[0].last_sequence == 30
    assert list_snapshots(disk, "/") == [20, 30]
    assert ProducerState().load(disk, "/", 30, 45, now_ms=1000) == 30  # the log starts there: nothing to load
    assert list_snapshots(disk, "/") == []
    assert ProducerState().load(disk, "/", 3, 45, now_ms=1000) == 3


def test_removed_snapshots_do_not_come_back_after_a_power_cut() -> None:
    for seed in range(30):
        disk = SimulatedDisk(seed)
        for offset in (10, 20):
            written(batch(offset)).write_snapshot(disk, "/", offset)
        disk.sync_directory("/")
        ProducerState().load(disk, "/", 0, 15, now_ms=1000)
        assert 20 not in list_snapshots(disk.crash(), "/")


def test_a_snapshot_that_a_power_cut_damaged_is_never_believed() -> None:
    outcomes = set()
    for seed in range(100):
        disk = SimulatedDisk(seed)
        state = written(*(batch(0, producer_id=producer_id) for producer_id in range(300)))
        state.write_snapshot(disk, "/", 300)
        found = disk.crash()
        after = ProducerState()
        offset = after.load(found, "/", 0, 300, now_ms=1000)
        outcomes.add(offset)
        assert after.describe() == (state.describe() if offset == 300 else [])
    assert outcomes == {0, 300}


def test_what_a_power_cut_left_of_another_snapshot_is_never_believed() -> None:
    for seed in range(100):
        disk = SimulatedDisk(seed)
        leftover = disk.open(snapshot_path("/", 9) + ".tmp", create=True)
        leftover.append(written(batch(100)).encode_snapshot())
        leftover.sync()
        disk.sync_directory("/")
        state = written(batch(0, 9))
        state.write_snapshot(disk, "/", 9)
        after = ProducerState()
        if after.load(disk.crash(), "/", 0, 9, now_ms=1000) == 9:
            assert after.describe() == state.describe()


def test_expired_producers_are_not_loaded() -> None:
    disk = SimulatedDisk()
    sample().write_snapshot(disk, "/", 60)
    after = ProducerState(ProducerExpiration(500))
    after.load(disk, "/", 0, 60, now_ms=2400)
    assert [row.producer_id for row in after.describe()] == [7, 8]


@pytest.mark.parametrize("position", range(0, 134, 7))
def test_any_flipped_bit_is_noticed(position: int) -> None:
    data = bytearray(sample().encode_snapshot())
    data[position] ^= 0x10
    with pytest.raises(SnapshotCorrupt):
        decode_snapshot(bytes(data))


@pytest.mark.parametrize("data", [b"", b"\0", bytes(6), bytes(64)])
def test_nonsense_is_no_snapshot(data: bytes) -> None:
    with pytest.raises(SnapshotCorrupt):
        decode_snapshot(data)


def test_old_snapshots_are_removed_and_other_files_left() -> None:
    disk = SimulatedDisk()
    for offset in (10, 20, 30):
        ProducerState().write_snapshot(disk, "/", offset)
    disk.open("/00000000000000000010.log", create=True)
    remove_snapshots_before(disk, "/", 30)
    assert disk.list("/") == ["00000000000000000010.log", "00000000000000000030.snapshot"]
