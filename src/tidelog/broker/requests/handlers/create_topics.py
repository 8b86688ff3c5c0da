"""CreateTopics (key 19), versions 2 to 7: new topics with partitions, replicas and settings.

-1 partitions or replicas ask for the broker's defaults (KIP-464). From version 5 the answer carries the
settings the topic got (KIP-525); `configs` is a list even where the topic was refused, because the Java
client fails on null. From version 7 it carries the topic id. A topic named twice in a request is refused
once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.config_answers import config_fields, error_fields
from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.controller.commands import CreateTopics, Result, TopicCreated, TopicSpec
from tidelog.model.settings import Explanation
from tidelog.model.settings_table import TOPIC_SETTINGS

Fields = dict[str, object]


@dataclass(frozen=True, slots=True)
class Handler:
    """Have the controller create the topics and answer when they are durable."""

    metadata: Metadata
    settings: LiveSettings

    def handle(self, request: Request) -> Mapping[str, object] | DelayedAnswer:
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
        delayed = DelayedAnswer()

        def created(results: tuple[Result, ...]) -> None:
            by_name = {spec.name: result for spec, result in zip(specs, results, strict=True)}
            delayed.answer({"topics": [self._topic_fields(name, result) for name, result in by_name.items()]})

        self.metadata.submit(CreateTopics(specs, body.validate_only), created)
        return delayed

    def _topic_fields(self, name: str, result: Result) -> Fields:
        if not isinstance(result, TopicCreated):
            return {"name": name, **error_fields(result), "configs": []}
        settings = self.settings.current
        return {
            "name": name,
            "topic_id": result.topic_id,
            **error_fields(result),
            "num_partitions": result.partition_count,
            "replication_factor": result.replication_factor,
            "configs": [
                config_fields(
                    _as_given(settings.explain_topic(setting, result.configs), result.configs),
                    synonyms=False,
                    documentation=False,
                )
                for setting in sorted(TOPIC_SETTINGS)
            ],
        }


def _as_given(explained: Explanation, configs: Mapping[str, str]) -> Explanation:
    """With the text that was given, where one was; DescribeConfigs shows how it is understood."""
    return replace(explained, value=configs.get(explained.setting.name, explained.value))
