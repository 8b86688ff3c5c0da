"""Guards of what is done to topics and their partitions."""

import importlib
from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from tidelog.broker.requests.cluster_answers import OPERATIONS_NOT_ASKED, asked_topics
from tidelog.broker.requests.config_answers import error_fields
from tidelog.broker.requests.guards.guard import (
    TOPIC_REFUSED,
    Access,
    Answer,
    Fields,
    Serve,
    changed,
    parted,
    partition_rows,
    serve_allowed,
    with_body,
    with_rows,
)
from tidelog.broker.requests.request import Request
from tidelog.controller.commands import TopicReference
from tidelog.controller.machine import referenced_topic
from tidelog.model.acls import AclOperation, ResourceType
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.identifiers import INTERNAL_TOPICS
from tidelog.protocol.slices import each

_DESCRIPTION_REFUSED: Fields = {
    "error_code": TOPIC_REFUSED,
    "topic_id": None,
    "is_internal": False,
    "partitions": [],
    "topic_authorized_operations": OPERATIONS_NOT_ASKED,
}
_CREATION_REFUSED: Fields = {
    "error_code": TOPIC_REFUSED,
    "error_message": "Authorization failed.",
    "num_partitions": -1,
    "replication_factor": -1,
    "configs": [],
}
_FIRST_DELETE_BY_ID = 6


def list_offsets(access: Access, request: Request, serve: Serve) -> Answer:
    """DESCRIBE on each topic."""
    kept, refused = parted(
        request.body.topics, lambda topic: access.may_topic(AclOperation.DESCRIBE, topic.name)
    )
    rows = [
        _refused_topic(topic, (part.partition_index for part in topic.partitions)) for topic in each(refused)
    ]
    return serve_allowed(request, serve, "topics", kept, "topics", rows)


def _refused_topic(topic: Any, indexes: Iterable[int], **fields: Any) -> Fields:
    return {"name": topic.name, "partitions": partition_rows(indexes, TOPIC_REFUSED, **fields)}


def metadata(access: Access, request: Request, serve: Serve) -> Answer:
    """DESCRIBE on each topic; CREATE on the cluster or the topic where it would be created."""
    body = request.body
    topics = body.topics
    finish = _with_topic_operations(access)
    if topics is None or (request.version == 0 and not topics):
        if not any(access.may_describe(name) for name in each(access.image.topics)):
            # Not all of them worked out to be thrown away.
            return changed(_serve_none(request, serve), finish)
        return changed(serve(request), lambda fields: finish(_only_described(access, fields)))
    kept, refused = parted(asked_topics(request), lambda topic: _may_describe(access, topic))
    creatable, uncreatable = parted(kept, lambda topic: _may_create(access, request, topic))
    if not (refused or uncreatable):
        return changed(serve(request), finish)
    rows = [_metadata_refusal(request, topic, created=False) for topic in each(refused)]
    rows += [_metadata_refusal(request, topic, created=True) for topic in each(uncreatable)]
    answer = serve(with_body(request, topics=tuple(creatable))) if creatable else _serve_none(request, serve)
    return with_rows(changed(answer, finish), "topics", rows)


def _serve_none(request: Request, serve: Serve) -> Answer:
    """The answer without topics."""
    if request.version > 0:
        return serve(with_body(request, topics=()))
    # An empty list means all topics in version 0, so there something unknown stands in for it.
    topic_class = importlib.import_module(type(request.body).__module__).MetadataRequestTopic
    answer = serve(with_body(request, topics=(topic_class(name=""),)))
    return changed(answer, lambda fields: {**fields, "topics": []})


def _only_described(access: Access, fields: Fields) -> Fields:
    topics = [topic for topic in fields["topics"] if access.may_topic(AclOperation.DESCRIBE, topic["name"])]
    return {**fields, "topics": topics}


def _may_describe(access: Access, topic: Any) -> bool:
    name = topic.name
    if name is None:
        name = access.image.topic_names_by_id.get(topic.topic_id)
    return name is None or access.may_topic(AclOperation.DESCRIBE, name)


def _may_create(access: Access, request: Request, topic: Any) -> bool:
    """Whether a topic exists, would not be created, or may be."""
    if topic.name is None or topic.name in access.image.topics:
        return True
    created = access.settings.get_bool("auto.create.topics.enable")
    if not created or not getattr(request.body, "allow_auto_topic_creation", True):
        return True
    return access.may_cluster(AclOperation.CREATE) or access.may_topic(AclOperation.CREATE, topic.name)


def _metadata_refusal(request: Request, topic: Any, *, created: bool) -> Fields:
    by_id = topic.name is None
    return {
        "error_code": TOPIC_REFUSED,
        "name": topic.name,
        # Ids are no secret, but that a name has one is.
        "topic_id": topic.topic_id if by_id else None,
        "is_internal": created and topic.name in INTERNAL_TOPICS,
        "partitions": [],
        "topic_authorized_operations": OPERATIONS_NOT_ASKED,
    }


def _with_topic_operations(access: Access) -> Callable[[Fields], Fields]:
    """What puts the operations that are allowed where the handler put all there are."""

    def finish(fields: Fields) -> Fields:
        topics = [
            topic
            if topic.get("topic_authorized_operations", OPERATIONS_NOT_ASKED) == OPERATIONS_NOT_ASKED
            or topic["name"] is None
            else {
                **topic,
                "topic_authorized_operations": access.operations(ResourceType.TOPIC, topic["name"]),
            }
            for topic in each(fields["topics"])
        ]
        finished = {**fields, "topics": topics}
        if fields.get("cluster_authorized_operations", OPERATIONS_NOT_ASKED) != OPERATIONS_NOT_ASKED:
            finished["cluster_authorized_operations"] = access.cluster_operations()
        return finished

    return finish


def describe_topic_partitions(access: Access, request: Request, serve: Serve) -> Answer:
    """DESCRIBE on each topic; of all topics those without it are passed over."""
    body, cursor = request.body, request.body.cursor
    asked = {topic.name for topic in each(body.topics)}
    if cursor is not None and (cursor.partition_index < 0 or (asked and cursor.topic_name not in asked)):
        return serve(request)  # refused by the handler, before it looks at any topic
    names = sorted(asked or access.image.topics)
    if cursor is not None:
        names = [name for name in names if name >= cursor.topic_name]
    kept, refused = parted(names, lambda name: access.may_topic(AclOperation.DESCRIBE, name))
    rows: list[Fields] = [{**_DESCRIPTION_REFUSED, "name": name} for name in refused if asked]
    if not kept:
        return {"topics": rows}
    if cursor is not None and kept[0] != cursor.topic_name:
        cursor = None
    topic_class = importlib.import_module(type(body).__module__).TopicRequest
    topics = tuple(topic_class(name=name) for name in kept)
    answer = serve(with_body(request, topics=topics, cursor=cursor))
    return with_rows(changed(answer, _with_topic_operations(access)), "topics", rows)


def create_topics(access: Access, request: Request, serve: Serve) -> Answer:
    """CREATE on the cluster or on each topic; DESCRIBE_CONFIGS to see the settings they got."""
    topics = request.body.topics
    everywhere = access.may_cluster(AclOperation.CREATE)
    kept, refused = parted(
        topics, lambda topic: everywhere or access.may_topic(AclOperation.CREATE, topic.name)
    )
    rows: list[Fields] = [
        {"name": name, **_CREATION_REFUSED} for name in each(dict.fromkeys(topic.name for topic in refused))
    ]

    def finish(fields: Fields) -> Fields:
        return {**fields, "topics": [_without_secrets(access, topic) for topic in each(fields["topics"])]}

    if not kept:
        return {"topics": rows}
    return with_rows(changed(serve(with_body(request, topics=tuple(kept))), finish), "topics", rows)


def _without_secrets(access: Access, topic: Fields) -> Fields:
    if topic["error_code"] or access.may_topic(AclOperation.DESCRIBE_CONFIGS, topic["name"]):
        return topic
    return {
        **topic,
        "topic_config_error_code": TOPIC_REFUSED,
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": [],
    }


def delete_topics(access: Access, request: Request, serve: Serve) -> Answer:
    """DELETE on the cluster or on each topic; the name behind an id is told to who may describe it."""
    if access.may_cluster(AclOperation.DELETE):
        return serve(request)
    if request.version < _FIRST_DELETE_BY_ID:
        kept, refused = parted(request.body.topic_names, lambda name: _may_delete(access, name))
        rows = [_deletion_refusal(name, None) for name in each(dict.fromkeys(refused))]
        return serve_allowed(request, serve, "topic_names", kept, "responses", rows)
    topics: list[Any] = []
    answered: dict[TopicReference, Fields] = {}
    for topic in each(request.body.topics):
        reference = TopicReference(topic.name, topic.topic_id)
        found = referenced_topic(reference, access.image)
        if isinstance(found, Refused) and found.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            # Not for the controller: it may know the topic of this id already, whose rights nobody asked for.
            answered[reference] = {"name": topic.name, "topic_id": topic.topic_id, **error_fields(found)}
            continue
        name = topic.name if isinstance(found, Refused) else found.name
        if _may_delete(access, name):
            topics.append(topic)
        elif topic.name is not None:
            answered[reference] = _deletion_refusal(name, None)
        else:
            shown = name if access.may_topic(AclOperation.DESCRIBE, name) else None
            answered[reference] = _deletion_refusal(shown, topic.topic_id)
    rows = list(answered.values())
    return serve_allowed(request, serve, "topics", topics, "responses", rows)


def _may_delete(access: Access, name: str) -> bool:
    """Whether a topic may be deleted; who may describe a missing one learns that it is missing."""
    if name not in access.image.topics and access.may_topic(AclOperation.DESCRIBE, name):
        return True
    return access.may_topic(AclOperation.DELETE, name)


def _deletion_refusal(name: str | None, topic_id: UUID | None) -> Fields:
    return {
        "name": name,
        "topic_id": topic_id,
        "error_code": TOPIC_REFUSED,
        "error_message": "Topic authorization failed.",
    }


def create_partitions(access: Access, request: Request, serve: Serve) -> Answer:
    """ALTER on each topic."""
    kept, refused = parted(
        request.body.topics, lambda topic: access.may_topic(AclOperation.ALTER, topic.name)
    )
    rows: list[Fields] = [
        {"name": name, "error_code": TOPIC_REFUSED, "error_message": None}
        for name in each(dict.fromkeys(topic.name for topic in refused))
    ]
    return serve_allowed(request, serve, "topics", kept, "results", rows)


def delete_records(access: Access, request: Request, serve: Serve) -> Answer:
    """DELETE on each topic."""
    kept, refused = parted(
        request.body.topics, lambda topic: access.may_topic(AclOperation.DELETE, topic.name)
    )
    rows = [
        _refused_topic(topic, (part.partition_index for part in topic.partitions), low_watermark=-1)
        for topic in each(refused)
    ]
    return serve_allowed(request, serve, "topics", kept, "topics", rows)


def describe_producers(access: Access, request: Request, serve: Serve) -> Answer:
    """READ on each topic."""
    kept, refused = parted(request.body.topics, lambda topic: access.may_topic(AclOperation.READ, topic.name))
    rows = [_refused_topic(topic, topic.partition_indexes) for topic in each(refused)]
    return serve_allowed(request, serve, "topics", kept, "topics", rows)


def offset_for_leader_epoch(access: Access, request: Request, serve: Serve) -> Answer:
    """CLUSTER_ACTION, or DESCRIBE on each topic."""
    if access.may_cluster(AclOperation.CLUSTER_ACTION):
        return serve(request)
    kept, refused = parted(
        request.body.topics, lambda topic: access.may_topic(AclOperation.DESCRIBE, topic.topic)
    )
    rows: list[Fields] = [
        {
            "topic": topic.topic,
            "partitions": [
                {"partition": part.partition, "error_code": TOPIC_REFUSED} for part in each(topic.partitions)
            ],
        }
        for topic in each(refused)
    ]
    return serve_allowed(request, serve, "topics", kept, "topics", rows)
