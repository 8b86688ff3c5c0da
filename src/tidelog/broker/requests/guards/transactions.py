"""Guards of producers and transactions."""

from typing import Any

from tidelog.broker.requests.guards.guard import (
    CLUSTER_REFUSED,
    GROUP_REFUSED,
    TOPIC_REFUSED,
    TRANSACTION_REFUSED,
    Access,
    Answer,
    Fields,
    Serve,
    changed,
    parted,
    partition_rows,
    serve_allowed,
    with_body,
)
from tidelog.broker.requests.request import Request
from tidelog.model.acls import AclOperation
from tidelog.model.errors import ErrorCode
from tidelog.protocol.slices import each

_WRITE, _DESCRIBE = AclOperation.WRITE, AclOperation.DESCRIBE
_FROM_BROKERS_SINCE = 4


def init_producer_id(access: Access, request: Request, serve: Serve) -> Answer:
    """WRITE on the transactional id; without one IDEMPOTENT_WRITE, or WRITE on any topic (KIP-679).

    Two-phase commit needs TWO_PHASE_COMMIT on the transactional id as well (KIP-939).
    """
    transactional_id = request.body.transactional_id
    if transactional_id is not None:
        allowed, error = access.may_transaction(_WRITE, transactional_id), TRANSACTION_REFUSED
        if allowed and getattr(request.body, "enable2_pc", False):
            allowed = access.may_transaction(AclOperation.TWO_PHASE_COMMIT, transactional_id)
    else:
        allowed = access.may_cluster(AclOperation.IDEMPOTENT_WRITE) or access.may_any_topic(_WRITE)
        error = CLUSTER_REFUSED
    if allowed:
        return serve(request)
    return {"error_code": error, "producer_id": -1, "producer_epoch": -1}


def add_partitions_to_txn(access: Access, request: Request, serve: Serve) -> Answer:
    """CLUSTER_ACTION for other brokers; WRITE on the transactional id and each topic for producers."""
    body = request.body
    if request.version >= _FROM_BROKERS_SINCE:
        if access.may_cluster(AclOperation.CLUSTER_ACTION):
            return serve(request)
        return {"error_code": CLUSTER_REFUSED, "results_by_transaction": []}
    topics = body.v3_and_below_topics
    if not access.may_transaction(_WRITE, body.v3_and_below_transactional_id):
        return _added(topics, lambda topic, index: TRANSACTION_REFUSED)
    refused = {topic.name for topic in topics if not access.may_topic(_WRITE, topic.name)}
    if not refused:
        return serve(request)

    def error_of(topic: str, index: int) -> ErrorCode:
        if topic in refused:
            return TOPIC_REFUSED
        exists = access.image.partition(topic, index) is not None
        return ErrorCode.OPERATION_NOT_ATTEMPTED if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    return _added(topics, error_of)


def _added(topics: Any, error_of: Any) -> Fields:
    return {
        "results_by_topic_v3_and_below": [
            {
                "name": topic.name,
                "results_by_partition": [
                    {"partition_index": index, "partition_error_code": error_of(topic.name, index)}
                    for index in each(topic.partitions)
                ],
            }
            for topic in each(topics)
        ]
    }


def add_offsets_to_txn(access: Access, request: Request, serve: Serve) -> Answer:
    """WRITE on the transactional id, READ on the group."""
    if not access.may_transaction(_WRITE, request.body.transactional_id):
        return {"error_code": TRANSACTION_REFUSED}
    if not access.may_group(AclOperation.READ, request.body.group_id):
        return {"error_code": GROUP_REFUSED}
    return serve(request)


def end_txn(access: Access, request: Request, serve: Serve) -> Answer:
    """WRITE on the transactional id."""
    if access.may_transaction(_WRITE, request.body.transactional_id):
        return serve(request)
    return {"error_code": TRANSACTION_REFUSED, "producer_id": -1, "producer_epoch": -1}


def write_txn_markers(access: Access, request: Request, serve: Serve) -> Answer:
    """ALTER or CLUSTER_ACTION on the cluster."""
    if access.may_cluster(AclOperation.ALTER) or access.may_cluster(AclOperation.CLUSTER_ACTION):
        return serve(request)
    return {
        "markers": [
            {
                "producer_id": marker.producer_id,
                "topics": [
                    {
                        "name": topic.name,
                        "partitions": partition_rows(topic.partition_indexes, CLUSTER_REFUSED),
                    }
                    for topic in each(marker.topics)
                ],
            }
            for marker in each(request.body.markers)
        ]
    }


def describe_transactions(access: Access, request: Request, serve: Serve) -> Answer:
    """DESCRIBE on each transactional id; topics without it are left out."""
    kept, refused = parted(
        request.body.transactional_ids, lambda name: not name or access.may_transaction(_DESCRIBE, name)
    )
    rows: list[Fields] = [
        {"transactional_id": name, "error_code": TRANSACTION_REFUSED} for name in each(refused)
    ]
    answer = serve_allowed(request, serve, "transactional_ids", kept, "transaction_states", rows)

    def shown(state: Fields) -> Fields:
        topics = state.get("topics") or ()
        return {**state, "topics": [one for one in topics if access.may_topic(_DESCRIBE, one["topic"])]}

    def finish(fields: Fields) -> Fields:
        return {**fields, "transaction_states": [shown(one) for one in each(fields["transaction_states"])]}

    return changed(answer, finish)


def list_transactions(access: Access, request: Request, serve: Serve) -> Answer:
    """Only the transactional ids with DESCRIBE are listed; no pattern is compiled for who has it on none."""
    if getattr(request.body, "transactional_id_pattern", None) and not access.may_describe_any_transaction():
        request = with_body(request, transactional_id_pattern=None)

    def finish(fields: Fields) -> Fields:
        states = [
            state
            for state in fields.get("transaction_states") or ()
            if access.may_transaction(_DESCRIBE, state["transactional_id"])
        ]
        return {**fields, "transaction_states": states}

    return changed(serve(request), finish)
