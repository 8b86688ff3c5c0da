"""DeleteTopics (key 20), versions 1 to 6: topics go away, by name or, from version 6, by id (KIP-516).

Internal topics can be deleted, as in Kafka. With `delete.topic.enable=false` every topic is refused:
TOPIC_DELETION_DISABLED from version 3, INVALID_REQUEST before, which older clients know.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.config_answers import error_fields
from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.controller.commands import DeleteTopics, Result, TopicDeleted, TopicReference
from tidelog.model.errors import ErrorCode

Fields = dict[str, object]

_FIRST_VERSION_WITH_TOPIC_DELETION_DISABLED = 3
_FIRST_VERSION_WITH_TOPIC_IDS = 6


@dataclass(frozen=True, slots=True)
class Handler:
    """Have the controller delete the topics and answer when that is durable."""

    metadata: Metadata

    def handle(self, request: Request) -> Mapping[str, object] | DelayedAnswer:
        if request.version >= _FIRST_VERSION_WITH_TOPIC_IDS:
            references = tuple(TopicReference(topic.name, topic.topic_id) for topic in request.body.topics)
        else:
            references = tuple(TopicReference(name) for name in request.body.topic_names)
        delayed = DelayedAnswer()

        def deleted(results: tuple[Result, ...]) -> None:
            # A topic given twice is answered once.
            answers = dict(zip(references, results, strict=True))
            delayed.answer(
                {
                    "responses": [
                        _topic_fields(reference, result, request.version)
                        for reference, result in answers.items()
                    ]
                }
            )

        self.metadata.submit(DeleteTopics(references), deleted)
        return delayed


def _topic_fields(reference: TopicReference, result: Result, version: int) -> Fields:
    if isinstance(result, TopicDeleted):
        return {"name": result.name, "topic_id": result.topic_id, **error_fields(result)}
    fields = {"name": reference.name, "topic_id": reference.topic_id, **error_fields(result)}
    if (
        version < _FIRST_VERSION_WITH_TOPIC_DELETION_DISABLED
        and fields["error_code"] == ErrorCode.TOPIC_DELETION_DISABLED
    ):
        fields["error_code"] = ErrorCode.INVALID_REQUEST
    return fields
