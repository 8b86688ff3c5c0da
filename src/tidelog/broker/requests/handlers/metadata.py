"""Metadata (key 3), versions 0 to 13: brokers, topics, partitions and their leaders.

Brokers that are away are not listed; a partition led by one of them is answered LEADER_NOT_AVAILABLE until
another leader is elected. The controller named is the one that decides; any broker passes commands on to it.

All topics are asked for with null, in version 0 with an empty list. Topics can be named by id from version
12; if one is, names do not count. A name that is not a legal topic name is answered
INVALID_TOPIC_EXCEPTION, whether or not it would be created.

Where `auto.create.topics.enable` and the client allow it, unknown topics are created first and the answer
waits for them. Deliberate difference: Kafka answers LEADER_NOT_AVAILABLE at once and has the client ask
again.

The answer depends on the request's bytes, the listener and the image alone, so that dispatch may keep it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.cluster_answers import (
    CLUSTER_OPERATIONS,
    FIRST_METADATA_BY_ID,
    OPERATIONS_NOT_ASKED,
    TOPIC_OPERATIONS,
    asked_topics,
    broker_fields,
    live_controller_id,
    partition_fields,
)
from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.controller.commands import CreateTopics, Result, TopicSpec
from tidelog.controller.internal_topics import internal_topic
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.identifiers import INTERNAL_TOPICS, topic_name_fault
from tidelog.model.image import ClusterImage, TopicImage
from tidelog.protocol.slices import each, whole

Fields = dict[str, object]

#: the other topics of the request are not kept waiting for longer
CREATION_MS_MAX = 3_000
_FIRST_VERSION_WITH_LISTENER_NOT_FOUND = 6


@dataclass(frozen=True, slots=True)
class Handler:
    """Answer from the image, after creating topics where that is wanted."""

    metadata: Metadata
    settings: LiveSettings

    def handle(self, request: Request) -> Mapping[str, object] | DelayedAnswer:
        missing = self._topics_to_create(request)
        if not missing:
            return self._answer(request, {})
        specs = tuple(
            internal_topic(name, self.settings.current, len(self.metadata.image.brokers))
            if name in INTERNAL_TOPICS
            else TopicSpec(name)
            for name in missing
        )
        delayed = DelayedAnswer()

        def created(results: tuple[Result, ...]) -> None:
            refused = {
                name: _creation_error(result.code)
                for name, result in zip(missing, results, strict=True)
                if isinstance(result, Refused)
            }
            delayed.answer(whole(self._answer, request, refused))

        whole(self.metadata.submit, CreateTopics(specs), created, timeout_ms=CREATION_MS_MAX)
        return delayed

    def _topics_to_create(self, request: Request) -> list[str]:
        if _asks_for_all(request) or not getattr(request.body, "allow_auto_topic_creation", True):
            return []
        topics = self.metadata.image.topics
        missing = dict.fromkeys(
            topic.name
            for topic in each(asked_topics(request))
            if topic.name is not None and topic.name not in topics and topic_name_fault(topic.name) is None
        )
        if (
            not missing
            or not self.settings.get_bool("auto.create.topics.enable")
            or not self.metadata.image.brokers
        ):
            return []
        return list(missing)

    def _answer(self, request: Request, refused: Mapping[str, ErrorCode]) -> Fields:
        image = self.metadata.image
        body = request.body
        listener_name = request.context.listener_name
        operations = (
            TOPIC_OPERATIONS
            if getattr(body, "include_topic_authorized_operations", False)
            else OPERATIONS_NOT_ASKED
        )
        listener_error = (
            ErrorCode.LISTENER_NOT_FOUND
            if request.version >= _FIRST_VERSION_WITH_LISTENER_NOT_FOUND
            else ErrorCode.LEADER_NOT_AVAILABLE
        )

        def known(topic: TopicImage) -> Fields:
            return {
                "name": topic.name,
                "topic_id": topic.topic_id,
                "is_internal": topic.internal,
                "partitions": [
                    partition_fields(image, partition, index, listener_name, listener_error)
                    for index, partition in enumerate(topic.partitions)
                ],
                "topic_authorized_operations": operations,
            }

        if _asks_for_all(request):
            topics = [known(topic) for topic in each(image.topics.values())]
        else:
            topics = []
            asked = dict.fromkeys(
                (topic.name, getattr(topic, "topic_id", None)) for topic in each(asked_topics(request))
            )
            for name, topic_id in each(asked):
                topic = _find(image, name, topic_id)
                if topic is None:
                    topics.append(_unknown_topic(name, topic_id, request.version, refused, operations))
                else:
                    topics.append(known(topic))
        cluster_asked = getattr(body, "include_cluster_authorized_operations", False)
        return {
            "brokers": broker_fields(image, listener_name, "node_id"),
            "cluster_id": image.cluster_id,
            "controller_id": live_controller_id(image),
            "topics": topics,
            "cluster_authorized_operations": CLUSTER_OPERATIONS if cluster_asked else OPERATIONS_NOT_ASKED,
        }


def _creation_error(code: ErrorCode) -> ErrorCode:
    # Clients ask again after this one, which is what they should do while there is no controller.
    return ErrorCode.LEADER_NOT_AVAILABLE if code == ErrorCode.REQUEST_TIMED_OUT else code


def _asks_for_all(request: "Request") -> bool:
    topics = request.body.topics
    return topics is None or (request.version == 0 and not topics)


def _find(image: ClusterImage, name: str | None, topic_id: UUID | None) -> TopicImage | None:
    if name is not None:
        return image.topics.get(name)
    return None if topic_id is None else image.topic_by_id(topic_id)


def _unknown_topic(
    name: str | None,
    topic_id: UUID | None,
    version: int,
    refused: Mapping[str, ErrorCode],
    operations: int,
) -> Fields:
    if name is None:
        error = ErrorCode.UNKNOWN_TOPIC_ID if topic_id is not None else ErrorCode.INVALID_REQUEST
    elif topic_name_fault(name) is not None:
        error = ErrorCode.INVALID_TOPIC_EXCEPTION
    else:
        error = refused.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    # Before version 12 an answer cannot leave the name out.
    shown = "" if name is None and version < FIRST_METADATA_BY_ID else name
    return {
        "error_code": error,
        "name": shown,
        "topic_id": topic_id,
        "is_internal": name in INTERNAL_TOPICS,
        "partitions": [],
        # what one may do with a topic is known before there is one
        "topic_authorized_operations": OPERATIONS_NOT_ASKED if name is None else operations,
    }
