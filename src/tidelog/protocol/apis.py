"""The table of APIs: what Tidelog speaks, in which versions, and what it tells clients.

Each row gives the key, Kafka's name, the lowest version advertised, the highest version, the first flexible
version (None if there is none) and the stage of a connection from which it is allowed.

The advertised floor matters as much as what is implemented: librdkafka up to 2.10 switches a feature on
only if the range holds an exact old version (Produce 0, 3 and 7; Fetch 4 and 10; …). Produce therefore
advertises 0 and serves from 3, as Apache Kafka 4 does.
"""

from enum import Enum
from functools import cache
from typing import NamedTuple


class Stage(Enum):
    """From which moment of a connection an API may be used."""

    OPENING = "opening"
    AUTHENTICATED = "authenticated"


@cache
def _module(name: str) -> str:
    return "".join("_" + c.lower() if c.isupper() else c for c in name)[1:]


class Api(NamedTuple):
    """One row of the table."""

    key: int
    name: str
    min_version: int
    max_version: int
    first_flexible: int | None
    stage: Stage = Stage.AUTHENTICATED
    served_from: int = 0

    @property
    def module(self) -> str:
        """The name of its handler's module, and of kio's schema: `CreateTopics` → `create_topics`."""
        return _module(self.name)

    def serves(self, version: int) -> bool:
        """Whether a request of this version can be decoded and answered."""
        return max(self.min_version, self.served_from) <= version <= self.max_version

    def flexible(self, version: int) -> bool:
        """Whether this version uses compact types and tagged fields."""
        return self.first_flexible is not None and version >= self.first_flexible


PRODUCE = 0
FETCH = 1
METADATA = 3
SASL_HANDSHAKE = 17
API_VERSIONS = 18
DESCRIBE_CONFIGS = 32
SASL_AUTHENTICATE = 36

_ROWS = (
    Api(PRODUCE, "Produce", 0, 13, 9, served_from=3),
    Api(FETCH, "Fetch", 4, 18, 12),
    Api(2, "ListOffsets", 1, 11, 6),
    Api(METADATA, "Metadata", 0, 13, 9),
    Api(8, "OffsetCommit", 2, 10, 8),
    Api(9, "OffsetFetch", 1, 10, 6),
    Api(10, "FindCoordinator", 0, 6, 3),
    Api(11, "JoinGroup", 0, 9, 6),
    Api(12, "Heartbeat", 0, 4, 4),
    Api(13, "LeaveGroup", 0, 5, 4),
    Api(14, "SyncGroup", 0, 5, 4),
    Api(15, "DescribeGroups", 0, 6, 5),
    Api(16, "ListGroups", 0, 5, 3),
    Api(SASL_HANDSHAKE, "SaslHandshake", 0, 1, None, Stage.OPENING),
    Api(API_VERSIONS, "ApiVersions", 0, 5, 3, Stage.OPENING),
    Api(19, "CreateTopics", 2, 7, 5),
    Api(20, "DeleteTopics", 1, 6, 4),
    Api(21, "DeleteRecords", 0, 2, 2),
    Api(22, "InitProducerId", 0, 6, 2),
    Api(23, "OffsetForLeaderEpoch", 2, 4, 4),
    Api(24, "AddPartitionsToTxn", 0, 5, 3),
    Api(25, "AddOffsetsToTxn", 0, 4, 3),
    Api(26, "EndTxn", 0, 5, 3),
    Api(27, "WriteTxnMarkers", 1, 2, 1),
    Api(28, "TxnOffsetCommit", 0, 5, 3),
    Api(29, "DescribeAcls", 1, 3, 2),
    Api(30, "CreateAcls", 1, 3, 2),
    Api(31, "DeleteAcls", 1, 3, 2),
    Api(DESCRIBE_CONFIGS, "DescribeConfigs", 1, 4, 4),
    Api(33, "AlterConfigs", 0, 2, 2),
    Api(34, "AlterReplicaLogDirs", 1, 2, 2),
    Api(35, "DescribeLogDirs", 1, 5, 2),
    Api(SASL_AUTHENTICATE, "SaslAuthenticate", 0, 2, 2, Stage.OPENING),
    Api(37, "CreatePartitions", 0, 3, 2),
    Api(38, "CreateDelegationToken", 1, 3, 2),
    Api(39, "RenewDelegationToken", 1, 2, 2),
    Api(40, "ExpireDelegationToken", 1, 2, 2),
    Api(41, "DescribeDelegationToken", 1, 3, 2),
    Api(42, "DeleteGroups", 0, 2, 2),
    Api(43, "ElectLeaders", 0, 2, 2),
    Api(44, "IncrementalAlterConfigs", 0, 1, 1),
    Api(45, "AlterPartitionReassignments", 0, 1, 0),
    Api(46, "ListPartitionReassignments", 0, 0, 0),
    Api(47, "OffsetDelete", 0, 0, None),
    Api(48, "DescribeClientQuotas", 0, 1, 1),
    Api(49, "AlterClientQuotas", 0, 1, 1),
    Api(55, "DescribeQuorum", 0, 2, 0),
    Api(50, "DescribeUserScramCredentials", 0, 0, 0),
    Api(51, "AlterUserScramCredentials", 0, 0, 0),
    Api(60, "DescribeCluster", 0, 2, 0),
    Api(61, "DescribeProducers", 0, 0, 0),
    Api(64, "UnregisterBroker", 0, 0, 0),
    Api(65, "DescribeTransactions", 0, 0, 0),
    Api(66, "ListTransactions", 0, 2, 0),
    Api(68, "ConsumerGroupHeartbeat", 0, 1, 0),
    Api(69, "ConsumerGroupDescribe", 0, 1, 0),
    Api(74, "ListConfigResources", 0, 1, 0),
    Api(75, "DescribeTopicPartitions", 0, 0, 0),
    Api(76, "ShareGroupHeartbeat", 1, 1, 0),
    Api(77, "ShareGroupDescribe", 1, 1, 0),
    Api(78, "ShareFetch", 1, 2, 0),
    Api(79, "ShareAcknowledge", 1, 2, 0),
    Api(83, "InitializeShareGroupState", 0, 0, 0),
    Api(84, "ReadShareGroupState", 0, 0, 0),
    Api(85, "WriteShareGroupState", 0, 1, 0),
    Api(86, "DeleteShareGroupState", 0, 0, 0),
    Api(87, "ReadShareGroupStateSummary", 0, 1, 0),
    Api(90, "DescribeShareGroupOffsets", 0, 1, 0),
    Api(91, "AlterShareGroupOffsets", 0, 0, 0),
    Api(92, "DeleteShareGroupOffsets", 0, 0, 0),
)

APIS: dict[int, Api] = {row.key: row for row in _ROWS}

# Outside Kafka's protocol, so neither advertised nor decoded by a schema: what brokers, and `tidelog doctor`,
# ask a broker. Their handlers say what the bodies are.
CONTROLLER_COMMAND = 10_000
DESCRIBE_BACKGROUND_JOBS = 10_001
APPEND_DEAD_LETTERS = 10_002
DESCRIBE_SHARE_PARTITIONS = 10_003
DESCRIBE_DELAYS = 10_004

PRIVATE_APIS: dict[int, Api] = {
    row.key: row
    for row in (
        Api(CONTROLLER_COMMAND, "ControllerCommand", 0, 0, None),
        Api(DESCRIBE_BACKGROUND_JOBS, "DescribeBackgroundJobs", 0, 0, None),
        Api(APPEND_DEAD_LETTERS, "AppendDeadLetters", 0, 0, None),
        Api(DESCRIBE_SHARE_PARTITIONS, "DescribeSharePartitions", 0, 0, None),
        Api(DESCRIBE_DELAYS, "DescribeDelays", 0, 0, None),
    )
}
