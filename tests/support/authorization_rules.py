"""What each API must ask of the authorizer: which operation on which resource.

This is what the guards in `broker/requests/guards` are held against, so they do not read it. It has a row for
every API that a broker serves, also for those that ask for nothing. A test that is driven from the table of
APIs fails when one is missing, and another when a guard asks for anything but what its row says. docs/acls.md
shows it.

`Need.when` says in words when a need arises, where that is not always.
"""

from typing import NamedTuple

from tidelog.model.acls import AclOperation, ResourceType

_TOPIC, _GROUP, _CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
_TRANSACTION, _USER, _TOKEN = (
    ResourceType.TRANSACTIONAL_ID,
    ResourceType.USER,
    ResourceType.DELEGATION_TOKEN,
)
_READ, _WRITE, _CREATE, _DELETE = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DELETE,
)
_ALTER, _DESCRIBE, _CLUSTER_ACTION = AclOperation.ALTER, AclOperation.DESCRIBE, AclOperation.CLUSTER_ACTION
_DESCRIBE_CONFIGS, _ALTER_CONFIGS = AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS


class Need(NamedTuple):
    """One check of an API."""

    resource_type: ResourceType
    operation: AclOperation
    when: str = ""


_NOTHING: tuple[Need, ...] = ()

#: by the name of the API
RULES: dict[str, tuple[Need, ...]] = {
    "Produce": (
        Need(_TOPIC, _WRITE),
        Need(_TRANSACTION, _WRITE, "transactional records"),
    ),
    "Fetch": (
        Need(_TOPIC, _READ, "consumers"),
        Need(_CLUSTER, _CLUSTER_ACTION, "followers"),
    ),
    "ListOffsets": (Need(_TOPIC, _DESCRIBE),),
    "Metadata": (
        Need(_TOPIC, _DESCRIBE),
        Need(_CLUSTER, _CREATE, "topics are created on first use"),
        Need(_TOPIC, _CREATE, "topics are created on first use, without CREATE on the cluster"),
        Need(_CLUSTER, _DESCRIBE, "authorized operations of the cluster are asked for"),
    ),
    "OffsetCommit": (Need(_GROUP, _READ), Need(_TOPIC, _READ)),
    "OffsetFetch": (Need(_GROUP, _DESCRIBE), Need(_TOPIC, _DESCRIBE)),
    "FindCoordinator": (
        Need(_GROUP, _DESCRIBE, "of a group"),
        Need(_TRANSACTION, _DESCRIBE, "of a transactional id"),
        Need(_CLUSTER, _CLUSTER_ACTION, "of a share partition"),
    ),
    "JoinGroup": (Need(_GROUP, _READ),),
    "Heartbeat": (Need(_GROUP, _READ),),
    "LeaveGroup": (Need(_GROUP, _READ),),
    "SyncGroup": (Need(_GROUP, _READ),),
    "DescribeGroups": (Need(_GROUP, _DESCRIBE),),
    "ListGroups": (
        Need(_CLUSTER, _DESCRIBE),
        Need(_GROUP, _DESCRIBE, "without DESCRIBE on the cluster: only these groups are listed"),
    ),
    "ApiVersions": _NOTHING,
    "SaslHandshake": _NOTHING,
    "SaslAuthenticate": _NOTHING,
    "CreateTopics": (
        Need(_CLUSTER, _CREATE),
        Need(_TOPIC, _CREATE, "without CREATE on the cluster"),
        Need(_TOPIC, _DESCRIBE_CONFIGS, "to see the settings that the topic got"),
    ),
    "DeleteTopics": (
        Need(_CLUSTER, _DELETE),
        Need(_TOPIC, _DESCRIBE, "without DELETE on the cluster"),
        Need(_TOPIC, _DELETE, "without DELETE on the cluster"),
    ),
    "DeleteRecords": (Need(_TOPIC, _DELETE),),
    "InitProducerId": (
        Need(_TRANSACTION, _WRITE, "with a transactional id"),
        Need(_TRANSACTION, AclOperation.TWO_PHASE_COMMIT, "with two-phase commit (KIP-939)"),
        Need(_CLUSTER, AclOperation.IDEMPOTENT_WRITE, "without one"),
        Need(_TOPIC, _WRITE, "without one and without IDEMPOTENT_WRITE: on any topic (KIP-679)"),
    ),
    "OffsetForLeaderEpoch": (
        Need(_CLUSTER, _CLUSTER_ACTION),
        Need(_TOPIC, _DESCRIBE, "without CLUSTER_ACTION"),
    ),
    "AddPartitionsToTxn": (
        Need(_TRANSACTION, _WRITE, "up to version 3"),
        Need(_TOPIC, _WRITE, "up to version 3"),
        Need(_CLUSTER, _CLUSTER_ACTION, "from version 4"),
    ),
    "AddOffsetsToTxn": (Need(_TRANSACTION, _WRITE), Need(_GROUP, _READ)),
    "EndTxn": (Need(_TRANSACTION, _WRITE),),
    "WriteTxnMarkers": (
        Need(_CLUSTER, _ALTER),
        Need(_CLUSTER, _CLUSTER_ACTION, "without ALTER"),
    ),
    "TxnOffsetCommit": (Need(_TRANSACTION, _WRITE), Need(_GROUP, _READ), Need(_TOPIC, _READ)),
    "DescribeAcls": (Need(_CLUSTER, _DESCRIBE),),
    "CreateAcls": (Need(_CLUSTER, _ALTER),),
    "DeleteAcls": (Need(_CLUSTER, _ALTER),),
    "DescribeConfigs": (
        Need(_TOPIC, _DESCRIBE_CONFIGS, "of a topic"),
        Need(_GROUP, _DESCRIBE_CONFIGS, "of a group"),
        Need(_CLUSTER, _DESCRIBE_CONFIGS, "of a broker, its loggers, client metrics"),
    ),
    "AlterConfigs": (
        Need(_TOPIC, _ALTER_CONFIGS, "of a topic"),
        Need(_GROUP, _ALTER_CONFIGS, "of a group"),
        Need(_CLUSTER, _ALTER_CONFIGS, "of a broker, its loggers, client metrics"),
    ),
    "IncrementalAlterConfigs": (
        Need(_TOPIC, _ALTER_CONFIGS, "of a topic"),
        Need(_GROUP, _ALTER_CONFIGS, "of a group"),
        Need(_CLUSTER, _ALTER_CONFIGS, "of a broker, its loggers, client metrics"),
    ),
    "AlterReplicaLogDirs": (Need(_CLUSTER, _ALTER),),
    "DescribeLogDirs": (Need(_CLUSTER, _DESCRIBE),),
    "CreatePartitions": (Need(_TOPIC, _ALTER),),
    "CreateDelegationToken": (
        Need(_USER, AclOperation.CREATE_TOKENS, "for somebody else; everybody may for themselves"),
    ),
    "RenewDelegationToken": _NOTHING,
    "ExpireDelegationToken": _NOTHING,
    "DescribeDelegationToken": (
        Need(_TOKEN, _DESCRIBE, "of somebody else"),
        Need(_USER, AclOperation.DESCRIBE_TOKENS, "of somebody else, without DESCRIBE on the token"),
    ),
    "DeleteGroups": (Need(_GROUP, _DELETE),),
    "ElectLeaders": (Need(_CLUSTER, _ALTER),),
    "AlterPartitionReassignments": (Need(_CLUSTER, _ALTER),),
    "ListPartitionReassignments": (Need(_CLUSTER, _DESCRIBE),),
    "OffsetDelete": (Need(_GROUP, _DELETE), Need(_TOPIC, _READ)),
    "DescribeClientQuotas": (Need(_CLUSTER, _DESCRIBE_CONFIGS),),
    "AlterClientQuotas": (Need(_CLUSTER, _ALTER_CONFIGS),),
    "DescribeUserScramCredentials": (Need(_CLUSTER, _DESCRIBE),),
    "AlterUserScramCredentials": (Need(_CLUSTER, _ALTER),),
    "DescribeQuorum": (Need(_CLUSTER, _DESCRIBE),),
    "DescribeCluster": (Need(_CLUSTER, _DESCRIBE, "authorized operations are asked for"),),
    "DescribeProducers": (Need(_TOPIC, _READ),),
    "UnregisterBroker": (Need(_CLUSTER, _ALTER),),
    "DescribeTransactions": (
        Need(_TRANSACTION, _DESCRIBE),
        Need(_TOPIC, _DESCRIBE, "only these topics are shown"),
    ),
    "ListTransactions": (Need(_TRANSACTION, _DESCRIBE),),
    "ConsumerGroupHeartbeat": (Need(_GROUP, _READ), Need(_TOPIC, _DESCRIBE, "subscribed topics")),
    "ConsumerGroupDescribe": (Need(_GROUP, _DESCRIBE), Need(_TOPIC, _DESCRIBE, "assigned topics")),
    "ListConfigResources": (Need(_CLUSTER, _DESCRIBE_CONFIGS),),
    "DescribeTopicPartitions": (Need(_TOPIC, _DESCRIBE),),
    "ShareGroupHeartbeat": (Need(_GROUP, _READ), Need(_TOPIC, _DESCRIBE, "subscribed topics")),
    "ShareGroupDescribe": (Need(_GROUP, _DESCRIBE), Need(_TOPIC, _DESCRIBE, "assigned topics")),
    "ShareFetch": (Need(_GROUP, _READ), Need(_TOPIC, _READ)),
    "ShareAcknowledge": (Need(_GROUP, _READ), Need(_TOPIC, _READ)),
    "InitializeShareGroupState": (Need(_CLUSTER, _CLUSTER_ACTION),),
    "ReadShareGroupState": (Need(_CLUSTER, _CLUSTER_ACTION),),
    "WriteShareGroupState": (Need(_CLUSTER, _CLUSTER_ACTION),),
    "DeleteShareGroupState": (Need(_CLUSTER, _CLUSTER_ACTION),),
    "ReadShareGroupStateSummary": (Need(_CLUSTER, _CLUSTER_ACTION),),
    "DescribeShareGroupOffsets": (Need(_GROUP, _DESCRIBE), Need(_TOPIC, _DESCRIBE)),
    "AlterShareGroupOffsets": (Need(_GROUP, _READ), Need(_TOPIC, _READ)),
    "DeleteShareGroupOffsets": (Need(_GROUP, _DELETE), Need(_TOPIC, _READ)),
    # Outside of Kafka's protocol and of the table of APIs: what brokers, and `tidelog doctor`, ask a broker.
    "ControllerCommand": (Need(_CLUSTER, _CLUSTER_ACTION),),
    "AppendDeadLetters": (Need(_CLUSTER, _CLUSTER_ACTION),),
    "DescribeBackgroundJobs": (Need(_CLUSTER, _DESCRIBE),),
    "DescribeSharePartitions": (
        Need(_CLUSTER, _DESCRIBE, "all groups; of one: the group and its topics instead"),
    ),
    "DescribeDelays": (Need(_CLUSTER, _DESCRIBE),),
}
