"""The differences that are meant: where they may be seen in an answer, and what they are.

`docs/compatibility.md` tells them to people; `ACCEPTED` is what the judge passes over. A row names the API,
the path of the field without the numbers of arrays (with wildcards), and the two values; None stands for any.
"""

import fnmatch
from typing import NamedTuple

from oracle.session import Json, Step, shown

#: stands for a number that is one more than the other system's
ONE_MORE = "one more"
#: stands for a number that is less than the other system's
LESS = "less"


class Accepted(NamedTuple):
    """One field that may differ so."""

    api: str
    path: str
    kafka: Json
    here: Json
    why: str
    #: of which requests; a part of what they show
    asked: str = ""

    def covers(self, name: str, asked: str, path: str, kafka: Json, here: Json) -> bool:
        """Whether this is the difference that was seen, at a request or an operation of this name."""
        return (
            fnmatch.fnmatchcase(name, self.api)
            and self.asked in asked
            and fnmatch.fnmatchcase(path, self.path)
            and (
                self.kafka in (None, kafka)
                or (self.kafka == ONE_MORE and isinstance(here, int) and kafka == here + 1)
            )
            and (
                self.here in (None, here)
                or (self.here == LESS and isinstance(kafka, int) and isinstance(here, int) and here < kafka)
            )
        )


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
            Accepted("*", "*configs.config_source", 3, 4, "the source"),
            Accepted("DescribeConfigs", "results.configs.synonyms", None, None, "the source"),
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
            Accepted("*Acls", "*", "(none)", None, _NO_SUCH_VALUE),
        ),
    ),
    Meant(
        "ListOffsets of the largest timestamp, when its record was deleted",
        "an offset before the start of the log",
        "none",
        "nobody can read it",
        (Accepted("ListOffsets", "topics.partitions.*", None, -1, "deleted", "timestamp: -3"),),
    ),
    Meant(
        "DescribeLogDirs after DeleteRecords that emptied segments",
        "they count until the next check of retention",
        "they are gone",
        "disk is freed when one asks for it",
        (Accepted("DescribeLogDirs", "*.partition_size", None, LESS, "segments without records"),),
    ),
    Meant(
        "a batch with an unknown codec",
        "UNKNOWN_SERVER_ERROR",
        "UNSUPPORTED_COMPRESSION_TYPE",
        "clients do not retry it",
        (Accepted("Produce", "responses.partition_responses.error_code", -1, 76, "an unknown codec"),),
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
        (Accepted("EndTxn", "error_code", 48, 90, "fenced"),),
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
        "an appended empty value of a list setting",
        "INVALID_CONFIG",
        "nothing is appended",
        "an empty list has no elements",
    ),
)
ACCEPTED = tuple(row for meant in MEANT for row in meant.accepted)


#: defects that are known and not mended yet
OPEN: tuple[Accepted, ...] = (
    # KAFKA-20268
    Accepted(
        "ConsumerGroup*", "*epoch", ONE_MORE, None, "groups begin with epoch 1, their first member with 2"
    ),
    Accepted("ConsumerGroupHeartbeat", "error_code", 110, 128, "a wrong epoch and a wrong expression"),
)


def accepted(step: Step, path: str, kafka: Json, here: Json) -> bool:
    """Whether a difference is one of those that are meant."""
    asked = shown(step.fields)
    return any(row.covers(step.api, asked, path, kafka, here) for row in (*ACCEPTED, *OPEN))
