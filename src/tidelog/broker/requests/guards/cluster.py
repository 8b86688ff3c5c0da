"""Guards of the cluster itself: settings, replicas, ACLs, quotas, users."""

from collections.abc import Callable
from typing import Any

from tidelog.broker.requests.cluster_answers import OPERATIONS_NOT_ASKED
from tidelog.broker.requests.guards.guard import (
    CLUSTER_REFUSED,
    GROUP_REFUSED,
    TOPIC_REFUSED,
    Access,
    Answer,
    Fields,
    Guard,
    Serve,
    changed,
    parted,
    partition_rows,
    serve_allowed,
)
from tidelog.broker.requests.request import Request
from tidelog.model.acls import AclOperation
from tidelog.model.errors import ErrorCode
from tidelog.protocol.slices import each

_MESSAGE = "Cluster authorization failed."
_TOPIC, _GROUP = 2, 32
#: settings of brokers, their loggers and client metrics belong to the cluster
_OF_CLUSTER = (4, 8, 16)


def whole(operation: AclOperation, refusal: Callable[[Any], Fields]) -> Guard:
    """A guard that asks for one operation on the cluster, and refuses the whole request without it."""

    def guard(access: Access, request: Request, serve: Serve) -> Answer:
        return serve(request) if access.may_cluster(operation) else refusal(request.body)

    return guard


def refuse(**fields: Any) -> Callable[[Any], Fields]:
    """A refusal that says nothing of the request."""
    return lambda body: {"error_code": CLUSTER_REFUSED, "error_message": _MESSAGE, **fields}


def refused_moves(body: Any) -> Fields:
    """The refusal of AlterPartitionReassignments, which names every partition."""
    responses = [
        {
            "name": topic.name,
            "partitions": partition_rows((one.partition_index for one in topic.partitions), CLUSTER_REFUSED),
        }
        for topic in each(body.topics)
    ]
    return {"error_code": CLUSTER_REFUSED, "error_message": _MESSAGE, "responses": responses}


def refused_elections(body: Any) -> Fields:
    """The refusal of ElectLeaders, of which version 0 knows partitions alone."""
    results = [
        {
            "topic": topic.topic,
            "partition_result": [
                {"partition_id": index, "error_code": CLUSTER_REFUSED, "error_message": _MESSAGE}
                for index in each(topic.partitions)
            ],
        }
        for topic in each(body.topic_partitions or ())
    ]
    return {"error_code": CLUSTER_REFUSED, "replica_election_results": results}


def refused_log_moves(body: Any) -> Fields:
    """The refusal of AlterReplicaLogDirs, which names every partition."""
    results: dict[str, list[Fields]] = {}
    for directory in each(body.dirs):
        for topic in each(directory.topics):
            results.setdefault(topic.name, []).extend(partition_rows(topic.partitions, CLUSTER_REFUSED))
    return {"results": [{"topic_name": name, "partitions": rows} for name, rows in results.items()]}


def refused_acls(body: Any) -> Fields:
    """The refusal of CreateAcls, one for each."""
    row = {"error_code": CLUSTER_REFUSED, "error_message": _MESSAGE}
    return {"results": [row for _ in each(body.creations)]}


def refused_filters(body: Any) -> Fields:
    """The refusal of DeleteAcls, one for each filter."""
    row = {"error_code": CLUSTER_REFUSED, "error_message": _MESSAGE, "matching_acls": []}
    return {"filter_results": [row for _ in each(body.filters)]}


def refused_quotas(body: Any) -> Fields:
    """The refusal of AlterClientQuotas, one for each entity."""
    return {
        "entries": [
            {
                "error_code": CLUSTER_REFUSED,
                "error_message": _MESSAGE,
                "entity": [
                    {"entity_type": part.entity_type, "entity_name": part.entity_name}
                    for part in each(entry.entity)
                ],
            }
            for entry in each(body.entries)
        ]
    }


def refused_scram_changes(body: Any) -> Fields:
    """The refusal of AlterUserScramCredentials, one for each user."""
    names = dict.fromkeys(one.name for one in each((*body.deletions, *body.upsertions)))
    return {
        "results": [
            {"user": name, "error_code": CLUSTER_REFUSED, "error_message": _MESSAGE} for name in each(names)
        ]
    }


def describe_cluster(access: Access, request: Request, serve: Serve) -> Answer:
    """Nothing, but the operations on the cluster are those that are allowed."""

    def finish(fields: Fields) -> Fields:
        if fields.get("cluster_authorized_operations", OPERATIONS_NOT_ASKED) == OPERATIONS_NOT_ASKED:
            return fields
        return {**fields, "cluster_authorized_operations": access.cluster_operations()}

    return changed(serve(request), finish)


def _resource_error(
    access: Access, operation: AclOperation, resource_type: int, name: str
) -> ErrorCode | None:
    """Why the settings of a resource may not be touched; types that nobody knows are the handler's."""
    if resource_type == _TOPIC:
        return None if access.may_topic(operation, name) else TOPIC_REFUSED
    if resource_type == _GROUP:
        return None if access.may_group(operation, name) else GROUP_REFUSED
    if resource_type in _OF_CLUSTER:
        return None if access.may_cluster(operation) else CLUSTER_REFUSED
    return None


def _configs(operation: AclOperation, answered: str) -> Guard:
    def guard(access: Access, request: Request, serve: Serve) -> Answer:
        def error_of(resource: Any) -> ErrorCode | None:
            return _resource_error(access, operation, resource.resource_type, resource.resource_name)

        kept, refused = parted(request.body.resources, lambda resource: error_of(resource) is None)
        rows: list[Fields] = [
            {
                "error_code": error_of(resource),
                "error_message": None,
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
                "configs": [],
            }
            for resource in each(refused)
        ]
        return serve_allowed(request, serve, "resources", kept, answered, rows)

    return guard


describe_configs = _configs(AclOperation.DESCRIBE_CONFIGS, "results")
alter_configs = _configs(AclOperation.ALTER_CONFIGS, "responses")
