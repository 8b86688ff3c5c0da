"""Differences planted in Tidelog on purpose: each has to be noticed, or the comparison is blind there.

A planted difference is a name and a function that changes the code of a broker in this process, and undoes it
at the end of a block. Some change an answer as it is written, others what the broker does.
"""

import contextlib
import dataclasses
import datetime
import importlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

from tests.oracle import recording, systems
from tests.oracle.runner import prepare
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.records.builder import append_record
from tidelog.records.record import parse_records
from tidelog.shares.states import AcknowledgeType
from tidelog.storage.producer_state import Duplicate

Plant = Callable[[], contextlib.AbstractContextManager[Any]]


def _answers(api: str, change: Callable[[int, Any], Any]) -> Plant:
    """Change the fields of every answer of an API; `change(version, fields)` returns those that are sent."""

    @contextlib.contextmanager
    def planted() -> Iterator[None]:
        encode, encode_pieces = messages.encode_response, messages.encode_response_pieces

        def changed(row: Any, version: int, fields: Any) -> Any:
            return encode(row, version, change(version, fields) if row.name == api else fields)

        def changed_pieces(row: Any, version: int, fields: Any, bytes_max: int) -> Any:
            fields = change(version, fields) if row.name == api else fields
            return encode_pieces(row, version, fields, bytes_max)

        with (
            mock.patch.object(messages, "encode_response", changed),
            mock.patch.object(messages, "encode_response_pieces", changed_pieces),
        ):
            yield

    return planted


def _each(fields: Any, path: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """The fields with every mapping at a path of arrays changed."""
    key, _, rest = path.partition(".")
    rows = fields.get(key)
    if not isinstance(rows, list | tuple):
        return fields
    return {**fields, key: [_each(row, rest, change) if rest else change(dict(row)) for row in rows]}


def _rows(api: str, path: str, **changes: Callable[[Any], Any]) -> Plant:
    """Change fields of the mappings at a path, each from its old value."""

    def change_row(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, **{key: change(row[key]) for key, change in changes.items() if key in row}}

    return _answers(api, lambda version, fields: _each(fields, path, change_row))


def _method(target: str, name: str, replacement: Callable[..., Any]) -> Plant:
    """Another method of a class; it gets the old one first."""

    @contextlib.contextmanager
    def planted() -> Iterator[None]:
        module, _, owner = target.partition(":")
        found = importlib.import_module(module)
        holder = getattr(found, owner) if owner else found
        old = holder.__dict__[name]

        def new(*arguments: Any, **options: Any) -> Any:
            return replacement(old, *arguments, **options)

        with mock.patch.object(holder, name, new):
            yield

    return planted


def _one_more(value: Any) -> Any:
    return value + 1 if value >= 0 else value


def noticed_after(plant: Plant, sessions_max: int) -> int | None:
    """How many recorded sessions it takes to notice a planted difference; None if it was not noticed."""
    return noticed_by(plant, itertools.islice(recording.read(recording.ONE_BROKER), sessions_max))


def noticed_by(plant: Plant, sessions: Iterable[recording.Recorded]) -> int | None:
    """The number of the first session that notices a planted difference, from 1 on; None if there is none."""
    with plant(), systems.tidelog(in_thread=True) as here:
        prepare(here)
        for number, recorded in enumerate(sessions, 1):
            if recording.replay(here, recorded, f"o{number}-"):
                return number
    return None


def _forgives(*codes: ErrorCode) -> Callable[..., Any]:
    """What would refuse with one of these codes lets it pass."""

    def forgiving(old: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        found = old(*arguments, **options)
        return ErrorCode.NONE if found in codes else found

    return forgiving


def _appends_duplicates(old: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    found = old(*arguments, **options)
    return None if isinstance(found, Duplicate) else found


def _loses_headers(old: Callable[..., Any], header: Any, records: Any, *rest: Any) -> Any:
    body = bytearray()
    for number, record in enumerate(parse_records(bytes(records), header)):
        delta_ms = record.timestamp_ms - header.base_timestamp_ms
        append_record(body, record._replace(headers=()), number, delta_ms)
    return old(header, body, *rest)


def _keeps_the_epoch(old: Callable[..., Any], transaction: Any, *rest: Any) -> Any:
    found = old(transaction, *rest)
    if isinstance(found, ErrorCode):
        return found
    return dataclasses.replace(found, producer_epoch=transaction.producer_epoch)


def _literals_alone(old: Callable[..., Any], index: Any, kind: Any, name: str) -> Iterator[Any]:
    for literal in (name, "*"):
        if (entries := index._literals.get((kind, literal))) is not None:
            yield entries


PLANTED: dict[str, Plant] = {
    "an existing topic is an invalid request": _rows(
        "CreateTopics", "topics", error_code=lambda code: 42 if code == 36 else code
    ),
    "ListOffsets is one too high": _rows("ListOffsets", "topics.partitions", offset=_one_more),
    "Metadata leaves out the leader's epoch": _rows(
        "Metadata", "topics.partitions", leader_epoch=lambda epoch: -1
    ),
    "DescribeConfigs 4 has no types": _answers(
        "DescribeConfigs",
        lambda version, fields: (
            _each(fields, "results.configs", lambda row: {**row, "config_type": 0})
            if version == 4
            else fields
        ),
    ),
    "committed metadata gets lost": _rows(
        "OffsetFetch", "groups.topics.partitions", metadata=lambda text: ""
    ),
    "a generation too many": _answers(
        "JoinGroup",
        lambda version, fields: {**fields, "generation_id": _one_more(fields.get("generation_id", -1))},
    ),
    "groups are always stable": _rows("DescribeGroups", "groups", group_state=lambda state: "Stable"),
    "an unknown transactional id is fine": _rows(
        "DescribeTransactions", "transaction_states", error_code=lambda code: 0
    ),
    "unknown users are fine": _rows("DescribeUserScramCredentials", "results", error_code=lambda code: 0),
    "quotas are shown as whole numbers": _rows(
        "DescribeClientQuotas", "entries.values", value=lambda value: float(int(value))
    ),
    "aborted transactions are not told": _method(
        "tidelog.storage.readable_log:ReadableLog", "aborted_transactions", lambda old, *rest: []
    ),
    "read_committed reads everything": _method(
        "tidelog.storage.readable_log:ReadableLog",
        "last_stable_offset",
        lambda old, log, watermark: watermark,
    ),
    "any epoch of a fetch session will do": _method(
        "tidelog.broker.replicas.fetch_sessions:FetchSession", "advance", lambda old, session, now_ms: None
    ),
    "sequence numbers are not checked": _method(
        "tidelog.storage.producer_state:ProducerState", "check", lambda old, *rest, **options: None
    ),
    "the log start does not move": _method(
        "tidelog.storage.partition_log:PartitionLog", "_move_log_start", lambda old, log, offset: None
    ),
    "a group's offsets of one topic only": _rows("OffsetFetch", "groups", topics=lambda topics: topics[:1]),
    "the time index is not asked": _method(
        "tidelog.storage.readable_log:ReadableLog", "offset_by_timestamp", lambda old, log, timestamp_ms: None
    ),
    "leader epochs end one too late": _rows(
        "OffsetForLeaderEpoch", "topics.partitions", end_offset=_one_more
    ),
    "duplicates are appended": _method(
        "tidelog.storage.producer_state:ProducerState", "check", _appends_duplicates
    ),
    "headers get lost when the broker compresses": _method(
        "tidelog.records.validation", "assemble", _loses_headers
    ),
    "heartbeats of any generation": _method(
        "tidelog.groups.classic_requests:ClassicRequests",
        "_heartbeat_fault",
        _forgives(ErrorCode.ILLEGAL_GENERATION),
    ),
    "an old epoch may end a transaction": _method(
        "tidelog.transactions.end_rules", "_verdict_v1", _forgives(ErrorCode.PRODUCER_FENCED)
    ),
    "everybody may everything": _method(
        "tidelog.security.acl:AclIndex", "allows", lambda old, *rest, **options: True
    ),
    "synonyms of settings are not all told": _rows(
        "DescribeConfigs", "results.configs", synonyms=lambda synonyms: synonyms and synonyms[:-1]
    ),
    "the largest timestamp is not found": _method(
        "tidelog.storage.readable_log:ReadableLog", "max_timestamp", lambda old, log: None
    ),
    "every answer to a heartbeat throttles": _answers(
        "Heartbeat", lambda version, fields: {**fields, "throttle_time": datetime.timedelta(seconds=5)}
    ),
    "a token lives as long as it may be renewed": _answers(
        "CreateDelegationToken",
        lambda version, fields: {**fields, "expiry_timestamp": fields["max_timestamp"]},
    ),
    "the bump of an epoch is forgotten": _method(
        "tidelog.transactions.transaction:Transaction", "with_bumped_epoch", _keeps_the_epoch
    ),
    "the last protocol by name is chosen": _method(
        "tidelog.groups.classic_group:ClassicGroup",
        "select_protocol",
        lambda old, group: max(group.supported_protocols),
    ),
    "members of consumer groups are not fenced": _method(
        "tidelog.groups.consumer_requests:ConsumerRequests", "_epoch_fault", lambda old, *rest: None
    ),
    "offsets of aborted transactions count": _method(
        "tidelog.groups.offsets:Offsets",
        "end_transaction",
        lambda old, offsets, producer_id, committed: old(offsets, producer_id, True),
    ),
    "fetch sessions forget nothing": _method(
        "tidelog.broker.replicas.fetch_sessions:FetchSession",
        "_forget",
        lambda old, session, request: None,
    ),
    "acquired records are told one too few": _rows(
        "ShareFetch",
        "responses.partitions",
        acquired_records=lambda rows: [
            {**row, "last_offset": max(row["first_offset"], row["last_offset"] - 1)}
            for row in map(dict, rows)
        ],
    ),
    "the first delivery of a record is its second": _rows(
        "ShareFetch",
        "responses.partitions",
        acquired_records=lambda rows: [
            {**row, "delivery_count": row["delivery_count"] + 1} for row in map(dict, rows)
        ],
    ),
    "rejected records are delivered again": _method(
        "tidelog.shares.share_partition:SharePartition",
        "_aim",
        lambda old, shared, run, kind: old(
            shared, run, AcknowledgeType.RELEASE if kind is AcknowledgeType.REJECT else kind
        ),
    ),
    "any epoch of a share session will do": _method(
        "tidelog.shares.sessions:ShareSessions",
        "_current",
        lambda old, sessions, key, epoch: old(
            sessions, key, known.epoch if epoch != -1 and (known := sessions.get(key)) else epoch
        ),
    ),
    "a share session that ends keeps its records": _method(
        "tidelog.shares.share_partition:SharePartition", "_release_member", lambda old, *rest: None
    ),
    "prefixes do not count": _method("tidelog.security.acl:AclIndex", "_applying", _literals_alone),
    "rights do not count": _method(
        "tidelog.security.acl:AclIndex", "_applying", lambda old, index, kind, name: iter(())
    ),
}
