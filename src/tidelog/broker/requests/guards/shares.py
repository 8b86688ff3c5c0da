"""Guards of share groups and share coordinators. ShareFetch and ShareAcknowledge ask for themselves."""

from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

from tidelog.broker.requests.group_answers import Gathered
from tidelog.broker.requests.guards.groups import consumer_group_describe
from tidelog.broker.requests.guards.guard import (
    CLUSTER_REFUSED,
    GROUP_REFUSED,
    TOPIC_REFUSED,
    Access,
    Answer,
    Fields,
    Serve,
    parted,
    with_body,
    with_rows,
)
from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.groups import share_responses
from tidelog.model.acls import AclOperation
from tidelog.model.errors import Refused
from tidelog.protocol.slices import each
from tidelog.shares.coordinator import refusal
from tidelog.shares.schemas import UNINITIALIZED_OFFSET, ShareKey

_READ, _DESCRIBE, _DELETE = AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DELETE
_GROUP_FAULT = Refused(GROUP_REFUSED, "Group authorization failed.")
_TOPIC_FAULT = Refused(TOPIC_REFUSED, "Topic authorization failed.")

#: DESCRIBE on each group, and on the topics that its members read
share_group_describe = consumer_group_describe


def share_group_heartbeat(access: Access, request: Request, serve: Serve) -> Answer:
    """READ on the group, DESCRIBE on each subscribed topic."""
    body = request.body
    if not access.may_group(_READ, body.group_id):
        return share_responses.heartbeat_error(_GROUP_FAULT)
    if not all(access.may_topic(_DESCRIBE, name) for name in each(body.subscribed_topic_names or ())):
        return share_responses.heartbeat_error(_TOPIC_FAULT)
    return serve(request)


def share_state(access: Access, request: Request, serve: Serve) -> Answer:
    """CLUSTER_ACTION: only brokers have to do with the state of share groups."""
    if access.may_cluster(AclOperation.CLUSTER_ACTION):
        return serve(request)
    fault = Refused(CLUSTER_REFUSED, "Cluster authorization failed.")
    nobody = UUID(int=0)
    results = [
        {
            "topic_id": topic.topic_id,
            "partitions": [
                refusal(ShareKey(request.body.group_id, topic.topic_id or nobody, part.partition), fault)
                for part in each(topic.partitions)
            ],
        }
        for topic in each(request.body.topics)
    ]
    return {"results": results}


# -- offsets


def describe_offsets(access: Access, request: Request, serve: Serve) -> Answer:
    """DESCRIBE on each group and topic; of all topics those without it are passed over."""
    groups = request.body.groups
    gathered = Gathered(len(groups), lambda rows: {"groups": rows})
    for number, group in enumerate(groups):
        put = partial(gathered.put, number)
        if not access.may_group(_DESCRIBE, group.group_id):
            put(
                {
                    "group_id": group.group_id,
                    "topics": (),
                    "error_code": GROUP_REFUSED,
                    "error_message": _GROUP_FAULT.message,
                }
            )
            continue
        _describe_group(access, request, group, serve, put)
    return gathered.delayed


def _describe_group(access: Access, request: Request, group: Any, serve: Serve, put: Any) -> None:
    rows: list[Fields] = []
    if group.topics is not None:
        kept, refused = parted(group.topics, lambda topic: access.may_topic(_DESCRIBE, topic.topic_name))
        rows = [_undescribed(topic) for topic in each(refused)]
        group = replace(group, topics=tuple(kept))
    everything = group.topics is None

    def finish(fields: Fields) -> None:
        [found] = fields["groups"]
        topics = list(found["topics"])
        if everything:
            topics = [topic for topic in topics if access.may_topic(_DESCRIBE, topic["topic_name"])]
        put({**found, "topics": topics if found["error_code"] else [*topics, *rows]})

    answer = serve(with_body(request, groups=(group,)))
    if isinstance(answer, DelayedAnswer):
        answer.deliver_to(finish)
    else:
        finish(answer)


def _undescribed(topic: Any) -> Fields:
    rows = [
        {
            "partition_index": index,
            "start_offset": UNINITIALIZED_OFFSET,
            "leader_epoch": 0,
            "lag": -1,
            "error_code": TOPIC_REFUSED,
            "error_message": _TOPIC_FAULT.message,
        }
        for index in each(topic.partitions)
    ]
    return {"topic_name": topic.topic_name, "topic_id": None, "partitions": rows}


def alter_offsets(access: Access, request: Request, serve: Serve) -> Answer:
    """READ on the group and on each topic."""
    body = request.body
    if not access.may_group(_READ, body.group_id):
        return share_responses.offsets_error(_GROUP_FAULT)
    kept, refused = parted(body.topics, lambda topic: access.may_topic(_READ, topic.topic_name))
    rows = [
        share_responses.altered_topic(
            topic.topic_name,
            share_responses.NO_TOPIC_ID,
            {part.partition_index: TOPIC_REFUSED for part in topic.partitions},
        )
        for topic in each(refused)
    ]
    return _served(request, serve, kept, rows)


def delete_offsets(access: Access, request: Request, serve: Serve) -> Answer:
    """DELETE on the group, READ on each topic."""
    body = request.body
    if not access.may_group(_DELETE, body.group_id):
        return share_responses.offsets_error(_GROUP_FAULT)
    kept, refused = parted(body.topics, lambda topic: access.may_topic(_READ, topic.topic_name))
    rows = [
        share_responses.deleted_topic(
            topic.topic_name, share_responses.NO_TOPIC_ID, TOPIC_REFUSED, _TOPIC_FAULT.message
        )
        for topic in each(refused)
    ]
    return _served(request, serve, kept, rows)


def _served(request: Request, serve: Serve, kept: list[Any], rows: list[Fields]) -> Answer:
    """What is allowed, with the refusals of the rest."""
    if not rows:
        return serve(request)
    if not kept:
        return share_responses.offsets(rows)
    return with_rows(serve(with_body(request, topics=tuple(kept))), "responses", rows)
