"""How one batch changes the producer state and the transaction index of a log.

The same step serves a new append and the replay of stored batches, so that a log that was recovered knows
exactly what it knew before. Data batches need their header alone; a transaction marker is one small control
record that must be read.
"""

import struct

from tidelog.records.batch import CONTROL_BIT, BatchHeader
from tidelog.records.builder import CONTROL_ABORT, CONTROL_COMMIT, control_type
from tidelog.records.record import iterate_records
from tidelog.storage.disk import Bytes
from tidelog.storage.producer_state import ProducerState
from tidelog.storage.segment import BatchPlace, Segment, SegmentCorrupt
from tidelog.storage.transaction_index import AbortedTransaction

_END_MARKER = struct.Struct(">hi")  # version, coordinator epoch
#: five for each of several producers
RECALLED_BATCHES_MIN = 32
RECALL_BLOCK_BYTES = 16 << 10


def note_marker(
    producers: ProducerState,
    segment: Segment,
    header: BatchHeader,
    base_offset: int,
    batch: Bytes,
    now_ms: int,
    *,
    index_aborted: bool = True,
) -> None:
    """Apply a control batch: the end of a transaction, with an index entry if it was aborted."""
    record = next(iterate_records(batch, header), None)
    if record is None:
        return  # emptied by Kafka's cleaner: nothing of the transaction is left
    kind = control_type(record)
    if kind not in (CONTROL_ABORT, CONTROL_COMMIT):
        return
    coordinator_epoch = _END_MARKER.unpack_from(record.value)[1] if record.value else -1
    completed = producers.complete_transaction(
        header.producer_id,
        header.producer_epoch,
        coordinator_epoch,
        base_offset,
        aborted=kind == CONTROL_ABORT,
        now_ms=now_ms,
    )
    if completed is not None and completed.aborted and index_aborted:
        segment.transaction_index.append(
            AbortedTransaction(
                completed.producer_id,
                completed.first_offset,
                completed.last_offset,
                completed.last_stable_offset,
            )
        )


def replay_batch(
    producers: ProducerState, segment: Segment, place: BatchPlace, *, index_aborted: bool = False
) -> None:
    """Apply a batch that is stored in `segment`; time is the batch's own."""
    position, header = place
    if header.producer_id < 0:
        return
    if header.attributes & CONTROL_BIT:
        batch = segment.file.read(position, header.size_bytes)
        note_marker(
            producers,
            segment,
            header,
            header.base_offset,
            batch,
            header.max_timestamp_ms,
            index_aborted=index_aborted,
        )
    else:
        producers.update(header, header.base_offset, header.max_timestamp_ms)


def replay_producers(
    producers: ProducerState, segments: list[Segment], from_offset: int, to_offset: int
) -> None:
    """Apply the batches from the one that holds `from_offset` up to `to_offset`; transaction indexes are left
    alone."""
    for index, segment in enumerate(segments):
        if segment.base_offset >= to_offset:
            return
        if index + 1 < len(segments) and segments[index + 1].base_offset <= from_offset:
            continue
        for place in segment.batches(segment.offset_index.position_for(from_offset)):
            if place.header.base_offset >= to_offset:
                return
            if place.header.last_offset >= from_offset:
                replay_batch(producers, segment, place)


def recall_retries(producers: ProducerState, segments: list[Segment], end_offset: int) -> None:
    """Let the state know the batches again that a producer may send once more, from the end of the log.

    A snapshot keeps the last batch of a producer only, and the answers to several may have been on their way
    when the broker stopped. The last batches of the log are looked at, RECALLED_BATCHES_MIN of them at least.
    """
    if not producers.producers_count:
        return
    found: list[BatchHeader] = []
    wanted = RECALLED_BATCHES_MIN
    for segment in reversed(segments):
        positions = segment.offset_index.positions
        begin = positions[-wanted] if len(positions) >= wanted else 0
        try:
            headers = [
                place.header
                for place in segment.batches(begin, block_bytes=RECALL_BLOCK_BYTES)
                if place.header.base_offset < end_offset
            ]
        except SegmentCorrupt:
            break  # an old segment that nobody asked for: the state is right without it
        found[:0] = headers
        wanted -= len(headers)
        if wanted <= 0:
            break
    producers.recall(header for header in found if not header.attributes & CONTROL_BIT)
