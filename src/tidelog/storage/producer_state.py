"""What a log knows about each producer that writes to it: idempotence and transactions.

Per producer id: its epoch, its last five batches (sequences and offsets), when it last wrote, the first
offset of its open transaction and the epoch of the coordinator that last ended one. From these `check` tells
a retry from a new batch (a retry of one of the last five is answered like the original and not written
again), refuses gaps in the sequence and fences old epochs. `first_unstable_offset` bounds what read_committed
consumers see.

The state is a function of the log. It is kept in memory, written as a snapshot when a segment rolls and when
the log closes, and restored from the newest valid snapshot plus the batches behind it. A snapshot is the file
`<20-digit offset>.snapshot`, the state just before that offset, in Kafka's format:

    int16   version                     1
    uint32  CRC-32C of what follows
    int32   number of producers, then for each:
        int64   producer id
        int16   producer epoch
        int32   last sequence           -1 if it has no batch
        int64   last offset             -1 if it has no batch
        int32   offset delta            last offset - base offset of that batch
        int64   timestamp               when it last wrote
        int32   coordinator epoch       -1 if no transaction ended
        int64   first offset of the open transaction, or -1

Snapshots are not synced: a lost or torn one (the CRC tells) only means more batches to replay. Like Kafka's,
a snapshot remembers only the last batch of a producer, not five.
"""

import struct
from collections.abc import Iterable
from typing import NamedTuple

from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.identifiers import NO_EPOCH, NO_OFFSET, NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP
from tidelog.records.batch import TRANSACTIONAL_BIT, BatchHeader
from tidelog.records.checksum import crc32c
from tidelog.storage.disk import Disk

SNAPSHOT_SUFFIX = ".snapshot"
SNAPSHOT_VERSION = 1
RETAINED_BATCHES_MAX = 5
SEQUENCE_MASK = 0x7FFF_FFFF  # sequences count from 0 to the largest int32, then start again at 0

_SNAPSHOT_START = struct.Struct(">hI")
_SNAPSHOT_COUNT = struct.Struct(">i")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")


class SnapshotCorrupt(Exception):
    """A producer snapshot that cannot be what was written; the one before it is used instead."""


class Duplicate(NamedTuple):
    """The batch was written before: here is where and when."""

    base_offset: int
    last_offset: int
    timestamp_ms: int


class CompletedTransaction(NamedTuple):
    """A transaction that a marker at `last_offset` has just ended.

    `last_stable_offset` is where the next open transaction begins, or the offset behind the marker.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool
    last_stable_offset: int


class LastRecord(NamedTuple):
    """What compaction must keep for an active producer: the batch that ends here, or its newest marker."""

    last_data_offset: int
    producer_epoch: int


class ProducerDescription(NamedTuple):
    """One producer as DescribeProducers shows it."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    current_transaction_start_offset: int


# (first sequence, last sequence, base offset, last offset, timestamp): a plain tuple, one is made per append.
_Batch = tuple[int, int, int, int, int]


def _batch_of(header: BatchHeader, base_offset: int) -> _Batch:
    first_sequence = header.base_sequence
    last_offset_delta = header.last_offset_delta
    last_sequence = (
        (first_sequence + last_offset_delta) & SEQUENCE_MASK if first_sequence >= 0 else NO_SEQUENCE
    )
    return (
        first_sequence,
        last_sequence,
        base_offset,
        base_offset + last_offset_delta,
        header.max_timestamp_ms,
    )


class _Producer:
    """The state of one producer id."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_timestamp_ms", "transaction_first_offset")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: list[_Batch] = []
        self.last_timestamp_ms = NO_TIMESTAMP
        self.transaction_first_offset = NO_OFFSET
        self.coordinator_epoch = NO_EPOCH

    @property
    def last_sequence(self) -> int:
        return self.batches[-1][1] if self.batches else NO_SEQUENCE

    @property
    def last_data_offset(self) -> int:
        return self.batches[-1][3] if self.batches else NO_OFFSET


class ProducerExpiration:
    """How long an idle producer id is remembered (`producer.id.expiration.ms`).

    The logs of a broker share one, so that a change of the setting holds for logs that are open as well.
    """

    __slots__ = ("idle_ms",)

    def __init__(self, idle_ms: int = 86_400_000) -> None:
        self.idle_ms = idle_ms


class ProducerState:
    """All producers of one log."""

    __slots__ = ("_open_transactions", "_producers", "_unreplicated_transactions", "expiration")

    def __init__(self, expiration: ProducerExpiration | None = None) -> None:
        self.expiration = expiration or ProducerExpiration()
        self._producers: dict[int, _Producer] = {}
        # First offset → producer id. Transactions start in offset order, so the first key is the smallest.
        self._open_transactions: dict[int, int] = {}
        # First offset → offset of the marker, for those whose marker is not yet below the high watermark.
        self._unreplicated_transactions: dict[int, int] = {}

    @property
    def producers_count(self) -> int:
        return len(self._producers)

    # -- appending

    def check(self, header: BatchHeader, *, from_client: bool = True) -> Duplicate | Refused | None:
        """Say whether a data batch may be appended: None, or why not.

        `from_client=False` is for batches of a coordinator on this broker (consumer offsets), which carry no
        sequence: only epoch and transaction are checked. Replicated batches were checked by the leader and
        are not checked again. A producer that is not known (new, expired, or its batches were deleted) may
        start with any sequence.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return None
        epoch = header.producer_epoch
        if epoch == producer.epoch and from_client:
            batches = producer.batches
            first_sequence = header.base_sequence
            # The usual case first: the batch that follows the last one.
            expected = (batches[-1][1] + 1) & SEQUENCE_MASK if batches else 0
            if first_sequence != expected:
                return self._retry_or_gap(producer, header)
        elif epoch < producer.epoch:
            return Refused(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} has epoch {producer.epoch}, the batch has {epoch}",
            )
        elif from_client and header.base_sequence != 0:
            return Refused(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} starts epoch {epoch} at {header.base_sequence}, not 0",
            )
        if producer.transaction_first_offset >= 0 and not header.attributes & TRANSACTIONAL_BIT:
            return Refused(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has an open transaction, the batch is not transactional",
            )
        return None

    def check_marker(
        self, header: BatchHeader, coordinator_epoch: int, *, transaction_version: int = 0
    ) -> Refused | None:
        """Say whether a transaction marker from a coordinator may be appended: None, or why not.

        With transactions v2 (KIP-890) a marker carries the epoch after that of its transaction. A transaction
        that is open under the marker's own epoch is the next one already, and the marker a late copy.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            if header.producer_epoch >= NO_PRODUCER_EPOCH:
                return None
            return Refused(ErrorCode.INVALID_PRODUCER_EPOCH, f"there is no epoch {header.producer_epoch}")
        is_late_copy = (
            transaction_version >= 2
            and header.producer_epoch == producer.epoch
            and producer.transaction_first_offset >= 0
        )
        if header.producer_epoch < producer.epoch or is_late_copy:
            return Refused(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} has epoch {producer.epoch}, not {header.producer_epoch}",
            )
        if coordinator_epoch < producer.coordinator_epoch:
            return Refused(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"coordinator epoch {coordinator_epoch} is older than {producer.coordinator_epoch}",
            )
        return None

    def update(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        """Note that a data batch was appended at `base_offset`.

        `now_ms` starts the time to expiry; when the log is replayed it is the timestamp of the batch. (Kafka
        takes the batch's timestamp here too, which forgets at once a producer that writes old data.)
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            producer = self._producers[header.producer_id] = _Producer(header.producer_epoch)
        elif producer.epoch != header.producer_epoch:
            producer.batches.clear()
            producer.epoch = header.producer_epoch
        batches = producer.batches
        if len(batches) == RETAINED_BATCHES_MAX:
            del batches[0]
        batches.append(_batch_of(header, base_offset))
        producer.last_timestamp_ms = now_ms
        if header.attributes & TRANSACTIONAL_BIT and producer.transaction_first_offset < 0:
            producer.transaction_first_offset = base_offset
            self._open_transactions[base_offset] = header.producer_id

    def recall(self, headers: Iterable[BatchHeader]) -> None:
        """Know batches before a producer's last one again; `headers` are some of the log, in its order.

        Only what leads up to the batch that the state has, in the producer's present epoch and without a gap
        in its sequence: a producer that was forgotten and begins anew has used the numbers before.
        """
        recalled: dict[int, list[_Batch]] = {}
        for header in headers:
            producer = self._producers.get(header.producer_id)
            if producer is not None and header.producer_epoch == producer.epoch:
                recalled.setdefault(header.producer_id, []).append(_batch_of(header, header.base_offset))
        for producer_id, batches in recalled.items():
            known = self._producers[producer_id].batches
            for first_sequence, last_sequence, base_offset, last_offset, timestamp_ms in reversed(batches):
                if not known or len(known) == RETAINED_BATCHES_MAX:
                    break
                if base_offset >= known[0][2]:
                    continue
                if first_sequence < 0 or (last_sequence + 1) & SEQUENCE_MASK != known[0][0]:
                    break
                known.insert(0, (first_sequence, last_sequence, base_offset, last_offset, timestamp_ms))

    def complete_transaction(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        offset: int,
        *,
        aborted: bool,
        now_ms: int,
    ) -> CompletedTransaction | None:
        """Note that a transaction marker was appended at `offset`.

        Return the transaction it ended, None if the producer wrote nothing to this log in it. The caller adds
        an aborted one to the transaction index. The first unstable offset does not move until
        `advance_high_watermark` passes the marker.
        """
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = _Producer(producer_epoch)
        elif producer.epoch != producer_epoch:
            producer.batches.clear()
            producer.epoch = producer_epoch
        producer.coordinator_epoch = coordinator_epoch
        producer.last_timestamp_ms = now_ms
        first_offset = producer.transaction_first_offset
        if first_offset < 0:
            return None
        producer.transaction_first_offset = NO_OFFSET
        del self._open_transactions[first_offset]
        self._unreplicated_transactions[first_offset] = offset
        last_stable_offset = next(iter(self._open_transactions), offset + 1)
        return CompletedTransaction(producer_id, first_offset, offset, aborted, last_stable_offset)

    # -- reading

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of a transaction that is open, or ended by a marker that is not yet replicated."""
        open_transactions, unreplicated = self._open_transactions, self._unreplicated_transactions
        if not open_transactions and not unreplicated:
            return None
        first_open = next(iter(open_transactions), None)
        if not unreplicated:
            return first_open
        first_unreplicated = min(unreplicated)
        return first_unreplicated if first_open is None else min(first_open, first_unreplicated)

    @property
    def first_undecided_offset(self) -> int | None:
        """The first offset of an open transaction."""
        return next(iter(self._open_transactions), None)

    def has_open_transaction(self, producer_id: int, producer_epoch: int | None = None) -> bool:
        """Whether the producer has a transaction open in this log, under this epoch if one is given."""
        producer = self._producers.get(producer_id)
        return (
            producer is not None
            and producer.transaction_first_offset >= 0
            and producer_epoch in (None, producer.epoch)
        )

    def epoch_of(self, producer_id: int) -> int | None:
        """The newest epoch of a producer; None if it is not known."""
        producer = self._producers.get(producer_id)
        return None if producer is None else producer.epoch

    def last_records(self) -> dict[int, LastRecord]:
        """What compaction must keep of each active producer (a copy, for another thread)."""
        return {
            producer_id: LastRecord(producer.last_data_offset, producer.epoch)
            for producer_id, producer in self._producers.items()
        }

    def describe(self) -> list[ProducerDescription]:
        """Every active producer, by id."""
        return [
            ProducerDescription(
                producer_id,
                producer.epoch,
                producer.last_sequence,
                producer.last_timestamp_ms,
                producer.coordinator_epoch,
                producer.transaction_first_offset,
            )
            for producer_id, producer in sorted(self._producers.items())
        ]

    # -- moving bounds and time

    def advance_high_watermark(self, high_watermark: int) -> None:
        """Transactions whose marker is now replicated no longer hold back the first unstable offset."""
        unreplicated = self._unreplicated_transactions
        if unreplicated:
            for first_offset in [first for first, marker in unreplicated.items() if marker < high_watermark]:
                del unreplicated[first_offset]

    def advance_log_start(self, log_start_offset: int) -> None:
        """Batches before `log_start_offset` were deleted; producers stay known until they expire."""
        self.advance_high_watermark(log_start_offset)

    def expire(self, now_ms: int) -> int:
        """Forget producers that were idle for `producer.id.expiration.ms` and have no open transaction."""
        expired = [
            producer_id
            for producer_id, producer in self._producers.items()
            if self._is_expired(producer.transaction_first_offset, producer.last_timestamp_ms, now_ms)
        ]
        for producer_id in expired:
            del self._producers[producer_id]
        return len(expired)

    def clear(self) -> None:
        """Forget everything, before the log is replayed."""
        self._producers.clear()
        self._open_transactions.clear()
        self._unreplicated_transactions.clear()

    # -- snapshots

    def write_snapshot(self, disk: Disk, directory: str, offset: int) -> None:
        """Write the state as of `offset`, the current end of the log; nothing is synced."""
        path = snapshot_path(directory, offset)
        temporary = path + ".tmp"
        if disk.exists(temporary):
            # Emptying it would not do: after a power cut it could have its old content under the new name,
            # a sound snapshot of another history.
            disk.remove(temporary)
        file = disk.open(temporary, create=True)
        try:
            file.append(self.encode_snapshot())
        finally:
            file.close()
        disk.rename(temporary, path)

    def encode_snapshot(self) -> bytes:
        body = bytearray(_SNAPSHOT_COUNT.pack(len(self._producers)))
        for producer_id, producer in self._producers.items():
            _, last_sequence, base_offset, last_offset, _ = (
                producer.batches[-1] if producer.batches else (0, NO_SEQUENCE, NO_OFFSET, NO_OFFSET, 0)
            )
            body += _SNAPSHOT_ENTRY.pack(
                producer_id,
                producer.epoch,
                last_sequence,
                last_offset,
                last_offset - base_offset,
                producer.last_timestamp_ms,
                producer.coordinator_epoch,
                producer.transaction_first_offset,
            )
        return _SNAPSHOT_START.pack(SNAPSHOT_VERSION, crc32c(body)) + bytes(body)

    def load(
        self, disk: Disk, directory: str, log_start_offset: int, log_end_offset: int, now_ms: int
    ) -> int:
        """Take the state from the newest valid snapshot of the log; return the offset to replay from.

        Snapshots that are corrupt, behind the end of the log or not behind its start are removed, durably:
        the log may grow past their offset again with other batches.
        """
        self.clear()
        replay_offset = log_start_offset
        stale = []
        for offset in reversed(list_snapshots(disk, directory)):
            if not log_start_offset < offset <= log_end_offset:
                stale.append(offset)
            elif replay_offset == log_start_offset:
                try:
                    self._load_snapshot(_read_whole(disk, snapshot_path(directory, offset)), now_ms)
                    replay_offset = offset
                except SnapshotCorrupt:
                    stale.append(offset)
        remove_snapshots(disk, directory, stale)
        return replay_offset

    def _load_snapshot(self, data: bytes, now_ms: int) -> None:
        producers: dict[int, _Producer] = {}
        for entry in decode_snapshot(data):
            producer_id, epoch, last_sequence, last_offset, delta, timestamp_ms, coordinator_epoch, first = (
                entry
            )
            if self._is_expired(first, timestamp_ms, now_ms):
                continue
            producer = producers[producer_id] = _Producer(epoch)
            producer.last_timestamp_ms = timestamp_ms
            producer.coordinator_epoch = coordinator_epoch
            producer.transaction_first_offset = first
            if last_offset >= 0:
                first_sequence = (
                    (last_sequence - delta) & SEQUENCE_MASK if last_sequence >= 0 else NO_SEQUENCE
                )
                producer.batches.append(
                    (first_sequence, last_sequence, last_offset - delta, last_offset, timestamp_ms)
                )
        self._producers = producers
        self._open_transactions = dict(
            sorted(
                (producer.transaction_first_offset, producer_id)
                for producer_id, producer in producers.items()
                if producer.transaction_first_offset >= 0
            )
        )

    def _is_expired(self, transaction_first_offset: int, last_timestamp_ms: int, now_ms: int) -> bool:
        return transaction_first_offset < 0 and now_ms - last_timestamp_ms >= self.expiration.idle_ms

    def _retry_or_gap(self, producer: _Producer, header: BatchHeader) -> Duplicate | Refused:
        first_sequence = header.base_sequence
        last_sequence = (first_sequence + header.last_offset_delta) & SEQUENCE_MASK
        for first, last, base_offset, last_offset, timestamp_ms in producer.batches:
            if first == first_sequence and last == last_sequence:
                return Duplicate(base_offset, last_offset, timestamp_ms)
        return Refused(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {header.producer_id} sent sequence {first_sequence} after {producer.last_sequence}",
        )

    def __repr__(self) -> str:
        return f"<ProducerState producers={len(self._producers)} open={len(self._open_transactions)}>"


def decode_snapshot(data: bytes) -> list[tuple[int, int, int, int, int, int, int, int]]:
    """Return the entries of a snapshot as drawn above, or raise `SnapshotCorrupt`."""
    start = _SNAPSHOT_START.size
    try:
        version, stored_crc = _SNAPSHOT_START.unpack_from(data)
        (count,) = _SNAPSHOT_COUNT.unpack_from(data, start)
    except struct.error as error:
        raise SnapshotCorrupt(f"the snapshot has only {len(data)} bytes") from error
    if version != SNAPSHOT_VERSION:
        raise SnapshotCorrupt(f"version {version} is not known (expected {SNAPSHOT_VERSION})")
    body = memoryview(data)[start:]
    if crc32c(body) != stored_crc:
        raise SnapshotCorrupt(f"the CRC is not {stored_crc:#010x}")
    if len(body) != _SNAPSHOT_COUNT.size + count * _SNAPSHOT_ENTRY.size:
        raise SnapshotCorrupt(f"{count} producers do not fill {len(body)} bytes")
    return list(_SNAPSHOT_ENTRY.iter_unpack(body[_SNAPSHOT_COUNT.size :]))


def snapshot_path(directory: str, offset: int) -> str:
    return f"{directory}/{offset:020d}{SNAPSHOT_SUFFIX}"


def list_snapshots(disk: Disk, directory: str) -> list[int]:
    """The offsets of the snapshots in a partition's folder, ascending."""
    return [
        int(name[:20])
        for name in disk.list(directory)
        if len(name) == 20 + len(SNAPSHOT_SUFFIX) and name.endswith(SNAPSHOT_SUFFIX) and name[:20].isdecimal()
    ]


def remove_snapshots(disk: Disk, directory: str, offsets: Iterable[int]) -> None:
    """Remove snapshots, durably."""
    removed = False
    for offset in offsets:
        disk.remove(snapshot_path(directory, offset))
        removed = True
    if removed:
        disk.sync_directory(directory)


def remove_snapshots_before(disk: Disk, directory: str, offset: int) -> None:
    """Remove the snapshots before `offset`, whose segments are gone; a crash that undoes it does no harm."""
    for snapshot_offset in list_snapshots(disk, directory):
        if snapshot_offset >= offset:
            break
        disk.remove(snapshot_path(directory, snapshot_offset))


def _read_whole(disk: Disk, path: str) -> bytes:
    file = disk.open(path, create=False)
    try:
        return file.read(0, file.size_bytes)
    finally:
        file.close()
