"""Names and numbers that identify things, and the rules for valid topic names."""

import re
from random import Random
from typing import NamedTuple
from uuid import UUID

NO_LEADER = -1
NO_OFFSET = -1
NO_TIMESTAMP = -1
NO_EPOCH = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1

GROUP_METADATA_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
SHARE_GROUP_STATE_TOPIC = "__share_group_state"
INTERNAL_TOPICS = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_GROUP_STATE_TOPIC})

#: groups, and transactional ids, by which leaders of delay partitions note what they have forwarded
DELAY_GROUP_PREFIX = "__tidelog_delay."

# Ids of log directories that stand for none in particular (KIP-858), in the form that meta.properties has.
#: the broker will say in which of its directories the replica is
UNASSIGNED_DIRECTORY = "AAAAAAAAAAAAAAAAAAAAAA"
#: the replica was in a directory that failed before the cluster knew in which
LOST_DIRECTORY = "AAAAAAAAAAAAAAAAAAAAAQ"
#: placed by a broker of a version that did not tell its directories
MIGRATING_DIRECTORY = "AAAAAAAAAAAAAAAAAAAAAg"
RESERVED_DIRECTORIES = frozenset({UNASSIGNED_DIRECTORY, LOST_DIRECTORY, MIGRATING_DIRECTORY})

TOPIC_NAME_LENGTH_MAX = 249
_LEGAL_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")


class TopicPartition(NamedTuple):
    """A partition of a topic; its folder on disk is named `<topic>-<partition>`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def random_uuid(random: Random) -> UUID:
    """A new id (version 4) from a source that a test may seed."""
    return UUID(int=random.getrandbits(128), version=4)


def topic_name_fault(name: str) -> str | None:
    """Say in words why `name` is not a legal topic name, or return None if it is."""
    if not name:
        return "the topic name is empty"
    if name in (".", ".."):
        return f"the topic name cannot be {name!r}"
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        return f"the topic name is {len(name)} characters long, more than {TOPIC_NAME_LENGTH_MAX}"
    if _LEGAL_TOPIC_NAME.fullmatch(name) is None:
        return f"the topic name {name!r} has characters other than ASCII letters, digits, '.', '_' and '-'"
    return None
