"""CreateTopics (key 19), versions 2 to 7: new topics with partitions, replicas and settings.

-1 partitions or replicas ask for the broker's defaults (KIP-464). From version 5 the answer carries the
settings the topic got (KIP-525); `configs` is a list even where the topic was refused, because the Java
client fails on null. From version 7 it carries the topic id. A topic named twice in a request is refused
once.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidelog.broker.config_answers import config_fields, error_fields
from tidelog.broker.parking import Parked
from tidelog.controller.commands import CreateTopics, Result, TopicCreated, TopicSpec
from tidelog.model.settings_table import TOPIC_SETTINGS

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.dispatch import Request

Fields = dict[str, object]


def handle(broker: "Broker", request: "Request") -> Mapping[str, object] | Parked:
    """Have the controller create the topics and answer when they are durable."""
    body = request.body
    specs = tuple(
        TopicSpec(
            topic.name,
            topic.num_partitions,
            topic.replication_factor,
            tuple((item.partition_index, tuple(item.broker_ids)) for item in topic.assignments),
            {config.name: config.value for config in topic.configs},
        )
        for topic in body.topics
    )
    parked = Parked()

    def created(results: tuple[Result, ...]) -> None:
        by_name = {spec.name: result for spec, result in zip(specs, results, strict=True)}
        parked.answer({"topics": [_topic_fields(broker, name, result) for name, result in by_name.items()]})

    broker.metadata.submit(CreateTopics(specs, body.validate_only), created)
    return parked


def _topic_fields(broker: "Broker", name: str, result: Result) -> Fields:
    if not isinstance(result, TopicCreated):
        return {"name": name, **error_fields(result), "configs": []}
    settings = broker.settings
    return {
        "name": name,
        "topic_id": result.topic_id,
        **error_fields(result),
        "num_partitions": result.partition_count,
        "replication_factor": result.replication_factor,
        "configs": [
            config_fields(
                settings.explain_topic(setting, result.configs), synonyms=False, documentation=False
            )
            for setting in sorted(TOPIC_SETTINGS)
        ],
    }
