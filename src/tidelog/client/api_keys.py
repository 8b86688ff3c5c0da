"""The keys of the APIs that clients ask for, by their names, from the table of `protocol.apis`."""

from tidelog.protocol.apis import APIS, Api

#: what an Apache Kafka is asked for and Tidelog does not serve: its share groups
_ELSEWHERE = (Api(77, "ShareGroupDescribe", 1, 1, 0),)

#: what a client can ask for
CLIENT_APIS = {**APIS, **{api.key: api for api in _ELSEWHERE}}

_KEYS = {api.name: api.key for api in CLIENT_APIS.values()}

PRODUCE = _KEYS["Produce"]
FETCH = _KEYS["Fetch"]
LIST_OFFSETS = _KEYS["ListOffsets"]
METADATA = _KEYS["Metadata"]
OFFSET_COMMIT = _KEYS["OffsetCommit"]
OFFSET_FETCH = _KEYS["OffsetFetch"]
FIND_COORDINATOR = _KEYS["FindCoordinator"]
DESCRIBE_GROUPS = _KEYS["DescribeGroups"]
LIST_GROUPS = _KEYS["ListGroups"]
JOIN_GROUP = _KEYS["JoinGroup"]
SYNC_GROUP = _KEYS["SyncGroup"]
HEARTBEAT = _KEYS["Heartbeat"]
LEAVE_GROUP = _KEYS["LeaveGroup"]
SASL_HANDSHAKE = _KEYS["SaslHandshake"]
API_VERSIONS = _KEYS["ApiVersions"]
CREATE_TOPICS = _KEYS["CreateTopics"]
DELETE_TOPICS = _KEYS["DeleteTopics"]
INIT_PRODUCER_ID = _KEYS["InitProducerId"]
ADD_PARTITIONS_TO_TXN = _KEYS["AddPartitionsToTxn"]
END_TXN = _KEYS["EndTxn"]
WRITE_TXN_MARKERS = _KEYS["WriteTxnMarkers"]
DESCRIBE_ACLS = _KEYS["DescribeAcls"]
CREATE_ACLS = _KEYS["CreateAcls"]
DELETE_ACLS = _KEYS["DeleteAcls"]
DESCRIBE_CONFIGS = _KEYS["DescribeConfigs"]
DESCRIBE_LOG_DIRS = _KEYS["DescribeLogDirs"]
SASL_AUTHENTICATE = _KEYS["SaslAuthenticate"]
CREATE_PARTITIONS = _KEYS["CreatePartitions"]
DELETE_GROUPS = _KEYS["DeleteGroups"]
ELECT_LEADERS = _KEYS["ElectLeaders"]
INCREMENTAL_ALTER_CONFIGS = _KEYS["IncrementalAlterConfigs"]
ALTER_PARTITION_REASSIGNMENTS = _KEYS["AlterPartitionReassignments"]
LIST_PARTITION_REASSIGNMENTS = _KEYS["ListPartitionReassignments"]
OFFSET_DELETE = _KEYS["OffsetDelete"]
DESCRIBE_CLIENT_QUOTAS = _KEYS["DescribeClientQuotas"]
ALTER_CLIENT_QUOTAS = _KEYS["AlterClientQuotas"]
DESCRIBE_USER_SCRAM_CREDENTIALS = _KEYS["DescribeUserScramCredentials"]
ALTER_USER_SCRAM_CREDENTIALS = _KEYS["AlterUserScramCredentials"]
DESCRIBE_QUORUM = _KEYS["DescribeQuorum"]
DESCRIBE_CLUSTER = _KEYS["DescribeCluster"]
DESCRIBE_PRODUCERS = _KEYS["DescribeProducers"]
UNREGISTER_BROKER = _KEYS["UnregisterBroker"]
DESCRIBE_TRANSACTIONS = _KEYS["DescribeTransactions"]
LIST_TRANSACTIONS = _KEYS["ListTransactions"]
CONSUMER_GROUP_DESCRIBE = _KEYS["ConsumerGroupDescribe"]
DESCRIBE_TOPIC_PARTITIONS = _KEYS["DescribeTopicPartitions"]
SHARE_GROUP_DESCRIBE = _KEYS["ShareGroupDescribe"]
