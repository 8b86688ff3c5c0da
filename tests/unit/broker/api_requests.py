"""A request of every API that names one topic, group and transactional id, for tests driven by the API table.

Fields are written for all versions at once; a version takes those it has. Names that begin with `absent` do
not exist.
"""

from typing import Any
from uuid import UUID

Fields = dict[str, Any]


def requests_of(api: str, name: str, topic_id: UUID | None) -> Fields:
    """The fields of a request of `api` that concerns the topic, group or transactional id `name`."""
    return {**BODIES[api](name), **({"topics": _by_id(api, topic_id)} if topic_id and api in BY_ID else {})}


def _partitions(*fields: str) -> Fields:
    return dict.fromkeys(fields, 0)


def _topic(name: str, **fields: Any) -> Fields:
    return {"name": name, "topic": name, **fields}


def _offsets(name: str) -> list[Fields]:
    part = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
    return [_topic(name, partitions=[part])]


#: versions that name topics by id, from this one on
BY_ID = {"OffsetCommit": 10, "Metadata": 12, "DeleteTopics": 6}


def _by_id(api: str, topic_id: UUID) -> list[Fields]:
    if api == "OffsetCommit":
        part = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
        return [{"topic_id": topic_id, "partitions": [part]}]
    return [{"topic_id": topic_id, "name": None}]


def _configs(name: str) -> Fields:
    change = {"name": "retention.ms", "value": "1", "config_operation": 0}
    return {
        "resources": [
            {"resource_type": 2, "resource_name": name, "configs": [change], "configuration_keys": None},
            {"resource_type": 4, "resource_name": "1", "configs": [], "configuration_keys": None},
            {"resource_type": 32, "resource_name": name, "configs": [], "configuration_keys": None},
        ],
        "validate_only": False,
    }


_FILTER = {
    "resource_type_filter": 1,
    "pattern_type_filter": 1,
    "operation": 1,
    "permission_type": 1,
}
_PRODUCER = {"producer_id": 7, "producer_epoch": 0}


def _share_member(name: str) -> Fields:
    part = {"partition_index": 0, "acknowledgement_batches": []}
    topics = [{"topic_id": SHARED_TOPIC_ID, "partitions": [part]}]
    return {"group_id": name, "member_id": "m", "share_session_epoch": 0, "topics": topics}


#: nobody has it
SHARED_TOPIC_ID = UUID(int=1)


def _share_state(name: str, **fields: Any) -> Fields:
    part = {"partition": 0, **fields}
    return {"group_id": name, "topics": [{"topic_id": SHARED_TOPIC_ID, "partitions": [part]}]}


BODIES: dict[str, Any] = {
    "ListOffsets": lambda n: {
        "replica_id": -1,
        "topics": [
            _topic(n, partitions=[{"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}])
        ],
    },
    "Metadata": lambda n: {
        "topics": [{"name": n}],
        "allow_auto_topic_creation": True,
        "include_topic_authorized_operations": True,
        "include_cluster_authorized_operations": True,
    },
    "OffsetCommit": lambda n: {"group_id": n, "generation_id_or_member_epoch": -1, "topics": _offsets(n)},
    "OffsetFetch": lambda n: {
        "group_id": n,
        "topics": [{"name": n, "partition_indexes": [0]}],
        "groups": [{"group_id": n, "topics": [{"name": n, "partition_indexes": [0]}]}],
    },
    "FindCoordinator": lambda n: {"key": n, "coordinator_keys": [n], "key_type": 0},
    "JoinGroup": lambda n: {
        "group_id": n,
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    },
    "Heartbeat": lambda n: {"group_id": n, "generation_id": 1, "member_id": "m"},
    "LeaveGroup": lambda n: {"group_id": n, "member_id": "m", "members": [{"member_id": "m"}]},
    "SyncGroup": lambda n: {"group_id": n, "generation_id": 1, "member_id": "m", "assignments": []},
    "DescribeGroups": lambda n: {"groups": [n], "include_authorized_operations": True},
    "ListGroups": lambda n: {},
    "CreateTopics": lambda n: {
        "topics": [
            {"name": n, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        ],
        "timeout": 1000,
    },
    "DeleteTopics": lambda n: {
        "topics": [{"name": n, "topic_id": None}],
        "topic_names": [n],
        "timeout": 1000,
    },
    "DeleteRecords": lambda n: {
        "topics": [_topic(n, partitions=[{"partition_index": 0, "offset": 0}])],
        "timeout": 1000,
    },
    "InitProducerId": lambda n: {
        "transactional_id": n,
        "transaction_timeout": 1000,
        "producer_id": -1,
        "producer_epoch": -1,
    },
    "OffsetForLeaderEpoch": lambda n: {
        "replica_id": -2,
        "topics": [_topic(n, partitions=[{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}])],
    },
    "AddPartitionsToTxn": lambda n: {
        "v3_and_below_transactional_id": n,
        "v3_and_below_producer_id": 7,
        "v3_and_below_topics": [{"name": n, "partitions": [0]}],
        "transactions": [
            {
                "transactional_id": n,
                **_PRODUCER,
                "verify_only": True,
                "topics": [{"name": n, "partitions": [0]}],
            }
        ],
    },
    "AddOffsetsToTxn": lambda n: {"transactional_id": n, **_PRODUCER, "group_id": n},
    "EndTxn": lambda n: {"transactional_id": n, **_PRODUCER, "committed": True},
    "WriteTxnMarkers": lambda n: {
        "markers": [
            {
                **_PRODUCER,
                "transaction_result": False,
                "coordinator_epoch": 0,
                "topics": [{"name": n, "partition_indexes": [0]}],
            }
        ]
    },
    "TxnOffsetCommit": lambda n: {
        "transactional_id": n,
        "group_id": n,
        **_PRODUCER,
        "generation_id": -1,
        "topics": _offsets(n),
    },
    "DescribeAcls": lambda n: {**_FILTER},
    "CreateAcls": lambda n: {
        "creations": [
            {
                "resource_type": 2,
                "resource_name": n,
                "resource_pattern_type": 3,
                "principal": "User:a",
                "host": "*",
                "operation": 3,
                "permission_type": 3,
            }
        ]
    },
    "DeleteAcls": lambda n: {"filters": [_FILTER]},
    "DescribeConfigs": _configs,
    "AlterConfigs": _configs,
    "IncrementalAlterConfigs": _configs,
    "AlterReplicaLogDirs": lambda n: {
        "dirs": [{"path": "/data", "topics": [{"name": n, "partitions": [0]}]}]
    },
    "DescribeLogDirs": lambda n: {"topics": None},
    "CreatePartitions": lambda n: {
        "topics": [{"name": n, "count": 3, "assignments": None}],
        "timeout": 1000,
    },
    "DeleteGroups": lambda n: {"groups_names": [n]},
    "ElectLeaders": lambda n: {"topic_partitions": [{"topic": n, "partitions": [0]}], "timeout": 1000},
    "AlterPartitionReassignments": lambda n: {
        "timeout": 1000,
        "topics": [{"name": n, "partitions": [{"partition_index": 0, "replicas": [1]}]}],
    },
    "ListPartitionReassignments": lambda n: {"timeout": 1000, "topics": None},
    "OffsetDelete": lambda n: {
        "group_id": n,
        "topics": [{"name": n, "partitions": [{"partition_index": 0}]}],
    },
    "DescribeClientQuotas": lambda n: {"components": [], "strict": False},
    "AlterClientQuotas": lambda n: {
        "entries": [
            {
                "entity": [{"entity_type": "user", "entity_name": n}],
                "ops": [{"key": "producer_byte_rate", "value": 1.0, "remove": False}],
            }
        ]
    },
    "DescribeUserScramCredentials": lambda n: {"users": None},
    "AlterUserScramCredentials": lambda n: {
        "deletions": [{"name": n, "mechanism": 1}],
        "upsertions": [],
    },
    "DescribeQuorum": lambda n: {
        "topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    },
    "DescribeCluster": lambda n: {"include_cluster_authorized_operations": True, "endpoint_type": 1},
    "DescribeProducers": lambda n: {"topics": [{"name": n, "partition_indexes": [0]}]},
    "UnregisterBroker": lambda n: {"broker_id": 99},
    "DescribeTransactions": lambda n: {"transactional_ids": [n]},
    "ListTransactions": lambda n: {"state_filters": [], "producer_id_filters": []},
    "ConsumerGroupHeartbeat": lambda n: {
        "group_id": n,
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout": 10_000,
        "subscribed_topic_names": [n],
        "topic_partitions": [],
    },
    "ConsumerGroupDescribe": lambda n: {"group_ids": [n], "include_authorized_operations": True},
    "ListConfigResources": lambda n: {"resource_types": []},
    "DescribeTopicPartitions": lambda n: {
        "topics": [{"name": n}],
        "response_partition_limit": 2000,
        "cursor": None,
    },
    "ShareGroupHeartbeat": lambda n: {
        "group_id": n,
        "member_id": "m",
        "member_epoch": 0,
        "subscribed_topic_names": [n],
    },
    "ShareGroupDescribe": lambda n: {"group_ids": [n], "include_authorized_operations": True},
    "ShareFetch": lambda n: {**_share_member(n), "max_wait": 0, "min_bytes": 1, "max_records": 10},
    "ShareAcknowledge": _share_member,
    "InitializeShareGroupState": lambda n: _share_state(n, state_epoch=1, start_offset=0),
    "ReadShareGroupState": lambda n: _share_state(n, leader_epoch=0),
    "WriteShareGroupState": lambda n: _share_state(
        n, state_epoch=1, leader_epoch=0, start_offset=0, state_batches=[]
    ),
    "DeleteShareGroupState": lambda n: _share_state(n),
    "ReadShareGroupStateSummary": lambda n: _share_state(n, leader_epoch=0),
    "DescribeShareGroupOffsets": lambda n: {
        "groups": [{"group_id": n, "topics": [{"topic_name": n, "partitions": [0]}]}]
    },
    "AlterShareGroupOffsets": lambda n: {
        "group_id": n,
        "topics": [{"topic_name": n, "partitions": [{"partition_index": 0, "start_offset": 0}]}],
    },
    "DeleteShareGroupOffsets": lambda n: {"group_id": n, "topics": [{"topic_name": n}]},
}
