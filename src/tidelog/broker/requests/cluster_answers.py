"""What several handlers answer from the cluster image: brokers, partitions, permitted operations."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from tidelog.broker.requests.request import Request
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import MIGRATING_DIRECTORY, NO_LEADER
from tidelog.model.image import BrokerImage, ClusterImage, PartitionImage
from tidelog.protocol.slices import each

Fields = dict[str, object]

FIRST_METADATA_BY_ID = 12

# What a client is sent that did not ask which operations it may do.
OPERATIONS_NOT_ASKED = -(2**31)
# Every operation a resource knows, one bit for each operation number: without an authorizer all are allowed.
# Topic: read 3, write 4, create 5, delete 6, alter 7, describe 8, describe configs 10, alter configs 11.
TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
# Cluster: create 5, alter 7, describe 8, cluster action 9, describe configs 10, alter configs 11,
# idempotent write 12.
CLUSTER_OPERATIONS = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))


class AskedTopic(NamedTuple):
    """A topic that a Metadata request asks for."""

    name: str | None
    topic_id: UUID | None


def asked_topics(request: Request) -> Sequence[Any]:
    """The topics that a Metadata request asks for, where it does not ask for all.

    If any of them has an id, names do not count: Java's consumers send empty names beside ids.
    """
    topics: Sequence[Any] = request.body.topics
    if request.version < FIRST_METADATA_BY_ID or all(topic.topic_id is None for topic in each(topics)):
        return topics
    return [AskedTopic(None, topic.topic_id) for topic in each(topics) if topic.topic_id is not None]


def broker_fields(image: ClusterImage, listener_name: str, id_field: str) -> list[Fields]:
    """The brokers that are alive and can be reached on a listener, in order of their ids."""
    return [
        {
            id_field: broker.id,
            "host": broker.endpoints[listener_name].host,
            "port": broker.endpoints[listener_name].port,
            "rack": broker.rack,
        }
        for _, broker in sorted(image.alive_brokers.items())
        if listener_name in broker.endpoints
    ]


def live_controller_id(image: ClusterImage) -> int:
    """The controller, unless it is gone and the next one is not elected yet."""
    return image.controller_id if image.controller_id in image.alive_brokers else NO_LEADER


def partition_fields(
    image: ClusterImage,
    partition: PartitionImage,
    index: int,
    listener_name: str,
    listener_error: ErrorCode = ErrorCode.LISTENER_NOT_FOUND,
) -> Fields:
    """One partition as Metadata and DescribeTopicPartitions send it.

    `listener_error` is what a leader without the client's listener is answered with.
    """
    brokers = image.alive_brokers
    leader = brokers.get(partition.leader)
    error = ErrorCode.NONE
    if leader is None:
        error = ErrorCode.LEADER_NOT_AVAILABLE
    elif listener_name not in leader.endpoints:
        error = listener_error
    return {
        "error_code": error,
        "partition_index": index,
        "leader_id": NO_LEADER if leader is None else leader.id,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": partition.isr,
        "offline_replicas": _offline_replicas(partition, brokers),
    }


def _offline_replicas(partition: PartitionImage, brokers: Mapping[int, BrokerImage]) -> list[int]:
    """Replicas of brokers that are dead, and those in a log directory that is offline."""
    directories = partition.directories or (MIGRATING_DIRECTORY,) * len(partition.replicas)
    return [
        replica
        for replica, directory in zip(partition.replicas, directories, strict=True)
        if replica not in brokers or not brokers[replica].has_online(directory)
    ]
