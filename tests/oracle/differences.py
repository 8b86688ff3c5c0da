"""The differences that are meant: where they may be seen in an answer, and what they are.

`docs/compatibility.md` tells them to people; `ACCEPTED` is what the judge passes over. A row names the API,
the path of the field without the numbers of arrays (with wildcards), and the two values; None stands for any.
"""

import fnmatch
from collections.abc import Iterable
from typing import NamedTuple

from tests.oracle.session import Json, Step, shown

#: stands for a number that is less than the other system's
LESS = "less"
#: stands for a number that is nearly the other system's, as sizes are that two compressors make
NEAR = "near"


class Accepted(NamedTuple):
    """One field that may differ so."""

    api: str
    path: str
    kafka: Json
    here: Json
    why: str
    #: of which requests; a part of what they show
    asked: str = ""
    #: only behind a request that shows this, its name included
    behind: str = ""
    #: of which row: its name
    row: str = ""
    #: from which version on
    since: int = 0

    def covers(
        self, name: str, asked: str, path: str, kafka: Json, here: Json, earlier: str = "", row: str = ""
    ) -> bool:
        """Whether this is the difference that was seen, at a request or an operation of this name."""
        return (
            fnmatch.fnmatchcase(name, self.api)
            and self.asked in asked
            and self.behind in earlier
            and self.row in ("", row)
            and fnmatch.fnmatchcase(path, self.path)
            and (self.kafka in (None, kafka) or _is_so(self.kafka, kafka, here))
            and (self.here in (None, here) or _is_so(self.here, here, kafka))
        )


def _is_so(said: Json, value: Json, other: Json) -> bool:
    """Whether a value is to the other system's what the row says of it."""
    match said, value, other:
        case "less", int(), int():
            return value < other
        case "near", int(), int():
            return abs(value - other) * 5 < other
    return False


class Meant(NamedTuple):
    """A difference that is meant, in words for people, and where it is seen."""

    what: str
    kafka: str
    here: str
    why: str
    accepted: tuple[Accepted, ...] = ()


_NO_SUCH_VALUE = "values that the protocol does not have"
#: rows without `accepted` are differences that sessions are not generated to show
MEANT: tuple[Meant, ...] = (
    Meant(
        "the source of `min.insync.replicas` in DescribeConfigs and CreateTopics",
        "the controller sets it for all brokers when eligible leader replicas begin",
        "the broker's own setting or the default",
        "nothing has to be set for them",
        (
            Accepted("*", "*configs.config_source", 3, 4, "the source", row="min.insync.replicas"),
            Accepted("DescribeConfigs", "*.synonyms", None, None, "the source", row="min.insync.replicas"),
        ),
    ),
    Meant(
        "CreateAcls, DescribeAcls with a value that the protocol does not have",
        "UNKNOWN_SERVER_ERROR, or the connection is closed",
        "INVALID_REQUEST",
        "a client can tell what it did",
        (
            Accepted("CreateAcls", "results.error_code", -1, 42, _NO_SUCH_VALUE),
            Accepted("*Acls", "closed", True, "(none)", _NO_SUCH_VALUE),
            Accepted("CreateAcls", "results", "(none)", [{"error_code": 42}], _NO_SUCH_VALUE),
            Accepted("DescribeAcls", "error_code", "(none)", 42, _NO_SUCH_VALUE),
            Accepted("DescribeAcls", "resources", "(none)", [], _NO_SUCH_VALUE),
            Accepted("*Acls", "throttle_time", "(none)", 0, _NO_SUCH_VALUE),
        ),
    ),
    Meant(
        "ListOffsets of the largest timestamp, when its record was deleted",
        "an offset before the start of the log",
        "the next record with the same timestamp, or none",
        "nobody can read it",
        (
            Accepted(
                "ListOffsets", "topics.partitions.*", None, -1, "deleted", "timestamp: -3", "DeleteRecords"
            ),
            Accepted(
                "ListOffsets",
                "topics.partitions.offset",
                LESS,
                None,
                "deleted",
                "timestamp: -3",
                "DeleteRecords",
            ),
        ),
    ),
    Meant(
        "the last stable offset, when records of an open transaction were deleted inside of a batch",
        "the first offset of the batch, which is before the start of the log",
        "the start of the log",
        "nobody can read before it",
        (
            Accepted(
                "ListOffsets",
                "topics.partitions.offset",
                LESS,
                None,
                "deleted",
                "isolation_level: 1",
                "DeleteRecords",
            ),
            Accepted(
                "Fetch",
                "responses.partitions.last_stable_offset",
                LESS,
                None,
                "deleted",
                behind="DeleteRecords",
            ),
        ),
    ),
    Meant(
        "aborted transactions in a Fetch that does not read to the end",
        "those of the whole segment, or up to the next entry of its index",
        "those of what is returned",
        "a client skips no others",
    ),
    Meant(
        "DescribeLogDirs after DeleteRecords that emptied segments",
        "they count until the next check of retention",
        "they are gone",
        "disk is freed when one asks for it",
        (
            Accepted(
                "DescribeLogDirs",
                "*.partition_size",
                None,
                LESS,
                "segments without records",
                behind="DeleteRecords",
            ),
        ),
    ),
    Meant(
        "how small batches get that a broker compresses itself (`compression.type` of a topic)",
        "as Java's libraries pack them",
        "a little more or less",
        "other libraries, the same formats",
        (
            Accepted(
                "DescribeLogDirs", "*.partition_size", None, NEAR, "compressors", behind="compression.type"
            ),
            Accepted("Fetch", "*.batch_length", None, None, "compressors", behind="compression.type"),
        ),
    ),
    Meant(
        "a batch with an unknown codec",
        "UNKNOWN_SERVER_ERROR",
        "UNSUPPORTED_COMPRESSION_TYPE",
        "clients do not retry it",
        (
            Accepted(
                "Produce",
                "responses.partition_responses.error_code",
                -1,
                76,
                "an unknown codec",
                'spoil: "codec"',
            ),
        ),
    ),
    Meant(
        "Produce with null records",
        "is never answered",
        "INVALID_RECORD",
        "a connection must not hang",
    ),
    Meant(
        "a producer's batch that says LogAppendTime, in a topic with CreateTime",
        "appended, with the bit taken away",
        "INVALID_TIMESTAMP",
        "no producer may say so",
    ),
    Meant(
        "a batch with a producer id and the epoch -1",
        "appended",
        "INVALID_PRODUCER_EPOCH",
        "such a producer cannot be fenced",
    ),
    Meant(
        "a transactional batch without a producer id",
        "appended",
        "INVALID_RECORD",
        "no transaction could end it",
    ),
    Meant(
        "EndTxn 5 of a producer whose transaction somebody else ended with the next epoch",
        "INVALID_TXN_STATE, or that epoch if it aborts",
        "PRODUCER_FENCED",
        "who was fenced is told so, and does not get the epoch that fenced it",
        (
            Accepted("EndTxn", "error_code", 48, 90, "fenced", since=5),
            Accepted("EndTxn", "error_code", 0, 90, "the epoch before", "producer_epoch-1"),
            Accepted("EndTxn", "producer_*", None, -1, "the epoch before", "producer_epoch-1"),
        ),
    ),
    Meant(
        "a sequence above 0 in a new epoch, after a batch of transactions v1 was refused",
        "appended: what Kafka remembers of that batch says that sequences need not begin with 0",
        "OUT_OF_ORDER_SEQUENCE_NUMBER",
        "with transactions v2 every epoch begins with 0",
    ),
    Meant(
        "when an idle producer is forgotten (`producer.id.expiration.ms`), and its time in DescribeProducers",
        "the time of its last record: one that writes old records is unknown after a start of the broker",
        "when its last batch was appended, as far as a snapshot tells",
        "a batch that is sent again must not be appended twice, however old its records are",
    ),
    Meant(
        "the last timestamp of a producer in DescribeProducers",
        "the largest one of the records in its last batch",
        "when its last batch was appended",
        "a producer of old records is at work, and is not forgotten at once",
        (Accepted("DescribeProducers", "*.active_producers.last_timestamp", None, "a clock", "appended"),),
    ),
    Meant(
        "`min.cleanable.dirty.ratio` = NaN",
        "taken",
        "INVALID_CONFIG",
        "it is not between 0 and 1",
    ),
    Meant(
        "an empty topic name in DescribeTopicPartitions",
        "UNKNOWN_SERVER_ERROR for all topics of the request",
        "INVALID_TOPIC_EXCEPTION for this one",
        "the others exist",
    ),
    Meant(
        "Metadata 10 and 11 by topic id, which they do not have",
        "an answer without brokers",
        "an error for the topic",
        "the brokers are known",
    ),
    Meant(
        "a partition that is named twice in ElectLeaders",
        "is answered twice",
        "is answered once",
        "it is one election",
    ),
    Meant(
        "a first commit of a group that is refused, for its metadata is too large",
        "there is an empty group then",
        "there is none",
        "nothing of it was stored",
    ),
    Meant(
        "a heartbeat of a consumer or share group with the epoch before the member's own, "
        "after which something was assigned",
        "tells the assignment only to who says everything",
        "tells it",
        "the answer with it may not have been heard",
        (Accepted("ShareGroupHeartbeat", "assignment", None, None, "missed", "member_epoch-"),),
    ),
    Meant(
        "a static member that joins again under its own id, such as one that did not get the answer",
        "UNRELEASED_INSTANCE_ID until its session ends",
        "is answered as before",
        "it is the same member",
    ),
    Meant(
        "`max.message.bytes` of a topic that is less than the marker of a transaction takes",
        "no transaction in it ever ends: CONCURRENT_TRANSACTIONS for ever",
        "markers are written",
        "the limit is for what clients send",
    ),
    Meant(
        "as many members of a consumer group ask for one server assignor as for another",
        "the one that was asked for last, or another, as its table of names lies",
        "`uniform`",
        "an accident of the table",
    ),
    Meant(
        "a topic that is named twice in OffsetCommit",
        "is answered twice",
        "is answered once, with all partitions",
        "it is one topic",
    ),
    Meant(
        "AlterShareGroupOffsets",
        "keeps the group's epoch",
        "the group gets a new one",
        "a leader that still works from before is fenced",
        (Accepted("ShareGroup*", "*epoch", LESS, None, "altered", behind="AlterShareGroupOffsets"),),
    ),
    Meant(
        "the start of a share partition that is stored (DescribeShareGroupOffsets)",
        "as it was before the write, further ahead with the next one",
        "as it is then",
        "several acknowledgements are stored with one write; the lag is the same",
        (Accepted("DescribeShareGroupOffsets", "*.start_offset", LESS, None, "stored", behind="ShareFetch"),),
    ),
    Meant(
        "what is said of records of a partition from which nobody has fetched since its leader leads",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "INVALID_RECORD_STATE",
        "the partition is there, and nothing of it is acquired",
        (Accepted("Share*", "responses.partitions.*error_code", 3, 121, "nobody fetched"),),
    ),
    Meant(
        "ShareAcknowledge to a broker that does not lead the partition",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "NOT_LEADER_OR_FOLLOWER, with the leader",
        "the partition is there, and the member learns where; ShareFetch says the same on both",
        (
            Accepted("ShareAcknowledge", "responses.partitions.error_code", 3, 6, "another leads"),
            Accepted("ShareAcknowledge", "responses.partitions.current_leader.*", 0, None, "another leads"),
            Accepted("ShareAcknowledge", "node_endpoints", [], None, "another leads"),
        ),
    ),
    Meant(
        "ShareFetch of a partition of which its group has no state",
        "UNKNOWN_SERVER_ERROR, or nothing until it is known",
        "INVALID_REQUEST",
        "a client can tell what it did",
        (Accepted("ShareFetch", "responses.partitions.error_code", -1, 42, "no state"),),
    ),
    Meant(
        "ShareFetch with an acquire mode that there is not",
        "UNKNOWN_SERVER_ERROR, and its session goes on",
        "INVALID_REQUEST",
        "a client can tell what it did",
        (Accepted("ShareFetch", "error_code", -1, 42, "a mode", "share_acquire_mode: "),),
    ),
    Meant(
        "a transaction's marker that is refused, in a partition whose segment is due to roll by its time",
        "a new segment begins, and a Fetch from before it ends there",
        "nothing happens",
        "what is refused leaves no trace",
    ),
    Meant(
        "`share.auto.offset.reset` = by_duration of a group, where no record is so new",
        "OFFSET_NOT_AVAILABLE until one is written: those before it are never delivered",
        "the end of the log",
        "consumers begin there, too",
    ),
    Meant(
        "the end of a share session, for records of partitions that are not in it any more: "
        "forgotten, or acquired in a session before it",
        "they stay acquired until their lock ends",
        "they are delivered again at once",
        "the member has gone, and with it who could say what became of them",
    ),
    Meant(
        "DescribeShareGroupOffsets of a partition that is not there, or without partitions",
        "is never answered, or UNKNOWN_SERVER_ERROR for the group",
        "an error for the partition; nothing",
        "a connection must not hang",
    ),
    Meant(
        "the lag of a share partition whose offset was altered to less than 0",
        "counts from there",
        "-1",
        "no partition has such an offset",
        (Accepted("DescribeShareGroupOffsets", "*.lag", None, -1, "below 0", behind="start_offset: -2"),),
    ),
    Meant(
        "an empty group id in DescribeShareGroupOffsets",
        "a group of which nothing is stored",
        "INVALID_GROUP_ID",
        "as other requests about groups",
    ),
    Meant(
        "how many records a ShareFetch gives when some are delivered again, or offsets have no records",
        "goes by the batches that it keeps in memory; offsets without records count",
        "goes by the records",
        "the member gets the others with its next request",
        (
            Accepted(
                "DescribeShareGroupOffsets", "*.lag", None, LESS, "markers", behind="transactional: true"
            ),
        ),
    ),
    Meant(
        "the state of a share partition: a start offset before the one that is stored, "
        "a state epoch in which it was begun before, a write in a later leader epoch than the last read",
        "takes the state back; begins anew; the older leader may still write",
        "the start stays; nothing happens; the older leader is fenced",
        "what was stored stays stored",
    ),
    Meant(
        "the leader epoch that is told of a share partition that was begun anew "
        "(ReadShareGroupStateSummary, DescribeShareGroupOffsets)",
        "0 until its leader reads it again, though an older leader is fenced as before",
        "that of the last read",
        "it is the one that writes are held against",
        (
            Accepted(
                "ReadShareGroupStateSummary",
                "*.leader_epoch",
                0,
                None,
                "begun anew",
                behind="InitializeShareGroupState",
            ),
            Accepted(
                "DescribeShareGroupOffsets",
                "*.leader_epoch",
                0,
                None,
                "begun anew",
                behind="AlterShareGroupOffsets",
            ),
        ),
    ),
    Meant(
        "acknowledgements that overlap in one offset, or begin before the first offset",
        "INVALID_RECORD_STATE",
        "INVALID_REQUEST",
        "the request says twice of a record what became of it",
    ),
    Meant(
        "ShareFetch, ShareAcknowledge of a topic id that nobody has, or not any more",
        "UNKNOWN_SERVER_ERROR for the whole request",
        "UNKNOWN_TOPIC_ID for the topic",
        "the member can go on with the others",
        (
            Accepted("Share*", "error_code", -1, 0, "an unknown topic id"),
            Accepted("Share*", "acquisition_lock_timeout", 0, None, "an unknown topic id"),
            Accepted("Share*", "responses", [], None, "an unknown topic id"),
        ),
    ),
    Meant(
        "a batch behind a refused or repeated one of a lower sequence, "
        "before the transaction has begun in the partition",
        "OUT_OF_ORDER_SEQUENCE_NUMBER, also where its sequence is the next one, or it is in no transaction",
        "only where the partition does not know the producer and the batch is in a transaction",
        "otherwise the log itself keeps the order",
    ),
)
#: told by the table of versions on the page itself
_VERSIONS = (
    Accepted("ApiVersions", "api_keys.max_version", 4, 5, "ApiVersions", row="18"),
    Accepted("ApiVersions", "api_keys.max_version", 5, 6, "InitProducerId", row="22"),
)
ACCEPTED = (*(row for meant in MEANT for row in meant.accepted), *_VERSIONS)


#: defects that are known and not mended yet
OPEN: tuple[Accepted, ...] = ()


def accepted(
    step: Step, path: str, kafka: Json, here: Json, earlier: Iterable[Step] = (), row: str = ""
) -> bool:
    """Whether a difference is one of those that are meant: behind which steps, in the row of which name."""
    asked = shown(step.fields)
    before = " ".join(f"{one.api} {shown(one.fields)}" for one in earlier)
    return any(
        known.since <= step.version and known.covers(step.api, asked, path, kafka, here, before, row)
        for known in (*ACCEPTED, *OPEN)
    )
