"""The guard of each API by its name. Those that are not here ask for nothing, or do it themselves."""

from tidelog.broker.requests.authorization import Authorization
from tidelog.broker.requests.guards import cluster, groups, shares, topics, transactions
from tidelog.broker.requests.guards.guard import Access, Answer, Guard, Serve
from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.model.acls import AclOperation
from tidelog.model.image import ClusterImage

_ALTER, _DESCRIBE = AclOperation.ALTER, AclOperation.DESCRIBE
_DESCRIBE_CONFIGS, _ALTER_CONFIGS = AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS

#: APIs whose handlers ask the authorizer: the hand-decoded ones, and those that depend on whose token it is
OWN_CHECKS = frozenset(
    {
        *("Produce", "Fetch", "ShareFetch", "ShareAcknowledge"),
        *("CreateDelegationToken", "DescribeDelegationToken"),
    }
)

GUARDS: dict[str, Guard] = {
    "ListOffsets": topics.list_offsets,
    "Metadata": topics.metadata,
    "OffsetCommit": groups.offset_commit,
    "OffsetFetch": groups.offset_fetch,
    "FindCoordinator": groups.find_coordinator,
    "JoinGroup": groups.join_group,
    "Heartbeat": groups.heartbeat,
    "LeaveGroup": groups.leave_group,
    "SyncGroup": groups.sync_group,
    "DescribeGroups": groups.describe_groups,
    "ListGroups": groups.list_groups,
    "CreateTopics": topics.create_topics,
    "DeleteTopics": topics.delete_topics,
    "DeleteRecords": topics.delete_records,
    "InitProducerId": transactions.init_producer_id,
    "OffsetForLeaderEpoch": topics.offset_for_leader_epoch,
    "AddPartitionsToTxn": transactions.add_partitions_to_txn,
    "AddOffsetsToTxn": transactions.add_offsets_to_txn,
    "EndTxn": transactions.end_txn,
    "WriteTxnMarkers": transactions.write_txn_markers,
    "TxnOffsetCommit": groups.txn_offset_commit,
    "DescribeAcls": cluster.whole(_DESCRIBE, cluster.refuse(resources=[])),
    "CreateAcls": cluster.whole(_ALTER, cluster.refused_acls),
    "DeleteAcls": cluster.whole(_ALTER, cluster.refused_filters),
    "DescribeConfigs": cluster.describe_configs,
    "AlterConfigs": cluster.alter_configs,
    "IncrementalAlterConfigs": cluster.alter_configs,
    "AlterReplicaLogDirs": cluster.whole(_ALTER, cluster.refused_log_moves),
    "DescribeLogDirs": cluster.whole(_DESCRIBE, cluster.refuse(results=[])),
    "CreatePartitions": topics.create_partitions,
    "DeleteGroups": groups.delete_groups,
    "ElectLeaders": cluster.whole(_ALTER, cluster.refused_elections),
    "AlterPartitionReassignments": cluster.whole(_ALTER, cluster.refused_moves),
    "ListPartitionReassignments": cluster.whole(_DESCRIBE, cluster.refuse(topics=[])),
    "OffsetDelete": groups.offset_delete,
    "DescribeClientQuotas": cluster.whole(_DESCRIBE_CONFIGS, cluster.refuse(entries=None)),
    "AlterClientQuotas": cluster.whole(_ALTER_CONFIGS, cluster.refused_quotas),
    "DescribeUserScramCredentials": cluster.whole(_DESCRIBE, cluster.refuse(results=[])),
    "AlterUserScramCredentials": cluster.whole(_ALTER, cluster.refused_scram_changes),
    "DescribeQuorum": cluster.whole(_DESCRIBE, cluster.refuse(topics=[])),
    "DescribeCluster": cluster.describe_cluster,
    "DescribeProducers": topics.describe_producers,
    "UnregisterBroker": cluster.whole(_ALTER, cluster.refuse()),
    "DescribeTransactions": transactions.describe_transactions,
    "ListTransactions": transactions.list_transactions,
    "ConsumerGroupHeartbeat": groups.consumer_group_heartbeat,
    "ConsumerGroupDescribe": groups.consumer_group_describe,
    "ListConfigResources": cluster.whole(_DESCRIBE_CONFIGS, cluster.refuse(config_resources=[])),
    "DescribeTopicPartitions": topics.describe_topic_partitions,
    "ShareGroupHeartbeat": shares.share_group_heartbeat,
    "ShareGroupDescribe": shares.share_group_describe,
    "InitializeShareGroupState": shares.share_state,
    "ReadShareGroupState": shares.share_state,
    "WriteShareGroupState": shares.share_state,
    "DeleteShareGroupState": shares.share_state,
    "ReadShareGroupStateSummary": shares.share_state,
    "DescribeShareGroupOffsets": shares.describe_offsets,
    "AlterShareGroupOffsets": shares.alter_offsets,
    "DeleteShareGroupOffsets": shares.delete_offsets,
}


def serve_guarded(
    authorization: Authorization, image: ClusterImage, settings: LiveSettings, request: Request, serve: Serve
) -> Answer:
    """Have a request served as far as its sender may."""
    guard = GUARDS.get(request.api.name)
    if guard is None:
        return serve(request)
    return guard(Access(authorization, request, image, settings), request, serve)
