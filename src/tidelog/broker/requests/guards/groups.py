"""Guards of groups and their offsets."""

from dataclasses import replace
from functools import partial
from typing import Any

from tidelog.broker.requests.group_answers import Gathered, topic_name
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
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.groups import responses
from tidelog.groups.consumer_responses import described_missing as consumer_group_missing
from tidelog.groups.consumer_responses import heartbeat_error
from tidelog.groups.responses import no_offset
from tidelog.model.acls import AclOperation, ResourceType
from tidelog.model.errors import ErrorCode
from tidelog.protocol.slices import each

_READ, _DESCRIBE, _DELETE = AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DELETE
_FETCH_GROUP_ERROR_SINCE = 2
_FETCH_BATCHED_SINCE = 8
_KEYS_SINCE = 4
_PROTOCOL_NULLABLE_SINCE = 7
_GROUP_KEY, _TRANSACTION_KEY, _SHARE_KEY = 0, 1, 2
_SHARE_KEY_SINCE = 6


def join_group(access: Access, request: Request, serve: Serve) -> Answer:
    """READ on the group."""
    if access.may_group(_READ, request.body.group_id):
        return serve(request)
    refused = responses.join_error(GROUP_REFUSED, request.body.member_id)
    return {**refused, "protocol_name": None if request.version >= _PROTOCOL_NULLABLE_SINCE else ""}


def sync_group(access: Access, request: Request, serve: Serve) -> Answer:
    """READ on the group."""
    if access.may_group(_READ, request.body.group_id):
        return serve(request)
    return responses.sync_error(GROUP_REFUSED)


def heartbeat(access: Access, request: Request, serve: Serve) -> Answer:
    """READ on the group."""
    if access.may_group(_READ, request.body.group_id):
        return serve(request)
    return responses.heartbeat(GROUP_REFUSED)


def leave_group(access: Access, request: Request, serve: Serve) -> Answer:
    """READ on the group."""
    if access.may_group(_READ, request.body.group_id):
        return serve(request)
    return responses.leave_error(GROUP_REFUSED)


def describe_groups(access: Access, request: Request, serve: Serve) -> Answer:
    """DESCRIBE on each group."""
    kept, refused = parted(request.body.groups, lambda name: access.may_group(_DESCRIBE, name))
    rows = [responses.described_missing(name, GROUP_REFUSED, None) for name in each(refused)]
    answer = serve_allowed(request, serve, "groups", kept, "groups", rows)
    return changed(answer, lambda fields: _with_group_operations(access, fields))


def _with_group_operations(access: Access, fields: Fields) -> Fields:
    """The operations that are allowed where the handler put all there are."""
    return {
        **fields,
        "groups": [
            {**group, "authorized_operations": access.operations(ResourceType.GROUP, group["group_id"])}
            if "authorized_operations" in group
            else group
            for group in each(fields["groups"])
        ],
    }


def list_groups(access: Access, request: Request, serve: Serve) -> Answer:
    """DESCRIBE on the cluster, or only the groups with DESCRIBE are listed."""
    if access.may_cluster(_DESCRIBE):
        return serve(request)
    return changed(
        serve(request),
        lambda fields: {
            **fields,
            "groups": [group for group in fields["groups"] if access.may_group(_DESCRIBE, group["group_id"])],
        },
    )


def delete_groups(access: Access, request: Request, serve: Serve) -> Answer:
    """DELETE on each group."""
    kept, refused = parted(request.body.groups_names, lambda name: access.may_group(_DELETE, name))
    names = dict.fromkeys(refused)
    rows: list[Fields] = [{"group_id": name, "error_code": GROUP_REFUSED} for name in each(names)]
    return serve_allowed(request, serve, "groups_names", kept, "results", rows)


def find_coordinator(access: Access, request: Request, serve: Serve) -> Answer:
    """DESCRIBE on each group or transactional id; CLUSTER_ACTION for share partitions."""
    key_type = getattr(request.body, "key_type", _GROUP_KEY)
    is_shared = key_type == _SHARE_KEY and request.version >= _SHARE_KEY_SINCE

    def may(key: str) -> bool:
        if key_type == _GROUP_KEY:
            return access.may_group(_DESCRIBE, key)
        if is_shared:
            return access.may_cluster(AclOperation.CLUSTER_ACTION)
        return key_type != _TRANSACTION_KEY or access.may_transaction(_DESCRIBE, key)

    error = GROUP_REFUSED if key_type == _GROUP_KEY else TRANSACTION_REFUSED
    if is_shared:
        error = CLUSTER_REFUSED
    nowhere: Fields = {"error_code": error, "error_message": None, "node_id": -1, "host": "", "port": -1}
    if request.version < _KEYS_SINCE:
        return serve(request) if may(request.body.key) else nowhere
    kept, refused = parted(request.body.coordinator_keys, may)
    rows: list[Fields] = [{**nowhere, "key": key} for key in each(refused)]
    return serve_allowed(request, serve, "coordinator_keys", kept, "coordinators", rows)


# -- offsets


def _committed_refusal(topic: Any, name: str | None, error: ErrorCode) -> Fields:
    indexes = [part.partition_index for part in each(topic.partitions)]
    topic_id = getattr(topic, "topic_id", None)
    return {"name": name, "topic_id": topic_id, "partitions": partition_rows(indexes, error)}


def offset_commit(access: Access, request: Request, serve: Serve) -> Answer:
    """READ on the group and on each topic; an id that nobody has is the handler's to refuse."""
    topics = [(topic, topic_name(access.image, topic)) for topic in each(request.body.topics)]
    if not access.may_group(_READ, request.body.group_id):
        return {"topics": [_committed_refusal(topic, name, GROUP_REFUSED) for topic, name in each(topics)]}
    kept, refused = parted(topics, lambda item: item[1] is None or access.may_topic(_READ, item[1]))
    rows = [_committed_refusal(topic, name, TOPIC_REFUSED) for topic, name in each(refused)]
    return serve_allowed(request, serve, "topics", [topic for topic, _ in kept], "topics", rows)


def txn_offset_commit(access: Access, request: Request, serve: Serve) -> Answer:
    """WRITE on the transactional id, READ on the group and on each topic."""
    body = request.body
    error = None
    if not access.may_transaction(AclOperation.WRITE, body.transactional_id):
        error = TRANSACTION_REFUSED
    elif not access.may_group(_READ, body.group_id):
        error = GROUP_REFUSED
    if error is not None:
        return {"topics": [_committed_refusal(topic, topic.name, error) for topic in each(body.topics)]}
    kept, refused = parted(body.topics, lambda topic: access.may_topic(_READ, topic.name))
    rows = [_committed_refusal(topic, topic.name, TOPIC_REFUSED) for topic in each(refused)]
    return serve_allowed(request, serve, "topics", kept, "topics", rows)


def offset_delete(access: Access, request: Request, serve: Serve) -> Answer:
    """DELETE on the group, READ on each topic."""
    body = request.body
    if not access.may_group(_DELETE, body.group_id):
        return {"error_code": GROUP_REFUSED, "topics": []}
    kept, refused = parted(body.topics, lambda topic: access.may_topic(_READ, topic.name))
    rows: list[Fields] = [
        {
            "name": topic.name,
            "partitions": partition_rows((part.partition_index for part in topic.partitions), TOPIC_REFUSED),
        }
        for topic in each(refused)
    ]
    if not rows:
        return serve(request)
    # Served also without topics: the group's own error goes before those of topics.
    answer = serve(with_body(request, topics=tuple(kept)))
    return changed(
        answer,
        lambda fields: fields if fields["error_code"] else {**fields, "topics": [*fields["topics"], *rows]},
    )


def offset_fetch(access: Access, request: Request, serve: Serve) -> Answer:
    """DESCRIBE on each group and topic; of all topics those without it are passed over."""
    version = request.version
    if version < _FETCH_BATCHED_SINCE:
        return _fetch_single(access, request, serve)
    groups = request.body.groups
    gathered = Gathered(len(groups), lambda parts: {"groups": parts})
    for number, group in enumerate(groups):
        if not access.may_group(_DESCRIBE, group.group_id):
            gathered.put(number, {"group_id": group.group_id, "error_code": GROUP_REFUSED, "topics": []})
            continue
        kept, rows = _described_topics(access, group.topics)
        answer = serve(with_body(request, groups=(replace(group, topics=kept),)))

        finish = partial(_put_fetched, access, gathered, number, rows, group.topics is None)
        if isinstance(answer, DelayedAnswer):
            answer.deliver_to(finish)
        else:
            finish(answer)
    return gathered.delayed


def _put_fetched(
    access: Access, gathered: Gathered, number: int, rows: list[Fields], everything: bool, fields: Fields
) -> None:
    gathered.put(number, _fetched(access, fields["groups"][0], rows, everything))


def _described_topics(access: Access, topics: Any) -> tuple[Any, list[Fields]]:
    """The topics of a group that may be described, and the refusals of the others."""
    if topics is None:
        return None, []
    named = [(topic, topic_name(access.image, topic)) for topic in each(topics)]
    kept, refused = parted(named, lambda item: item[1] is None or access.may_topic(_DESCRIBE, item[1]))
    rows: list[Fields] = [
        {
            "name": name,
            "topic_id": getattr(topic, "topic_id", None),
            "partitions": [no_offset(index, TOPIC_REFUSED) for index in each(topic.partition_indexes)],
        }
        for topic, name in each(refused)
    ]
    return tuple(topic for topic, _ in kept), rows


def _fetched(access: Access, group: Fields, rows: list[Fields], everything: bool) -> Fields:
    topics = list(group.get("topics") or ())
    if everything:
        topics = [topic for topic in topics if access.may_topic(_DESCRIBE, topic["name"])]
    return {**group, "topics": topics if group.get("error_code") else [*topics, *rows]}


def _fetch_single(access: Access, request: Request, serve: Serve) -> Answer:
    body = request.body
    if not access.may_group(_DESCRIBE, body.group_id):
        topics: list[Fields] = []
        if request.version < _FETCH_GROUP_ERROR_SINCE:
            topics = [
                {
                    "name": topic.name,
                    "partitions": [
                        no_offset(index, GROUP_REFUSED) for index in each(topic.partition_indexes)
                    ],
                }
                for topic in each(body.topics)
            ]
        return {"error_code": GROUP_REFUSED, "topics": topics}
    kept, rows = _described_topics(access, body.topics)
    answer = serve(with_body(request, topics=kept)) if rows else serve(request)
    return changed(answer, lambda fields: _fetched(access, fields, rows, body.topics is None))


# -- consumer groups


def consumer_group_heartbeat(access: Access, request: Request, serve: Serve) -> Answer:
    """READ on the group, DESCRIBE on each subscribed topic."""
    body = request.body
    if not access.may_group(_READ, body.group_id):
        return heartbeat_error(GROUP_REFUSED, None)
    if not all(access.may_topic(_DESCRIBE, name) for name in each(body.subscribed_topic_names or ())):
        return heartbeat_error(TOPIC_REFUSED, None)
    return serve(request)


def consumer_group_describe(access: Access, request: Request, serve: Serve) -> Answer:
    """DESCRIBE on each group, and on the topics that its members read."""
    kept, refused = parted(request.body.group_ids, lambda name: access.may_group(_DESCRIBE, name))
    rows = [consumer_group_missing(name, GROUP_REFUSED, None) for name in each(refused)]
    answer = serve_allowed(request, serve, "group_ids", kept, "groups", rows)

    def finish(fields: Fields) -> Fields:
        shown = {**fields, "groups": [_shown_group(access, group) for group in each(fields["groups"])]}
        return _with_group_operations(access, shown)

    return changed(answer, finish)


def _shown_group(access: Access, group: Fields) -> Fields:
    names = {
        topic["topic_name"]
        for member in group.get("members") or ()
        for side in ("assignment", "target_assignment")
        if side in member
        for topic in member[side]["topic_partitions"]
    }
    if all(access.may_topic(_DESCRIBE, name) for name in each(names)):
        return group
    message = "The group has described topic(s) that the client is not authorized to describe."
    return consumer_group_missing(group["group_id"], TOPIC_REFUSED, message)
