"""The metadata in the coordination store: the records under their keys, and the log of the last changes.

Every commit of the controller carries, beside the keys it writes, two more: `changes/<n>` holds the records
of the commit, `changes` holds `n`. Whoever knows the metadata as of change `m` reads `changes/<m+1>` to
`changes/<n>` and knows it as of `n`. Only the last `CHANGES_KEPT` are there; who is further behind reads
everything again.

    changes          the number of the last change, in decimal digits
    changes/<n>      zlib of one line for each record:
                       + <key> TAB <value as stored under the key>      the record is new or changed
                       - <key> TAB <JSON of what else it takes>         a topic or a broker went away

The keys of a snapshot are read in several calls, and a commit may come between. So a snapshot begins with the
number of the last change and ends with applying, key by key, the changes that came since: the values are
whole states, writing one twice does no harm.
"""

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from tidelog.coordination.store import ABSENT, CoordinationStore, StoreError
from tidelog.model.metadata import (
    CHANGES_KEY,
    CHANGES_PREFIX,
    CONTROLLER_KEY,
    PREFIXES,
    TOPIC_RESOURCE,
    ConfigRecord,
    KeyWrite,
    MetadataCorruptError,
    MetadataRecord,
    PartitionRecord,
    RemoveBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    record_from_entry,
)

CHANGES_KEPT = 256
SNAPSHOT_ATTEMPTS_MAX = 10
_COMPRESSION_LEVEL = 1


class Changes(NamedTuple):
    """The records of the changes up to number `sequence`, oldest first."""

    sequence: int
    records: list[MetadataRecord]


class Snapshot(NamedTuple):
    """All metadata as of change `sequence`, in an order that can be applied.

    `versions` are those of the keys as they were read; they are exact when nobody wrote meanwhile, as is the
    case for a controller that has fenced all others.
    """

    sequence: int
    records: list[MetadataRecord]
    versions: dict[str, int]


def change_key(sequence: int) -> str:
    """The key of one change."""
    return f"{CHANGES_PREFIX}{sequence}"


def encode_change(lines: Iterable[bytes]) -> bytes:
    """The value of `changes/<n>`, from the lines of its records."""
    return zlib.compress(b"\n".join(lines), _COMPRESSION_LEVEL)


def change_line(record: MetadataRecord, writes: Sequence[KeyWrite]) -> bytes:
    """The line of a record that has these writes."""
    match record:
        case RemoveTopicRecord():
            fields = {
                "id": str(record.topic_id),
                "partitions": record.partition_count,
                "configured": record.configured,
            }
            return b"-topics/%b\t%b" % (record.name.encode(), json.dumps(fields).encode())
        case RemoveBrokerRecord():
            return b"-brokers/%d\t{}" % record.broker_id
        case _:
            [(key, value)] = writes
            # Only settings that were all unset have no value, and an empty mapping reads back as that.
            return b"+%b\t%b" % (key.encode(), b"{}" if value is None else value)


def decode_change(value: bytes) -> list[MetadataRecord]:
    """The records of a `changes/<n>`; raises MetadataCorruptError."""
    try:
        lines = zlib.decompress(value).split(b"\n")
        return [_record(line) for line in lines if line]
    except (zlib.error, UnicodeDecodeError) as error:
        raise MetadataCorruptError(f"a stored change of the metadata cannot be read: {error!r}") from error


def _record(line: bytes) -> MetadataRecord:
    signed_key, _, value = line.partition(b"\t")
    key = signed_key[1:].decode()
    if signed_key[:1] == b"+":
        return record_from_entry(key, value)
    try:
        kind, _, name = key.partition("/")
        if kind == "brokers":
            return RemoveBrokerRecord(int(name))
        fields = json.loads(value)
        return RemoveTopicRecord(
            name, UUID(fields["id"]), int(fields["partitions"]), bool(fields["configured"])
        )
    except (ValueError, KeyError, TypeError) as error:
        raise MetadataCorruptError(f"a stored removal of {key!r} cannot be read: {error!r}") from error


# -- reading the store; these block


def last_change(store: CoordinationStore) -> tuple[int, int]:
    """The number of the last change and the version of the key that holds it."""
    entry = store.get(CHANGES_KEY)
    return (0, ABSENT) if entry is None else (int(entry.value), entry.version)


def read_changes(store: CoordinationStore, after: int) -> Changes | None:
    """The changes behind number `after`; None when some of them are no longer there."""
    last, _ = last_change(store)
    if last < after or last - after > CHANGES_KEPT:
        return None
    records: list[MetadataRecord] = []
    for sequence in range(after + 1, last + 1):
        entry = store.get(change_key(sequence))
        if entry is None:
            return None
        records += decode_change(entry.value)
    return Changes(last, records)


def read_snapshot(store: CoordinationStore) -> Snapshot:
    """All metadata at one moment; raises StoreError, or MetadataCorruptError for what cannot be read."""
    for _ in range(SNAPSHOT_ATTEMPTS_MAX):
        before, changes_version = last_change(store)
        values, versions = _load_keys(store)
        versions[CHANGES_KEY] = changes_version
        changes = read_changes(store, before)
        if changes is not None:
            for record in changes.records:
                for key, value in record.writes():
                    values[key] = value
            return Snapshot(changes.sequence, ordered_records(values), versions)
    raise StoreError("the metadata kept changing while it was read")


def _load_keys(store: CoordinationStore) -> tuple[dict[str, bytes | None], dict[str, int]]:
    values: dict[str, bytes | None] = {}
    versions: dict[str, int] = {}
    for prefix in PREFIXES:
        if prefix == CONTROLLER_KEY:
            # Who decides now; what lasts of it is under `controller-epoch`.
            continue
        if prefix.endswith("/"):
            entries = store.load(prefix)
        else:
            entry = store.get(prefix)
            entries = [] if entry is None else [entry]
        for key, value, version in entries:
            values[key], versions[key] = value, version
    return values, versions


def ordered_records(values: Mapping[str, bytes | None]) -> list[MetadataRecord]:
    """The records of stored values, each after those it refers to.

    A large removal takes several commits, the topic first; what is left of its partitions is passed over.
    """
    ranks = {prefix: rank for rank, prefix in enumerate(PREFIXES)}
    keyed: list[tuple[int, int, MetadataRecord]] = []
    topics: set[str] = set()
    for key, value in values.items():
        if value is None:
            continue
        top, slash, _ = key.partition("/")
        record = record_from_entry(key, value)
        if isinstance(record, TopicRecord):
            topics.add(record.name)
        # Keys sort `10` before `2`; partitions are applied by number.
        index = record.index if isinstance(record, PartitionRecord) else 0
        keyed.append((ranks[top + slash], index, record))
    keyed.sort(key=lambda item: item[:2])
    return [
        record for _, _, record in keyed if _refers_to_topic(record) in topics or not _refers_to_topic(record)
    ]


def _refers_to_topic(record: MetadataRecord) -> str:
    match record:
        case PartitionRecord():
            return record.topic
        case ConfigRecord(resource=resource, name=name) if resource == TOPIC_RESOURCE:
            return name
        case _:
            return ""


# -- large decisions


class Part(NamedTuple):
    """What one commit carries of a decision: records, their lines in the change log, and their writes.

    Of several writes of a key there is the last one.
    """

    records: list[MetadataRecord]
    lines: list[bytes]
    writes: dict[str, bytes | None]


def split(records: Sequence[MetadataRecord], writes_max: int, bytes_max: int) -> list[Part]:
    """Cut a decision into parts that fit a commit each, in the order of its records.

    A record belongs to the part of its first write; the removal of a topic of many partitions may go on in
    the parts behind, which is why it names the topic's own key first.
    """
    part = Part([], [], {})
    parts = [part]
    size_bytes = 0
    for record in records:
        begun = False
        writes = record.writes()
        for key, value in writes:
            write_bytes = len(key) + len(value or b"")
            if part.writes and (len(part.writes) >= writes_max or size_bytes + write_bytes > bytes_max):
                part = Part([], [], {})
                parts.append(part)
                size_bytes = 0
            if not begun:
                part.records.append(record)
                part.lines.append(change_line(record, writes))
                begun = True
            part.writes[key] = value
            size_bytes += write_bytes
    return parts
