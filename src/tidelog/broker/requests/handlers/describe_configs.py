"""DescribeConfigs (key 32), versions 1 to 4: settings with their value, source, synonyms, type and meaning.

A topic shows every topic setting. A broker shows every broker setting, only for this broker; the empty broker
name shows what was set for all brokers while running (KIP-226). A group and a subscription to client metrics
show all of theirs, also where nobody has heard of them: these have what the broker's settings say. The
loggers of a broker show their level (KIP-412). Keys that do not exist are left out of the answer. Passwords
are sent as null. Null or no keys mean all.

Each resource is described in one step, and one that is named again is not described again.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.config_answers import (
    BROKER_LOGGER,
    Fields,
    config_fields,
    error_fields,
    unsupported_resource,
)
from tidelog.broker.requests.loggers import logger_levels, wrong_broker
from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.controller.commands import ConfigResourceType
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.identifiers import topic_name_fault
from tidelog.model.metadata import ALL_BROKERS
from tidelog.model.resource_settings import CLIENT_METRICS_SETTINGS, GROUP_SETTINGS
from tidelog.model.settings import ConfigSource, Explanation, explain_client_metrics
from tidelog.model.settings_table import BROKER_SETTINGS, TOPIC_SETTINGS
from tidelog.protocol.slices import checkpoint

_UNKNOWN_TYPE = 0


@dataclass(frozen=True, slots=True)
class Handler:
    """Answer each resource from the settings and the image."""

    metadata: Metadata
    settings: LiveSettings
    node_id: int

    def handle(self, request: Request) -> Mapping[str, object]:
        body = request.body
        synonyms = body.include_synonyms
        documentation = getattr(body, "include_documentation", False)

        def describe(kind: int, name: str, keys: frozenset[str]) -> Fields:
            explained: list[Explanation] | list[Fields] | Refused
            explained = (
                self._loggers(name, keys) if kind == BROKER_LOGGER else self._explain(kind, name, keys)
            )
            configs: list[Fields] = []
            if not isinstance(explained, Refused):
                configs = [
                    config_fields(item, synonyms=synonyms, documentation=documentation)
                    if isinstance(item, Explanation)
                    else item
                    for item in explained
                ]
            return {
                **error_fields(explained),
                "resource_type": kind,
                "resource_name": name,
                "configs": configs,
            }

        described = cache(describe)
        results = []
        for resource in body.resources:
            checkpoint()
            keys = frozenset(resource.configuration_keys or ())
            results.append(described(resource.resource_type, resource.resource_name, keys))
        return {"results": results}

    def _explain(self, resource_type: int, name: str, keys: frozenset[str]) -> list[Explanation] | Refused:
        match resource_type:
            case ConfigResourceType.TOPIC:
                return self._explain_topic(name, keys)
            case ConfigResourceType.BROKER:
                return self._explain_broker(name, keys)
            case ConfigResourceType.GROUP:
                return self._explain_group(name, keys)
            case ConfigResourceType.CLIENT_METRICS:
                return self._explain_client_metrics(name, keys)
            case _:
                return unsupported_resource(resource_type)

    def _explain_topic(self, name: str, keys: frozenset[str]) -> list[Explanation] | Refused:
        fault = topic_name_fault(name)
        if fault is not None:
            return Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
        topic = self.metadata.image.topics.get(name)
        if topic is None:
            return Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
        return [
            self.settings.current.explain_topic(key, topic.configs) for key in _chosen(TOPIC_SETTINGS, keys)
        ]

    def _explain_broker(self, name: str, keys: frozenset[str]) -> list[Explanation] | Refused:
        if name == ALL_BROKERS:
            shared = self.metadata.image.broker_configs.get(ALL_BROKERS, {})
            settings = self.settings.current.with_dynamic(shared, {})
            return [
                _as_default(settings.explain(key)) for key in _chosen(shared, keys) if key in BROKER_SETTINGS
            ]
        if name != str(self.node_id):
            message = f"this is broker {self.node_id}, it cannot describe the settings of broker {name!r}"
            return Refused(ErrorCode.INVALID_REQUEST, message)
        table = {**BROKER_SETTINGS, **self.settings.current.listener_forms}
        return [self.settings.current.explain(key) for key in _chosen(table, keys)]

    def _explain_group(self, name: str, keys: frozenset[str]) -> list[Explanation] | Refused:
        if not name:
            return Refused(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        configs = self.metadata.image.group_configs.get(name, {})
        return [self.settings.current.explain_group(key, configs) for key in _chosen(GROUP_SETTINGS, keys)]

    def _explain_client_metrics(self, name: str, keys: frozenset[str]) -> list[Explanation] | Refused:
        if not name:
            return Refused(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
        configs = self.metadata.image.client_metrics.get(name, {})
        return [explain_client_metrics(key, configs) for key in _chosen(CLIENT_METRICS_SETTINGS, keys)]

    def _loggers(self, name: str, keys: frozenset[str]) -> list[Fields] | Refused:
        refused = wrong_broker(self.node_id, name)
        if refused is not None:
            return refused
        levels = logger_levels()
        return [
            {
                "name": key,
                "value": levels[key],
                "read_only": False,
                "config_source": int(ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG),
                "is_sensitive": False,
                "synonyms": [],
                "config_type": _UNKNOWN_TYPE,
                "documentation": None,
            }
            for key in _chosen(levels, keys)
        ]


def _as_default(explained: Explanation) -> Explanation:
    """A setting of all brokers: what one of them was started with is none of its synonyms."""
    shared = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    return replace(explained, synonyms=tuple(each for each in explained.synonyms if each.source == shared))


def _chosen(names: Collection[str], keys: frozenset[str]) -> list[str]:
    return sorted(name for name in names if not keys or name in keys)
