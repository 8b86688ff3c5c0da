"""What a leader demands of a produced batch before it appends it.

The order of the checks and the error codes are Kafka's (LogValidator, UnifiedLog), so that a client sees the
same refusal for the same fault:

    no whole batch, or bytes after it            INVALID_RECORD
    impossible length, magic above 2, bad CRC    CORRUPT_MESSAGE
    magic 0 or 1, base offset other than 0       INVALID_RECORD
    larger than max.message.bytes                MESSAGE_TOO_LARGE
    unknown codec                                UNSUPPORTED_COMPRESSION_TYPE
    count, offsets, control batch, sequence      INVALID_RECORD
    timestamp out of bounds, or not its own      INVALID_TIMESTAMP, naming the records
    no key on a compacted topic                  INVALID_RECORD, naming the records
    headers that say when, where topics obey     INVALID_RECORD, naming the records
    malformed records, when they are walked      INVALID_RECORD
    too large when decompressed                  MESSAGE_TOO_LARGE

Deliberate differences to Kafka:
- Kafka walks the records of every batch. Here they are walked, and decompressed, only when a rule needs it:
  a compacted topic, a topic that obeys delivery headers, a `message.timestamp.before.max.ms`, another codec,
  a largest timestamp above the bound, or `walk_always`. Otherwise the header's count and largest timestamp
  are believed.
- Bytes after the batch are refused, not cut off. Offset deltas with gaps are refused, not renumbered.
- A batch that claims log append time is refused on every topic; Kafka lets it pass where the topic's type
  is CreateTime. A negative producer epoch and a transactional batch without producer id are refused here
  already. An unknown codec and malformed compressed data get a code that clients do not retry, where
  Kafka answers UNKNOWN_SERVER_ERROR.
"""

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.identifiers import NO_TIMESTAMP
from tidelog.model.log_config import INT64_MAX, LogConfig
from tidelog.records.batch import (
    ATTRIBUTES_POSITION,
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD,
    MAGIC,
    MAX_TIMESTAMP_POSITION,
    TRANSACTIONAL_BIT,
    BatchHeader,
    patch_max_timestamp,
    read_header,
)
from tidelog.records.builder import assemble
from tidelog.records.checksum import crc32c
from tidelog.records.compression import Codec
from tidelog.records.corrupt_record import CorruptRecord, DecompressedTooLarge
from tidelog.records.delivery_headers import due_fault, lifetime_fault
from tidelog.records.delivery_scan import recent_scans, scan
from tidelog.records.plain_records import timestamps_of
from tidelog.records.record import (
    DECOMPRESSED_BYTES_MAX,
    RECORD_SIZE_MIN,
    Record,
    decompressed_records,
    parse_records,
    unpacked_records,
)

#: what is unpacked, and walked, without a thought for others who wait: about two milliseconds of work
QUICK_BYTES_MAX = 256 << 10
QUICK_RECORDS_MAX = 2_000
#: of delay topics, whose records are looked at without their values (see delivery_scan)
QUICK_DELAYS_BYTES_MAX = 2 << 20
#: how many records are walked in another thread before it lets others have the interpreter
RECORDS_PER_STEP = 256

# A refusal names at most this many records, so that a small batch cannot ask for a huge answer.
RECORD_ERRORS_MAX = 1000

#: the fields of a header that say whether a batch of a producer without an id is fit, without the others
_CHECKED = struct.Struct(">qi4xbIhi8xqq6xi")
_unpack_checked = _CHECKED.unpack_from
_unpack_max_timestamp = struct.Struct(">q").unpack_from
assert _CHECKED.size == HEADER_SIZE
_CODEC_LAST = int(Codec.ZSTD)

_LEGACY_RECORD_OVERHEAD = 14  # what a record of magic 0 takes at least
_LENGTH_AND_MAGIC_SIZE = 17
_MAGIC_POSITION = 16

_TARGET_CODECS = {
    "producer": None,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


@dataclass(frozen=True, slots=True)
class ProduceRules:
    """What the checks need to know of a topic's settings, worked out once.

    `codec` None keeps the producer's. `walk_always` has the records of every batch looked at.
    """

    max_message_bytes: int
    codec: Codec | None = None
    level: int | None = None
    log_append_time: bool = False
    before_max_ms: int = INT64_MAX
    after_max_ms: int = INT64_MAX
    compacted: bool = False
    walk_always: bool = False
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX
    #: whether records wait for their time: the delay of those that say none, and how far off it may be
    delays: bool = False
    delay_ms: int = 0
    delay_max_ms: int = INT64_MAX
    #: whether records may expire, and whether they have priorities
    expires: bool = False
    has_priority: bool = False
    # Whether headers say when and how a record is delivered; derived from the others.
    obeys_headers: bool = field(init=False)
    # Whether a rule needs every batch walked; derived too.
    walks: bool = field(init=False)
    # More records than this cannot be in a batch, however well compressed; derived too. What a batch claims
    # is believed where its records are not looked at, and every record takes an offset.
    records_max: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "records_max", self.decompressed_bytes_max // RECORD_SIZE_MIN)
        bounded_before = self.before_max_ms != INT64_MAX and not self.log_append_time
        object.__setattr__(self, "obeys_headers", self.delays or self.expires or self.has_priority)
        walks = self.walk_always or self.compacted or self.obeys_headers
        object.__setattr__(self, "walks", walks or bounded_before)

    @classmethod
    @lru_cache(maxsize=256)  # the partitions of a topic share them
    def from_config(
        cls,
        config: LogConfig,
        *,
        walk_always: bool = False,
        decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
    ) -> "ProduceRules":
        levels = {
            "gzip": config.compression_gzip_level,
            "lz4": config.compression_lz4_level,
            "zstd": config.compression_zstd_level,
        }
        return cls(
            max_message_bytes=config.max_message_bytes,
            codec=_TARGET_CODECS[config.compression_type],
            level=levels.get(config.compression_type),
            log_append_time=config.message_timestamp_type == "LogAppendTime",
            before_max_ms=config.message_timestamp_before_max_ms,
            after_max_ms=config.message_timestamp_after_max_ms,
            compacted=config.compacted,
            walk_always=walk_always,
            decompressed_bytes_max=decompressed_bytes_max,
            delays=bool(config.tidelog_delay_target),
            delay_ms=config.tidelog_delay_ms,
            delay_max_ms=config.tidelog_delay_max_ms,
            expires=config.tidelog_ttl_enable,
            has_priority=config.tidelog_priority_enable,
        )


class CheckedBatch(NamedTuple):
    """A batch that may be appended.

    `view` is the caller's, patched in place, or a new one if the batch was compressed anew. Base offset and
    leader epoch are still to be assigned. `log_append_time_ms` is -1 where records keep their own time.
    """

    header: BatchHeader
    view: memoryview
    log_append_time_ms: int


class TakesLong(Exception):
    """The records of a batch must be walked, and there are so many of them that others would have to wait."""


def check_produced(
    view: memoryview, rules: ProduceRules, now_ms: int, *,
    from_client: bool = True, quick: bool = False, pause: Callable[[], None] | None = None,
) -> CheckedBatch | Refused:  # fmt: skip
    """Check the one batch that fills `view`, and make it what the topic's settings ask for.

    `from_client` False is for batches that the broker itself wrote: control records are allowed, offsets
    may have gaps. `view` must be writable; it is changed only if the batch is accepted.

    `quick` raises `TakesLong`, before anything is changed, where many records, or large ones once unpacked,
    would have to be walked. `pause` is called now and then while they are.
    """
    size_bytes = len(view)
    if size_bytes < HEADER_SIZE:
        return _refuse_unframed(view)
    header = read_header(view)
    (
        base_offset,
        batch_length,
        _leader_epoch,
        magic,
        crc,
        attributes,
        last_offset_delta,
        _base_timestamp_ms,
        max_timestamp_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        records_count,
    ) = header
    if batch_length + LOG_OVERHEAD != size_bytes or magic != MAGIC:
        return _refuse_unframed(view)
    if from_client and base_offset != 0:
        return _invalid(f"The base offset of a produced batch should be 0, but it is {base_offset}.")
    if size_bytes > rules.max_message_bytes:
        return _too_large(size_bytes, rules)
    if crc32c(view[ATTRIBUTES_POSITION:]) != crc:
        return Refused(ErrorCode.CORRUPT_MESSAGE, f"The record batch is corrupt (stored CRC {crc}).")
    codec_number = attributes & CODEC_MASK
    if codec_number > Codec.ZSTD:
        return Refused(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"There is no compression codec {codec_number}."
        )
    if from_client:
        if (
            records_count <= 0
            or last_offset_delta != records_count - 1
            or records_count > rules.records_max
            or (not codec_number and records_count * RECORD_SIZE_MIN > size_bytes - HEADER_SIZE)
            or attributes & (CONTROL_BIT | LOG_APPEND_TIME_BIT)
        ):
            return _refuse_contents(header)
        if producer_id >= 0:
            if base_sequence < 0 or producer_epoch < 0:
                return _refuse_producer(header)
        elif attributes & TRANSACTIONAL_BIT:
            return _invalid("A transactional record batch must have a producer id.")
    recompresses = rules.codec is not None and rules.codec != codec_number
    if (
        rules.walks
        or recompresses
        or (max_timestamp_ms > now_ms + rules.after_max_ms and not rules.log_append_time)
    ):
        return _check_walking(view, header, rules, now_ms, from_client, quick, pause)
    if rules.log_append_time:
        return _stamp(view, header, now_ms)
    return CheckedBatch(header, view, NO_TIMESTAMP)


def check_built(batch: bytearray, rules: ProduceRules) -> CheckedBatch | None:
    """What `check_produced` would find of a batch that the broker has just built itself, with keys in it and
    of this moment; None where the topic's settings might have something to say of it.
    """
    if rules.log_append_time or rules.codec or len(batch) > rules.max_message_bytes:
        return None
    return CheckedBatch(read_header(batch), memoryview(batch), NO_TIMESTAMP)


def ends_of_plain(
    views: Iterable[memoryview], rules: ProduceRules, now_ms: int
) -> list[tuple[int, int]] | None:
    """The last offset delta and the largest timestamp of batches that all are fit to be appended as they are.

    The same checks as `check_produced` makes, in a shorter way, for batches of producers without ids on a
    topic whose rules change nothing in them. None if there is anything else to say of one of them.
    """
    max_message_bytes = rules.max_message_bytes
    latest_ms = now_ms + rules.after_max_ms
    records_max = rules.records_max
    ends: list[tuple[int, int]] = []
    for view in views:
        size_bytes = len(view)
        if size_bytes < HEADER_SIZE:
            return None
        base_offset, length, magic, crc, attributes, last_delta, timestamp_ms, producer_id, count = (
            _unpack_checked(view)
        )
        if (
            base_offset
            or length + LOG_OVERHEAD != size_bytes
            or magic != MAGIC
            or size_bytes > max_message_bytes
            # Only a codec that exists, nothing special.
            or not 0 <= attributes <= _CODEC_LAST
            or producer_id >= 0
            or not 0 < count <= records_max
            or last_delta != count - 1
            or (not attributes and count * RECORD_SIZE_MIN > size_bytes - HEADER_SIZE)
            or timestamp_ms > latest_ms
            or crc32c(view[ATTRIBUTES_POSITION:]) != crc
        ):
            return None
        ends.append((last_delta, timestamp_ms))
    return ends


def _invalid(message: str) -> Refused:
    return Refused(ErrorCode.INVALID_RECORD, message)


def _too_large(size_bytes: int, rules: ProduceRules) -> Refused:
    return Refused(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"The record batch takes {size_bytes} bytes, more than max.message.bytes={rules.max_message_bytes}.",
    )


def unframed(view: memoryview) -> Refused | None:
    """Why `view` is not exactly one batch of magic 2, as its length and the batch's say; None if it is."""
    if len(view) >= HEADER_SIZE:
        header = read_header(view)
        if header.size_bytes == len(view) and header.magic == MAGIC:
            return None
    return _refuse_unframed(view)


def _refuse_unframed(view: memoryview) -> Refused:
    size_bytes = len(view)
    if size_bytes < LOG_OVERHEAD:
        return _invalid("There must be one record batch per partition.")
    batch_length = int.from_bytes(view[8:12], "big", signed=True)
    if batch_length < _LEGACY_RECORD_OVERHEAD:
        return Refused(ErrorCode.CORRUPT_MESSAGE, f"A record batch of length {batch_length} is impossible.")
    if size_bytes < _LENGTH_AND_MAGIC_SIZE:
        return _invalid("There must be one record batch per partition.")
    magic = view[_MAGIC_POSITION]
    if magic > MAGIC:
        return Refused(ErrorCode.CORRUPT_MESSAGE, f"There is no record batch of magic {magic}.")
    batch_size_bytes = batch_length + LOG_OVERHEAD
    if size_bytes < batch_size_bytes:
        return _invalid(f"The record batch is cut off: {batch_size_bytes} bytes claimed, {size_bytes} sent.")
    if magic != MAGIC:
        return _invalid(f"Only record batches of magic {MAGIC} are accepted, this one has {magic}.")
    if size_bytes > batch_size_bytes:
        return _invalid("There must be exactly one record batch per partition, but more bytes follow it.")
    return Refused(ErrorCode.CORRUPT_MESSAGE, f"A record batch of {size_bytes} bytes is impossible.")


def _refuse_contents(header: BatchHeader) -> Refused:
    if header.last_offset_delta < 0:
        return _invalid(f"The record batch has an invalid last offset delta: {header.last_offset_delta}.")
    if header.records_count <= 0:
        return _invalid(f"The record batch has an invalid count of records: {header.records_count}.")
    if header.last_offset_delta != header.records_count - 1:
        return _invalid(
            f"The record batch spans {header.last_offset_delta + 1} offsets, "
            f"but has {header.records_count} records."
        )
    if header.control:
        return _invalid("Clients are not allowed to write control records.")
    if header.log_append_time:
        return Refused(
            ErrorCode.INVALID_TIMESTAMP, "Producers must not set the timestamp type to LogAppendTime."
        )
    return _invalid(f"{header.records_count} records do not fit in a batch of {header.size_bytes} bytes.")


def _refuse_producer(header: BatchHeader) -> Refused:
    if header.base_sequence < 0:
        return _invalid(
            f"Invalid sequence number {header.base_sequence} in a record batch "
            f"of the producer id {header.producer_id}."
        )
    return Refused(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"Invalid epoch {header.producer_epoch} of the producer id {header.producer_id}.",
    )


def _stamp(view: memoryview, header: BatchHeader, now_ms: int) -> CheckedBatch:
    attributes = header.attributes | LOG_APPEND_TIME_BIT
    crc = patch_max_timestamp(view, 0, len(view), attributes, now_ms)
    header = header._replace(crc=crc, attributes=attributes, max_timestamp_ms=now_ms)
    return CheckedBatch(header, view, now_ms)


def may_take_long(view: memoryview, rules: ProduceRules, now_ms: int) -> bool:
    """Whether the records of a batch have to be walked; next to nothing is done to find out."""
    if len(view) < HEADER_SIZE:
        return False
    if rules.walks or rules.codec is not None:
        return True
    (max_timestamp_ms,) = _unpack_max_timestamp(view, MAX_TIMESTAMP_POSITION)
    return max_timestamp_ms > now_ms + rules.after_max_ms and not rules.log_append_time


def takes_long(view: memoryview, rules: ProduceRules) -> bool:
    """Whether walking the records of a batch would take long; nothing is changed."""
    header = read_header(view)
    if not rules.walks and rules.codec is not None and rules.codec == header.attributes & CODEC_MASK:
        return False
    try:
        _unpacked_quickly(view, header, rules)
    except TakesLong:
        return True
    except (CorruptRecord, DecompressedTooLarge, ValueError):
        return False
    return False


def _unpacked_quickly(view: memoryview, header: BatchHeader, rules: ProduceRules) -> bytes:
    """The records of a batch; raises TakesLong where they are many or large."""
    limit_bytes = rules.decompressed_bytes_max
    quick_bytes_max = QUICK_DELAYS_BYTES_MAX if rules.delays else QUICK_BYTES_MAX
    if header.records_count > QUICK_RECORDS_MAX or (
        not header.attributes & CODEC_MASK and len(view) > quick_bytes_max
    ):
        raise TakesLong
    try:
        return decompressed_records(view, header, min(limit_bytes, QUICK_BYTES_MAX))
    except DecompressedTooLarge:
        if limit_bytes <= QUICK_BYTES_MAX:
            raise
        raise TakesLong from None


def _check_walking(
    view: memoryview,
    header: BatchHeader,
    rules: ProduceRules,
    now_ms: int,
    from_client: bool,
    quick: bool,
    pause: Callable[[], None] | None,
) -> CheckedBatch | Refused:
    """Check the records one by one, set the largest timestamp that they really have, and re-compress."""
    try:
        if quick:
            records: bytes | memoryview = _unpacked_quickly(view, header, rules)
        else:
            records = unpacked_records(view, header, rules.decompressed_bytes_max)
        walked = _walk(records, header, rules, now_ms, from_client, pause)
    except DecompressedTooLarge as error:
        return Refused(ErrorCode.MESSAGE_TOO_LARGE, f"The record batch is too large: {error}.")
    except CorruptRecord as error:
        return _invalid(f"The record batch is malformed: {error}.")
    if isinstance(walked, Refused):
        return walked
    max_timestamp_ms = now_ms if rules.log_append_time else walked
    attributes = header.attributes | (LOG_APPEND_TIME_BIT if rules.log_append_time else 0)
    log_append_time_ms = now_ms if rules.log_append_time else NO_TIMESTAMP
    codec = header.codec
    target = codec if rules.codec is None or (header.control and codec is Codec.NONE) else rules.codec
    if target is not codec:
        header = header._replace(attributes=attributes, max_timestamp_ms=max_timestamp_ms)
        view = memoryview(assemble(header, records, target, rules.level))
        if len(view) > rules.max_message_bytes:
            return _too_large(len(view), rules)
        header = read_header(view)
    elif max_timestamp_ms != header.max_timestamp_ms or attributes != header.attributes:
        crc = patch_max_timestamp(view, 0, len(view), attributes, max_timestamp_ms)
        header = header._replace(crc=crc, attributes=attributes, max_timestamp_ms=max_timestamp_ms)
    return CheckedBatch(header, view, log_append_time_ms)


def _delivery_fault(record: Record, rules: ProduceRules, now_ms: int) -> str | None:
    """What is wrong with what a record says of its delivery."""
    if rules.log_append_time:
        record = record._replace(timestamp_ms=now_ms)
    if rules.delays:
        fault = due_fault(record, rules.delay_ms, now_ms + rules.delay_max_ms)
        if fault is not None:
            return fault
    return lifetime_fault(record, expires=rules.expires, has_priority=rules.has_priority)


def _scan_delays(
    records: bytes | memoryview, header: BatchHeader, rules: ProduceRules, now_ms: int
) -> int | None:
    """The largest timestamp of records of a delay topic that all are fit; None where one may not be."""
    base_ms = now_ms if rules.log_append_time else header.base_timestamp_ms
    count, delay_ms, stamped = header.records_count, rules.delay_ms, rules.log_append_time
    if isinstance(records, bytes):
        found = recent_scans.keep(records, count, base_ms, delay_ms, stamped=stamped)
    else:  # a large one, which is walked aside
        found = scan(records, count, base_ms, delay_ms, stamped=stamped)
    if found is None or max(found.due_ms) > now_ms + rules.delay_max_ms:
        return None
    least_ms, largest_ms = found.least_timestamp_ms, found.largest_timestamp_ms
    if now_ms - rules.before_max_ms <= least_ms and largest_ms <= now_ms + rules.after_max_ms:
        return largest_ms
    return None


def _walk(
    records: bytes | memoryview,
    header: BatchHeader,
    rules: ProduceRules,
    now_ms: int,
    from_client: bool,
    pause: Callable[[], None] | None,
) -> int | Refused:
    """Look at every record; return the largest timestamp, or the refusal that names the bad records."""
    earliest_ms = now_ms - rules.before_max_ms
    latest_ms = now_ms + rules.after_max_ms
    bounded = not rules.log_append_time
    compacted = rules.compacted
    max_timestamp_ms = NO_TIMESTAMP
    expected_offset = header.base_offset
    errors: list[tuple[int, str]] = []
    errors_count = 0
    untimely = False
    if from_client and rules.delays:
        others = rules.expires or rules.has_priority
        in_time = None if others else _scan_delays(records, header, rules, now_ms)
        if in_time is not None:
            return in_time
    elif from_client and pause is None and not header.log_append_time:
        found = timestamps_of(records, header.records_count, keys_needed=compacted)
        if found is not None:
            least_ms, largest_ms = (header.base_timestamp_ms + delta_ms for delta_ms in found)
            fits = least_ms >= 0 and largest_ms <= INT64_MAX
            if fits and (not bounded or (earliest_ms <= least_ms and largest_ms <= latest_ms)):
                return largest_ms
    for index, record in enumerate(parse_records(records, header)):
        if pause is not None and index % RECORDS_PER_STEP == 0:
            pause()
        if from_client and record.offset != expected_offset:
            raise CorruptRecord(f"record {index} has the offset {record.offset}, not {expected_offset}")
        expected_offset += 1
        timestamp_ms = record.timestamp_ms
        if timestamp_ms > max_timestamp_ms:
            max_timestamp_ms = timestamp_ms
        if rules.obeys_headers and (delivery_fault := _delivery_fault(record, rules, now_ms)) is not None:
            fault = delivery_fault
        elif compacted and record.key is None:
            fault = "A compacted topic cannot accept a record without a key."
        elif bounded and not earliest_ms <= timestamp_ms <= latest_ms and timestamp_ms != NO_TIMESTAMP:
            fault = f"The timestamp {timestamp_ms} is outside of [{earliest_ms}, {latest_ms}]."
            untimely = True
        else:
            continue
        errors_count += 1
        if errors_count <= RECORD_ERRORS_MAX:
            errors.append((index, fault))
    if not errors:
        return max_timestamp_ms
    if untimely:
        message = f"{errors_count} records were rejected, some for a timestamp that is out of bounds."
        return Refused(ErrorCode.INVALID_TIMESTAMP, message, tuple(errors))
    message = f"{errors_count} records were rejected; record {errors[0][0]}: {errors[0][1]}"
    return Refused(ErrorCode.INVALID_RECORD, message, tuple(errors))
