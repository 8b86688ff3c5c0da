"""The table of APIs: what Tidelog speaks, in which versions, and what it tells clients.

Each row gives the key, Kafka's name, the lowest version advertised, the highest version, the first flexible
version (None if there is none), the family it belongs to and the stage of a connection from which it is
allowed.

The advertised floor matters as much as what is implemented: librdkafka up to 2.10 switches a feature on
only if the range holds an exact old version (Produce 0, 3 and 7; Fetch 4 and 10; …). Produce therefore
advertises 0 and serves from 3, as Apache Kafka 4 does.
"""

from enum import Enum
from typing import NamedTuple


class Family(Enum):
    """Which part of the system serves an API."""

    DATA = "data"
    METADATA = "metadata"
    GROUP = "group"
    TRANSACTION = "transaction"
    SECURITY = "security"


class Stage(Enum):
    """From which moment of a connection an API may be used."""

    OPENING = "opening"
    AUTHENTICATED = "authenticated"


class Api(NamedTuple):
    """One row of the table."""

    key: int
    name: str
    min_version: int
    max_version: int
    first_flexible: int | None
    family: Family
    stage: Stage = Stage.AUTHENTICATED
    served_from: int = 0

    @property
    def module(self) -> str:
        """The name of its schema and handler modules: `CreateTopics` → `create_topics`."""
        return "".join("_" + c.lower() if c.isupper() else c for c in self.name)[1:]

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
SASL_AUTHENTICATE = 36

_ROWS = (
    Api(PRODUCE, "Produce", 0, 13, 9, Family.DATA, served_from=3),
    Api(FETCH, "Fetch", 4, 18, 12, Family.DATA),
    Api(2, "ListOffsets", 1, 11, 6, Family.DATA),
    Api(METADATA, "Metadata", 0, 13, 9, Family.METADATA),
    Api(8, "OffsetCommit", 2, 10, 8, Family.GROUP),
    Api(9, "OffsetFetch", 1, 10, 6, Family.GROUP),
    Api(10, "FindCoordinator", 0, 6, 3, Family.GROUP),
    Api(11, "JoinGroup", 0, 9, 6, Family.GROUP),
    Api(12, "Heartbeat", 0, 4, 4, Family.GROUP),
    Api(13, "LeaveGroup", 0, 5, 4, Family.GROUP),
    Api(14, "SyncGroup", 0, 5, 4, Family.GROUP),
    Api(15, "DescribeGroups", 0, 6, 5, Family.GROUP),
    Api(16, "ListGroups", 0, 5, 3, Family.GROUP),
    Api(SASL_HANDSHAKE, "SaslHandshake", 0, 1, None, Family.SECURITY, Stage.OPENING),
    Api(API_VERSIONS, "ApiVersions", 0, 5, 3, Family.METADATA, Stage.OPENING),
    Api(19, "CreateTopics", 2, 7, 5, Family.METADATA),
    Api(20, "DeleteTopics", 1, 6, 4, Family.METADATA),
    Api(21, "DeleteRecords", 0, 2, 2, Family.DATA),
    Api(22, "InitProducerId", 0, 6, 2, Family.DATA),
    Api(23, "OffsetForLeaderEpoch", 2, 4, 4, Family.DATA),
    Api(24, "AddPartitionsToTxn", 0, 5, 3, Family.TRANSACTION),
    Api(25, "AddOffsetsToTxn", 0, 4, 3, Family.TRANSACTION),
    Api(26, "EndTxn", 0, 5, 3, Family.TRANSACTION),
    Api(27, "WriteTxnMarkers", 1, 2, 1, Family.TRANSACTION),
    Api(28, "TxnOffsetCommit", 0, 5, 3, Family.GROUP),
    Api(29, "DescribeAcls", 1, 3, 2, Family.SECURITY),
    Api(30, "CreateAcls", 1, 3, 2, Family.SECURITY),
    Api(31, "DeleteAcls", 1, 3, 2, Family.SECURITY),
    Api(32, "DescribeConfigs", 1, 4, 4, Family.METADATA),
    Api(33, "AlterConfigs", 0, 2, 2, Family.METADATA),
    Api(34, "AlterReplicaLogDirs", 1, 2, 2, Family.METADATA),
    Api(35, "DescribeLogDirs", 1, 4, 2, Family.METADATA),
    Api(SASL_AUTHENTICATE, "SaslAuthenticate", 0, 2, 2, Family.SECURITY, Stage.OPENING),
    Api(37, "CreatePartitions", 0, 3, 2, Family.METADATA),
    Api(38, "CreateDelegationToken", 1, 3, 2, Family.SECURITY),
    Api(39, "RenewDelegationToken", 1, 2, 2, Family.SECURITY),
    Api(40, "ExpireDelegationToken", 1, 2, 2, Family.SECURITY),
    Api(41, "DescribeDelegationToken", 1, 3, 2, Family.SECURITY),
    Api(42, "DeleteGroups", 0, 2, 2, Family.GROUP),
    Api(43, "ElectLeaders", 0, 2, 2, Family.METADATA),
    Api(44, "IncrementalAlterConfigs", 0, 1, 1, Family.METADATA),
    Api(45, "AlterPartitionReassignments", 0, 1, 0, Family.METADATA),
    Api(46, "ListPartitionReassignments", 0, 0, 0, Family.METADATA),
    Api(47, "OffsetDelete", 0, 0, None, Family.GROUP),
    Api(48, "DescribeClientQuotas", 0, 1, 1, Family.SECURITY),
    Api(49, "AlterClientQuotas", 0, 1, 1, Family.SECURITY),
    Api(55, "DescribeQuorum", 0, 2, 0, Family.METADATA),
    Api(50, "DescribeUserScramCredentials", 0, 0, 0, Family.SECURITY),
    Api(51, "AlterUserScramCredentials", 0, 0, 0, Family.SECURITY),
    Api(60, "DescribeCluster", 0, 2, 0, Family.METADATA),
    Api(61, "DescribeProducers", 0, 0, 0, Family.DATA),
    Api(64, "UnregisterBroker", 0, 0, 0, Family.METADATA),
    Api(65, "DescribeTransactions", 0, 0, 0, Family.TRANSACTION),
    Api(66, "ListTransactions", 0, 2, 0, Family.TRANSACTION),
    Api(68, "ConsumerGroupHeartbeat", 0, 1, 0, Family.GROUP),
    Api(69, "ConsumerGroupDescribe", 0, 1, 0, Family.GROUP),
    Api(74, "ListConfigResources", 0, 1, 0, Family.METADATA),
    Api(75, "DescribeTopicPartitions", 0, 0, 0, Family.METADATA),
)

#: outside Kafka's protocol, never advertised (see `broker/handlers/describe_background_jobs`)
DESCRIBE_BACKGROUND_JOBS = 10_001

APIS: dict[int, Api] = {row.key: row for row in _ROWS}
